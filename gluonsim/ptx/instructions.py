"""PTX instructions that work on registers, by name: what they compute of the bits of many threads at a time.

A register is an int64 tensor with the bits of one register for each group of elements. Approximate
instructions give the exact result, rounded. Source: PTX ISA 9.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gemmgen.numerics.encoding import e2m1_as_float32
from gluonsim.findings import refusal
from gluonsim.ptx.rounding import fused, nearest

WIDTHS = {"b8": 8, "b16": 16, "b32": 32, "b64": 64} | {
    f"{sign}{bits}": bits for sign in "us" for bits in (8, 16, 32, 64)
}
INTEGERS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
FLOATS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
PACKED_FLOATS = {"f16x2": "f16", "bf16x2": "bf16"}
_EIGHT_BITS = {"e4m3x2": torch.float8_e4m3fn, "e5m2x2": torch.float8_e5m2}
_IMPRECISE = frozenset({"rn", "approx", "ftz", "full", "noftz", "sat"})
"""Modifiers of arithmetic that are read where they change a result."""


def width_of(type_: str) -> int:
    """Return the bits of a register of a PTX type; 0 if it is no type."""
    if type_ == "pred":
        return 1
    return WIDTHS.get(type_) or {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32}.get(
        type_, 0
    )


def masked(value: Tensor, bits: int) -> Tensor:
    """Return the low bits."""
    return value if bits >= 64 else value & ((1 << bits) - 1)


def signed(value: Tensor, bits: int) -> Tensor:
    """Return low bits read as a signed number."""
    if bits >= 64:
        return value
    value = masked(value, bits)
    return value - ((value >> (bits - 1)) << bits)


def floats(value: Tensor, type_: str) -> Tensor:
    """Return the numbers of bits, as float64."""
    return signed(value, width_of(type_)).to(INTEGERS[width_of(type_)]).view(FLOATS[type_]).double()


def bits(value: Tensor, type_: str) -> Tensor:
    """Return the bits of numbers that are rounded to nearest even."""
    width = width_of(type_)
    return masked(nearest(value, FLOATS[type_]).view(INTEGERS[width]).to(torch.int64), width)


Compute = Callable[[Sequence[Tensor]], Tensor]


def instruction(name: str) -> Compute:
    """Return what an instruction computes of its operands.

    Raises:
        GemmgenError: It is not in the table (``unknown-operation``).
    """
    base, *modifiers = name.split(".")
    found = _arithmetic(base, modifiers) or _integer(base, modifiers) or _conversion(base, modifiers)
    if found is None:
        raise refusal(f"the PTX instruction {name} is not known to the simulator", code="unknown-operation")
    return found


# --- floats


_FLOAT: Mapping[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "fma": fused,
    "mad": fused,
    "min": torch.fmin,
    "max": torch.fmax,
    "neg": torch.neg,
    "abs": torch.abs,
    "ex2": torch.exp2,
    "lg2": torch.log2,
    "rcp": torch.reciprocal,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
}


def _arithmetic(base: str, modifiers: Sequence[str]) -> Compute | None:
    compute = _FLOAT.get(base)
    if compute is None or not modifiers:
        return None
    *rounding, type_ = modifiers
    element = PACKED_FLOATS.get(type_, type_)
    if element not in FLOATS or not set(rounding) <= _IMPRECISE:
        return None
    if compute is fused and element == "f64":
        return None
    flushes, saturates = "ftz" in rounding, "sat" in rounding

    def one(operands: Sequence[Tensor]) -> Tensor:
        values = [floats(value, element) for value in operands]
        if flushes:
            values = [_flushed(value, element) for value in values]
        result = compute(*values)
        if saturates:
            result = _saturated(result)
        return bits(_flushed(result, element) if flushes else result, element)

    return one if element == type_ else lambda operands: _by_halves(one, operands)


def _saturated(value: Tensor) -> Tensor:
    """Return numbers clamped to 0 and 1; NaN becomes 0."""
    return value.nan_to_num(0.0).clamp(0.0, 1.0)


def _flushed(value: Tensor, type_: str) -> Tensor:
    """Return numbers of a type, with a zero of the same sign for each subnormal one."""
    zero = torch.copysign(torch.zeros_like(value), value)
    return torch.where(value.abs() < torch.finfo(FLOATS[type_]).tiny, zero, value)


def _by_halves(one: Compute, operands: Sequence[Tensor]) -> Tensor:
    low = one([value & 0xFFFF for value in operands])
    return low | one([value >> 16 & 0xFFFF for value in operands]) << 16


# --- integers


def _prmt(operands: Sequence[Tensor]) -> Tensor:
    """Return four bytes that nibbles choose of eight; the highest bit of a nibble repeats the byte's sign."""
    low, high, selector = operands
    source = torch.stack([(low if i < 4 else high) >> 8 * (i % 4) & 0xFF for i in range(8)])
    result = torch.zeros_like(low)
    for i in range(4):
        chosen = selector >> 4 * i & 0xF
        byte = source.gather(0, (chosen & 7).expand(low.shape).unsqueeze(0)).squeeze(0)
        byte = torch.where(chosen >> 3 == 1, (byte >> 7) * 0xFF, byte)
        result |= byte << 8 * i
    return result


