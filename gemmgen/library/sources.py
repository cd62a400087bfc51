"""Sources of a library: specs, records of suites and tables of ``gemmgen tune``, read as observations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.files import read_bytes
from gemmgen.library.pinned import KernelObservation, anonymous, family_label
from gemmgen.library.source_files import SourcePart, other_generation, parts_of, refuse_kernel, spec_part
from gemmgen.literals import visible
from gemmgen.plan.kernel import Kernel
from gemmgen.problem.contest import Contest
from gemmgen.product import Product
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.diagnostics import listing, quoted


@dataclass(frozen=True)
class Sources:
    """Kernels and observations from which a library is selected."""

    problem: Contest
    """Contest of the kernels."""
    description: str
    """Description of the problem, for people."""
    spec: Spec
    """A spec that states the problem exactly."""
    gpu: str | None
    """Product name of the measured GPU, as CUDA has it; None without measurements."""
    baseline: str
    """Text of the measured baseline; empty without measurements."""
    measurements: tuple[KernelObservation, ...] = ()
    specs: Mapping[Kernel, SpecFile] = field(default_factory=dict[Kernel, SpecFile])
    """Specs of kernels that have a file of their own, which is used as it is."""
    files: tuple[tuple[str, str], ...] = ()
    """Names of the files that were read, with the SHA-256 of each."""
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels, each once, in the order of the sources."""
        return tuple(dict.fromkeys((*self.specs, *(found.kernel for found in self.measurements))))


def read(paths: Sequence[Path], problem: str | None = None) -> Sources:
    """Return the sources of one problem in files; the latest measurement of a kernel on a shape counts.

    Kernels of records that start before the kernel ahead of them has ended are omitted, because not every
    caller may use them.

    Raises GemmgenError: ``bad-source``, ``bad-table`` and ``bad-record`` if a file cannot be read;
    ``mixed-problems``; ``mixed-gpus``; ``no-kernels``; ``library-batch-invariance`` if kernels add the
    products of a row in different orders although one promises the same bits; ``source-spec`` if a measured
    spec is missing or has changed; and the errors of specs.
    """
    parts = [part for path in paths for part in parts_of(path)]
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
            f"{changed} of the kernels were measured as modules that this gemmgen no longer makes:"
            " their device code may be the same; the choice uses the times that were measured"
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


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(path.as_posix() for path in paths)


def refuse_library(package: Path, problem: Contest, gpu: str | None, products: Sequence[Product]) -> None:
    """Raise GemmgenError if the kernels of a package cannot belong to one library.

    `problem` and `gpu` are those of its manifest. A spec in the package may have been replaced, so the checks
    of ``read`` are repeated.
    """
    paths = [Path(product.source.path) for product in products]
    for path, product in zip(paths, products, strict=True):
        refuse_kernel(path, product.plan)
    parts = [
        spec_part(path, product.source, anonymous(product.plan))
        for path, product in zip(paths, products, strict=True)
    ]
    generations = dict.fromkeys(product.plan.architecture.generation for product in products)
    if len(generations) > 1:
        message = f"a library is for one GPU, and its specs are for {listing(list(generations), 'and')}"
        raise GemmgenError([Diagnostic(package.as_posix(), "mixed-gpus", message)])
    _refuse_mixture(parts, [package])
    if parts[0].problem != problem:
        message = f"is {problem}, and its specs are of {_problems(parts)[parts[0].problem]}"
        raise GemmgenError([Diagnostic(package.as_posix(), "bad-library", message, field="problem")])
    if gpu and (wrong := other_generation(gpu, products[0].plan.gpu)):
        raise GemmgenError([Diagnostic(package.as_posix(), "bad-library", wrong, field="gpu")])


def _refuse_mixture(parts: Sequence[SourcePart], paths: Sequence[Path]) -> None:
    """Raise GemmgenError if the parts do not belong in one library."""
    if not parts:
        raise GemmgenError([Diagnostic(_names(paths), "no-kernels", "there is no kernel in it")])
    problems = _problems(parts)
    if len(problems) > 1:
        found = listing([*problems.values()], "and")
        message = f"a library computes one problem, and there are {found}: choose one with --problem"
        raise GemmgenError([Diagnostic(_names(paths), "mixed-problems", message)])
    gpus = dict.fromkeys(part.gpu for part in parts if part.gpu)
    if len(gpus) > 1:
        message = f"a library is for one GPU, and these kernels were measured on {listing(list(gpus), 'and')}"
        raise GemmgenError([Diagnostic(_names(paths), "mixed-gpus", message)])
    _refuse_other_bits(parts, paths)


def is_named(contest: Contest, name: str) -> bool:
    """Return True if a name means a contest: digits of its key, and ``-promoted`` for promoted sums."""
    digits, _, rest = name.partition("-")
    return contest.matmul.startswith(digits or " ") and rest == ("promoted" if contest.promoted else "")


def _problems(parts: Iterable[SourcePart]) -> dict[Contest, str]:
    """Return the contests of parts, each in words and with the name that ``--problem`` takes."""
    return {part.problem: f"{quoted(part.description)} ({part.problem})" for part in parts}


def _refuse_other_bits(parts: Sequence[SourcePart], paths: Sequence[Path]) -> None:
    """Raise GemmgenError if a kernel promises batch invariance and another could give a row other bits.

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


def _named_kernels(part: SourcePart) -> Iterator[tuple[str, Kernel]]:
    """Yield the kernels of a part with names: of the spec, or of the file and the kernel's decisions."""
    yield from ((source.path, kernel) for kernel, source in part.specs.items())
    yield from ((f"{part.path}: {family_label(one.kernel)}", one.kernel) for one in part.measurements)
