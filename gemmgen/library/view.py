"""The files of a library as texts: its modules, its specs and its manifest."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from gemmgen.files import read_text
from gemmgen.hardware.gpus import HOPPER_PRODUCTS
from gemmgen.launcher_file import launcher_texts
from gemmgen.library.assemble import Library
from gemmgen.library.call_view import CallView
from gemmgen.library.manifest import (
    LIBRARY_FORMAT,
    MANIFEST,
    module_file,
    spec_file,
)
from gemmgen.library.selection import predictable
from gemmgen.literals import python_literal
from gemmgen.plan import cards, forecast, group_forecast, timing
from gemmgen.plan.search import traffic_of
from gemmgen.plan.wgmma.cost import card_of, row_of
from gemmgen.problem import groups
from gemmgen.render import render_template
from gemmgen.render.spelling import LINE_LENGTH


def rendered(library: Library) -> dict[str, str]:
    """Return the package by the names of its files; the manifest, which has the hashes, comes last."""
    found = choosing(library)
    for member in library.members:
        found[module_file(member.stem)] = member.product.module
        found[spec_file(member.stem)] = member.spec
    return found | {MANIFEST: _manifest(library, found)}


def choosing(library: Library, pack: str = "") -> dict[str, str]:
    """Return the files that choose a kernel, and the launchers; of a pack, with its operators."""
    view = LibraryView(library, pack)
    values: dict[str, object] = {"library": library, "view": view, "library_format": LIBRARY_FORMAT}
    found = {
        "__init__.py": render_template("library/init.py.j2", **values),
        "forecast.py": _source(forecast),
        "timing.py": _source(timing),
        "cards.py": _source(cards),
        "coefficients.py": render_template("library/coefficients.py.j2", **values),
        "measured.py": render_template("library/measured.py.j2", **values),
        **launcher_texts(),
    }
    if view.groups:
        found |= {"group_forecast.py": _source(group_forecast), "groups.py": _source(groups)}
    return found


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
class LibraryView(CallView):
    """A library as its templates see it."""

    @property
    def rest_of_needs(self) -> str:
        """The end of the sentence about the packages that the library needs, after torch."""
        return "alone." if self.pack else f"and Triton {self.wrapper.triton}."

    @property
    def prepares(self) -> str:
        """The verb for the work of a kernel's first call."""
        return "loads" if self.pack else "compiles"

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
        if self.groups:
            return f"Matmuls of all shapes: {self.library.description}."
        return f"{self.library.description} matmuls of all shapes."

    @property
    def formula(self) -> str:
        """Formula of the result, with the types."""
        from gemmgen.render.overview import epilogue_sentence, formula, groups_sentence
        from gemmgen.render.wgmma.overview import words_of_scales

        problem = self.plan.problem
        a, b, d = (f"{name.upper()}[{', '.join(self._extents_of(name))}]" for name in "abd")
        a_type, b_type = problem.a.dtype.name, problem.b.dtype.name
        if problem.a.scale and problem.b.scale:
            a, b = f"({a} * a_scale)", f"({b} * b_scale)"
            a_type += words_of_scales(problem.a.scale)
            b_type += words_of_scales(problem.b.scale)
        product = formula(self.plan.request, a, b, "C[M, N]")
        text = f"{d} = {product}: A {a_type}, B {b_type}, D {problem.d.name}."
        text += groups_sentence(self.plan.request) + epilogue_sentence(self.plan.request)
        return textwrap.fill(text, width=LINE_LENGTH - 5)

    def _extents_of(self, name: str) -> Iterator[str]:
        """Return the extents of a matrix, as text."""
        axes = self.wrapper.axes_of(self.plan.argument(name))
        return (f"{self.blocks}N" if axis == "W" else axis for axis in axes)

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
    def measured(self) -> str:
        """The table of the rows of each kernel, with its comment."""
        entries = [
            _entry(python_literal(stem), [f"({', '.join(map(_number, row))})" for row in rows])
            for stem, rows in self.library.measured.items()
        ]
        if not entries:
            return "# No kernel was timed.\nMEASURED = {}"
        lines = ["# By kernel: M, N, K, its time, the baseline's.", "MEASURED = {", *entries, "}"]
        return "\n".join(lines)


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
