"""Arithmetic on numbers and tensors, as the device does it: integers wrap, division truncates."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor

from gluonsim.findings import Kind, Severity, refusal
from gluonsim.ir.parse import Dense, Operation
from gluonsim.ir.types import Distributed, TensorType, Type, dtype_of
from gluonsim.operations import computation, resolved
from gluonsim.program import Agent, Handler
from gluonsim.ptx.rounding import fused, nearest
from gluonsim.ptx.unsigned import OPERATIONS, ordered, upper_half
from gluonsim.tensors.batches import rank, widened
from gluonsim.tensors.deferred import Undefined

Number = Any
"""A Python number for a scalar, or a torch tensor."""

FLAGS = ("overflowFlags", "fastmath", "isExact", "roundingmode", "nonNeg", "exact")
"""Licences to the compiler: where they matter the result is undefined or differs by rounding."""


def bits_of(type_: Type) -> int:
    """Return the width of an integer type."""
    return _integer_bits(type_.element)


@cache
def _integer_bits(element: str) -> int:
    if element == "index":
        return 64
    if not element.startswith("i"):
        raise refusal(f"{element} is not an integer type")
    return int(element[1:])


def wrap(value: int, bits: int) -> int:
    """Return the low bits as a signed number; one bit is 0 or 1."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if bits > 1 and value >> (bits - 1) else value


WIDEST_IN_INT64 = 32
"""Bits of integers whose unsigned numbers fit into int64; wider ones have functions of their own."""


def unsigned(value: Number, bits: int) -> Number:
    """Return the bits of an integer, at most 32 of a tensor's, read as an unsigned number."""
    if isinstance(value, Tensor):
        assert bits <= WIDEST_IN_INT64
        return value.to(torch.int64) & ((1 << bits) - 1)
    return int(value) & ((1 << bits) - 1)


_BY_ZERO = -1
"""Stands for the result of a division by zero, which is undefined."""


