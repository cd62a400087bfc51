"""A library as files: one package of generated modules, its table and its rule; written, and checked."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.machinery import all_suffixes
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Final, cast

from gemmgen.documents.decode import BadFieldError, decode
from gemmgen.documents.files import read_bytes, read_text
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware.gpus import HOPPER_PRODUCTS, is_power_of_two
from gemmgen.launcher_file import LAUNCHER, launcher_text
from gemmgen.library import Choice, predictable
from gemmgen.library.manifest import (
    LIBRARY_FORMAT,
    MANIFEST,
    PART_NAMES,
    PARTS,
    SPECS,
    Manifest,
    MeasuredRow,
    ModuleName,
    bad_library,
    module_file,
    read_manifest,
    spec_file,
)
from gemmgen.library.sources import Sources, family_label, pinned_text, refuse_library
from gemmgen.literals import python_literal
from gemmgen.lower import lower
from gemmgen.plan import cards, forecast, timing
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.search import traffic_of
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.cost import card_of, row_of
from gemmgen.plan.wgmma.family import kind_of
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.problem.operations import OPERATIONS
from gemmgen.product import Finding, Product, make, write_files
from gemmgen.render import render_template
from gemmgen.render.wrapper import LINE_LENGTH, Wrapper, fit
from gemmgen.scratch import scratch
from gemmgen.spec.load import module_name_problem
from gemmgen.spec.model import TITLE_LIMIT, Spec


@dataclass(frozen=True)
class Member:
    """A kernel of a library: its spec, and what follows from it."""

    stem: str
    spec: str
    """The text of its spec."""
    product: Product

    def __str__(self) -> str:
        return self.stem


@dataclass(frozen=True)
class TableRange:
    """The M of one N and K, from and to, that get the kernel of a name."""

    least: int
    most: int
    stem: str


@dataclass(frozen=True)
class TableRow:
    """The ranges of one N and K."""

    n: int
    k: int
    ranges: tuple[TableRange, ...]


@dataclass(frozen=True)
class Library:
    """All that its files say."""

    name: str
    problem: Contest
    description: str
    """What its kernels compute, for people."""
    gpu: str | None
    """That was measured."""
    baseline: str
    sources: tuple[tuple[str, str], ...]
    """The names of the files that it was made from, and the SHA-256 of each."""
    members: tuple[Member, ...]
    table: tuple[TableRow, ...]
    measured: Mapping[str, tuple[MeasuredRow, ...]]

    def __str__(self) -> str:
        ranges = sum(len(row.ranges) for row in self.table)
        tuned = f"{ranges} ranges of M at {len(self.table)} pairs of N and K, measured on {self.gpu}"
        return f"{len(self.members)} kernels; {tuned if self.table else 'nothing tuned: the rule decides'}"

    def as_dict(self) -> dict[str, object]:
        """Return what it has as plain data for JSON."""
        return {
            "problem": asdict(self.problem),
            "description": self.description,
            "gpu": self.gpu,
            "kernels": [member.stem for member in self.members],
            "table": [asdict(row) for row in self.table],
        }

    def files(self) -> dict[str, str]:
        """Return the package by the names of its files; the manifest, which has the hashes, comes last."""
        values: dict[str, object] = {
            "library": self,
            "view": LibraryView(self),
            "library_format": LIBRARY_FORMAT,
        }
        found = {
            "__init__.py": render_template("library/init.py.j2", **values),
            "forecast.py": _source(forecast),
            "timing.py": _source(timing),
            "cards.py": _source(cards),
            "coefficients.py": render_template("library/coefficients.py.j2", **values),
            "measured.py": render_template("library/measured.py.j2", **values),
            LAUNCHER: launcher_text(),
        }
        for member in self.members:
            found[module_file(member.stem)] = member.product.module
            found[spec_file(member.stem)] = member.spec
        return found | {MANIFEST: self._manifest(found)}

    def _manifest(self, files: Mapping[str, str]) -> str:
        """Return the text of the manifest: a line for each row, so that a difference can be read."""
        sections: dict[str, object] = {
            "gemmgen": {"library_format": LIBRARY_FORMAT},
            "name": self.name,
            "problem": asdict(self.problem),
            "description": self.description,
            "gpu": self.gpu,
            "baseline": self.baseline,
            "sources": [list(source) for source in self.sources],
            "kernels": [member.stem for member in self.members],
            "table": [[row.n, row.k, [list(astuple(found)) for found in row.ranges]] for row in self.table],
            "sha256": {name: _sha256(text) for name, text in files.items()},
        }
        lines = [f"  {json.dumps(name)}: {_rows(value)}" for name, value in sections.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _source(module: ModuleType) -> str:
    """Return the text of a module of gemmgen's, of which a library has a copy."""
    return read_text(Path(str(module.__file__)))


