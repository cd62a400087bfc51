"""Tuning of specs for shapes: from the planner's ranking to the specs of the winners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

from gemmgen.bench.baseline import cublas
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import Shape, shape_text
from gemmgen.processes.forking import usable_cores
from gemmgen.spec import load_spec
from gemmgen.tune.candidates import TuningCandidate, TuningTarget, first_candidates, neighbours
from gemmgen.tune.measuring import StudyRun, Tell, TuningProgress, results
from gemmgen.tune.options import CUDA, TuningMachinery, TuningOptions
from gemmgen.tune.outcome import Outcome, outcome_of, write_winner
from gemmgen.tune.search import Search
from gemmgen.tune.store import Store
from gemmgen.tune.table import add_to_table, read_table
from gemmgen.tune.worker import find_gpus, gpus
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
    ``no-gpu``; ``other-gpu``; ``other-machine`` if the trials are of other versions; ``no-kernel`` if none
    works; ``cannot-write``; ``foreign-file``.
    """
    started = monotonic()
    tuned = _targets(specs, shapes)
    baselines = [cublas(each.source).text for each in tuned]
    store = Store(options.store, new=options.gpu is None)
    devices: Sequence[int] = ()
    if options.gpu is None:
        architecture = tuned[0].source.request.gpu.architecture
        devices, environment = find_gpus(machinery.machine_on, options.devices, architecture)
        _refuse_table(options.table, environment.gpu)  # before anything is forgotten or measured
        for each in tuned if options.again else ():
            store.forget(each, environment.gpu)
        studies = [store.study(each, environment) for each in tuned]
    else:
        studies = [store.recorded(each, options.gpu) for each in tuned]
        _refuse_table(options.table, options.gpu)
    tellers = [_teller(progress, tuned, index, options.budget) for index in range(len(tuned))]
    tellers[0](0.0, "ranking kernels")
    ranked = _ranked(tuned, options.candidates)
    every = [*zip(tuned, baselines, studies, ranked, tellers, strict=True)]
    if options.minutes is not None:
        every.sort(key=lambda each: alike(each[3]), reverse=True)
    outcomes: list[Outcome] = []
    with gpus(devices, machinery.machine_on, machinery.protocol) as workers:
        for number, (each, baseline, study, found, tell) in enumerate(every):
            budget = options.budget
            if options.minutes is not None:
                left = 60 * options.minutes - (monotonic() - started)
                if left <= 0:
                    break
                budget = min(budget, left / (len(every) - number))
            search = Search(found, partial(neighbours, each), budget)
            run = StudyRun(each, study, search, workers, machinery.prepare, tell)
            outcome = outcome_of(each, run, run.verdict(), baseline, options)
            write_winner(outcome)
            if options.table is not None:
                add_to_table(options.table, [outcome.row])
            outcomes.append(outcome)
    return outcomes


NEARLY_EQUAL: Final = 1.08
"""Factor of the shortest expected time up to which the planner cannot say which kernel is the fastest: the
error of its times is as large (``benchmarks/studies/cost_model.md``).
"""


def alike(candidates: Sequence[TuningCandidate]) -> int:
    """Return how many kernels the planner can hardly tell from the one that it expects to be the fastest."""
    least = min(each.predicted for each in candidates)
    return sum(each.predicted <= NEARLY_EQUAL * least for each in candidates)


def _ranked(tuned: Sequence[TuningTarget], count: int) -> list[list[TuningCandidate]]:
    """Return the first candidates of each target, found in parallel child processes.

    No other thread runs meanwhile: a forked process would inherit the locks of other threads, and never get
    them.
    """
    pool = ThreadPoolExecutor(usable_cores())
    try:
        return results([pool.submit(first_candidates, each, count) for each in tuned])
    finally:  # an interrupt does not wait for the rankings
        pool.shutdown(wait=False, cancel_futures=True)


def _targets(specs: Sequence[Path], shapes: Sequence[Shape]) -> list[TuningTarget]:
    """Return each spec for each shape."""
    found: list[TuningTarget] = []
    errors: list[Diagnostic] = []
    for path in specs:
        try:
            source = load_spec(path)
            cublas(source)
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
    return found


def _refuse_table(table: Path | None, gpu: str) -> None:
    """Raise GemmgenError (``bad-table``, ``other-gpu``) if rows of this GPU cannot go into a table."""
    if table is not None and table.exists():
        read_table(table, gpu)


def _teller(
    progress: Callable[[TuningProgress], None],
    tuned: Sequence[TuningTarget],
    number: int,
    budget: float,
) -> Tell:
    """Return a function that reports progress on one target."""

    def tell(spent: float, text: str) -> None:
        progress(TuningProgress(tuned[number].field, number + 1, len(tuned), spent, budget, text))

    return tell
