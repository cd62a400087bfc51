"""Tuning from specs and shapes to winners: what is measured next, by whom, and what is written of it.

What is next follows from what is known: rungs of fewer kernels and more rounds, then neighbours. Everybody
who works on a study asks the same question of the same trials, and gets the same answer.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Lock
from typing import Final

from gemmgen import __version__
from gemmgen.bench.arms import dtypes_of
from gemmgen.bench.baseline import Baseline, cublas
from gemmgen.bench.record import Environment, Spread, peaks_of, utc_now
from gemmgen.bench.result_log import Rounds
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.literals import comment_text
from gemmgen.plan.rule import counted
from gemmgen.problem import Shape, shape_text
from gemmgen.product import make, write_files
from gemmgen.scratch import scratch, usable_cores
from gemmgen.spec import load_spec
from gemmgen.tune import TunedRow, add_to_table, read_table
from gemmgen.tune.candidates import (
    Pins,
    TuningCandidate,
    TuningTarget,
    candidate_of,
    first_candidates,
    kernel_sha256,
    neighbours,
)
from gemmgen.tune.store import Job, Store, Study, StudyFacts, TrialRecord, TrialSamples
from gemmgen.tune.worker import (
    PROTOCOL,
    Comparison,
    GpuWorker,
    MachineOn,
    Prepare,
    compile_in_children,
    cuda_machine,
    gpus,
    look,
)
from gemmgen.verify.shapes import fitting, refuse_k, single_tile

WAITING_SECONDS: Final = 0.2
"""How often who has nothing to do looks whether others are done."""
MARK: Final = "# Tuned by gemmgen"
"""What the spec of a winner begins with."""


# --- what is measured next

ROUNDS: Final = (5, 15, 45, 60)
"""Of a trial on each rung: of all kernels, of a third of them, of a ninth, and of the winner at last."""
LAST_RUNG: Final = 2
FINAL: Final = 3
"""The rung on which the winner meets the planner's first choice once more: the fastest of many owes some of
its lead to luck, which this does not measure again."""
KEPT: Final = 3
"""One of so many goes on to the next rung."""
DESCENTS: Final = 3
"""How often the neighbours of the fastest are tried, at most."""
LEAST_GAIN: Final = 0.003
"""What gains less is not taken for faster: two processes on an H200 read the ratios of the last rung's
kernels up to 0.0023 apart (``benchmarks/tune/h200.jsonl``), each with quartiles a few 0.0001 around."""


@dataclass(frozen=True)
class JobBatch:
    """Jobs that can be done beside each other, all before it is known what comes next."""

    name: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class SearchVerdict:
    """Nothing is left to be measured: which kernel is the fastest, and what says so."""

    winner: str
    first: str
    """The planner's first choice that works."""
    final: TrialRecord
    """The winner against the first choice; of that one against itself where it stays."""
    refused: TrialRecord | None
    """A kernel that was ahead, and whose lead is within the noise when it is measured again."""


def gain(samples: TrialSamples) -> float:
    """Return by how much a kernel is faster than the one that it took turns with; 0 if within the noise.

    The noise is half of what lies between the quartiles of the rounds, and at least LEAST_GAIN.
    """
    ratio = samples.against_spread
    lower, upper = ratio.quartiles
    found = ratio.median - 1
    return found if found > max(LEAST_GAIN, (upper - lower) / 2) else 0.0


@dataclass
class Search:
    """The search among the candidates for one shape, the planner's first choice first."""

    candidates: Sequence[TuningCandidate]
    neighbours: Callable[[Pins], Sequence[TuningCandidate]]
    known: dict[str, TuningCandidate] = field(default_factory=dict[str, TuningCandidate])
    """All that were tried or can be, by their hashes."""
    _around: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def __post_init__(self) -> None:
        self.known |= {candidate.kernel: candidate for candidate in self.candidates}

    def next(self, trials: Iterable[TrialRecord], *, tired: bool) -> JobBatch | SearchVerdict | None:
        """Return what is to be done, or the verdict; None where no candidate works.

        ``tired`` is whether the budget is spent: then nothing new is begun but what decides.
        """
        return _Step(self, {trial.job: trial for trial in trials}, tired).next()

    def around(self, kernel: str) -> tuple[str, ...]:
        """Return the kernels next to one, found once."""
        if kernel not in self._around:
            found = self.neighbours(self.known[kernel].pins)
            for candidate in found:
                self.known.setdefault(candidate.kernel, candidate)
            self._around[kernel] = tuple(candidate.kernel for candidate in found)
        return self._around[kernel]