def _rows(value: object) -> str:
    """Return a list or a mapping as JSON, a line for each item."""
    if isinstance(value, list) and value:
        items = [json.dumps(item) for item in cast("list[object]", value)]
        return "[\n    " + ",\n    ".join(items) + "\n  ]"
    if isinstance(value, dict) and len(cast("dict[str, object]", value)) > 1:
        named = cast("dict[str, object]", value).items()
        return "{\n    " + ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in named) + "\n  }"
    return json.dumps(value)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lowered(member: Member) -> None:
    """Compile a kernel, and hold it against its plan.

    Raises GemmgenError where the compiler refuses it, or measures something else than is planned.
    """
    product = member.product
    lower(product.module, product.plan, path=f"{member.stem}.yaml", stem=member.stem)


# --- from a choice to a library


def assemble(name: str, sources: Sources, choice: Choice, *, dependent: bool = False) -> Library:
    """Return the library of a name with the kernels that were chosen.

    `dependent` ones start while the kernel ahead of them still runs, and wait for its end before they read.

    Raises GemmgenError (``module-name``) for what cannot be a package's name, ``library-rule`` where nothing
    is tuned and there is no rule for the kernels.
    """
    if problem := module_name_problem(name):
        raise GemmgenError([Diagnostic(name, "module-name", f"{name} {problem}: choose another name")])
    stems = _stems(name, sources, choice.kernels)
    members = tuple(_members(sources, choice.kernels, stems, dependent=dependent))
    if name in stems.values():
        message = "is the name of a kernel in it too, and each is an operator of torch: choose another name"
        raise GemmgenError([Diagnostic(name, "module-name", message)])
    for stem, times in Counter(stems.values()).items():
        if times > 1 or stem in PART_NAMES:
            why = "two of its specs have it" if times > 1 else "a library has a module of that name already"
            message = f"{stem} cannot be the name of a kernel in it: {why}; rename a spec"
            raise GemmgenError([Diagnostic(name, "module-name", message)])
    measured: dict[str, list[MeasuredRow]] = {stems[kernel]: [] for kernel in choice.kernels}
    for one in choice.measurements:
        times = (float(f"{seconds * 1e6:.5g}") for seconds in (one.seconds, one.baseline_seconds))
        measured[stems[one.kernel]].append((*one.shape, *times))  # pyright: ignore[reportArgumentType]
    table = tuple(
        TableRow(n, k, tuple(TableRange(r.least, r.most, stems[r.kernel]) for r in ranges))
        for (n, k), ranges in choice.table.items()
    )
    predictable(name, choice.kernels)
    return Library(
        name,
        sources.problem,
        sources.description,
        sources.gpu,
        sources.baseline,
        sources.files,
        members,
        table,
        {stem: tuple(rows) for stem, rows in measured.items() if rows},
    )


def _stems(name: str, sources: Sources, kernels: Sequence[Kernel]) -> dict[Kernel, str]:
    """Return the name of each kernel's module: its spec's, or what tells it from the library's others."""
    found: dict[Kernel, str] = {}
    taken: set[str] = set()
    for kernel in kernels:
        if kernel in sources.specs:
            found[kernel] = sources.specs[kernel].stem
        else:
            (predicted,) = predictable(name, [kernel])
            words = f"{name}_{words_of(predicted)}"
            found[kernel] = next(stem for stem in _to_try(words, kernel) if stem not in taken)
        taken.add(found[kernel])
    return found


def _to_try(words: str, kernel: Kernel) -> Iterator[str]:
    """Yield names: the words, with the order of tiles, and then with a number."""
    yield words
    yield f"{words}_{kernel.order}"
    yield from (f"{words}_{number}" for number in count(2))


