"""Comparison of predicted with measured times: by rank within a shape, by ratio over all shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.fit.observations import Candidates, SpecObservation
from gemmgen.bench.suite_figures import group_of

NEAR = 1.05
"""Factor to the fastest kernel's time within which a first choice counts as equally good."""
Predicted = Callable[[SpecObservation], float]


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the rank correlation of two sequences of equal length; 0 if one of them is constant."""
    ranks = [_ranks(values) for values in (left, right)]
    middle = (len(left) - 1) / 2
    a, b = ([rank - middle for rank in each] for each in ranks)
    both = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / both if both else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the place of each value in ascending order, equal ones the mean of theirs."""
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]


@dataclass(frozen=True)
class Agreement:
    """Quality of the model's ranking of the candidates of one shape."""

    m: int
    rank_correlation: float
    first_over_best: float
    """The measured time of the kernel that is predicted to be the fastest, over that of the fastest."""
    predicted_over_measured: float
    """Geometric mean over the candidates."""


def agreement(candidates: Candidates, predicted: Predicted = lambda found: found.predicted) -> Agreement:
    """Compare the candidates of a shape, at least two."""
    expected, measured = [predicted(each) for each in candidates], [each.seconds for each in candidates]
    first = expected.index(min(expected))
    logs = [math.log(own / real) for own, real in zip(expected, measured, strict=True)]
    return Agreement(
        candidates[0].shape[0],
        spearman(expected, measured),
        measured[first] / min(measured),
        math.exp(math.fsum(logs) / len(logs)),
    )


@dataclass(frozen=True)
class Summary:
    """Summary of the agreement over several shapes."""

    shapes: int
    rank_correlation: float
    """Median."""
    near: float
    """Share of the shapes whose first choice takes at most ``NEAR`` times as long as the fastest."""
    first_over_best: float
    """Geometric mean."""
    predicted_over_measured: float
    spread: float
    """Standard deviation of its logarithm over the shapes."""


def summary(found: Iterable[Agreement]) -> Summary:
    """Summarize at least one shape."""
    each = list(found)
    ratios = [math.log(one.predicted_over_measured) for one in each]
    mean = math.fsum(ratios) / len(each)
    return Summary(
        len(each),
        median(one.rank_correlation for one in each),
        sum(one.first_over_best <= NEAR for one in each) / len(each),
        math.exp(math.fsum(math.log(one.first_over_best) for one in each) / len(each)),
        math.exp(mean),
        math.sqrt(math.fsum((ratio - mean) ** 2 for ratio in ratios) / len(each)),
    )


def by_group(found: Iterable[Agreement]) -> dict[str, Summary]:
    """Return a summary for each group of M that occurs, and for all."""
    groups: dict[str, list[Agreement]] = {}
    for one in sorted(found, key=lambda one: one.m):
        groups.setdefault(group_of(one.m), []).append(one)
    everything = [one for group in groups.values() for one in group]
    return {name: summary(group) for name, group in groups.items()} | {"all": summary(everything)}


def table(groups: dict[str, Summary]) -> str:
    """Return summaries as a table of Markdown, which is readable as it is."""
    rows = [["M", "shapes", "Spearman", "first near best", "first over best", "predicted over measured"]]
    rows += [
        [
            name,
            str(found.shapes),
            f"{found.rank_correlation:.3f}",
            f"{found.near:.0%}",
            f"{found.first_over_best:.3f}",
            f"{found.predicted_over_measured:.3f} +- {found.spread:.1%}",
        ]
        for name, found in groups.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(map(str.rjust, row, widths)) for row in rows]
    rule = " | ".join(f"{'-' * (width - 1)}:" for width in widths)
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))
