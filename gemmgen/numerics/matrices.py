"""Matrices in poisoned storage, which shows reads and writes outside of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gemmgen.numerics.encoding import TORCH_DTYPES, bits, pieces, poison

ALIGNMENT_BYTES: Final = 16
"""Bytes to which TMA requires a base address and a row stride to be aligned; also the unit in which it stores
a row.
"""
PADDED_ALIGNMENT_BYTES: Final = 32
"""Alignment of both if TMA pads elements of 4 bits to bytes (CUDA driver API, tensor maps, 16U4)."""


def takes_out(columns: int, dtype: torch.dtype) -> bool:
    """Return True if TMA can write rows of ``columns`` elements of D alone; if not, ``out`` is refused.

    A store is clipped at the last unit of 16 bytes that a row starts, not at its last column. Measured on an
    H200: with 4097 columns of bf16, the 7 elements after each row of a wider ``out`` were overwritten.
    """
    return columns * dtype.itemsize % ALIGNMENT_BYTES == 0


@dataclass(frozen=True)
class Matrix:
    """A [rows, columns] view of a storage that is all poison until it is written.

    Poison is NaN, and for integers a number that no product reaches. Rows are contiguous and start at
    multiples of 16 bytes, as TMA requires, or of ``alignment``; the rows of a misaligned matrix follow one
    another, or its guard. Without a guard the storage is as large as the one that a wrapper allocates for a D
    of this shape. A guarded matrix lies in the middle of its storage: a whole row above and below and at
    least 16 bytes on each side are outside the matrix.
    """

    storage: Tensor
    view: Tensor

    @classmethod
    def poisoned(
        cls,
        rows: int,
        columns: int,
        dtype: str,
        device: torch.device,
        *,
        guarded: bool = False,
        alignment: int = ALIGNMENT_BYTES,
        misaligned: bool = False,
    ) -> Matrix:
        """Allocate a matrix that holds poison."""
        element = TORCH_DTYPES[dtype]
        unit = 1 if misaligned else alignment // element.itemsize
        margin = 1 if guarded else 0
        # One more element than 16 bytes hold makes an odd number.
        beside = margin * (ALIGNMENT_BYTES // element.itemsize + 1 if misaligned else unit)
        width = math.ceil(columns / unit) * unit + 2 * beside
        storage = torch.full((rows + 2 * margin, width), poison(element), dtype=element, device=device)
        return cls(storage, storage[margin : margin + rows, beside : beside + columns])

    @property
    def written(self) -> int:
        """Elements of the storage whose bits are no longer the poison's."""
        return touched(self.storage)

    @property
    def written_outside(self) -> int:
        """Number of written elements outside the view."""
        return self.written - touched(self.view)


def is_touched(matrix: Tensor) -> Tensor:
    """Return which elements have other bits than the poison."""
    untouched = bits(torch.full((), poison(matrix.dtype), dtype=matrix.dtype, device=matrix.device))
    return bits(matrix) != untouched


def touched(matrix: Tensor) -> int:
    """Return the number of elements whose bits are not the poison's."""
    return int(torch.stack([is_touched(piece).sum() for (piece,) in pieces(matrix)]).sum().item())
