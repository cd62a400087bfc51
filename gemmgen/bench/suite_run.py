"""The timing of many kernels on the shapes of a suite; an interrupted run resumes from its record."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

from gemmgen.bench.arms import Progress, first_line, wrong
from gemmgen.bench.baseline import Baseline
from gemmgen.bench.machine import CudaMachine, Machine, SuiteMachine, UnfinishedError
from gemmgen.bench.module_arm import bound
from gemmgen.bench.prepare import Prepared, prepare_in_children
from gemmgen.bench.record import Environment, GpuState, measured_of, path_from_here, peaks_of, utc_now
from gemmgen.bench.result_log import (
    BASELINE,
    ArmSamples,
    ContestOf,
    FinalPair,
    PlannerRanking,
    Refused,
    Result,
    ResultLog,
    Rounds,
    Session,
    ratios,
)
from gemmgen.bench.result_log import SCHEMA as SUITE_SCHEMA
from gemmgen.bench.suite_file import LARGEST, Suite
from gemmgen.bench.tasks import (
    KernelUnderTest,
    ShapeRun,
    Task,
    baselines_of,
    kernels_of,
    open_tasks,
    ranked_runs,
    shape_runs,
    with_kernel,
)
from gemmgen.bench.timing_session import Running, Sample, TimingSession, rounded
from gemmgen.device import OUT_OF_MEMORY, is_out_of_memory, memory_text, require_gpu
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.literals import visible
from gemmgen.module import import_generated, matmul_of, packing_of
from gemmgen.numerics.reference import tolerance
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.problem.dtypes import Dtypes
from gemmgen.processes.scratch import scratch

FINAL_PAIR_SECONDS: Final = 0.25
"""Seconds for which the winner and the baseline alternate in pairs. At the power limit the clock swings for
tens of milliseconds: seven pairs at 8192 x 8192 x 8192 had medians of 0.93 and 1.03
(``benchmarks/fit/h200_orders.json``).
"""
SUITE_ROUNDS: Final = Rounds(playoff_seconds=FINAL_PAIR_SECONDS)
"""The timing protocol of a suite."""


@dataclass(frozen=True)
class SuiteSelection:
    """Selects the shapes of a suite that are timed, and the kernels that are timed on each."""

    extents: range = range(1, LARGEST + 1)
    """Values of M whose shapes are timed."""
    candidates: int | None = None
    """Number of kernels of each open spec that its planner ranks first for a shape; None: the spec's own."""
    chosen: Callable[[Shape], str] | None = None
    """Returns the name of the one spec that is timed on a shape, as in a library; None: all are timed."""


@dataclass(frozen=True)
class SuiteMachinery:
    """The parts that touch a GPU: the timing protocol, the machine, and how kernels are compiled."""

    protocol: Rounds = SUITE_ROUNDS
    machine: SuiteMachine | None = None
    """Machine to time on; None: the current CUDA device."""
    prepare: Callable[[Sequence[Task], Progress], Prepared] = prepare_in_children


def time_suite(
    specs: Sequence[Path],
    suite: Suite,
    log: ResultLog,
    selection: SuiteSelection = SuiteSelection(),
    machinery: SuiteMachinery = SuiteMachinery(),
    progress: Progress = lambda _: None,
) -> None:
    """Time the kernels of specs on the selected shapes of a suite, and append the results to a log.

    Results that the log has already are not timed again. On each shape the kernels of one contest alternate
    with one baseline, cuBLAS. A kernel that does not support a shape, is wrong or fails is recorded as
    refused, and not timed there. Modules are compiled in child processes before anything is timed.

    Raises GemmgenError: a spec is rejected; no spec has the suite's types (``no-shapes``); ``no-gpu``;
    ``no-baseline``; ``other-machine`` if the log is of another GPU or other versions; ``device-lost`` if a
    kernel leaves the GPU unusable: the same call in a new process resumes after that kernel;
    ``out-of-memory``, after all shapes, if the GPU's memory did not suffice for kernels: the same call times
    these again.
    """
    protocol, machine, extents = machinery.protocol, machinery.machine, selection.extents
    with scratch() as directory:
        participants = kernels_of(specs, Path(directory))
        baselines = baselines_of(participants)
        if not any(suite.shapes(each.source.problem.a.dtype.name, extents) for each in participants):
            message = "has no shapes for the types of these specs"
            raise GemmgenError([Diagnostic(suite.path, "no-shapes", message)])
        runs = shape_runs(participants, suite, extents)
        if selection.chosen:
            runs = [with_kernel(found, selection.chosen(found.shape)) for found in runs]
        if selection.candidates:
            runs = ranked_runs(runs, selection.candidates, Path(directory), progress)
            participants = tuple(
                {each.entry.name: each for found in runs for each in found.participants}.values()
            )
        tasks = open_tasks(runs, baselines, _log_with(log, participants).done())
        if not tasks:
            return
        prepared = machinery.prepare(tasks, progress)
        gpu = tasks[0].source.request.gpu
        machine = machine or CudaMachine(require_gpu(gpu.architecture))
        session = _session(participants, baselines, suite, protocol, machine)
        _refuse_other_machine(log, session)
        log.write(session)
        _write_choices(log, runs)
        with machine.quiet(), machine.watched() as state_since:
            suite_run = SuiteRun(log, protocol, machine, session.environment, prepared, state_since)
            for number, task in enumerate(tasks, 1):
                progress(f"{task.place}, {number} of {len(tasks)}")
                suite_run.settle_seconds = (
                    protocol.warm_up_seconds if number == 1 else protocol.settle_seconds
                )
                suite_run.run(task)
        if suite_run.out_of_memory:
            raise GemmgenError(suite_run.out_of_memory)


