"""The search for the fastest kernel of a shape: which jobs are next, or which kernel has won.

The answer follows from the trials alone: rungs of fewer kernels and more rounds, and then neighbours of the
fastest. All processes that share a study ask the same question of the same trials, and get the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from gemmgen.tune.candidates import Pins, TuningCandidate
from gemmgen.tune.trials import Job, Trial, TrialSamples

ROUNDS: Final = (5, 15, 45, 60)
"""Rounds of a trial on each rung: for all kernels, a third of them, a ninth, and finally the winner."""
LAST_RUNG: Final = 2
FINAL: Final = 3
"""The rung on which the winner meets the planner's first choice once more: the fastest of many owes some of
its lead to luck, which this does not measure again."""
RUNG_DIVISOR: Final = 3
"""The divisor of the number of kernels from rung to rung."""
NEIGHBOURS_KEPT: Final = 3
"""Greatest number of faster neighbours that go on to the last rung."""
DESCENTS: Final = 3
"""Greatest number of times that neighbours of the fastest kernel are tried."""
LEAST_GAIN: Final = 0.003
"""Smallest gain that counts as faster: two processes on an H200 read the ratios of the last rung's kernels up
to 0.0023 apart (``7a8a2c58:benchmarks/tune/h200.jsonl``), each with quartiles a few 0.0001 around.
"""


@dataclass(frozen=True)
class JobBatch:
    """Jobs that can be measured in any order, all before the next jobs are known."""

    name: str
    open: tuple[Job, ...]
    """Jobs that nobody measures yet."""
    running: tuple[Job, ...]
    """Jobs that a process measures."""
    gpu_seconds: float
    """GPU time of the trials so far, in seconds."""


@dataclass(frozen=True)
class SearchVerdict:
    """End of the search: the fastest kernel, and the trial that decides it."""

    winner: TuningCandidate
    first: TuningCandidate
    """The first of the planner's choices that works."""
    final: Trial
    """Trial of the winner against the first choice, or of the first choice against itself if it stays."""
    refused: tuple[TuningCandidate, Trial] | None
    """A kernel that led, and its second trial, in which its lead is within the noise; None without one."""
    trials: Mapping[Job, Trial]
    """All trials of the search."""

    @property
    def gpu_seconds(self) -> float:
        """GPU time of all trials, in seconds."""
        return sum(trial.gpu_seconds for trial in self.trials.values())


