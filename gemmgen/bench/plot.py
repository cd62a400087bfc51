"""Records as a plot; the only file that imports matplotlib, and only when one is drawn."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gemmgen.bench.record import Measurement, Record
from gemmgen.bench.table import baseline_name, rate_text
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import shape_text

METADATA: Final = {"svg": {"Date": None, "Creator": "gemmgen"}, "png": {"Software": "gemmgen"}}
"""By file type; without a date and matplotlib's version."""
STYLE: Final = {
    "svg.hashsalt": "gemmgen",  # names of clip paths, random by default
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is there everywhere
    "font.size": 9,
}
FASTER, SLOWER, INK = "#1a6fb5", "#b5541a", "#333333"
ROW_INCHES: Final = 0.26
MARGIN_INCHES: Final = 1.1


def plot(records: Sequence[Record], path: Path) -> None:
    """Write a plot of each measurement's ratio to the baseline, with its quartiles, to an .svg or .png file.

    With the same matplotlib the same records give the same bytes.

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
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not what this machine's matplotlibrc says
        matplotlib.rcParams.update(STYLE)
        figure = _figure(rows)
        try:
            figure.savefig(path, format=kind, dpi=200, metadata=METADATA[kind])
        except OSError as error:
            raise _error(path, "bad-plot", f"cannot write the plot: {error}") from error


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
    labels: list[str] = []
    for row, (record, measurement) in enumerate(rows):
        _draw_row(axes, row, measurement)
        shape = shape_text(measurement.shape)
        labels.append(shape if len(specs) == 1 else f"{record.subject.name}  {shape}")
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.08)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    rival = baseline_name([record for record, _ in rows])
    whose = "cuBLAS's" if rival == "cuBLAS" else "the baseline's"
    axes.set_xlabel(f"throughput over {whose} (1.00): median and quartiles of the pair ratios")
    gpus = sorted({record.environment.gpu for record, _ in rows})
    subject = f"{next(iter(specs))} on " if len(specs) == 1 else ""  # several are named row by row
    axes.set_title(f"{subject}{', '.join(gpus)}, sustained", loc="left", color=INK)
    return figure


def _draw_row(axes: Any, row: int, measurement: Measurement) -> None:
    ratio = measurement.ratio
    color = FASTER if ratio.median >= 1 else SLOWER
    axes.hlines(row, *ratio.quartiles, color=color, linewidth=3, alpha=0.45)
    axes.plot(ratio.median, row, "o", color=color, markersize=5)
    rates = f"{rate_text(measurement.tflops)} vs {rate_text(measurement.baseline_tflops)} TFLOP/s"
    place: dict[str, Any] = {"xy": (1.01, row), "xycoords": ("axes fraction", "data")}
    axes.annotate(f"{ratio.median:.3f}   {rates}", va="center", color=INK, annotation_clip=False, **place)


def _error(path: Path, code: str, message: str) -> GemmgenError:
    return GemmgenError([Diagnostic(path.as_posix(), code, message)])