class _Wait(Exception):  # noqa: N818 it is no error
    """There are jobs to be done first."""

    def __init__(self, stage: JobBatch) -> None:
        super().__init__(stage.name)
        self.stage = stage


@dataclass(frozen=True)
class _Step:
    """One look at what is known."""

    search: Search
    trials: Mapping[Job, TrialRecord]
    tired: bool

    def next(self) -> JobBatch | SearchVerdict | None:
        try:
            first = self._first()
            if first is None:
                return None
            leader = self._descended(self._halved(first))
            return self._verdict(first, leader)
        except _Wait as wait:
            return wait.stage

    def _first(self) -> str | None:
        """Return the first candidate that works, measured against itself."""
        for candidate in self.search.candidates:
            job = Job(candidate.kernel, LAST_RUNG, candidate.kernel)
            self._done("the planner's first choice", [job], decides=True)
            if self.trials[job].samples:
                return candidate.kernel
        return None

    def _halved(self, first: str) -> str:
        """Return the fastest of the candidates, each rung of those that were the fastest on the one below."""
        field = [each.kernel for each in self.search.candidates if each.kernel != first]
        leader = first
        for rung in range(LAST_RUNG + 1):
            name = f"rung {rung + 1} of {LAST_RUNG + 1}"
            found = self._done(name, [Job(kernel, rung, first) for kernel in field])
            if found and next(iter(found.values())).against_spread.median > 1:
                leader = next(iter(found))
            elif found or rung == 0:
                leader = first
            field = [*found][: math.ceil(len(found) / KEPT)]
        return leader

    def _descended(self, leader: str) -> str:
        """Return the fastest that neighbours lead to."""
        seen = {candidate.kernel for candidate in self.search.candidates}
        for descent in range(DESCENTS):
            if self.tired and not self._has_begun(leader):
                break
            kernels = [kernel for kernel in self.search.around(leader) if kernel not in seen]
            seen |= {*kernels}
            name = f"neighbours, {descent + 1} of at most {DESCENTS}"
            found = self._done(name, [Job(kernel, 1, leader) for kernel in kernels])
            better = [kernel for kernel, samples in found.items() if samples.against_spread.median > 1][:KEPT]
            found = self._done(name, [Job(kernel, LAST_RUNG, leader) for kernel in better])
            best = next(iter(found), None)
            if best is None or not gain(found[best]):
                break
            leader = best
        return leader

    def _has_begun(self, leader: str) -> bool:
        """Whether neighbours of a kernel were tried before the budget was spent."""
        return any(job.against == leader and job.rung == 1 for job in self.trials)

    def _verdict(self, first: str, leader: str) -> SearchVerdict:
        own = self.trials[Job(first, LAST_RUNG, first)]
        if leader == first:
            return SearchVerdict(first, first, own, None)
        job = Job(leader, FINAL, first)
        self._done("the winner once more", [job], decides=True)
        final = self.trials[job]
        if final.samples is None or not gain(final.samples):
            return SearchVerdict(first, first, own, final)
        return SearchVerdict(leader, first, final, None)

    def _done(self, name: str, jobs: Sequence[Job], *, decides: bool = False) -> dict[str, TrialSamples]:
        """Return what was found of kernels, the fastest first, once all have been measured that will be.

        With the budget spent, those are the ones that somebody is measuring, and those that decide.
        """
        running = {job for job in jobs if job in self.trials and self.trials[job].state == "running"}
        left = [job for job in jobs if job in running or job not in self.trials]
        if self.tired and not decides:
            left = [job for job in left if job in running]
        if left:
            raise _Wait(JobBatch(name, tuple(left)))
        measured = {job.kernel: self.trials[job].samples for job in jobs if job in self.trials}
        found = {kernel: samples for kernel, samples in measured.items() if samples}
        return dict(sorted(found.items(), key=lambda each: -each[1].against_spread.median))


def remaining(trials: Sequence[TrialRecord], budget: float) -> float:
    """Return the seconds of GPU time that are left, less what the last trial may take."""
    seconds = [trial.gpu_seconds for trial in trials if trial.state == "done"]
    # The first trial of a worker takes longer than others: not the longest one decides.
    reserve = 2 * median(seconds) if seconds else 0.0
    return budget - sum(trial.gpu_seconds for trial in trials) - reserve


