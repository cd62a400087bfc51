"""The measured time of a kernel on a shape, beside a baseline: the only class of a measured time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gemmgen.problem.extents import Shape
from gemmgen.problem.groups import Groups

Name = TypeVar("Name")


@dataclass(frozen=True)
class Spread:
    """A distribution in five numbers, and its median in each repetition."""

    median: float
    quartiles: tuple[float, float]
    extremes: tuple[float, float]
    repetitions: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[Sequence[float]]) -> Spread:
        """Summarize samples; quartiles are interpolated between them (``inclusive``)."""
        values = [value for repetition in samples for value in repetition]
        lower, median, upper = (
            statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        )
        medians = tuple(statistics.median(repetition) for repetition in samples)
        return cls(median, (lower, upper), (min(values), max(values)), medians)


def ratios(baseline: Sequence[float], ours: Sequence[float]) -> Spread:
    """Return the baseline's time over ours of each pair of samples: above 1, we are faster."""
    return ratios_of_repetitions([baseline], [ours])


def ratios_of_repetitions(baseline: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]) -> Spread:
    """Return the same of samples that were taken in several repetitions."""
    return Spread.of(
        [
            [their / own for their, own in zip(theirs, mine, strict=True)]
            for theirs, mine in zip(baseline, ours, strict=True)
        ]
    )


@dataclass(frozen=True)
class Observation(Generic[Name]):
    """Measured times of a kernel and a baseline on a problem [M, N, K]: medians in seconds, per call.

    A kernel is known by a name, or is the kernel itself.
    """

    shape: Shape
    kernel: Name
    seconds: float
    baseline_seconds: float
    spread: Spread | None = None
    """Spread of the ratio, pair by pair; None if only medians are known."""
    operations: int | None = None
    """Operations of the product; None if it is one matmul [M, N, K]."""

    @property
    def flops(self) -> int:
        """The operations of the product."""
        return flops(self.shape) if self.operations is None else self.operations

    @property
    def ratio(self) -> float:
        """The baseline's time over the kernel's: above 1, the kernel is faster.

        It is the median over pairs of samples, where these are known: what both share cancels in a pair.
        """
        return self.spread.median if self.spread else self.baseline_seconds / self.seconds

    @property
    def measured_spread(self) -> Spread:
        """The spread of the ratio; raises ValueError where only medians are known."""
        if self.spread is None:
            raise ValueError("only medians are known")
        return self.spread

    @property
    def tflops(self) -> float:
        """The kernel's rate at its median time, TFLOP/s."""
        return self.flops / self.seconds / 1e12

    @property
    def baseline_tflops(self) -> float:
        """The baseline's rate at its median time, TFLOP/s."""
        return self.flops / self.baseline_seconds / 1e12


def flops(shape: Shape, b_blocks: int = 1, groups: Groups | None = None) -> int:
    """Return the operations of a product: one multiplication and one addition for each m, n, k.

    B has `b_blocks` blocks of N columns. Rows, or K, that are of no group count nothing.
    """
    m, n, k = shape
    # Groups that divide K have one depth together, and all others one K each.
    rows = groups.filled(m)[1] if groups and not groups.divides_k else m
    return 2 * b_blocks * n * rows * k
