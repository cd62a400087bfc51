"""Records as one page for a browser: what was measured against what, drawn, ranked and in tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from gemmgen import tune
from gemmgen.bench.record import (
    Ceilings,
    Record,
    flops,
    measured_of,
    peaks_of,
    read_record,
)
from gemmgen.bench.result_log import Peer, Refused, ResultLog
from gemmgen.bench.suite_figures import BEST, FIRST, RatioFigures, errors_of, points_of, winners_of
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import DTYPES
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.contest import Contest
from gemmgen.problem.observation import Observation, ratios
from gemmgen.render import render_page

# --- drawings

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
"""Of a drawing, in its own units: all of it, and what is beside its axes."""
LEAST_SPAN, MOST_SPAN = 1.1, 1.6
"""The ratio axis shows at least, and at most, this much on both sides of 1; what is beyond is at its end."""


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis: from what to what, over which units of the drawing."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return where a value is, in units of the drawing with one decimal."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class AxisTick:
    """A line of the grid with its number."""

    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point: where, of which kind, and what a reader is told who rests on it."""

    x: float
    y: float
    kind: str
    text: str
    label: str = ""
    """Its number beside it, where it lies beyond the axis."""


@dataclass(frozen=True)
class Line:
    """A line over the drawing, and what it is."""

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
    """The kind of a mark or line, and what it stands for."""

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


# --- what was found


@dataclass(frozen=True, kw_only=True)
class RankedObservation(Observation[str]):
    """An observation on a page, with its rank among the kernels of its shape."""

    rank: int = 0
    """Place among the kernels that were timed on this shape, 1 for the fastest."""

    @property
    def quartiles(self) -> tuple[float, ...]:
        """Quartiles of the ratio; empty if the record has only medians."""
        return self.spread.quartiles if self.spread else ()

    @property
    def text(self) -> str:
        """Text of one line with the shape, ratio, rate, times and kernel, for a tooltip."""
        times = f"{self.seconds * 1e6:.1f} us, the baseline {self.baseline_seconds * 1e6:.1f} us"
        spread = f" [{', '.join(f'{quartile:.3f}' for quartile in self.quartiles)}]" * bool(self.quartiles)
        rate = f"{self.ratio:.3f}{spread}, {self.tflops:.0f} TFLOP/s"
        return f"{shape_text(self.shape)}: {rate}, {times}, {self.kernel}"


@dataclass(frozen=True)
class KernelSummary:
    """Figures of a kernel over all shapes that it was timed on, and the number of shapes that it wins."""

    kernel: str
    best_at: int
    figures: RatioFigures


