"""The plot of records of single kernels: a row for each measurement."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from gemmgen.bench.figures.record_tables import common_baseline, rate_text
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
from gemmgen.bench.record import Measurement, Record
from gemmgen.problem import shape_text
from gemmgen.problem.dtypes import Dtypes

GAP: Final = "\N{EM SPACE}"
"""Gap within a text of a plot; an .svg would show several plain spaces as one."""
ROW_INCHES: Final = 0.26
MARGIN_INCHES: Final = 1.1
AXIS_MARGIN: Final = 0.01


def plot(records: Sequence[Record], path: Path) -> None:
    """Write a plot of each measurement's ratio to the baseline, with its quartiles, to an .svg or .png file.

    With the same matplotlib the same records give the same bytes. An .svg follows the reader's dark scheme.

    Raises GemmgenError: ``missing-package`` without matplotlib; ``bad-plot`` for another suffix, for records
    without a measurement, and for a path that cannot be written.
    """
    refuse_suffix(path)
    rows = [(record, measurement) for record in records for measurement in record.measurements]
    if not rows:
        raise plot_error(path, "bad-plot", "there is no measurement to plot")
    save(partial(_figure, rows), path)


def label_of(record: Record, measurement: Measurement) -> str:
    """Return the label of a row if there are several specs: the spec and M x N x K."""
    return f"{record.subject.name}{GAP}{shape_text(measurement.shape)}"


def figures_text(measurement: Measurement, dtypes: Dtypes | None = None) -> str:
    """Return a row's figures: the median ratio, and both rates, which `dtypes` counts the operations for."""
    found = measurement.observed(dtypes=dtypes)
    rates = f"{rate_text(found.tflops)} vs {rate_text(found.baseline_tflops)} TFLOP/s"
    return f"{found.ratio:.3f}{GAP}{rates}"


def axis_limits(ratios: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis that includes 1 and these ratios, except for ratios far from 1."""
    shown = [1.0, *(min(max(ratio, LEAST_RATIO), MOST_RATIO) for ratio in ratios)]
    return min(shown) - AXIS_MARGIN, max(shown) + AXIS_MARGIN


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
        _draw_row(axes, row, record, measurement, limits)
        labels.append(shape_text(measurement.shape) if len(specs) == 1 else label_of(record, measurement))
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(*limits)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    baseline = common_baseline([record for record, _ in rows])
    whose = "cuBLAS's" if baseline == "cuBLAS" else "the baseline's"
    off_axis = any(not limits[0] <= measurement.observed().ratio <= limits[1] for _, measurement in rows)
    beyond = "; an arrow leads beyond" if off_axis else ""
    axes.set_xlabel(f"throughput over {whose} (1.00): median and quartiles of the pair ratios{beyond}")
    gpus = sorted({record.environment.gpu for record, _ in rows})
    subject = f"{next(iter(specs))} on " if len(specs) == 1 else ""  # several are named row by row
    axes.set_title(f"{subject}{', '.join(gpus)}, sustained", loc="left", color=INK)
    return figure


def _draw_row(
    axes: Any, row: int, record: Record, measurement: Measurement, limits: tuple[float, float]
) -> None:
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
    text = figures_text(measurement, record.dtypes)
    axes.annotate(text, va="center_baseline", color=INK, annotation_clip=False, **place)
