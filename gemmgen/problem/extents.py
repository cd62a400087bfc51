"""The extents of a matmul: of one problem, and the ranges that a kernel is for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

Shape = tuple[int, int, int]
"""[M, N, K] of D[M, N] = A[M, K] @ B[K, N]."""


DEFAULT_SHAPE: Shape = (8192, 8192, 8192)
"""The problem for which an open spec is planned if it names none."""


def shape_text(shape: Shape) -> str:
    """Return the shape as users write it: ``8192x8192x512``."""
    return "x".join(str(extent) for extent in shape)


@dataclass(frozen=True)
class Ranges:
    """The least and the most of each extent of the problems that a kernel is for."""

    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]

    def __str__(self) -> str:
        """Return them as users would say them: ``1 to 64 x 6144 x 4096``."""
        ends = (self.m, self.n, self.k)
        return " x ".join(str(least) if least == most else f"{least} to {most}" for least, most in ends)

    @cached_property
    def ends(self) -> tuple[Shape, ...]:
        """The least problem and the largest."""
        return tuple(dict.fromkeys(zip(self.m, self.n, self.k, strict=True)))

    @cached_property
    def representatives(self) -> tuple[Shape, ...]:
        """The problems that stand for all of them: both ends of each extent, and of M powers of two between.

        A kernel's time goes by rows in steps of its tile, which is such a power, so it changes most there;
        N and K are given by a layer, and are rarely ranges.
        """
        least, most = self.m
        powers = (1 << power for power in range(least.bit_length(), (most - 1).bit_length()))
        rows = sorted({least, *powers, most})
        columns, depths = sorted(set(self.n)), sorted(set(self.k))
        return tuple(itertools.product(rows, columns, depths))
