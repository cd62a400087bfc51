"""Element types: their torch types, what poisons them, and how a number is rounded to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor

DType = Literal["bf16", "fp16", "tf32", "fp32", "e4m3", "e5m2", "int8", "int32", "e2m1", "ue8m0"]

TORCH_DTYPES: Final[Mapping[DType, torch.dtype]] = MappingProxyType(
    {
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "tf32": torch.float32,
        "fp32": torch.float32,
        "e4m3": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
        "int8": torch.int8,
        "int32": torch.int32,
        "e2m1": torch.uint8,
        "ue8m0": torch.float8_e8m0fnu,
    }
)
FP8: Final[tuple[DType, ...]] = ("e4m3", "e5m2")
POISON: Final[Mapping[torch.dtype, int]] = MappingProxyType(
    {torch.int8: 127, torch.int32: -(2**31), torch.uint8: 0xFF}
)
"""What integers hold until they are written; floats and ue8m0 hold NaN.

-2**31 is no product of int8 matrices whose K is below 132,104: none is smaller than K * -128 * 127.
0xFF is a pair of -6: e2m1 has no NaN, and this is as far as it gets from the zeros that TMA puts outside.
"""


def bytes_of(dtype: DType) -> int:
    """Return the bytes of an element in memory."""
    return TORCH_DTYPES[dtype].itemsize


def poison(dtype: torch.dtype) -> float:
    """Return what an element holds until it is written."""
    return POISON.get(dtype, math.nan)


def bits(matrix: Tensor) -> Tensor:
    """Return the elements as integers: equal where the bits are, which for NaN floats are not."""
    return matrix.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[matrix.dtype.itemsize])


def differing(left: Tensor, right: Tensor) -> Tensor:
    """Return a bool scalar on the device: whether any bit differs. It does not wait for the device."""
    return (bits(left) != bits(right)).any()


def not_finite(matrix: Tensor) -> int:
    """Return the elements that were never written or made from what is not an input.

    Floats are NaN or infinite then; of integers, those that still hold the poison are counted.
    """
    if matrix.is_floating_point():
        wide = matrix.float() if matrix.dtype.itemsize == 1 else matrix  # 8 bits have no isfinite
        return int((~torch.isfinite(wide)).sum().item())
    return int((matrix == POISON[matrix.dtype]).sum().item())


def saturated(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Clamp to what 8-bit floats can hold, as ``cvt.satfinite`` does; NaN stays, other types keep all."""
    if dtype.itemsize > 1 or not dtype.is_floating_point:
        return exact
    largest = torch.finfo(dtype).max
    return exact.clamp(-largest, largest)


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float64 numbers to an element type, to nearest even, saturating as ``saturated`` does.

    Numbers that are exact in fp32 are rounded once; others could be rounded twice, by way of fp32.
    """
    return saturated(exact, dtype).to(dtype)


def rounded_to_tf32(matrix: Tensor) -> Tensor:
    """Round fp32 numbers to the 10 bits of mantissa that tf32 has, to nearest even.

    Measured on an H200: that is what TMA does when ``round_f32_to_tf32`` is set.
    """
    whole = bits(matrix.contiguous())
    nearest = ((whole + 0xFFF + (whole >> 13 & 1)) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isnan(matrix), matrix, nearest)
