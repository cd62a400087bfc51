"""Results that are rounded once, to nearest even, as the device rounds them."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float64 numbers rounded to a narrower float of at least 16 bits.

    Torch rounds to fp32 on the way to 16 bits, which may make a tie of a number that is none.
    """
    if dtype.itemsize > 2:
        return value.to(dtype)
    near = value.float()
    error = torch.where(near.isfinite(), value - near.double(), 0.0)
    return _odd(near, error).to(dtype)


def toward_zero(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floats rounded to a narrower float that is not larger; finite numbers remain finite."""
    near = value.to(dtype)
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    larger = (near.double().abs() > value.double().abs()).to(integers)
    return (near.view(integers) - larger).view(dtype)


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a * b + c of float64 tensors whose numbers fp32 holds, to be rounded to fp32 or to less.

    Their product is exact in float64. Rounding the result gives what rounding the exact sum would give.
    """
    product = a * b
    total = product + c
    of_c = total - product
    return _odd(total, (product - (total - of_c)) + (c - of_c))


def _odd(near: Tensor, error: Tensor) -> Tensor:
    """Return numbers with an odd last bit where an error, exact less rounded, is left: no tie has one."""
    integers = torch.int32 if near.dtype == torch.float32 else torch.int64
    toward_zero = near.view(integers) - (error.signbit() != near.signbit()).to(integers)
    exact = (error == 0) | ~near.isfinite()
    return torch.where(exact, near, (toward_zero | 1).view(near.dtype))
