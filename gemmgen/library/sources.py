"""What a library is made from: specs, records of suites, tables of ``gemmgen tune``; as measurements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, cast

from gemmgen.documents.files import read_bytes, read_text
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware.gpus import Gpu, gpu_of
from gemmgen.literals import visible
from gemmgen.plan import plan_spec
from gemmgen.plan.decisions import FIELDS
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import family_for
from gemmgen.problem import Request
from gemmgen.problem.contest import Contest
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.observation import Observation
from gemmgen.product import Product
from gemmgen.render import render
from gemmgen.spec import Spec, SpecFile, load_spec, parse_spec
from gemmgen.spec.diagnostics import listing, quoted
from gemmgen.spec.model import spec_of
from gemmgen.tune import TABLE, TunedRow, read_table
from gemmgen.tune.candidates import kernel_sha256, spec_text

if TYPE_CHECKING:
    from gemmgen.bench.result_log import KernelEntry


KernelObservation = Observation[Kernel]
"""Observation of a kernel without title and shapes: equal kernels of two specs are then one kernel."""


@dataclass(frozen=True)
class Sources:
    """All that a library is chosen from."""

    problem: Contest
    """What its kernels compute."""
    description: str
    """The same in words, for people."""
    spec: Spec
    """One that says it exactly."""
    gpu: str | None
    """The product that was measured, as CUDA names it; None where nothing was."""
    baseline: str
    """What was measured beside the kernels, in words; empty where nothing was."""
    measurements: tuple[KernelObservation, ...] = ()
    specs: Mapping[Kernel, SpecFile] = field(default_factory=dict[Kernel, SpecFile])
    """Kernels that a file of their own specifies: it is taken as it is."""
    files: tuple[tuple[str, str], ...] = ()
    """The names of the files that were read, and the SHA-256 of each."""
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Each once, in the order of the sources."""
        return tuple(dict.fromkeys((*self.specs, *(found.kernel for found in self.measurements))))


def anonymous(kernel: Kernel) -> Kernel:
    """Return a kernel without what its spec says beside it: title, shapes, and whom it is planned for."""
    return replace(kernel, request=Request(kernel.problem, kernel.gpu))


# --- reading


@dataclass(frozen=True)
class _Part:
    """What one file has of one problem."""

    path: str
    problem: Contest
    description: str
    spec: Spec
    gpu: str | None = None
    baseline: str = ""
    date: str = ""
    measurements: tuple[KernelObservation, ...] = ()
    specs: Mapping[Kernel, SpecFile] = field(default_factory=dict[Kernel, SpecFile])
    changed: int = 0
    """Kernels that were measured as modules which this gemmgen does not make of their specs."""


def read(paths: Sequence[Path], problem: str | None = None) -> Sources:
    """Return what files say of one problem; of several measurements of a kernel on a shape the latest counts.

    A kernel that starts before the one ahead of it has ended is left out of records: not every caller may
    use it.

    Raises GemmgenError: ``bad-source``, ``bad-table`` and ``bad-record`` for what cannot be read,
    ``mixed-problems``, ``mixed-gpus``, ``no-kernels``, ``library-batch-invariance`` for kernels that add up a
    row's products in different orders although one promises the same bits, ``source-spec`` for a spec that
    was measured and is not there as it was, and what is wrong with specs.
    """
    parts = [part for path in paths for part in _parts(path)]
    if problem is not None:
        known = _problems(parts)
        parts = [part for part in parts if is_named(part.problem, problem)]
        if not parts:
            found = listing([*known.values()], "and") or "no kernel"
            message = f"has no kernel of {quoted(problem)}; there is {found}"
            raise GemmgenError([Diagnostic(_names(paths), "no-kernels", message)])
    _refuse_mixture(parts, paths)
    measured = [part for part in sorted(parts, key=lambda part: part.date) if part.measurements]
    latest = {(one.shape, one.kernel): one for part in measured for one in part.measurements}
    specs = {kernel: source for part in parts for kernel, source in part.specs.items()}
    changed = sum(part.changed for part in parts)
    warnings = []
    if changed:
        message = (
            f"{changed} of the kernels were measured as other modules than this gemmgen makes of them:"
            " the choice rests on what those took"
        )
        warnings = [Diagnostic(_names(paths), "stale-measurements", message, severity="warning")]
    return Sources(
        problem=parts[0].problem,
        description=parts[0].description,
        spec=parts[0].spec,
        gpu=measured[0].gpu if measured else None,
        baseline=measured[-1].baseline if measured else "",
        measurements=tuple(sorted(latest.values(), key=lambda one: (one.shape, family_label(one.kernel)))),
        specs=specs,
        files=tuple((visible(path.name), hashlib.sha256(read_bytes(path)).hexdigest()) for path in paths),
        warnings=tuple(warnings),
    )