# --- tuning


@dataclass(frozen=True)
class TuningProgress:
    """How far tuning is."""

    subject: str
    """The spec and the shape."""
    number: int
    """Of this one, from 1, of so many."""
    count: int
    spent: float
    """Seconds of GPU time."""
    budget: float
    text: str


@dataclass(frozen=True)
class Outcome:
    """What is known of a spec for a shape when nothing is left to be measured."""

    tuned: TuningTarget
    gpu: str
    winner: TuningCandidate
    verdict: SearchVerdict
    trials: tuple[TrialRecord, ...]
    measured: int
    """Trials of this run."""
    path: Path
    """The winner's spec."""
    row: TunedRow

    @property
    def samples(self) -> TrialSamples:
        """Of the winner."""
        assert self.verdict.final.samples
        return self.verdict.final.samples

    @property
    def gpu_seconds(self) -> float:
        """What all trials took."""
        return sum(trial.gpu_seconds for trial in self.trials)

    @property
    def failures(self) -> dict[str, int]:
        """How many trials failed, by their reasons."""
        found: dict[str, int] = {}
        for trial in self.trials:
            if trial.why:
                found[trial.why] = found.get(trial.why, 0) + 1
        return found

    @property
    def remark(self) -> str:
        """Why the planner's first choice stays, and what is not to be believed; empty without either."""
        said: list[str] = []
        if self.verdict.winner == self.verdict.first:
            said.append("the planner's first choice stays")
            if self.verdict.refused is not None:
                said.append(f"{_lead(self.verdict.refused)}, which is within the noise")
        if count := self.failures.get("impossible"):
            said.append(f"{count} above the roofline, which is a measurement error, took no part")
        return "; ".join(said)

    def as_row(self) -> dict[str, object]:
        """Return the figures as cells of a table."""
        return {
            "spec": self.path.as_posix(),
            "us": f"{self.row.seconds * 1e6:.2f}",
            "over first": f"{self.samples.against_spread.median:.3f}",
            "over baseline": f"{self.samples.baseline_spread.median:.3f}",
            "tried": self.row.tried,
            "GPU s": f"{self.gpu_seconds:.1f}",
            "kernel": self.winner.label,
        }

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        ratio, baseline = self.samples.against_spread, self.samples.baseline_spread
        return {
            "spec": self.tuned.source.path,
            "shape": list(self.tuned.shape),
            "gpu": self.gpu,
            "winner": self.winner.label,
            "kernel_sha256": self.winner.kernel,
            "first_choice_stays": self.verdict.winner == self.verdict.first,
            "microseconds": self.row.seconds * 1e6,
            "ratio_to_first": ratio.median,
            "ratio_to_first_quartiles": list(ratio.quartiles),
            "ratio_to_baseline": baseline.median,
            "ratio_to_baseline_quartiles": list(baseline.quartiles),
            "tried": self.row.tried,
            "failures": self.failures,
            "measured": self.measured,
            "gpu_seconds": self.gpu_seconds,
            "remark": self.remark,
            "written": self.path.as_posix(),
        }


def _lead(trial: TrialRecord) -> str:
    found = f"{trial.samples.against_spread.median:.3f}" if trial.samples else f"{trial.why}: {trial.message}"
    return f"once more `{trial.label}` reads {found}"


@dataclass(frozen=True)
class TuningBudget:
    """Limits of the search for one spec and shape."""

    gpu_seconds: float = 60.0
    """GPU time of all trials."""
    candidates: int = 10
    """Number of kernels that the planner ranks first, with which the search begins."""


@dataclass(frozen=True)
class TuningOptions:
    """Options of ``tune``: which trials count, what they may cost, and where the results are written."""

    store: str
    """Place of the trials, as ``Store`` takes it. Recorded trials are not measured again."""
    out: Path
    """Directory for the specs of the winners."""
    table: Path | None = None
    """File for the table of winners; None: no table is written."""
    budget: TuningBudget = TuningBudget()
    devices: Sequence[int] | None = None
    """Indices of the GPUs to measure on; None: all that are visible."""
    gpu: str | None = None
    """Name of a GPU whose recorded trials decide; nothing is measured then."""
    again: bool = False
    """True to discard the recorded trials and measure them again."""


