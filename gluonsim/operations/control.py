"""Control: loops, branches, programs, partitions, and the barriers at which they wait for each other."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

import torch

from gluonsim.accesses import INIT, INVALIDATE, Proxy
from gluonsim.barriers.mbarrier import Barrier
from gluonsim.barriers.rounds import Party
from gluonsim.clocks import Tick, join, learn
from gluonsim.findings import Kind, Severity, refusal
from gluonsim.global_memory import AHEAD
from gluonsim.ir.parse import Block, Operation, walk
from gluonsim.ir.types import MemDescType
from gluonsim.memory import View
from gluonsim.operations import operation, resolved
from gluonsim.program import Agent, Handler, Steps
from gluonsim.tensors.deferred import Undefined
from gluonsim.timeline import Span
from gluonsim.waits import BarrierWait, JoinWait, Rendezvous, SpinWait

GDC_WAIT = "tt.grid_dependency_wait"


def owner(op: Operation, operand: int, cta: int) -> int:
    """Return the CTA whose shared memory holds the barrier that a CTA uses.

    Where the barrier's layout does not tell CTAs apart, they share the one of the lowest.
    """
    type_ = op.operand_types[operand]
    assert isinstance(type_, MemDescType)
    return cta & ~type_.shared_bits


def find(agent: Agent, view: View, cta: int, does: str) -> Barrier | None:
    """Return a CTA's barrier, which is used now; one that was never initialised is reported."""
    cluster = agent.cluster
    barrier = cluster.barriers.get((cta, view.place.offset))
    if barrier is not None:
        there, knowledge = view.on(cluster.memories[cta]), agent.knowledge
        access = agent.access(does, agent.here, Proxy.MBARRIER)
        there.memory.read(there, access, knowledge.clock, knowledge.fenced)
    else:
        base = view.place.allocation.location
        text = f"{view.name}: {does} before mbarrier.init"
        agent.report(Kind.UNINITIALISED_BARRIER, base.called, (agent.here, base), text)
    return barrier


def party(agent: Agent, op: Operation) -> Party:
    """Return the agent that arrives at a barrier now, or whose wait ends now."""
    return Party(Tick(agent.key, agent.knowledge.now), agent.label, agent.cta, op.location)


@operation("ttng.init_barrier", "count")
def init_barrier(agent: Agent, op: Operation) -> None:
    view: View = agent.get(op.operands[0])
    type_ = op.operand_types[0]
    assert isinstance(type_, MemDescType)
    if owner(op, 0, agent.cta) != agent.cta:
        return
    # Every CTA that shares the barrier makes its own `count` arrivals.
    count = op.attributes["count"] << type_.shared_bits.bit_count()
    barrier = Barrier(view.name, agent.cta, count)
    _write_barrier(agent, op, view, INIT)
    agent.cluster.barriers[agent.cta, view.place.offset] = barrier
    agent.cluster.initialised.append(barrier)


@operation("ttng.inval_barrier")
def inval_barrier(agent: Agent, op: Operation) -> None:
    view: View = agent.get(op.operands[0])
    if owner(op, 0, agent.cta) == agent.cta and find(agent, view, agent.cta, INVALIDATE):
        _write_barrier(agent, op, view, INVALIDATE)
        del agent.cluster.barriers[agent.cta, view.place.offset]


def _write_barrier(agent: Agent, op: Operation, view: View, what: str) -> None:
    """Judge the beginning or the end of a barrier's life, which no use of it may meet."""
    access = agent.access(what, op.location, Proxy.MBARRIER)
    view.memory.write(view, access, agent.knowledge.clock, agent.knowledge.fenced)


