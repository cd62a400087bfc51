"""The drawings of a section: the ratio by M, and the rate below the ceilings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmgen.bench.record import (
    Ceilings,
)
from gemmgen.problem import Shape
from gemmgen.report.ranked import RankedObservation

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
"""Size of a drawing and its margins, in its own units."""
LEAST_SPAN, MOST_SPAN = 1.1, 1.6
"""Least and greatest factor from 1 that the ratio axis shows on both sides; ratios beyond are at its end."""


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis: its least and greatest value, and their places in units of the drawing."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the place of a value, in units of the drawing with one decimal."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class AxisTick:
    """A line of the grid with its number."""

    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point with its kind and its tooltip."""

    x: float
    y: float
    kind: str
    text: str
    label: str = ""
    """Number beside the point if it is beyond the axis."""


@dataclass(frozen=True)
class Line:
    """A line over the drawing, with its kind and its tooltip."""

    points: str
    kind: str
    text: str


@dataclass(frozen=True)
class Chart:
    """A drawing with two logarithmic axes."""

    title: str
    x_label: str
    y_label: str
    columns: tuple[AxisTick, ...]
    rows: tuple[AxisTick, ...]
    marks: tuple[Mark, ...]
    lines: tuple[Line, ...]
    legend: tuple[tuple[str, str], ...]
    """Kinds of marks and lines with their explanations."""

    width, height, left, right, top, bottom = WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def _ratio_ticks(low: float, high: float) -> list[float]:
    steps = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
    step = next((step for step in steps if (high - low) / step <= 8), 2.0)
    return [round(i * step, 2) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _powers(low: float, high: float, bases: Sequence[float]) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [v for decade in decades for base in bases if low <= (v := base * 10.0**decade) <= high]


def ratio_chart(name: str, best: Sequence[RankedObservation]) -> Chart:
    """Return the ratio of the fastest kernel of each shape over M."""
    values = [trial.ratio for trial in best]
    low = max(min(*values, 1 / LEAST_SPAN), 1 / MOST_SPAN) / 1.02
    high = min(max(*values, LEAST_SPAN), MOST_SPAN) * 1.02
    extents = [trial.shape[0] for trial in best]
    x = Scale(min(extents) / 1.3, max(extents) * 1.3, LEFT, WIDTH - RIGHT)
    y = Scale(low, high, HEIGHT - BOTTOM, TOP)
    powers = [2**i for i in range(32) if x.low <= 2**i <= x.high]
    powers = powers[:: max(1, -(-len(powers) // 8))]
    one = y.at(1)
    return Chart(
        title=f"{name}: ratio by M",
        x_label="M",
        y_label="the baseline's time over the fastest kernel's",
        columns=tuple(AxisTick(x.at(power), _number(power)) for power in powers),
        rows=tuple(AxisTick(y.at(tick), f"{tick:g}") for tick in _ratio_ticks(low, high)),
        marks=tuple(_ratio_mark(t, x, y) for t in sorted(best, key=lambda t: -t.ratio)),
        lines=(Line(f"{LEFT},{one} {WIDTH - RIGHT},{one}", "even", "as fast as the baseline"),),
        legend=(("faster", "a shape, faster"), ("slower", "a shape, slower")),
    )


def roofline_chart(
    name: str,
    best: Sequence[RankedObservation],
    moved_bytes: Mapping[Shape, int],
    peak: Ceilings | None,
    measured: Ceilings | None,
) -> Chart:
    """Return the rates of the fastest kernels and of the baseline over FLOPs per byte, below the ceilings."""
    intensity = {each.shape: each.flops / moved_bytes[each.shape] for each in best}
    rates = [t.tflops for t in best] + [t.baseline_tflops for t in best]
    ceilings = [(c, kind) for c, kind in ((peak, "peak"), (measured, "measured")) if c]
    x = Scale(min(intensity.values()) / 1.3, max(intensity.values()) * 1.3, LEFT, WIDTH - RIGHT)
    tops = [min(c.flops_per_second, x.high * c.bytes_per_second) / 1e12 for c, _ in ceilings]
    y = Scale(min(rates) / 1.3, max(*rates, *tops) * 1.15, HEIGHT - BOTTOM, TOP)
    marks = [
        (Mark(x.at(intensity[t.shape]), y.at(rate), kind, t.text))
        for t in best
        for rate, kind in ((t.baseline_tflops, "baseline"), (t.tflops, "ours"))
    ]
    lines = tuple(Line(_roof(c, x, y), kind, c.source) for c, kind in ceilings)
    named = {"peak": "the datasheet's ceilings", "measured": "ceilings that were measured"}
    return Chart(
        title=f"{name}: rate below the ceilings",
        x_label="operations per byte that has to move",
        y_label="TFLOP/s",
        columns=tuple(AxisTick(x.at(v), _number(v)) for v in _powers(x.low, x.high, (1, 3))),
        rows=tuple(AxisTick(y.at(v), _number(v)) for v in _powers(y.low, y.high, (1, 3))),
        marks=tuple(marks),
        lines=lines,
        legend=(
            ("ours", "the fastest kernel"),
            ("baseline", "the baseline"),
            *((kind, named[kind]) for _, kind in ceilings),
        ),
    )


def _ratio_mark(trial: RankedObservation, x: Scale, y: Scale) -> Mark:
    ratio = trial.ratio
    shown = min(max(ratio, y.low), y.high)
    label = "" if shown == ratio else f"{ratio:.2f}"
    return Mark(x.at(trial.shape[0]), y.at(shown), "faster" if ratio >= 1 else "slower", trial.text, label)


def _roof(ceilings: Ceilings, x: Scale, y: Scale) -> str:
    """Return the points of the lower of the ceilings of memory and of the tensor cores, within the axes."""
    ridge = ceilings.flops_per_second / ceilings.bytes_per_second
    lowest = y.low * 1e12 / ceilings.bytes_per_second
    xs = sorted({max(x.low, lowest), min(max(ridge, x.low), x.high), x.high})
    ys = (min(ceilings.flops_per_second, value * ceilings.bytes_per_second) / 1e12 for value in xs)
    return " ".join(f"{x.at(value)},{y.at(max(rate, y.low))}" for value, rate in zip(xs, ys, strict=True))