@dataclass(frozen=True)
class TuningMachinery:
    """The parts that touch a GPU: how it is opened, how kernels are compiled, and the timing protocol."""

    machine_on: MachineOn = cuda_machine
    prepare: Prepare = compile_in_children
    protocol: Rounds = PROTOCOL


def tune(
    specs: Sequence[Path],
    shapes: Sequence[Shape],
    options: TuningOptions,
    machinery: TuningMachinery = TuningMachinery(),
    progress: Callable[[TuningProgress], None] = lambda _: None,
) -> list[Outcome]:
    """Find the fastest kernel of each spec for each shape [M, N, K], and write its spec into a directory.

    Raises GemmgenError: a spec is rejected or does not support a shape; ``bad-store``; ``bad-table``;
    ``no-gpu``; ``other-gpu``; ``other-machine`` if the trials are of other versions; ``stale-kernel`` if
    gemmgen now makes other kernels than the measured ones; ``no-kernel`` if none works; ``cannot-write``;
    ``foreign-file``.
    """
    tuned, baselines = _tuned(specs, shapes)
    store = Store(options.store, new=options.gpu is None)
    chosen = _choose(store, tuned, options, machinery.machine_on)
    if options.table is not None and options.table.exists():
        read_table(options.table, chosen.gpu)  # raises before anything is measured
    outcomes: list[Outcome] = []
    tellers = [
        _Teller(progress, each.field, number, len(tuned), options.budget.gpu_seconds)
        for number, each in enumerate(tuned, 1)
    ]
    tellers[0](0.0, "ranking kernels")
    ranked = _ranked(tuned, options.budget.candidates)
    with gpus(chosen.devices, machinery.machine_on, machinery.protocol) as workers:
        for each, found, tell in zip(tuned, ranked, tellers, strict=True):
            facts = _facts(each, baselines[each.source.path], chosen)
            if options.again and chosen.why_not:
                raise chosen.why_not
            if options.again:
                store.forget(facts)
            study = store.study(facts)
            _refuse_stale(store, study, each, facts)
            search = Search(found, partial(neighbours, each))
            run = _Run(
                each,
                study,
                search,
                workers,
                machinery.prepare,
                options.budget.gpu_seconds,
                tell,
                _least_seconds(each, chosen.gpu),
            )
            verdict, measured = run.verdict(chosen.why_not)
            outcome = _outcome(each, facts, search, study, verdict, measured, options)
            _write_winner(outcome, study)
            if options.table is not None:
                add_to_table(options.table, [outcome.row])
            outcomes.append(outcome)
    return outcomes


def _ranked(tuned: Sequence[TuningTarget], count: int) -> list[list[TuningCandidate]]:
    """Return the first candidates of each, found in processes beside each other.

    Nothing else goes on meanwhile: a process that is forked has the locks that other threads hold, for good.
    """
    pool = ThreadPoolExecutor(usable_cores())
    found = [pool.submit(first_candidates, each, count) for each in tuned]
    left = {*found}
    try:
        while left:
            done, left = wait(left, WAITING_SECONDS)  # wakes: a signal may come as it falls asleep
            for each in done:
                each.result()
    finally:  # an interrupt does not wait for them
        pool.shutdown(wait=False, cancel_futures=True)
    return [each.result() for each in found]


# --- what is tuned, and where


def _tuned(specs: Sequence[Path], shapes: Sequence[Shape]) -> tuple[list[TuningTarget], dict[str, Baseline]]:
    """Return each spec for each shape, and the baseline of each spec."""
    found: list[TuningTarget] = []
    baselines: dict[str, Baseline] = {}
    errors: list[Diagnostic] = []
    for path in specs:
        try:
            source = load_spec(path)
            baselines[source.path] = cublas(source)
            refuse_k(source.problem, shapes)
            for shape in shapes:
                if not fitting([shape], single_tile(source)):
                    message = f"a kernel of a single tile does not compute {shape_text(shape)}"
                    raise GemmgenError([Diagnostic(source.path, "bad-shapes", message)])
                found.append(TuningTarget(source, shape))
        except GemmgenError as error:
            errors += error.diagnostics
    if errors:
        raise GemmgenError(errors)
    generations = {each.source.request.gpu.architecture.generation for each in found}
    if len(generations) > 1:
        message = f"these specs are for {' and '.join(sorted(generations))}: one GPU runs one of them"
        raise GemmgenError([Diagnostic(found[0].source.path, "no-gpu", message)])
    return found, baselines


