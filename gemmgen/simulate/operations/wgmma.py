"""Hopper's warpgroup MMA: reads shared memory from issue to wait, retires in order."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemmgen.simulate.agent import Accumulator, Agent, Event, Steps
from gemmgen.simulate.memory import View
from gemmgen.simulate.parse import Operation
from gemmgen.simulate.registry import operation
from gemmgen.simulate.trace import Span
from gemmgen.simulate.types import TensorType


@operation(
    "ttng.warp_group_dot",
    "isAsync",
    "inputPrecision",
    # Promotion of fp8 partial sums: exact sums do not depend on it.
    ignored=("maxNumImpreciseAcc",),
    blocking=True,
)
def warp_group_dot(agent: Agent, op: Operation) -> Steps:
    cluster = agent.cluster
    a, b = agent.get(op.operands[0]), agent.get(op.operands[1])
    accumulator: Accumulator | Tensor = agent.values[op.operands[2]]
    use_accumulator = len(op.operands) < 4 or bool(agent.get(op.operands[3]))
    name = op.location.name or "<unnamed accumulator>"
    number = agent.mma.issue(name, op.location)
    access = agent.asynchronous(agent.mma.component, number, "wgmma", op.location)
    for operand in (a, b):
        if isinstance(operand, View):
            operand.memory.read(operand, access, agent.knowledge.clock, agent.knowledge.fenced)
    result = Accumulator(number, op.location)
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    begin = cluster.step

    def retire() -> None:
        # An accumulator in flight is an earlier MMA's of this lane, which has retired before this one.
        earlier = accumulator.value if isinstance(accumulator, Accumulator) else accumulator
        result.value = product(a, b, earlier if use_accumulator else None, type_.dtype)
        if cluster.trace:
            row = f"{agent.label} mma"
            cluster.trace.spans.append(
                Span(name, "mma", row, agent.cta, begin, cluster.step, op.location.line)
            )

    cluster.issue(Event(agent.mma.events, retire))
    if not op.attributes["isAsync"]:  # the compiler waits for all of them
        agent.mma.wait(0, agent.knowledge)
        agent.drain(agent.mma)
    yield
    return result


def product(a: View | Tensor, b: View | Tensor, accumulator: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return a @ b + accumulator. Sums are exact for small integers, and else right but for their order."""
    left = a.data if isinstance(a, View) else a
    right = b.data if isinstance(b, View) else b
    if dtype == torch.int32:
        # Products of int8 and sums of 2**38 of them are exact in float64; the device wraps at 32 bits.
        exact = left.double() @ right.double()
        total = exact.to(torch.int64) + (0 if accumulator is None else accumulator.to(torch.int64))
        return wrap_to_int32(total)
    if left.dtype == torch.float32:
        left, right = as_tf32(left), as_tf32(right)
    left, right = left.float(), right.float()
    if accumulator is None:
        return (left @ right).to(dtype)
    return torch.addmm(accumulator.float(), left, right).to(dtype)


def as_tf32(tensor: Tensor) -> Tensor:
    """Return what the tensor core sees of an fp32 number: it ignores the last 13 bits."""
    return (tensor.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def wrap_to_int32(tensor: Tensor) -> Tensor:
    """Return the low 32 bits as a signed number."""
    return ((tensor + 2**31) % 2**32 - 2**31).to(torch.int32)


@operation(
    "ttng.warp_group_dot_wait",
    "pendings",
    # Which warps the compiler synchronizes after it: all warps of a partition run here as one.
    ignored=("warpGroupLocal",),
    blocking=True,
)
def warp_group_dot_wait(agent: Agent, op: Operation) -> Steps:
    agent.mma.wait(op.attributes["pendings"], agent.knowledge)
    agent.drain(agent.mma)
    yield
    results: tuple[Any, ...] = tuple(agent.values[name] for name in op.operands)
    return results[0] if len(results) == 1 else results
