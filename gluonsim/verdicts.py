"""What is judged of a kernel as a whole: what it takes of an SM, and how its programs end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gemmgen.hardware import GPUS, Architecture
from gluonsim.barriers.rounds import Party, report_early
from gluonsim.clocks import Clock, Tick, join, reached
from gluonsim.findings import UNKNOWN, Findings, Kind, Location, Severity, ring_of
from gluonsim.ir.parse import Block, Operation, blocks, walk
from gluonsim.ir.types import MemDescType
from gluonsim.program import Agent, Cluster
from gluonsim.waits import BarrierWait, PollWait, SpinWait


def check_budget(module: Operation, function: Operation, machine: Architecture, findings: Findings) -> None:
    """Report more memory than a CTA can have, and register requests that cannot be met."""
    body = function.regions[0]
    smem_bytes: int = module.attributes["ttg.shared"]
    if smem_bytes > (limit := machine.smem_bytes_per_cta):
        text = f"the kernel needs {smem_bytes:,} bytes of shared memory, a CTA has {limit:,}"
        _blame_largest(body, "ttg.local_alloc", Kind.SMEM_CAPACITY, text, findings)
    columns: int = module.attributes.get("ttg.tensor_memory_size", 0)
    if columns > (limit := machine.tmem_columns):
        text = f"the kernel needs {columns} columns of tensor memory, an SM has {limit}"
        _blame_largest(body, "ttng.tmem_alloc", Kind.TMEM_CAPACITY, text, findings)
    for op in walk(body):
        if op.name == "ttg.warp_specialize":
            _check_registers(op, module, machine, findings)


def _blame_largest(body: Block, name: str, kind: Kind, text: str, findings: Findings) -> None:
    largest = max((op for op in walk(body) if op.name == name), key=_local_bytes)
    variable = largest.location.called
    findings.add(kind, variable, (largest.location,), "launch", 0, text)


def _local_bytes(op: Operation) -> int:
    type_ = op.result_types[0]
    assert isinstance(type_, MemDescType)
    return type_.local_bytes


def _check_registers(op: Operation, module: Operation, machine: Architecture, findings: Findings) -> None:
    requested: tuple[int, ...] | None = op.attributes.get("requestedRegisters")
    if requested is None:
        return
    actual: tuple[int, ...] | None = op.attributes.get("actualRegisters")
    if actual is None:
        # Every thread keeps the registers of the launch then: slower perhaps, and right.
        text = f"the compiler drops the request for {', '.join(map(str, requested))} registers: too many"
        where = (op.location,)
        findings.add(
            Kind.REGISTER_BUDGET, "worker_num_regs", where, "launch", 0, text, severity=Severity.LINT
        )
        return
    # Partitions share groups of four warps, and setmaxnreg is a group's: count each group once.
    starts: tuple[int, ...] = op.attributes["warpGroupStartIds"]
    default_warps: int = module.attributes["ttg.num-warps"]
    group_warps = machine.warps_per_warpgroup
    groups = dict.fromkeys(range(default_warps // group_warps), actual[0])
    for start, warps, registers in zip(starts, op.attributes["partitionNumWarps"], actual[1:], strict=True):
        for group in range(start // group_warps, -(-(start + warps) // group_warps)):
            groups[group] = max(registers, groups.get(group, 0))
    total = sum(groups.values()) * group_warps * machine.threads_per_warp
    if total > machine.registers_per_sm:
        text = f"partitions hold {total:,} registers, an SM has {machine.registers_per_sm:,}"
        findings.add(Kind.REGISTER_BUDGET, "worker_num_regs", (op.location,), "launch", 0, text)


def resident_programs_of(module: Operation, machine: Architecture) -> int:
    """Return the most programs that a GPU of an architecture can hold at one time.

    By shared memory and warps: the registers that threads take are not known before machine code.
    """
    attributes = module.attributes
    warps: int = attributes["ttg.total-num-warps"]
    smem_bytes: int = attributes["ttg.shared"] + machine.smem_reserved_bytes_per_cta
    per_sm = min(machine.ctas_per_sm, machine.warps_per_sm // warps, machine.smem_bytes_per_sm // smem_bytes)
    sms = max(gpu.sm_count for gpu in GPUS.values() if gpu.architecture == machine)
    return max(sms * max(per_sm, 1) // attributes["ttg.num-ctas"], 1)


# --- how a program ends


def judge_end(cluster: Cluster) -> None:
    """Report what a program leaves behind at its end."""
    _check_loads(cluster)
    _check_tensor_cores(cluster)


def judge_stop(running: Sequence[Cluster], not_begun: int, resident: int) -> None:
    """Report what keeps the programs that run from their end."""
    idle = next((cluster for cluster in running if cluster.idle), None)
    if idle is not None and idle.idle is not None:
        _report_livelock(idle, idle.idle)
        return
    polls = {cluster: _polls(cluster) for cluster in running}
    by_themselves = [cluster for cluster, agents in polls.items() if not agents]
    for cluster in by_themselves:
        _report_deadlock(cluster)
    if not by_themselves:  # those that poll wait for one that hangs by itself, if there is one
        _report_poll([agent for agents in polls.values() for agent in agents], not_begun, resident)


def _polls(cluster: Cluster) -> list[Agent]:
    """Return the partitions that wait for global memory."""
    return [
        agent
        for agent in cluster.agents
        if not agent.done and isinstance(agent.waiting, (PollWait, SpinWait))
    ]


def _report_poll(polls: Sequence[Agent], not_begun: int, resident: int) -> None:
    """Report once that programs wait for values that nobody writes; what waits for them is no news."""
    waits: dict[Location, list[Agent]] = {}
    for agent in polls:
        assert agent.waiting is not None
        waits.setdefault(agent.waiting.location, []).append(agent)
    described = "; ".join(
        f"{_programs(agents)} at {place} for {agents[0].waiting}" for place, agents in waits.items()
    )
    text = f"nothing can go on, for all wait: {described}"
    if not_begun:
        text += (
            f". {not_begun} more have not begun: the GPU holds {resident} at one time, "
            f"and begins another when one ends"
        )
    first = polls[0]
    assert isinstance(first.waiting, (PollWait, SpinWait))
    first.report(Kind.DEADLOCK, first.waiting.name, tuple(waits), text)


def _programs(agents: Sequence[Agent]) -> str:
    numbers = [str(number) for number in dict.fromkeys(agent.program for agent in agents)]
    more = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
    return f"program{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:4])}{more}"


def _check_loads(cluster: Cluster) -> None:
    """Report loads into shared memory that its CTA has not awaited: it may end before they do."""
    for component, (number, access, name, cta) in cluster.loads.items():
        if reached(_known(cluster, cta), component) < number:
            wait = "a wait for the barrier that it signals must come before its end"
            text = f"{name}: CTA {cta} ends without having awaited {access}: {wait}"
            base = ring_of(name)
            cluster.findings.add(
                Kind.WORK_IN_FLIGHT, base, (access.location,), access.partition, access.cta, text
            )


def _check_tensor_cores(cluster: Cluster) -> None:
    """Report tcgen05 work in memory of a CTA that has not awaited it: it may end before the work does."""
    for agent in cluster.agents:
        lane = agent.tensor_core
        ctas = (agent.cta, agent.cta | 1) if cluster.kernel.pairs else (agent.cta,)
        for cta in dict.fromkeys(ctas):
            done = reached(_known(cluster, cta), lane.component) if lane.issued else 0
            for _, name, issued in [work for work in lane.unawaited if work[0] > done][:1]:
                wait = "a commit, and a wait for its barrier, must come before its end"
                text = f"{name}: CTA {cta} ends without having awaited the tcgen05 operation into it: {wait}"
                agent.report(Kind.WORK_IN_FLIGHT, ring_of(name), (issued,), text)


def _known(cluster: Cluster, cta: int) -> Clock:
    """Return what the partitions of a CTA know together."""
    known: Clock = {}
    for agent in cluster.agents:
        if agent.cta == cta:
            join(known, agent.knowledge.clock)
    return known


def _report_livelock(cluster: Cluster, running: Agent) -> None:
    alive = [agent for agent in cluster.agents if not agent.done]
    text = (
        f"{cluster.max_idle_operations:,} operations touch no global memory that was not touched before, "
        f"and take over no program. {'; '.join(_place(agent) for agent in alive)}"
    )
    locations = dict.fromkeys((running.here, *(agent.here for agent in alive)))
    name: str = cluster.kernel.function.attributes["sym_name"]
    running.report(Kind.LIVELOCK, name, tuple(locations), text)


def _place(agent: Agent) -> str:
    who = f"{agent.label} of CTA {agent.cta}"
    if agent.here.line is None:
        return f"{who} has not begun"
    does = "is" if agent.waiting is None else "waits"
    return f"{who} {does} at {agent.here} ({agent.here.function or 'no known function'})"


def _report_deadlock(cluster: Cluster) -> None:
    """Report one fault: the wait that the others depend on comes first."""
    stuck = [agent for agent in cluster.agents if not agent.done]
    waits = _by_cause(cluster, [_Stuck(a, a.waiting) for a in stuck if isinstance(a.waiting, BarrierWait)])
    if not waits:
        places = "; ".join(
            f"{a.label} of CTA {a.cta} at {a.waiting.location if a.waiting else UNKNOWN}" for a in stuck
        )
        location = stuck[0].waiting.location if stuck[0].waiting else UNKNOWN
        stuck[0].report(Kind.DEADLOCK, "<cluster barrier>", (location,), f"nothing can go on. {places}")
        return
    for stuck in waits:
        if barrier := stuck.wait.barrier:
            report_early(
                barrier.rounds.missed(stuck.party, stuck.wait.parity), barrier.name, cluster.findings
            )
    first = waits[0]
    name = ring_of(first.wait.name)
    barrier = first.wait.barrier
    signals = _signals(cluster.kernel.function.regions[0]).get(first.wait.allocation, [])
    others = [stuck for stuck in waits if stuck is not first]
    if barrier and first.lacks_bytes and not _load_to_come(first, others, signals):
        text = (
            f"{first.wait.name}: phase {barrier.phases} expects {barrier.expected_bytes:,} bytes and "
            f"receives {barrier.received_bytes:,}"
        )
        cluster.findings.add(
            Kind.BYTE_COUNT,
            name,
            (barrier.expect_location,),
            first.agent.label,
            first.agent.cta,
            text,
            follows=cluster.findings.faulty,
        )
    locations = tuple(dict.fromkeys(stuck.wait.location for stuck in waits))
    text = "nothing can go on. " + "; ".join(map(str, waits))
    first.agent.report(Kind.DEADLOCK, name, locations, text)


@dataclass(frozen=True, eq=False)
class _Stuck:
    """A partition that waits for a barrier without end."""

    agent: Agent
    wait: BarrierWait

    @property
    def party(self) -> Party:
        """The partition at its wait."""
        agent = self.agent
        return Party(Tick(agent.key, agent.knowledge.now), agent.label, agent.cta, self.wait.location)

    @property
    def lacks_bytes(self) -> bool:
        """Return whether all have arrived, all loads too, and the bytes are not those that are expected."""
        barrier = self.wait.barrier
        if barrier is None or barrier.pending or barrier.lacks_load:
            return False
        return barrier.expected_bytes != barrier.received_bytes

    @property
    def lacks_some(self) -> bool:
        """Return whether some have arrived and others have not."""
        barrier = self.wait.barrier
        return barrier is not None and 0 < barrier.pending < barrier.count

    def has_not_heard_of(self, other: _Stuck) -> bool:
        """Return whether another partition has not arrived in the phase that this one waits for."""
        barrier, who = self.wait.barrier, f"{other.agent.label} of CTA {other.agent.cta}"
        return barrier is not None and all(arrival.who != who for arrival in barrier.arrivals)

    def __str__(self) -> str:
        wait, state = self.wait, self.wait.barrier or "never initialised"
        who = f"{self.agent.label} of CTA {self.agent.cta}"
        return f"{who} waits at {wait.location} for parity {wait.parity} of {wait.name}: {state}"


def _by_cause(cluster: Cluster, waits: list[_Stuck]) -> list[_Stuck]:
    """Return the waits, the one first that is the likeliest cause of the others.

    A wait that nobody in the kernel could end is one for sure. Of waits that depend on each other, one that
    got some of its arrivals or the wrong bytes has them from partitions that did their part; and a slot must
    be empty before there is anything to be ready in it.
    """
    signals = _signals(cluster.kernel.function.regions[0])
    operations = {stuck: signals.get(stuck.wait.allocation, ()) for stuck in waits}
    needs: dict[_Stuck, list[_Stuck]] = {}
    for stuck in waits:
        needs[stuck] = [
            other for other in waits if any(_may_signal(other.agent, signal) for signal in operations[stuck])
        ]

    def rank(stuck: _Stuck) -> tuple[bool, int, int, int]:
        barrier = stuck.wait.barrier
        names = {signal.op.name for signal in operations[stuck]}
        by_threads, by_bytes = "ttng.arrive_barrier" in names, "ttng.barrier_expect" in names
        if barrier is None or not names:
            state = 0
        elif stuck.lacks_some and not (by_bytes and any(map(stuck.has_not_heard_of, needs[stuck]))):
            state = 1
        else:
            state = (
                2 if stuck.lacks_bytes and not _load_to_come(stuck, needs[stuck], operations[stuck]) else 3
            )
        source = 2 if by_bytes else 0 if by_threads else 1
        reached = _reached(stuck, needs)
        depends = any(stuck not in _reached(other, needs) for other in reached)
        return depends, state, source, barrier.phases if barrier else 0

    return sorted(waits, key=rank)


def _may_signal(agent: Agent, signal: _Signal) -> bool:
    """Return whether a partition's signalling operation is one that an agent executes."""
    tensor_core = signal.op.name.startswith("ttng.tc_gen5")
    return agent.partition == signal.partition and not (
        tensor_core and agent.cluster.kernel.pairs and agent.cta & 1  # the even CTA of a pair issues for both
    )


