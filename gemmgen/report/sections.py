"""The sections of a page, one for each contest in records, logs of suites and tables of tuning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gemmgen import tune
from gemmgen.bench.figures.record_tables import cublas_name
from gemmgen.bench.record import Ceilings, Record, measured_of, peaks_of
from gemmgen.bench.result_log import Refused, ResultLog
from gemmgen.bench.suite_figures import BEST, FIRST, RatioFigures, points_of, winners_of
from gemmgen.hardware import DTYPES
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.report.labels import labels_of
from gemmgen.report.ranked import RankedObservation, ranked, ranked_observation


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
    """How the observations were measured, in a sentence."""
    trials: tuple[RankedObservation, ...]
    """Observations of all kernels, by shape and rank."""
    best: tuple[RankedObservation, ...]
    """The fastest kernel of each shape."""
    of_best: str
    """Origin of the figures of the fastest kernels, in a sentence."""
    first: dict[Shape, float]
    """Ratio of the kernel that the planner ranks first for a shape, before any measurement."""
    tried: Mapping[Shape, int]
    """Number of kernels that were timed on a shape."""
    refused: tuple[tuple[Shape, str, str], ...]
    """Shapes and kernels that were not timed, with the reasons."""
    moved_bytes: Mapping[Shape, int]
    """Bytes that a matmul of a shape has to move: A and B once, C if there is one, and D once."""
    ceilings: Ceilings | None
    """Ceilings of the GPU: measured ones, or else its datasheet's; None if neither is known."""

    @cached_property
    def figures(self) -> RatioFigures:
        """Figures of the fastest kernels."""
        return _figures(self.best)

    @property
    def kernels(self) -> int:
        """Number of kernels that were timed."""
        return len({trial.kernel for trial in self.trials})

    @cached_property
    def ranking(self) -> tuple[KernelSummary, ...]:
        """The kernels, in descending order of the number of shapes that they win."""
        won = Counter(trial.kernel for trial in self.best)
        by_kernel: dict[str, list[RankedObservation]] = {}
        for trial in self.trials:
            by_kernel.setdefault(trial.kernel, []).append(trial)
        found = (KernelSummary(kernel, won[kernel], _figures(of)) for kernel, of in by_kernel.items())
        return tuple(sorted(found, key=lambda r: (-r.best_at, -r.figures.geomean, r.kernel)))

    def share(self, trial: RankedObservation) -> float | None:
        """Return the rate of a trial over the lower ceiling at its intensity; None without ceilings."""
        if self.ceilings is None:
            return None
        return self.ceilings.seconds(trial.flops, self.moved_bytes[trial.shape]) / trial.seconds


def _figures(trials: Iterable[RankedObservation]) -> RatioFigures:
    found = RatioFigures.of(trials)
    assert found  # a section has trials
    return found


def sections_of_log(log: ResultLog) -> Iterator[ContestSection]:
    """Yield a section for each contest of a suite's record."""
    points, winners, labels = points_of(log), winners_of(log), labels_of(log)
    refused = [line for line in log.current() if isinstance(line, Refused)]
    gpu = log.sessions[-1].environment.gpu
    for contest, facts in log.contests.items():
        own = [point for point in points if point.contest == contest]
        measured = [p for p in own if p.kernel != BEST and not p.kernel.endswith(FIRST)]
        if not measured:
            continue
        trials = ranked(ranked_observation(p, labels.get(p.kernel, p.kernel)) for p in measured)
        fastest = {trial.shape: trial for trial in trials if trial.rank == 1}
        for p in own:
            if p.kernel == BEST:
                winner = winners[contest, p.shape]
                fastest[p.shape] = ranked_observation(p, labels.get(winner, winner), 1)
        yield ContestSection(
            name=facts.description,
            baseline=facts.baseline,
            method=(
                f"The kernels of a shape alternated with the baseline on one {gpu}, on the same tensors and "
                "without a pause: a ratio is the baseline's time over the kernel's, round by round."
            ),
            trials=trials,
            best=tuple(fastest[shape] for shape in sorted(fastest)),
            of_best=(
                "The winner of a shape's rounds was timed again in pairs with the baseline, because the "
                "fastest of many kernels owes some of its lead to luck; its figures are from those pairs."
            ),
            first={p.shape: p.ratio for p in own if p.kernel.endswith(FIRST)},
            tried=Counter(trial.shape for trial in trials),
            refused=tuple(
                (line.shape, labels.get(line.kernel, line.kernel), line.message)
                for line in refused
                if line.contest == contest
            ),
            moved_bytes={shape: facts.dtypes.moved_bytes(shape) for shape in fastest},
            ceilings=facts.measured or facts.peak,
        )


def sections_of_records(records: Sequence[Record]) -> Iterator[ContestSection]:
    """Yield a section for each GPU, baseline and element types of records of single kernels."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record.environment.gpu, record.baseline, record.dtypes), []).append(record)
    for together in groups.values():
        record = together[0]
        types = record.dtypes
        trials = ranked(
            ranked_observation(m.observed(dtypes=types), each.subject.name)
            for each in together
            for m in each.measurements
        )
        if not trials:
            continue
        best = tuple(trial for trial in trials if trial.rank == 1)
        yield ContestSection(
            name=f"{types.a} x {types.b} -> {types.d}{_few(trials)}",
            baseline=record.baseline,
            method=(
                f"Each kernel alternated with the baseline on one {record.environment.gpu}, in a process of "
                "its own, under sustained load: a ratio is the baseline's time over the kernel's, pair by "
                "pair. Kernels of one shape were not timed in one process."
            ),
            trials=trials,
            best=best,
            of_best="The figures of the fastest kernel of a shape are those of its own record.",
            first={},
            tried=Counter(trial.shape for trial in trials),
            refused=(),
            moved_bytes={trial.shape: types.moved_bytes(trial.shape) for trial in best},
            ceilings=record.ceilings,
        )


def _few(trials: Iterable[RankedObservation]) -> str:
    """Return a colon and the names of the kernels if there are one or two; else an empty text."""
    kernels = sorted({trial.kernel for trial in trials})
    return f": {', '.join(kernels)}" if len(kernels) <= 2 else ""


def sections_of_table(rows: Iterable[tune.TunedRow]) -> Iterator[ContestSection]:
    """Yield a section for each problem of a table of tuned kernels."""
    problems: dict[Contest, list[tune.TunedRow]] = {}
    for row in rows:
        problems.setdefault(row.problem, []).append(row)
    for together in problems.values():
        dtypes = {row.shape: row.dtypes for row in together}
        kinds = dtypes[together[0].shape]
        gpu, bits = together[0].gpu, max(DTYPES[kinds.a].bits, DTYPES[kinds.b].bits)
        trials = ranked(ranked_observation(row.observed, Path(row.spec).stem) for row in together)
        yield ContestSection(
            name=together[0].description,
            baseline=cublas_name(kinds),
            method=(
                f"Tuned on one {gpu}: for each shape the table has the median times of a call of the fastest "
                "kernel and of the baseline; a ratio is of these medians."
            ),
            trials=trials,
            best=tuple(trial for trial in trials if trial.rank == 1),
            of_best="The column of tried kernels has the number that was measured.",
            first={row.shape: row.baseline_seconds / row.first_seconds for row in together},
            tried={row.shape: row.tried for row in together},
            refused=(),
            moved_bytes={shape: kind.moved_bytes(shape) for shape, kind in dtypes.items()},
            ceilings=measured_of(gpu, kinds.a) or peaks_of(gpu, bits),
        )
