"""Pairs of capabilities that no kernel has together: rows of a table, and the rules that read it.

Each row names two traits of a kernel that exclude each other, the reason, and how a spec does without one.
Most rows are combinations that nobody has written; some are combinations that the hardware rules out. If a
pair needs more words, or numbers, it is a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gemmgen.plan.fix import Fix, either
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Consulted, Finding, Rule

P = TypeVar("P", bound=Kernel)

CODE = "not-together"
"""The code of the diagnostics."""


@dataclass(frozen=True, eq=False)
class Trait(Generic[P]):
    """A capability that a spec states, as one side of a pair."""

    name: str
    """The capability in the field's terms, for readers of the table."""
    field: str
    """The field of a spec that states it."""
    has: Callable[[P], bool]
    """Returns True if a kernel has it."""
    words: str | Callable[[P], str]
    """The capability with its numbers as a message begins or ends, or what returns it for a kernel."""
    without: Fix | Callable[[P], Fix]
    """The fix of `field` that does without it, or a function that returns it for a kernel."""

    def words_of(self, plan: P) -> str:
        """Return the words for a kernel that has it."""
        return self.words if isinstance(self.words, str) else self.words(plan)

    def without_it(self, plan: P) -> Fix:
        """Return the fix for a kernel that has it."""
        return self.without if isinstance(self.without, Fix) else self.without(plan)


@dataclass(frozen=True)
class NotTogether(Generic[P]):
    """Two traits that no kernel has together."""

    one: Trait[P]
    """The trait at whose field the fault is reported."""
    other: Trait[P]
    limit: str
    """Why, as the end of a message: ``split-K needs one accumulator``."""
    fix: Fix | None = None
    """The fix of the first trait's field; None if it is to do without one of the two."""

    def findings(self, plan: P) -> Iterator[Finding]:
        """Yield the finding of a kernel that has both traits."""
        if self.one.has(plan) and self.other.has(plan):
            found = f"{self.one.words_of(plan)} with {self.other.words_of(plan)}"
            yield Finding(self.one.field, found, self.limit, self._fix(plan))

    def _fix(self, plan: P) -> Fix:
        other = self.other.without_it(plan).at(self.other.field)
        return self.fix or self.one.without_it(plan) | other


def rule_of(rows: Sequence[NotTogether[P]]) -> Rule[P]:
    """Return the rule of rows that have one trait as the other one; it looks at that trait first."""
    (other,) = {row.other for row in rows}
    names = [*dict.fromkeys(row.one.name for row in rows)]

    def findings(plan: P, _: Consulted) -> Iterator[Finding]:
        if other.has(plan):
            for row in rows:
                yield from row.findings(plan)

    return Rule(CODE, f"No kernel has {other.name} together with {either(names)}.", "plan", (), (), findings)


def rules_of(table: Sequence[NotTogether[P]]) -> tuple[Rule[P], ...]:
    """Return the rules of a table: one for all rows that have the same other trait."""
    rows: dict[Trait[P], list[NotTogether[P]]] = {}
    for row in table:
        rows.setdefault(row.other, []).append(row)
    return tuple(map(rule_of, rows.values()))
