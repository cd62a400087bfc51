"""Matrices to verify with: random operands, and poisoned outputs that show what was and was not written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from gemmgen.spec.model import Operands
from gemmgen.verify.tolerance import DType
from gemmgen.verify.verification import Shape

TORCH_DTYPES: Final[Mapping[DType, torch.dtype]] = MappingProxyType(
    {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
)
ALIGNMENT_BYTES: Final = 16
"""What TMA demands of a base address and of a row stride; also the unit in which it stores a row."""


def takes_out(columns: int, dtype: torch.dtype) -> bool:
    """Whether TMA can write rows of ``columns`` elements of D and nothing else; if not, ``out`` is refused.

    A store is clipped at the last unit of 16 bytes that a row starts, not at its last column. Measured on an
    H200: with 4097 columns of bf16, the 7 elements behind each row of a wider ``out`` were overwritten.
    """
    return columns * dtype.itemsize % ALIGNMENT_BYTES == 0


@dataclass(frozen=True)
class Matrix:
    """A [rows, columns] view of a storage that is NaN all over until it is written.

    Rows are contiguous and start at multiples of 16 bytes, as TMA demands. Without a guard the storage is as
    large as the one that a wrapper allocates for a D of this shape. A guarded matrix lies in the middle of
    its storage: a whole row above and below and at least 16 bytes on each side are not its own.
    """

    storage: Tensor
    view: Tensor

    @classmethod
    def poisoned(
        cls, rows: int, columns: int, dtype: DType, device: torch.device, *, guarded: bool = False
    ) -> Matrix:
        """Allocate a matrix that holds NaN."""
        element = TORCH_DTYPES[dtype]
        unit = ALIGNMENT_BYTES // element.itemsize
        margin = 1 if guarded else 0
        width = (math.ceil(columns / unit) + 2 * margin) * unit
        storage = torch.full((rows + 2 * margin, width), math.nan, dtype=element, device=device)
        return cls(storage, storage[margin : margin + rows, margin * unit : margin * unit + columns])

    @property
    def written(self) -> int:
        """Elements of the storage whose bits are no longer the poison's."""
        return _touched(self.storage)

    @property
    def written_outside(self) -> int:
        """Those among them that are not the view's."""
        return self.written - _touched(self.view)


def normal(
    rows: int, columns: int, dtype: DType, generator: torch.Generator, *, guarded: bool = False
) -> Tensor:
    """Return a [rows, columns] matrix of N(0, 1), rows contiguous; whatever surrounds it is NaN."""
    matrix = Matrix.poisoned(rows, columns, dtype, generator.device, guarded=guarded)
    matrix.view.normal_(generator=generator)
    return matrix.view


def random_operands(
    shape: Shape, operands: Operands, generator: torch.Generator, *, guarded: bool = False
) -> tuple[Tensor, Tensor]:
    """Return a [M, K] and b [K, N] of N(0, 1) for shape [M, N, K], K-major unless the spec says otherwise."""
    m, n, k = shape
    if operands.a.major == "mn":
        a = normal(k, m, operands.a.dtype, generator, guarded=guarded).T
    else:
        a = normal(m, k, operands.a.dtype, generator, guarded=guarded)
    if operands.b.major == "mn":
        b = normal(k, n, operands.b.dtype, generator, guarded=guarded)
    else:
        b = normal(n, k, operands.b.dtype, generator, guarded=guarded).T
    return a, b


def bits(matrix: Tensor) -> Tensor:
    """Return the elements as integers: equal where the bits are, which for NaN floats are not."""
    return matrix.view(torch.int16 if matrix.dtype.itemsize == 2 else torch.int32)


def not_finite(matrix: Tensor) -> int:
    """Return the elements that are not finite: never written, or made from what is not an input."""
    return int((~torch.isfinite(matrix)).sum().item())


def differing(left: Tensor, right: Tensor) -> Tensor:
    """Return a bool scalar on the device: whether any bit differs. It does not wait for the device."""
    return (bits(left) != bits(right)).any()


def _touched(matrix: Tensor) -> int:
    poison = bits(torch.full((), math.nan, dtype=matrix.dtype, device=matrix.device))
    return int((bits(matrix) != poison).sum().item())
