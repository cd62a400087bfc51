"""Records as tables and as pictures; matplotlib is imported only here, and only when a picture is drawn."""

from __future__ import annotations

import importlib
import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.markup import escape
from rich.table import Table

from gemmgen.bench.record import Ceilings, Measurement, Record, Spread, flops
from gemmgen.bench.result_log import Peer, Refused, ResultLog, ratios
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
from gemmgen.errors import Diagnostic, GemmgenError, install_advice
from gemmgen.literals import visible
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.contest import Contest

TEXT_COLUMNS: Final = 2
"""Columns on the left that hold words; the others hold numbers and are aligned on the right."""

METADATA: Final = {"svg": {"Date": None, "Creator": "gemmgen"}, "png": {"Software": "gemmgen"}}
"""By file type; without a date and matplotlib's version."""
FASTER, SLOWER, INK, GRID, PAPER = "#1a6fb5", "#b5541a", "#333333", "#dddddd", "#ffffff"
IN_THE_DARK: Final = {
    FASTER: "#58a6ff",
    SLOWER: "#f0883e",
    INK: "#d0d7de",
    GRID: "#30363d",
    PAPER: "#0d1117",
}
"""What each colour of an .svg becomes where the reader prefers a dark scheme."""
STYLE: Final = {
    "text.parse_math": False,  # a name may have dollars in it
    "svg.hashsalt": "gemmgen",  # names of clip paths, random by default
    "svg.fonttype": "none",  # text stays text: small, and a test can read it
    "font.family": ["DejaVu Sans", "sans-serif"],  # the first comes with matplotlib, so its widths are known
    "font.size": 9,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
GAP: Final = "\N{EM SPACE}"
"""Within a text of a plot: of several plain spaces an .svg shows one."""
ROW_INCHES: Final = 0.26
MARGIN_INCHES: Final = 1.1
LEAST_RATIO, MOST_RATIO = 0.8, 1.25
"""The axis ends here at the latest: what lies beyond is an arrow at its end, and its number is beside it."""
AXIS_MARGIN: Final = 0.01


def markdown_table(records: Sequence[Record]) -> str:
    """Return a Markdown table, a row for each measurement, and what in it cannot be true.

    Rates are at the median time. The ratio is the baseline's time over gemmgen's, the median of the pairs:
    more than 1 is faster. The baseline is named where it is cuBLAS throughout.
    """
    header = _header(records)
    rule = ["---"] * TEXT_COLUMNS + ["---:"] * (len(header) - TEXT_COLUMNS)
    lines = [f"| {' | '.join(row)} |" for row in (header, rule, *_rows(records))]
    return "\n".join((*lines, *(f"\n{error}" for error in _errors(records)))) + "\n"


def plain_table(records: Sequence[Record]) -> str:
    """Return the same table in columns of plain text."""
    rows = [_header(records), *_rows(records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index < TEXT_COLUMNS else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join((*lines, *_errors(records))) + "\n"


def plot(records: Sequence[Record], path: Path) -> None:
    """Write a plot of each measurement's ratio to the baseline, with its quartiles, to an .svg or .png file.

    With the same matplotlib the same records give the same bytes. An .svg follows the reader's dark scheme.

    Raises GemmgenError: ``missing-package`` without matplotlib; ``bad-plot`` for another suffix, for records
    without a measurement, and for a path that cannot be written.
    """
    _refuse_suffix(path)
    rows = [(record, measurement) for record in records for measurement in record.measurements]
    if not rows:
        raise _error(path, "bad-plot", "there is no measurement to plot")
    _save(partial(_figure, rows), path)


def ratio_picture(log: ResultLog, path: Path) -> None:
    """Draw over M how the best kernel of each shape of a suite compares, a panel for each contest.

    The line is the median over the shapes of an M, the band goes from quartile to quartile. What lies beyond
    the axis is an arrow at its end with its number. The same bytes and errors as those of ``plot``.
    """
    _refuse_suffix(path)
    panels = _panels(log, path)
    peers = [line for line in log.lines if isinstance(line, Peer) and line.seconds]
    _save(partial(_ratio_figure, log, panels, peers), path)


def roofline_picture(log: ResultLog, path: Path) -> None:
    """Draw the rates of the best kernel and of the baseline over FLOPs per byte, under the GPU's ceilings.

    The same bytes and errors as those of ``plot``.
    """
    _refuse_suffix(path)
    _save(partial(_roofline_figure, log, _panels(log, path)), path)


def _panels(log: ResultLog, path: Path) -> dict[Contest, list[SuiteObservation]]:
    """Return the points of the best kernels by contest, in the order of their shapes."""
    points = sorted((p for p in points_of(log) if p.kernel == BEST), key=lambda p: p.shape)
    panels = {contest: [p for p in points if p.contest == contest] for contest in log.contests}
    found = {contest: members for contest, members in panels.items() if members}
    if not found:
        raise _error(path, "bad-plot", "there is no measurement to plot")
    return found


def _refuse_suffix(path: Path) -> None:
    if path.suffix.lower().removeprefix(".") not in METADATA:
        raise _error(path, "bad-plot", "the name must end in .svg or .png")


def _save(draw: Callable[[], Any], path: Path) -> None:
    """Write the figure that a function draws; an .svg with its dark scheme."""
    kind = path.suffix.lower().removeprefix(".")
    matplotlib = _matplotlib(path)
    image = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not what this machine's matplotlibrc says
        matplotlib.rcParams.update(STYLE)
        draw().savefig(image, format=kind, dpi=200, metadata=METADATA[kind])
    content = image.getvalue()
    try:
        path.write_bytes(_with_dark_scheme(content) if kind == "svg" else content)
    except OSError as error:
        raise _error(path, "bad-plot", f"cannot write the plot: {error}") from error


def label_of(record: Record, measurement: Measurement) -> str:
    """Return what names a row among those of several specs: the spec and M x N x K."""
    return f"{record.subject.name}{GAP}{shape_text(measurement.shape)}"


def figures_text(measurement: Measurement) -> str:
    """Return a row's figures: the median ratio, and both rates."""
    found = measurement.observed()
    rates = f"{_rate_text(found.tflops)} vs {_rate_text(found.baseline_tflops)} TFLOP/s"
    return f"{found.ratio:.3f}{GAP}{rates}"


def axis_limits(ratios: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis that has 1 and these ratios on it, but for those that are far from 1."""
    shown = [1.0, *(min(max(ratio, LEAST_RATIO), MOST_RATIO) for ratio in ratios)]
    return min(shown) - AXIS_MARGIN, max(shown) + AXIS_MARGIN


# --- the record of a suite as tables

NONE: Final = "\N{EN DASH}"
SLOWEST: Final = 12
"""Shapes of a table that shows where to look."""
MOST_KERNELS: Final = 30
"""In a table; a planner that chooses for each shape has hundreds."""


def suite_tables(log: ResultLog) -> Iterator[Table]:
    """Yield for each contest the best kernel's figures by groups of M, and the geometric means of every one.

    The figures of the best are of pairs of its own with the baseline, shape by shape; those of the others
    are of the rounds.
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
    peers = [line for line in log.lines if isinstance(line, Peer)]
    if peers:
        best = {(point.contest, point.shape): point for point in points if point.kernel == BEST}
        yield _peer_table(log, peers, best)


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
    """Return a table of words in its first column and numbers in the others."""
    table = Table(
        title=_plain(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        table.add_column(_plain(column), justify="right" if index else "left", no_wrap=True)
    return table


def _plain(text: str) -> str:
    """Return text for a table in which nothing is markup, and nothing is what a terminal obeys."""
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
    """Return the shapes at which the best kernel compares worst, with what the baseline launches there."""
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
    """Return what was not timed, with the first shape of those that have the same reason."""
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


def _peer_table(
    log: ResultLog, peers: Sequence[Peer], best: Mapping[tuple[Contest, Shape], SuiteObservation]
) -> Table:
    """Return each peer beside the best kernel, both over the baseline in their own processes."""
    names = ", ".join(dict.fromkeys(line.name for line in peers))
    columns = "contest", "M x N x K", "peer", "best", "best over peer", "tuning s", "kernels"
    table = _table(f"peers: {names}", *columns)
    for line in peers:
        place = log.contests[line.contest].description, shape_text(line.shape)
        ours = best.get((line.contest, line.shape))
        own = f"{ours.ratio:.3f}" if ours else NONE
        if line.why_not:
            _add(table, *place, NONE, own, NONE, NONE, line.why_not)
            continue
        theirs = ratios(line.baseline_seconds, line.seconds).median
        over = f"{ours.ratio / theirs:.3f}" if ours else NONE
        _add(table, *place, f"{theirs:.3f}", own, over, f"{line.tuning_seconds:.1f}", ", ".join(line.kernels))
    return table


# --- rows of text


def _baseline_name(records: Sequence[Record]) -> str:
    """Return what the records compare with, in a word: cuBLAS, unless gemmgen's own kernels are among it."""
    return "baseline" if any(record.baseline.startswith("gemmgen") for record in records) else "cuBLAS"


def _header(records: Sequence[Record]) -> tuple[str, ...]:
    baseline = _baseline_name(records)
    return "spec", "M x N x K", "gemmgen TFLOP/s", f"{baseline} TFLOP/s", "ratio [quartiles]"


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for record in records:
        for measurement in record.measurements:
            yield (
                record.subject.name,
                shape_text(measurement.shape),
                _rate_text(measurement.observed().tflops),
                _rate_text(measurement.observed().baseline_tflops),
                _ratio_text(measurement),
            )


def _errors(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        yield from record.errors


def _ratio_text(measurement: Measurement) -> str:
    """Return the median ratio with its quartiles: ``1.043 [1.038, 1.047]``."""
    ratio = measurement.observed().measured_spread
    lower, upper = ratio.quartiles
    return f"{ratio.median:.3f} [{lower:.3f}, {upper:.3f}]"


def _rate_text(tflops: float) -> str:
    """Return a rate to a tenth of a TFLOP/s, and small ones to three digits."""
    return f"{tflops:.1f}" if tflops >= 10 else f"{tflops:.3g}"


# --- drawing


def _matplotlib(path: Path) -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        message = f"plots need matplotlib: {install_advice('plot')}"
        raise _error(path, "missing-package", message) from error


def _figure(rows: Sequence[tuple[Record, Measurement]]) -> Any:
    """Draw a row for each measurement, the first on top: its ratio, its quartiles, and both rates as text."""
    specs = {record.subject.name for record, _ in rows}
    figure_module: Any = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(8, MARGIN_INCHES + ROW_INCHES * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(1.0, color=INK, linewidth=0.8, zorder=1)
    limits = axis_limits(measurement.observed().ratio for _, measurement in rows)
    labels: list[str] = []
    for row, (record, measurement) in enumerate(rows):
        _draw_row(axes, row, measurement, limits)
        labels.append(shape_text(measurement.shape) if len(specs) == 1 else label_of(record, measurement))
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(*limits)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    baseline = _baseline_name([record for record, _ in rows])
    whose = "cuBLAS's" if baseline == "cuBLAS" else "the baseline's"
    off_axis = any(not limits[0] <= measurement.observed().ratio <= limits[1] for _, measurement in rows)
    beyond = "; an arrow leads beyond" if off_axis else ""
    axes.set_xlabel(f"throughput over {whose} (1.00): median and quartiles of the pair ratios{beyond}")
    gpus = sorted({record.environment.gpu for record, _ in rows})
    subject = f"{next(iter(specs))} on " if len(specs) == 1 else ""  # several are named row by row
    axes.set_title(f"{subject}{', '.join(gpus)}, sustained", loc="left", color=INK)
    return figure


def _draw_row(axes: Any, row: int, measurement: Measurement, limits: tuple[float, float]) -> None:
    ratio = measurement.observed().measured_spread
    color = FASTER if ratio.median >= 1 else SLOWER
    if limits[0] <= ratio.median <= limits[1]:
        axes.hlines(row, *ratio.quartiles, color=color, linewidth=3, alpha=0.45)
        axes.plot(ratio.median, row, "o", color=color, markersize=5)
    else:
        end, arrow = (limits[1], ">") if ratio.median > 1 else (limits[0], "<")
        axes.hlines(row, 1.0, end, color=color, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.plot(end, row, arrow, color=color, markersize=7, clip_on=False)
    place: dict[str, Any] = {"xy": (1.04, row), "xycoords": ("axes fraction", "data")}
    text = figures_text(measurement)
    axes.annotate(text, va="center_baseline", color=INK, annotation_clip=False, **place)


# --- drawing the record of a suite

PANEL_INCHES: Final = 3.4
LEGEND_INCHES: Final = 0.9
RATIO_TICKS: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
"""What can be on the axis of ratios; it ends at the first and the last at the latest."""
SPREAD: Final = 0.16
"""How far, in octaves of M, the points of one M are drawn apart."""


def ratio_limits(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of the axis: the nearest ticks around the points, and 0.8 and 1.25 at least."""
    found = [LEAST_RATIO, MOST_RATIO, *values]
    lower = max((tick for tick in RATIO_TICKS if tick <= min(found)), default=RATIO_TICKS[0])
    upper = min((tick for tick in RATIO_TICKS if tick >= max(found)), default=RATIO_TICKS[-1])
    return lower, upper


def _subplots(count: int) -> tuple[Any, list[Any]]:
    """Return a figure with a panel below the other, each without a frame on top and on the right."""
    figure_module: Any = importlib.import_module("matplotlib.figure")
    size = (8, PANEL_INCHES * count + LEGEND_INCHES)
    figure = figure_module.Figure(figsize=size, layout="constrained")
    panels: list[Any] = list(figure.subplots(count, 1, squeeze=False)[:, 0])
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.minorticks_off()
    return figure, panels


def _finished(figure: Any, panels: list[Any], log: ResultLog, note: str) -> Any:
    """Add what all panels share: the legend of the first one, and where the figures are from."""
    handles, labels = panels[0].get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "ncols": 3, "labelcolor": INK}
    figure.legend(handles, labels, **place)
    environment = log.sessions[-1].environment
    versions = f"torch {environment.torch}, Triton {environment.triton}, driver {environment.driver}"
    figure.supxlabel(f"{environment.gpu}, sustained; {versions}{note}", fontsize=7, color=INK)
    return figure


def _ratio_figure(
    log: ResultLog, panels: Mapping[Contest, list[SuiteObservation]], peers: Sequence[Peer]
) -> Any:
    figure, drawn = _subplots(len(panels))
    for axes, (contest, points) in zip(drawn, panels.items(), strict=True):
        limits = ratio_limits(point.ratio for point in points)
        _draw_band(axes, points)
        _draw_points(axes, points, limits)
        _draw_peers(axes, [line for line in peers if line.contest == contest], limits)
        axes.axhline(1.0, color=INK, linewidth=0.8, zorder=1)
        axes.set_yscale("log")
        axes.set_ylim(*limits)
        ticks = [tick for tick in RATIO_TICKS if limits[0] <= tick <= limits[1]]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xscale("log", base=2)
        extents = sorted({1 << round(math.log2(point.shape[0])) for point in points})
        axes.set_xticks(extents, [str(extent) for extent in extents])
        axes.minorticks_off()
        figures = RatioFigures.of(points)
        assert figures is not None
        at_least = f"{figures.share:.0%} of {figures.count} shapes at 1 or above"
        title = f"{log.contests[contest].description}: geometric mean {figures.geomean:.3f}, {at_least}"
        axes.set_title(title, loc="left", color=INK)
        axes.set_ylabel("baseline's time over ours")
        axes.set_xlabel("M")
    return _finished(figure, drawn, log, "; an arrow leads to a shape beyond the axis")


def _draw_band(axes: Any, points: Sequence[SuiteObservation]) -> None:
    """Draw the median over the shapes of each M, and the quartiles."""
    by_m: dict[int, list[float]] = {}
    for point in points:
        by_m.setdefault(point.shape[0], []).append(point.ratio)
    several = {m: values for m, values in sorted(by_m.items()) if len(values) >= LEAST_OF_A_BAND}
    spreads = [Spread.of((tuple(values),)) for values in several.values()]
    lower, upper = ([each.quartiles[end] for each in spreads] for end in (0, 1))
    band = {"color": FASTER, "alpha": 0.18, "linewidth": 0, "label": "half of the shapes of an M"}
    axes.fill_between(list(several), lower, upper, zorder=2, **band)
    medians = [each.median for each in spreads]
    axes.plot(list(several), medians, color=FASTER, linewidth=1.6, zorder=3, label="their median")


LEAST_OF_A_BAND: Final = 3
"""Shapes of an M, for a band of quartiles to say something."""


def _draw_points(axes: Any, points: Sequence[SuiteObservation], limits: tuple[float, float]) -> None:
    """Draw each shape, those of an M beside each other; those beyond the axis as arrows at its end."""
    placed = list(_placed(points))
    for splits, color, label in (
        (False, FASTER, "a shape, by its best kernel"),
        (True, SLOWER, "the same, and the baseline splits K"),
    ):
        inside = [
            (x, point.ratio)
            for x, point in placed
            if point.splits_k == splits and limits[0] <= point.ratio <= limits[1]
        ]
        if inside:
            xs, ys = zip(*inside, strict=True)
            axes.plot(xs, ys, "o", color=color, alpha=0.75, markersize=3.2, zorder=4, label=label, mew=0)
    for x, point in placed:
        ratio = point.ratio
        if not limits[0] <= ratio <= limits[1]:
            end, marker = (limits[1], "^") if ratio > 1 else (limits[0], "v")
            color = SLOWER if point.splits_k else FASTER
            axes.plot(x, end, marker, color=color, markersize=6, clip_on=False, zorder=5)
            offset = (5, -3 if ratio > 1 else 3)
            place: dict[str, Any] = {"xy": (x, end), "xytext": offset, "textcoords": "offset points"}
            axes.annotate(f"{ratio:.2f}", color=INK, fontsize=7, va="center", **place)


def _placed(points: Sequence[SuiteObservation]) -> Iterator[tuple[float, SuiteObservation]]:
    """Yield where on the axis of M a point is drawn: side by side those of one M, in the order of N and K."""
    by_m: dict[int, list[SuiteObservation]] = {}
    for point in points:
        by_m.setdefault(point.shape[0], []).append(point)
    for m, members in by_m.items():
        for index, point in enumerate(members):
            share = index / (len(members) - 1) - 0.5 if len(members) > 1 else 0.0
            yield m * 2 ** (2 * SPREAD * share), point


def _draw_peers(axes: Any, peers: Sequence[Peer], limits: tuple[float, float]) -> None:
    """Draw what a peer reaches on a shape, at the end of the axis where it is beyond."""
    if peers:
        values = [ratios(line.baseline_seconds, line.seconds).median for line in peers]
        ys = [min(max(value, limits[0]), limits[1]) for value in values]
        style: dict[str, Any] = {"color": INK, "markerfacecolor": "none", "markersize": 5, "clip_on": False}
        xs = [line.shape[0] for line in peers]
        axes.plot(xs, ys, "D", zorder=5, label=f"a shape, by {peers[0].name.partition(',')[0]}", **style)


def _roofline_figure(log: ResultLog, panels: Mapping[Contest, list[SuiteObservation]]) -> Any:
    figure, drawn = _subplots(len(panels))
    sources: list[str] = []
    for axes, (contest, points) in zip(drawn, panels.items(), strict=True):
        facts = log.contests[contest]
        intensities = [flops(p.shape) / facts.dtypes.moved_bytes(p.shape) for p in points]
        ends = min(intensities) / 1.5, max(intensities) * 1.5
        for ceilings, line, label in (
            (facts.peak, "--", "ceilings of the datasheet"),
            (facts.measured, "-", "ceilings that were measured"),
        ):
            if ceilings:
                _draw_roof(axes, ceilings, ends, line, label)
                sources.append(ceilings.source)
        theirs = [p.baseline_tflops for p in points]
        ours = [p.tflops for p in points]
        style: dict[str, Any] = {"markersize": 3.6, "alpha": 0.8}
        axes.plot(intensities, theirs, "o", color=SLOWER, mfc="none", zorder=3, label="the baseline", **style)
        axes.plot(intensities, ours, "o", color=FASTER, mew=0, zorder=4, label="the best kernel", **style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(*ends)
        axes.set_title(f"{facts.description}: {len(points)} shapes", loc="left", color=INK)
        axes.set_ylabel("TFLOP/s")
        axes.set_xlabel("operations per byte that has to move")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    notes = textwrap.fill(f"Ceilings: {'; '.join(dict.fromkeys(sources))}", NOTE_COLUMNS)
    return _finished(figure, drawn, log, f"\n{notes}" if sources else "")


NOTE_COLUMNS: Final = 150


def _draw_roof(axes: Any, ceilings: Ceilings, ends: tuple[float, float], line: str, label: str) -> None:
    """Draw the lower of what memory and what the tensor cores allow."""
    ridge = ceilings.flops_per_second / ceilings.bytes_per_second
    xs = sorted({*ends, min(max(ridge, ends[0]), ends[1])})
    ys = [min(ceilings.flops_per_second, x * ceilings.bytes_per_second) / 1e12 for x in xs]
    axes.plot(xs, ys, line, color=INK, linewidth=1.0, zorder=2, label=label)


def _with_dark_scheme(svg: bytes) -> bytes:
    """Return matplotlib's .svg with other colours for readers who prefer a dark scheme."""
    rules = "".join(
        f'[style*="{way}: {light}"] {{ {way}: {dark} !important }}\n'
        for light, dark in IN_THE_DARK.items()
        for way in ("fill", "stroke")
    )
    style = f"<style>\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>\n"
    return svg.replace(b" <defs>\n", f" {style} <defs>\n".encode(), 1)


def _error(path: Path, code: str, message: str) -> GemmgenError:
    return GemmgenError([Diagnostic(path.as_posix(), code, message)])
