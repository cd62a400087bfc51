"""Kernels against the baseline: one on its own shapes, or many by turns on those of a suite."""

from __future__ import annotations

import gc
import hashlib
import math
import random
import signal
import statistics
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

from gemmgen.bench.baseline import Baseline, Call, bound, cublas, formats_text, other_module, rival
from gemmgen.bench.machine import (
    Arm,
    CudaMachine,
    Machine,
    SuiteMachine,
    UnfinishedError,
    Work,
    call_times,
    each_set,
    estimate,
    measure,
)
from gemmgen.bench.record import (
    SCHEMA,
    Ceilings,
    Environment,
    GpuState,
    Measurement,
    Protocol,
    Record,
    Subject,
    ceilings_of,
    measured_of,
    path_from_here,
    peaks_of,
    utc_now,
)
from gemmgen.bench.suite import (
    BASELINE,
    LARGEST,
    Book,
    Choice,
    ContestOf,
    Entry,
    Playoff,
    Refused,
    Result,
    Rounds,
    Session,
    Suite,
    Timed,
    ratios,
)
from gemmgen.bench.suite import SCHEMA as SUITE_SCHEMA
from gemmgen.device import require_gpu
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import DTYPES
from gemmgen.literals import visible
from gemmgen.module import MatmulFunction, import_generated, matmul_of, pack_scales_of
from gemmgen.numerics.encoding import poison
from gemmgen.numerics.inputs import Inputs, Matrix, random_inputs
from gemmgen.numerics.reference import Deviation, Tolerance, deviation, references, tolerance
from gemmgen.plan.decisions import frozen, spec_text
from gemmgen.plan.planner import rank
from gemmgen.problem import Matmul, Request, Shape, shape_text
from gemmgen.problem.dtypes import Dtypes
from gemmgen.product import make, staged
from gemmgen.render import render
from gemmgen.scratch import LostError, forked, scratch, usable_cores
from gemmgen.spec import SpecFile
from gemmgen.spec.model import Runs
from gemmgen.verify.shapes import fitting, refuse_k, single_tile

Progress = Callable[[str], None]


def bench(
    module: ModuleType,
    subject: Subject,
    source: SpecFile,
    shapes: Iterable[Shape],
    *,
    protocol: Protocol | None = None,
    ceilings: Ceilings | None = None,
    machine: Machine | None = None,
    baseline: Baseline | None = None,
    progress: Progress = lambda _: None,
) -> Record:
    """Time the module's matmul and the baseline on each shape [M, N, K], by turns and on the same tensors.

    Where the module's matmul takes no ``out``, its result is one that it allocates in each call.

    Left out: the default protocol, the ceilings of this product for these operands (without any, there is no
    roofline, and progress says so), the current GPU, what a user of torch would call. Scales of blocks are
    packed before anything is timed, for both.

    Raises GemmgenError: ``bad-shapes`` for a K that the operands cannot have; ``no-gpu``; ``no-baseline``;
    ``wrong-result`` when the kernel is wrong on the tensors to be timed, and then it is not timed;
    ``kernel-failed`` when a call of either arm raises.
    """
    chosen, problem = tuple(shapes), source.problem
    refuse_k(problem, chosen)
    machine = machine or CudaMachine(require_gpu(source.request.gpu.architecture))
    contest = _Contest(
        spec_path=subject.spec_path,
        source=source,
        matmul=matmul_of(module),
        pack_scales=pack_scales_of(module) if problem.block_scaled else None,
        baseline=baseline or cublas(source),
        protocol=protocol or Protocol(),
        machine=machine,
        environment=machine.environment(),
    )
    return Record(
        schema=SCHEMA,
        subject=subject,
        environment=contest.environment,
        dtypes=dtypes_of(problem),
        baseline=contest.baseline.text,
        protocol=contest.protocol,
        ceilings=ceilings or _ceilings(contest.environment.gpu, problem, progress),
        measurements=tuple(contest.measurement(shape, progress) for shape in chosen),
        date=utc_now(),  # evaluated last: when it ended
    )


def _ceilings(gpu: str, problem: Matmul, progress: Progress) -> Ceilings | None:
    """Return the ceilings for the problem's operands, or say that there are none."""
    operand = problem.a.dtype.name
    found = ceilings_of(gpu, operand, max(problem.a.smem_bits, problem.b.smem_bits))
    if found is None:
        progress(f"no ceiling was measured for {operand} on {gpu}: there is no roofline")
    return found


