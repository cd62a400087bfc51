"""The YAML of a spec as a tree of places, and what is reported at each of them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import DTYPES, SCALE_FORMATS
from gemmgen.problem.operations import OPERATIONS

Place: TypeAlias = tuple[int, int]
"""Line and column, both 1-based."""
Code = Literal[
    "duplicate-key",
    "file-empty",
    "file-encoding",
    "file-missing",
    "file-size",
    "file-type",
    "file-unreadable",
    "missing-field",
    "module-name",
    "not-a-choice",
    "out-of-range",
    "title",
    "unknown-key",
    "wrong-length",
    "wrong-type",
    "yaml-depth",
    "yaml-feature",
    "yaml-syntax",
]
"""Every diagnostic that a spec file can get before the planner sees it."""


class Report:
    """The diagnostics of one file, as they are found."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._diagnostics: list[Diagnostic] = []

    def add(self, code: Code, message: str, place: Place | None = None, field: str | None = None) -> None:
        """Note a problem, and go on."""
        line, column = place or (None, None)
        self._diagnostics.append(Diagnostic(self._path, code, message, field, line, column))

    def stop(self, code: Code, message: str, place: Place | None = None) -> NoReturn:
        """Raise everything found so far, this problem last: nothing behind it can be judged."""
        self.add(code, message, place)
        raise self.error() from None

    def error(self) -> GemmgenError:
        """Return everything found so far, in the order of the file."""
        return GemmgenError(sorted(self._diagnostics, key=lambda found: (found.line or 0, found.column or 0)))

    def __bool__(self) -> bool:
        return bool(self._diagnostics)


# --- words


def listing(words: Sequence[str], conjunction: str) -> str:
    """Return words as a sentence lists them: ``a, b or c``."""
    *others, last = words
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def did_you_mean(word: str, known: Sequence[str] | Mapping[str, str], likeness: float = 0.6) -> str:
    """Return the end of a message that offers the closest known word, or nothing where none is close.

    A mapping has what is offered in place of each word. The likeness is difflib's, at most 1.
    """
    closest = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=likeness)
    if not closest:
        return ""
    offered = known[closest[0]] if isinstance(known, Mapping) else closest[0]
    return f"; did you mean {offered}?"


def quoted(text: str) -> str:
    """Return text in double quotes, shortened, with everything that a terminal would not show escaped."""
    text = shortened(text)
    return json.dumps(text, ensure_ascii=not text.isprintable())


def shortened(text: str, limit: int = 40) -> str:
    """Return text cut to a number of characters, the last of them an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


SYNONYMS: dict[str, tuple[str, ...]] = {
    "packed": ("unpadded",),
    "launch_control": ("clc", "cluster_launch_control"),
    "persistent": ("static", "static_persistent"),
    "mn": ("m", "n", "m_major", "n_major"),
    "k": ("k_major",),
    "ping_pong": ("pingpong",),
    "snake": ("planar", "planar_snake"),
}
"""What other libraries call the choices of a spec that are no rows of a table, which has its own."""
UNSIGNED = ("uint8", "u8", "byte")
"""[gluon] Triton 3.9 lowers these to the instruction of signed integers, without a word."""


def meant(word: str, choices: Sequence[str]) -> str:
    """Return the end of a message that offers what a word stands for, or the choice closest to it."""
    name = word.lower().removeprefix("torch.").replace("-", "_").replace(" ", "_")
    if name in UNSIGNED and "int8" in choices:
        return "; Triton 3.9 multiplies unsigned integers as if they were signed, so use int8"
    known = [choice for choice in choices if name in _also(choice)]
    if known:
        return f"; did you mean {listing(known, 'or')}?"
    return did_you_mean(name, choices)


def _also(choice: str) -> tuple[str, ...]:
    """Return what else a choice is called."""
    rows = (DTYPES.get(choice), SCALE_FORMATS.get(choice), OPERATIONS.get(choice))
    return sum((row.also for row in rows if row), SYNONYMS.get(choice, ()))


Location: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of the file to a value, as Pydantic spells them."""


@dataclass(frozen=True)
class Node:
    """One YAML value and its place."""

    place: Place
    key_place: Place
    """Where its field starts: at its key, or at the value itself for a list's item."""
    value: str | float | list[Node] | dict[str, Node] | None
    text: str = ""
    """A scalar as it is written, without its quotes."""
    refused: bool = False
    """Already reported: what the model says about this value would be an echo."""

    def plain(self) -> Any:
        """Return the value as the lists, dicts and scalars that Pydantic validates."""
        match self.value:
            case dict() as members:
                return {key: member.plain() for key, member in members.items()}
            case list() as items:
                return [item.plain() for item in items]
            case scalar:
                return scalar

    def descend(self, location: Location) -> list[Node]:
        """Return the nodes from this one towards a location, as far as the file goes."""
        path: list[Node] = [self]
        for step in location:
            match path[-1].value, step:
                case dict() as members, str() if step in members:
                    path.append(members[step])
                case list() as items, int() if step < len(items):
                    path.append(items[step])
                case _:
                    break
        return path


def fields(node: Node, location: Location) -> Iterator[tuple[str, Node]]:
    """Yield every value below a node under the dotted name of its field."""
    children: Iterable[tuple[str | int, Node]]
    match node.value:
        case dict() as members:
            children = members.items()
        case list() as items:
            children = enumerate(items)
        case _:
            return
    for step, child in children:
        here = (*location, step)
        yield dotted(here), child
        yield from fields(child, here)


def dotted(location: Location) -> str:
    """Return the name of the field at a location: ``check.shapes.0.2``."""
    return ".".join(map(str, location))


def describe(node: Node) -> str:
    """Return a value in YAML's words, shortened."""
    match node.value:
        case None:
            return "null"
        case bool():
            return f"the boolean {node.text}"
        case int():
            return f"the whole number {shortened(node.text)}"
        case float():
            return f"the number {shortened(node.text)}"
        case str():
            return f"the text {quoted(node.text)}"
        case list() as items:
            return f"a list of {len(items)}" if items else "an empty list"
        case dict() as members:
            return f"a mapping of {len(members)}" if members else "an empty mapping"