def truncated(quotient: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """Return a division or a remainder whose result is `_BY_ZERO` where the divisor is zero."""

    def apply(a: int, b: int) -> int:
        return quotient(a, b) if b else _BY_ZERO

    return apply


def _quotient(a: int, b: int) -> int:
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


def _no_zero(operation_: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def apply(a: Tensor, b: Tensor) -> Tensor:
        # Elements that are divided by zero are as a rule those that a mask leaves out.
        zero = b == 0
        return torch.where(zero, _BY_ZERO, operation_(a, torch.where(zero, 1, b)))

    return apply


def _tensor_quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")


_SCALAR: dict[str, Callable[[Any, Any], Any]] = {
    "addi": operator.add,
    "subi": operator.sub,
    "muli": operator.mul,
    "divsi": truncated(_quotient),
    "remsi": truncated(_remainder),
    "divui": truncated(_quotient),
    "remui": truncated(_remainder),
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "shli": lambda a, b: a << b,
    "shrsi": lambda a, b: a >> b,
    "shrui": lambda a, b: a >> b,
    "minsi": min,
    "maxsi": max,
    "minui": min,
    "maxui": max,
}
_TENSOR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addi": torch.add,
    "subi": torch.sub,
    "muli": torch.mul,
    "divsi": _no_zero(_tensor_quotient),
    "remsi": _no_zero(torch.fmod),
    "divui": _no_zero(_tensor_quotient),
    "remui": _no_zero(torch.fmod),
    "andi": torch.bitwise_and,
    "ori": torch.bitwise_or,
    "xori": torch.bitwise_xor,
    "shli": torch.bitwise_left_shift,
    "shrsi": torch.bitwise_right_shift,
    "shrui": torch.bitwise_right_shift,
    "minsi": torch.minimum,
    "maxsi": torch.maximum,
    "minui": torch.minimum,
    "maxui": torch.maximum,
}
_DIVISIONS = frozenset({"divsi", "remsi", "divui", "remui"})
_UNSIGNED = frozenset({"divui", "remui", "shrui", "minui", "maxui"})


def integer(name: str, a: Number, b: Number, type_: Type) -> Number:
    """Apply an integer operation to two values of one type."""
    bits = bits_of(type_)
    if name in _UNSIGNED and bits > WIDEST_IN_INT64 and isinstance(a, Tensor):
        apply = OPERATIONS[name]
        return _no_zero(apply)(a, b) if name in _DIVISIONS else apply(a, b)
    if name in _UNSIGNED:
        a, b = unsigned(a, bits), unsigned(b, bits)
    if isinstance(a, Tensor):
        return _TENSOR[name](a, b).to(dtype_of(type_.element))
    return wrap(_SCALAR[name](int(a), int(b)), bits)


def _resolve_integer(name: str, op: Operation) -> Handler:
    apply = _SCALAR[name]
    x, y = op.operands
    bits = bits_of(op.result_types[0])
    largest = (1 << max(bits - 1, 1)) - 1
    least = 1 if name in _DIVISIONS else 0

    def run(agent: Agent, op: Operation) -> Number:
        values = agent.values
        a, b = values[x], values[y]
        # The numbers of most loops: their sign and their width make no difference.
        if a.__class__ is int and b.__class__ is int and a >= 0 and b >= least:
            result = apply(a, b)
            return result if 0 <= result <= largest else wrap(result, bits)
        a, b = agent.get(x), agent.get(y)
        result = integer(name, a, b, op.result_types[0])
        if name in _DIVISIONS and not isinstance(b, Tensor) and b == 0:
            return Undefined(result, "an integer is divided by zero", op.location)
        return result

    return run


for _name in _SCALAR:
    resolved(f"arith.{_name}", ignored=FLAGS, computes=True)(partial(_resolve_integer, _name))

_FLOAT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addf": torch.add,
    "subf": torch.sub,
    "mulf": torch.mul,
    "divf": torch.div,
    "remf": torch.fmod,
    "maximumf": torch.maximum,
    "minimumf": torch.minimum,
    "maxnumf": torch.fmax,
    "minnumf": torch.fmin,
}


def rounded(value: Tensor, type_: Type) -> Number:
    """Return a float result in its type; a scalar is a Python number of that type's precision."""
    value = value.to(dtype_of(type_.element))
    return value if isinstance(type_, Distributed) else value.item()


def as_float16(agent: Agent, op: Operation, value: Tensor) -> Tensor:
    """Round floats to fp16; a finite number that becomes infinite there is reported."""
    result = value.to(torch.float16)
    if result.isinf().any():
        count = int((result.isinf() & value.isfinite()).sum())
        if count:
            name, largest = op.location.called, torch.finfo(torch.float16).max
            text = f"{name}: {count:,} of {value.numel():,} numbers are above {largest:g} and become infinite"
            agent.report(Kind.OVERFLOW, name, (op.location,), text, Severity.LINT)
    return result


