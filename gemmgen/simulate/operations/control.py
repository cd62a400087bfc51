"""Loops, branches, programs, and the partitions of a warp-specialized kernel."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from typing import Any

from gemmgen.simulate.agent import Agent, Steps
from gemmgen.simulate.clocks import join
from gemmgen.simulate.cluster import JoinWait
from gemmgen.simulate.errors import refusal
from gemmgen.simulate.parse import Block, Operation
from gemmgen.simulate.registry import operation

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


@operation("scf.for", "unsignedCmp", ignored=_LOOP_HINTS, blocking=True)
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


@operation("scf.if", blocking=True)
def scf_if(agent: Agent, op: Operation) -> Steps:
    taken = op.regions[0 if agent.get(op.operands[0]) else 1]
    values: list[Any] = yield from agent.cluster.block(agent, taken)
    return _results(values)


@operation("scf.while", ignored=_LOOP_HINTS, blocking=True)
def scf_while(agent: Agent, op: Operation) -> Steps:
    before, after = op.regions
    values = _raw(agent, op.operands)
    while True:
        agent.values.update(zip(before.arguments, values, strict=True))
        handed: list[Any] = yield from agent.cluster.block(agent, before)
        if not handed[0]:
            return _results(handed[1:])
        agent.values.update(zip(after.arguments, handed[1:], strict=True))
        values = yield from agent.cluster.block(agent, after)
        yield


@operation("tt.get_program_id", "axis")
def get_program_id(agent: Agent, op: Operation) -> int:
    axis: int = op.attributes["axis"]
    return agent.cluster.grid.program[axis]


@operation("tt.get_num_programs", "axis")
def get_num_programs(agent: Agent, op: Operation) -> int:
    axis: int = op.attributes["axis"]
    return agent.cluster.grid.programs[axis]


@operation(
    "ttg.warp_specialize",
    "partitionNumWarps",
    "warpGroupStartIds",
    "requestedRegisters",  # these two: see gemmgen.simulate.budget
    "actualRegisters",
    blocking=True,
)
def warp_specialize(agent: Agent, op: Operation) -> Steps:
    cluster = agent.cluster
    default, holder = op.regions
    inner = holder.operations[0]
    workers: list[Agent] = []
    for number, block in enumerate(inner.regions, 1):
        worker = cluster.spawn(agent.cta, number, cluster.role(number, block))
        join(worker.knowledge.clock, agent.knowledge.clock)
        join(worker.knowledge.fenced, agent.knowledge.fenced)
        captured = _raw(agent, inner.operands)
        worker.values.update(zip(block.arguments, captured, strict=False))
        worker.steps = _partition(worker, block)
        workers.append(worker)
    agent.knowledge.tick()
    agent.label = cluster.role(0, default)
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
    last = block.operations[-1].location if block.operations else agent.cluster.here
    agent.check_exit(last)