@dataclass(frozen=True)
class _Contest:
    """The two arms and the rules."""

    spec_path: str
    source: SpecFile
    matmul: MatmulFunction
    pack_scales: Callable[[Tensor], Tensor] | None
    baseline: Baseline
    protocol: Protocol
    machine: Machine
    environment: Environment

    def measurement(self, shape: Shape, progress: Progress) -> Measurement:
        """Judge both arms on one shape, and time them if ours is right."""
        tell = partial(_tell, progress, shape_text(shape))
        tell("checking the numbers")
        with self._failures(shape), self.baseline.settings():
            generator = torch.Generator(self.machine.device).manual_seed(self.protocol.seed)
            l2_bytes = self.environment.l2_bytes
            sets = input_sets(
                shape, self.source.problem, l2_bytes, generator, self.protocol, self.pack_scales
            )
            bind = partial(bound, self.matmul)
            ours, baseline = (self._judged(arm, sets[0]) for arm in (bind, self.baseline.bind))
            self._refuse_wrong(shape, ours)
            timing = measure(
                _Calls(bind, sets),
                _Calls(self.baseline.bind, sets),
                len(sets),
                self.machine,
                self.protocol,
                tell,
            )
        return Measurement(shape, len(sets), ours.relative, baseline.relative, timing)

    def _judged(self, bind: Call, inputs_and_d: InputSet) -> Deviation:
        return judged(bind, inputs_and_d, self.source.problem)

    def _refuse_wrong(self, shape: Shape, found: Deviation) -> None:
        for fault in wrong(tolerance(self.source.problem, shape, self.source.promote_k), found):
            raise self._error("wrong-result", shape, fault)

    @contextmanager
    def _failures(self, shape: Shape) -> Generator[None, None, None]:
        """Turn whatever a kernel raises into a diagnostic."""
        try:
            yield
        except GemmgenError:
            raise
        except Exception as error:
            first_line = next(iter(str(error).splitlines()), "")
            raise self._error("kernel-failed", shape, f"{type(error).__name__}: {first_line}") from error

    def _error(self, code: str, shape: Shape, message: str) -> GemmgenError:
        return GemmgenError([Diagnostic(self.spec_path, code, message, field=shape_text(shape))])


def judged(
    bind: Call,
    inputs_and_d: InputSet,
    problem: Matmul,
    exact: Iterable[tuple[slice, Tensor]] | None = None,
    finish: Callable[[], None] = lambda: None,
) -> Deviation:
    """Call an arm once into poison, wait for it with ``finish``, and compare what it makes."""
    inputs, d = inputs_and_d.inputs, inputs_and_d.d
    call = bind(inputs_and_d.timed, d)
    d.fill_(poison(d.dtype))
    # Freed at once: on a GPU a result that the call allocates gets this block, and is poisoned as d is.
    Matrix.poisoned(d.shape[0], d.shape[1], problem.d.name, d.device)
    result = call()
    finish()
    return deviation(result, inputs, problem, exact)


def wrong(allowed: Tolerance, found: Deviation) -> Iterator[str]:
    """Yield what is wrong with a result."""
    limits = (
        ("relative error", found.relative, allowed.relative),
        ("worst element", found.worst_element, allowed.worst_element),
    )
    for what, measured, limit in limits:
        if not measured <= limit:  # NaN is not
            yield f"{what} {measured:.3g}, the limit is {limit:.3g}; a wrong kernel is not timed"


class _Calls:
    """An arm: a call for each input set, which keeps its result."""

    def __init__(self, bind: Call, sets: tuple[InputSet, ...]) -> None:
        self._calls = tuple(bind(each.timed, each.d) for each in sets)
        self.results = [each.d for each in sets]

    def __call__(self, index: int) -> None:
        # Kept until the set's next turn: results that a call allocates are then rotated like the sets.
        self.results[index] = self._calls[index]()


def _tell(progress: Progress, subject: str, message: str) -> None:
    progress(f"{subject}: {message}")


# --- the tensors: the same for both arms, and enough of them to leave the cache


@dataclass(frozen=True)
class InputSet:
    """What one call takes, and d [M, N] for its result."""

    inputs: Inputs
    """As the spec has them, for the reference."""
    timed: Inputs
    """What the calls get: the same, but scales of blocks are packed already, as those of weights would be."""
    d: Tensor


def dtypes_of(problem: Matmul) -> Dtypes:
    """Return the names of the element types of a problem, and of the formats of its blocks' scales."""
    a, b = problem.a, problem.b
    return Dtypes(
        a=a.dtype.name,
        b=b.dtype.name,
        d=problem.d.name,
        c=problem.c.name if problem.c else None,
        a_scale=a.scale.format.name if a.scale else None,
        b_scale=b.scale.format.name if b.scale else None,
    )


def input_sets(
    shape: Shape,
    problem: Matmul,
    l2_bytes: int,
    generator: torch.Generator,
    protocol: Protocol | Rounds,
    pack_scales: Callable[[Tensor], Tensor] | None = None,
) -> tuple[InputSet, ...]:
    """Return the sets that calls are rotated over: random and normalized inputs, and poisoned results."""
    set_bytes = dtypes_of(problem).moved_bytes(shape)
    count = min(protocol.max_input_sets, math.ceil(protocol.l2_multiple * l2_bytes / set_bytes))
    return tuple(_input_set(shape, problem, generator, pack_scales) for _ in range(count))


def _input_set(
    shape: Shape,
    problem: Matmul,
    generator: torch.Generator,
    pack_scales: Callable[[Tensor], Tensor] | None,
) -> InputSet:
    d = Matrix.poisoned(*shape[:2], problem.d.name, generator.device).view
    misaligned = problem.copies_misaligned
    inputs = random_inputs(shape, problem, generator, normalized=True, misaligned=misaligned)
    return InputSet(inputs, inputs.packed(pack_scales) if pack_scales else inputs, d)


# --- from a spec to its record