@dataclass(frozen=True)
class _TuningGpu:
    """The GPUs to measure on, or why there are none: then the store must have all that is asked for."""

    gpu: str
    devices: Sequence[int]
    environment: Environment | None
    why_not: GemmgenError | None


def _choose(
    store: Store, tuned: Sequence[TuningTarget], options: TuningOptions, machine_on: MachineOn
) -> _TuningGpu:
    """Return the GPU that the options name, or the GPUs of this machine, or else the GPU of the store."""
    gpu = options.gpu
    known = [store.gpus(each.digest, each.shape) for each in tuned]
    if gpu is not None:
        for each, names in zip(tuned, known, strict=True):
            if gpu not in names:
                has = f"; it has {' and '.join(names)}" if names else ""
                message = f"has no trials on {gpu}{has}"
                where = f"{each.source.stem} {shape_text(each.shape)}"
                raise GemmgenError([Diagnostic(store.place, "other-gpu", message, field=where)])
        message = f"its trials on {gpu} are not finished: tune there first"
        return _TuningGpu(gpu, (), None, GemmgenError([Diagnostic(store.place, "other-gpu", message)]))
    try:
        found, environment = look(machine_on, options.devices, tuned[0].source.request.gpu.architecture)
    except GemmgenError as error:
        names = {name for each in known for name in each}
        if all(known) and len(names) == 1 and error.diagnostics[0].code == "no-gpu":
            return _TuningGpu(names.pop(), (), None, error)
        raise
    return _TuningGpu(environment.gpu, found, environment, None)


def _facts(tuned: TuningTarget, baseline: Baseline, place: _TuningGpu) -> StudyFacts:
    return StudyFacts(
        stem=tuned.source.stem,
        digest=tuned.digest,
        description=tuned.source.description,
        shape=tuned.shape,
        gpu=place.gpu,
        baseline=baseline.text,
        environment=place.environment,
    )


def _least_seconds(tuned: TuningTarget, gpu: str) -> float:
    """Return the time that the datasheet allows, 0 for a GPU that no spec can name."""
    problem = tuned.source.problem
    peaks = peaks_of(gpu, max(problem.a.smem_bits, problem.b.smem_bits))
    return peaks.seconds(tuned.shape, dtypes_of(problem).moved_bytes(tuned.shape)) if peaks else 0.0


def _refuse_stale(store: Store, study: Study, tuned: TuningTarget, facts: StudyFacts) -> None:
    """Kernels that gemmgen makes otherwise now are not those that were measured."""
    kernels = {trial.job.kernel: trial for trial in study.trials()}
    stale = [trial.label for kernel, trial in kernels.items() if not _is_made(tuned, trial.pins, kernel)]
    if stale:
        message = (
            f"{len(stale)} of its {len(kernels)} kernels are no longer what gemmgen makes of their specs, "
            f"`{stale[0]}` first: tune into another --store, or measure it --again"
        )
        raise GemmgenError([Diagnostic(store.place, "stale-kernel", message, field=facts.field)])


def _is_made(tuned: TuningTarget, pins: Pins, kernel: str) -> bool:
    plan = tuned.plan(pins)
    return plan is not None and candidate_of(tuned, plan).kernel == kernel


# --- measuring


@dataclass
class _Teller:
    """Says how far a shape is."""

    progress: Callable[[TuningProgress], None]
    subject: str
    number: int
    count: int
    budget: float

    def __call__(self, spent: float, text: str) -> None:
        self.progress(TuningProgress(self.subject, self.number, self.count, spent, self.budget, text))


