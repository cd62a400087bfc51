"""Tuning of specs for shapes: from the planner's ranking to the specs of the winners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gemmgen.bench.arms import dtypes_of
from gemmgen.bench.baseline import Baseline, cublas
from gemmgen.bench.record import Environment, peaks_of
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import Shape, shape_text
from gemmgen.processes.forking import usable_cores
from gemmgen.spec import load_spec
from gemmgen.tune.candidates import (
    Pins,
    TuningCandidate,
    TuningTarget,
    candidate_of,
    first_candidates,
    neighbours,
)
from gemmgen.tune.measuring import WAITING_SECONDS, ProgressReporter, StudyRun, TuningProgress
from gemmgen.tune.options import CUDA, TuningMachinery, TuningOptions
from gemmgen.tune.outcome import Outcome, outcome_of, write_winner
from gemmgen.tune.search import Search
from gemmgen.tune.store import Store
from gemmgen.tune.study import Study, StudyFacts
from gemmgen.tune.table import add_to_table, read_table
from gemmgen.tune.worker import (
    MachineOn,
    find_gpus,
    gpus,
)
from gemmgen.verify.shapes import fitting, refuse_extents, single_tile


def tune(
    specs: Sequence[Path],
    shapes: Sequence[Shape],
    options: TuningOptions,
    machinery: TuningMachinery = CUDA,
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
        ProgressReporter(progress, each.field, number, len(tuned), options.budget.gpu_seconds)
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
            run = StudyRun(
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
            outcome = outcome_of(each, facts, search, study, verdict, measured, options)
            write_winner(outcome, study)
            if options.table is not None:
                add_to_table(options.table, [outcome.row])
            outcomes.append(outcome)
    return outcomes


def _ranked(tuned: Sequence[TuningTarget], count: int) -> list[list[TuningCandidate]]:
    """Return the first candidates of each target, found in parallel child processes.

    No other thread runs meanwhile: a forked process would inherit the locks of other threads, and never get
    them.
    """
    pool = ThreadPoolExecutor(usable_cores())
    found = [pool.submit(first_candidates, each, count) for each in tuned]
    left = {*found}
    try:
        while left:
            done, left = wait(
                left, WAITING_SECONDS
            )  # with a timeout, to notice a signal that comes just before
            for each in done:
                each.result()
    finally:  # an interrupt does not wait for the rankings
        pool.shutdown(wait=False, cancel_futures=True)
    return [each.result() for each in found]


def _tuned(specs: Sequence[Path], shapes: Sequence[Shape]) -> tuple[list[TuningTarget], dict[str, Baseline]]:
    """Return each spec for each shape, and the baseline of each spec."""
    found: list[TuningTarget] = []
    baselines: dict[str, Baseline] = {}
    errors: list[Diagnostic] = []
    for path in specs:
        try:
            source = load_spec(path)
            baselines[source.path] = cublas(source)
            refuse_extents(source.problem, shapes)
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
        message = f"these specs are for {' and '.join(sorted(generations))}: name specs for one generation"
        raise GemmgenError([Diagnostic(found[0].source.path, "no-gpu", message)])
    return found, baselines


@dataclass(frozen=True)
class _TuningGpu:
    """The GPUs to measure on; or the reason why there are none, and then the store must have all trials."""

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
        found, environment = find_gpus(machine_on, options.devices, tuned[0].source.request.gpu.architecture)
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
    dtypes, shape = dtypes_of(problem), tuned.shape
    return peaks.seconds(dtypes.flops(shape), dtypes.moved_bytes(shape)) if peaks else 0.0


def _refuse_stale(store: Store, study: Study, tuned: TuningTarget, facts: StudyFacts) -> None:
    """Raise GemmgenError (``stale-kernel``) if gemmgen now makes other modules of the measured specs."""
    kernels = {trial.job.kernel: trial for trial in study.trials()}
    stale = [trial.label for kernel, trial in kernels.items() if not _is_made(tuned, trial.pins, kernel)]
    if stale:
        message = (
            f"{len(stale)} of its {len(kernels)} kernels differ from what gemmgen now makes of their specs, "
            f"`{stale[0]}` first: use another --store, or measure them again with --again"
        )
        raise GemmgenError([Diagnostic(store.place, "stale-kernel", message, field=facts.field)])


def _is_made(tuned: TuningTarget, pins: Pins, kernel: str) -> bool:
    plan = tuned.plan(pins)
    return plan is not None and candidate_of(tuned, plan).kernel == kernel
