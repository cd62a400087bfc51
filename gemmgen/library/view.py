"""The files of a library as texts: its modules, its specs and its manifest."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import cast

from gemmgen.documents.files import read_text
from gemmgen.hardware.gpus import HOPPER_PRODUCTS
from gemmgen.launcher_file import LAUNCHER, launcher_text
from gemmgen.library.assemble import Library
from gemmgen.library.manifest import (
    LIBRARY_FORMAT,
    MANIFEST,
    module_file,
    spec_file,
)
from gemmgen.library.selection import predictable
from gemmgen.literals import python_literal
from gemmgen.plan import cards, forecast, timing
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.search import traffic_of
from gemmgen.plan.wgmma.cost import card_of, row_of
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render import render_template
from gemmgen.render.spelling import LINE_LENGTH, fit
from gemmgen.render.wrapper import Wrapper


def rendered(library: Library) -> dict[str, str]:
    """Return the package by the names of its files; the manifest, which has the hashes, comes last."""
    values: dict[str, object] = {
        "library": library,
        "view": LibraryView(library),
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
    for member in library.members:
        found[module_file(member.stem)] = member.product.module
        found[spec_file(member.stem)] = member.spec
    return found | {MANIFEST: _manifest(library, found)}


def _manifest(library: Library, files: Mapping[str, str]) -> str:
    """Return the text of the manifest, with a line for each row, so that differences are readable."""
    sections: dict[str, object] = {
        "gemmgen": {"library_format": LIBRARY_FORMAT},
        "name": library.name,
        "problem": asdict(library.problem),
        "description": library.description,
        "gpu": library.gpu,
        "baseline": library.baseline,
        "sources": [list(source) for source in library.sources],
        "kernels": [member.stem for member in library.members],
        "table": [[row.n, row.k, [list(astuple(found)) for found in row.ranges]] for row in library.table],
        "sha256": {name: _sha256(text) for name, text in files.items()},
    }
    lines = [f"  {json.dumps(name)}: {_rows(value)}" for name, value in sections.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _source(module: ModuleType) -> str:
    """Return the source of a module of gemmgen's that a library copies."""
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


# --- the view of the templates


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
        """Words about the mode for the comment at the key of a choice."""
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
        """Formula of the result, with the types."""
        from gemmgen.render.overview import epilogue_sentence, formula

        problem = self.plan.problem
        product = formula(self.plan.request, "A[M, K]", "B[K, N]", "C[M, N]")
        text = f"D[M, N] = {product}: A {problem.a.dtype.name}, B {problem.b.dtype.name}, D {problem.d.name}."
        return textwrap.fill(text + epilogue_sentence(self.plan.request), width=LINE_LENGTH - 5)

    @property
    def what(self) -> str:
        """Description of the package: the problem, and the basis of its choice."""
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
        """Head of the operator's function, with the arguments of the kernels' functions."""
        arguments = ["a: Tensor", "b: Tensor", *self._extras, "*"]
        arguments += ["out: Tensor | None = None"]
        return fit("def _run(", arguments, ") -> Tensor | None:")

    @property
    def define_shaped(self) -> str:
        """Head of the operator's function for tensors without memory."""
        return self._define("_shaped", ["*_: Tensor" if self._extras else "*"], "Tensor | None")

    @property
    def inputs(self) -> str:
        """Tensors that it reads, in the order of the operator."""
        return ", ".join(("a", "b", *self.wrapper.extras))

    @property
    def operator_inputs(self) -> str:
        """Names of the tensors that it reads, as a tuple."""
        return ", ".join(map(python_literal, ("a", "b", *self.wrapper.extras)))

    @property
    def summary(self) -> str:
        """Description of the result."""
        return self.wrapper.summary

    @property
    def argument_docs(self) -> str:
        """Documentation of the arguments: those of the kernels, without the memory for parts of K."""
        return self.wrapper.docs_of_arguments(workspace=False)

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
        """Yield the rates of the planned GPU, as keywords."""
        return _keywords(card_of(self.plan.gpu))

    @property
    def products(self) -> Iterator[str]:
        """Yield the cards that the kernels run on, each by its differences from the planned one."""
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

    # --- measurements

    @property
    def measured_on(self) -> str:
        """Name of the measured GPU, in the text of the measurements."""
        return f" on {self.library.gpu}" if self.library.gpu else ""

    @property
    def baseline(self) -> str:
        """Text of the baseline, in lines that fit."""
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
