"""Conversions between numbers: integers truncate and extend, floats round to nearest even."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from gemmgen.simulate.agent import Agent
from gemmgen.simulate.errors import refusal
from gemmgen.simulate.operations.arith import FLAGS, Number, as_tensor, bits_of, rounded, unsigned, wrap
from gemmgen.simulate.parse import Operation
from gemmgen.simulate.registry import operation
from gemmgen.simulate.types import Distributed, dtype_of


@operation("arith.extsi")
@operation("arith.index_cast")
@operation("arith.trunci", ignored=FLAGS)
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


@operation("arith.extui", ignored=FLAGS)
def extui(agent: Agent, op: Operation) -> Number:
    value = unsigned(agent.get(op.operands[0]), bits_of(op.operand_types[0]))
    return value.to(dtype_of(op.result_types[0].element)) if isinstance(value, Tensor) else value


@operation("arith.sitofp", ignored=FLAGS)
@operation("arith.uitofp", ignored=FLAGS)
def integer_to_float(agent: Agent, op: Operation) -> Number:
    value = agent.get(op.operands[0])
    if op.name == "arith.uitofp" or op.operand_types[0].element == "i1":
        value = unsigned(value, bits_of(op.operand_types[0]))
        if op.name == "arith.sitofp":
            value = -value
    return rounded(value if isinstance(value, Tensor) else torch.tensor(value), op.result_types[0])


@operation("arith.fptosi", ignored=FLAGS)
@operation("arith.fptoui", ignored=FLAGS)
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


@operation("arith.extf", ignored=FLAGS)
@operation("arith.truncf", ignored=FLAGS)
@operation("tt.fp_to_fp", "rounding")
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
    return rounded(value, op.result_types[0])


@operation("arith.bitcast")
@operation("tt.bitcast")
def bitcast(agent: Agent, op: Operation) -> Number:
    target = dtype_of(op.result_types[0].element)
    result = as_tensor(agent.get(op.operands[0]), op.operand_types[0]).contiguous().view(target)
    return result if isinstance(op.result_types[0], Distributed) else result.item()