def gain(samples: TrialSamples) -> float:
    """Return the gain of a kernel over the one that it is compared with; 0 if it is within the noise.

    The noise is half of the distance between the quartiles of the rounds, and at least LEAST_GAIN.
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
    budget: float = math.inf
    """GPU time of all trials, in seconds: once it is spent, only jobs that decide are begun."""
    known: dict[str, TuningCandidate] = field(default_factory=dict[str, TuningCandidate])
    """All candidates, tried or not, by their hashes."""
    _around: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def __post_init__(self) -> None:
        self.known |= {candidate.kernel: candidate for candidate in self.candidates}

    def next(self, trials: Mapping[Job, Trial | None]) -> JobBatch | SearchVerdict | None:
        """Return the next jobs, or the verdict; None if no candidate works.

        The trial of a job that a process is measuring is None. Trials do not count if this search does not
        propose their jobs, for example because gemmgen now makes another module for a kernel.
        """
        return _Walk(self, trials).next()

    def around(self, kernel: str) -> tuple[str, ...]:
        """Return the kernels next to one, found once."""
        if kernel not in self._around:
            found = self.neighbours(self.known[kernel].pins)
            for candidate in found:
                self.known.setdefault(candidate.kernel, candidate)
            self._around[kernel] = tuple(candidate.kernel for candidate in found)
        return self._around[kernel]


class _Wait(Exception):  # noqa: N818 it is no error
    """Raised while there are jobs to measure first."""

    def __init__(self, batch: JobBatch) -> None:
        super().__init__(batch.name)
        self.batch = batch


@dataclass
class _Walk:
    """The way through the search as far as the trials go."""

    search: Search
    trials: Mapping[Job, Trial | None]
    seen: dict[Job, Trial] = field(default_factory=dict[Job, Trial])
    """Trials on the way so far."""

    def next(self) -> JobBatch | SearchVerdict | None:
        try:
            first = self._first()
            if first is None:
                return None
            leader = self._fastest_of_neighbours(self._fastest_of_rungs(first))
            return self._verdict(first, leader)
        except _Wait as wait:
            return wait.batch

    def _first(self) -> str | None:
        """Return the first candidate that works, measured against itself."""
        for candidate in self.search.candidates:
            job = Job(candidate.kernel, LAST_RUNG, candidate.kernel)
            if self._done("the planner's first choice", [job], decides=True):
                return candidate.kernel
        return None

    def _fastest_of_rungs(self, first: str) -> str:
        """Return the fastest candidate; each rung measures the fastest third of the rung before."""
        field = [each.kernel for each in self.search.candidates if each.kernel != first]
        leader = first
        for rung in range(LAST_RUNG + 1):
            name = f"rung {rung + 1} of {LAST_RUNG + 1}"
            found = self._done(name, [Job(kernel, rung, first) for kernel in field])
            if found and next(iter(found.values())).against_spread.median > 1:
                leader = next(iter(found))
            elif found or rung == 0:
                leader = first
            field = [*found][: math.ceil(len(found) / RUNG_DIVISOR)]
        return leader

    def _fastest_of_neighbours(self, leader: str) -> str:
        """Return the fastest that neighbours lead to."""
        seen = {candidate.kernel for candidate in self.search.candidates}
        for descent in range(DESCENTS):
            if self._budget_is_spent() and not self._has_begun(leader):
                break
            kernels = [kernel for kernel in self.search.around(leader) if kernel not in seen]
            seen |= {*kernels}
            name = f"neighbours, {descent + 1} of at most {DESCENTS}"
            found = self._done(name, [Job(kernel, 1, leader) for kernel in kernels])
            faster = [kernel for kernel, samples in found.items() if samples.against_spread.median > 1]
            found = self._done(name, [Job(kernel, LAST_RUNG, leader) for kernel in faster[:NEIGHBOURS_KEPT]])
            best = next(iter(found), None)
            if best is None or not gain(found[best]):
                break
            leader = best
        return leader

    def _has_begun(self, leader: str) -> bool:
        """Return True if neighbours of a kernel were tried before the budget was spent."""
        return any(job.against == leader and job.rung == 1 for job in self.trials)

    def _verdict(self, first: str, leader: str) -> SearchVerdict:
        winner = kept = self.search.known[first]
        final, refused = self.seen[Job(first, LAST_RUNG, first)], None
        if leader != first:
            job = Job(leader, FINAL, first)
            found = self._done("the winner once more", [job], decides=True)
            if leader in found and gain(found[leader]):
                winner, final = self.search.known[leader], self.seen[job]
            else:
                refused = self.search.known[leader], self.seen[job]
        return SearchVerdict(winner, kept, final, refused, self.seen)

    def _done(self, name: str, jobs: Sequence[Job], *, decides: bool = False) -> dict[str, TrialSamples]:
        """Return the samples of kernels, the fastest first, once all jobs are measured; raises _Wait before.

        If the budget is spent, only running jobs and deciding jobs are waited for.
        """
        self.seen |= {job: trial for job in jobs if (trial := self.trials.get(job))}
        running = tuple(job for job in jobs if job in self.trials and job not in self.seen)
        left = tuple(job for job in jobs if job not in self.trials)
        if self._budget_is_spent() and not decides:
            left = ()
        if left or running:
            spent = sum(trial.gpu_seconds for trial in self.seen.values())
            raise _Wait(JobBatch(name, left, running, spent))
        measured = {job.kernel: self.seen[job].samples for job in jobs if job in self.seen}
        found = {kernel: samples for kernel, samples in measured.items() if samples}
        return dict(sorted(found.items(), key=lambda each: -each[1].against_spread.median))

    def _budget_is_spent(self) -> bool:
        return remaining(self.seen.values(), self.search.budget) <= 0


def remaining(trials: Collection[Trial], budget: float) -> float:
    """Return the GPU seconds that are left, less a reserve for the last trial."""
    seconds = [trial.gpu_seconds for trial in trials if trial.samples]
    # The median, because the first trial of a worker takes longer than the others.
    reserve = 2 * median(seconds) if seconds else 0.0
    return budget - sum(trial.gpu_seconds for trial in trials) - reserve