@resolved("ttng.wait_barrier")
def wait_barrier(op: Operation) -> Handler:
    (barrier_name,), (parity,), predicate, _ = op.segments
    type_ = op.operand_types[0]
    assert isinstance(type_, MemDescType)
    others = type_.shared_bits  # where a CTA's number has one of them, the barrier is another CTA's

    def run(agent: Agent, op: Operation) -> Steps:
        if agent.cta & others or (predicate and not agent.get(predicate[0])):
            return
        view: View = agent.get(barrier_name)
        barrier = find(agent, view, agent.cta, "mbarrier.wait")
        cluster = agent.cluster
        begin = cluster.step
        asked: int = agent.get(parity)
        if asked not in (0, 1):
            name = view.place.allocation.location.called
            text = (
                f"{view.name}: a wait for parity {asked}; PTX has 0 and 1, and an H200 takes the lowest bit"
            )
            agent.report(Kind.WAIT_PARITY, name, (op.location,), text, Severity.LINT)
        yield BarrierWait(barrier, asked, view.name, op.location, view.place.allocation, begin)
        assert barrier is not None  # a wait for none has no end
        barrier.acquire(agent.knowledge)
        barrier.rounds.wait(party(agent, op))
        if cluster.trace:
            cluster.trace.spans.append(
                Span(view.name, "wait", agent.label, agent.cta, begin, cluster.step, op.location.line)
            )

    return run


@operation("ttng.arrive_barrier", "count", "multicastCTA", "fromCTA")
def arrive_barrier(agent: Agent, op: Operation) -> Steps:
    if op.attributes.get("multicastCTA", 0) != 0:
        raise refusal("arrivals that a multicast spreads are not known to the simulator", op.location)
    if len(op.operands) > 1 and not agent.get(op.operands[1]):
        return
    _arrive(agent, op, op.attributes["count"], 0)
    yield


@operation("ttng.barrier_expect", "size", "fromCTA")
def barrier_expect(agent: Agent, op: Operation) -> Steps:
    if not agent.get(op.operands[1]):
        return
    _arrive(agent, op, 1, op.attributes["size"])
    yield


def _arrive(agent: Agent, op: Operation, count: int, size: int) -> None:
    view: View = agent.get(op.operands[0])
    does = "mbarrier.expect" if size else "mbarrier.arrive"
    for cta in _targets(agent, op):
        barrier = find(agent, view, cta, does)
        if barrier is None:
            continue
        who = f"{agent.label} of CTA {agent.cta}"
        if size:
            barrier.expect(size, agent.label, op.location, Tick(agent.key, agent.knowledge.now))
        if barrier.pending < count:
            report_overflow(agent, view, op, barrier)
        barrier.rounds.arrive(party(agent, op), dict(agent.knowledge.clock))
        barrier.arrive(count, who, op.location, agent.knowledge)
        agent.cluster.settle(barrier)


def report_overflow(agent: Agent, view: View, op: Operation, barrier: Barrier) -> None:
    """Report an arrival, still to be counted, that is one too many for a barrier."""
    base = view.place.allocation.location.called
    text = f"{view.name}: an arrival too many; before it, {barrier}"
    agent.report(Kind.ARRIVAL_OVERFLOW, base, (op.location,), text)


def _targets(agent: Agent, op: Operation) -> list[int]:
    """Return the CTAs whose barriers get an arrival from this one.

    `fromCTA` keeps some bits of a CTA's number: the barrier of CTA c gets that of CTA c & fromCTA.
    """
    kept: Any = op.attributes.get("fromCTA")
    if kept is None:
        return [owner(op, 0, agent.cta)]
    return [cta for cta in range(agent.cluster.kernel.ctas) if cta & kept == agent.cta]


@operation("ttng.fence_async_shared", ignored=("bCluster",))
def fence_async_shared(agent: Agent, _: Operation) -> None:
    agent.knowledge.fence()


@operation("gpu.barrier")
@operation("ttg.barrier", ignored=("addrSpace",))
def barrier_of_partition(agent: Agent, op: Operation) -> None:
    """Nothing: the warps of a partition run here as one."""


@operation("ttng.fence_mbarrier_init_release_cluster")
def fence_of_initialisation(agent: Agent, op: Operation) -> None:
    """Nothing: initialisations are visible at once here, and the cluster barrier comes after them."""


@operation("ttng.cluster_barrier", "relaxed")
def cluster_barrier(agent: Agent, op: Operation) -> Steps:
    """Wait for the same partition of the cluster's other CTAs.

    A relaxed barrier orders execution: what was awaited before it, an MMA's reads or a load, is over for all.
    It makes no generic store visible, so it hands no fence on.
    """
    yield from meet(agent, op, relaxed=op.attributes["relaxed"])