def as_tensor(value: Number, type_: Type) -> Tensor:
    """Return a number as a tensor of its type."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype_of(type_.element))


def once(agent: Agent, op: Operation, operands: Sequence[Tensor], compute: Callable[[], Tensor]) -> Tensor:
    """Return what an operation makes of tensors: other schedules have the same ones, and need not compute it.

    It must be what follows from the operands alone, without anything to report.
    """
    known = agent.cluster.known
    return known.tensor(op, [known.numbers(operand) for operand in operands], compute)


_PRECISE: dict[str, str] = {"tt.precise_divf": "divf", "tt.approx_divf": "divf"}
"""Quotients: the approximate one is within 2 ulp of the other."""


def _float_handler(name: str) -> Callable[[Agent, Operation], Number]:
    apply = _FLOAT[name]

    def run(agent: Agent, op: Operation) -> Number:
        a, b = (
            as_tensor(agent.get(operand), type_)
            for operand, type_ in zip(op.operands, op.operand_types, strict=True)
        )
        type_ = op.result_types[0]
        return rounded(once(agent, op, (a, b), lambda: apply(a, b).to(dtype_of(type_.element))), type_)

    return run


for _name in _FLOAT:
    computation(f"arith.{_name}", ignored=FLAGS)(_float_handler(_name))
for _operation, _name in _PRECISE.items():
    computation(_operation)(_float_handler(_name))

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "arith.negf": torch.neg,
    "math.absf": torch.abs,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.log": torch.log,
    "math.log2": torch.log2,
    "math.sqrt": torch.sqrt,
    "tt.precise_sqrt": torch.sqrt,
    "math.rsqrt": torch.rsqrt,
    "math.erf": torch.erf,
    "math.sin": torch.sin,
    "math.cos": torch.cos,
    "math.tanh": torch.tanh,
    "math.floor": torch.floor,
    "math.ceil": torch.ceil,
    "math.absi": torch.abs,
}


def _unary_handler(apply: Callable[[Tensor], Tensor]) -> Callable[[Agent, Operation], Number]:
    def run(agent: Agent, op: Operation) -> Number:
        value, type_ = as_tensor(agent.get(op.operands[0]), op.operand_types[0]), op.result_types[0]
        return rounded(once(agent, op, (value,), lambda: apply(value).to(dtype_of(type_.element))), type_)

    return run


for _name, _apply in _UNARY.items():
    computation(_name, ignored=FLAGS)(_unary_handler(_apply))


@computation("math.fma", ignored=FLAGS)
def fma(agent: Agent, op: Operation) -> Number:
    type_ = op.result_types[0]
    if type_.element == "f64":
        raise refusal("a fused multiply-add of fp64 is not known to the simulator", op.location)
    a, b, c = (as_tensor(agent.get(name), type_).double() for name in op.operands)
    return rounded(nearest(fused(a, b, c), dtype_of(type_.element)), type_)


_PACKED: dict[int, Callable[..., Tensor]] = {
    0: torch.add,
    1: torch.sub,
    2: torch.mul,
    3: fused,
    4: torch.fmin,
    5: torch.fmax,
}
"""Packed operations by Triton's number, as PTX has them.

