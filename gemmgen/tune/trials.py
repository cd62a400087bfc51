"""Jobs and their results.

A *job* is a kernel to measure against another one on a rung, and a *trial* is its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gemmgen.bench.record import Spread
from gemmgen.bench.result_log import ratios
from gemmgen.kinds import OneLine, Seconds, Share


@dataclass(frozen=True)
class Job:
    """A kernel to be measured, by the hashes of modules."""

    kernel: OneLine
    rung: int
    """Rung of the search, which decides the number of rounds."""
    against: OneLine
    """Hash of the kernel that it is compared with."""


@dataclass(frozen=True)
class TrialSamples:
    """Samples of a trial, in seconds per call: the kernel, the kernel it is compared with, and the baseline.

    The class is separate from ``Observation``, which has medians of two arms: a search compares kernels with
    one another, sample by sample.
    """

    seconds: tuple[Seconds, ...]
    against_seconds: tuple[Seconds, ...]
    baseline_seconds: tuple[Seconds, ...]
    relative_error: Share
    machine: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    """Clock, power and temperature during the samples."""

    def __post_init__(self) -> None:
        lengths = {len(arm) for arm in (self.seconds, self.against_seconds, self.baseline_seconds)}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError("all arms need the same number of samples, at least one")

    @property
    def against_spread(self) -> Spread:
        """Spread of the other kernel's time over this kernel's: above 1, this kernel is faster."""
        return ratios(self.against_seconds, self.seconds)

    @property
    def baseline_spread(self) -> Spread:
        """Spread of the baseline's time over this kernel's: above 1, this kernel is faster."""
        return ratios(self.baseline_seconds, self.seconds)


Why = Literal["cannot", "wrong", "failed", "impossible", "out-of-memory"]
"""Reasons why a kernel takes no part."""


@dataclass(frozen=True)
class Trial:
    """Result of a job: samples, or the reason why there are none."""

    gpu_seconds: Share
    date: OneLine
    """UTC time at which the trial ended."""
    samples: TrialSamples | None = None
    why: Why | None = None
    message: OneLine = ""
