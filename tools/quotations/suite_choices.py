"""The record of a suite, read for tables: each spec's best kernel and first choice, and groups of shapes."""

from __future__ import annotations

import re

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


def shapes_of_layers(log: ResultLog) -> set[Shape]:
    """Return the shapes of weights: N and K that are timed at the most M, without those of SPLIT_FAMILY."""
    rows: dict[tuple[int, int], set[int]] = {}
    apart = shapes_of_all_k(log)
    for line in log.current():
        if isinstance(line, Result) and line.shape not in apart:
            rows.setdefault(line.shape[1:], set()).add(line.shape[0])
    most = max(map(len, rows.values()))
    return {(m, *pair) for pair, extents in rows.items() if len(extents) == most for m in extents}


def brief_label(kernel: str) -> str:
    """Return a kernel's tile, its CTAs on an SM and its splits: ``16x64x128 ·2 /4``.

    An ``s`` after the tile means staggered, ``pp`` ping-pong, and ``(2x1)`` is the cluster.
    """
    label = kernel.partition(": ")[2]
    tile = re.search(r"(\d+) x (\d+) x (\d+)", label)
    assert tile
    ctas, splits = re.search(r"occupancy (\d+)", label), re.search(r"K split by (\d+)", label)
    cluster = re.search(r"cluster (\d) x (\d)", label)
    return "".join(
        (
            "x".join(tile.groups()),
            "s" if "staggered" in label else "",
            " pp" if label.startswith("ping-pong") else "",
            f" ({cluster[1]}x{cluster[2]})" if cluster else "",
            f" ·{ctas[1]}" if ctas else "",
            f" /{splits[1]}" if splits else "",
        )
    )
