"""Matrices in poisoned storage, which shows reads and writes outside of them; the matrices of one call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from gemmgen.hardware import DTYPES
from gemmgen.numerics.encoding import (
    CHUNK_ELEMENTS,
    TORCH_DTYPES,
    bits,
    elements_per_byte,
    encoded,
    pieces,
    poison,
)
from gemmgen.problem import Shape

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


@dataclass(frozen=True)
class Draw:
    """The source of the numbers of a call's tensors."""

    generator: torch.Generator
    integers: bool = False
    """True for small integers, and scales that are powers of two; False for random numbers."""
    hostile: bool = False
    """True if tensors that count or name rows have numbers out of bounds too."""


Fill = Callable[[tuple[int, int], Draw], Tensor]
"""Returns fp32 numbers of these extents."""


@dataclass(frozen=True)
class Layout:
    """The problem of one call, and how its tensors lie in memory."""

    shape: Shape
    device: torch.device
    draw: Draw | None
    """None if the tensors keep their poison."""
    guarded: bool = False
    """True if poison surrounds each matrix."""
    misaligned: bool = False
    """True if rows follow one another as torch has them, without alignment for TMA."""

    @property
    def unfilled(self) -> Layout:
        """Equal layout on torch's device ``meta``, which has no memory."""
        return replace(self, device=torch.device("meta"), draw=None)

    def matrix(
        self,
        dtype: str,
        rows: int,
        columns: int,
        fill: Fill | None,
        *,
        leading: tuple[int, ...] = (),
        alignment: int = ALIGNMENT_BYTES,
        may_guard: bool = True,
    ) -> Tensor:
        """Return a matrix of this element type, with the numbers of ``fill`` if numbers are drawn.

        With ``leading`` extents it is a stack of such matrices [*leading, rows, columns]. The stride of rows
        is a multiple of ``alignment`` bytes, also that of a lone row, unless the layout is misaligned.
        """
        width = columns // elements_per_byte(TORCH_DTYPES[dtype])
        made = Matrix.poisoned(
            *(math.prod(leading) * rows, width, dtype, self.device),
            guarded=self.guarded and may_guard,
            alignment=alignment,
            misaligned=self.misaligned,
        ).view
        if self.draw is not None and fill is not None:
            _fill(made, dtype, columns, fill, self.draw)
        # `view` would give a lone row its width as the stride.
        pitch = made.stride(0)
        strides = (math.prod((*leading[i + 1 :], rows)) * pitch for i in range(len(leading)))
        return made.as_strided((*leading, rows, width), (*strides, pitch, 1))


def _fill(made: Tensor, dtype: str, columns: int, fill: Fill, draw: Draw) -> None:
    """Write numbers to the rows of a matrix with this number of elements in each.

    The numbers are drawn in fp32 and in parts, because they need several times the memory of the matrix.
    """
    count = max(1, CHUNK_ELEMENTS // max(1, columns))
    for first in range(0, len(made), count):
        part = made[first : first + count]
        numbers = fill((len(part), columns), draw)
        if DTYPES[dtype].bits < 8:
            part.copy_(encoded(numbers, dtype))
        else:
            part.copy_(numbers.to(TORCH_DTYPES[dtype]))


def powers_of_two(extents: tuple[int, int], draw: Draw) -> Tensor:
    """Return 0.5, 1 and 2, equally likely: the scales of small integers."""
    device = draw.generator.device
    return 2.0 ** torch.randint(-1, 2, extents, generator=draw.generator, device=device)