def exchange(agent: Agent, op: Operation) -> Steps:
    """Hand an operation's operands to the cluster's other CTAs; return what each of them has, by CTA.

    Each leaves its part in shared memory, and the compiler has them meet before they read the others'.
    """
    values = [agent.values[name] for name in op.operands]
    # An undefined value is a fault only of a CTA that gets a part of it.
    values = [value if isinstance(value, Undefined) else agent.used(value) for value in values]
    meeting: Rendezvous = yield from meet(agent, op, brings=values)
    for cta, (other, _) in sorted(meeting.brought.items()):
        if other is not op:
            message = f"CTA {agent.cta} exchanges values here, and CTA {cta} is at {other.location}"
            raise refusal(f"{message}: the CTAs of a cluster must come to the same operation", op.location)
    return {cta: brought for cta, (_, brought) in meeting.brought.items()}


def meet(agent: Agent, op: Operation, *, relaxed: bool = False, brings: Any = None) -> Steps:
    """Wait for the same partition of the cluster's other CTAs, learn what they know; return the meeting.

    What each CTA brings is in the meeting, for all of them.
    """
    meetings = agent.cluster.rendezvous
    meeting = meetings.get(agent.partition)
    if meeting is None or meeting.arrived == meeting.expected:
        meeting = Rendezvous(agent.cluster.kernel.ctas, op.location)
        meetings[agent.partition] = meeting
    meeting.arrived += 1
    meeting.brought[agent.cta] = op, brings
    if relaxed:
        join(meeting.released.clock, agent.knowledge.clock)
        agent.cluster.relaxed.add(agent.knowledge.fenced, op.location)
        agent.knowledge.tick()
    else:
        agent.knowledge.release_into(meeting.released)
    yield meeting
    agent.knowledge.acquire(meeting.released)
    return meeting


_LOOP_HINTS = (
    "tt.num_stages",
    "tt.disallow_acc_multi_buffer",
    "tt.flatten",
    "tt.warp_specialize",
    "tt.loop_unroll_factor",
    "tt.disable_licm",
)
"""About speed: the passes that read them have run, or do not run for Gluon."""


def _raw(agent: Agent, names: tuple[str, ...]) -> list[Any]:
    """Return values as they are: handing an accumulator on is no use of it."""
    return [agent.values[name] for name in names]


