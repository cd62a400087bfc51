"""The kernels and shapes of a suite: which kernels are timed on which shape, and the tasks that are open."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from gemmgen.bench.arms import Progress
from gemmgen.bench.baseline import Baseline, cublas
from gemmgen.bench.record import Subject
from gemmgen.bench.result_log import BASELINE, KernelEntry
from gemmgen.bench.suite_file import Suite
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.rendering import render
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.decisions import frozen
from gemmgen.planner import rank
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.contest import Contest
from gemmgen.processes.forking import forked, usable_cores
from gemmgen.product import make
from gemmgen.spec import SpecFile
from gemmgen.spec.model import Runs
from gemmgen.spec.writing import spec_text
from gemmgen.verify.shapes import fitting, single_tile


@dataclass(frozen=True)
class KernelUnderTest:
    """A kernel that is timed, with its module in a file."""

    entry: KernelEntry
    source: SpecFile
    module_path: Path
    most: Shape | None
    """The largest problem [M, N, K] that it computes; None if there is no limit."""

    def takes(self, shape: Shape) -> bool:
        """Return True if the spec's kernel computes such a problem; its wrapper may still refuse it."""
        access, (_, n, k) = TensorAccess(self.source.problem), shape
        divides = n % access.n_multiple == 0 and k % access.k_multiple == 0
        return bool(fitting([shape], self.most)) and divides


@dataclass(frozen=True)
class Task:
    """A shape on which kernels of one contest have not been timed yet."""

    contest: Contest
    shape: Shape
    families: tuple[str, ...]
    participants: tuple[KernelUnderTest, ...]
    baseline: Baseline

    @property
    def source(self) -> SpecFile:
        """A spec that states the problem of all kernels."""
        return self.participants[0].source

    @property
    def place(self) -> str:
        """Name of the contest and the shape, for people."""
        return f"{self.source.description} {shape_text(self.shape)}"


@dataclass(frozen=True)
class ShapeRun:
    """Kernels of a contest that are timed on one shape."""

    contest: Contest
    shape: Shape
    families: tuple[str, ...]
    participants: tuple[KernelUnderTest, ...]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Names of kernels in the order of the planner's ranking, by the names of specs."""


def kernels_of(specs: Sequence[Path], directory: Path) -> tuple[KernelUnderTest, ...]:
    """Plan and render the specs, and write their modules into a directory."""
    found: list[KernelUnderTest] = []
    errors: list[Diagnostic] = []
    for path in specs:
        try:
            product = make(path)
            source, name = product.source, product.source.stem
            module_path = directory / f"{name}.py"
            if module_path.exists():
                message = "another spec has this name: rename one of them"
                raise GemmgenError([Diagnostic(source.path, "module-name", message)])
            cublas(source)
        except GemmgenError as error:
            errors += error.diagnostics
            continue
        module_path.write_text(product.module, encoding="utf-8", newline="\n")
        entry = KernelEntry(name, Subject.of(path, module_path), source.contest)
        found.append(KernelUnderTest(entry, source, module_path, single_tile(source)))
    if errors:
        raise GemmgenError(errors)
    generations = {participant.source.request.gpu.architecture.generation for participant in found}
    if len(generations) > 1:
        message = f"these specs are for {' and '.join(sorted(generations))}: name specs for one generation"
        raise GemmgenError([Diagnostic(found[0].entry.subject.spec_path, "no-gpu", message)])
    return tuple(found)


def baselines_of(participants: Iterable[KernelUnderTest]) -> dict[Contest, Baseline]:
    """Return the baseline of each contest."""
    sources = {participant.entry.contest: participant.source for participant in participants}
    return {name: cublas(source) for name, source in sources.items()}


def shape_runs(participants: Sequence[KernelUnderTest], suite: Suite, extents: range) -> list[ShapeRun]:
    """Return the runs contest by contest, in the order of the suite's file."""
    found: list[ShapeRun] = []
    for contest in dict.fromkeys(participant.entry.contest for participant in participants):
        members = [participant for participant in participants if participant.entry.contest == contest]
        shapes = suite.shapes(members[0].source.problem.a.dtype.name, extents)
        for shape, families in shapes.items():
            able = tuple(participant for participant in members if participant.takes(shape))
            found.append(ShapeRun(contest, shape, families, able))
    return found


