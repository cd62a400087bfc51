"""Conversions between types: integers are truncated and extended, floats rounded to nearest even."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from gemmgen.numerics.encoding import e2m1_as_float32
from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import Distributed, dtype_of
from gluonsim.operations import computation
from gluonsim.operations.arith import (
    FLAGS,
    Number,
    as_float16,
    as_tensor,
    bits_of,
    once,
    rounded,
    unsigned,
    wrap,
)
from gluonsim.operations.loads_stores import Pointer
from gluonsim.program import Agent
from gluonsim.ptx.rounding import toward_zero
from gluonsim.ptx.unsigned import as_float


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
    if op.name == "arith.uitofp" and isinstance(value, Tensor) and value.dtype == torch.int64:
        return as_float(value, dtype_of(op.result_types[0].element))
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


_TO_NEAREST = 1
"""Triton's number for the rounding of torch and of most conversions; the other one is toward zero."""


@computation("arith.extf", ignored=FLAGS)
@computation("arith.truncf", ignored=FLAGS)
@computation("tt.fp_to_fp", "rounding")
def convert_float(agent: Agent, op: Operation) -> Number:
    value = as_tensor(agent.get(op.operands[0]), op.operand_types[0])
    target = dtype_of(op.result_types[0].element)
    if op.attributes.get("rounding", _TO_NEAREST) != _TO_NEAREST:
        return rounded(once(agent, op, (value,), lambda: toward_zero(value, target)), op.result_types[0])
    if target in (torch.float8_e4m3fn, torch.float8_e5m2):
        # cvt.rn.satfinite.e4m3x2 / e5m2x2: what is too large becomes the largest finite number [ptx].
        largest = torch.finfo(target).max
        value = value.float().clamp(-largest, largest)
    elif target == torch.float16:
        value = as_float16(agent, op, value)
    return rounded(once(agent, op, (value,), lambda: value.to(target)), op.result_types[0])


@computation("arith.bitcast")
@computation("tt.bitcast")
def bitcast(agent: Agent, op: Operation) -> Number:
    value = agent.get(op.operands[0])
    if isinstance(value, Pointer):
        pointee = op.result_types[0].element.removeprefix("!tt.ptr<").removesuffix(">")
        flat = value.flat.view(dtype_of(pointee))
        offset = value.offset * value.flat.element_size()
        if torch.as_tensor(offset % flat.element_size()).any():
            raise refusal(
                "a pointer into the middle of an element is not known to the simulator", op.location
            )
        return Pointer(value.name, flat, offset // flat.element_size())
    target = dtype_of(op.result_types[0].element)
    result = as_tensor(value, op.operand_types[0]).contiguous().view(target)
    return result if isinstance(op.result_types[0], Distributed) else result.item()


@computation("ttg.fp4_to_fp", "axis")
def fp4_to_fp(agent: Agent, op: Operation) -> Tensor:
    """Return two floats for each byte along an axis, that of the low four bits first."""
    axis, result = op.attributes["axis"], op.result_types[0]
    packed: Tensor = agent.get(op.operands[0])
    pairs = e2m1_as_float32(packed.movedim(axis, -1).contiguous().view(torch.uint8))
    return pairs.movedim(-1, axis).to(dtype_of(result.element))
