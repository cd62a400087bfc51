"""Arithmetic on numbers and tensors, as the device does it: integers wrap, division truncates.

Conversions truncate and extend integers and round floats to nearest even; a change of a tensor's shape
changes no number.
"""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from gluonsim.findings import Kind, Severity, refusal
from gluonsim.operations import computation, resolved
from gluonsim.operations.control import exchange
from gluonsim.operations.loads_stores import Pointer
from gluonsim.parse import Dense, Distributed, Holding, Operation, TensorType, Type, dtype_of
from gluonsim.program import Agent, Handler, Steps, Undefined

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


def unsigned(value: Number, bits: int) -> Number:
    """Return the bits of an integer read as an unsigned number."""
    if isinstance(value, Tensor):
        if bits > 32:
            raise refusal("unsigned arithmetic on 64-bit tensors is not known to the simulator")
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
            name, largest = op.location.name or "<unnamed value>", torch.finfo(torch.float16).max
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


LIBDEVICE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"__nv_fast_fdividef": torch.div}
"""Functions of two numbers; the approximate quotient is within 2 ulp of this one."""


@computation("tt.extern_elementwise", "symbol", ignored=("libname", "libpath", "pure"))
def extern_elementwise(agent: Agent, op: Operation) -> Number:
    symbol = str(op.attributes["symbol"])
    if symbol not in LIBDEVICE:
        raise refusal(f"libdevice's {symbol} is not known to the simulator", op.location)
    x, y = (as_tensor(agent.get(name), op.result_types[0]) for name in op.operands)
    return rounded(LIBDEVICE[symbol](x, y), op.result_types[0])


def combination(name: str, type_: Type) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return how an operation combines two tensors of one type; None where it is not one that does."""
    dialect, _, short = name.partition(".")
    if dialect != "arith":
        return None
    if short in _FLOAT:
        apply = _FLOAT[short]
        return lambda a, b: apply(a, b).to(a.dtype)
    if short in _TENSOR:
        return lambda a, b: integer(short, a, b, type_)
    return None


@computation("math.fma", ignored=FLAGS)
def fma(agent: Agent, op: Operation) -> Number:
    a, b, c = (as_tensor(agent.get(name), op.result_types[0]).double() for name in op.operands)
    return rounded(a * b + c, op.result_types[0])


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
        if is_unsigned:
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

    def run(agent: Agent, _: Operation) -> Any:
        condition = agent.get(asked)
        if isinstance(condition, Tensor):
            return torch.where(condition, agent.get(then), agent.get(otherwise))
        # Handing one of two accumulators on is no use of either.
        return agent.values[then if condition else otherwise]

    return run


# --- conversions and shapes of register tensors


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
    return _on_offsets(
        agent.get(op.operands[0]),
        lambda value: once(agent, op, (value,), lambda: value.reshape(_shape(op))),
    )


@computation("tt.trans", "order")
def trans(agent: Agent, op: Operation) -> Any:
    return _on_offsets(
        agent.get(op.operands[0]),
        lambda value: once(agent, op, (value,), lambda: value.permute(op.attributes["order"])),
    )


@computation("tt.split")
def split(agent: Agent, op: Operation) -> Any:
    value: Tensor = agent.get(op.operands[0])
    return value[..., 0], value[..., 1]


@computation("tt.join")
def join(agent: Agent, op: Operation) -> Tensor:
    return torch.stack([agent.get(name) for name in op.operands], dim=-1)


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

    def within(agent: Agent, op: Operation) -> Any:
        return _assembled(agent, op, shape, held[agent.cta], {agent.cta: agent.values[op.operands[0]]})

    def across(agent: Agent, op: Operation) -> Steps:
        values = yield from exchange(agent, op)
        return _assembled(agent, op, shape, held[agent.cta], values)

    alone = all(each.cta == cta for cta in ctas for each in held[cta])
    return within if alone else across


def _same(agent: Agent, op: Operation) -> Any:
    return agent.get(op.operands[0])


def _assembled(
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
        return reduced(_assembled(agent, op, shape, held, values))

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
