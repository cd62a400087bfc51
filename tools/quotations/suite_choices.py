"""The record of a suite, read for tables: each spec's best kernel and first choice, and groups of shapes."""

from __future__ import annotations

from gemmgen.bench import ResultLog
from gemmgen.bench.result_log import Result
from gemmgen.bench.suite_figures import SuiteObservation, points_of
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest

SPLIT_FAMILY = "split_k"
"""Family of shapes with a small D and a long K: they count in no group of M."""


def chosen_kernels(
    log: ResultLog, contest: Contest
) -> dict[str, dict[Shape, tuple[SuiteObservation, SuiteObservation]]]:
    """Return by spec and shape the kernel that was the fastest in the rounds, and the first choice."""
    points = {(p.contest, p.shape, p.kernel): p for p in points_of(log)}
    found: dict[str, dict[Shape, tuple[SuiteObservation, SuiteObservation]]] = {}
    for (where, shape, spec), choice in sorted(log.choices.items()):
        timed = [points[key] for kernel in choice.kernels if (key := (where, shape, kernel)) in points]
        if where == contest and timed:
            best = max(timed, key=lambda point: point.ratio)
            found.setdefault(spec, {})[shape] = best, points[where, shape, choice.kernels[0]]
    return found


def shapes_of_all_k(log: ResultLog) -> set[Shape]:
    """Return the shapes of SPLIT_FAMILY."""
    return {
        line.shape for line in log.current() if isinstance(line, Result) and SPLIT_FAMILY in line.families
    }
