"""The exact product, and how far a result is from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

CHUNK_BYTES: Final = 256 << 20
"""Of reference rows that exist at a time."""


@dataclass(frozen=True)
class Deviation:
    """How far a result is from the exact product; NaN when the result holds one."""

    relative: float
    """||out - ref|| / ||ref||, Frobenius norms."""
    worst_element: float
    """Largest |out - ref| over the root mean square of the reference."""


def deviation(out: Tensor, a: Tensor, b: Tensor) -> Deviation:
    """Compare out [M, N] with a [M, K] @ b [K, N], computed in float64 on the same device.

    Products of 16-bit floats are exact in float64 and a sum of K of them loses at most K * 2**-53 of the
    sum of their magnitudes: nothing, here. Rows are computed in chunks, so that besides B in float64 only
    one chunk needs memory.
    """
    b_exact = b.double()
    rows = max(1, CHUNK_BYTES // (8 * b.shape[1]))
    zero = torch.zeros((), dtype=torch.float64, device=out.device)
    square_error, square_reference, worst = zero, zero, zero
    for first in range(0, a.shape[0], rows):
        reference = a[first : first + rows].double() @ b_exact
        error = (out[first : first + rows].double() - reference).abs_()
        square_reference = square_reference + reference.square_().sum()
        worst = torch.maximum(worst, error.max())
        square_error = square_error + error.square_().sum()
    mean_square = square_reference.item() / (a.shape[0] * b.shape[1])
    return Deviation(
        relative=math.sqrt(square_error.item() / square_reference.item()),
        worst_element=worst.item() / math.sqrt(mean_square),
    )