def family_label(kernel: Kernel) -> str:
    """Return the decisions of a kernel in one line, by the family that made it."""
    return family_for(kernel).label(kernel)


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(path.as_posix() for path in paths)


def refuse_library(package: Path, problem: Contest, gpu: str | None, products: Sequence[Product]) -> None:
    """Raise GemmgenError if the kernels of a package could not have been put together in one library.

    `problem` and `gpu` are those of its manifest. A spec in the package may be another one than the library
    was made of, so the checks of ``read`` are made again.
    """
    paths = [Path(product.source.path) for product in products]
    for path, product in zip(paths, products, strict=True):
        refuse_kernel(path, product.plan)
    parts = [
        _spec_part(path, product.source, anonymous(product.plan))
        for path, product in zip(paths, products, strict=True)
    ]
    generations = dict.fromkeys(product.plan.architecture.generation for product in products)
    if len(generations) > 1:
        message = f"a library is of one GPU, its specs are for {listing(list(generations), 'and')}"
        raise GemmgenError([Diagnostic(package.as_posix(), "mixed-gpus", message)])
    _refuse_mixture(parts, [package])
    if parts[0].problem != problem:
        message = f"is {problem}, and its specs are of {_problems(parts)[parts[0].problem]}"
        raise GemmgenError([Diagnostic(package.as_posix(), "bad-library", message, field="problem")])
    if gpu and (wrong := _other_generation(gpu, products[0].plan.gpu)):
        raise GemmgenError([Diagnostic(package.as_posix(), "bad-library", wrong, field="gpu")])


def _refuse_mixture(parts: Sequence[_Part], paths: Sequence[Path]) -> None:
    """Raise where the parts do not belong in one library."""
    if not parts:
        raise GemmgenError([Diagnostic(_names(paths), "no-kernels", "there is no kernel in it")])
    problems = _problems(parts)
    if len(problems) > 1:
        found = listing([*problems.values()], "and")
        message = f"a library has one problem, here are {found}; choose one with --problem"
        raise GemmgenError([Diagnostic(_names(paths), "mixed-problems", message)])
    gpus = dict.fromkeys(part.gpu for part in parts if part.gpu)
    if len(gpus) > 1:
        message = f"a library is of one GPU, these were measured on {listing(list(gpus), 'and')}"
        raise GemmgenError([Diagnostic(_names(paths), "mixed-gpus", message)])
    _refuse_other_bits(parts, paths)


def is_named(contest: Contest, name: str) -> bool:
    """Whether a name means a contest: the first digits of its key, ``-promoted`` behind for promoted sums."""
    digits, _, rest = name.partition("-")
    return contest.matmul.startswith(digits or " ") and rest == ("promoted" if contest.promoted else "")


def _problems(parts: Iterable[_Part]) -> dict[Contest, str]:
    """Return the contests of parts, each in words and with the name that ``--problem`` takes."""
    return {part.problem: f"{quoted(part.description)} ({part.problem})" for part in parts}