Each result is rounded once; min and max return the other operand if one is NaN.
"""


@computation("ttng.packed_arith", "op_kind")
def packed_arith(agent: Agent, op: Operation) -> Number:
    if any(type_.element == "i8" for type_ in op.operand_types):
        raise refusal("packed arithmetic on pairs of fp4 is not known to the simulator", op.location)
    operands = [agent.get(name) for name in op.operands]
    compute, dtype = _PACKED[op.attributes["op_kind"]], dtype_of(op.result_types[0].element)
    return once(agent, op, operands, lambda: nearest(compute(*(value.double() for value in operands)), dtype))


@computation("tt.clampf", "propagateNan")
def clampf(agent: Agent, op: Operation) -> Number:
    value, low, high = (
        as_tensor(agent.get(name), type_) for name, type_ in zip(op.operands, op.operand_types, strict=True)
    )
    clamped = torch.fmin(torch.fmax(value, low), high)
    if op.attributes["propagateNan"]:
        clamped = torch.where(value.isnan(), value, clamped)
    return rounded(clamped, op.result_types[0])


@computation("tt.mulhiui")
def mulhiui(agent: Agent, op: Operation) -> Number:
    """Return the upper half of the product of two unsigned integers."""
    bits = bits_of(op.result_types[0])
    a, b = (agent.get(name) for name in op.operands)
    if isinstance(a, Tensor) and bits > WIDEST_IN_INT64:
        return upper_half(a, b)
    a, b = unsigned(a, bits), unsigned(b, bits)
    if not isinstance(a, Tensor):
        return wrap(a * b >> bits, bits)
    # A product of 2**63 and more is negative in int64, but its bits are right.
    return (a * b >> bits).to(dtype_of(op.result_types[0].element))


@resolved("arith.constant", "value", computes=True)
def constant(op: Operation) -> Handler:
    value = op.attributes["value"]
    if isinstance(value, Dense):
        return lambda agent, op: agent.cluster.known.tensor(op, (agent.cta,), lambda: _dense(agent, op))
    number: Number = int(value) if isinstance(value, bool) else value

    def run(_: Agent, __: Operation) -> Number:
        return number

    return run


def _dense(agent: Agent, op: Operation) -> Tensor:
    value: Dense = op.attributes["value"]
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    if not isinstance(value.value, list):
        # By way of a wider float: torch cannot fill all of its 8-bit types.
        wide = torch.float64 if type_.dtype.is_floating_point else type_.dtype
        return torch.full(type_.local_shape, value.value, dtype=wide).to(type_.dtype)
    whole = torch.tensor(cast(Any, value).value, dtype=type_.dtype)
    for dim, (start, extent) in enumerate(zip(type_.origin(agent.cta), type_.local_shape, strict=True)):
        whole = whole.narrow(dim, start, extent)
    return whole.clone()


_COMPARISONS: dict[int, Callable[[Any, Any], Any]] = {
    0: operator.eq,
    1: operator.ne,
    2: operator.lt,
    3: operator.le,
    4: operator.gt,
    5: operator.ge,
}


@resolved("arith.cmpi", "predicate", computes=True)
def cmpi(op: Operation) -> Handler:
    predicate: int = op.attributes["predicate"]
    is_unsigned = predicate > 5  # MLIR numbers the unsigned comparisons after the signed ones
    compare = _COMPARISONS[predicate - 4 if is_unsigned else predicate]
    bits = bits_of(op.operand_types[0])
    x, y = op.operands

    def run(agent: Agent, _: Operation) -> Number:
        a, b = agent.get(x), agent.get(y)
        if is_unsigned and bits > WIDEST_IN_INT64 and isinstance(a, Tensor):
            a, b = ordered(a), ordered(b)
        elif is_unsigned:
            a, b = unsigned(a, bits), unsigned(b, bits)
        result = compare(a, b)
        return result if isinstance(result, Tensor) else int(result)

    return run


# MLIR's order: false, oeq, ogt, oge, olt, ole, one, ord, ueq, ugt, uge, ult, ule, une, uno, true.
_FLOAT_COMPARISONS = (None, 0, 4, 5, 2, 3, 1)


@computation("arith.cmpf", "predicate", ignored=FLAGS)
def cmpf(agent: Agent, op: Operation) -> Number:
    predicate: int = op.attributes["predicate"]
    a, b = (
        as_tensor(agent.get(name), type_) for name, type_ in zip(op.operands, op.operand_types, strict=True)
    )
    unordered = a.isnan() | b.isnan()
    if predicate in (0, 15):
        result = torch.full_like(unordered, bool(predicate))
    elif predicate in (7, 14):
        result = unordered if predicate == 14 else ~unordered
    else:
        comparison = _FLOAT_COMPARISONS[predicate if predicate < 7 else predicate - 7]
        assert comparison is not None
        result = _COMPARISONS[comparison](a, b)
        result = result & ~unordered if predicate < 7 else result | unordered
    return result if isinstance(op.result_types[0], Distributed) else int(result.item())


@resolved("arith.select", ignored=FLAGS, computes=True)
def select(op: Operation) -> Handler:
    asked, then, otherwise = op.operands
    type_ = op.operand_types[0]
    added = rank(op.result_types[0]) - rank(type_)

    def run(agent: Agent, _: Operation) -> Any:
        condition = agent.get(asked)
        if isinstance(condition, Tensor):
            return torch.where(widened(condition, type_, added), agent.get(then), agent.get(otherwise))
        # Handing one of two accumulators on is no use of either.
        return agent.values[then if condition else otherwise]

    return run
