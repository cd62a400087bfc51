"""How a fault of a spec can be mended: as data, and as the sentence that is made of it.

A rule builds a fix from values and never writes the sentence. `str` of a fix is the one place that has its
words, and nothing reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gemmgen.errors import Advice, Assignment, Bound, Value

OWN = ""
"""In place of a path: the field that the fix is for. A rule names that field beside the fix, once."""


@dataclass(frozen=True)
class Hint:
    """An alternative in words, where no assignment expresses it."""

    text: str
    is_clause: bool = False
    """True if the text has a verb of its own; it is the object of *use* otherwise."""


Alternative = tuple[Assignment, ...] | Hint
"""Assignments that are made together, at least one, or words."""


@dataclass(frozen=True)
class Fix:
    """The ways to mend a fault of a field, the nearest one first.

    ``one | other`` has the alternatives of both; ``one & other`` makes each of `one` together with each of
    `other`; neither has hints.
    """

    alternatives: tuple[Alternative, ...]

    def __or__(self, other: Fix) -> Fix:
        return Fix(self.alternatives + other.alternatives)

    def __and__(self, other: Fix) -> Fix:
        assert len(self.assignments) == len(self.alternatives), "words are not made together with a value"
        assert len(other.assignments) == len(other.alternatives), "words are not made together with a value"
        return Fix(tuple(one + more for one in self.assignments for more in other.assignments))

    def __str__(self) -> str:
        """Return the fix as an instruction: ``use 64 or 128``, ``leave it out, or use 1 for cluster.m``."""
        sentence, last = "", None
        for group in _alike(self.alternatives):
            verb, words = _clause(group)
            sentence += ", or " if sentence else ""
            sentence += words if verb == last or not verb else f"{verb} {words}"
            last = verb or None
        return sentence

    @property
    def assignments(self) -> tuple[tuple[Assignment, ...], ...]:
        """The alternatives that a machine can apply."""
        return tuple(each for each in self.alternatives if not isinstance(each, Hint))

    def at(self, field: str) -> Fix:
        """Return the fix for a finding of another field: assignments to its own field name `field`."""
        return Fix(
            tuple(
                each if isinstance(each, Hint) else tuple(_of(step, field) for step in each)
                for each in self.alternatives
            )
        )

    def of(self, field: str) -> tuple[tuple[Assignment, ...], ...]:
        """Return the alternatives that a machine can apply, as assignments to a field and to others."""
        return tuple(tuple(_of(each, field) for each in together) for together in self.assignments)

    def changes(self, field: str) -> tuple[Advice, ...]:
        """Return the alternatives that a machine can apply, as fields and the values that they get."""
        return tuple(tuple((each.field, each.value) for each in together) for together in self.of(field))

    def limited_to(self, changes: Iterable[Advice], field: str) -> Fix:
        """Return the fix of a field with its hints, and the alternatives that make one of the changes."""
        kept = set(changes)
        return Fix(
            tuple(
                each for each in self.alternatives if isinstance(each, Hint) or _change(each, field) in kept
            )
        )

    def for_stated(self, is_stated: Callable[[str], bool]) -> Fix:
        """Return the fix without the other fields to leave out that a spec does not state.

        A rule names all fields that have to go together: ``no epilogue.d and no epilogue.columns``.
        """

        def changes_something(each: Assignment) -> bool:
            return each.value is not None or each.field == OWN or is_stated(each.field)

        return Fix(
            tuple(
                each if isinstance(each, Hint) else (tuple(filter(changes_something, each)) or each)
                for each in self.alternatives
            )
        )

    def noted(self, notes: Mapping[Advice, str], field: str) -> Fix:
        """Return the fix of a field with a note behind each alternative that makes one of the changes."""
        return Fix(
            tuple(
                each if isinstance(each, Hint) else _noted(each, notes.get(_change(each, field), ""))
                for each in self.alternatives
            )
        )


def _noted(together: tuple[Assignment, ...], note: str) -> tuple[Assignment, ...]:
    *others, last = together
    return (*others, replace(last, note=", ".join(filter(None, (last.note, note)))))


def _of(assignment: Assignment, field: str) -> Assignment:
    return assignment if assignment.field else replace(assignment, field=field)


def _change(together: tuple[Assignment, ...], field: str) -> Advice:
    return tuple((each.field or field, each.value) for each in together)


# --- what fixes are built of


def use(*values: Value, field: str = OWN, note: str = "") -> Fix:
    """Return the fix that gives a field one of some values; a note says what else that means."""
    return Fix(tuple((Assignment(field, value, note=note),) for value in values))


def at_most(value: int, field: str = OWN) -> Fix:
    """Return the fix that gives a field a value, or any lower one."""
    return _bounded(value, "at most", field)


def at_least(value: int | tuple[int, ...], field: str = OWN) -> Fix:
    """Return the fix that gives a field a value, or any higher one; of a list each item has this bound."""
    return _bounded(value, "at least", field)


def _bounded(value: Value, bound: Bound, field: str) -> Fix:
    return Fix(((Assignment(field, value, bound),),))


def leave_out(field: str = OWN) -> Fix:
    """Return the fix that leaves a field out of the spec."""
    return use(None, field=field)


def hint(text: str) -> Fix:
    """Return a fix in words, as the object of "use"."""
    return Fix((Hint(text),))


def clause(text: str) -> Fix:
    """Return a fix in words, with a verb of their own."""
    return Fix((Hint(text, is_clause=True),))


def nearest(below: int, above: int, *, low: int = 1, high: int | None = None) -> Fix:
    """Return the fix that uses the legal value below or above an illegal one, both moved into a range.

    Args:
        below: The nearest value below, which may lie outside of the range.
        above: The nearest value above, which may lie outside of the range.
        low: The lowest legal value.
        high: The highest legal value; None for no limit.
    """
    inside = (max(low, value if high is None else min(value, high)) for value in (below, above))
    return use(*dict.fromkeys(inside))


def of_change(change: Advice, field: str) -> Fix:
    """Return the fix of a field that makes one change; the field itself is named first."""
    pairs = sorted(change, key=lambda pair: pair[0] != field)
    return Fix((tuple(Assignment(OWN if path == field else path, value) for path, value in pairs),))


# --- words


def _alike(alternatives: Iterable[Alternative]) -> Iterator[Sequence[Alternative]]:
    """Yield runs of alternatives that are one list of values: they differ in the value of the last field."""

    def listed(alternative: Alternative) -> object:
        if isinstance(alternative, Hint) or not _is_plain(alternative[-1]):
            return object()
        return alternative[:-1], alternative[-1].field

    for _, group in groupby(alternatives, listed):
        yield tuple(group)


def _is_plain(assignment: Assignment) -> bool:
    return assignment.value is not None and assignment.bound == "exactly" and not assignment.note


def _clause(group: Sequence[Alternative]) -> tuple[str, str]:
    """Return the verb and the object of alternatives that are one list of values, or of one alternative."""
    first = group[0]
    if isinstance(first, Hint):
        return "" if first.is_clause else "use", first.text
    values = [_value(each[-1]) for each in group if not isinstance(each, Hint)]
    objects = [*map(_object, first[:-1]), _object(first[-1], either(values))]
    if first[0].field == OWN and first[0].value is None:
        alone = _with_note("it out", first[0])
        return "leave", f"it out and use {_joined(objects[1:])}" if objects[1:] else alone
    return "use", _joined(objects)


def _object(assignment: Assignment, values: str = "") -> str:
    """Return an assignment as the object of *use*: ``no mma.n``, ``at most 4``, ``1 or 2 for cluster.m``."""
    if assignment.value is None:
        return _with_note(f"no {assignment.field}", assignment)
    words = values or _value(assignment)
    if assignment.field:
        words += f" for {assignment.field}"
    return _with_note(words, assignment)


def _with_note(words: str, assignment: Assignment) -> str:
    return f"{words} ({assignment.note})" if assignment.note else words


def _value(assignment: Assignment) -> str:
    """Return the value of an assignment with its bound, which holds for each item of a list."""
    if assignment.bound == "exactly":
        return written(assignment.value)
    value = assignment.value
    items = value if isinstance(value, tuple) else (value,)
    return f"{assignment.bound} {either([written(item) for item in items])}"


def _joined(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def written(value: Value) -> str:
    """Return a value as YAML has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def either(values: Sequence[object]) -> str:
    """List alternatives as a sentence does: ``a``, ``a or b``, ``a, b or c``."""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last
