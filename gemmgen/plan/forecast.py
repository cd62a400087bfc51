"""The choice among several kernels for a problem [M, N, K]: the kernel with the least expected time.

The expected time is the prediction of ``timing``, corrected by the measured times of the same kernel at
nearby shapes. gemmgen fills the tables of libraries with it. Each library has a copy of this file, and uses
it to choose for shapes that were not tuned.
"""

import copy
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from .timing import Card, Moved, Stream, Tiles, Traffic, grid, moved_bytes, moved_to, predicted

Shape = tuple[int, int, int]
"""M, N and K."""
Logarithms = tuple[float, float, float]
"""Logarithms of M, N and K to the base of 2: their differences are octaves."""
Name = TypeVar("Name", bound=Hashable)

NEARBY_EXPONENT = 4
"""Exponent of the weight of a measurement at a distance of d octaves: 1 + d to the power of minus this."""
PRIOR = 1.0
"""Weight of the mean of all corrections: that of one measurement at the same shape."""
FEW_ROWS = 64
"""Rows of A up to which reading B decides the time: swap-AB is tried, whose ring may fill all of shared
memory, and as many tiles as keep all SMs reading.
"""
FEWEST_ROWS = 32
"""Rows of A up to which nothing else is tried: a tile without swap-AB has 64 rows."""
FEW_TILES = 64
"""Tiles of `FEW_ROWS` x `FEW_ROWS` up to which programs have to divide a long K. Kernels are then tried with
swap-AB, as for few rows, and without it, with roles and in clusters that share tiles.
"""
LONG_K = 8192
"""K from which on programs divide K for many rows of A: a shorter K was not measured."""
LONGEST_LINE = 32
"""Most tiles of a line that several waves walk without losing L2, as measured at 4096 x 4096 x 4096."""


def has_few_tiles(m: int, n: int, k: int) -> bool:
    """Return True if programs have to divide K to fill the GPU: few tiles, of more than few rows."""
    return m > FEW_ROWS and m * n <= FEW_TILES * FEW_ROWS**2 and k >= LONG_K


def tried_swap_ab(m: int, n: int, k: int) -> tuple[bool, ...]:
    """Return the values of swap-AB that the planner tries for a problem, the most promising one first."""
    if m <= FEWEST_ROWS:
        return (True,)
    return (True, False) if m <= FEW_ROWS or has_few_tiles(m, n, k) else (False,)


def walks_well(kernel: Tiles | Stream, m: int, n: int) -> bool:
    """Return True if a kernel's order of tiles suits a problem: several waves need short lines."""
    if not kernel.line:
        return True
    tiles_m, tiles_n = grid(kernel, m, n)
    splits = kernel.splits if isinstance(kernel, Stream) else 1
    line = tiles_m if kernel.line == "m" else tiles_n
    return tiles_m * tiles_n <= kernel.programs * kernel.occupancy // splits or line <= LONGEST_LINE


class Forecast(Generic[Name]):
    """Expected times of kernels on one GPU."""

    def __init__(
        self,
        kernels: Mapping[Name, Tiles | Stream],
        card: Card,
        traffic: Traffic,
        measured: Iterable[tuple[Name, Shape, float]] = (),
    ) -> None:
        """Take the rows of kernels by their names, and the seconds that they took on shapes.

        A correction is the logarithm of measured over predicted time. A kernel that was not measured has the
        mean of all corrections.
        """
        self.kernels, self.card, self.traffic = kernels, card, traffic
        self.corrections: dict[Name, list[tuple[Shape, Logarithms, float]]] = {}
        for name, shape, seconds in measured:
            correction = math.log(seconds / self.predicted(name, shape))
            self.corrections.setdefault(name, []).append((shape, self.logarithms(shape), correction))
        every = [correction for rows in self.corrections.values() for *_, correction in rows]
        self.mean = math.fsum(every) / len(every) if every else 0.0

    def on(self, card: Card) -> "Forecast[Name]":
        """Return the times on another GPU: its own predictions, corrected as they are here."""
        found = copy.copy(self)
        found.kernels = {name: moved_to(card, kernel, self.card) for name, kernel in self.kernels.items()}
        found.card = card
        return found

    def candidates(self, shape: Shape, names: Iterable[Name] | None = None) -> list[Name]:
        """Return the kernels whose expected times for a shape are a guide, or all if there are none.

        The time of a kernel with lines of tiles is no guide if the lines are long and the tiles take several
        waves. `is_predictable` says for which rows of A the time of other kernels is one.
        """
        every = list(self.kernels if names is None else names)
        considered = [name for name in every if self.is_predictable(self.kernels[name], shape)] or every
        return [name for name in considered if walks_well(self.kernels[name], *shape[:2])] or considered

    def predicted(self, name: Name, shape: Shape) -> float:
        """Return the seconds that a kernel is predicted to take on a shape."""
        return self.seconds(self.kernels[name], shape, self.moved(shape))

    def expected(self, name: Name, shape: Shape) -> float:
        """Return the expected seconds: the prediction, corrected by measurements nearby."""
        return self._expected(name, shape, self.logarithms(shape), self.moved(shape))

    def best(self, names: Iterable[Name], shape: Shape) -> Name:
        """Return the kernel with the least expected time, the first of equals."""
        place, moved = self.logarithms(shape), self.moved(shape)
        return min(names, key=lambda name: self._expected(name, shape, place, moved))

    def nearest(self, name: Name, shape: Shape) -> Shape | None:
        """Return the shape nearest to this one on which a kernel was measured, None without any."""
        place = self.logarithms(shape)
        rows = self.corrections.get(name, ())
        return min(rows, key=lambda row: math.dist(row[1], place))[0] if rows else None

    def _expected(self, name: Name, shape: Shape, place: Logarithms, moved: Moved) -> float:
        """Return the expected seconds.

        The correction is a mean, by weights that fall with the distance in octaves, of how far the kernel's
        own corrections are from the mean of all kernels.
        """
        seconds = self.seconds(self.kernels[name], shape, moved)
        if not self.corrections:
            return seconds
        weights, weighted = PRIOR, 0.0
        for _, known, correction in self.corrections.get(name, ()):
            weight = (1 + math.dist(known, place)) ** -NEARBY_EXPONENT
            weights += weight
            weighted += weight * (correction - self.mean)
        return seconds * math.exp(self.mean + weighted / weights)

    # --- the shape of a problem: problems of groups have these four in `group_forecast`

    def moved(self, shape: Shape) -> Moved:
        """Return the bytes from and to DRAM for a shape."""
        return moved_bytes(self.traffic, *shape)

    def seconds(self, kernel: Tiles | Stream, shape: Shape, moved: Moved) -> float:
        """Return the seconds that a kernel with this row is predicted to take."""
        return predicted(kernel, self.card, moved, *shape)

    def logarithms(self, shape: Shape) -> Logarithms:
        """Return the logarithms by which the distance of two shapes is measured."""
        m, n, k = shape
        return math.log2(m), math.log2(n), math.log2(k)

    def is_predictable(self, kernel: Tiles | Stream, shape: Shape) -> bool:
        """Return True if the predicted time is a guide.

        For tiles with swap-AB it is one if rows of A fill half of a tile or more: with fewer rows, such
        kernels took 10 to 35 % longer than predicted, as TMA fills the other rows. For all other kernels it
        is one if the planner tries them.
        """
        if kernel.swap_ab and isinstance(kernel, Tiles):
            return 2 * shape[0] >= kernel.rows
        return kernel.swap_ab in tried_swap_ab(*shape)
