"""Selection of a library: its kernels, the fastest on each measured shape, and the rule for all others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


# --- the selection


@dataclass(frozen=True)
class Selection:
    """The kernels selected for a library, and their measurements."""

    kernels: tuple[Kernel, ...]
    measurements: tuple[KernelObservation, ...] = ()
    """Observations of the selected kernels."""

    @property
    def fastest(self) -> dict[Shape, Kernel]:
        """The selected kernel that was the fastest on each shape, beside the baseline of its run."""
        ratios = ratios_of(self.measurements)
        return {shape: max(found, key=lambda kernel: found[kernel]) for shape, found in ratios.items()}


def choose(sources: Sources, limit: int = KERNELS) -> Selection:
    """Return the kernels of a library and their measurements; without measurements all kernels.

    Raises GemmgenError (``too-many-kernels``) for more specs than the limit: only measurements say which to
    leave out.
    """
    measured = {one.kernel for one in sources.measurements}
    spare = tuple(kernel for kernel in sources.specs if kernel not in measured)
    if len(spare) > limit:
        most = counted(limit, "kernel")
        message = f"{len(spare)} specs were not measured, a library has at most {most}: raise --kernels"
        raise GemmgenError([Diagnostic("--from", "too-many-kernels", message)])
    kernels = (*select(ratios_of(sources.measurements), limit - len(spare)), *spare)
    return Selection(kernels, observations_of(kernels, sources.measurements))


def observations_of(
    kernels: Iterable[Kernel], measurements: Iterable[KernelObservation]
) -> tuple[KernelObservation, ...]:
    """Return the observations of these kernels."""
    wanted = frozenset(kernels)  # once: to hash a kernel takes long
    return tuple(one for one in measurements if one.kernel in wanted)
