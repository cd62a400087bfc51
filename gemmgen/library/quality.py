"""Figures of a selection: on the shapes of its table, and on pairs of N and K that it was made without."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from gemmgen.library.selection import (
    KERNELS,
    LEAST,
    Ratios,
    Selection,
    forecast_of,
    observations_of,
    ratios_of,
    select,
)
from gemmgen.library.sources import Sources
from gemmgen.plan.kernel import Kernel
from gemmgen.problem import Shape, shape_text


@dataclass(frozen=True)
class SelectionFigures:
    """Summary of the kernels chosen for several shapes, against the baseline and the best measured kernel.

    ``bench.suite_figures.RatioFigures`` summarizes one kernel against the baseline alone.
    """

    shapes: int
    geomean: float
    minimum: float
    worst: Shape
    of_best: float
    """Geometric mean of their speed over that of the fastest kernel measured on each shape."""
    best_geomean: float
    """Geometric mean of the ratios of the fastest kernels."""
    below: tuple[tuple[float, Shape], ...]
    """The shapes below 0.92 of the baseline's speed, slowest first."""

    def text(self, what: str) -> str:
        """Return them in a line."""
        return (
            f"{what}: {self.shapes} shapes, {self.geomean:.3f} of the baseline's speed in geometric mean,"
            f" least {self.minimum:.3f} at {shape_text(self.worst)}; {self.of_best:.3f} of the best kernel's"
        )


def figures(ratios: Ratios, chosen: Mapping[Shape, Kernel]) -> SelectionFigures | None:
    """Return the figures of chosen kernels by their measured ratios; None if none of them was measured."""
    known = {shape: found[chosen[shape]] for shape, found in ratios.items() if chosen.get(shape) in found}
    if not known:
        return None
    best = {shape: max(ratios[shape].values()) for shape in known}
    worst = min(known, key=lambda shape: known[shape])
    geomean, best_geomean = _geomean(known.values()), _geomean(best.values())
    below = sorted((ratio, shape) for shape, ratio in known.items() if ratio < LEAST)
    return SelectionFigures(
        len(known), geomean, known[worst], worst, geomean / best_geomean, best_geomean, tuple(below)
    )


def _geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def tuned(sources: Sources, choice: Selection) -> SelectionFigures | None:
    """Return how the fastest selected kernels do on the measured shapes, beside all measured kernels."""
    return figures(ratios_of(sources.measurements), choice.fastest)


@dataclass(frozen=True)
class LeftOut:
    """Figures of the rule on pairs of N and K that it has no measurements of."""

    figures: SelectionFigures
    shapes: int
    """Number of shapes left out; on the others no kernel of the library was measured."""
    able: float
    """Mean number of kernels that were measured on such a shape: the rule had to choose one of them."""


def left_out(sources: Sources, limit: int = KERNELS, *, share: float = 0.1, seed: int = 0) -> LeftOut | None:
    """Return how well libraries choose for pairs of N and K that are left out of them, a share at a time.

    A seed divides the pairs of N and K into parts, and for each part a library is made of the others. The
    time of a kernel that was not measured on a shape is unknown, so the rule chooses among the measured ones.
    """
    layers = sorted({one.shape[1:] for one in sources.measurements})
    random.Random(seed).shuffle(layers)
    parts = max(1, round(1 / share))
    ratios, chosen, able = ratios_of(sources.measurements), dict[Shape, Kernel](), list[int]()
    for part in range(parts):
        held = set(layers[part::parts])
        known = tuple(one for one in sources.measurements if one.shape[1:] not in held)
        kernels = select(ratios_of(known), limit)
        forecast = forecast_of(kernels, observations_of(kernels, known)) if kernels else None
        for shape in (shape for shape in ratios if shape[1:] in held):
            measured = [kernel for kernel in kernels if kernel in ratios[shape]]
            able.append(len(measured))
            if forecast and measured:
                chosen[shape] = forecast.best(forecast.candidates(shape, measured), shape)
    found = figures(ratios, chosen)
    return found and LeftOut(found, len(able), sum(able) / len(able))


@dataclass(frozen=True)
class SelectionReport:
    """Figures of a selection: of its table, and of shapes that it was made without; None if unknown."""

    tuned: SelectionFigures | None = None
    left_out: LeftOut | None = None

    @classmethod
    def of(cls, sources: Sources, choice: Selection, limit: int | None = None) -> SelectionReport:
        """Return the figures of a selection; `limit` adds those of left-out pairs for so large a library."""
        return cls(tuned(sources, choice), left_out(sources, limit) if limit else None)

    def lines(self) -> list[str]:
        """Return them for people."""
        found: list[str] = []
        if self.tuned:
            found.append(self.tuned.text("tuned"))
            below = ", ".join(f"{shape_text(shape)} {ratio:.3f}" for ratio, shape in self.tuned.below)
            if below:
                found.append(f"  below {LEAST}: {below}")
        if self.left_out:
            of_all = (
                f"of {self.left_out.shapes}, {self.left_out.able:.1f} kernels of the library measured on each"
            )
            found.append(f"{self.left_out.figures.text('N and K left out')} ({of_all})")
        return found

    def as_dict(self) -> dict[str, object]:
        """Return them as plain data for JSON."""
        left = self.left_out
        return {
            "tuned": self.tuned and asdict(self.tuned),
            "left_out": left
            and {**asdict(left.figures), "of_shapes": left.shapes, "kernels_each": left.able},
        }
