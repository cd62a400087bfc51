"""The pictures of a suite's record: ratios over M, and rates below the roofline."""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from gemmgen.bench.figures.style import (
    FASTER,
    GRID,
    INK,
    LEAST_RATIO,
    MOST_RATIO,
    SLOWER,
    plot_error,
    refuse_suffix,
    save,
)
from gemmgen.bench.record import Ceilings, Spread
from gemmgen.bench.result_log import ResultLog
from gemmgen.bench.suite_figures import (
    BEST,
    RatioFigures,
    SuiteObservation,
    points_of,
)
from gemmgen.problem.contest import Contest


def ratio_picture(log: ResultLog, path: Path) -> None:
    """Draw the ratio of the best kernel of each shape of a suite over M, a panel for each contest.

    The line is the median over the shapes of an M, the band is between the quartiles. A ratio beyond the axis
    is an arrow with its number. Bytes and errors are as those of ``plot``.
    """
    refuse_suffix(path)
    panels = _panels(log, path)
    save(partial(_ratio_figure, log, panels), path)


def roofline_picture(log: ResultLog, path: Path) -> None:
    """Draw the rates of the best kernel and of the baseline over FLOPs per byte, under the GPU's ceilings.

    Bytes and errors are as those of ``plot``.
    """
    refuse_suffix(path)
    save(partial(_roofline_figure, log, _panels(log, path)), path)


def _panels(log: ResultLog, path: Path) -> dict[Contest, list[SuiteObservation]]:
    """Return the points of the best kernels by contest, in the order of their shapes."""
    points = sorted((p for p in points_of(log) if p.kernel == BEST), key=lambda p: p.shape)
    panels = {contest: [p for p in points if p.contest == contest] for contest in log.contests}
    found = {contest: members for contest, members in panels.items() if members}
    if not found:
        raise plot_error(path, "bad-plot", "there is no measurement to plot")
    return found


PANEL_INCHES: Final = 3.4
LEGEND_INCHES: Final = 0.9
RATIO_TICKS: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
"""Possible ticks of the axis of ratios, which ends at two of them."""
SPREAD: Final = 0.16
"""Distance, in octaves of M, over which the points of one M are spread."""


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
    """Add the legend of the first panel, and the GPU and versions below all panels."""
    handles, labels = panels[0].get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "ncols": 3, "labelcolor": INK}
    figure.legend(handles, labels, **place)
    environment = log.sessions[-1].environment
    versions = f"torch {environment.torch}, Triton {environment.triton}, driver {environment.driver}"
    figure.supxlabel(f"{environment.gpu}, sustained; {versions}{note}", fontsize=7, color=INK)
    return figure


def _ratio_figure(log: ResultLog, panels: Mapping[Contest, list[SuiteObservation]]) -> Any:
    figure, drawn = _subplots(len(panels))
    for axes, (contest, points) in zip(drawn, panels.items(), strict=True):
        limits = ratio_limits(point.ratio for point in points)
        _draw_band(axes, points)
        _draw_points(axes, points, limits)
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
"""Least number of shapes of an M for a band of quartiles."""


def _draw_points(axes: Any, points: Sequence[SuiteObservation], limits: tuple[float, float]) -> None:
    """Draw each shape, side by side with others of its M; shapes beyond the axis are arrows at its end."""
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
    """Yield each point with its place on the axis of M, in the order of N and K within one M."""
    by_m: dict[int, list[SuiteObservation]] = {}
    for point in points:
        by_m.setdefault(point.shape[0], []).append(point)
    for m, members in by_m.items():
        for index, point in enumerate(members):
            share = index / (len(members) - 1) - 0.5 if len(members) > 1 else 0.0
            yield m * 2 ** (2 * SPREAD * share), point


def _roofline_figure(log: ResultLog, panels: Mapping[Contest, list[SuiteObservation]]) -> Any:
    figure, drawn = _subplots(len(panels))
    sources: list[str] = []
    for axes, (contest, points) in zip(drawn, panels.items(), strict=True):
        facts = log.contests[contest]
        intensities = [p.flops / facts.dtypes.moved_bytes(p.shape) for p in points]
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
    """Draw the lower of the ceilings of memory and of the tensor cores."""
    ridge = ceilings.flops_per_second / ceilings.bytes_per_second
    xs = sorted({*ends, min(max(ridge, ends[0]), ends[1])})
    ys = [min(ceilings.flops_per_second, x * ceilings.bytes_per_second) / 1e12 for x in xs]
    axes.plot(xs, ys, line, color=INK, linewidth=1.0, zorder=2, label=label)
