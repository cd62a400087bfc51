"""Matrices and vectors in poisoned storage, which shows what was written and what should not be read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gemmgen.problem.dtype import TORCH_DTYPES, DType, bits, poison

ALIGNMENT_BYTES: Final = 16
"""What TMA demands of a base address and of a row stride; also the unit in which it stores a row."""
PADDED_ALIGNMENT_BYTES: Final = 32
"""What it demands of both where it pads elements of 4 bits to bytes (CUDA driver API, tensor maps, 16U4)."""


def takes_out(columns: int, dtype: torch.dtype) -> bool:
    """Whether TMA can write rows of ``columns`` elements of D and nothing else; if not, ``out`` is refused.

    A store is clipped at the last unit of 16 bytes that a row starts, not at its last column. Measured on an
    H200: with 4097 columns of bf16, the 7 elements behind each row of a wider ``out`` were overwritten.
    """
    return columns * dtype.itemsize % ALIGNMENT_BYTES == 0


@dataclass(frozen=True)
class Matrix:
    """A [rows, columns] view of a storage that is poison all over until it is written.

    Poison is NaN, and a number that a product does not reach where integers have none. Rows are contiguous
    and start at multiples of 16 bytes, as TMA demands, or of ``alignment``. Without a guard the storage is as
    large as the one that a wrapper allocates for a D of this shape. A guarded matrix lies in the middle of
    its storage: a whole row above and below and at least 16 bytes on each side are not its own.
    """

    storage: Tensor
    view: Tensor

    @classmethod
    def poisoned(
        cls,
        rows: int,
        columns: int,
        dtype: DType,
        device: torch.device,
        *,
        guarded: bool = False,
        alignment: int = ALIGNMENT_BYTES,
    ) -> Matrix:
        """Allocate a matrix that holds poison."""
        element = TORCH_DTYPES[dtype]
        unit = alignment // element.itemsize
        margin = 1 if guarded else 0
        width = (math.ceil(columns / unit) + 2 * margin) * unit
        storage = torch.full((rows + 2 * margin, width), poison(element), dtype=element, device=device)
        return cls(storage, storage[margin : margin + rows, margin * unit : margin * unit + columns])

    @property
    def written(self) -> int:
        """Elements of the storage whose bits are no longer the poison's."""
        return _touched(self.storage)

    @property
    def written_outside(self) -> int:
        """Those among them that are not the view's."""
        return self.written - _touched(self.view)


def _touched(matrix: Tensor) -> int:
    untouched = bits(torch.full((), poison(matrix.dtype), dtype=matrix.dtype, device=matrix.device))
    return int((bits(matrix) != untouched).sum().item())
