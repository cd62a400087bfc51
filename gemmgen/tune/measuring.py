"""The measurements of one study: workers claim jobs, compile kernels, and record the trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Event, Lock
from typing import Final

from gemmgen.bench.record import utc_now
from gemmgen.device import OUT_OF_MEMORY
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.rule import counted
from gemmgen.problem import shape_text
from gemmgen.processes.scratch import scratch
from gemmgen.tune.candidates import TuningTarget
from gemmgen.tune.search import ROUNDS, JobBatch, Search, SearchVerdict, remaining
from gemmgen.tune.study import Study
from gemmgen.tune.trials import Job, TrialRecord
from gemmgen.tune.worker import Comparison, GpuWorker, Prepare

WAITING_SECONDS: Final = 0.2
"""Interval at which an idle worker looks for new jobs, in seconds."""


@dataclass(frozen=True)
class TuningProgress:
    """Progress of tuning, for the user."""

    subject: str
    """Name of the spec and the shape."""
    number: int
    """Number of the spec and shape, counted from 1."""
    count: int
    spent: float
    """Seconds of GPU time."""
    budget: float
    text: str

    def __str__(self) -> str:
        spent = f"{self.spent:.0f} of {self.budget:.0f} s"
        return f"{self.subject}, {self.number} of {self.count}: {self.text}, {spent}"


@dataclass
class ProgressReporter:
    """Reports the progress of one spec and shape."""

    progress: Callable[[TuningProgress], None]
    subject: str
    number: int
    count: int
    budget: float

    def __call__(self, spent: float, text: str) -> None:
        """Report a text, and the seconds of GPU time that were spent."""
        self.progress(TuningProgress(self.subject, self.number, self.count, spent, self.budget, text))


@dataclass
class StudyRun:
    """The trials of one study that this process makes, one worker for each GPU."""

    tuned: TuningTarget
    study: Study
    search: Search
    workers: Sequence[GpuWorker]
    prepare: Prepare
    budget: float
    tell: ProgressReporter
    least_seconds: float
    measured: int = 0
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Reasons why kernels cannot be compiled and run, by their hashes; empty for kernels that can."""
    running: set[int] = field(default_factory=set[int])
    """Numbers of the trials that this process is measuring."""
    lock: Lock = field(default_factory=Lock)
    ended: Event = field(default_factory=Event)

    def verdict(self, why_not: GemmgenError | None) -> tuple[SearchVerdict, int]:
        """Measure until the search has a verdict; return the verdict and the trials of this process."""
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
                    # The timeout lets the main thread notice a signal that comes just before the wait.
                    done, left = wait(left, WAITING_SECONDS)
                    for each in done:
                        each.result()
            except Exception:
                self.ended.set()
                wait(loops)  # until the other workers have ended their trials
                raise
            finally:
                self.ended.set()
                self._give_back()
                pool.shutdown(wait=False, cancel_futures=True)
        found, _ = self._next()
        assert isinstance(found, SearchVerdict)
        return found, self.measured

    def _give_back(self) -> None:
        """Fail the unfinished trials of this process as lost, so that other processes can measure them."""
        for number in tuple(self.running):
            self.study.fail(number, "lost", "interrupted", 0.0, utc_now())

    def _next(self) -> tuple[JobBatch | SearchVerdict, list[TrialRecord]]:
        """Return the next jobs or the verdict, and all trials."""
        trials = self.study.trials()
        budget_spent = remaining(trials, self.budget) <= 0
        with self.lock:  # neighbours are found once
            found = self.search.next(trials, budget_spent=budget_spent)
        if found is None:
            failed = next((trial for trial in trials if trial.message), None)
            reason = f": `{failed.label}` {WHY[failed.why or 'failed']}: {failed.message}" if failed else ""
            message = f"none of {counted(len(self.search.candidates), 'kernel')} works{reason}"
            where = shape_text(self.tuned.shape)
            raise GemmgenError([Diagnostic(self.tuned.source.path, "no-kernel", message, field=where)])
        return found, trials

    def _loop(self, gpu: GpuWorker, directory: Path) -> None:
        """Measure one job after the other until the search has a verdict."""
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
        """Compile the kernels of jobs that have not been compiled yet."""
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
        """Measure a trial, and record its samples or its failure."""
        if failure := self.failures[job.kernel]:
            self.study.fail(number, "failed", failure, 0.0, utc_now())
            return
        self.running.add(number)
        with self.lock:  # no thread may plan now: a forked process would inherit its locks
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
        if answer.of_shape:  # the trial is given back: no other kernel would have the memory now
            place = shape_text(self.tuned.shape)
            fault = Diagnostic(self.tuned.source.path, OUT_OF_MEMORY, answer.message, field=place)
            raise GemmgenError([fault])
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
    "out-of-memory": "ran out of memory",
}
"""Verbs for the reasons of failures."""


def _module_path(directory: Path, kernel: str) -> Path:
    return directory / f"kernel_{kernel[:16]}.py"
