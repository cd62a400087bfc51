"""The measurements of one study: workers claim jobs, compile kernels, and record the trials."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from threading import Event, Lock
from typing import Final, TypeVar

from gemmgen.bench.record import peaks_of, utc_now
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.rule import counted
from gemmgen.problem import shape_text
from gemmgen.problem.dtypes import Dtypes
from gemmgen.processes.scratch import scratch
from gemmgen.tune.candidates import TuningTarget
from gemmgen.tune.search import ROUNDS, JobBatch, Search, SearchVerdict
from gemmgen.tune.store import Study
from gemmgen.tune.trials import Job, Trial
from gemmgen.tune.worker import Comparison, GpuWorker, Prepare

WAITING_SECONDS: Final = 0.2
"""Interval at which an idle worker looks for new jobs, in seconds."""
PATIENCE_SECONDS: Final = 30.0
"""Seconds for which a process with nothing else to do waits for a trial of another process, which may have
been killed: a trial takes less than a second, or some for the first one of a large shape.
"""

T = TypeVar("T")


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


def results(futures: Sequence[Future[T]]) -> list[T]:
    """Wait for all futures, and return their results in order; the first error is raised at once."""
    left = {*futures}
    while left:
        # The timeout lets the main thread notice a signal that comes just before the wait.
        done, left = wait(left, WAITING_SECONDS)
        for each in done:
            each.result()
    return [each.result() for each in futures]


Tell = Callable[[float, str], None]
"""Progress callback: takes the GPU seconds that were spent, and a text."""


@dataclass
class StudyRun:
    """The trials of one study that this process makes, one worker for each GPU."""

    tuned: TuningTarget
    study: Study
    search: Search
    workers: Sequence[GpuWorker]
    """Workers to measure with; if there are none, the study must have all trials."""
    prepare: Prepare
    tell: Tell
    measured: int = 0
    """Number of trials that this process has measured."""
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Reasons why kernels cannot be compiled and run, by their hashes; empty for kernels that can."""
    running: set[Job] = field(default_factory=set[Job])
    """Jobs that this process is measuring."""
    others: dict[Job, float] = field(default_factory=dict[Job, float])
    """Times at which this process first saw that another one measures a job, by its own clock."""
    lock: Lock = field(default_factory=Lock)
    ended: Event = field(default_factory=Event)

    def verdict(self) -> SearchVerdict:
        """Measure until the search has a verdict, and return the verdict.

        Raises GemmgenError: ``no-kernel``; ``other-gpu`` if trials are missing and there are no workers.
        """
        if isinstance(found := self._next(), SearchVerdict):
            return found
        if not self.workers:
            message = f"its trials on {self.study.environment.gpu} are not finished: tune there first"
            raise GemmgenError([Diagnostic(self.study.place, "other-gpu", message, field=self.tuned.field)])
        with scratch() as directory:
            pool = ThreadPoolExecutor(len(self.workers))
            loops = [pool.submit(self._loop, gpu, Path(directory)) for gpu in self.workers]
            try:
                results(loops)
            except Exception:
                self.ended.set()
                wait(loops)  # until the other workers have ended their trials
                raise
            finally:
                self.ended.set()
                for job in tuple(self.running):  # other processes can measure them
                    self.study.release(job)
                pool.shutdown(wait=False, cancel_futures=True)
        found = self._next()
        assert isinstance(found, SearchVerdict)
        return found

    def _next(self) -> JobBatch | SearchVerdict:
        """Return the next jobs or the verdict; raises GemmgenError (``no-kernel``) if no kernel works."""
        trials = self.study.trials()
        with self.lock:  # neighbours are found once
            found = self.search.next(trials)
        if found is not None:
            return found
        label, reason = next(
            (candidate.label, trial)
            for candidate in self.search.candidates
            for job, trial in trials.items()
            if trial and trial.why and job.kernel == candidate.kernel
        )
        message = (
            f"none of {counted(len(self.search.candidates), 'kernel')} works: "
            f"`{label}` {WHY[reason.why or 'failed']}: {reason.message}"
        )
        where = shape_text(self.tuned.shape)
        raise GemmgenError([Diagnostic(self.tuned.source.path, "no-kernel", message, field=where)])

    def _loop(self, gpu: GpuWorker, directory: Path) -> None:
        """Measure one job after the other until the search has a verdict."""
        while not self.ended.is_set() and isinstance(batch := self._next(), JobBatch):
            self._prepare(batch, directory)
            count = len(batch.open) + len(batch.running)
            self.tell(batch.gpu_seconds, f"{batch.name}, {counted(count, 'trial')} to go")
            for job in batch.open:
                if claimed := self.study.claim(job, self.search.known[job.kernel].label):
                    self.running.add(job)
                    self.study.finish(claimed, self._measured(gpu, job, directory))
                    self.running.discard(job)
                    break
            else:
                self._release_abandoned(batch.running)
                # At random, so that processes that claimed a job at the same time do not do so again.
                time.sleep(WAITING_SECONDS * random.uniform(0.5, 1.5))

    def _release_abandoned(self, jobs: Sequence[Job]) -> None:
        """Release the jobs of other processes that have taken longer than PATIENCE_SECONDS."""
        now = time.monotonic()
        for job in jobs:
            if job not in self.running and now - self.others.setdefault(job, now) > PATIENCE_SECONDS:
                self.study.release(job)
                del self.others[job]

    def _prepare(self, batch: JobBatch, directory: Path) -> None:
        """Compile the kernels of open jobs that have not been compiled yet."""
        with self.lock:
            kernels = dict.fromkeys(kernel for job in batch.open for kernel in (job.kernel, job.against))
            paths = {
                kernel: _module_path(directory, kernel) for kernel in kernels if kernel not in self.failures
            }
            for kernel, path in paths.items():
                path.write_text(self.search.known[kernel].module, encoding="utf-8", newline="\n")
            if paths:
                self.tell(batch.gpu_seconds, f"compiling {counted(len(paths), 'kernel')}")
                found = self.prepare(self.tuned.source.request, self.tuned.shape, [*paths.values()])
                self.failures |= {kernel: found.get(path, "") for kernel, path in paths.items()}

    def _measured(self, gpu: GpuWorker, job: Job, directory: Path) -> Trial:
        """Measure a job; samples below the time that the datasheet allows are a failure."""
        if failure := self.failures[job.kernel]:
            return Trial(0.0, utc_now(), why="failed", message=failure)
        with self.lock:  # no thread may plan now: a forked process would inherit its locks
            gpu.start()
        trial = gpu.measure(
            Comparison(
                source=self.tuned.source,
                shape=self.tuned.shape,
                kernel=job.kernel,
                against=job.against,
                modules={kernel: _module_path(directory, kernel) for kernel in (job.kernel, job.against)},
                rounds=ROUNDS[job.rung],
            )
        )
        self.measured += 1
        if samples := trial.samples:
            own, least = median(samples.seconds), self._least_seconds()
            seconds = min(own, median(samples.baseline_seconds))
            if seconds < least:
                whose = "it" if seconds == own else "the baseline beside it"
                message = f"{whose} reads {least / seconds:.2f} of the datasheet: do not believe it"
                return replace(trial, samples=None, why="impossible", message=message)
        return trial

    def _least_seconds(self) -> float:
        """Return the time that the datasheet allows, 0 for a GPU that no spec can name."""
        problem = self.tuned.source.problem
        peaks = peaks_of(self.study.environment.gpu, max(problem.a.smem_bits, problem.b.smem_bits))
        dtypes, shape = Dtypes.of(problem), self.tuned.shape
        return peaks.seconds(dtypes.flops(shape), dtypes.moved_bytes(shape)) if peaks else 0.0


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
