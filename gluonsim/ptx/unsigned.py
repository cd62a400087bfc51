"""Arithmetic on unsigned numbers of 64 bits, whose bits an int64 tensor holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_TOP = -(2**63)
_HALF = 32


def ordered(value: Tensor) -> Tensor:
    """Return signed numbers that are in the order of the unsigned ones."""
    return value ^ _TOP


def shifted(value: Tensor, count: Tensor | int) -> Tensor:
    """Return numbers shifted to the right by 0 to 63 bits."""
    count = torch.as_tensor(count, dtype=torch.int64)
    halved = value >> 1 & ~_TOP
    return torch.where(count == 0, value, halved >> (count - 1).clamp(min=0))


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """Return quotients rounded down; no divisor may be zero."""
    at_least = (ordered(a) >= ordered(b)).to(torch.int64)
    # The quotient of half the dividend is at most one too small once it is doubled.
    near = torch.div(shifted(a, 1), torch.where(b > 0, b, 1), rounding_mode="trunc") << 1
    left = a - near * b
    exact = near + (ordered(left) >= ordered(b)).to(torch.int64)
    return torch.where(b < 0, at_least, exact)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """Return remainders; no divisor may be zero."""
    return a - quotient(a, b) * b


def upper_half(a: Tensor, b: Tensor) -> Tensor:
    """Return the upper 64 bits of products."""
    mask = (1 << _HALF) - 1
    (a_high, a_low), (b_high, b_low) = ((shifted(value, _HALF), value & mask) for value in (a, b))
    first = a_high * b_low + shifted(a_low * b_low, _HALF)
    second = a_low * b_high + (first & mask)
    return a_high * b_high + shifted(first, _HALF) + shifted(second, _HALF)


def as_float(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floats of 32 or 64 bits, each rounded once."""
    # From 2**63 on: half of the number, whose last bit is set if one was dropped, rounds alike.
    halved = shifted(value, 1) | (value & 1)
    return torch.where(value < 0, halved.to(dtype) * 2, value.to(dtype))


OPERATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "divui": quotient,
    "remui": remainder,
    "shrui": shifted,
    "minui": lambda a, b: torch.where(ordered(a) < ordered(b), a, b),
    "maxui": lambda a, b: torch.where(ordered(a) > ordered(b), a, b),
}
"""By the names of MLIR's operations."""
