"""Observations on a page: with their ranks among the kernels of a shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gemmgen.problem import Shape
from gemmgen.problem.observation import Observation


@dataclass(frozen=True, kw_only=True)
class RankedObservation(Observation[str]):
    """An observation on a page, with its rank among the kernels of its shape."""

    rank: int = 0
    """Place among the kernels that were timed on this shape, 1 for the fastest."""

    @property
    def quartiles(self) -> tuple[float, ...]:
        """Quartiles of the ratio; empty if the record has only medians."""
        return self.spread.quartiles if self.spread else ()


def ranked_observation(found: Observation[str], kernel: str, rank: int = 0) -> RankedObservation:
    """Return an observation under a kernel's name, with its rank if that is known."""
    return RankedObservation(
        found.shape,
        kernel,
        found.seconds,
        found.baseline_seconds,
        found.spread,
        found.operations,
        rank=rank,
    )


def ranked(trials: Iterable[RankedObservation]) -> tuple[RankedObservation, ...]:
    """Return trials by shape, the fastest first, each with its place."""
    by_shape: dict[Shape, list[RankedObservation]] = {}
    for trial in trials:
        by_shape.setdefault(trial.shape, []).append(trial)
    return tuple(
        replace(trial, rank=rank)
        for shape in sorted(by_shape)
        for rank, trial in enumerate(sorted(by_shape[shape], key=lambda t: -t.ratio), 1)
    )