def _lop3(operands: Sequence[Tensor]) -> Tensor:
    a, b, c, table = operands
    result = torch.zeros_like(a)
    for i in range(8):
        terms = (value if i >> position & 1 else ~value for value, position in ((a, 2), (b, 1), (c, 0)))
        x, y, z = terms
        result |= torch.where((table >> i & 1) == 1, x & y & z, 0)
    return masked(result, 32)


def _bfe(operands: Sequence[Tensor], is_signed: bool) -> Tensor:
    value, first, count = operands[0], operands[1] & 0xFF, operands[2] & 0xFF
    value = signed(value, 32) if is_signed else masked(value, 32)
    found = (value >> first.clamp(max=32)) & ((1 << count.clamp(max=32)) - 1)
    if not is_signed:
        return found
    top = found >> (count - 1).clamp(min=0) & 1
    return masked(torch.where(count > 0, found - (top << count.clamp(max=32)), 0), 32)


def _bfi(operands: Sequence[Tensor]) -> Tensor:
    part, whole, first, count = operands[0], operands[1], operands[2] & 0xFF, operands[3] & 0xFF
    mask = masked(((1 << count.clamp(max=32)) - 1) << first.clamp(max=32), 32)
    return masked(whole & ~mask | part << first.clamp(max=32) & mask, 32)


def _funnel(operands: Sequence[Tensor], left: bool) -> Tensor:
    low, high, count = operands[0], operands[1], operands[2] & 31
    if left:
        return masked(high << count | low >> (32 - count), 32)
    return masked(low >> count | high << (32 - count), 32)


_BITWISE: Mapping[str, Callable[..., Tensor]] = {
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
}


def _multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * b + c


_WHOLE: Mapping[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "min": torch.minimum,
    "max": torch.maximum,
    "neg": torch.neg,
    "abs": torch.abs,
    "mul.lo": torch.mul,
    "mad.lo": _multiply_add,
}
_BY_ORDER = frozenset({"min", "max", "shr"})
"""Instructions that would take an unsigned number from 2**63 on for a negative one: registers are int64."""


def _integer(base: str, modifiers: Sequence[str]) -> Compute | None:
    special: dict[tuple[str, ...], Compute] = {
        ("prmt", "b32"): _prmt,
        ("lop3", "b32"): _lop3,
        ("bfe", "u32"): lambda operands: _bfe(operands, False),
        ("bfe", "s32"): lambda operands: _bfe(operands, True),
        ("bfi", "b32"): _bfi,
        ("shf", "l", "wrap", "b32"): lambda operands: _funnel(operands, True),
        ("shf", "r", "wrap", "b32"): lambda operands: _funnel(operands, False),
    }
    if (base, *modifiers) in special:
        compute = special[base, *modifiers]
        return lambda operands: compute([masked(value, 32) for value in operands])
    if not modifiers or modifiers[-1] not in WIDTHS:
        return None
    type_ = modifiers[-1]
    width, reads = WIDTHS[type_], reader(type_)
    name = ".".join((base, *modifiers[:-1]))
    if name in _BY_ORDER and width == 64 and type_[0] != "s":
        return None
    if name in _BITWISE:
        return lambda operands: masked(_BITWISE[name](*operands), width)
    if name in ("shl", "shr"):
        return lambda operands: masked(
            _shifted(name, reads(operands[0]), operands[1] & 0xFFFFFFFF, width), width
        )
    if name in _WHOLE and type_[0] != "b":
        return lambda operands: masked(_WHOLE[name](*map(reads, operands)), width)
    if name in ("mul.hi", "mad.hi") and width == 32:
        return lambda operands: masked(
            (reads(operands[0]) * reads(operands[1]) >> 32) + sum(operands[2:]), 32
        )
    if name == "mul.wide" and width <= 32:
        return lambda operands: masked(reads(operands[0]) * reads(operands[1]), 2 * width)
    return None


def reader(type_: str) -> Callable[[Tensor], Tensor]:
    """Return the function that reads bits as numbers of an integer type."""
    width = WIDTHS[type_]
    return (lambda value: signed(value, width)) if type_[0] == "s" else (lambda value: masked(value, width))


def _shifted(name: str, value: Tensor, count: Tensor, width: int) -> Tensor:
    count = (count & 0xFFFFFFFF).clamp(max=63)
    if name == "shl":
        return torch.where(count >= width, 0, value << count)
    return value >> torch.minimum(count, torch.full_like(count, max(width - 1, 32)))


# --- conversions

