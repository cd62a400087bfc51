"""Reductions and scans: what combines the elements of a tensor along an axis."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.operations import computation, resolved
from gluonsim.operations.arith import combination
from gluonsim.operations.control import exchange
from gluonsim.operations.shapes import assembled
from gluonsim.parse import Operation, TensorType
from gluonsim.program import Agent, Handler, Steps


def _without_nan(reduce: Callable[[Tensor, int], Tensor], neutral: float, value: Tensor, axis: int) -> Tensor:
    """Return the largest or smallest numbers along an axis; NaN only where there is nothing else."""
    nan = value.isnan()
    return reduce(value.masked_fill(nan, neutral), axis).masked_fill(nan.all(axis), math.nan)


_REDUCERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": torch.sum,
    "arith.addi": torch.sum,
    "arith.maxnumf": partial(_without_nan, torch.amax, -math.inf),
    "arith.maximumf": torch.amax,
    "arith.minnumf": partial(_without_nan, torch.amin, math.inf),
    "arith.minimumf": torch.amin,
    "arith.maxsi": torch.amax,
    "arith.minsi": torch.amin,
}


@resolved("tt.reduce", "axis", computes=True)
def reduce(op: Operation) -> Handler:
    body = op.regions[0]
    combiner = body.operations[0].name
    type_ = op.operand_types[0]
    assert isinstance(type_, TensorType)
    axis: int = op.attributes["axis"]
    combines = len(body.operations) == 2 and body.operations[0].operands == body.arguments
    if len(op.operands) != 1 or combiner not in _REDUCERS or not combines:
        raise refusal("this reduction is not known to the simulator", op.location)

    def reduced(value: Tensor) -> Any:
        result = _REDUCERS[combiner](value, axis).to(value.dtype)
        return result if isinstance(op.result_types[0], TensorType) else result.item()

    def within(agent: Agent, op: Operation) -> Any:
        return reduced(agent.get(op.operands[0]))

    def across(agent: Agent, op: Operation) -> Steps:
        """Reduce what the CTAs that divide the axis hold of it: each of them has the result."""
        values = yield from exchange(agent, op)
        origin, extents = list(type_.origin(agent.cta)), list(type_.local_shape)
        origin[axis], extents[axis] = 0, type_.shape[axis]
        shape = tuple(extents)
        held = type_.holdings(agent.cta, tuple(origin), shape)
        return reduced(assembled(agent, op, shape, held, values))

    return within if type_.local_shape[axis] == type_.shape[axis] else across


@computation("tt.scan", "axis", "reverse")
def scan(agent: Agent, op: Operation) -> Tensor:
    type_ = op.operand_types[0]
    assert isinstance(type_, TensorType)
    axis: int = op.attributes["axis"]
    body = op.regions[0]
    combine = combination(body.operations[0].name, type_) if len(body.operations) == 2 else None
    if len(op.operands) != 1 or combine is None or body.operations[0].operands != body.arguments:
        raise refusal("this scan is not known to the simulator", op.location)
    if type_.local_shape[axis] != type_.shape[axis]:
        raise refusal("a scan across CTAs is not known to the simulator", op.location)
    parts = list(agent.get(op.operands[0]).unbind(axis))
    if op.attributes["reverse"]:
        parts.reverse()
    results = list(accumulate(parts, combine))
    if op.attributes["reverse"]:
        results.reverse()
    return torch.stack(results, axis)
