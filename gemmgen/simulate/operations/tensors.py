"""Register tensors: conversions of their numbers, and their shapes.

Integers truncate and extend, floats round to nearest even; a change of shape changes no number.
"""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from gemmgen.simulate.findings import refusal
from gemmgen.simulate.operations import computation
from gemmgen.simulate.operations.arith import (
    FLAGS,
    Number,
    as_float16,
    as_tensor,
    bits_of,
    combination,
    rounded,
    unsigned,
    wrap,
)
from gemmgen.simulate.operations.loads_stores import Pointer
from gemmgen.simulate.parse import Distributed, Operation, TensorType, dtype_of
from gemmgen.simulate.program import Agent


@computation("arith.extsi")
@computation("arith.index_cast")
@computation("arith.trunci", ignored=FLAGS)
def resize(agent: Agent, op: Operation) -> Number:
    value = agent.get(op.operands[0])
    if isinstance(value, Tensor):
        # True is -1 as a signed number of one bit.
        signed = -value.to(torch.int64) if value.dtype == torch.bool else value
        type_ = op.result_types[0]
        return signed.bitwise_and(1).bool() if type_.element == "i1" else signed.to(dtype_of(type_.element))
    if op.name == "arith.extsi" and op.operand_types[0].element == "i1":
        value = -value
    return wrap(int(value), bits_of(op.result_types[0]))


@computation("arith.extui", ignored=FLAGS)
def extui(agent: Agent, op: Operation) -> Number:
    value = unsigned(agent.get(op.operands[0]), bits_of(op.operand_types[0]))
    return value.to(dtype_of(op.result_types[0].element)) if isinstance(value, Tensor) else value


@computation("arith.sitofp", ignored=FLAGS)
@computation("arith.uitofp", ignored=FLAGS)
def integer_to_float(agent: Agent, op: Operation) -> Number:
    value = agent.get(op.operands[0])
    if op.name == "arith.uitofp" or op.operand_types[0].element == "i1":
        value = unsigned(value, bits_of(op.operand_types[0]))
        if op.name == "arith.sitofp":
            value = -value
    return rounded(value if isinstance(value, Tensor) else torch.tensor(value), op.result_types[0])


@computation("arith.fptosi", ignored=FLAGS)
@computation("arith.fptoui", ignored=FLAGS)
def float_to_integer(agent: Agent, op: Operation) -> Number:
    value = as_tensor(agent.get(op.operands[0]), op.operand_types[0])
    # PTX cvt.rzi saturates and turns NaN into 0 (32 bits and more); MLIR leaves both undefined.
    bits = bits_of(op.result_types[0])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if op.name == "arith.fptosi" else (0, 2**bits - 1)
    exact = value.double().nan_to_num(0.0, posinf=math.inf, neginf=-math.inf).trunc()
    integers = [
        wrap(int(min(max(x, low), high)), bits)
        for x in cast("list[float]", cast(Any, exact).reshape(-1).tolist())
    ]
    result = torch.tensor(integers, dtype=dtype_of(op.result_types[0].element)).reshape(exact.shape)
    return result if isinstance(op.result_types[0], Distributed) else int(result.item())


@computation("arith.extf", ignored=FLAGS)
@computation("arith.truncf", ignored=FLAGS)
@computation("tt.fp_to_fp", "rounding")
def convert_float(agent: Agent, op: Operation) -> Number:
    # Torch and the device both round to nearest even; Triton's number for that is 1.
    if op.attributes.get("rounding", 1) != 1:
        raise refusal(f"rounding {op.attributes['rounding']} is not known to the simulator", op.location)
    value = as_tensor(agent.get(op.operands[0]), op.operand_types[0])
    target = dtype_of(op.result_types[0].element)
    if target in (torch.float8_e4m3fn, torch.float8_e5m2):
        # cvt.rn.satfinite.e4m3x2 / e5m2x2: what is too large becomes the largest finite number [ptx].
        largest = torch.finfo(target).max
        value = value.float().clamp(-largest, largest)
    elif target == torch.float16:
        value = as_float16(agent, op, value)
    return rounded(value, op.result_types[0])


@computation("arith.bitcast")
@computation("tt.bitcast")
def bitcast(agent: Agent, op: Operation) -> Number:
    value = agent.get(op.operands[0])
    if isinstance(value, Pointer):
        pointee = op.result_types[0].element.removeprefix("!tt.ptr<").removesuffix(">")
        return Pointer(value.name, value.flat.view(dtype_of(pointee)), value.offset)
    target = dtype_of(op.result_types[0].element)
    result = as_tensor(agent.get(op.operands[0]), op.operand_types[0]).contiguous().view(target)
    return result if isinstance(op.result_types[0], Distributed) else result.item()


def _shape(op: Operation) -> tuple[int, ...]:
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    return type_.local_shape


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
    return torch.arange(start, start + type_.local_shape[0], dtype=torch.int32)


@computation("tt.splat")
def splat(agent: Agent, op: Operation) -> Any:
    value = agent.get(op.operands[0])
    if isinstance(value, Pointer):
        return Pointer(value.name, value.flat, torch.full(_shape(op), value.offset, dtype=torch.int64))
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    return torch.full(type_.local_shape, value, dtype=type_.dtype)


@computation("tt.unsplat")
def unsplat(agent: Agent, op: Operation) -> Any:
    return agent.get(op.operands[0]).reshape(()).item()


@computation("tt.expand_dims", "axis")
def expand_dims(agent: Agent, op: Operation) -> Any:
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.unsqueeze(op.attributes["axis"]))


@computation("tt.broadcast")
def broadcast(agent: Agent, op: Operation) -> Any:
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.expand(_shape(op)))


@computation("tt.reshape", "allow_reorder", ignored=("efficient_layout",))
def reshape(agent: Agent, op: Operation) -> Any:
    if op.attributes.get("allow_reorder"):
        raise refusal("a reshape that may reorder elements is not known to the simulator", op.location)
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.reshape(_shape(op)))


@computation("tt.trans", "order")
def trans(agent: Agent, op: Operation) -> Any:
    return _on_offsets(agent.get(op.operands[0]), lambda value: value.permute(op.attributes["order"]))


@computation("tt.split")
def split(agent: Agent, op: Operation) -> Any:
    value: Tensor = agent.get(op.operands[0])
    return value[..., 0], value[..., 1]


@computation("tt.join")
def join(agent: Agent, op: Operation) -> Tensor:
    return torch.stack([agent.get(name) for name in op.operands], dim=-1)


@computation("ttg.convert_layout")
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


@computation("tt.reduce", "axis")
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
