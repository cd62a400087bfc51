"""Kernels and measurements of one file: a spec, the record of a suite, or a table of tuned kernels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, cast

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.library import reasons_against
from gemmgen.features.rendering import render
from gemmgen.files import read_text
from gemmgen.hardware.gpus import Gpu, gpu_of
from gemmgen.library.pinned import KernelObservation, anonymous, pinned_text
from gemmgen.plan.kernel import Kernel
from gemmgen.planner import plan_spec
from gemmgen.problem.contest import Contest
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.observation import Observation
from gemmgen.spec import Spec, SpecFile, load_spec, parse_recorded
from gemmgen.spec.diagnostics import listing, quoted
from gemmgen.tune import TABLE, TunedRow, read_table
from gemmgen.tune.candidates import kernel_sha256

if TYPE_CHECKING:
    from gemmgen.bench.result_log import KernelEntry


# --- reading


@dataclass(frozen=True)
class SourcePart:
    """Kernels and observations of one problem in one file."""

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
    """Number of kernels whose measured modules this gemmgen no longer makes."""


def parts_of(path: Path) -> Iterator[SourcePart]:
    """Yield the parts of a file, problem by problem."""
    if path.suffix in (".yaml", ".yml"):
        yield spec_part(path, *_known_spec(path))
        return
    try:
        first = json.loads(read_text(path).partition("\n")[0] or "null")
    except FileNotFoundError as error:
        raise refused(path, "file-missing", "there is no such file") from error
    except OSError as error:
        raise refused(path, "bad-source", f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        first = None
    known = cast("dict[str, object]", first) if isinstance(first, dict) else {}
    if known.get("table") == TABLE:
        yield from (_row_part(path, number, row) for number, row in enumerate(read_table(path), 1))
    elif known.get("line") == "session":
        yield from _record_parts(path)
    else:
        message = "is no spec (.yaml), no record of a suite and no table of `gemmgen tune` (both .jsonl)"
        raise refused(path, "bad-source", message)


def refused(
    path: Path, code: str, message: str, line: int | None = None, field: str | None = None
) -> GemmgenError:
    """Return the error for a file that is not a valid source of a library."""
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
    if why := next(chain(reasons_against(kernel.problem), _own_reasons_against(kernel)), None):
        raise refused(path, "library-kernel", f"cannot be in a library: {why}")


def _own_reasons_against(kernel: Kernel) -> Iterator[str]:
    """Yield why no library has a kernel, whatever features it has."""
    if kernel.schedule_kind == "single_tile":
        yield "its kernel computes a single tile"
    if kernel.problem.backward:
        yield "it has a backward, which the operator of a library does not support: remove it"


def spec_part(path: Path, source: SpecFile, kernel: Kernel) -> SourcePart:
    """Return the part of a spec without measurements."""
    return SourcePart(
        path.as_posix(), source.contest, source.description, source.spec, specs={kernel: source}
    )


# --- tables of ``gemmgen tune``


def _row_part(path: Path, number: int, row: TunedRow) -> SourcePart:
    """Return the part of a row of a table."""
    where = path.parent / row.spec
    try:
        source, kernel = _known_spec(where)
    except GemmgenError as error:
        if any(found.code == "file-missing" for found in error.diagnostics):
            message = f"the spec {row.spec} is not there: tables and specs of `gemmgen tune` go together"
            raise refused(path, "source-spec", message, number) from error
        raise
    _refuse_contradiction(path, number, row, source)
    try:
        pinned_text(kernel, source.spec, source.spec.title)
    except ValueError:
        specs = {kernel: source}  # no pinned spec states this kernel, so its own spec is used
    else:
        specs = {}
    return SourcePart(
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
    from gemmgen.problem.dtypes import Dtypes

    dtypes = Dtypes.of(source.problem)
    if row.problem != source.contest:
        message = f"is {row.problem}, and the spec {row.spec} is of {source.contest}"
        raise refused(path, "bad-table", message, number, "problem")
    if row.dtypes != dtypes:
        message = f"are {_named(row.dtypes)}, and those of the spec {row.spec} are {_named(dtypes)}"
        raise refused(path, "bad-table", message, number, "dtypes")
    if wrong := other_generation(row.gpu, source.request.gpu):
        raise refused(path, "bad-table", f"{wrong}, as the spec {row.spec} says", number, "gpu")


def _named(dtypes: Dtypes) -> str:
    return listing([f"{name} {dtype}" for name, dtype in asdict(dtypes).items() if dtype], "and")


def other_generation(gpu: str, planned: Gpu) -> str | None:
    """Return why a kernel cannot have run on a GPU of another generation; None if it can."""
    measured = gpu_of(gpu)
    if measured is None or measured.architecture == planned.architecture:
        return None
    generations = measured.architecture.generation, planned.architecture.generation
    return f"is {gpu}, a GPU of {generations[0]}, and the kernel is for {generations[1]}"


# --- records of suites


def _record_parts(path: Path) -> Iterator[SourcePart]:
    """Yield a part for each contest of a suite's record."""
    from gemmgen.bench.result_log import Result, ResultLog  # needs torch

    log = ResultLog.opened(path)
    gpus = dict.fromkeys(session.environment.gpu for session in log.sessions)
    if len(gpus) > 1:
        message = f"a library is for one GPU, and these kernels were measured on {listing(list(gpus), 'and')}"
        raise refused(path, "mixed-gpus", message)
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
                        raise refused(path, "bad-record", message)
                    spec_path, sha256 = entry.subject.spec_path, entry.subject.spec_sha256
                    source = _spec_of(path, spec_path, sha256)
                    if source.contest != contest:
                        message = f"is {contest}, and the spec {spec_path} is of {source.contest}"
                        raise refused(path, "bad-record", message, field="contest")
                    if wrong := other_generation(gpu, source.request.gpu):
                        raise refused(path, "bad-record", f"{wrong}: {spec_path}", field="environment.gpu")
                    kernel = kernel_of(entry, source)
                    module = render(kernel, spec_name=Path(spec_path).name, spec_sha256=sha256)
                    changed += hashlib.sha256(module.encode()).hexdigest() != entry.subject.module_sha256
                    kernels[arm.kernel] = anonymous(kernel)
                    spec = (
                        spec or source
                    )  # its description is generated, while a text of the file could be code
                kernel = kernels[arm.kernel]
                if getattr(kernel, "early_operand", "none") == "none" and not kernel.problem.backward:
                    # By the medians of the ratio and of the baseline: the kernel's own rounds alone count.
                    baseline = median(result.baseline.seconds)
                    seconds = baseline / result.observed(arm).ratio
                    found.append(KernelObservation(result.shape, kernel, seconds, baseline))
        if spec and found:
            yield SourcePart(
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

    Raises GemmgenError (``source-spec``) if neither file has the hash.
    """
    places = (Path(spec_path), record.parent / "specs" / Path(spec_path).name)
    for place in places:
        if place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() == sha256:
            return load_spec(place)
    message = (
        f"its kernels need {spec_path} with SHA-256 {sha256[:8]}…, which is neither there nor at"
        f" {places[1].as_posix()}"
    )
    raise refused(record, "source-spec", message)


def kernel_of(entry: KernelEntry, source: SpecFile) -> Kernel:
    """Return the kernel of an entry of a record, whose spec is `source`."""
    if entry.spec is None:
        return plan_spec(source)
    return _planned(entry.spec, source.stem)


@lru_cache(maxsize=512)
def _planned(text: str, stem: str) -> Kernel:
    """Return the kernel of a spec's text: the records of one library have many of them in common."""
    return plan_spec(parse_recorded(text, stem))
