"""Selection of a library: its kernels, the kernel of each tuned shape, and the rule for all other shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, cast

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.library.pinned import KernelObservation
from gemmgen.library.sources import Sources
from gemmgen.plan.forecast import Forecast
from gemmgen.plan.group_forecast import GroupForecast
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import counted
from gemmgen.plan.search import traffic_of
from gemmgen.plan.timing import Stream, Tiles
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.cost import card_of, row_of
from gemmgen.problem import Shape

KERNELS: Final = 64
"""Greatest number of kernels in a library, unless another one is given."""


NEAR: Final = 0.02
"""Relative loss to the fastest kernel of a shape that does not reduce the score further."""


LOSS_WEIGHT: Final = 4.0
"""Weight of a greater loss beside the geometric mean, as far as it is a loss to the baseline too."""


LEAST: Final = 0.92
"""Share of the baseline's speed below which shapes are reported, and avoided if a known kernel is faster."""


SLOW_WEIGHT: Final = 20.0
"""Weight of the distance of a shape to that share."""


UNKNOWN: Final = math.log(0.05)
"""Score of a shape on which no selected kernel was measured: to have one comes first."""


NOISE: Final = 0.01
"""Relative difference within which two kernels of a shape count as equally fast."""


SWITCH: Final = 0.003
"""Least gain of a further kernel in the table of one N and K, as a share of the time of one of its shapes."""


WIDEST_GAP: Final = 8
"""Greatest factor between two neighbouring tuned M of one N and K: a wider gap between them is not tuned."""


SAMPLES: Final = 24
"""Number of M between two tuned ones at which their kernels are compared."""


# --- the rule: the planner's time, corrected by measurements of similar shapes


def forecast_of(
    kernels: Iterable[Kernel], measurements: Iterable[KernelObservation] = ()
) -> Forecast[Kernel]:
    """Return the times that are expected of kernels of one problem on one GPU.

    Raises GemmgenError (``library-rule``) for kernels that are not of Hopper.
    """
    rows: dict[Kernel, Tiles | Stream] = {kernel: row_of(kernel) for kernel in predictable("--from", kernels)}
    measured = ((one.kernel, one.shape, one.seconds) for one in measurements)
    first = next(iter(rows))
    card, traffic = card_of(first.gpu), traffic_of(first.problem)
    if groups := first.problem.groups:
        return GroupForecast(rows, card, traffic, measured, division=groups)
    return Forecast(rows, card, traffic, measured)


def predictable(place: str, kernels: Iterable[Kernel]) -> list[WgmmaKernel]:
    """Return kernels whose times ``gemmgen.plan.timing`` predicts.

    Raises GemmgenError (``library-rule``), at this place, for one that it does not predict.
    """
    found = list(kernels)
    if not all(isinstance(kernel, WgmmaKernel) for kernel in found):
        message = "has a kernel without a rule for shapes that were not tuned: only Hopper kernels have one"
        raise GemmgenError([Diagnostic(place, "library-rule", message)])
    return cast("list[WgmmaKernel]", found)


# --- the kernels

Ratios = Mapping[Shape, Mapping[Kernel, float]]
"""Baseline's time over the kernel's, by shape and kernel."""


def ratios_of(measurements: Iterable[KernelObservation]) -> dict[Shape, dict[Kernel, float]]:
    """Return the ratios of observations by shape and kernel."""
    found: dict[Shape, dict[Kernel, float]] = {}
    for one in measurements:
        found.setdefault(one.shape, {})[one.kernel] = one.ratio
    return found