def _load_to_come(stuck: _Stuck, others: Sequence[_Stuck], signals: Sequence[_Signal]) -> bool:
    """Return whether the bytes that a wait lacks are of a load that has not been issued.

    Its partition has told the barrier to expect it, and waits for something else before it issues the load.
    """
    barrier = stuck.wait.barrier
    assert barrier is not None
    for other in others:
        here = other.agent.step
        loads = [
            signal.op for signal in signals if signal.op.name == _LOAD and _may_signal(other.agent, signal)
        ]
        expects = [signal.op for signal in signals if signal.op.name == "ttng.barrier_expect"]
        for block in blocks(stuck.agent.cluster.kernel.function.regions[0]):
            if here is None or here.op not in block.operations:
                continue
            at = block.operations.index(here.op)
            told = any(
                op in expects and op.location == barrier.expect_location for op in block.operations[:at]
            )
            if told and any(op in loads for op in block.operations[at:]):
                return True
    return False


def _reached(stuck: _Stuck, needs: Mapping[_Stuck, Sequence[_Stuck]]) -> set[_Stuck]:
    """Return the waits that must end before a wait can."""
    reached: set[_Stuck] = set()
    left = list(needs[stuck])
    while left:
        other = left.pop()
        if other not in reached:
            reached.add(other)
            left += needs[other]
    return reached