def _results(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


@operation("scf.for", "unsignedCmp", ignored=_LOOP_HINTS)
def scf_for(agent: Agent, op: Operation) -> Steps:
    if op.attributes.get("unsignedCmp"):
        raise refusal("loops with unsigned bounds are not known to the simulator", op.location)
    low, high, step = (int(agent.get(name)) for name in op.operands[:3])
    carried = _raw(agent, op.operands[3:])
    body = op.regions[0]
    for i in range(low, high, step):
        agent.values.update(zip(body.arguments, (i, *carried), strict=True))
        carried = yield from agent.cluster.block(agent, body)
    return _results(carried)


@operation("scf.if")
def scf_if(agent: Agent, op: Operation) -> Steps:
    taken = op.regions[0 if agent.get(op.operands[0]) else 1]
    values: list[Any] = yield from agent.cluster.block(agent, taken)
    return _results(values)


@operation("tt.call", ignored=("callee", "arg_attrs", "res_attrs"))
def call(agent: Agent, op: Operation) -> Steps:
    body = op.regions[0]
    agent.values.update(zip(body.arguments, _raw(agent, op.operands), strict=True))
    values: list[Any] = yield from agent.cluster.block(agent, body)
    return _results(values)


@operation("scf.while", ignored=_LOOP_HINTS)
def scf_while(agent: Agent, op: Operation) -> Steps:
    before, after = op.regions
    values = _raw(agent, op.operands)
    looks = only_looks(op)
    while True:
        agent.values.update(zip(before.arguments, values, strict=True))
        agent.polled = [] if looks else None
        handed: list[Any] = yield from agent.cluster.block(agent, before)
        if not agent.used(handed[0]):
            agent.polled = None
            return _results(handed[1:])
        agent.values.update(zip(after.arguments, handed[1:], strict=True))
        new: list[Any] = yield from agent.cluster.block(agent, after)
        if agent.polled:
            counts = any(one is not other and one != other for one, other in zip(values, new, strict=True))
            yield SpinWait(agent.polled, counts)
        else:
            yield
        values = new


_LOOKS = (
    "arith.",
    "scf.if",
    "scf.yield",
    "scf.condition",
    "tt.atomic_",
    "tt.load",
    "tt.addptr",
    "ttg.barrier",
)


def only_looks(loop: Operation) -> bool:
    """Return whether a loop does nothing but to look at global memory, or to change it by atomics."""
    return all(op.name.startswith(_LOOKS) for region in loop.regions for op in walk(region))


@operation("tt.print", ignored=("hex", "isSigned", "prefix"))
def print_(agent: Agent, op: Operation) -> None:
    """Nothing: what a kernel prints is no result."""


@operation("tt.assert", "message")
def assert_(agent: Agent, op: Operation) -> None:
    if not bool(torch.as_tensor(agent.get(op.operands[0])).all()):
        name = op.location.called
        agent.report(Kind.ASSERTION, name, (op.location,), f"the assertion fails: {op.attributes['message']}")


@operation(GDC_WAIT)
def grid_dependency_wait(agent: Agent, _: Operation) -> None:
    """Learn that the kernel ahead has ended, if the launch may begin before that."""
    if agent.cluster.globals.dependence is not None:
        learn(agent.knowledge.clock, AHEAD, 1)


@operation("tt.grid_dependency_launch_dependents")
def grid_dependency_launch_dependents(agent: Agent, op: Operation) -> None:
    """Nothing: what a kernel behind does before this one's end is judged where it is launched."""


@operation("tt.get_program_id", "axis")
def get_program_id(agent: Agent, op: Operation) -> int:
    axis: int = op.attributes["axis"]
    return agent.cluster.grid.program[axis]


@operation("tt.get_num_programs", "axis")
def get_num_programs(agent: Agent, op: Operation) -> int:
    axis: int = op.attributes["axis"]
    return agent.cluster.grid.programs[axis]


@resolved(
    "ttg.warp_specialize",
    "partitionNumWarps",
    "warpGroupStartIds",
    "requestedRegisters",  # these two: see gluonsim.verdicts
    "actualRegisters",
)
def warp_specialize(op: Operation) -> Handler:
    default, holder = op.regions
    inner = holder.operations[0]
    labels: list[str] = []

    def run(agent: Agent, op: Operation) -> Steps:
        if not labels:
            labels.extend(starmap(agent.cluster.role, enumerate((default, *inner.regions))))
        return (yield from _specialized(agent, op, default, inner, labels))

    return run


def _specialized(
    agent: Agent, op: Operation, default: Block, inner: Operation, labels: Sequence[str]
) -> Steps:
    """Run the partitions: the default one in the agent itself, a worker for each of the others."""
    cluster = agent.cluster
    workers: list[Agent] = []
    warps: Sequence[int] = op.attributes["partitionNumWarps"]
    for number, block in enumerate(inner.regions, 1):
        worker = cluster.spawn(agent.cta, number, labels[number], warps[number - 1])
        join(worker.knowledge.clock, agent.knowledge.clock)
        join(worker.knowledge.fenced, agent.knowledge.fenced)
        captured = _raw(agent, inner.operands)
        worker.values.update(zip(block.arguments, captured, strict=False))
        worker.steps = _partition(worker, block)
        workers.append(worker)
    agent.knowledge.tick()
    agent.label = labels[0]
    values = yield from cluster.block(agent, default)
    yield JoinWait(workers, op.location)
    for worker in workers:
        join(agent.knowledge.clock, worker.knowledge.clock)
        join(agent.knowledge.fenced, worker.knowledge.fenced)
    return _results(values)


@operation("ttg.warp_specialize.partitions")
def partitions(agent: Agent, op: Operation) -> None:
    """Never run by itself: `warp_specialize` starts its regions."""


def _partition(agent: Agent, block: Block) -> Steps:
    yield from agent.cluster.block(agent, block)
    last = block.operations[-1].location if block.operations else agent.here
    agent.check_exit(last)