AGAINST_A_MODULE: Final = Protocol(pairs=30, graph_below_seconds=1.0)
"""Two modules of one spec differ by a percent or less: more pairs than against cuBLAS, and CUDA graphs
throughout, so that kernels are compared and no launches."""


def time_spec(
    path: Path,
    shapes: Sequence[Shape] | None,
    progress: Callable[[str], None],
    against: Path | None = None,
) -> Record:
    """Generate a spec's module and time it on the given shapes, or else on those that the spec lists.

    Where it lists none, on those by which it was planned for its ``problem``.

    The baseline is cuBLAS, or gemmgen's kernel by single CTAs or pairs where torch has none; or it is the
    module ``against``, which takes what the spec's own takes.

    Raises:
        GemmgenError: The spec is rejected, there are no shapes, ``against`` is no module, or ``bench``
            refuses to time the kernel.
    """
    product = make(path)
    request = product.source.request
    chosen = shapes or request.bench_shapes or (request.planned_shapes if request.ranges else ())
    if not chosen:
        message = "names no shapes to time: list them under bench.shapes, state a problem, or give --shapes"
        raise GemmgenError([Diagnostic(product.source.path, "no-shapes", message)])
    opponent = nullcontext(other_module(against)) if against else rival(product)
    with staged(product) as module_path, opponent as baseline:
        subject, module = Subject.of(path, module_path), import_generated(module_path)
        return bench(
            module,
            subject,
            product.source,
            chosen,
            protocol=AGAINST_A_MODULE if against else None,
            baseline=baseline,
            progress=progress,
        )


# --- many kernels on the shapes of a suite


@dataclass(frozen=True)
class Entrant:
    """A kernel that takes part, with its module in a file."""

    entry: Entry
    source: SpecFile
    module_path: Path
    most: Shape | None
    """The largest problem [M, N, K] that it computes; None where there is no limit."""

    def takes(self, shape: Shape) -> bool:
        """Whether the spec says that its kernel computes such a problem; its wrapper may still refuse it."""
        return bool(fitting([shape], self.most)) and shape[2] % self.source.problem.k_multiple == 0


@dataclass(frozen=True)
class Task:
    """A shape on which kernels of one contest have not been timed yet."""

    contest: str
    shape: Shape
    families: tuple[str, ...]
    entrants: tuple[Entrant, ...]
    baseline: Baseline

    @property
    def source(self) -> SpecFile:
        """A spec that says what all of them compute."""
        return self.entrants[0].source


@dataclass(frozen=True)
class Prepared:
    """What is known before anything is timed, from processes of their own."""

    launched: Mapping[tuple[str, Shape], tuple[str, ...]]
    """The kernels of the baseline, by contest and shape."""
    failures: Mapping[str, str]
    """Why a kernel, by its name, cannot be compiled and run at all."""


def time_suite(
    specs: Sequence[Path],
    suite: Suite,
    book: Book,
    *,
    extents: range = range(1, LARGEST + 1),
    candidates: int | None = None,
    chosen: Callable[[Shape], str] | None = None,
    protocol: Rounds | None = None,
    machine: SuiteMachine | None = None,
    prepare: Callable[[Sequence[Task], Progress], Prepared] | None = None,
    progress: Progress = lambda _: None,
) -> None:
    """Time the kernels of specs on the shapes of a suite whose M is in a range, and write it into a book.

    With ``candidates``, a spec that leaves something open takes part on each shape with so many kernels:
    those that its planner ranks first for that shape. With ``chosen``, which returns the name of one of the
    specs, only that one takes part on a shape, as in a library.

    What the book has already is not timed again. All kernels that compute the same from the same types are
    timed by turns with one baseline, cuBLAS. A kernel that does not take a shape, is wrong or fails is noted
    as such and not timed there. Modules are compiled in processes of their own before anything is timed.

    Raises GemmgenError: a spec is rejected; no spec is of the suite's types (``no-shapes``); ``no-gpu``;
    ``no-baseline``; ``other-machine`` for a book of another GPU or other versions; ``device-lost`` after a
    kernel that leaves the GPU unusable: the same call in a new process goes on behind it.
    """
    protocol = protocol or Rounds(playoff_seconds=PLAYOFF_SECONDS)
    with scratch() as directory:
        entrants = _entrants(specs, Path(directory))
        baselines = _baselines(entrants)
        if not any(suite.shapes(entrant.source.problem.a.dtype.name, extents) for entrant in entrants):
            message = "has no shapes for the types of these specs"
            raise GemmgenError([Diagnostic(suite.path, "no-shapes", message)])
        heats = _heats(entrants, suite, extents)
        if chosen:
            heats = [_of_one(found, chosen(found.shape)) for found in heats]
        if candidates:
            heats = _chosen(heats, candidates, Path(directory), progress)
            entrants = tuple({each.entry.name: each for found in heats for each in found.entrants}.values())
        tasks = _tasks(heats, baselines, _book_with(book, entrants).done())
        if not tasks:
            return
        prepared = (prepare or prepare_in_children)(tasks, progress)
        gpu = tasks[0].source.request.gpu
        machine = machine or CudaMachine(require_gpu(gpu.architecture))
        session = _session(entrants, baselines, suite, protocol, machine)
        _refuse_other_machine(book, session)
        book.write(session)
        _write_choices(book, heats)
        with machine.quiet(), machine.watched() as state_since:
            campaign = _Campaign(book, protocol, machine, session.environment, prepared, state_since)
            for number, task in enumerate(tasks, 1):
                progress(f"{task.contest} {shape_text(task.shape)}, {number} of {len(tasks)}")
                campaign.settle_seconds = protocol.warm_up_seconds if number == 1 else protocol.settle_seconds
                campaign.run(task)