def words_of(kernel: WgmmaKernel) -> str:
    """Return the decisions of a kernel as a part of a module's name: ``cooperative_128x256x64_cluster2x1``.

    Two consumers of cooperative kernels have no word, nor have the MMAs in flight that are usual.
    """
    kind = kind_of(kernel)
    words = [
        kind.replace("-", "_").replace(" ", "_"),
        f"{kernel.cta_tile_m}x{kernel.cta_tile_n}x{kernel.cta_tile_k}",
    ]
    if kernel.staggered:
        words.append("staggered")
    if kernel.cluster_size > 1:
        words.append(f"cluster{kernel.cluster_m}x{kernel.cluster_n}")
    if kind == "cooperative" and kernel.consumers != 2:
        words.append(f"{kernel.consumers}_consumer{'s' * (kernel.consumers > 1)}")
    if kernel.occupancy > 1:
        words.append(f"occupancy{kernel.occupancy}")
    if kernel.splits > 1:
        words.append(f"split{kernel.splits}")
    if kernel.reduces_apart:
        words.append("added_up_in_parallel")
    if kernel.divides_last_wave:
        words.append("stream_K")
    usual = 0 if kind == "cooperative" and kernel.consumers > 1 else 1
    if kernel.outstanding_mmas != usual:
        words.append(f"q{kernel.outstanding_mmas}")
    return "_".join(words)


def _members(
    sources: Sources, kernels: Sequence[Kernel], stems: Mapping[Kernel, str], *, dependent: bool
) -> Iterator[Member]:
    """Yield the kernels with specs that leave nothing open, and their modules."""
    with scratch() as directory:
        for kernel in kernels:
            stem, path = stems[kernel], Path(directory) / f"{stems[kernel]}.yaml"
            if kernel in sources.specs:
                text = Path(sources.specs[kernel].path).read_text(encoding="utf-8")
            else:
                title = f"{sources.description} matmul, {family_label(kernel)}"[:TITLE_LIMIT]
                launched = launched_early(kernel, sources.spec, title) if dependent else None
                text = launched or pinned_text(kernel, sources.spec, title)
            path.write_text(text, encoding="utf-8", newline="\n")
            yield Member(stem, text, make(path))


def launched_early(kernel: Kernel, spec: Spec, title: str) -> str | None:
    """Return the text of a spec of the kernel that waits itself for the one ahead; None if none can."""
    if not isinstance(kernel, WgmmaKernel):
        return None
    waiting = replace(kernel, early_operand="nothing", trigger="loads")
    try:
        return pinned_text(waiting, spec, title)
    except GemmgenError:
        return None


# --- what the templates see


