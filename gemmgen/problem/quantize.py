"""Numbers of 4 and 8 bits and the scales of their blocks: what every code is, and which code a number gets.

Sources, cited by their tag:

* [ocp] OCP Microscaling Formats (MX) Specification 1.0: e2m1, ue8m0, and how a block is quantised (6.3).
* [ptx] PTX ISA 9.0, ``cvt``: rounding to e2m1; ``tcgen05.mma``: nvfp4, whose scales are e4m3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from gemmgen.problem.dtype import TORCH_DTYPES, DType, rounded
from gemmgen.target import ScaleFormat

_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_VALUES: Final = torch.tensor((*_MAGNITUDES, *(-value for value in _MAGNITUDES)), dtype=torch.float64)
"""[ocp] By code; the highest of its four bits is the sign. There is no NaN and no infinity."""
E2M1_PAIRS: Final = torch.stack((E2M1_VALUES.repeat(16), E2M1_VALUES.repeat_interleave(16)), dim=1)
"""The two numbers [256, 2] of every byte, that of the low half first."""
UE8M0_VALUES: Final = torch.tensor(
    [2.0 ** (code - 127) for code in range(255)] + [math.nan], dtype=torch.float64
)
"""[ocp] By code. fp32 holds all of them."""
UE8M0_LARGEST_EXPONENT: Final = 127

LARGEST_EXPONENTS: Final[Mapping[str, int]] = MappingProxyType({"e4m3": 8, "e5m2": 15, "e2m1": 2})
"""[ocp] Of the power of two in the largest number of an element type: 448, 57344 and 6."""
LARGEST_E2M1: Final = _MAGNITUDES[-1]

_BOUNDARIES: Final = tuple((low + high) / 2 for low, high in pairwise(_MAGNITUDES))
"""Between the magnitudes of neighbouring codes of e2m1."""


def elements_per_byte(dtype: torch.dtype) -> int:
    """Return how many elements of an operand share a byte: uint8 holds pairs of e2m1, others are whole."""
    return 2 if dtype == torch.uint8 else 1


def decoded(stored: Tensor, dtype: DType) -> Tensor:
    """Return the numbers that elements or scales are, exactly, in float64, on their device.

    e2m1 comes as bytes [..., K/2] and gives [..., K], the low half of a byte first. ue8m0 may come as bytes.
    """
    if dtype == "e2m1":
        return E2M1_PAIRS.to(stored.device)[_codes(stored)].flatten(-2)
    if dtype == "ue8m0":
        return UE8M0_VALUES.to(stored.device)[_codes(stored)]
    return stored.double()


def encoded(numbers: Tensor, dtype: DType) -> Tensor:
    """Return numbers as elements or scales of a type: the inverse of ``decoded`` for what the type can hold.

    What lies between two numbers of the type is rounded to nearest even, and what is too large saturates
    [ptx, cvt.rn.satfinite]. ue8m0 takes the magnitude and rounds down to a power of two [ocp]; 0 becomes
    2**-127, and what is not finite NaN. e2m1 goes from [..., K] to bytes [..., K/2].

    Raises:
        ValueError: There is a NaN, which e2m1 has no code for, or K is odd and the last byte half empty.
    """
    if dtype == "e2m1":
        return _packed_e2m1(numbers)
    if dtype == "ue8m0":
        return _ue8m0(numbers)
    return rounded(numbers, TORCH_DTYPES[dtype])


def dequantized(elements: Tensor, scales: Tensor, vector: int) -> Tensor:
    """Return the numbers [rows, K] of a block-scaled matrix: elements [rows, K] times their scales.

    Scales [rows, ceil(K / vector)] are those of ``vector`` elements along K each, the last one of what is
    left. Both are decoded, in float64, which holds the products of 4 and 4 bits exactly.
    """
    return elements * scales.repeat_interleave(vector, dim=1)[:, : elements.shape[1]]


def block_quantized(matrix: Tensor, scale_format: ScaleFormat, dtype: DType) -> tuple[Tensor, Tensor]:
    """Return elements, stored, and scales [rows, ceil(K / vector)] of a matrix [rows, K] of fp32 or float64.

    The largest magnitude of a block, amax, decides. A scale of ue8m0 is the power of two at or below amax
    over the one in the element type's largest number [ocp]: what then exceeds that number saturates. A scale
    of e4m3 is amax / 6, rounded, so that amax becomes 6; it saturates at 448: divide a matrix by its own amax
    / (6 * 448) first, and give that as ``tensor_scale``. A block with a NaN or infinity gets a NaN as its
    scale, and a block whose scale is 0, zeros.

    Every step but the rounding is exact for fp32; of float64, ties may be decided by bits beyond fp32's.
    """
    rows, k = matrix.shape
    vector = scale_format.vector
    blocks = torch.nn.functional.pad(matrix.double(), (0, -k % vector)).view(rows, -1, vector)
    amax = blocks.abs().amax(dim=2)  # NaN if there is one
    finite = amax.isfinite()
    if scale_format.dtype == "ue8m0":
        target, scale_dtype = 2.0 ** LARGEST_EXPONENTS[dtype], "ue8m0"
    else:
        target, scale_dtype = LARGEST_E2M1, "e4m3"
    scales = encoded(torch.where(finite, amax / target, math.nan), scale_dtype)
    divisors = decoded(scales, scale_dtype).unsqueeze(2)
    numbers = torch.where(finite.unsqueeze(2) & (divisors > 0), blocks / divisors, 0.0)
    return encoded(numbers.view(rows, -1)[:, :k], dtype), scales


def _codes(stored: Tensor) -> Tensor:
    """Return the bits of 8-bit elements as numbers from 0 to 255."""
    return stored.contiguous().view(torch.uint8).long()


def _packed_e2m1(numbers: Tensor) -> Tensor:
    if numbers.shape[-1] % 2:
        raise ValueError(f"two elements of e2m1 share a byte, and {numbers.shape[-1]} is odd")
    if bool(numbers.isnan().any()):
        raise ValueError("e2m1 has no NaN")
    boundaries = torch.tensor(_BOUNDARIES, dtype=numbers.dtype, device=numbers.device)
    magnitudes = numbers.abs()
    below = torch.bucketize(magnitudes, boundaries)
    above = torch.bucketize(magnitudes, boundaries, right=True)
    # They differ on a boundary only, and one of them is even.
    codes = torch.where(below % 2 == 0, below, above) + 8 * numbers.signbit()
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)


def _ue8m0(numbers: Tensor) -> Tensor:
    mantissas, exponents = numbers.abs().double().frexp()
    # x = mantissa * 2**exponent with a mantissa from 0.5 to below 1: the power of two is one below.
    powers = (exponents - 1).clamp(-UE8M0_LARGEST_EXPONENT, UE8M0_LARGEST_EXPONENT)
    powers = powers.masked_fill(mantissas == 0, -UE8M0_LARGEST_EXPONENT)
    codes = (powers + UE8M0_LARGEST_EXPONENT).masked_fill(~numbers.isfinite(), 0xFF)
    return codes.to(torch.uint8).view(TORCH_DTYPES["ue8m0"])
