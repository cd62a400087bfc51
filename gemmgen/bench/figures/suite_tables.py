"""The record of a suite as tables: rich ones for a terminal, and Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich import box
from rich.markup import escape
from rich.table import Table

from gemmgen.bench.result_log import Refused, ResultLog
from gemmgen.bench.suite_figures import (
    ALL,
    BEST,
    FIRST,
    GROUPS,
    RatioFigures,
    SuiteObservation,
    grouped,
    points_of,
    winners_of,
)
from gemmgen.literals import visible
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.contest import Contest

NONE: Final = "\N{EN DASH}"
SLOWEST: Final = 12
"""Number of shapes in the table of the slowest ones."""
MOST_KERNELS: Final = 30
"""Greatest number of kernels in a table; a planner that chooses for each shape has hundreds."""


def suite_tables(log: ResultLog) -> Iterator[Table]:
    """Yield the tables of each contest: the best kernel by groups of M, all kernels, and the slowest shapes.

    Figures of the best kernel are from its own pairs with the baseline; those of the others are from the
    rounds.
    """
    points = points_of(log)
    for contest, facts in log.contests.items():
        figures = grouped(points, contest)
        if not figures:
            continue
        winners = {shape: kernel for (where, shape), kernel in winners_of(log).items() if where == contest}
        best = [point for point in points if point.contest == contest and point.kernel == BEST]
        yield _best_table(facts.description, facts.baseline, figures)
        yield _kernel_table(figures, Counter(winners.values()))
        yield _slowest_table(best, winners)
    refused = [line for line in log.current() if isinstance(line, Refused)]
    if refused:
        yield _refusal_table(log, refused)


def suite_markdown(log: ResultLog) -> str:
    """Return the figures of the best kernels by groups of M as a Markdown table for each contest."""
    points, lines = points_of(log), list[str]()
    for contest, facts in log.contests.items():
        figures = grouped(points, contest)
        if BEST in figures:
            rows = list(_best_rows(figures[BEST]))
            rule = ["---", *["---:"] * (len(BEST_COLUMNS) - 1)]
            lines += ["", f"{_best_title(facts.description, figures)}, over {facts.baseline}:", ""]
            lines += [f"| {' | '.join(row)} |" for row in (BEST_COLUMNS, rule, *rows)]
    return "\n".join((*lines[1:], ""))


BEST_COLUMNS: Final = ("M", "shapes", "geomean", "minimum", "at", "share >= 1")


def _best_title(name: str, figures: Mapping[str, Mapping[str, RatioFigures]]) -> str:
    kernels = sum(kernel != BEST and not kernel.endswith(FIRST) for kernel in figures)
    return f"{name}: the best of {kernels} kernels" if kernels > 1 else f"{name}: one kernel"


def _best_rows(groups: Mapping[str, RatioFigures]) -> Iterator[tuple[str, ...]]:
    for group, found in groups.items():
        numbers = f"{found.geomean:.3f}", f"{found.minimum:.3f}"
        yield group, str(found.count), *numbers, shape_text(found.worst), f"{found.share:.0%}"


def _table(title: str, *columns: str) -> Table:
    """Return a table with text in its first column and numbers in the others."""
    table = Table(
        title=_plain(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        table.add_column(_plain(column), justify="right" if index else "left", no_wrap=True)
    return table


def _plain(text: str) -> str:
    """Return text for a table, without markup and control characters."""
    return escape(visible(text))


def _add(table: Table, *cells: str) -> None:
    """Add a row of text to a table."""
    table.add_row(*map(_plain, cells))


def _best_table(name: str, baseline: str, figures: Mapping[str, Mapping[str, RatioFigures]]) -> Table:
    table = _table(f"{_best_title(name, figures)}, over {baseline}", *BEST_COLUMNS)
    for row in _best_rows(figures.get(BEST, {})):
        _add(table, *row)
    return table


def _kernel_table(figures: Mapping[str, Mapping[str, RatioFigures]], won: Mapping[str, int]) -> Table:
    groups = [group for group in GROUPS if any(group in found for found in figures.values())]
    which = f", of the {MOST_KERNELS} that were best the most often" if len(figures) > MOST_KERNELS else ""
    table = _table(
        f"geometric means by M{which}", "kernel", "shapes", "best at", *groups, "minimum", "share >= 1"
    )
    shown = sorted(figures, key=lambda kernel: -won.get(kernel, 0))[:MOST_KERNELS]
    for kernel, found in figures.items():
        if kernel not in shown and kernel != BEST and not kernel.endswith(FIRST):
            continue
        cells = (f"{found[group].geomean:.3f}" if group in found else NONE for group in groups)
        every = found[ALL]
        places = str(won.get(kernel, 0)) if kernel != BEST else NONE
        ends = f"{every.minimum:.3f}", f"{every.share:.0%}"
        _add(table, kernel, str(every.count), places, *cells, *ends)
    return table


def _slowest_table(best: Sequence[SuiteObservation], winners: Mapping[Shape, str]) -> Table:
    """Return the shapes with the least ratios of the best kernel, and the baseline's kernels there."""
    columns = "M x N x K", "ratio [quartiles]", "us", "baseline's", "best kernel", "baseline's kernels"
    table = _table(f"the {SLOWEST} slowest shapes beside the baseline", *columns)
    for point in sorted(best, key=lambda point: point.ratio)[:SLOWEST]:
        ends = ", ".join(f"{quartile:.3f}" for quartile in point.measured_spread.quartiles)
        times = f"{point.seconds * 1e6:.1f}", f"{point.baseline_seconds * 1e6:.1f}"
        kernels = winners[point.shape], ", ".join(map(short_name, point.baseline_kernels))
        cells = shape_text(point.shape), f"{point.ratio:.3f} [{ends}]", *times, *kernels
        _add(table, *cells)
    return table


def _refusal_table(log: ResultLog, refused: Sequence[Refused]) -> Table:
    """Return the kernels that were not timed, one row for each reason, with its first shape."""
    table = _table("not timed", "contest", "kernel", "shapes", "the first", "why")
    together: dict[tuple[Contest, str, str], list[Shape]] = {}
    for line in refused:
        together.setdefault((line.contest, line.kernel, line.message), []).append(line.shape)
    for (contest, kernel, message), shapes in together.items():
        what = log.contests[contest].description
        cells = what, kernel, str(len(shapes)), shape_text(shapes[0]), message
        _add(table, *cells)
    return table


def short_name(kernel: str) -> str:
    """Return a kernel's name without its return type, namespaces, arguments and cuBLAS's own name."""
    bare = re.split(r"[<(]", kernel.removeprefix("void "))[0].rpartition("::")[2]
    return bare.removeprefix("nvjet_")
