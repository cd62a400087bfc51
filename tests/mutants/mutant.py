"""Faults to plant in generated modules: what each changes, and what the simulator must say of it."""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kernels.launch import FIXED
from modules import ROOT, module_file, spec_file

from gemmgen.product import Product, make
from gemmgen.simulate import Kind, Severity
from gemmgen.verify.simulation import Launch, Problem, ring_launch, simulate_product

NOTHING = "pass  # removed"


@dataclass(frozen=True)
class Mutant:
    """One fault: what is replaced in which module, and what the simulator must say."""

    stem: str
    changes: tuple[tuple[str, str], ...]
    kind: str
    """Of the problem; a `Kind` but for wrong numbers."""
    name: str
    """Of the variable; each consumer may have one of its own, with its number. Several, apart by a bar, where
    one operation guards them all."""
    line: str
    """A snippet of the mutated module that is in the first line of the finding; empty where that has none.
    Several, apart by a bar, where each buffer has a line of its own."""
    severity: Severity = Severity.ERROR
    also: tuple[tuple[str, str, str], ...] = ()
    """Kind, name and line of what else the fault is by itself, and not by what follows from it."""

    @property
    def source(self) -> str:
        """The mutated module's text."""
        return changed(code_of(self.stem), self.changes, self.stem)

    def problems(self) -> tuple[Problem, ...]:
        """What the simulator finds in it."""
        product = replace(product_of(self.stem), module=self.source)
        return simulate_product(product, (launch_of(product),)).problems

    def is_named_by(self, problem: Problem) -> bool:
        """Whether a problem is this fault, in the line where it is."""
        return problem.severity == self.severity and self._is(problem, (self.kind, self.name, self.line))

    def is_caused_by(self, problem: Problem) -> bool:
        """Whether a problem, told first, tells the fault and not what follows from it.

        Its line is the one at fault; where the fault is that an operation is missing, comes too late or awaits
        the wrong thing, the line of what is done too early for it. Its name is that of the barrier or
        accumulator that the fault is in, or of a buffer that is guarded by it. Its kind is the mutant's, or
        that of the same fault in another lap of a ring: what is read too early was never written or is being
        written, and one who writes too early meets a reader or the write before.
        """
        wanted = ((self.kind, self.name, self.line), *self.also)
        return problem.severity == self.severity and any(
            self._is(problem, (kind, name, line))
            for first, name, line in wanted
            for kind in next((lap for lap in _LAPS if first in lap), (first,))
        )

    def _is(self, problem: Problem, wanted: tuple[str, str, str]) -> bool:
        kind, name, line = wanted
        names = [f"{part}{number}" for part in name.split("|") for number in ("", "_0", "_1")]
        if problem.kind != kind or problem.name not in names:
            return False
        if not line or not problem.lines:
            return not line and not problem.lines
        text = self.source.splitlines()[problem.lines[0] - 1]
        return any(part in text for part in line.split("|"))


_LAPS = (
    (Kind.UNINITIALISED_READ, Kind.READ_AFTER_WRITE),
    (Kind.WRITE_AFTER_READ, Kind.WRITE_AFTER_WRITE),
)
"""What one fault is in the first lap of a ring and in a later one."""


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
    text = product_of(stem).module if pinned(stem).exists() else generated(stem)
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


def launch_of(product: Product) -> Launch:
    """Return the launch that shows a mutant's fault: in it every ring comes round."""
    return ring_launch(product.plan, (*FIXED, "random"))