def _entrants(specs: Sequence[Path], directory: Path) -> tuple[Entrant, ...]:
    """Plan and render the specs, and write their modules into a directory."""
    found: list[Entrant] = []
    errors: list[Diagnostic] = []
    for path in specs:
        try:
            product = make(path)
            source, name = product.source, product.source.stem
            module_path = directory / f"{name}.py"
            if module_path.exists():
                message = "another spec of this name takes part: rename one of the two"
                raise GemmgenError([Diagnostic(source.path, "module-name", message)])
            cublas(source)
        except GemmgenError as error:
            errors += error.diagnostics
            continue
        module_path.write_text(product.module, encoding="utf-8", newline="\n")
        entry = Entry(name, Subject.of(path, module_path), contest_of(source))
        found.append(Entrant(entry, source, module_path, single_tile(source)))
    if errors:
        raise GemmgenError(errors)
    generations = {entrant.source.request.gpu.architecture.generation for entrant in found}
    if len(generations) > 1:
        message = f"these specs are for {' and '.join(sorted(generations))}: one GPU runs one of them"
        raise GemmgenError([Diagnostic(found[0].entry.subject.spec_path, "no-gpu", message)])
    return tuple(found)


def contest_of(source: SpecFile) -> str:
    """Return what kernels have in common that are timed together, in the fewest words that say so."""
    problem = source.problem
    a, b, d = problem.a.dtype.name, problem.b.dtype.name, problem.d.name
    words = [a if a == b else f"{a} x {b}"]
    if problem.block_scaled:
        words = [formats_text(problem)]
    usual = {"tf32": "fp32", "int8": "int32"}.get(a, a if DTYPES[a].bits == 16 else "bf16")
    if d != usual:
        words.append(f"to {d}")
    if problem.accumulator.name not in ("fp32", "int32"):
        words.append(f"summed in {problem.accumulator.name}")
    majors = [operand.major for operand in (problem.a, problem.b)]
    words += [f"{name} {major}-major" for name, major in zip("AB", majors, strict=True) if major != "k"]
    if problem.copies_misaligned:
        words.append("rows of any length")
    if source.promote_k:
        words.append("promoted")
    terms = [f"{problem.alpha:g} alpha"] if problem.alpha != 1 else []
    if problem.c is not None and not problem.residual:
        terms.append(f"{problem.beta:g} c" if problem.beta != 1 else "c")
    terms += [op + "".join(f" {p.value:g}" for p in problem.parameters if p.op == op) for op in problem.ops]
    if problem.c is not None and problem.c != problem.d:
        terms.append(f"c {problem.c.name}")
    return " + ".join((" ".join(words), *terms))


def _baselines(entrants: Iterable[Entrant]) -> dict[str, Baseline]:
    """Return the baseline of each contest."""
    sources = {entrant.entry.contest: entrant.source for entrant in entrants}
    return {name: cublas(source) for name, source in sources.items()}


@dataclass(frozen=True)
class _Heat:
    """Who takes part in a contest on one shape."""

    contest: str
    shape: Shape
    families: tuple[str, ...]
    entrants: tuple[Entrant, ...]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By the names of specs: the names of kernels in the order of the planner's ranking."""


def _heats(entrants: Sequence[Entrant], suite: Suite, extents: range) -> list[_Heat]:
    """Return the heats contest by contest, in the order of the suite's file."""
    found: list[_Heat] = []
    for contest in dict.fromkeys(entrant.entry.contest for entrant in entrants):
        members = [entrant for entrant in entrants if entrant.entry.contest == contest]
        shapes = suite.shapes(members[0].source.problem.a.dtype.name, extents)
        for shape, families in shapes.items():
            able = tuple(entrant for entrant in members if entrant.takes(shape))
            found.append(_Heat(contest, shape, families, able))
    return found


def _of_one(found: _Heat, name: str) -> _Heat:
    """Return a heat with the entrant of a name alone."""
    return replace(found, entrants=tuple(each for each in found.entrants if each.entry.name == name))


def _tasks(
    heats: Iterable[_Heat], baselines: Mapping[str, Baseline], done: set[tuple[str, Shape, str]]
) -> tuple[Task, ...]:
    """Return what is not done."""
    tasks: list[Task] = []
    for found in heats:
        place = found.contest, found.shape
        left = tuple(entrant for entrant in found.entrants if (*place, entrant.entry.name) not in done)
        if left and (*place, BASELINE) not in done:
            tasks.append(Task(*place, found.families, left, baselines[found.contest]))
    return tuple(tasks)


