"""Records as tables and as pictures; matplotlib is imported only here, and only when a picture is drawn."""

from __future__ import annotations

import importlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Table

from gemmgen.bench.record import Measurement, Record
from gemmgen.bench.suite import (
    ALL,
    BEST,
    GROUPS,
    Book,
    Figures,
    Peer,
    Point,
    grouped,
    points_of,
    ratios,
    winners_of,
)
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import Shape, shape_text

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
    kind = path.suffix.lower().removeprefix(".")
    if kind not in METADATA:
        raise _error(path, "bad-plot", "the name must end in .svg or .png")
    rows = [(record, measurement) for record in records for measurement in record.measurements]
    if not rows:
        raise _error(path, "bad-plot", "there is no measurement to plot")
    matplotlib = _matplotlib(path)
    image = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not what this machine's matplotlibrc says
        matplotlib.rcParams.update(STYLE)
        _figure(rows).savefig(image, format=kind, dpi=200, metadata=METADATA[kind])
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
    rates = f"{_rate_text(measurement.tflops)} vs {_rate_text(measurement.baseline_tflops)} TFLOP/s"
    return f"{measurement.ratio.median:.3f}{GAP}{rates}"


def axis_limits(ratios: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis that has 1 and these ratios on it, but for those that are far from 1."""
    shown = [1.0, *(min(max(ratio, LEAST_RATIO), MOST_RATIO) for ratio in ratios)]
    return min(shown) - AXIS_MARGIN, max(shown) + AXIS_MARGIN


# --- the record of a suite as tables

NONE: Final = "\N{EN DASH}"


def suite_tables(book: Book) -> Iterator[Table]:
    """Yield for each contest the best kernel's figures by groups of M, and the geometric means of every one.

    The figures of the best are of pairs of its own with the baseline, shape by shape; those of the others
    are of the rounds.
    """
    points = points_of(book)
    for name, contest in book.contests.items():
        figures = grouped(points, name)
        if not figures:
            continue
        yield _best_table(name, contest.baseline, figures)
        yield _kernel_table(figures, Counter(_won(book, name)))
    peers = [line for line in book.lines if isinstance(line, Peer)]
    if peers:
        best = {(point.contest, point.shape): point for point in points if point.kernel == BEST}
        yield _peer_table(peers, best)


def _won(book: Book, contest: str) -> Iterator[str]:
    return (kernel for (where, _), kernel in winners_of(book).items() if where == contest)


def _table(title: str, *columns: str) -> Table:
    """Return a table of words in its first column and numbers in the others."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def _best_table(name: str, baseline: str, figures: Mapping[str, Mapping[str, Figures]]) -> Table:
    kernels = len(figures) - (BEST in figures)
    title = f"{name}: the best of {kernels} kernels" if kernels > 1 else f"{name}: one kernel"
    table = _table(f"{title}, over {baseline}", "M", "shapes", "geomean", "minimum", "at", "share >= 1")
    for group, found in figures.get(BEST, {}).items():
        share = f"{found.share:.0%}"
        shape = shape_text(found.worst)
        table.add_row(group, str(found.count), f"{found.geomean:.3f}", f"{found.minimum:.3f}", shape, share)
    return table


def _kernel_table(figures: Mapping[str, Mapping[str, Figures]], won: Mapping[str, int]) -> Table:
    groups = [group for group in GROUPS if any(group in found for found in figures.values())]
    table = _table("geometric means by M", "kernel", "shapes", "best at", *groups, "minimum", "share >= 1")
    for kernel, found in figures.items():
        cells = (f"{found[group].geomean:.3f}" if group in found else NONE for group in groups)
        every = found[ALL]
        places = str(won.get(kernel, 0)) if kernel != BEST else NONE
        ends = f"{every.minimum:.3f}", f"{every.share:.0%}"
        table.add_row(kernel, str(every.count), places, *cells, *ends)
    return table


def _peer_table(peers: Sequence[Peer], best: Mapping[tuple[str, Shape], Point]) -> Table:
    """Return each peer beside the best kernel, both over the baseline in their own processes."""
    names = ", ".join(dict.fromkeys(line.name for line in peers))
    columns = "contest", "M x N x K", "peer", "best", "best over peer", "tuning s", "kernels"
    table = _table(f"peers: {names}", *columns)
    for line in peers:
        place = line.contest, shape_text(line.shape)
        ours = best.get((line.contest, line.shape))
        own = f"{ours.ratio.median:.3f}" if ours else NONE
        if line.why_not:
            table.add_row(*place, NONE, own, NONE, NONE, line.why_not)
            continue
        theirs = ratios(line.baseline_seconds, line.seconds).median
        over = f"{ours.ratio.median / theirs:.3f}" if ours else NONE
        table.add_row(
            *place, f"{theirs:.3f}", own, over, f"{line.tuning_seconds:.1f}", ", ".join(line.kernels)
        )
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
                _rate_text(measurement.tflops),
                _rate_text(measurement.baseline_tflops),
                _ratio_text(measurement),
            )


def _errors(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        yield from record.errors


def _ratio_text(measurement: Measurement) -> str:
    """Return the median ratio with its quartiles: ``1.043 [1.038, 1.047]``."""
    ratio = measurement.ratio
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
        message = "plots need matplotlib; install it with: pip install 'gemmgen[plot]'"
        raise _error(path, "missing-package", message) from error


def _figure(rows: Sequence[tuple[Record, Measurement]]) -> Any:
    """Draw a row for each measurement, the first on top: its ratio, its quartiles, and both rates as text."""
    specs = {record.subject.name for record, _ in rows}
    figure_module: Any = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(8, MARGIN_INCHES + ROW_INCHES * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(1.0, color=INK, linewidth=0.8, zorder=1)
    limits = axis_limits(measurement.ratio.median for _, measurement in rows)
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
    off_axis = any(not limits[0] <= measurement.ratio.median <= limits[1] for _, measurement in rows)
    beyond = "; an arrow leads beyond" if off_axis else ""
    axes.set_xlabel(f"throughput over {whose} (1.00): median and quartiles of the pair ratios{beyond}")
    gpus = sorted({record.environment.gpu for record, _ in rows})
    subject = f"{next(iter(specs))} on " if len(specs) == 1 else ""  # several are named row by row
    axes.set_title(f"{subject}{', '.join(gpus)}, sustained", loc="left", color=INK)
    return figure


def _draw_row(axes: Any, row: int, measurement: Measurement, limits: tuple[float, float]) -> None:
    ratio = measurement.ratio
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