def _refuse_other_bits(parts: Sequence[_Part], paths: Sequence[Path]) -> None:
    """Raise where a kernel promises batch invariance and another one could give a row other bits.

    A library chooses among its kernels by M.
    """
    kernels = {kernel: name for part in parts for name, kernel in _named_kernels(part)}
    promising = next((kernel for kernel in kernels if kernel.problem.batch_invariant), None)
    if promising is None:
        return
    for kernel, name in kernels.items():
        found = promising.sum_order.difference(kernel.sum_order)
        if found is None and kernel.problem.batch_invariant:
            continue
        why = f"{name} does not promise that"
        if found is not None:
            path, promised, other = found
            why = f"{path} decides how products are added up, and is {promised} there and {other} in {name}"
        message = (
            f"{kernels[promising]} promises a row the same bits for every M, by which a library chooses its"
            f" kernel: {why}; make a library of each"
        )
        raise GemmgenError([Diagnostic(_names(paths), "library-batch-invariance", message)])


def _named_kernels(part: _Part) -> Iterator[tuple[str, Kernel]]:
    """Yield the kernels of a part: by the name of the spec, or by the file and what was measured."""
    yield from ((source.path, kernel) for kernel, source in part.specs.items())
    yield from ((f"{part.path}: {family_label(one.kernel)}", one.kernel) for one in part.measurements)


