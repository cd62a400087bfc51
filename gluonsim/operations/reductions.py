"""Reductions, scans and maps: functions that combine or convert the elements of tensors."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import TensorType
from gluonsim.operations import computation, resolved
from gluonsim.operations.combine import Combiner
from gluonsim.operations.control import exchange
from gluonsim.operations.shapes import assembled, within
from gluonsim.program import Agent, Handler, Steps
from gluonsim.tensors.batches import axis_in, of_all, rank


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


def _by_torch(op: Operation) -> Callable[[Tensor, int], Tensor] | None:
    """Return torch's own reduction for a region of one operation; None if torch has none for it."""
    body = op.regions[0]
    alone = len(op.operands) == 1 and len(body.operations) == 2 and not body.siblings
    first = body.operations[0]
    return _REDUCERS.get(first.name) if alone and first.operands == body.arguments else None


def _pairwise(combine: Combiner, agent: Agent, values: Sequence[Tensor], axis: int) -> list[Tensor]:
    """Combine neighbours until one element is left along an axis, whose extent is a power of two.

    The axis is counted from the first dimension on.
    """
    left = list(values)
    while left[0].shape[axis] > 1:
        pairs = [cast(Tensor, cast(Any, value).unflatten(axis, (-1, 2))) for value in left]
        sides = [[pair.select(axis + 1, side) for pair in pairs] for side in (0, 1)]
        left = combine(agent, [*sides[0], *sides[1]])
    return [value.squeeze(axis) for value in left]


@resolved("tt.reduce", "axis", computes=True)
def reduce(op: Operation) -> Handler:
    type_ = op.operand_types[0]
    assert isinstance(type_, TensorType)
    axis: int = op.attributes["axis"]
    by_torch = _by_torch(op)
    combine = None if by_torch else Combiner(op, rank(type_))

    def reduced(agent: Agent, values: Sequence[Tensor]) -> Any:
        along = axis_in(values[0], type_, axis)
        if by_torch is not None:
            found = [by_torch(values[0], along).to(values[0].dtype)]
        else:
            assert combine is not None
            found = _pairwise(combine, agent, values, along)
        results = tuple(
            value if isinstance(each, TensorType) else value.item()
            for value, each in zip(found, op.result_types, strict=True)
        )
        return results[0] if len(results) == 1 else results

    def alone(agent: Agent, op: Operation) -> Any:
        return reduced(agent, of_all(*map(agent.get, op.operands)))

    def across(agent: Agent, op: Operation) -> Steps:
        """Reduce what the CTAs that divide the axis hold of it: each of them has the result."""
        brought: dict[int, Any] = yield from exchange(agent, op)
        origin, extents = list(type_.origin(agent.cta)), list(type_.local_shape)
        origin[axis], extents[axis] = 0, type_.shape[axis]
        shape = tuple(extents)
        held = type_.holdings(agent.cta, tuple(origin), shape)
        by_cta = [{cta: values[i] for cta, values in brought.items()} for i in range(len(op.operands))]
        return reduced(agent, [assembled(agent, op, shape, held, values) for values in by_cta])

    return alone if type_.local_shape[axis] == type_.shape[axis] else across


@resolved("tt.scan", "axis", "reverse", computes=True)
def scan(op: Operation) -> Handler:
    type_ = op.operand_types[0]
    assert isinstance(type_, TensorType)
    axis: int = op.attributes["axis"]
    reverse: bool = op.attributes["reverse"]
    if type_.local_shape[axis] != type_.shape[axis]:
        raise refusal("a scan across CTAs is not known to the simulator", op.location)
    combine = Combiner(op, rank(type_) - 1)

    def run(agent: Agent, op: Operation) -> Any:
        values = of_all(*map(agent.get, op.operands))
        along = axis_in(values[0], type_, axis)
        columns = list(zip(*(value.unbind(along) for value in values), strict=True))
        if reverse:
            columns.reverse()
        results = list(accumulate(columns, lambda left, right: tuple(combine(agent, [*left, *right]))))
        if reverse:
            results.reverse()
        found = tuple(torch.stack(parts, along) for parts in zip(*results, strict=True))
        return found[0] if len(found) == 1 else found

    return run


@computation("tt.histogram")
def histogram(agent: Agent, op: Operation) -> Tensor:
    source, result = op.operand_types[0], op.result_types[0]
    assert isinstance(source, TensorType)
    assert isinstance(result, TensorType)
    if source.local_shape != source.shape or result.local_shape != result.shape:
        raise refusal("a histogram of what CTAs divide is not known to the simulator", op.location)
    values = agent.get(op.operands[0])
    if len(op.operands) > 1:
        values = values[agent.get(op.operands[1])]
    bins = result.shape[0]
    found = within(op, values, bins) if values.numel() else values.to(torch.int64)
    return torch.bincount(found, minlength=bins).to(result.dtype)


@resolved("tt.map_elementwise", "pack", computes=True)
def map_elementwise(op: Operation) -> Handler:
    """Apply a function to the elements of tensors; it must take them one at a time."""
    if op.attributes["pack"] != 1:
        raise refusal("map_elementwise of several elements at a time is not known", op.location)
    apply = Combiner(op, rank(op.operand_types[0]))

    def run(agent: Agent, op: Operation) -> Any:
        found = tuple(apply(agent, [agent.get(name) for name in op.operands]))
        return found[0] if len(found) == 1 else found

    return run