def _write_choices(log: ResultLog, runs: Iterable[ShapeRun]) -> None:
    """Append the planner's rankings that the log does not have yet."""
    latest = log.choices
    for found in runs:
        for spec, kernels in found.choices.items():
            choice = PlannerRanking("choice", found.shape, found.contest, spec, kernels)
            if latest.get((found.contest, found.shape, spec)) != choice:
                log.write(choice)


def _log_with(log: ResultLog, participants: Sequence[KernelUnderTest]) -> ResultLog:
    """Return the log as if a session with these kernels followed: results of others become stale."""
    if not log.sessions:
        return log
    kernels = tuple(participant.entry for participant in participants)
    return ResultLog(None, [*log.lines, replace(log.sessions[-1], kernels=kernels)])


def _session(
    participants: Sequence[KernelUnderTest],
    baselines: Mapping[Contest, Baseline],
    suite: Suite,
    protocol: Rounds,
    machine: Machine,
) -> Session:
    environment = machine.environment()
    contests: dict[Contest, ContestOf] = {}
    for participant in participants:
        contest, problem = participant.entry.contest, participant.source.problem
        bits = max(problem.a.smem_bits, problem.b.smem_bits)
        contests[contest] = ContestOf(
            contest=contest,
            description=participant.source.description,
            dtypes=Dtypes.of(problem),
            baseline=baselines[contest].text,
            peak=peaks_of(environment.gpu, bits),
            measured=measured_of(environment.gpu, problem.a.multiplied.name),
        )
    return Session(
        line="session",
        schema=SUITE_SCHEMA,
        date=utc_now(),
        suite=path_from_here(Path(suite.path)),
        suite_sha256=suite.sha256,
        environment=environment,
        protocol=protocol,
        contests=tuple(contests.values()),
        kernels=tuple(participant.entry for participant in participants),
    )


def _refuse_other_machine(log: ResultLog, session: Session) -> None:
    """Raise GemmgenError (``other-machine``) if a session has another GPU, versions or protocol."""
    if not log.sessions:
        return
    before = log.sessions[-1]
    pairs = [("protocol", before.protocol, session.protocol)]
    for member in fields(Environment):
        if member.name != "gemmgen":
            old, new = (getattr(each.environment, member.name) for each in (before, session))
            pairs.append((member.name, old, new))
    for name, old, new in pairs:
        if old != new:
            message = f"was measured with another {name}, {old}, here it is {new}: use another record file"
            raise GemmgenError([Diagnostic(str(log.path), "other-machine", message)])


