"""What the suites find of one fault, in a process of its own: the modules that it changes, and the evidence.

The author of a fault regenerates all text and all digests, so another text says nothing. What counts is what
tests and linters say of the changed modules: they are not planned or rendered, not imported, not what the
linter accepts, not compiled as planned, or the simulator has findings under the launches of the suites.
"""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import jinja2

from gemmgen.errors import GemmgenError
from gemmgen.features.rendering import render
from gemmgen.lower import lower
from gemmgen.product import Product, make
from gemmgen.verify.launches import Launch, all_launches, ring_launch
from gemmgen.verify.simulation import simulate_product
from tools.planted.faults import ROOT
from tools.planted.table import NOT_MADE

Tell = Callable[[Mapping[str, Any]], None]
SEEDS: Final = 2
"""Random schedules of each launch: the suites have at least as many."""
LONGEST: Final = 200
"""Characters of an evidence."""
FIRST: Final = 6
"""Modules of which one schedule is simulated before all schedules of the first one are."""


@dataclass(frozen=True)
class Base:
    """A module without a fault."""

    spec: Path
    code: str
    """Digest of its code, as `code_of` gives it, and of its plan's resources."""
    text: str
    products: int
    """Products of its launches: the cheapest module is judged first."""


@dataclass(frozen=True)
class Evidence:
    """What a suite says of a module that a fault changes."""

    module: str
    kind: str
    text: str


def base_of(spec: Path, product: Product) -> Base:
    """Return what a judge has to know of a module without a fault."""
    products = sum(math.prod(launch.shape) for launch in all_launches(product.plan, 1))
    return Base(spec, code_of(product), text_of(product), products)


def text_of(product: Product) -> str:
    """Return a module's text and the numbers of its plan's resources."""
    return product.module + json.dumps(_numbers(product.ledger.as_dict()))


