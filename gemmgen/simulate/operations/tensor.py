"""Shapes of register tensors: no number changes."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemmgen.simulate.agent import Agent
from gemmgen.simulate.errors import refusal
from gemmgen.simulate.operations.memory import Pointer
from gemmgen.simulate.parse import Operation
from gemmgen.simulate.registry import operation
from gemmgen.simulate.types import TensorType


def _shape(op: Operation) -> tuple[int, ...]:
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    return type_.local_shape


def _on_offsets(value: Any, apply: Callable[[Tensor], Tensor]) -> Any:
    """Apply a change of shape to a tensor, or to a tensor of pointers."""
    if isinstance(value, Pointer):
        return Pointer(value.name, value.flat, apply(torch.as_tensor(value.offset)))
    return apply(value)


@operation("tt.make_range", "start", "end")
def make_range(agent: Agent, op: Operation) -> Tensor:
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    start = op.attributes["start"] + type_.origin(agent.cta)[0]
    return torch.arange(start, start + type_.local_shape[0], dtype=torch.int32)


@operation("tt.splat")
def splat(agent: Agent, op: Operation) -> Any:
    value = agent.get(op.operands[0])
    if isinstance(value, Pointer):
        return Pointer(value.name, value.flat, torch.full(_shape(op), value.offset, dtype=torch.int64))
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    return torch.full(type_.local_shape, value, dtype=type_.dtype)


@operation("tt.unsplat")
def unsplat(agent: Agent, op: Operation) -> Any:
    return agent.get(op.operands[0]).reshape(()).item()


@operation("tt.expand_dims", "axis")
def expand_dims(agent: Agent, op: Operation) -> Any:
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.unsqueeze(op.attributes["axis"]))


@operation("tt.broadcast")
def broadcast(agent: Agent, op: Operation) -> Any:
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.expand(_shape(op)))


@operation("tt.reshape", "allow_reorder", ignored=("efficient_layout",))
def reshape(agent: Agent, op: Operation) -> Any:
    if op.attributes.get("allow_reorder"):
        raise refusal("a reshape that may reorder elements is not known to the simulator", op.location)
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.reshape(_shape(op)))


@operation("tt.trans", "order")
def trans(agent: Agent, op: Operation) -> Any:
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.permute(op.attributes["order"]))


@operation("tt.split")
def split(agent: Agent, op: Operation) -> Any:
    value: Tensor = agent.get(op.operands[0])
    return value[..., 0], value[..., 1]


@operation("tt.join")
def join(agent: Agent, op: Operation) -> Tensor:
    return torch.stack([agent.get(name) for name in op.operands], dim=-1)


@operation("ttg.convert_layout")
def convert_layout(agent: Agent, op: Operation) -> Any:
    before, after = op.operand_types[0], op.result_types[0]
    assert isinstance(before, TensorType)
    assert isinstance(after, TensorType)
    if before.blocks != after.blocks:
        raise refusal("a layout conversion that moves elements between CTAs is not known", op.location)
    return agent.get(op.operands[0])


_REDUCERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": torch.sum,
    "arith.addi": torch.sum,
    "arith.maxnumf": torch.amax,
    "arith.maximumf": torch.amax,
    "arith.minnumf": torch.amin,
    "arith.minimumf": torch.amin,
    "arith.maxsi": torch.amax,
    "arith.minsi": torch.amin,
}


@operation("tt.reduce", "axis")
def reduce(agent: Agent, op: Operation) -> Any:
    combiner = op.regions[0].operations[0].name
    type_ = op.operand_types[0]
    assert isinstance(type_, TensorType)
    axis: int = op.attributes["axis"]
    if len(op.operands) != 1 or combiner not in _REDUCERS or len(op.regions[0].operations) != 2:
        raise refusal("this reduction is not known to the simulator", op.location)
    if type_.local_shape[axis] != type_.shape[axis]:
        raise refusal("a reduction across CTAs is not known to the simulator", op.location)
    value: Tensor = agent.get(op.operands[0])
    result = _REDUCERS[combiner](value, axis).to(value.dtype)
    return result if isinstance(op.result_types[0], TensorType) else result.item()