def _chosen(heats: Sequence[_Heat], candidates: int, directory: Path, progress: Progress) -> list[_Heat]:
    """Return the heats with what the planner ranks first for each shape in place of each open spec.

    A ranking takes a second or more: they are made in processes beside each other.
    """
    jobs = [(found, entrant) for found in heats for entrant in found.entrants]
    progress(f"ranking the kernels of {len(jobs)} specs and shapes")

    def ranked(job: tuple[_Heat, Entrant]) -> list[_Ranked]:
        with forked(partial(_ranked, job[1], job[0].shape, candidates)) as result:
            return result()

    with ThreadPoolExecutor(usable_cores()) as pool:
        rankings = list(pool.map(ranked, jobs))
    members: dict[tuple[str, Shape], dict[str, tuple[Entrant, ...]]] = {}
    for (found, entrant), ranking in zip(jobs, rankings, strict=True):
        pinned = len(ranking) == 1 and ranking[0].module == entrant.module_path.read_text(encoding="utf-8")
        kernels = (entrant,) if pinned else tuple(_candidate(entrant, each, directory) for each in ranking)
        members.setdefault((found.contest, found.shape), {})[entrant.entry.name] = kernels
    return [
        replace(
            found,
            entrants=tuple({each.entry.name: each for each in chain(*kernels.values())}.values()),
            choices={name: tuple(each.entry.name for each in those) for name, those in kernels.items()},
        )
        for found in heats
        for kernels in [members.get((found.contest, found.shape), {})]
    ]


class _Ranked(NamedTuple):
    """A kernel that the planner chose."""

    label: str
    module: str
    spec: str
    """One that states every decision, and no shapes."""


def _ranked(entrant: Entrant, shape: Shape, candidates: int) -> list[_Ranked]:
    """Return what a spec's planner ranks first for a shape."""
    without = entrant.source.spec.model_copy(update={"bench": None, "check": None, "problem": None})
    source = SpecFile.of(without.model_copy(update={"bench": Runs(shapes=(shape,))}))
    subject = entrant.entry.subject
    return [
        _Ranked(
            candidate.label,
            render(candidate.plan, spec_name=Path(subject.spec_path).name, spec_sha256=subject.spec_sha256),
            spec_text(frozen(SpecFile.of(without), candidate.plan)),
        )
        for candidate in rank(source).to_measure(candidates)
    ]


def _candidate(entrant: Entrant, ranked: _Ranked, directory: Path) -> Entrant:
    """Return a kernel of a spec by its module, whose name has the beginning of the module's hash."""
    digest = hashlib.sha256(ranked.module.encode()).hexdigest()
    path = directory / f"{entrant.entry.name}_{digest[:8]}.py"
    if not path.exists():
        path.write_text(ranked.module, encoding="utf-8", newline="\n")
    subject = replace(entrant.entry.subject, module_sha256=digest)
    name = f"{entrant.entry.name}: {ranked.label} ({digest[:8]})"
    entry = Entry(name, subject, entrant.entry.contest, ranked.spec)
    return replace(entrant, entry=entry, module_path=path)


def _write_choices(book: Book, heats: Iterable[_Heat]) -> None:
    """Write down what the planner ranks first where the book does not say so yet."""
    latest = book.choices
    for found in heats:
        for spec, kernels in found.choices.items():
            choice = Choice("choice", found.shape, found.contest, spec, kernels)
            if latest.get((found.contest, found.shape, spec)) != choice:
                book.write(choice)


def _book_with(book: Book, entrants: Sequence[Entrant]) -> Book:
    """Return the book as it will be once these kernels take part: what others of their names did is stale."""
    if not book.sessions:
        return book
    kernels = tuple(entrant.entry for entrant in entrants)
    return Book(None, [*book.lines, replace(book.sessions[-1], kernels=kernels)])


def _session(
    entrants: Sequence[Entrant],
    baselines: Mapping[str, Baseline],
    suite: Suite,
    protocol: Rounds,
    machine: Machine,
) -> Session:
    environment = machine.environment()
    contests: dict[str, ContestOf] = {}
    for entrant in entrants:
        name, problem = entrant.entry.contest, entrant.source.problem
        bits = max(problem.a.smem_bits, problem.b.smem_bits)
        contests[name] = ContestOf(
            name=name,
            dtypes=dtypes_of(problem),
            baseline=baselines[name].text,
            peak=peaks_of(environment.gpu, bits),
            measured=measured_of(environment.gpu, problem.a.dtype.name),
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
        kernels=tuple(entrant.entry for entrant in entrants),
    )


def _refuse_other_machine(book: Book, session: Session) -> None:
    """One record is of one GPU, one set of versions, one protocol."""
    if not book.sessions:
        return
    before = book.sessions[-1]
    pairs = [("protocol", before.protocol, session.protocol)]
    for member in fields(Environment):
        if member.name != "gemmgen":
            old, new = (getattr(each.environment, member.name) for each in (before, session))
            pairs.append((member.name, old, new))
    for name, old, new in pairs:
        if old != new:
            message = f"was measured with another {name}, {old}, here it is {new}: record into another file"
            raise GemmgenError([Diagnostic(str(book.path), "other-machine", message)])