def _parts(path: Path) -> Iterator[_Part]:
    """Yield what a file has, problem by problem."""
    if path.suffix in (".yaml", ".yml"):
        yield _spec_part(path, *_known_spec(path))
        return
    try:
        first = json.loads(read_text(path).partition("\n")[0] or "null")
    except FileNotFoundError as error:
        raise _refused(path, "file-missing", "there is no such file") from error
    except OSError as error:
        raise _refused(path, "bad-source", f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        first = None
    known = cast("dict[str, object]", first) if isinstance(first, dict) else {}
    if known.get("table") == TABLE:
        yield from (_row_part(path, number, row) for number, row in enumerate(read_table(path), 1))
    elif known.get("line") == "session":
        yield from _record_parts(path)
    else:
        message = "is no spec (.yaml), no record of a suite and no table of `gemmgen tune` (both .jsonl)"
        raise _refused(path, "bad-source", message)


def _refused(
    path: Path, code: str, message: str, line: int | None = None, field: str | None = None
) -> GemmgenError:
    return GemmgenError([Diagnostic(path.as_posix(), code, message, field=field, line=line)])


@cache
def _known_spec(path: Path) -> tuple[SpecFile, Kernel]:
    """Return a spec that may stand in a library, and its kernel."""
    source = load_spec(path)
    kernel = plan_spec(source)
    refuse_kernel(path, kernel)
    return source, anonymous(kernel)


def refuse_kernel(path: Path, kernel: Kernel) -> None:
    """Raise GemmgenError (``library-kernel``) for the kernel of a spec that no library can have."""
    if kernel.problem.block_scaled:
        why = "its scales are packed for one kernel"
    elif kernel.schedule_kind == "single_tile":
        why = "its kernel computes no more than a tile"
    elif kernel.problem.backward:
        why = "it has a backward, and the operator of a library has none: leave that out"
    else:
        return
    raise _refused(path, "library-kernel", f"cannot be in a library: {why}")


def _spec_part(path: Path, source: SpecFile, kernel: Kernel) -> _Part:
    """Return what a spec that is no part of a measurement has."""
    return _Part(path.as_posix(), source.contest, source.description, source.spec, specs={kernel: source})


# --- tables of ``gemmgen tune``


def _row_part(path: Path, number: int, row: TunedRow) -> _Part:
    """Return what a row of a table has."""
    where = path.parent / row.spec
    try:
        source, kernel = _known_spec(where)
    except GemmgenError as error:
        if any(found.code == "file-missing" for found in error.diagnostics):
            message = f"the spec {row.spec} is not there: tables and specs of `gemmgen tune` go together"
            raise _refused(path, "source-spec", message, number) from error
        raise
    _refuse_contradiction(path, number, row, source)
    try:
        pinned_text(kernel, source.spec, source.spec.title)
    except ValueError:
        specs = {kernel: source}  # which states what no pinned spec does: it is taken as it is
    else:
        specs = {}
    return _Part(
        path.as_posix(),
        row.problem,
        source.description,
        source.spec,
        specs=specs,
        gpu=row.gpu,
        baseline="cuBLAS",
        date=row.date,
        measurements=(Observation(row.shape, kernel, row.seconds, row.baseline_seconds),),
        changed=kernel_sha256(plan_spec(source), where.stem) != row.kernel_sha256,
    )


def _refuse_contradiction(path: Path, number: int, row: TunedRow, source: SpecFile) -> None:
    """Raise for a row that says something else than the spec it names."""
    from gemmgen.bench.arms import dtypes_of  # needs torch

    dtypes = dtypes_of(source.problem)
    if row.problem != source.contest:
        message = f"is {row.problem}, and the spec {row.spec} is of {source.contest}"
        raise _refused(path, "bad-table", message, number, "problem")
    if row.dtypes != dtypes:
        message = f"are {_named(row.dtypes)}, and those of the spec {row.spec} are {_named(dtypes)}"
        raise _refused(path, "bad-table", message, number, "dtypes")
    if wrong := _other_generation(row.gpu, source.request.gpu):
        raise _refused(path, "bad-table", f"{wrong}, as the spec {row.spec} says", number, "gpu")


def _named(dtypes: Dtypes) -> str:
    return listing([f"{name} {dtype}" for name, dtype in asdict(dtypes).items() if dtype], "and")


def _other_generation(gpu: str, planned: Gpu) -> str | None:
    """Return why a kernel cannot have run on a GPU: it is of another generation; None of an unknown GPU."""
    measured = gpu_of(gpu)
    if measured is None or measured.architecture == planned.architecture:
        return None
    generations = measured.architecture.generation, planned.architecture.generation
    return f"is {gpu}, a GPU of {generations[0]}, and the kernel is for {generations[1]}"


# --- records of suites


def _record_parts(path: Path) -> Iterator[_Part]:
    """Yield what a record has of each contest."""
    from gemmgen.bench.result_log import Result, ResultLog  # needs torch

    log = ResultLog.opened(path)
    gpus = dict.fromkeys(session.environment.gpu for session in log.sessions)
    if len(gpus) > 1:
        message = f"a library is of one GPU, these were measured on {listing(list(gpus), 'and')}"
        raise _refused(path, "mixed-gpus", message)
    (gpu,), known = gpus, log.kernels
    results = [line for line in log.current() if isinstance(line, Result)]
    for contest, facts in log.contests.items():
        kernels: dict[str, Kernel] = {}
        found: list[KernelObservation] = []
        spec: SpecFile | None = None
        changed = 0
        for result in (result for result in results if result.contest == contest):
            for arm in result.kernels:
                if arm.kernel not in kernels:
                    if (entry := known.get(arm.kernel)) is None:
                        message = f"has results of {quoted(arm.kernel)}, which no session has"
                        raise _refused(path, "bad-record", message)
                    spec_path, sha256 = entry.subject.spec_path, entry.subject.spec_sha256
                    source = _spec_of(path, spec_path, sha256)
                    if source.contest != contest:
                        message = f"is {contest}, and the spec {spec_path} is of {source.contest}"
                        raise _refused(path, "bad-record", message, field="contest")
                    if wrong := _other_generation(gpu, source.request.gpu):
                        raise _refused(path, "bad-record", f"{wrong}: {spec_path}", field="environment.gpu")
                    kernel = kernel_of(entry, source)
                    module = render(kernel, spec_name=Path(spec_path).name, spec_sha256=sha256)
                    changed += hashlib.sha256(module.encode()).hexdigest() != entry.subject.module_sha256
                    kernels[arm.kernel] = anonymous(kernel)
                    spec = spec or source  # its words are generated: those of a file could be code
                kernel = kernels[arm.kernel]
                if getattr(kernel, "early_operand", "none") == "none" and not kernel.problem.backward:
                    # Of the ratio's median and the baseline's, so that other kernels' rounds do not count.
                    baseline = median(result.baseline.seconds)
                    seconds = baseline / result.observed(arm).ratio
                    found.append(KernelObservation(result.shape, kernel, seconds, baseline))
        if spec and found:
            yield _Part(
                path.as_posix(),
                contest,
                spec.description,
                spec.spec,
                gpu=gpu,
                baseline=facts.baseline,
                date=log.sessions[-1].date,
                measurements=tuple(found),
                changed=changed,
            )


@cache
def _spec_of(record: Path, spec_path: str, sha256: str) -> SpecFile:
    """Return the spec that a record names: at that path, or under ``specs`` beside the record.

    Raises GemmgenError (``source-spec``) where there is none that has the hash.
    """
    places = (Path(spec_path), record.parent / "specs" / Path(spec_path).name)
    for place in places:
        if place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() == sha256:
            return load_spec(place)
    message = (
        f"its kernels are of {spec_path} with SHA-256 {sha256[:8]}…, which is neither there nor at"
        f" {places[1].as_posix()}"
    )
    raise _refused(record, "source-spec", message)


def kernel_of(entry: KernelEntry, source: SpecFile) -> Kernel:
    """Return the kernel of an entry of a record, whose spec is `source`."""
    if entry.spec is None:
        return plan_spec(source)
    return _planned(entry.spec, source.stem)


@lru_cache(maxsize=512)
def _planned(text: str, stem: str) -> Kernel:
    """Return the kernel of a spec's text: the records of one library have many of them in common."""
    return plan_spec(parse_spec(text.encode(), stem))


# --- a spec that leaves nothing open

DEFAULTS: Final[Mapping[str, object]] = {
    "mma.rows": "m",
    "mma.promote_k": 0,
    "tile.staggered": False,
    "schedule.splits": 1,
    "schedule.reduction": "ordered",
    "schedule.last_wave": "whole",
    "dependent_launch.early": "none",
}
"""Decisions that are left out of a spec where they are this: it then has no other."""
DERIVED: Final = ("mma.n", "operands.a.swizzle", "operands.b.swizzle")
"""Decisions that follow from the tile alone, wherever the planner chose them."""


def pinned_text(kernel: Kernel, spec: Spec, title: str) -> str:
    """Return the text of a spec of a kernel: what `spec` computes, and every decision of a Hopper kernel.

    Raises ValueError where the planner would not make the same kernel of it.
    """
    data: dict[str, Any] = spec.model_dump(exclude_none=True, exclude={"bench", "check", "problem", "search"})
    data["title"] = title
    for path, name in FIELDS.items():
        *parents, last = path.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section.pop(last, None)
        value = getattr(kernel, name, None)
        if value is not None and _is_stated(kernel, path, value):
            section[last] = value
    found = spec_of({name: value for name, value in data.items() if value != {}})
    if found is None or anonymous(plan_spec(SpecFile.of(found))) != kernel:
        raise ValueError(f"{title} is not planned as it was")
    return spec_text(found)


def _is_stated(kernel: Kernel, path: str, value: object) -> bool:
    """Whether a decision belongs in the spec of a kernel."""
    section = path.partition(".")[0]
    roles = getattr(kernel, "specialization", "none") != "none"
    early = getattr(kernel, "early_operand", "none") != "none"
    if path in DERIVED or DEFAULTS.get(path) == value:
        return False
    if path == "operands.a.source":  # of composed tiles the planner takes either, by their columns
        return value != "shared" or getattr(kernel, "composed", False)
    if section in ("warp_specialization", "cluster"):
        return roles
    if section in ("warps", "occupancy"):
        return not roles
    return early if section == "dependent_launch" else True