@dataclass
class _Run:
    """The trials of one study that this process makes, one worker for each GPU."""

    tuned: TuningTarget
    study: Study
    search: Search
    workers: Sequence[GpuWorker]
    prepare: Prepare
    budget: float
    tell: _Teller
    least_seconds: float
    measured: int = 0
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Why kernels cannot be compiled and run at all, by their hashes; empty of those that can."""
    running: set[int] = field(default_factory=set[int])
    """The trials that are being measured."""
    lock: Lock = field(default_factory=Lock)
    ended: Event = field(default_factory=Event)

    def verdict(self, why_not: GemmgenError | None) -> tuple[SearchVerdict, int]:
        """Measure until nothing is left, and return what is known then, and how many trials were made."""
        if why_not is not None:
            found, _ = self._next()
            if isinstance(found, SearchVerdict):
                return found, 0
            raise why_not
        with scratch() as directory:
            pool = ThreadPoolExecutor(len(self.workers))
            loops = [pool.submit(self._loop, gpu, Path(directory)) for gpu in self.workers]
            try:
                left = {*loops}
                while left:
                    done, left = wait(left, WAITING_SECONDS)  # wakes: a signal may come as it falls asleep
                    for each in done:
                        each.result()
            except Exception:
                self.ended.set()
                wait(loops)  # for the trials that others are in the middle of
                raise
            finally:
                self.ended.set()
                self._give_back()
                pool.shutdown(wait=False, cancel_futures=True)
        found, _ = self._next()
        assert isinstance(found, SearchVerdict)
        return found, self.measured

    def _give_back(self) -> None:
        """Let others take what this process does not finish: at an interrupt."""
        for number in tuple(self.running):
            self.study.fail(number, "lost", "interrupted", 0.0, utc_now())

    def _next(self) -> tuple[JobBatch | SearchVerdict, list[TrialRecord]]:
        """Return what is to be done, and what is known."""
        trials = self.study.trials()
        tired = remaining(trials, self.budget) <= 0
        with self.lock:  # neighbours are found once
            found = self.search.next(trials, tired=tired)
        if found is None:
            failed = next((trial for trial in trials if trial.message), None)
            reason = f": `{failed.label}` {WHY[failed.why or 'failed']}: {failed.message}" if failed else ""
            message = f"none of {counted(len(self.search.candidates), 'kernel')} works{reason}"
            where = shape_text(self.tuned.shape)
            raise GemmgenError([Diagnostic(self.tuned.source.path, "no-kernel", message, field=where)])
        return found, trials

    def _loop(self, gpu: GpuWorker, directory: Path) -> None:
        """Take one job after the other, until there are none and nobody has any."""
        while not self.ended.is_set():
            found, trials = self._next()
            if isinstance(found, SearchVerdict):
                return
            taken = {trial.job for trial in trials}
            free = [job for job in found.jobs if job not in taken]
            spent = sum(trial.gpu_seconds for trial in trials)
            self._prepare(free, directory, spent)
            self.tell(spent, f"{found.name}, {counted(len(found.jobs), 'trial')} to go")
            for job in free:
                if (number := self.study.claim(job, self.search.known[job.kernel])) is not None:
                    self._measure(gpu, job, number, directory)
                    break
            else:
                time.sleep(WAITING_SECONDS)

    def _prepare(self, jobs: Sequence[Job], directory: Path, spent: float) -> None:
        """Compile what has not been compiled yet."""
        with self.lock:
            kernels = dict.fromkeys(kernel for job in jobs for kernel in (job.kernel, job.against))
            paths = {
                kernel: _module_path(directory, kernel) for kernel in kernels if kernel not in self.failures
            }
            for kernel, path in paths.items():
                path.write_text(self.search.known[kernel].module, encoding="utf-8", newline="\n")
            if paths:
                self.tell(spent, f"compiling {counted(len(paths), 'kernel')}")
                found = self.prepare(self.tuned.source.request, self.tuned.shape, [*paths.values()])
                self.failures |= {kernel: found.get(path, "") for kernel, path in paths.items()}

    def _measure(self, gpu: GpuWorker, job: Job, number: int, directory: Path) -> None:
        """Have a trial measured, and keep what came of it."""
        if failure := self.failures[job.kernel]:
            self.study.fail(number, "failed", failure, 0.0, utc_now())
            return
        self.running.add(number)
        with self.lock:  # nobody plans meanwhile: the process would have the locks of that for good
            gpu.start()
        answer = gpu.measure(
            Comparison(
                source=self.tuned.source,
                shape=self.tuned.shape,
                kernel=job.kernel,
                against=job.against,
                modules={kernel: _module_path(directory, kernel) for kernel in (job.kernel, job.against)},
                rounds=ROUNDS[job.rung],
            )
        )
        self.running.discard(number)
        self.measured += 1
        samples, date = answer.samples, utc_now()
        if samples is None:
            self.study.fail(number, answer.why or "failed", answer.message, answer.gpu_seconds, date)
        elif (seconds := min(median(samples.seconds), median(samples.baseline_seconds))) < self.least_seconds:
            whose = "it" if seconds == median(samples.seconds) else "the baseline beside it"
            message = f"{whose} reads {self.least_seconds / seconds:.2f} of the datasheet: do not believe it"
            self.study.fail(number, "impossible", message, answer.gpu_seconds, date)
        else:
            self.study.finish(number, samples, answer.gpu_seconds, date)


WHY: Final[Mapping[str, str]] = {
    "cannot": "cannot",
    "wrong": "is wrong",
    "failed": "failed",
    "impossible": "is above the roofline",
}
"""Why trials fail, in words."""


def _module_path(directory: Path, kernel: str) -> Path:
    return directory / f"kernel_{kernel[:16]}.py"


# --- what is written


def _outcome(
    tuned: TuningTarget,
    facts: StudyFacts,
    search: Search,
    study: Study,
    verdict: SearchVerdict,
    measured: int,
    options: TuningOptions,
) -> Outcome:
    trials, winner, final = study.trials(), search.known[verdict.winner], verdict.final
    environment, samples = study.facts["environment"], final.samples
    assert samples
    path = options.out / f"{tuned.stem}.yaml"
    beside = Path.cwd() if options.table is None else options.table.parent
    m, n, k = tuned.shape
    row = TunedRow(
        gpu=facts.gpu,
        m=m,
        n=n,
        k=k,
        dtypes=dtypes_of(tuned.source.problem),
        problem=tuned.source.contest,
        description=tuned.source.description,
        spec=Path(os.path.relpath(path, beside)).as_posix(),
        kernel_sha256=winner.kernel,
        seconds=median(samples.seconds),
        baseline_seconds=median(samples.baseline_seconds),
        first_seconds=median(samples.against_seconds),
        tried=len({trial.job.kernel for trial in trials}),
        date=final.date,
        gemmgen=__version__,
        torch=environment["torch"],
        triton=environment["triton"],
    )
    return Outcome(tuned, facts.gpu, winner, verdict, tuple(trials), measured, path, row)


def _write_winner(outcome: Outcome, study: Study) -> None:
    """Write the winner's spec; what is there under its name must be one of this command's too."""
    path = outcome.path
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        message = "exists and is not of `gemmgen tune`: move it, or choose another --out"
        raise GemmgenError([Diagnostic(path.as_posix(), "foreign-file", message)])
    write_files({path: f"{_evidence_text(outcome, study)}{outcome.winner.text}".encode()})
    product = make(path)
    if kernel_sha256(product.plan, product.source.stem) != outcome.winner.kernel:
        raise AssertionError(f"{path}: does not make the kernel that was measured")


def _evidence_text(outcome: Outcome, study: Study) -> str:
    """Return the comments that a winner's spec begins with."""
    row, samples, environment = outcome.row, outcome.samples, study.facts["environment"]
    states = [f"{value:g} {unit}" for name, unit in UNITS if (value := samples.machine.get(name)) is not None]
    failed = sum(outcome.failures.values())
    failures = f", {counted(failed, 'trial')} failed" if failed else ""
    tuned, tried = outcome.tuned, counted(row.tried, "kernel")
    at = f" at {', '.join(states)}" if states else ""
    stays = ", which this is" if outcome.verdict.winner == outcome.verdict.first else ""
    lines = [
        f"{MARK} {row.gemmgen} from {tuned.source.stem}.yaml for {shape_text(tuned.shape)}, {row.date}.",
        f"# {_times(samples.seconds)} a call{at}:",
        f"# {_ratio(samples.baseline_spread)} times as fast as {study.facts['baseline']},",
        f"# {_ratio(samples.against_spread)} times as fast as the planner's first choice{stays}.",
        f"# {tried} tried{failures}, {outcome.gpu_seconds:.1f} s of GPU time.",
        f"# {row.gpu}, torch {row.torch}, Triton {row.triton}, driver {environment['driver']}.",
        f"# kernel {row.kernel_sha256}",
    ]
    if outcome.remark:
        lines.insert(-2, f"# {outcome.remark[0].upper()}{outcome.remark[1:]}.")
    return "".join(f"{comment_text(line)}\n" for line in lines)


UNITS: Final = (("sm_clock_mhz", "MHz"), ("power_w", "W"), ("temperature_c", "degrees"))


def _times(seconds: Sequence[float]) -> str:
    found = Spread.of((tuple(seconds),))
    lower, upper = found.quartiles
    return f"{found.median * 1e6:.2f} us [{lower * 1e6:.2f}, {upper * 1e6:.2f}]"


def _ratio(found: Spread) -> str:
    return f"{found.median:.3f} [{found.quartiles[0]:.3f}, {found.quartiles[1]:.3f}]"