@dataclass(frozen=True)
class Arena:
    """The tensors of one shape, and how arms run and take turns on them."""

    source: SpecFile
    """A spec that says what all arms compute."""
    shape: Shape
    protocol: Rounds
    machine: SuiteMachine
    sets: tuple[InputSet, ...]
    exact: tuple[tuple[slice, Tensor], ...]
    """What the first of them gives."""

    @classmethod
    def of(
        cls,
        source: SpecFile,
        shape: Shape,
        protocol: Rounds,
        machine: SuiteMachine,
        l2_bytes: int,
        pack_scales: Callable[[Tensor], Tensor] | None = None,
    ) -> Arena:
        """Draw the inputs for a shape [M, N, K], and compute what the first set gives."""
        generator = torch.Generator(machine.device).manual_seed(protocol.seed)
        sets = input_sets(shape, source.problem, l2_bytes, generator, protocol, pack_scales)
        exact = tuple(references(sets[0].inputs, source.problem))
        return cls(source, shape, protocol, machine, sets, exact)

    @property
    def tolerance(self) -> Tolerance:
        """How far a right result may be from the exact one."""
        return tolerance(self.source.problem, self.shape, self.source.promote_k)

    def running(self, name: str, bind: Call) -> Running:
        """Call an arm once for each set, and judge what it makes of the first."""
        found = judged(bind, self.sets[0], self.source.problem, self.exact, self.machine.finish)
        arm = _Calls(bind, self.sets)
        each_set(arm, len(self.sets), 1)()
        self.machine.finish()
        return Running(name, arm, found)

    def pass_seconds(self, running: Running) -> float:
        """Return about how long an arm takes for all sets."""
        return estimate(self.machine, self.machine.recorded(each_set(running.arm, len(self.sets), 1)))

    def passes(self, pass_seconds: float) -> int:
        """Return how often an arm that takes so long for all sets goes over them in a sample."""
        return math.ceil(self.protocol.graph_seconds / pass_seconds)

    def sample(self, running: Running, passes: int) -> Sample:
        """Capture so many passes over the sets; fewer of a kernel that is much slower."""
        count = len(self.sets)
        work = self.machine.recorded(each_set(running.arm, count, passes))
        (seconds,) = self.machine.times([work])
        fewer = math.ceil(passes * self.protocol.graph_seconds / seconds)
        if seconds > MUCH_SLOWER * self.protocol.graph_seconds and fewer < passes:
            work, passes = self.machine.recorded(each_set(running.arm, count, fewer)), fewer
            self.machine.times([work])
        return Sample(running, work, passes * count)

    def settle(self, samples: Sequence[Sample], seconds: float) -> None:
        """Keep the GPU at work for so long."""
        start = self.machine.now()
        while self.machine.now() - start < seconds:
            self.machine.times([sample.work for sample in samples])

    def rounds(self, samples: Sequence[Sample], rounds: int) -> dict[int, tuple[float, ...]]:
        """Let every arm take so many turns; return seconds per call of each."""
        generator = random.Random(self.protocol.seed)
        arms = range(len(samples))
        return self.turns(samples, [arm for _ in range(rounds) for arm in generator.sample(arms, len(arms))])

    def playoff_pairs(
        self, samples: Sequence[Sample], by_arm: Mapping[int, Sequence[float]], arm: int
    ) -> int:
        """Return how often an arm and the baseline take turns, going by what they took in the rounds."""
        seconds = sum(statistics.median(by_arm[each]) * samples[each].calls for each in (0, arm))
        return max(self.protocol.rounds, round((self.protocol.playoff_seconds or 0) / seconds))

    def turns(self, samples: Sequence[Sample], turns: Sequence[int]) -> dict[int, tuple[float, ...]]:
        """Return seconds per call of each arm, in the order of its turns."""
        times = self.machine.times([samples[arm].work for arm in turns])
        found: dict[int, list[float]] = {}
        for arm, seconds in zip(turns, times, strict=True):
            found.setdefault(arm, []).append(rounded(seconds / samples[arm].calls))
        return {arm: tuple(seconds) for arm, seconds in found.items()}

    def faults_after(self, sample: Sample) -> tuple[str, ...]:
        """Judge what one more replay makes of the first set: a kernel may leave something behind."""
        result = sample.running.arm.results[0]
        result.fill_(poison(result.dtype))
        sample.work()
        self.machine.finish()
        found = deviation(result, self.sets[0].inputs, self.source.problem, self.exact)
        return tuple(wrong(self.tolerance, found))

    def host_seconds(self, arm: Arm, pass_seconds: float) -> float:
        """Return the median host time of eager calls, of few where they take the device long."""
        call_seconds = pass_seconds / len(self.sets)
        calls = max(LEAST_SUITE_HOST_CALLS, min(self.protocol.host_calls, int(5e-3 / call_seconds)))
        self.machine.finish()
        found = statistics.median(call_times(arm, len(self.sets), calls, self.machine))
        self.machine.finish()
        return found


