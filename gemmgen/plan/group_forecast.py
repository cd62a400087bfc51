"""The expected times of kernels of groups: the forecast of `forecast`, of problems that groups divide.

A library of kernels of groups has a copy of this file.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Protocol, TypeVar

from .forecast import Forecast, Logarithms, Shape
from .timing import Card, Moved, Stream, Tiles, Traffic, moved_bytes

Name = TypeVar("Name", bound=Hashable)

SWAP_AB_MEAN_ROWS = 128
"""Mean rows of the groups that have rows, up to which swap-AB is tried.

On an H200 it was the fastest at none of six layers with 256 rows a group in the mean, and at all with 4
(``benchmarks/grouped/h200_sweep.json``).
"""


class Division(Protocol):
    """The groups of a problem [M, N, K], as far as times depend on them; ``Groups`` is one."""

    @property
    def divides_k(self) -> bool:
        """True if the groups divide K."""
        ...

    @property
    def broadcast(self) -> str | None:
        """The matrix that all groups share, None if each has its own: ``a`` or ``b``."""
        ...

    def filled(self, m: int) -> tuple[int, int]:
        """Return the number of groups that have a row of D, and the rows of all groups."""
        ...

    def row_tiles(self, m: int, tile_rows: int) -> int:
        """Return the tiles along M of all groups."""
        ...

    def mean_k_steps(self, k: int, depth: int) -> float:
        """Return the K steps of a group in the mean."""
        ...

    def mean_extents(self, shape: Shape) -> tuple[float, float, float]:
        """Return M, N and K of a group in the mean."""
        ...


def tries_swap_ab(division: Division, m: int) -> bool:
    """Return True if the planner tries swap-AB for the groups of a problem: few rows in the mean."""
    groups, rows = division.filled(m)
    return rows <= SWAP_AB_MEAN_ROWS * groups


def moved_of_groups(traffic: Traffic, division: Division, shape: Shape) -> Moved:
    """Return the bytes from and to DRAM of a problem; the B of a group counts if the group has rows."""
    m, n, k = shape
    groups, rows = division.filled(m)
    if division.divides_k:
        return moved_bytes(traffic._replace(c=traffic.c * groups, d=traffic.d * groups), m, n, k)
    read_b = 1 if division.broadcast == "b" else groups
    moved = moved_bytes(traffic._replace(b=traffic.b * read_b), rows, n, k)
    if division.broadcast != "a":
        return moved
    less = (rows - m) * k * traffic.a // 8  # rows of A that other groups share
    return moved._replace(every=moved.every - less, operands_and_d=moved.operands_and_d - less)


def whole_problem(kernel: Tiles | Stream, division: Division, shape: Shape) -> Shape:
    """Return the problem without groups that takes a kernel as long.

    Tiles that the rows of a group do not fill take as long as full ones. A tile of groups that divide K has
    the K steps of a group in the mean, and each group has one or more.
    """
    m, n, k = shape
    if division.divides_k:
        k = math.ceil(division.mean_k_steps(k, kernel.depth) * kernel.depth)
    return division.row_tiles(m, kernel.rows) * kernel.rows, n, k


class GroupForecast(Forecast[Name]):
    """Expected times of kernels of groups on one GPU, for problems of the planned number of groups."""

    def __init__(
        self,
        kernels: Mapping[Name, Tiles | Stream],
        card: Card,
        traffic: Traffic,
        measured: Iterable[tuple[Name, Shape, float]] = (),
        *,
        division: Division,
    ) -> None:
        """Take the rows of kernels, the seconds that they took, and the groups of all problems."""
        self.division = division
        super().__init__(kernels, card, traffic, measured)

    def moved(self, shape: Shape) -> Moved:
        """Return the bytes from and to DRAM for a shape."""
        return moved_of_groups(self.traffic, self.division, shape)

    def seconds(self, kernel: Tiles | Stream, shape: Shape, moved: Moved) -> float:
        """Return the seconds that a kernel with this row is predicted to take."""
        return super().seconds(kernel, whole_problem(kernel, self.division, shape), moved)

    def logarithms(self, shape: Shape) -> Logarithms:
        """Return the logarithms of the extents of a group: they measure the distance of two shapes."""
        m, n, k = self.division.mean_extents(shape)
        return math.log2(m), math.log2(n), math.log2(k)

    def is_predictable(self, kernel: Tiles | Stream, shape: Shape) -> bool:
        """Return True if the predicted time can be trusted: swap-AB only with few rows in each group."""
        return not kernel.swap_ab or tries_swap_ab(self.division, shape[0])