def select(ratios: Ratios, limit: int) -> tuple[Kernel, ...]:
    """Return at most `limit` kernels with the highest score together, those that serve most shapes first.

    They are selected one by one, each the one that raises the score most, and then exchanged one by one as
    long as that raises the score. The score is the geometric mean of the best of them on every shape, less
    the losses on shapes that are slower by more than ``NEAR`` than the best kernel measured there, and than
    the baseline; shapes below ``LEAST`` lose most.
    """
    # Shapes are numbered, because a number is looked up faster than a shape, a million times.
    worth: dict[Kernel, list[tuple[int, float]]] = {}
    for place, found in enumerate(ratios.values()):
        best = max(found.values())
        for kernel, ratio in found.items():
            lost = max(0.0, math.log(min(best, 1.0) / ratio) - NEAR)
            slow = max(0.0, math.log(min(best, LEAST) / ratio))
            value = math.log(ratio) - LOSS_WEIGHT * lost - SLOW_WEIGHT * slow
            worth.setdefault(kernel, []).append((place, value))

    def without(kernels: Iterable[Kernel]) -> list[float]:
        """Return what each shape is worth with these."""
        reached = [UNKNOWN] * len(ratios)
        for kernel in kernels:
            for place, value in worth[kernel]:
                reached[place] = max(reached[place], value)
        return reached

    def gain(worth_of_one: Sequence[tuple[int, float]], reached: Sequence[float]) -> float:
        return math.fsum([value - reached[place] for place, value in worth_of_one if value > reached[place]])

    def best_beside(reached: Sequence[float]) -> tuple[Kernel, float]:
        """Return the kernel that raises the score most, and by how much."""
        # Items, not keys: hashing a kernel, which is a whole spec, takes longer than adding up its gains.
        gains = ((kernel, gain(found, reached)) for kernel, found in worth.items())
        return max(gains, key=itemgetter(1))

    chosen: list[Kernel] = []
    while len(chosen) < min(limit, len(worth)):
        best, gained = best_beside(without(chosen))
        if gained == 0:
            break
        chosen.append(best)
    exchanged = True
    while exchanged:
        exchanged = False
        for place, kernel in enumerate(chosen):
            reached = without(chosen[:place] + chosen[place + 1 :])
            best, gained = best_beside(reached)
            if gained > gain(worth[kernel], reached) + 1e-12:
                chosen[place], exchanged = best, True
    serves = dict.fromkeys(chosen, 0)
    for found in ratios.values():
        able = [kernel for kernel in chosen if kernel in found]
        if able:
            serves[max(able, key=lambda kernel: found[kernel])] += 1
    return tuple(sorted((kernel for kernel in chosen if serves[kernel]), key=lambda kernel: -serves[kernel]))


# --- the table


@dataclass(frozen=True)
class MRange:
    """Range of M, for one N and K, in which the table chooses one kernel."""

    least: int
    most: int
    kernel: Kernel
    tuned: tuple[int, ...]
    """Values of M in the range that were measured."""


@dataclass(frozen=True)
class Selection:
    """The kernels selected for a library, and its table: the kernel of each tuned shape."""

    kernels: tuple[Kernel, ...]
    table: Mapping[tuple[int, int], tuple[MRange, ...]] = field(
        default_factory=dict[tuple[int, int], tuple[MRange, ...]]
    )
    """Ranges of M in ascending order, by N and K."""
    measurements: tuple[KernelObservation, ...] = ()
    """Observations of the selected kernels."""

    def kernel(self, shape: Shape) -> Kernel | None:
        """Return the kernel that the table has for a shape; None if the shape is not tuned."""
        m, *layer = shape
        ranges = self.table.get((layer[0], layer[1]), ())
        return next((found.kernel for found in ranges if found.least <= m <= found.most), None)


def choose(sources: Sources, limit: int = KERNELS) -> Selection:
    """Return the kernels of a library and its table; without measurements all kernels, and no table.

    Raises GemmgenError (``too-many-kernels``) for more specs than the limit: only measurements say which to
    leave out.
    """
    ratios = ratios_of(sources.measurements)
    measured = {one.kernel for one in sources.measurements}
    spare = tuple(kernel for kernel in sources.specs if kernel not in measured)
    if len(spare) > limit:
        most = counted(limit, "kernel")
        message = f"{len(spare)} specs were not measured, a library has at most {most}: raise --kernels"
        raise GemmgenError([Diagnostic("--from", "too-many-kernels", message)])
    kernels = (*select(ratios, limit - len(spare)), *spare)
    own = observations_of(kernels, sources.measurements)
    return Selection(kernels, _table(kernels, own), own)


