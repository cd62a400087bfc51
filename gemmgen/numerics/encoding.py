"""Element types in torch: what every code is, which code a number gets, and what poisons memory.

Sources, cited by their tag:

* [ocp] OCP Microscaling Formats (MX) Specification 1.0: e2m1, ue8m0, and how a block is quantised (6.3).
* [ptx] PTX ISA 9.0, ``cvt``: rounding to e2m1; ``tcgen05.mma``: nvfp4, whose scales are e4m3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from gemmgen.hardware import DTYPES, ScaleFormat
from gemmgen.hardware.elements import Column, DTypeName

DType = DTypeName
"""The name of an element type."""
TORCH_DTYPES: Final[Column[torch.dtype]] = Column(
    DTYPES, lambda row: getattr(torch, row.torch.removeprefix("torch."))
)
"""The types of tensors by the names of element types."""
POISON: Final[Mapping[torch.dtype, int]] = MappingProxyType(
    {torch.int8: 127, torch.int32: -(2**31), torch.uint8: 0xFF}
)
"""Value of integers before they are written; floats and ue8m0 hold NaN.

-2**31 is no product of int8 matrices whose K is below 132,104: none is smaller than K * -128 * 127. 0xFF is a
pair of -6: e2m1 has no NaN, and -6 is the farthest value from the zeros that TMA puts outside.
"""

CHUNK_ELEMENTS: Final = 1 << 26
"""Elements that are drawn or looked at together: 256 MiB in fp32."""


def poison(dtype: torch.dtype) -> float:
    """Return what an element holds until it is written."""
    return POISON.get(dtype, math.nan)


def bits(matrix: Tensor) -> Tensor:
    """Return the elements as integers, which are equal if the bits are; NaN floats are never equal."""
    return matrix.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[matrix.dtype.itemsize])


def pieces(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same rows of some tensors as views, with at most CHUNK_ELEMENTS elements of the first one.

    A comparison needs as much memory as the tensors that it compares, so large ones are compared in pieces.
    The tensors have equal extents, except for the last one of each. A row is never divided.
    """
    first = matrices[0]
    if first.numel() <= CHUNK_ELEMENTS:
        yield matrices
        return
    count = max(1, CHUNK_ELEMENTS * len(first) // first.numel())
    for start in range(0, len(first), count):
        if count == 1 and first.dim() > 2:
            yield from pieces(*(matrix[start] for matrix in matrices))
        else:
            yield tuple(matrix[start : start + count] for matrix in matrices)


def differing(left: Tensor, right: Tensor) -> Tensor:
    """Return a bool scalar on the device: whether any bit differs. It does not wait for the device."""
    return torch.stack([(bits(one) != bits(other)).any() for one, other in pieces(left, right)]).any()


def count_differing(left: Tensor, right: Tensor) -> int:
    """Return the number of elements whose bits differ between two tensors of the same extents."""
    counts = [(bits(one) != bits(other)).sum() for one, other in pieces(left, right)]
    return int(torch.stack(counts).sum().item())


def not_finite(matrix: Tensor) -> int:
    """Return the number of elements that were never written, or were computed from poison.

    Such floats are NaN or infinite; integers are counted if they still hold the poison.
    """
    return int(torch.stack([_count_not_finite(piece) for (piece,) in pieces(matrix)]).sum().item())


def _count_not_finite(rows: Tensor) -> Tensor:
    if rows.is_floating_point():
        wide = rows.float() if rows.dtype.itemsize == 1 else rows  # 8 bits have no isfinite
        return (~torch.isfinite(wide)).sum()
    return (rows == POISON[rows.dtype]).sum()


def saturated(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Clamp to what 8-bit floats can hold, as ``cvt.satfinite`` does; NaN stays, other types keep all."""
    if dtype.itemsize > 1 or not dtype.is_floating_point:
        return exact
    largest = torch.finfo(dtype).max
    return exact.clamp(-largest, largest)


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float64 numbers to an element type, to nearest even, saturating as ``saturated`` does.

    Numbers that are exact in fp32 are rounded once; other numbers may be rounded twice, through fp32.
    """
    return saturated(exact, dtype).to(dtype)


def rounded_to_tf32(matrix: Tensor) -> Tensor:
    """Round fp32 numbers to the 10 bits of mantissa that tf32 has, to nearest even.

    Measured on an H200: that is what TMA does when ``round_f32_to_tf32`` is set.
    """
    whole = bits(matrix.contiguous())
    nearest = ((whole + 0xFFF + (whole >> 13 & 1)) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isnan(matrix), matrix, nearest)


_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_VALUES: Final = torch.tensor((*_MAGNITUDES, *(-value for value in _MAGNITUDES)), dtype=torch.float64)
"""[ocp] By code; the highest of its four bits is the sign. There is no NaN and no infinity."""
E2M1_PAIRS: Final = torch.stack((E2M1_VALUES.repeat(16), E2M1_VALUES.repeat_interleave(16)), dim=1)
"""The two numbers [256, 2] of every byte, that of the low half first."""
_E2M1_PAIRS_BITS: Final = E2M1_PAIRS.float().view(torch.int64).reshape(-1)
"""Each pair as two fp32 numbers in one element."""
_FLOAT8_VALUES: Final = MappingProxyType(
    {
        dtype: torch.arange(256, dtype=torch.uint8).view(dtype).float()
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
    }
)
"""Numbers of a type by their codes."""
UE8M0_VALUES: Final = torch.tensor(
    [2.0 ** (code - 127) for code in range(255)] + [math.nan], dtype=torch.float64
)
"""[ocp] By code. fp32 holds all of them."""
UE8M0_LARGEST_EXPONENT: Final = 127

INT4_ZERO: Final = 8
"""The code of an int4 that is 0."""

_BOUNDARIES: Final = tuple((low + high) / 2 for low, high in pairwise(_MAGNITUDES))
"""Between the magnitudes of neighbouring codes of e2m1."""


def elements_per_byte(dtype: torch.dtype) -> int:
    """Return the number of elements of an operand in a byte: uint8 holds pairs of e2m1, other types one."""
    return 2 if dtype == torch.uint8 else 1


def decoded(stored: Tensor, dtype: str) -> Tensor:
    """Return the numbers that elements or scales are, exactly, in float64, on their device.

    e2m1 comes as bytes [..., K/2] and gives [..., K], the low half of a byte first. ue8m0 may come as bytes.
    """
    return DECODERS[dtype](stored) if DTYPES[dtype].coded else stored.double()


def encoded(numbers: Tensor, dtype: str) -> Tensor:
    """Return numbers as elements or scales of a type: the inverse of ``decoded`` for numbers of the type.

    Other numbers are rounded to nearest even, and saturate [ptx, cvt.rn.satfinite]. ue8m0 takes the magnitude
    and rounds down to a power of two [ocp]; 0 becomes 2**-127, and infinity NaN. e2m1 goes from [..., K] to
    bytes [..., K/2].

    Raises:
        ValueError: There is a NaN, which e2m1 has no code for, or K is odd and the last byte half empty.
    """
    return ENCODERS[dtype](numbers) if DTYPES[dtype].coded else rounded(numbers, TORCH_DTYPES[dtype])


def dequantized(elements: Tensor, scales: Tensor, vector: int) -> Tensor:
    """Return the numbers [rows, K] of a block-scaled matrix: elements [rows, K] times their scales.

    Each of the scales [rows, ceil(K / vector)] belongs to ``vector`` elements along K, the last one to the
    rest. Both are decoded in float64, which holds the products of 4 and 4 bits exactly.
    """
    return elements * scales.repeat_interleave(vector, dim=1)[:, : elements.shape[1]]


def block_quantized(matrix: Tensor, scale_format: ScaleFormat, dtype: str) -> tuple[Tensor, Tensor]:
    """Return elements, stored, and scales [rows, ceil(K / vector)] of a matrix [rows, K] of fp32 or float64.

    The largest magnitude of a block, amax, decides. A scale of ue8m0 is the power of two at or below amax
    over the one in the element type's largest number [ocp]; elements above that number saturate. A scale of
    e4m3 is amax / 6, rounded, so that amax becomes 6; it saturates at 448: divide a matrix by its own amax /
    (6 * 448) first, and pass that as ``tensor_scale``. The scale of a block with a NaN or infinity is NaN,
    and a block whose scale is 0 has zeros.

    Every step except the rounding is exact for fp32; ties of float64 may be decided by bits beyond fp32's.
    """
    rows, k = matrix.shape
    vector = scale_format.vector
    blocks = torch.nn.functional.pad(matrix.double(), (0, -k % vector)).view(rows, -1, vector)
    amax = blocks.abs().amax(dim=2)  # NaN if there is one
    finite = amax.isfinite()
    if DTYPES[scale_format.dtype].kind == "scale":
        target = 2.0 ** math.floor(math.log2(DTYPES[dtype].largest))
    else:
        target = DTYPES[dtype].largest
    scale_dtype = scale_format.dtype
    scales = encoded(torch.where(finite, amax / target, math.nan), scale_dtype)
    divisors = decoded(scales, scale_dtype).unsqueeze(2)
    numbers = torch.where(finite.unsqueeze(2) & (divisors > 0), blocks / divisors, 0.0)
    return encoded(numbers.view(rows, -1)[:, :k], dtype), scales


def as_float32(stored: Tensor) -> Tensor:
    """Return floats on the CPU as fp32, which is exact; 8-bit ones by a table, twice as fast as torch."""
    values = _FLOAT8_VALUES.get(stored.dtype)
    if values is None:
        return stored.float()
    if not stored.is_contiguous() and stored.mT.is_contiguous():
        return as_float32(stored.mT).mT
    return values.index_select(0, _flat_codes(stored)).view(stored.shape)


def e2m1_as_float32(stored: Tensor) -> Tensor:
    """Return the fp32 numbers [..., K] of bytes [..., K/2] of e2m1 on the CPU."""
    *outer, pairs = stored.shape
    found = _E2M1_PAIRS_BITS.index_select(0, _flat_codes(stored))
    return found.view(torch.float32).view(*outer, 2 * pairs)


def _flat_codes(stored: Tensor) -> Tensor:
    return stored.contiguous().view(torch.uint8).view(-1).to(torch.int32)


def _codes(stored: Tensor) -> Tensor:
    """Return the bits of 8-bit elements as numbers from 0 to 255."""
    return stored.contiguous().view(torch.uint8).long()


def _unpacked_e2m1(stored: Tensor) -> Tensor:
    return E2M1_PAIRS.to(stored.device)[_codes(stored)].flatten(-2)


def _powers(stored: Tensor) -> Tensor:
    return UE8M0_VALUES.to(stored.device)[_codes(stored)]


def _packed_e2m1(numbers: Tensor) -> Tensor:
    if numbers.shape[-1] % 2:
        raise ValueError(f"two elements of e2m1 share a byte, and {numbers.shape[-1]} is odd")
    if bool(numbers.isnan().any()):
        raise ValueError("e2m1 has no NaN")
    magnitudes = numbers.abs()
    codes = torch.zeros(numbers.shape, dtype=torch.uint8, device=numbers.device)
    for code, boundary in enumerate(_BOUNDARIES):
        # A number on a boundary goes to the even code beside it.
        codes += magnitudes >= boundary if code % 2 else magnitudes > boundary
    codes += 8 * numbers.signbit().to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def _ue8m0(numbers: Tensor) -> Tensor:
    mantissas, exponents = numbers.abs().double().frexp()
    # x = mantissa * 2**exponent with a mantissa from 0.5 to below 1: the power of two is one below.
    powers = (exponents - 1).clamp(-UE8M0_LARGEST_EXPONENT, UE8M0_LARGEST_EXPONENT)
    powers = powers.masked_fill(mantissas == 0, -UE8M0_LARGEST_EXPONENT)
    codes = (powers + UE8M0_LARGEST_EXPONENT).masked_fill(~numbers.isfinite(), 0xFF)
    return codes.to(torch.uint8).view(TORCH_DTYPES["ue8m0"])


def _unpacked_int4(stored: Tensor) -> Tensor:
    codes = _codes(stored)
    return torch.stack((codes & 0xF, codes >> 4), -1).flatten(-2).double() - INT4_ZERO


def _packed_int4(numbers: Tensor) -> Tensor:
    if numbers.shape[-1] % 2:
        raise ValueError(f"two elements of int4 share a byte, and {numbers.shape[-1]} is odd")
    codes = (numbers.round().clamp(-INT4_ZERO, INT4_ZERO - 1) + INT4_ZERO).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


DECODERS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {"e2m1": _unpacked_e2m1, "int4": _unpacked_int4, "ue8m0": _powers}
)
ENCODERS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {"e2m1": _packed_e2m1, "int4": _packed_int4, "ue8m0": _ue8m0}
)
"""Encoders of the types that are codes in memory."""