_ROUNDS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "rzi": torch.trunc,
    "rni": torch.round,
    "rmi": torch.floor,
    "rpi": torch.ceil,
}


def _conversion(base: str, modifiers: Sequence[str]) -> Compute | None:
    if base != "cvt" or len(modifiers) < 2:
        return None
    *options, target, source = modifiers
    chosen = set(options)
    if not {"rn", "satfinite", "relu", "ftz", "sat", *_ROUNDS} >= chosen:
        return None
    if source in PACKED_FLOATS or target in PACKED_FLOATS or "x2" in target + source:
        return _pair_conversion(target, source, chosen)
    if source in FLOATS and target in FLOATS:
        return lambda values: bits(_changed(floats(values[0], source), source, target, chosen), target)
    if source in WIDTHS and target in WIDTHS:
        read, width = reader(source), WIDTHS[target]
        return None if chosen else lambda values: masked(read(values[0]), width)
    if source in WIDTHS and target in FLOATS:
        read = reader(source)
        exact = WIDTHS[source] < 64 or (source, target) == ("s64", "f64")
        return (lambda values: bits(read(values[0]).double(), target)) if exact and chosen <= {"rn"} else None
    # NaN of f64 becomes another integer than 0.
    if target not in WIDTHS or WIDTHS[target] > 32 or source not in FLOATS or source == "f64":
        return None
    if not chosen & set(_ROUNDS):
        return None
    width = WIDTHS[target]
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if target[0] == "s" else (0, 2**width - 1)
    options_of_floats = chosen - {"sat"}  # integers are clamped without it too
    return lambda values: masked(
        _changed(floats(values[0], source), source, source, options_of_floats)
        .nan_to_num(0.0)
        .clamp(low, high)
        .to(torch.int64),
        width,
    )


def _changed(value: Tensor, source: str, target: str, options: set[str]) -> Tensor:
    """Return numbers as the options of a conversion change them before they are rounded to the target."""
    if "ftz" in options and source == "f32":
        value = _flushed(value, source)
    for name in options & set(_ROUNDS):
        value = _ROUNDS[name](value)
    if "sat" in options:
        value = _saturated(value)
    if "relu" in options:
        value = torch.where(value < 0, 0.0, value)
    if "satfinite" in options:
        largest = torch.finfo(FLOATS[target]).max
        value = value.clamp(-largest, largest)
    return value


def _pair_conversion(target: str, source: str, options: set[str]) -> Compute | None:
    """Return a conversion of two numbers; of two operands, the first becomes the upper half."""
    if not options <= {"rn", "satfinite", "relu"}:
        return None
    relu = options & {"relu"}
    if source == "f32" and target in PACKED_FLOATS:
        element = PACKED_FLOATS[target]
        return lambda values: _joined(
            [bits(_changed(floats(v, "f32"), "f32", element, options), element) for v in values], 16
        )
    if source == "f32" and target in _EIGHT_BITS:
        return lambda values: _joined(
            [_eight(_changed(floats(v, "f32"), "f32", "f32", relu), _EIGHT_BITS[target]) for v in values], 8
        )
    if source in PACKED_FLOATS and target in _EIGHT_BITS:
        element, narrow_type = PACKED_FLOATS[source], _EIGHT_BITS[target]

        def narrow(values: Sequence[Tensor]) -> Tensor:
            halves = [values[0] >> 16 & 0xFFFF, values[0] & 0xFFFF]
            numbers = [_changed(floats(half, element), element, element, relu) for half in halves]
            return _joined([_eight(number, narrow_type) for number in numbers], 8)

        return narrow
    if source in _EIGHT_BITS and target in PACKED_FLOATS:
        element, wide_type = PACKED_FLOATS[target], _EIGHT_BITS[source]

        def widen(values: Sequence[Tensor]) -> Tensor:
            halves = [values[0] >> 8 & 0xFF, values[0] & 0xFF]
            numbers = [half.to(torch.uint8).view(wide_type).double() for half in halves]
            return _joined([bits(_changed(v, source, element, relu), element) for v in numbers], 16)

        return widen
    if source == "e2m1x2" and target in PACKED_FLOATS:
        element = PACKED_FLOATS[target]

        def unpack(values: Sequence[Tensor]) -> Tensor:
            pairs = e2m1_as_float32((values[0] & 0xFF).to(torch.uint8).unsqueeze(-1)).double()
            return _joined([bits(pairs[..., 1], element), bits(pairs[..., 0], element)], 16)

        return unpack
    return None


def _eight(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bits of 8-bit floats; a number that is too large becomes the largest finite one."""
    largest = torch.finfo(dtype).max
    return value.float().clamp(-largest, largest).to(dtype).view(torch.uint8).to(torch.int64)


def _joined(halves: Sequence[Tensor], width: int) -> Tensor:
    upper, lower = halves
    return upper << width | lower
