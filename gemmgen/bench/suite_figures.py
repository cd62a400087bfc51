"""The figures of a suite's record: by kernel, by group of M, and the errors that cannot be true."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from gemmgen.bench.result_log import Refused, Result, ResultLog, observed
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.contest import Contest
from gemmgen.problem.observation import Observation, ratios

BOUNDS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Largest M of each group; a last group has all larger M."""
SPLIT_K: Final = "split K"
"""The group of shapes, of any M, for which the baseline splits K."""
ALL: Final = "all"
BEST: Final = "best"
"""Stands for the winner of the rounds on each shape, with the figures of its pairs with the baseline."""
FIRST: Final = ": the planner's first choice"
"""Suffix of a spec's name: stands for the kernels that its planner ranks first, before any measurement."""


def group_of(m: int) -> str:
    """Return the group of an M: ``17-32``."""
    lower = 1
    for upper in BOUNDS:
        if m <= upper:
            return f"{lower}-{upper}"
        lower = upper + 1
    return f"{lower}-"


GROUPS: Final = (*(group_of(bound) for bound in BOUNDS), group_of(BOUNDS[-1] + 1), SPLIT_K, ALL)


@dataclass(frozen=True, kw_only=True)
class SuiteObservation(Observation[str]):
    """An observation of a suite, with the contest and the groups over which it is summarized."""

    contest: Contest
    splits_k: bool
    baseline_kernels: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups that include the observation."""
        return (group_of(self.shape[0]), *((SPLIT_K,) if self.splits_k else ()), ALL)


@dataclass(frozen=True)
class RatioFigures:
    """Summary of the ratios to the baseline of one kernel over several shapes.

    ``library.SelectionFigures`` summarizes a choice among many kernels, also against the best one.
    """

    count: int
    geomean: float
    minimum: float
    worst: Shape
    share: float
    """Share of the shapes on which the kernel is at least as fast as the baseline."""

    @classmethod
    def of(cls, observations: Iterable[Observation[str]]) -> RatioFigures | None:
        """Summarize the ratios of observations; None without observations."""
        found = sorted((each.ratio, each.shape) for each in observations)
        if not found:
            return None
        values = [ratio for ratio, _ in found]
        geomean = math.exp(math.fsum(map(math.log, values)) / len(values))
        share = sum(ratio >= 1 for ratio in values) / len(values)
        return cls(len(values), geomean, values[0], found[0][1], share)


def points_of(log: ResultLog) -> list[SuiteObservation]:
    """Return an observation of every kernel on every shape of the rounds.

    They include those of ``BEST``, and of the kernel that a spec's planner ranks first (``FIRST``).
    """
    own: dict[tuple[Contest, Shape, str], SuiteObservation] = {}
    best: dict[tuple[Contest, Shape], tuple[SuiteObservation, str]] = {}
    for line in log.current():
        if not isinstance(line, Result):
            continue
        for arm in line.kernels:
            own[line.contest, line.shape, arm.kernel] = _point(log, line, line.observed(arm))
        if line.playoff:
            pairs = line.playoff
            found = observed(line.shape, BEST, pairs.seconds, pairs.baseline_seconds)
            point = _point(log, line, found)
            before = best.get(place := (line.contest, line.shape))
            if before is None or before[0].ratio < point.ratio:
                best[place] = point, pairs.kernel
    first = (
        replace(own[contest, shape, choice.kernels[0]], kernel=f"{spec}{FIRST}")
        for (contest, shape, spec), choice in log.choices.items()
        if choice.kernels and (contest, shape, choice.kernels[0]) in own
    )
    return [*(point for point, _ in best.values()), *first, *own.values()]


def _point(log: ResultLog, line: Result, found: Observation[str]) -> SuiteObservation:
    dtypes = log.contests[line.contest].dtypes
    return SuiteObservation(
        **vars(replace(found, operations=dtypes.flops(line.shape))),
        contest=line.contest,
        # With groups, the second kernel that torch launches prepares its arguments.
        splits_k=line.splits_k and dtypes.groups is None,
        baseline_kernels=line.baseline_kernels,
    )


def winners_of(log: ResultLog) -> dict[tuple[Contest, Shape], str]:
    """Return which kernel the figures of ``BEST`` are of."""
    found: dict[tuple[Contest, Shape], tuple[float, str]] = {}
    for line in log.current():
        if isinstance(line, Result) and line.playoff:
            ratio = ratios(line.playoff.baseline_seconds, line.playoff.seconds).median
            place = (line.contest, line.shape)
            found[place] = max(found.get(place, (0.0, "")), (ratio, line.playoff.kernel))
    return {place: kernel for place, (_, kernel) in found.items()}


def errors_of(log: ResultLog) -> list[str]:
    """Return what cannot be true or must not be: faster than the datasheet, wrong, failed."""
    found: list[str] = []
    contests = log.contests
    for point in points_of(log):
        contest = contests[point.contest]
        if contest.peak is None:
            continue
        least = contest.peak.seconds(
            contest.dtypes.flops(point.shape), contest.dtypes.moved_bytes(point.shape)
        )
        for arm, seconds in ((point.kernel, point.seconds), ("the baseline", point.baseline_seconds)):
            if seconds < least:
                place = f"{contest.description} {shape_text(point.shape)}"
                found.append(f"{place}: {arm} at {least / seconds:.2f} of the datasheet: do not believe it")
    for line in log.current():
        if isinstance(line, Refused) and line.why != "cannot":
            place = f"{contests[line.contest].description} {shape_text(line.shape)}"
            found.append(f"{place}: {line.kernel} {WHY[line.why]}: {line.message}")
    return list(dict.fromkeys(found))


WHY: Final = MappingProxyType({"cannot": "cannot", "wrong": "is wrong", "failed": "failed"})


def report_of(log: ResultLog) -> dict[str, object]:
    """Return the figures as plain data for JSON."""
    points, winners = points_of(log), winners_of(log)
    return {
        "contests": [
            {
                "contest": asdict(contest),
                "description": facts.description,
                "baseline": facts.baseline,
                "groups": {
                    kernel: {group: _plain(found) for group, found in groups.items()}
                    for kernel, groups in grouped(points, contest).items()
                },
                "shapes": [
                    {
                        "shape": list(point.shape),
                        "ratio": point.ratio,
                        "quartiles": list(point.measured_spread.quartiles),
                        "kernel": winners[contest, point.shape],
                        "microseconds": point.seconds * 1e6,
                        "baseline_microseconds": point.baseline_seconds * 1e6,
                        "baseline_kernels": list(point.baseline_kernels),
                    }
                    for point in points
                    if point.contest == contest and point.kernel == BEST
                ],
            }
            for contest, facts in log.contests.items()
        ],
        "errors": errors_of(log),
    }


def _plain(found: RatioFigures) -> dict[str, object]:
    return {each.name: getattr(found, each.name) for each in fields(found)}


def grouped(points: Iterable[SuiteObservation], contest: Contest) -> dict[str, dict[str, RatioFigures]]:
    """Return the figures of a contest by kernel, ``BEST`` first, and by group; empty groups are left out."""
    of_kernel: dict[str, list[SuiteObservation]] = {}
    for point in points:
        if point.contest == contest:
            of_kernel.setdefault(point.kernel, []).append(point)
    return {
        kernel: {
            group: found
            for group in GROUPS
            if (found := RatioFigures.of(point for point in of_kernel[kernel] if group in point.groups))
        }
        for kernel in sorted(of_kernel, key=lambda name: (name != BEST, not name.endswith(FIRST), name))
    }
