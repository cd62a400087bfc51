"""Changes of shape, of layout and of order of a tensor, which change no number.

Inside of a function that combines elements, tensors have more dimensions than their types
(`gluonsim.tensors.batches`).
"""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import Holding, TensorType
from gluonsim.operations import computation, resolved
from gluonsim.operations.arith import once
from gluonsim.operations.control import exchange
from gluonsim.operations.loads_stores import Pointer
from gluonsim.program import Agent, Handler, Steps
from gluonsim.tensors.batches import axis_in, elements, of_all, rank, widened


def _shape(op: Operation) -> tuple[int, ...]:
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    return type_.local_shape


def _extents(op: Operation, value: Tensor) -> tuple[int, ...]:
    """Return the extents of the result for an operand, which may have more dimensions than its type."""
    return *elements(value, op.operand_types[0]), *_shape(op)


def _on_offsets(value: Any, apply: Callable[[Tensor], Tensor]) -> Any:
    """Apply a change of shape to a tensor, or to a tensor of pointers."""
    if isinstance(value, Pointer):
        return Pointer(value.name, value.flat, apply(torch.as_tensor(value.offset)))
    return apply(value)


@computation("tt.make_range", "start", "end")
def make_range(agent: Agent, op: Operation) -> Tensor:
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    start = op.attributes["start"] + type_.origin(agent.cta)[0]
    return _numbers(start, type_.local_shape[0])


@lru_cache(maxsize=16)
def _numbers(start: int, count: int) -> Tensor:
    """Return numbers in order; no operation changes a value."""
    return torch.arange(start, start + count, dtype=torch.int32)


@computation("tt.splat")
def splat(agent: Agent, op: Operation) -> Any:
    value = agent.get(op.operands[0])
    if isinstance(value, Pointer):
        return Pointer(value.name, value.flat, torch.full(_shape(op), value.offset, dtype=torch.int64))
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    if isinstance(value, Tensor):  # a number for each element that a function combines
        return widened(value, op.operand_types[0], rank(type_)).expand(_extents(op, value))
    return torch.full(type_.local_shape, value, dtype=type_.dtype)


@computation("tt.unsplat")
def unsplat(agent: Agent, op: Operation) -> Any:
    value: Tensor = agent.get(op.operands[0])
    number = value.reshape(elements(value, op.operand_types[0]))
    return number if isinstance(op.result_types[0], TensorType) else number.item()


@computation("tt.expand_dims", "axis")
def expand_dims(agent: Agent, op: Operation) -> Any:
    axis: int = op.attributes["axis"]
    type_ = op.operand_types[0]
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.unsqueeze(axis_in(value, type_, axis)))


@computation("tt.broadcast")
def broadcast(agent: Agent, op: Operation) -> Any:
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.expand(_extents(op, value)))


@computation("tt.reshape", "allow_reorder", ignored=("efficient_layout",))
def reshape(agent: Agent, op: Operation) -> Any:
    if op.attributes.get("allow_reorder"):
        raise refusal("a reshape that may reorder elements is not known to the simulator", op.location)
    return _on_offsets(
        agent.get(op.operands[0]),
        lambda value: once(agent, op, (value,), lambda: value.reshape(_extents(op, value))),
    )


@computation("tt.trans", "order")
def trans(agent: Agent, op: Operation) -> Any:
    order: Sequence[int] = op.attributes["order"]

    def permuted(value: Tensor) -> Tensor:
        ahead = axis_in(value, op.operand_types[0], 0)
        return value.permute(*range(ahead), *(ahead + dim for dim in order))

    return _on_offsets(
        agent.get(op.operands[0]), lambda value: once(agent, op, (value,), lambda: permuted(value))
    )


@computation("tt.split")
def split(agent: Agent, op: Operation) -> Any:
    value: Tensor = agent.get(op.operands[0])
    return value[..., 0], value[..., 1]


@computation("tt.join")
def join(agent: Agent, op: Operation) -> Tensor:
    return torch.stack(of_all(*map(agent.get, op.operands)), dim=-1)


@computation("tt.gather", "axis", ignored=("efficient_layout",))
def gather(agent: Agent, op: Operation) -> Tensor:
    source, result = op.operand_types[0], op.result_types[0]
    assert isinstance(source, TensorType)
    assert isinstance(result, TensorType)
    axis: int = op.attributes["axis"]
    elsewhere = [
        [[step for dim, step in enumerate(basis) if dim != axis] for basis in type_.blocks]
        for type_ in (source, result)
    ]
    if source.local_shape[axis] != source.shape[axis] or elsewhere[0] != elsewhere[1]:
        raise refusal("a gather of elements of other CTAs is not known to the simulator", op.location)
    value, indices = (agent.get(name) for name in op.operands)
    indices = within(op, indices, source.shape[axis])
    every = max(elements(value, source), elements(indices, result), key=len)
    value, indices = value.expand(*every, *source.local_shape), indices.expand(*every, *result.local_shape)
    return value.gather(axis_in(value, source, axis), indices)


def within(op: Operation, indices: Tensor, extent: int) -> Tensor:
    """Return indices as torch takes them.

    Raises:
        GemmgenError: An index is not below the extent, or is negative (``out-of-bounds``).
    """
    if bool(((indices < 0) | (indices >= extent)).any()):
        found = f"{int(indices.min())} to {int(indices.max())}"
        raise refusal(f"indices of {found} into {extent} elements", op.location, "out-of-bounds")
    return indices.to(torch.int64)


@resolved("ttg.convert_layout", computes=True)
def convert_layout(op: Operation) -> Handler:
    before, after = op.operand_types[0], op.result_types[0]
    assert isinstance(before, TensorType)
    assert isinstance(after, TensorType)
    if before.blocks == after.blocks:
        return _same
    ctas = range(1 << len(after.blocks))
    held = [before.holdings(cta, after.origin(cta), after.local_shape) for cta in ctas]
    shape = after.local_shape

    def alone(agent: Agent, op: Operation) -> Any:
        return assembled(agent, op, shape, held[agent.cta], {agent.cta: agent.values[op.operands[0]]})

    def across(agent: Agent, op: Operation) -> Steps:
        brought = yield from exchange(agent, op)
        values = {cta: value for cta, (value,) in brought.items()}
        return assembled(agent, op, shape, held[agent.cta], values)

    needs_no_other = all(each.cta == cta for cta in ctas for each in held[cta])
    return alone if needs_no_other else across


def _same(agent: Agent, op: Operation) -> Any:
    return agent.get(op.operands[0])


def assembled(
    agent: Agent, op: Operation, shape: tuple[int, ...], held: Sequence[Holding], by_cta: Mapping[int, Any]
) -> Any:
    """Return a tensor, of numbers or of pointers, put together of what CTAs hold of it."""
    values = [agent.used(by_cta[each.cta]) for each in held]
    first = values[0]
    pieces = [torch.as_tensor(value.offset if isinstance(value, Pointer) else value) for value in values]
    whole = torch.empty(shape, dtype=pieces[0].dtype)
    for each, piece in zip(held, pieces, strict=True):
        whole[each.here] = piece[each.there]
    if not isinstance(first, Pointer):
        return whole
    if any(value.flat.data_ptr() != first.flat.data_ptr() for value in values):
        raise refusal("a tensor of pointers into several tensors is not known to the simulator", op.location)
    return Pointer(first.name, first.flat, whole)