def _numbers(value: Any) -> Any:
    """Return a value of JSON without its sentences: another wording is no other plan."""
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in cast("dict[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_numbers(each) for each in cast("Sequence[object]", value)]
    return None if isinstance(value, str) else value


def code_of(product: Product) -> str:
    """Return the digest of a module's code, without comments and docstrings, and of its plan's resources."""
    try:
        tree = ast.parse(product.module)
    except SyntaxError:
        return "no Python"
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            del node.body[0]
    return sha256(f"{ast.dump(tree)}{json.dumps(_numbers(product.ledger.as_dict()))}".encode()).hexdigest()


def with_template(faulty: str, text: str) -> None:
    """Let a template have another text from now on in this process."""
    get_template = jinja2.Environment.get_template
    planted: dict[jinja2.Environment, jinja2.Template] = {}

    def of_name(self: jinja2.Environment, name: Any, *others: Any, **named: Any) -> jinja2.Template:
        if name != faulty:
            return get_template(self, name, *others, **named)
        if self not in planted:
            planted[self] = self.from_string(text)
        return planted[self]

    jinja2.Environment.get_template = of_name


def rendered_anew(products: Mapping[str, Product]) -> Callable[[str], Product]:
    """Return what renders a planned module by its name."""

    def make_anew(stem: str) -> Product:
        source, plan = products[stem].source, products[stem].plan
        return Product(source, plan, render(plan, spec_name=source.name, spec_sha256=source.sha256))

    return make_anew


def planned_anew(bases: Mapping[str, Base]) -> Callable[[str], Product]:
    """Return what plans and renders a module by its name."""
    return lambda stem: make(bases[stem].spec)


class Judge:
    """The judgement of one fault, told step by step, so that what is known stays if the process dies."""

    def __init__(
        self, bases: Mapping[str, Base], make_anew: Callable[[str], Product], tell: Tell, seconds: float
    ) -> None:
        """`seconds` bounds the cover and the other modules, each; a module that was begun is judged."""
        self._bases = bases
        self._make_anew = make_anew
        self._tell = tell
        self._seconds = seconds
        self._products: dict[str, Product] = {}

    def judge(self, cover: Iterable[str], others: Iterable[str]) -> None:
        """Judge the modules of the cover that the fault can change; only if all are fine, the others.

        A module that is not made is evidence unless no module is made.
        """
        failures: list[tuple[str, Evidence]] = []
        for part, stems in (("cover", cover), ("others", others)):
            stems = sorted(stems, key=lambda stem: self._bases[stem].products)
            failed = self._made(part, stems)
            failures += [(part, each) for each in failed]
            if failures and len(failed) < len(stems):
                self._tell({"part": failures[0][0], "found": vars(failures[0][1])})
                return
            changed = [stem for stem in stems if self._is_changed(stem)] if not failures else []
            self._tell({"part": part, "of": len(stems), "changed": len(changed) + len(failed)})
            if self._found(part, changed):
                return
        if failures:
            self._tell({"everything": vars(failures[0][1])})

    def _made(self, part: str, stems: Iterable[str]) -> list[Evidence]:
        """Make modules, and return which are not made."""
        failed: list[Evidence] = []
        for stem in stems:
            self._tell({"part": part, "step": "make", "module": stem})
            try:
                self._products[stem] = self._make_anew(stem)
                text_of(self._products[stem])
            except Exception as error:  # whatever a fault makes of the planner and of templates
                failed.append(Evidence(stem, NOT_MADE, _said(error)))
        return failed

    def _is_changed(self, stem: str) -> bool:
        base, product = self._bases[stem], self._products[stem]
        return text_of(product) != base.text and code_of(product) != base.code

    def _found(self, part: str, changed: Sequence[str]) -> bool:
        """Return True if a module is not as tests require: first one schedule of some, then all of all."""
        end = time.monotonic() + self._seconds
        for stem in changed[:FIRST]:
            if self._told(part, "one schedule", stem, self._quickly(stem)):
                return True
        for stem in changed:
            if time.monotonic() > end:
                return False
            if self._told(part, "all schedules", stem, self._wholly(stem)):
                return True
            self._tell({"part": part, "judged": stem})
        return False

    def _told(self, part: str, step: str, stem: str, evidence: Iterator[Evidence]) -> bool:
        self._tell({"part": part, "step": step, "module": stem})
        first = next(evidence, None)
        if first:
            self._tell({"part": part, "found": vars(first)})
        return first is not None

    def _quickly(self, stem: str) -> Iterator[Evidence]:
        """Yield what one schedule of the launch that wraps all rings shows, or the linter."""
        product = self._products[stem]
        yield from _refusals(stem, lambda: self._simulated(stem, ring_launch(product.plan, ("lazy",))))
        lint = ["-m", "ruff", "check", "--quiet", "--stdin-filename", f"generated/{stem}.py", "-"]
        said = subprocess.run(
            [sys.executable, *lint],
            input=product.module,
            text=True,
            capture_output=True,
            cwd=ROOT,
            check=False,
        )
        if said.returncode:
            yield Evidence(stem, "linter", said.stdout.strip().partition("\n")[0][:LONGEST])

    def _wholly(self, stem: str) -> Iterator[Evidence]:
        """Yield what all launches show, and the compiler."""
        product = self._products[stem]
        launches: list[Launch] = []
        yield from _refusals(stem, lambda: launches.extend(all_launches(product.plan, SEEDS)))
        for launch in launches:
            yield from _refusals(stem, partial(self._simulated, stem, launch))
        yield from _refusals(stem, lambda: void(lower(product.module, product.plan, path=stem, stem=stem)))

    def _simulated(self, stem: str, launch: Launch) -> Iterable[Evidence]:
        for problem in simulate_product(self._products[stem], (launch,)).problems:
            yield Evidence(stem, f"simulator: {problem.kind}", problem.text[:LONGEST])


def _refusals(stem: str, judged: Callable[[], Iterable[Evidence] | None]) -> Iterator[Evidence]:
    """Yield the evidence that a function returns, or the error that it raises."""
    try:
        yield from judged() or ()
    except GemmgenError as error:
        yield Evidence(stem, error.diagnostics[0].code, error.diagnostics[0].message[:LONGEST])
    except Exception as error:  # whatever a fault makes of a plan, a module or a kernel
        yield Evidence(stem, "raised", _said(error))


def _said(error: Exception) -> str:
    first, *_ = str(error).strip().splitlines() or ("",)
    return f"{type(error).__name__}: {first}"[:LONGEST]


def void(_: object) -> None:
    """Return nothing, whatever is given."""