def observations_of(
    kernels: Iterable[Kernel], measurements: Iterable[KernelObservation]
) -> tuple[KernelObservation, ...]:
    """Return the observations of these kernels."""
    wanted = frozenset(kernels)  # once: to hash a kernel takes long
    return tuple(one for one in measurements if one.kernel in wanted)


def _table(
    kernels: Sequence[Kernel], measurements: tuple[KernelObservation, ...]
) -> dict[tuple[int, int], tuple[MRange, ...]]:
    """Return the ranges of M of every N and K."""
    if not measurements:
        return {}
    forecast, ratios = forecast_of(kernels, measurements), ratios_of(measurements)
    layers: dict[tuple[int, int], list[int]] = {}
    for m, n, k in sorted(ratios):
        layers.setdefault((n, k), []).append(m)
    found: dict[tuple[int, int], tuple[MRange, ...]] = {}
    for layer, rows in sorted(layers.items()):
        ways = _cheapest(kernels, [ratios[m, *layer] for m in rows])
        ranges: list[MRange] = []
        for m, kernel in zip(rows, ways, strict=True):
            last = ranges[-1] if ranges else None
            if last and m <= WIDEST_GAP * last.tuned[-1]:
                if last.kernel == kernel:
                    ranges[-1] = MRange(last.least, m, kernel, (*last.tuned, m))
                    continue
                until = _until(forecast, last, kernel, (m, *layer))
                ranges[-1] = MRange(last.least, until, last.kernel, last.tuned)
                ranges.append(MRange(until + 1, m, kernel, (m,)))
            else:
                ranges.append(MRange(m, m, kernel, (m,)))
        found[layer] = tuple(ranges)
    return found


def _cheapest(kernels: Sequence[Kernel], ratios: Sequence[Mapping[Kernel, float]]) -> list[Kernel]:
    """Return a kernel for each M of one N and K, within the noise of the fastest, with few changes."""
    ways: dict[Kernel, tuple[float, list[Kernel]]] = {}
    for found in ratios:
        able = {kernel: found[kernel] for kernel in kernels if kernel in found}
        best = max(able.values())
        near = {kernel: best / ratio for kernel, ratio in able.items() if ratio >= best * (1 - NOISE)}
        stepped: dict[Kernel, tuple[float, list[Kernel]]] = {}
        for kernel, slower in near.items():
            before = [
                (cost + (0.0 if last == kernel else SWITCH), way) for last, (cost, way) in ways.items()
            ] or [(0.0, [])]
            cost, way = min(before, key=lambda each: each[0])
            stepped[kernel] = cost + math.log(slower), [*way, kernel]
        ways = stepped
    return min(ways.values(), key=lambda each: each[0])[1]


def _until(forecast: Forecast[Kernel], last: MRange, kernel: Kernel, shape: Shape) -> int:
    """Return the last M that a range's kernel is still expected to be the faster one at, of two tuned M."""
    low, high = last.tuned[-1], shape[0]
    between = sorted({round(low * (high / low) ** (step / SAMPLES)) for step in range(1, SAMPLES)})
    sampled = [m for m in between if low < m < high]
    gains = [
        math.log(forecast.expected(kernel, (m, *shape[1:])) / forecast.expected(last.kernel, (m, *shape[1:])))
        for m in sampled
    ]
    sums = [math.fsum(gains[:count]) for count in range(len(sampled) + 1)]
    best = max(range(len(sums)), key=lambda count: sums[count])
    return sampled[best - 1] if best else low