@dataclass
class _Campaign:
    """The rounds on one shape after the other."""

    book: Book
    protocol: Rounds
    machine: SuiteMachine
    environment: Environment
    prepared: Prepared
    state_since: Callable[[float], GpuState | None]
    settle_seconds: float = 0.0
    matmuls: dict[str, ModuleType] = field(default_factory=dict[str, ModuleType])
    """The modules by their kernels' names, imported once: each compiles or loads its kernel once."""

    def run(self, task: Task) -> None:
        """Time the kernels of a task that are right, by turns, and write down what happened to each."""
        gc.collect()  # of the shape before; in a quiet context nothing else does
        l2_bytes = self.environment.l2_bytes
        with task.baseline.settings():
            try:
                packing = self._packing(task)
                arena = Arena.of(task.source, task.shape, self.protocol, self.machine, l2_bytes, packing)
                baseline = arena.running(BASELINE, task.baseline.bind)
            except Exception as error:
                self._note(task, BASELINE, "cannot", error)
                return
            kernels = tuple(self._right(task, arena))
            if kernels:
                self._take_turns(task, arena, baseline, kernels)

    def _packing(self, task: Task) -> Callable[[Tensor], Tensor] | None:
        if not task.source.problem.block_scaled:
            return None
        return pack_scales_of(self._module(task.entrants[0]))

    def _module(self, entrant: Entrant) -> ModuleType:
        name = entrant.entry.name
        if name not in self.matmuls:
            self.matmuls[name] = import_generated(entrant.module_path)
        return self.matmuls[name]

    def _right(self, task: Task, arena: Arena) -> Iterator[Running]:
        """Yield the kernels that compute the right numbers; note why others do not."""
        for entrant in task.entrants:
            name = entrant.entry.name
            if name in self.prepared.failures:
                self._note(task, name, "failed", self.prepared.failures[name])
                continue
            try:
                running = arena.running(name, partial(bound, matmul_of(self._module(entrant))))
            except (ValueError, TypeError) as error:
                self._note(task, name, "cannot", error)
            except Exception as error:
                self._note(task, name, "failed", error)
            else:
                allowed = tolerance(entrant.source.problem, task.shape, entrant.source.promote_k)
                faults = tuple(wrong(allowed, running.deviation))
                if faults:
                    self._note(task, name, "wrong", "; ".join(faults))
                else:
                    yield running

    def _note(
        self, task: Task, kernel: str, why: Literal["cannot", "wrong", "failed"], error: Exception | str
    ) -> None:
        """Write down that a kernel is not timed; raise where it has lost the GPU."""
        text = visible(error) if isinstance(error, str) else first_line(error)
        self.book.write(Refused("refused", task.shape, task.contest, kernel, why, text))
        if isinstance(error, UnfinishedError) or (not isinstance(error, str) and self.machine.lost()):
            message = f"{text}: the GPU cannot be used any more by this process; the same command goes on"
            where = f"{task.contest} {shape_text(task.shape)}"
            raise GemmgenError([Diagnostic(kernel, "device-lost", message, field=where)])

    def _take_turns(self, task: Task, arena: Arena, baseline: Running, kernels: tuple[Running, ...]) -> None:
        """Capture the arms and time them; note why there is no sample of one, or no round at all."""
        try:
            pass_seconds = arena.pass_seconds(baseline)
            passes = arena.passes(pass_seconds)
            samples = [arena.sample(baseline, passes)]
        except Exception as error:
            self._note(task, BASELINE, "cannot", error)
            return
        for running in kernels:
            try:
                samples.append(arena.sample(running, passes))
            except Exception as error:
                self._note(task, running.name, "failed", error)
        if len(samples) == 1:
            return
        try:
            result = self._rounds(task, arena, samples, pass_seconds)
        except GemmgenError:
            raise
        except Exception as error:  # nobody knows whose fault it is
            for sample in samples[1:-1]:
                self._note(task, sample.running.name, "failed", f"rounds with it: {first_line(error)}")
            self._note(task, samples[-1].running.name, "failed", error)
        else:
            if result:
                self.book.write(result)

    def _rounds(self, task: Task, arena: Arena, samples: list[Sample], pass_seconds: float) -> Result | None:
        """Let the GPU settle, take turns, and then time the best once more beside the baseline.

        Kernels that are wrong after so many replays are noted as that: they leave something behind.
        """
        arena.settle(samples, self.settle_seconds)
        start = self.machine.now()
        by_arm = arena.rounds(samples, self.protocol.rounds)
        right = [arm for arm in range(1, len(samples)) if self._still_right(task, arena, samples[arm])]
        if not right:
            return None
        best = max(right, key=lambda arm: ratios(by_arm[0], by_arm[arm]).median)
        pairs = arena.turns(samples, [0, best] * arena.playoff_pairs(samples, by_arm, best))
        state = self.state_since(start)
        timed = [
            Timed(
                kernel=sample.running.name,
                seconds=by_arm[arm],
                calls=sample.calls,
                relative_error=rounded(sample.running.deviation.relative),
                host_seconds=rounded(arena.host_seconds(sample.running.arm, pass_seconds)),
            )
            for arm, sample in enumerate(samples)
            if arm in (0, *right)
        ]
        return Result(
            line="result",
            shape=task.shape,
            contest=task.contest,
            families=task.families,
            input_sets=len(arena.sets),
            baseline=timed[0],
            baseline_kernels=self.prepared.launched.get((task.contest, task.shape), ()),
            kernels=tuple(timed[1:]),
            playoff=Playoff(samples[best].running.name, pairs[best], pairs[0]),
            state=state,
        )

    def _still_right(self, task: Task, arena: Arena, sample: Sample) -> bool:
        """Judge what one more replay makes of the first set."""
        if faults := arena.faults_after(sample):
            self._note(task, sample.running.name, "wrong", f"after many replays: {'; '.join(faults)}")
        return not faults


