"""Faults to plant in generated modules: what each changes, and what the simulator must say of it."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from modules import ROOT, module_file, spec_file

from gemmgen.product import Product, make
from gemmgen.verify.launches import Launch, hostile_launch, parts_launch, ring_launch, takes_parts
from gemmgen.verify.simulation import Problem, simulate_product
from gluonsim import Severity
from mutants.symptom import Symptom, Told

NOTHING = "pass  # removed"
SCHEDULES = ("lazy", "lifo", "random")
"""Enough to show every planted fault, and its cause before what follows from it."""


@dataclass(frozen=True)
class Mutant:
    """One fault: what is replaced in which module, and what the simulator must say."""

    stem: str
    changes: tuple[tuple[str, str], ...]
    kind: str
    name: str
    line: str
    severity: Severity = Severity.ERROR
    also: tuple[tuple[str, str, str], ...] = ()
    hostile: bool = False
    """True if only numbers of rows out of bounds show it."""

    @property
    def symptom(self) -> Symptom:
        """What the simulator must say; lines are those of the mutated module."""
        return Symptom(self.kind, self.name, self.line, self.severity, self.also)

    @property
    def source(self) -> str:
        """The mutated module's text."""
        return changed(_without_comments(simulated(self.stem).module), self.changes, self.stem)

    def problems(self, schedules: tuple[str, ...] = SCHEDULES) -> tuple[Problem, ...]:
        """What the simulator finds in it."""
        product = replace(simulated(self.stem), module=self.source)
        launch = hostile_launch(product.plan) if self.hostile else launch_of(product)
        return simulate_product(product, (replace(launch, schedules=schedules),)).problems

    def told(self) -> list[Told]:
        """What the simulator says of it, in its order: under one schedule, or under all if one shows less."""
        first = self._told(SCHEDULES[:1])
        enough = any(map(self.symptom.is_named, first)) and self.symptom.is_cause(first[0])
        return first if enough else self._told(SCHEDULES)

    def _told(self, schedules: tuple[str, ...]) -> list[Told]:
        lines = ["", *self.source.splitlines()]
        return [
            Told(problem.kind, problem.name, problem.severity, lines[next(iter(problem.lines), 0)])
            for problem in self.problems(schedules)
        ]


def of(stem: str) -> Callable[..., Mutant]:
    """Return what makes mutants of a module."""

    def mutant(
        kind: str,
        name: str,
        line: str,
        *changes: tuple[str, str],
        severity: Severity = Severity.ERROR,
        also: tuple[tuple[str, str, str], ...] = (),
        hostile: bool = False,
    ) -> Mutant:
        return Mutant(stem, changes, kind, name, line, severity, also, hostile)

    return mutant


def changed(text: str, changes: tuple[tuple[str, str], ...], what: str) -> str:
    """Return a text with each change made, of something that is there exactly once.

    Raises:
        ValueError: It is not there, or more than once.
    """
    for old, new in changes:
        if (count := text.count(old)) != 1:
            raise ValueError(f"{what} must have this once, and has it {count} times:\n{old}")
        text = text.replace(old, new)
    return text


@cache
def code_of(stem: str) -> str:
    """Return a module without its comments, which a fault has nothing to do with."""
    return _without_comments(product_of(stem).module if pinned(stem).exists() else generated(stem))


@cache
def _without_comments(text: str) -> str:
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            before = lines[row - 1][:column].rstrip()
            lines[row - 1] = f"{before}\n" if before else ""
    return "".join(lines)


def generated(stem: str) -> str:
    """Return the text of a committed module."""
    return module_file(stem).read_text(encoding="utf-8")


def pinned(stem: str) -> Path:
    """Return where a spec is that states what the planner would choose: its module changes with none."""
    return ROOT / "tests" / "kinds" / f"{stem}.yaml"


@cache
def product_of(stem: str) -> Product:
    """Return what follows from a module's spec."""
    path = pinned(stem)
    return make(path if path.exists() else spec_file(stem))


SMALL = {path.stem: path for path in sorted((ROOT / "tests" / "kinds" / "small").glob("*.yaml"))}
"""Specs of smaller tiles, by the modules for which they stand."""


@cache
def simulated(stem: str) -> Product:
    """Return the module in which faults are simulated: of a cluster, one with smaller tiles and fewer stages.

    Where there is a cluster the compiler compares every byte of shared memory of every CTA, which takes it
    seconds for each fault; the loops and barriers of a small tile are the same.
    """
    return make(SMALL[stem]) if stem in SMALL else product_of(stem)


def launch_of(product: Product) -> Launch:
    """Return the launch that shows a mutant's fault: in it every ring comes round."""
    plan = product.plan
    return parts_launch(plan, SCHEDULES) if takes_parts(plan) else ring_launch(plan, SCHEDULES)
