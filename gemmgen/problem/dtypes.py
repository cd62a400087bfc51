"""The element types of a problem's operands and result, and the bytes that have to move for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmgen.hardware import DTYPES, SCALE_FORMATS
from gemmgen.hardware.elements import DTypeName, ScaleFormatName
from gemmgen.kinds import Count, GroupCount
from gemmgen.problem.extents import Shape
from gemmgen.problem.groups import GroupKind, Groups
from gemmgen.problem.matmul import Matmul
from gemmgen.problem.observation import flops


@dataclass(frozen=True)
class Dtypes:
    """Element types of the operands and of the result."""

    a: DTypeName
    b: DTypeName
    d: DTypeName
    c: DTypeName | None = None
    """None without a C; then a file does not mention it."""
    a_scale: ScaleFormatName | None = None
    """How A is scaled block by block; None if it is not, and likewise of B."""
    b_scale: ScaleFormatName | None = None
    b_blocks: Count | None = None
    """Blocks of N columns that B has for an element of D with several sums; None if B is [K, N]."""
    d_blocks: Count | None = None
    """Matrices of N columns side by side in C and in D; None if they are [M, N]."""
    saved_blocks: Count | None = None
    """Matrices [M, N] of sums that are stored beside D, in its type; None if there are none."""

    group_kind: GroupKind | None = None
    """Kind of the groups; None without groups."""
    group_count: GroupCount | None = None

    @classmethod
    def of(cls, problem: Matmul) -> Dtypes:
        """Return the names of the element types of a problem, and of the formats of its blocks' scales."""
        a, b = problem.a, problem.b
        return cls(
            a=a.dtype.name,
            b=b.dtype.name,
            d=problem.d.name,
            c=problem.c.name if problem.c else None,
            a_scale=a.scale.format.name if a.scale else None,
            b_scale=b.scale.format.name if b.scale else None,
            b_blocks=problem.b_blocks if problem.gated else None,
            d_blocks=problem.d_blocks if problem.d_blocks > 1 else None,
            saved_blocks=problem.b_blocks if problem.saves else None,
            group_kind=problem.groups.of if problem.groups else None,
            group_count=problem.groups.count if problem.groups else None,
        )

    @property
    def groups(self) -> Groups | None:
        """The groups of rows, or of K; None without groups."""
        return Groups(self.group_kind, self.group_count) if self.group_kind and self.group_count else None

    def flops(self, shape: Shape) -> int:
        """Return the operations of the product of a problem [M, N, K]: all blocks of B have N columns."""
        return flops(shape, self.b_blocks or 1, self.groups)

    def moved_bytes(self, shape: Shape) -> int:
        """Return the fewest bytes through device memory of a problem [M, N, K].

        Rows of no group do not count, nor does the B of a group without rows.
        """
        m, n, k = shape
        blocks = self.d_blocks or 1
        d_bytes = blocks * (_bytes(self.d) + (_bytes(self.c) if self.c else 0))
        d_bytes += (self.saved_blocks or 0) * _bytes(self.d)
        a_row, b_row = _row_bytes(self.a, self.a_scale, k), _row_bytes(self.b, self.b_scale, k)
        b_rows = b_row * (self.b_blocks or 1)
        if (groups := self.groups) is None:
            return moved_bytes(m, n, a_row, b_rows, d_bytes)
        filled, rows = groups.filled(m)
        a_rows = m if groups.divides_k or groups.broadcast == "a" else rows
        read_b = 1 if groups.divides_k or groups.broadcast == "b" else filled
        return moved_bytes(a_rows, read_b * n, a_row, b_rows, 0) + rows * n * d_bytes


def moved_bytes(m: int, n: int, a_row_bytes: int, b_row_bytes: int, d_bytes: int) -> int:
    """Return the fewest bytes through device memory: A, B and C read once and D written once.

    A row of A [M, K] has `a_row_bytes`, a row of B's transpose [N, K] `b_row_bytes`, each with its block
    scales. An element of D, and of C if there is one, has `d_bytes`. Vectors and a scale, a row or column at
    most, are left out.
    """
    return m * a_row_bytes + n * b_row_bytes + m * n * d_bytes


def _bytes(dtype: DTypeName) -> int:
    """Return the bytes of an element that shares none with another one."""
    return math.ceil(DTYPES[dtype].bits / 8)


def _row_bytes(dtype: DTypeName, scale: ScaleFormatName | None, k: int) -> int:
    """Return the bytes of a row of A or a column of B, and of its share of the scales."""
    elements = math.ceil(k * DTYPES[dtype].bits / 8)
    if scale is None:
        return elements
    scale_format = SCALE_FORMATS[scale]
    of_block = math.ceil(k / scale_format.vector) * _bytes(scale_format.dtype)
    return elements + math.ceil(of_block / scale_format.rows)