@dataclass
class SuiteRun:
    """The rounds on one shape after the other."""

    log: ResultLog
    protocol: Rounds
    machine: SuiteMachine
    environment: Environment
    prepared: Prepared
    state_since: Callable[[float], GpuState | None]
    settle_seconds: float = 0.0
    matmuls: dict[str, ModuleType] = field(default_factory=dict[str, ModuleType])
    """The modules by their kernels' names, imported once: each compiles or loads its kernel once."""
    out_of_memory: list[Diagnostic] = field(default_factory=list[Diagnostic])
    """The kernels, and the baseline, that were not timed for lack of memory, with the shapes."""

    def run(self, task: Task) -> None:
        """Time the correct kernels of a task in alternation, and record a result or a reason for each."""
        gc.collect()  # frees the previous shape: automatic collection is off in a quiet context
        l2_bytes = self.environment.l2_bytes
        with task.baseline.settings():
            try:
                module = partial(self._module, task.participants[0])
                packing = packing_of(task.source.problem, module)
                timing = TimingSession.of(
                    task.source, task.shape, self.protocol, self.machine, l2_bytes, packing
                )
                baseline = timing.running(BASELINE, task.baseline.bind)
            except Exception as error:
                self._note(task, BASELINE, "cannot", error)
                return
            kernels = tuple(self._right(task, timing))
            if kernels:
                self._time_kernels(task, timing, baseline, kernels)

    def _module(self, participant: KernelUnderTest) -> ModuleType:
        name = participant.entry.name
        if name not in self.matmuls:
            self.matmuls[name] = import_generated(participant.module_path)
        return self.matmuls[name]

    def _right(self, task: Task, timing: TimingSession) -> Iterator[Running]:
        """Yield the kernels whose numbers are right; record the reason for each other kernel."""
        for participant in task.participants:
            name = participant.entry.name
            if name in self.prepared.failures:
                self._note(task, name, "failed", self.prepared.failures[name])
                continue
            try:
                running = timing.running(name, partial(bound, matmul_of(self._module(participant))))
            except (ValueError, TypeError) as error:
                self._note(task, name, "cannot", error)
            except Exception as error:
                self._note(task, name, "failed", error)
            else:
                allowed = tolerance(participant.source.problem, task.shape, participant.source.promote_k)
                faults = tuple(wrong(allowed, running.deviation))
                if faults:
                    self._note(task, name, "wrong", "; ".join(faults))
                else:
                    yield running

    def _note(
        self, task: Task, kernel: str, why: Literal["cannot", "wrong", "failed"], error: Exception | str
    ) -> None:
        """Record that a kernel is not timed; raise GemmgenError (``device-lost``) if it has lost the GPU.

        If the memory of the GPU does not suffice, nothing is recorded, so that a later run times the kernel.
        """
        if isinstance(error, Exception) and is_out_of_memory(error):
            message = memory_text(error)
            self.out_of_memory.append(Diagnostic(kernel, OUT_OF_MEMORY, message, field=task.place))
            return
        text = visible(error) if isinstance(error, str) else first_line(error)
        self.log.write(Refused("refused", task.shape, task.contest, kernel, why, text))
        if isinstance(error, UnfinishedError) or (not isinstance(error, str) and self.machine.lost()):
            message = (
                f"{text}: this process cannot use the GPU any more; run the same command again to resume"
            )
            raise GemmgenError([Diagnostic(kernel, "device-lost", message, field=task.place)])

    def _time_kernels(
        self, task: Task, timing: TimingSession, baseline: Running, kernels: tuple[Running, ...]
    ) -> None:
        """Capture the arms and time them; note why there is no sample of one, or no round at all."""
        try:
            pass_seconds = timing.pass_seconds(baseline)
            passes = timing.passes(pass_seconds)
            samples = [timing.sample(baseline, passes)]
        except Exception as error:
            self._note(task, BASELINE, "cannot", error)
            return
        for running in kernels:
            try:
                samples.append(timing.sample(running, passes))
            except Exception as error:
                self._note(task, running.name, "failed", error)
        if len(samples) == 1:
            return
        try:
            result = self._rounds(task, timing, samples, pass_seconds)
        except GemmgenError:
            raise
        except Exception as error:  # any of the kernels may be at fault
            for sample in samples[1:-1] if not is_out_of_memory(error) else ():
                self._note(task, sample.running.name, "failed", f"rounds with it: {first_line(error)}")
            self._note(task, samples[-1].running.name, "failed", error)
        else:
            if result:
                self.log.write(result)

    def _rounds(
        self, task: Task, timing: TimingSession, samples: list[Sample], pass_seconds: float
    ) -> Result | None:
        """Let the GPU settle, time the rounds, and then time the best kernel and the baseline in pairs.

        Kernels whose results are wrong after the rounds are recorded as wrong: they leave state behind.
        """
        timing.settle(samples, self.settle_seconds)
        start = self.machine.now()
        by_arm = timing.rounds(samples, self.protocol.rounds)
        right = [arm for arm in range(1, len(samples)) if self._still_right(task, timing, samples[arm])]
        if not right:
            return None
        best = max(right, key=lambda arm: ratios(by_arm[0], by_arm[arm]).median)
        pairs = timing.turns(samples, [0, best] * timing.final_pairs(samples, by_arm, best))
        state = self.state_since(start)
        timed = [
            ArmSamples(
                kernel=sample.running.name,
                seconds=by_arm[arm],
                calls=sample.calls,
                relative_error=rounded(sample.running.deviation.relative),
                host_seconds=rounded(timing.host_seconds(sample.running.arm, pass_seconds)),
            )
            for arm, sample in enumerate(samples)
            if arm in (0, *right)
        ]
        return Result(
            line="result",
            shape=task.shape,
            contest=task.contest,
            families=task.families,
            input_sets=len(timing.sets),
            baseline=timed[0],
            baseline_kernels=self.prepared.launched.get((task.contest, task.shape), ()),
            kernels=tuple(timed[1:]),
            playoff=FinalPair(samples[best].running.name, pairs[best], pairs[0]),
            state=state,
        )

    def _still_right(self, task: Task, timing: TimingSession, sample: Sample) -> bool:
        """Judge what one more replay makes of the first set."""
        if faults := timing.faults_after(sample):
            self._note(task, sample.running.name, "wrong", f"after many replays: {'; '.join(faults)}")
        return not faults