def with_kernel(found: ShapeRun, name: str) -> ShapeRun:
    """Return a run with the kernel of a name alone."""
    return replace(found, participants=tuple(each for each in found.participants if each.entry.name == name))


def open_tasks(
    runs: Iterable[ShapeRun], baselines: Mapping[Contest, Baseline], done: set[tuple[Contest, Shape, str]]
) -> tuple[Task, ...]:
    """Return tasks for the shapes and kernels that are not done."""
    tasks: list[Task] = []
    for found in runs:
        place = found.contest, found.shape
        left = tuple(
            participant for participant in found.participants if (*place, participant.entry.name) not in done
        )
        if left and (*place, BASELINE) not in done:
            tasks.append(Task(*place, found.families, left, baselines[found.contest]))
    return tuple(tasks)


def ranked_runs(
    runs: Sequence[ShapeRun], candidates: int, directory: Path, progress: Progress
) -> list[ShapeRun]:
    """Return the runs with each open spec replaced by the kernels that its planner ranks first for the shape.

    A ranking takes a second or more, so rankings are made in parallel child processes.
    """
    jobs = [(found, participant) for found in runs for participant in found.participants]
    progress(f"ranking the kernels of {len(jobs)} specs and shapes")

    def ranked(job: tuple[ShapeRun, KernelUnderTest]) -> list[_Ranked]:
        with forked(partial(_ranked, job[1], job[0].shape, candidates)) as result:
            return result()

    with ThreadPoolExecutor(usable_cores()) as pool:
        rankings = list(pool.map(ranked, jobs))
    members: dict[tuple[Contest, Shape], dict[str, tuple[KernelUnderTest, ...]]] = {}
    for (found, participant), ranking in zip(jobs, rankings, strict=True):
        pinned = len(ranking) == 1 and ranking[0].module == participant.module_path.read_text(
            encoding="utf-8"
        )
        kernels = (
            (participant,) if pinned else tuple(_candidate(participant, each, directory) for each in ranking)
        )
        members.setdefault((found.contest, found.shape), {})[participant.entry.name] = kernels
    return [
        replace(
            found,
            participants=tuple({each.entry.name: each for each in chain(*kernels.values())}.values()),
            choices={name: tuple(each.entry.name for each in those) for name, those in kernels.items()},
        )
        for found in runs
        for kernels in [members.get((found.contest, found.shape), {})]
    ]


class _Ranked(NamedTuple):
    """A kernel that the planner ranks for a shape."""

    label: str
    module: str
    spec: str
    """Text of a spec that states every decision, without shapes."""


def _ranked(participant: KernelUnderTest, shape: Shape, candidates: int) -> list[_Ranked]:
    """Return the kernels that a spec's planner ranks first for a shape."""
    without = participant.source.spec.model_copy(update={"bench": None, "check": None, "problem": None})
    source = SpecFile.of(without.model_copy(update={"bench": Runs(shapes=(shape,))}))
    subject = participant.entry.subject
    return [
        _Ranked(
            candidate.label,
            render(candidate.plan, spec_name=Path(subject.spec_path).name, spec_sha256=subject.spec_sha256),
            spec_text(frozen(SpecFile.of(without), candidate.plan)),
        )
        for candidate in rank(source).to_measure(candidates)
    ]


def _candidate(participant: KernelUnderTest, ranked: _Ranked, directory: Path) -> KernelUnderTest:
    """Return a kernel of a spec by its module, whose name has the beginning of the module's hash."""
    digest = hashlib.sha256(ranked.module.encode()).hexdigest()
    path = directory / f"{participant.entry.name}_{digest[:8]}.py"
    if not path.exists():
        path.write_text(ranked.module, encoding="utf-8", newline="\n")
    subject = replace(participant.entry.subject, module_sha256=digest)
    name = f"{participant.entry.name}: {ranked.label} ({digest[:8]})"
    entry = KernelEntry(name, subject, participant.entry.contest, ranked.spec)
    return replace(participant, entry=entry, module_path=path)