@dataclass(frozen=True)
class LibraryView:
    """A library as its templates see it."""

    library: Library

    @property
    def plan(self) -> Kernel:
        """The plan of the first kernel, which computes what all do."""
        return self.library.members[0].product.plan

    @cached_property
    def wrapper(self) -> Wrapper:
        """The public function of its module."""
        return Wrapper(self.plan)

    @cached_property
    def unordered(self) -> tuple[str, ...]:
        """The names of the kernels that add up sums in any order."""
        return tuple(member.stem for member in self.library.members if not member.product.plan.deterministic)

    @property
    def define_unordered(self) -> str:
        """The constant that holds these names."""
        return fit("UNORDERED = {", [python_literal(stem) for stem in self.unordered], "}")

    @property
    def in_mode(self) -> str:
        """A further part of the key of a choice: torch's deterministic mode excludes unordered kernels."""
        return ", torch.are_deterministic_algorithms_enabled()" if self.unordered else ""

    @property
    def modes(self) -> str:
        """The same in a comment."""
        return ", the mode" if self.unordered else ""

    @property
    def and_allowed(self) -> str:
        """The further condition of a row of the table."""
        return " and _allowed(name)" if self.unordered else ""

    @property
    def candidates(self) -> str:
        """The expression of the kernels that the rule chooses from."""
        return "_candidates(forecast, shape)" if self.unordered else "forecast.candidates(shape)"

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return f"{self.library.description} matmuls of all shapes."

    @property
    def formula(self) -> str:
        """What is computed, from which types."""
        from gemmgen.render.overview import epilogue_sentence, formula

        problem = self.plan.problem
        product = formula(self.plan.request, "A[M, K]", "B[K, N]", "C[M, N]")
        text = f"D[M, N] = {product}: A {problem.a.dtype.name}, B {problem.b.dtype.name}, D {problem.d.name}."
        return textwrap.fill(text + epilogue_sentence(self.plan.request), width=LINE_LENGTH - 5)

    @property
    def what(self) -> str:
        """What it does, and what the choice rests on."""
        shapes = {row[:3] for rows in self.library.measured.values() for row in rows}
        kernels = (
            f"one of {len(self.library.members)} kernels" if len(self.library.members) > 1 else "its kernel"
        )
        text = f"`matmul` takes for each shape {kernels}, each a module that the spec of its name generates."
        if shapes:
            text += f" They were chosen by what was measured on {self.library.gpu} at {len(shapes)} shapes."
        else:
            text += " Nothing was measured: the planner's rule chooses."
        return textwrap.fill(text, width=LINE_LENGTH - 5)

    def _define(self, name: str, rest: list[str], returns: str = "Tensor") -> str:
        """Return the head of a function of A and B, what else it takes, and `out`."""
        arguments = ["a: Tensor", "b: Tensor", *rest, "out: Tensor | None = None"]
        return fit(f"def {name}(", arguments, f") -> {returns}:")

    @property
    def _extras(self) -> list[str]:
        return [f"{extra}: Tensor" for extra in self.wrapper.extras]

    @property
    def define(self) -> str:
        """The head of `matmul`."""
        return self._define("matmul", ["*", *self._extras])

    @property
    def define_run(self) -> str:
        """The head of what the operator does, with the arguments of what those of kernels do."""
        arguments = ["a: Tensor", "b: Tensor", *self._extras, "*"]
        arguments += ["out: Tensor | None = None"]
        return fit("def _run(", arguments, ") -> Tensor | None:")

    @property
    def define_shaped(self) -> str:
        """The head of what it does for tensors without memory."""
        return self._define("_shaped", ["*_: Tensor" if self._extras else "*"], "Tensor | None")

    @property
    def inputs(self) -> str:
        """All that it reads, in the order of the operator."""
        return ", ".join(("a", "b", *self.wrapper.extras))

    @property
    def operator_inputs(self) -> str:
        """The names of all that it reads, as a tuple."""
        return ", ".join(map(python_literal, ("a", "b", *self.wrapper.extras)))

    @property
    def summary(self) -> str:
        """What it returns."""
        return self.wrapper.summary

    @property
    def argument_docs(self) -> str:
        """What its arguments are: those of the kernels, less memory for the parts of a divided K."""
        return re.sub(r"(?m)^        workspace:.*\n(            .*\n)*", "", self.wrapper.argument_docs)

    @property
    def empty_inputs(self) -> Iterator[str]:
        """Yield expressions of the inputs for a shape, which lie in memory as the kernels read them."""
        problem = self.plan.problem
        a, b = (
            f"torch.empty({rows}, {columns}, dtype={operand.dtype.torch}, device=device){turn}"
            for operand, rows, columns, turn in (
                (problem.a, *(("m", "k", "") if problem.a.major == "k" else ("k", "m", ".T"))),
                (problem.b, *(("n", "k", ".T") if problem.b.major == "k" else ("k", "n", ""))),
            )
        )
        yield a
        yield b
        for name in self.wrapper.extras:
            extent = {"c": "m, n", "tensor_scale": "1"}.get(name) or OPERATIONS[name].along
            yield f"{name}=torch.empty({extent}, dtype={self.wrapper.dtype(name).torch}, device=device)"

    @property
    def a_torch(self) -> str:
        """The element type of A."""
        return self.plan.problem.a.dtype.torch

    @property
    def b_torch(self) -> str:
        """The element type of B."""
        return self.plan.problem.b.dtype.torch

    @property
    def d_torch(self) -> str:
        """The element type of D."""
        return self.plan.problem.d.torch

    @property
    def rows_of_units(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield whose rows must be whole units: operand, the extent along them, its variable, the unit."""
        problem = self.plan.problem
        if problem.copies_misaligned:
            return
        found: dict[tuple[str, int], list[str]] = {}
        for name, operand, other in (("a", problem.a, "m"), ("b", problem.b, "n")):
            extent = "k" if operand.major == "k" else other
            found.setdefault((extent, 16 * 8 // operand.dtype.bits), []).append(name)
        for (extent, unit), names in found.items():
            yield " and ".join(names), extent.upper(), extent, unit

    @property
    def table(self) -> str:
        """The dict of the ranges of M of each N and K."""
        entries: list[str] = []
        for row in self.library.table:
            ranges = [f"({found.least}, {found.most}, {python_literal(found.stem)})" for found in row.ranges]
            entries.append(_entry(f"({row.n}, {row.k})", ranges))
        return "\n".join(("{", *entries, "}")) if entries else "{}"

    # --- the rule

    @property
    def coefficients(self) -> Iterator[str]:
        """Yield each kernel with its row, as an item of a dict."""
        for member in self.library.members:
            (kernel,) = predictable(member.stem, [member.product.plan])
            yield f"{python_literal(member.stem)}: {_call(row_of(kernel))}"

    @property
    def fields(self) -> Iterator[str]:
        """Yield comments that name the numbers of a row."""
        for kind in (timing.Tiles, timing.Stream):
            text = f"{kind.__name__}({', '.join(kind._fields)})"
            yield textwrap.fill(text, LINE_LENGTH, initial_indent="# ", subsequent_indent="#   ")

    @property
    def card(self) -> Iterator[str]:
        """Yield what the GPU delivers that its kernels are planned for, as keywords."""
        return _keywords(card_of(self.plan.gpu))

    @property
    def products(self) -> Iterator[str]:
        """Yield the cards that its kernels run on, each by what it differs in from that of the plans."""
        own = card_of(self.plan.gpu)
        for product in HOPPER_PRODUCTS:
            theirs = card_of(product)._asdict()
            other = [f"{name}={value!r}" for name, value in theirs.items() if value != getattr(own, name)]
            card = f"CARD._replace({', '.join(other)})" if other else "CARD"
            yield f"Product({python_literal(product.device)}, {product.memory_gb}, {card})"

    @property
    def traffic(self) -> Iterator[str]:
        """Yield the bits of elements in DRAM, as keywords."""
        return _keywords(traffic_of(self.plan.problem))

    # --- what was measured

    @property
    def measured_on(self) -> str:
        """Where."""
        return f" on {self.library.gpu}" if self.library.gpu else ""

    @property
    def baseline(self) -> str:
        """What is beside it, in lines that fit."""
        return textwrap.fill(self.library.baseline, width=LINE_LENGTH - 5, initial_indent=" " * 16).lstrip()

    @property
    def measured(self) -> Iterator[str]:
        """Yield the rows of each kernel."""
        for stem, rows in self.library.measured.items():
            yield _entry(python_literal(stem), [f"({', '.join(map(_number, row))})" for row in rows])


def _entry(key: str, items: Sequence[str]) -> str:
    """Return a tuple in a dict of a module, as the formatter breaks it."""
    line = f"    {key}: ({items[0]},),"
    if len(items) == 1 and len(line) <= LINE_LENGTH:
        return line
    return f"    {key}: (\n" + "".join(f"        {item},\n" for item in items) + "    ),"


def _call(row: timing.Tiles | timing.Stream) -> str:
    """Return a row of a kernel as a call in a line: its numbers without loss, the last ones if they count."""
    values = list(zip(row, row._fields, strict=True))
    while values and row._field_defaults.get(values[-1][1]) == values[-1][0]:
        values.pop()
    return f"{type(row).__name__}({', '.join(python_literal(value) for value, _ in values)})"


def _keywords(row: timing.Card | timing.Traffic) -> Iterator[str]:
    return (f"{name}={value!r}" for name, value in row._asdict().items())


def _number(value: object) -> str:
    """Return a number as Python reads it, to nine digits."""
    if isinstance(value, tuple):
        items = [_number(item) for item in cast("tuple[object, ...]", value)]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    if isinstance(value, float):
        return f"{value:.9g}"
    return python_literal(value)


# --- files


def write(library: Library, directory: Path) -> Path:
    """Write a library's package below a directory, without what it had before; return the package.

    Only files that a library of this name can have are written or removed, all inside of the package.

    Raises GemmgenError: ``foreign-file`` for a directory of that name that is no library of gemmgen's, and
    for one that is a link.
    """
    package = directory / library.name
    before = _listed(package)
    if before is None:
        message = "exists and is no library that gemmgen has made: move it, or choose another --out"
        raise GemmgenError([Diagnostic(package.as_posix(), "foreign-file", message)])
    files = library.files()
    write_files({package / name: text.encode() for name, text in files.items()})
    for name in sorted(before - files.keys()):
        (package / name).unlink(missing_ok=True)
    for path in _bytecode(package, before | files.keys()):
        path.unlink(missing_ok=True)  # Python makes it anew
    return package


def _bytecode(package: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield what Python keeps of the modules of a package, and may run in place of their text."""
    folder, stems = package / "__pycache__", {Path(name).stem for name in names if name.endswith(".py")}
    if folder.is_dir() and not folder.is_symlink():
        yield from (path for path in sorted(folder.glob("*.pyc")) if path.name.partition(".")[0] in stems)


def _is_unchecked(path: Path) -> bool:
    """Whether Python runs a file of bytecode without a look at the text that it is of (PEP 552)."""
    with suppress(OSError):
        return int.from_bytes(read_bytes(path)[4:8], "little") == UNCHECKED
    return False


UNCHECKED: Final = 0b01
"""Flags of bytecode that is named by a hash which nobody checks; Python itself writes others."""


def parent_of(package: Path) -> Path:
    """Return the directory that a package lies in, also where its path ends in a dot."""
    return package.parent if package.name not in ("", "..") else package.resolve().parent


def _listed(package: Path) -> set[str] | None:
    """Return the files that a library has by its manifest; none of a new one, None of what is no library."""
    if not package.is_symlink() and (
        not package.exists() or (package.is_dir() and not any(package.iterdir()))
    ):
        return set()
    try:
        return {*read_manifest(package).sha256}
    except GemmgenError:
        return None


def read_library(package: Path) -> Library:
    """Return the library that the manifest, the specs and the measurements of a package say.

    Raises GemmgenError: ``no-library``, ``bad-library``, what is wrong with a spec, and all for which no
    library is made of such kernels.
    """
    manifest = read_manifest(package)
    members = tuple(_member(package, stem) for stem in manifest.kernels)
    refuse_library(package, manifest.problem, manifest.gpu, [member.product for member in members])
    table = tuple(
        TableRow(n, k, tuple(TableRange(*found) for found in ranges)) for n, k, ranges in manifest.table
    )
    return Library(
        manifest.name,
        manifest.problem,
        members[0].product.source.description,
        manifest.gpu,
        manifest.baseline,
        manifest.sources,
        members,
        table,
        _measured(package / "measured.py", manifest),
    )


def contestants(package: Path) -> tuple[list[Path], Callable[[Shape], str]]:
    """Return the specs of a library's kernels, and what says which of them it takes for a shape.

    That is the package itself, as its users import it, on the GPU that its table was made on. It is imported
    from files that are made anew, once it is known that those of the package are the same: so nothing that
    was edited is executed, nor anything else that lies in its folder.

    Raises GemmgenError: ``no-library``, ``bad-library``, and all findings of ``check``.
    """
    if findings := check(package):
        raise GemmgenError(finding.diagnostic for finding in findings)
    library = read_library(package)
    with scratch() as directory:
        module = _imported(write(library, Path(directory)))
    specs = [package / spec_file(member.stem) for member in library.members]
    return specs, lambda shape: module.choose(*shape).kernel


def _imported(package: Path) -> ModuleType:
    """Import a package that was just written, with its parts: its files may go afterwards.

    It is registered under a name of its own, so that no other module of its name is in the way, or goes.
    """
    name, place = f"{IMPORTED}{package.name}", package / "__init__.py"
    spec = spec_from_file_location(name, place, submodule_search_locations=[str(package)])
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    for part in ("", *(f".{part}" for part in PART_NAMES)):
        sys.modules.pop(f"{name}{part}", None)  # of a library of this name from before
    sys.modules[name] = module  # where its own imports look
    spec.loader.exec_module(module)
    for part in sorted(PART_NAMES - {"__init__"}):
        import_module(f"{name}.{part}")
    return module


IMPORTED: Final = "gemmgen_library_"
"""What the name of a package begins with that is imported to be timed."""


def _member(package: Path, stem: str) -> Member:
    path = package / spec_file(stem)
    return Member(stem, read_text(path), make(path))


def _measured(path: Path, manifest: Manifest) -> Mapping[str, tuple[MeasuredRow, ...]]:
    """Return the rows of each kernel in a package's measurements, which are read and not run."""
    try:
        found = decode(Measured, {"measured": _plain(_literal(path, "MEASURED"))}).measured
    except BadFieldError as error:
        raise bad_library(path, error.message, error.field) from error
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise bad_library(path, "is not what `gemmgen library` writes") from error
    if unknown := found.keys() - {*manifest.kernels}:
        raise bad_library(path, f"{min(unknown)} is none of the kernels", "measured")
    return found


@dataclass(frozen=True)
class Measured:
    """What is in the measurements of a package."""

    measured: Mapping[ModuleName, tuple[MeasuredRow, ...]]


def _plain(value: object) -> object:
    """Return a literal of Python as JSON would have it."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in cast("Sequence[object]", value)]
    if isinstance(value, dict):
        members = cast("dict[object, object]", value)
        if not all(isinstance(name, str) for name in members):
            raise ValueError("a name must be a text")
        return {name: _plain(each) for name, each in members.items()}
    return value if isinstance(value, str | int | float) else None


def _literal(path: Path, name: str) -> object:
    """Return the value of a constant in a module, which is not run."""
    for statement in ast.parse(read_text(path)).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return ast.literal_eval(statement.value)
    raise ValueError(name)


def check(package: Path) -> tuple[Finding, ...]:
    """Return what is missing, edited by hand, stale or orphaned in a library, byte for byte.

    A kernel is stale that its spec does not generate any more; the package around the kernels is made anew
    from the manifest. Nothing of the package is run.

    Raises GemmgenError: ``no-library``, ``bad-library``, and what is wrong with a spec.
    """
    manifest = read_manifest(package)
    found = tuple(_edits(package, manifest.sha256))
    if found:
        return found
    expected = read_library(package).files()
    stale = [
        name
        for name, text in expected.items()
        if name != MANIFEST and (name not in manifest.sha256 or read_bytes(package / name) != text.encode())
    ]
    remedy = f"`gemmgen library {package.as_posix()} --refresh` rewrites it"
    return tuple(
        Finding(Diagnostic((package / name).as_posix(), "stale", f"{_stale(name)}: {remedy}"))
        for name in stale
    )


def _stale(name: str) -> str:
    if name in PARTS:
        return "not what this gemmgen makes of the library"
    return "not what its spec and this gemmgen generate"


def _edits(package: Path, digests: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the files that are not as they were written."""
    remedy = "write the library again, from its sources"
    for name, digest in digests.items():
        path = package / name
        try:
            data = read_bytes(path)
        except OSError:
            yield Finding(Diagnostic(path.as_posix(), "missing", remedy))
            continue
        if hashlib.sha256(data).hexdigest() != digest:
            yield Finding(Diagnostic(path.as_posix(), "hand-edited", f"edited by hand: {remedy}"))
    known = {package / name for name in digests}
    for path in sorted([*package.iterdir(), *(package / SPECS).glob("*.yaml")]):
        if path not in known and (path.suffix == ".yaml" or _is_importable(path)):
            message = "the library does not name it: delete it"
            yield Finding(Diagnostic(path.as_posix(), "orphaned", message))
    for path in filter(_is_unchecked, _bytecode(package, digests)):
        message = "Python would run it without a look at the module: delete it"
        yield Finding(Diagnostic(path.as_posix(), "orphaned", message))


def _is_importable(path: Path) -> bool:
    """Whether Python would import what lies at a path of a package: a file, or a folder with a file."""
    if path.is_dir():
        return path.name not in (SPECS, "__pycache__")
    return path.name.endswith(tuple(all_suffixes()))


# --- for others: a repository of the Hugging Face hub, and tables of tiles

HUB_NAME: Final = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
BUILD_TOML: Final = """\
# Generated by gemmgen (library format {format}): a kernel without code to compile, for kernel-builder.
[general]
name = "{name}"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cuda"]

[torch-noarch]
pyext = ["json", "py", "yaml"]
"""


def write_hub(library: Library, directory: Path) -> Path:
    """Write the sources of a repository for the `kernels` hub, for kernel-builder; return the directory.

    Raises GemmgenError (``hub-name``) for a name that the hub does not take.
    """
    name = library.name.replace("_", "-")
    if not HUB_NAME.fullmatch(name):
        message = "the hub takes names of small letters, digits and dashes that begin with a letter"
        raise GemmgenError([Diagnostic(library.name, "hub-name", message)])
    files = {f"torch-ext/{library.name}/{file}": text for file, text in library.files().items()}
    files["build.toml"] = BUILD_TOML.format(format=LIBRARY_FORMAT, name=name)
    write_files({directory / file: text.encode() for file, text in files.items()})
    return directory


CONFIG_DTYPES: Final = {"e4m3": ",dtype=fp8_w8a8", "e5m2": ",dtype=fp8_w8a8", "int8": ",dtype=int8_w8a8"}
"""What the names of such tables say of the operands, where these are not of 16 bits or more."""


def configs_of(library: Library) -> tuple[dict[str, str], int, int]:
    """Return the tuned shapes as tables of tiles by the names of their files, as vLLM and others read them.

    Each is of one N and K, and has by M what a kernel of Triton takes as its tile, warps and stages. Behind
    them is how many shapes are in them, and how many are not: fewer than 16 rows, or columns that are no
    power of two, is what no such kernel can have.
    """
    plans = {member.stem: member.product.plan for member in library.members}
    tuned = {row[:3] for rows in library.measured.values() for row in rows}
    files: dict[str, str] = {}
    left_out = 0
    gpu = re.sub(
        r"[\s/]", "_", library.gpu or ""
    )  # a name of a GPU may have a slash, and is none of a folder
    for row in library.table:
        found: dict[str, dict[str, int]] = {}
        for each in row.ranges:
            rows = sorted(m for m, n, k in tuned if (n, k) == (row.n, row.k) and each.least <= m <= each.most)
            config = _config(plans[each.stem])
            found |= {str(m): config for m in rows if config}
            left_out += 0 if config else len(rows)
        if found:
            dtype = CONFIG_DTYPES.get(plans[row.ranges[0].stem].problem.a.dtype.name, "")
            name = f"N={row.n},K={row.k},device_name={gpu}{dtype}.json"
            files[name] = json.dumps(found, indent=4) + "\n"
    return files, sum(len(json.loads(text)) for text in files.values()), left_out


def _config(plan: Kernel) -> dict[str, int] | None:
    """Return a tile as Triton's kernels are told of it, None for one that they cannot have."""
    tile = plan.cta_tile_m, plan.cta_tile_n
    if not (
        isinstance(plan, WgmmaKernel) and all(is_power_of_two(extent) for extent in tile) and min(tile) >= 16
    ):
        return None
    return {
        "BLOCK_SIZE_M": plan.cta_tile_m,
        "BLOCK_SIZE_N": plan.cta_tile_n,
        "BLOCK_SIZE_K": plan.cta_tile_k,
        "GROUP_SIZE_M": plan.width if plan.minor == "m" else 1,
        "num_warps": plan.consumer_warps * plan.row_shares,
        "num_stages": plan.stages,
    }


def write_configs(library: Library, directory: Path) -> str:
    """Write these tables into a directory; return what was written, and what was not, in words.

    Raises GemmgenError (``no-kernels``) where no tuned shape has such a tile.
    """
    files, count, left_out = configs_of(library)
    if not files:
        message = "no tuned shape has a tile that a kernel of Triton can have"
        raise GemmgenError([Diagnostic(library.name, "no-kernels", message)])
    write_files({directory / name: text.encode() for name, text in files.items()})
    lacking = f"; {left_out} have tiles that no kernel of Triton can have" if left_out else ""
    return f"{len(files)} tables of {count} tuned shapes{lacking}"
