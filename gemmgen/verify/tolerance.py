"""How far a right kernel may be from the exact product."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

DType = Literal["bf16", "fp16", "fp32"]

TOLERANCES: Final[Mapping[DType, float]] = MappingProxyType({"bf16": 4e-3, "fp16": 1e-3, "fp32": 1e-5})
"""Largest ||out - ref|| / ||ref|| (Frobenius norms) by D's dtype, for normal inputs and fp32 accumulation.

Rounding D to p significant bits alone costs 0.43 * 2**-p: the error is uniform over 2**(1 - p) of the
power of two below the value, and a normal value squared is on average 1.84 times that power squared. That
is 1.7e-3 for bf16 (p = 8) and 2.1e-4 for fp16 (p = 11); the limits leave room for 2.4 and 4.8 times as
much, and are far below what a wrong operand, tile or K step costs. For fp32 rounding is nothing (2.5e-8)
and accumulation everything: the tensor core truncates its fp32 sums, an error that grows with K.
"""

WORST_ELEMENT_FACTOR: Final = 8.0
"""Largest |out - ref| of one element over the root mean square of the reference, in tolerances.

The norm of a large matrix hides a small wrong patch: a wrong 64 x 8 fragment of an 8192 x 8192 result
changes it by sqrt(2 * 64 * 8) / 8192 = 3.9e-3. A right element lies within 6 standard deviations of zero
and rounds by at most 2**-p of the power of two below itself: 4 * 2**-8 = 1.6e-2 for bf16, where the limit
is 3.2e-2. Of wrong elements, 98 in 100 are further off than that.
"""