@dataclass(frozen=True)
class ContestSection:
    """Observations of kernels of one contest, against one baseline on one GPU."""

    name: str
    baseline: str
    method: str
    """How it was measured, in a sentence."""
    trials: tuple[RankedObservation, ...]
    """All kernels, by shape and rank."""
    best: tuple[RankedObservation, ...]
    """The fastest of each shape."""
    of_best: str
    """What the figures of the fastest are, in a sentence."""
    first: dict[Shape, float]
    """The ratio of what the planner ranks first for a shape, before anything is measured."""
    tried: Mapping[Shape, int]
    """How many kernels were timed on a shape."""
    refused: tuple[tuple[Shape, str, str], ...]
    """What was not timed: shape, kernel, why."""
    peers: tuple[Peer, ...]
    moved_bytes: dict[Shape, int]
    peak: Ceilings | None
    measured: Ceilings | None

    @cached_property
    def figures(self) -> RatioFigures:
        """Of the fastest kernels."""
        return _figures(self.best)

    @property
    def kernels(self) -> int:
        """How many were timed."""
        return len({trial.kernel for trial in self.trials})

    @cached_property
    def ranking(self) -> tuple[KernelSummary, ...]:
        """The kernels, those first that are the fastest the most often."""
        won = Counter(trial.kernel for trial in self.best)
        by_kernel: dict[str, list[RankedObservation]] = {}
        for trial in self.trials:
            by_kernel.setdefault(trial.kernel, []).append(trial)
        found = (KernelSummary(kernel, won[kernel], _figures(of)) for kernel, of in by_kernel.items())
        return tuple(sorted(found, key=lambda r: (-r.best_at, -r.figures.geomean, r.kernel)))

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The fastest kernel's ratio by M, and its rate by intensity below the ceilings."""
        return (self._ratio_chart, self._roofline_chart)

    @property
    def _ratio_chart(self) -> Chart:
        values = [trial.ratio for trial in self.best]
        low = max(min(*values, 1 / LEAST_SPAN), 1 / MOST_SPAN) / 1.02
        high = min(max(*values, LEAST_SPAN), MOST_SPAN) * 1.02
        extents = [trial.shape[0] for trial in self.best]
        x = Scale(min(extents) / 1.3, max(extents) * 1.3, LEFT, WIDTH - RIGHT)
        y = Scale(low, high, HEIGHT - BOTTOM, TOP)
        powers = [2**i for i in range(32) if x.low <= 2**i <= x.high]
        powers = powers[:: max(1, -(-len(powers) // 8))]
        one = y.at(1)
        return Chart(
            title=f"{self.name}: ratio by M",
            x_label="M",
            y_label="the baseline's time over the fastest kernel's",
            columns=tuple(AxisTick(x.at(power), _number(power)) for power in powers),
            rows=tuple(AxisTick(y.at(tick), f"{tick:g}") for tick in _ratio_ticks(low, high)),
            marks=tuple(_ratio_mark(t, x, y) for t in sorted(self.best, key=lambda t: -t.ratio)),
            lines=(Line(f"{LEFT},{one} {WIDTH - RIGHT},{one}", "even", "as fast as the baseline"),),
            legend=(("faster", "a shape, faster"), ("slower", "a shape, slower")),
        )

    @property
    def _roofline_chart(self) -> Chart:
        intensity = {shape: flops(shape) / moved for shape, moved in self.moved_bytes.items()}
        rates = [t.tflops for t in self.best] + [t.baseline_tflops for t in self.best]
        ceilings = [(c, kind) for c, kind in ((self.peak, "peak"), (self.measured, "measured")) if c]
        x = Scale(min(intensity.values()) / 1.3, max(intensity.values()) * 1.3, LEFT, WIDTH - RIGHT)
        tops = [min(c.flops_per_second, x.high * c.bytes_per_second) / 1e12 for c, _ in ceilings]
        y = Scale(min(rates) / 1.3, max(*rates, *tops) * 1.15, HEIGHT - BOTTOM, TOP)
        marks = [
            (Mark(x.at(intensity[t.shape]), y.at(rate), kind, t.text))
            for t in self.best
            for rate, kind in ((t.baseline_tflops, "baseline"), (t.tflops, "ours"))
        ]
        lines = tuple(Line(_roof(c, x, y), kind, c.source) for c, kind in ceilings)
        named = {"peak": "the datasheet's ceilings", "measured": "ceilings that were measured"}
        return Chart(
            title=f"{self.name}: rate below the ceilings",
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
    """Return the points of the lower of what memory and what the tensor cores allow, within the axes."""
    ridge = ceilings.flops_per_second / ceilings.bytes_per_second
    lowest = y.low * 1e12 / ceilings.bytes_per_second
    xs = sorted({max(x.low, lowest), min(max(ridge, x.low), x.high), x.high})
    ys = (min(ceilings.flops_per_second, value * ceilings.bytes_per_second) / 1e12 for value in xs)
    return " ".join(f"{x.at(value)},{y.at(max(rate, y.low))}" for value, rate in zip(xs, ys, strict=True))


def _figures(trials: Iterable[RankedObservation]) -> RatioFigures:
    found = RatioFigures.of(trials)
    assert found  # a section has trials
    return found


def _trial(found: Observation[str], kernel: str, rank: int = 0) -> RankedObservation:
    return RankedObservation(
        found.shape, kernel, found.seconds, found.baseline_seconds, found.spread, rank=rank
    )


def _ranked(trials: Iterable[RankedObservation]) -> tuple[RankedObservation, ...]:
    """Return trials by shape, the fastest first, each with its place."""
    by_shape: dict[Shape, list[RankedObservation]] = {}
    for trial in trials:
        by_shape.setdefault(trial.shape, []).append(trial)
    return tuple(
        replace(trial, rank=rank)
        for shape in sorted(by_shape)
        for rank, trial in enumerate(sorted(by_shape[shape], key=lambda t: -t.ratio), 1)
    )


# --- from records


@dataclass(frozen=True)
class Source:
    """A record: what it was measured with."""

    path: str
    date: str
    environment: Mapping[str, object]
    """The GPU, and the versions that it is known to have been measured with."""
    protocol: Mapping[str, object]


def _sections_of_log(log: ResultLog) -> Iterator[ContestSection]:
    """Yield a section for each contest of a suite's record."""
    points, winners = points_of(log), winners_of(log)
    refused = [line for line in log.current() if isinstance(line, Refused)]
    gpu = log.sessions[-1].environment.gpu
    for contest, facts in log.contests.items():
        own = [point for point in points if point.contest == contest]
        measured = [p for p in own if p.kernel != BEST and not p.kernel.endswith(FIRST)]
        if not measured:
            continue
        trials = _ranked(_trial(p, p.kernel) for p in measured)
        fastest = {trial.shape: trial for trial in trials if trial.rank == 1}
        for p in own:
            if p.kernel == BEST:
                fastest[p.shape] = _trial(p, winners[contest, p.shape], 1)
        yield ContestSection(
            name=facts.description,
            baseline=facts.baseline,
            method=(
                f"All kernels of a shape were timed by turns with the baseline on one {gpu}, on the same "
                "tensors, without a pause: a ratio is the baseline's time over the kernel's, round by round."
            ),
            trials=trials,
            best=tuple(fastest[shape] for shape in sorted(fastest)),
            of_best=(
                "The kernel that won a shape's rounds was timed once more in pairs of its own with the "
                "baseline, for the fastest of many owes some of that to luck; its figures are of those pairs."
            ),
            first={p.shape: p.ratio for p in own if p.kernel.endswith(FIRST)},
            tried=Counter(trial.shape for trial in trials),
            refused=tuple(
                (line.shape, line.kernel, line.message) for line in refused if line.contest == contest
            ),
            peers=tuple(line for line in log.lines if isinstance(line, Peer) and line.contest == contest),
            moved_bytes={shape: facts.dtypes.moved_bytes(shape) for shape in fastest},
            peak=facts.peak,
            measured=facts.measured,
        )


def _sections_of_records(records: Sequence[Record]) -> Iterator[ContestSection]:
    """Yield a section for each GPU, baseline and element types of records of single kernels."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record.environment.gpu, record.baseline, record.dtypes), []).append(record)
    for together in groups.values():
        record = together[0]
        types = record.dtypes
        trials = _ranked(
            _trial(m.observed(), each.subject.name) for each in together for m in each.measurements
        )
        if not trials:
            continue
        best = tuple(trial for trial in trials if trial.rank == 1)
        yield ContestSection(
            name=f"{types.a} x {types.b} -> {types.d}{_few(trials)}",
            baseline=record.baseline,
            method=(
                f"Each kernel was timed by turns with the baseline on one {record.environment.gpu}, in a "
                "process of its own, under sustained load: a ratio is the baseline's time over the kernel's, "
                "pair by pair. Kernels of one shape were not timed beside one another."
            ),
            trials=trials,
            best=best,
            of_best="The figures of the fastest kernel of a shape are those of its own record.",
            first={},
            tried=Counter(trial.shape for trial in trials),
            refused=(),
            peers=(),
            moved_bytes={trial.shape: types.moved_bytes(trial.shape) for trial in best},
            peak=None,
            measured=record.ceilings,
        )


def _few(trials: Iterable[RankedObservation]) -> str:
    """Return the names of kernels, behind a colon, where they are one or two."""
    kernels = sorted({trial.kernel for trial in trials})
    return f": {', '.join(kernels)}" if len(kernels) <= 2 else ""


def _sections_of_table(rows: Iterable[tune.TunedRow]) -> Iterator[ContestSection]:
    """Yield a section for each problem of a table of tuned kernels."""
    problems: dict[Contest, list[tune.TunedRow]] = {}
    for row in rows:
        problems.setdefault(row.problem, []).append(row)
    for together in problems.values():
        dtypes = {row.shape: row.dtypes for row in together}
        kinds = dtypes[together[0].shape]
        gpu, bits = together[0].gpu, max(DTYPES[kinds.a].bits, DTYPES[kinds.b].bits)
        trials = _ranked(_trial(row.observed, Path(row.spec).stem) for row in together)
        yield ContestSection(
            name=together[0].description,
            baseline="cuBLAS",
            method=(
                f"Tuned on one {gpu}: of each shape the table has the median time of a call of the fastest "
                "kernel that was found, and of the baseline beside it; a ratio is of these medians."
            ),
            trials=trials,
            best=tuple(trial for trial in trials if trial.rank == 1),
            of_best="How many kernels were measured on the way is in the column of those tried.",
            first={row.shape: row.baseline_seconds / row.first_seconds for row in together},
            tried={row.shape: row.tried for row in together},
            refused=(),
            peers=(),
            moved_bytes={shape: kind.moved_bytes(shape) for shape, kind in dtypes.items()},
            peak=peaks_of(gpu, bits),
            measured=measured_of(gpu, kinds.a),
        )


@dataclass(frozen=True)
class ShapeLine:
    """Line of the table of shapes: the fastest kernel, and the figures that it is compared with."""

    trial: RankedObservation
    tried: int
    first: float | None
    peer: float | None
    """The ratio of another generator's kernel, in a process of its own."""


@dataclass(frozen=True)
class ReportPage:
    """A report as its template sees it."""

    sources: tuple[Source, ...]
    sections: tuple[ContestSection, ...]
    errors: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it is about."""
        gpus = dict.fromkeys(str(source.environment["gpu"]) for source in self.sources)
        return f"gemmgen on {', '.join(gpus)}"

    @property
    def environments(self) -> Iterator[tuple[str, str]]:
        """Each thing that the records were measured with, and all that it was."""
        return _collected(source.environment for source in self.sources)

    @property
    def protocols(self) -> Iterator[tuple[str, str]]:
        """The same of the numbers of their protocols."""
        return _collected(source.protocol for source in self.sources)

    def rows(self, section: ContestSection) -> Iterator[ShapeLine]:
        """Yield the shapes of a section, each with its fastest kernel."""
        peers = {
            p.shape: ratios(p.baseline_seconds, p.seconds).median for p in section.peers if not p.why_not
        }
        for trial in section.best:
            shape = trial.shape
            yield ShapeLine(trial, section.tried[shape], section.first.get(shape), peers.get(shape))

    @property
    def count(self) -> int:
        """Measured pairs of a shape and a kernel."""
        return sum(len(section.trials) for section in self.sections)


def _collected(all_facts: Iterable[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Yield each name of several mappings, and all its values."""
    values: dict[str, dict[str, None]] = {}
    for facts in all_facts:
        for name, value in facts.items():
            values.setdefault(name.replace("_", " "), {})[str(value)] = None
    return ((name, ", ".join(found)) for name, found in values.items())


def report(paths: Sequence[Path]) -> str:
    """Return a page about records of kernels (``.json``) and suites, and tables of tuning (``.jsonl``).

    Raises:
        GemmgenError: A file is no record (``bad-record``) or no table (``bad-table``), or there is nothing in
            them (``empty-record``).
    """
    lines = [_existing(path) for path in paths if path.suffix == ".jsonl"]
    tables = {path: tune.read_table(path) for path in lines if _is_table(path)}
    logs = [ResultLog.opened(path) for path in lines if path not in tables]
    records = [read_record(path) for path in paths if path.suffix != ".jsonl"]
    sections = [section for log in logs if log.sessions for section in _sections_of_log(log)]
    sections += _sections_of_records(records)
    sections += [section for rows in tables.values() for section in _sections_of_table(rows)]
    if not sections:
        message = "there is no measurement in it"
        raise GemmgenError([Diagnostic(path.as_posix(), "empty-record", message) for path in paths])
    sources = [
        Source(
            log.path.name if log.path else "",
            session.date,
            asdict(session.environment),
            asdict(session.protocol),
        )
        for log in logs
        for session in log.sessions[-1:]
    ]
    names = (path.name for path in paths if path.suffix != ".jsonl")
    sources += [
        Source(name, record.date, asdict(record.environment), asdict(record.protocol))
        for name, record in zip(names, records, strict=True)
    ]
    sources += [source for path, rows in tables.items() for source in _tuned_sources(path, rows)]
    errors = [error for log in logs for error in errors_of(log)]
    errors += [error for record in records for error in record.errors]
    return render_page("report/page.html", ReportPage(tuple(sources), tuple(sections), tuple(errors)))


TUNED_WITH = ("gemmgen", "torch", "triton", "gpu")
"""What a row of a table of tuned kernels knows of where it was measured."""


def _tuned_sources(path: Path, rows: Iterable[tune.TunedRow]) -> Iterator[Source]:
    """Yield a source for all rows of a table that the same versions have measured, with the latest date."""
    dates: dict[tuple[str, ...], str] = {}
    for row in rows:
        versions = tuple(str(getattr(row, name)) for name in TUNED_WITH)
        dates[versions] = max(dates.get(versions, ""), row.date)
    for versions, date in dates.items():
        yield Source(path.name, date, dict(zip(TUNED_WITH, versions, strict=True)), {})


def _is_table(path: Path) -> bool:
    """Whether a file begins as a table of tuned kernels does, and not as the record of a suite."""
    with path.open("rb") as file:
        return b'"table"' in file.readline()


def _existing(path: Path) -> Path:
    """Return a path that is there: what reads a suite's record takes an absent one for an empty one."""
    if not path.is_file():
        raise GemmgenError([Diagnostic(path.as_posix(), "bad-record", "there is no such file")])
    return path