_SIGNALLING = (
    "ttng.arrive_barrier",
    "ttng.barrier_expect",
    "ttng.tc_gen5_commit",
    "ttng.tc_gen5_mma",
    "ttng.tc_gen5_mma_scaled",
    "ttng.async_tma_copy_global_to_local",
    "ttng.clc_try_cancel",
)


_LOAD = "ttng.async_tma_copy_global_to_local"


class _Signal(NamedTuple):
    """An operation that signals a barrier, with the partition that executes it."""

    op: Operation
    partition: int


def _signals(body: Block) -> dict[Operation, list[_Signal]]:
    """Return for each allocation the operations that signal a barrier in it."""
    found: dict[Operation, list[_Signal]] = {}
    _trace_barriers(body, 0, {}, found)
    return found


def _trace_barriers(
    body: Block,
    partition: int,
    origins: dict[str, Operation],
    found: dict[Operation, list[_Signal]],
) -> None:
    for op in (op for block in body.siblings.values() or (body,) for op in block.operations):
        if op.name == "ttg.local_alloc":
            origins[op.results[0]] = op
        elif op.name.startswith("ttg.memdesc_") and op.operands[0] in origins:
            origins[op.results[0]] = origins[op.operands[0]]
        elif op.name in _SIGNALLING:
            for operand in op.operands:
                if operand in origins:
                    found.setdefault(origins[operand], []).append(_Signal(op, partition))
        elif op.name == "ttg.warp_specialize.partitions":
            for number, region in enumerate(op.regions, 1):
                handed = zip(region.arguments, op.operands, strict=False)
                inner = {argument: origins[value] for argument, value in handed if value in origins}
                _trace_barriers(region, number, inner, found)
            continue
        for region, handed in zip(op.regions, _handed(op), strict=False):
            origins |= {argument: origins[value] for argument, value in handed if value in origins}
            _trace_barriers(region, partition, origins, found)


def _handed(op: Operation) -> list[list[tuple[str, str]]]:
    """Return for each region of an operation its arguments, each with the value that it has at first."""
    if op.name == "scf.for":
        return [list(zip(op.regions[0].arguments[1:], op.operands[3:], strict=True))]
    if op.name == "scf.while":
        before, after = op.regions
        kept = before.operations[-1].operands[1:]
        return [
            list(zip(before.arguments, op.operands, strict=True)),
            list(zip(after.arguments, kept, strict=True)),
        ]
    return [[] for _ in op.regions]