MUCH_SLOWER: Final = 2.5
"""Than a sample should last, is what is captured again with fewer calls."""
PLAYOFF_SECONDS: Final = 0.25
"""In pairs of the winner and the baseline: where power limits, the clock swings for tens of milliseconds, and
seven pairs at 8192 x 8192 x 8192 had medians of 0.93 and 1.03 (``benchmarks/fit/h200_orders.json``).
"""
LEAST_SUITE_HOST_CALLS: Final = 5


@dataclass(frozen=True)
class Running:
    """An arm that has run on all sets, and how far its first result is from the exact one."""

    name: str
    arm: _Calls
    deviation: Deviation


@dataclass(frozen=True)
class Sample:
    """What is timed at once."""

    running: Running
    work: Work
    calls: int


def rounded(seconds: float) -> float:
    """Return a number to six digits: more are noise, and a record has many."""
    return float(f"{seconds:.6g}")


def first_line(error: Exception) -> str:
    """Return what an error is and the first line of its text, with escapes for what is not printed."""
    return visible(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")


# --- what is done before, in processes of their own: they compile for this one, and may be lost


PRIMING_SECONDS: Final = 300
"""A kernel compiles in a few seconds: a process that takes longer than this is ended."""
NAMING_SECONDS: Final = 60
"""The process that asks the profiler has so long, and a second for each shape."""


def prepare_in_children(tasks: Sequence[Task], progress: Progress) -> Prepared:
    """Compile every kernel and run it once, and read the names of the baseline's kernels.

    Triton keeps what it compiles on the disk, where this process finds it. The profiler, which takes part in
    every launch, stays out of this process too. It must not have used the GPU yet, for it is forked.

    Raises GemmgenError (``no-gpu``).
    """
    smallest: dict[str, tuple[Entrant, Shape]] = {}
    for task in sorted(tasks, key=lambda task: dtypes_of(task.source.problem).moved_bytes(task.shape)):
        for entrant in task.entrants:
            smallest.setdefault(entrant.entry.name, (entrant, task.shape))
    progress(f"compiling {len(smallest)} kernels, and naming the baseline's on {len(tasks)} shapes")
    with forked(partial(_launched, tasks)) as launched, ThreadPoolExecutor(usable_cores()) as pool:
        priming = [
            pool.submit(primed, each.source.request, shape, each.module_path)
            for each, shape in smallest.values()
        ]
        found = dict(zip(smallest, (each.result() for each in priming), strict=True))
        try:
            names = launched()
        except LostError:
            names = {}
    for outcome in found.values():
        if isinstance(outcome, GemmgenError):
            raise outcome
    failures = {name: outcome for name, outcome in found.items() if isinstance(outcome, str)}
    return Prepared(names, failures)


def primed(request: Request, shape: Shape, module_path: Path) -> GemmgenError | str | None:
    """Compile a kernel by running it once, in a process of its own; return what is wrong with it."""
    try:
        with forked(partial(_primed, request, shape, module_path)) as result:
            return result()
    except LostError as error:
        return f"compiling and running it ended its process: {error}"


def _primed(request: Request, shape: Shape, module_path: Path) -> GemmgenError | str | None:
    signal.alarm(PRIMING_SECONDS)
    try:
        machine = CudaMachine(require_gpu(request.gpu.architecture))
    except GemmgenError as error:
        return error
    try:
        module = import_generated(module_path)
        pack_scales = pack_scales_of(module) if request.matmul.block_scaled else None
        made = _input_set(shape, request.matmul, torch.Generator(machine.device).manual_seed(0), pack_scales)
        bound(matmul_of(module), made.timed, made.d)()
        machine.finish()
    except (ValueError, TypeError):
        return None  # it does not take this shape; another one may do
    except Exception as error:
        return first_line(error)
    return None


def _launched(tasks: Sequence[Task]) -> dict[tuple[str, Shape], tuple[str, ...]]:
    """Return the names of the baseline's kernels for each task, by the profiler; none where that fails."""
    from torch.profiler import ProfilerActivity, profile

    signal.alarm(NAMING_SECONDS + len(tasks))
    found: dict[tuple[str, Shape], tuple[str, ...]] = {}
    generator = torch.Generator(torch.device("cuda")).manual_seed(0)
    for task in (tasks[0], *tasks):  # the first one twice: its profile may miss what starts the profiler
        with suppress(Exception), task.baseline.settings():
            made = _input_set(task.shape, task.source.problem, generator, None)
            call = task.baseline.bind(made.timed, made.d)
            call()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                call()
                torch.cuda.synchronize()
            events: list[Any] = sorted(profiler.events() or (), key=lambda event: event.time_range.start)
            found[task.contest, task.shape] = tuple(
                event.name
                for event in events
                if str(event.device_type).endswith("CUDA") and not event.name.startswith(("Mem", "cuda"))
            )
    return found
