"""The YAML of a spec, in the part of YAML 1.2.2 that it needs: a tree, and the problems reported in it."""

# ruamel.yaml hides `Any` from type checkers, so its attributes have no known type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StreamMark
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import DTYPES, SCALE_FORMATS, TRITON
from gemmgen.problem.operations import OPERATIONS

Place: TypeAlias = tuple[int, int]
"""Line and column, both 1-based."""
Code = Literal[
    "duplicate-key",
    "expression",
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

    def __init__(
        self, path: str, *, noun: str = "spec", begins: str = "starts with its title and target"
    ) -> None:
        self._path = path
        self.noun = noun
        """The noun for such a file."""
        self.begins = begins
        """The required contents, for the message about an empty file."""
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

    def only(self, codes: Sequence[Code]) -> bool:
        """Return whether each problem found so far has one of these codes."""
        return all(found.code in codes for found in self._diagnostics)

    def __bool__(self) -> bool:
        return bool(self._diagnostics)


# --- words


def listing(words: Sequence[str], conjunction: str) -> str:
    """Return words as a sentence lists them: ``a, b or c``."""
    *others, last = words
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def did_you_mean(word: str, known: Sequence[str] | Mapping[str, str], likeness: float = 0.6) -> str:
    """Return the end of a message that offers the closest known word; empty if none is close.

    A mapping gives the offer for each word. The likeness is difflib's, at most 1.
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
"""Names that other libraries have for choices of a spec; rows of tables have their own."""
UNSIGNED = ("uint8", "u8", "byte")
"""[gluon] Triton lowers these to the instruction of signed integers, without a word."""


def meant(word: str, choices: Sequence[str]) -> str:
    """Return the end of a message that offers the meaning of a word, or the closest choice."""
    name = word.lower().removeprefix("torch.").replace("-", "_").replace(" ", "_")
    if name in UNSIGNED and "int8" in choices:
        return f"; Triton {TRITON.name} multiplies unsigned integers as if they were signed, so use int8"
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
    letters: Place | None = None
    """Where the first character of a scalar is whose text is written as it is, in one line."""
    refused: bool = False
    """True if the value is already reported: the model's error would repeat it."""

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


# --- from the text to the tree

MAX_DEPTH = 16
"""Levels of nesting, several times the model's; it bounds every recursion over a tree."""


def _is_nothing(event: Event) -> bool:
    """Return True if an event is of no letter: what follows a key where there is no value."""
    return bool(event.start_mark.index == event.end_mark.index)


def compose(text: str, report: Report) -> Node:
    """Return the tree of the one document in the text."""
    composer = _Composer(text, report)
    try:
        root = composer.document()
    except MarkedYAMLError as error:
        report.stop("yaml-syntax", _syntax_message(error), _place(error.problem_mark))
    except (ValueError, OverflowError):
        # What ruamel.yaml lets through is `chr` of an escape beyond U+10FFFF; it has no mark of its own.
        report.stop("yaml-syntax", "an escape from here on is not a character of Unicode", composer.reached)
    if root is None:
        report.stop("file-empty", f"the file holds only comments; a {report.noun} {report.begins}")
    return root


class _Composer:
    """Builds a tree from the parser's events and refuses the YAML that a spec does not need.

    ruamel.yaml's own composer recurses as deep as the file says, resolves aliases, and types `010` or `1_000`
    in ways of its own; its parser keeps an explicit stack and leaves all of that to its caller.
    """

    def __init__(self, text: str, report: Report) -> None:
        self._events: Iterator[Event] = YAML(typ="safe", pure=True).parse(text)
        self._report = report
        self.reached: Place = (1, 1)
        """Where the latest event started."""

    def document(self) -> Node | None:
        """Return the root, or None when the file holds only comments."""
        root = None
        for event in self._events:
            if not isinstance(event, DocumentStartEvent):
                continue
            place = _place(event.start_mark)
            if root is not None:
                message = f"a second document starts here; a {self._report.noun} is one document"
                self._report.add("yaml-feature", message, place)
                break
            if event.version or event.tags:
                message = f"a %YAML or %TAG directive is not part of a {self._report.noun}; remove it"
                self._report.add("yaml-feature", message, place)
            root = self._node(self._next(), depth=0, key_place=(1, 1))
        return root

    def _next(self) -> Event:
        event = next(self._events)
        self.reached = _place(event.start_mark)
        return event

    def _node(self, event: Event, depth: int, key_place: Place | None = None) -> Node:
        place = _place(event.start_mark)
        if depth and key_place and isinstance(event, ScalarEvent) and _is_nothing(event):
            place = key_place  # the parser says that nothing is where the next thing begins
        if depth > MAX_DEPTH:
            self._report.stop(
                "yaml-depth",
                f"nested more than {MAX_DEPTH} levels deep; no field of a {self._report.noun} is",
                place,
            )
        refusal = _refusal(event, self._report.noun)
        if refusal:
            self._report.add(*refusal, place)
        text, letters = "", None
        match event:
            case MappingStartEvent():
                value = self._mapping(depth + 1)
            case SequenceStartEvent():
                value = self._sequence(depth + 1)
            case ScalarEvent():
                text = str(event.value)
                value = _resolve(text) if event.implicit[0] else text
                letters = _letters(event)
            case _:  # an alias
                value = None
        return Node(place, key_place or place, value, text, letters, refused=refusal is not None)

    def _sequence(self, depth: int) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            items.append(self._node(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            key = self._node(event, depth)
            member = self._node(self._next(), depth, key.place)
            name = key.value
            if not isinstance(name, str):
                if not key.refused:
                    message = f"expected a key that is text, found {describe(key)}"
                    self._report.add("wrong-type", message, key.place)
            elif name == "<<":
                message = f"a merge key is not part of a {self._report.noun}; write the keys themselves"
                self._report.add("yaml-feature", message, key.place)
            elif name in members:
                lines = f"line {members[name].key_place[0]} and again on line {key.place[0]}"
                self._report.add(
                    "duplicate-key", f"the key {quoted(name)} is on {lines}; keep one", key.place
                )
            else:
                members[name] = replace(member, refused=True) if key.refused else member
        return members


def _letters(event: ScalarEvent) -> Place | None:
    """Return where the text of a scalar begins behind its quote; None if it is written otherwise.

    Then it has as many characters as stand in the file: no escape, no doubled quote and no break of a line.
    """
    quote, block = int(event.style in ("'", '"')), event.style in ("|", ">")
    letters = int(event.end_mark.index) - int(event.start_mark.index) - 2 * quote
    line, column = _place(event.start_mark)
    return None if block or letters != len(str(event.value)) else (line, column + quote)


def _refusal(event: Event, noun: str) -> tuple[Code, str] | None:
    """Return what bars a node from a file of this noun, whatever its field; the first reason will do."""
    match event:
        case AliasEvent():
            return "yaml-feature", f"an alias is not part of a {noun}; write the value itself"
        case NodeEvent(anchor=str()):
            return "yaml-feature", f"an anchor is not part of a {noun}; remove it"
        case ScalarEvent() | CollectionStartEvent() if event.tag is not None:
            return "yaml-feature", f"a tag is not part of a {noun}; remove it"
        case ScalarEvent(value=str() as text) if re.search("[\ud800-\udfff]", text):
            return "yaml-syntax", "this text holds an escape that is half of a character; write the character"
        case _:
            return None


# The core schema of YAML 1.2.2, section 10.3.2.
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DECIMAL = re.compile("[-+]?[0-9]+")
_OCTAL_OR_HEXADECIMAL = re.compile("0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY_OR_NAN = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# `int` refuses numerals of more than 4,300 digits; with this many the value is out of every range anyway.
_DIGITS = 100


def _resolve(text: str) -> str | float | None:
    """Return the value of a scalar without quotes."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _DECIMAL.fullmatch(text):
        return int(text[:_DIGITS])
    if _OCTAL_OR_HEXADECIMAL.fullmatch(text):
        return int(text, base=0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITY_OR_NAN.fullmatch(text):
        return float(text.replace(".", ""))
    return text


_SYNTAX_FIXES = {
    "mapping values are not allowed": "check the indentation, and put text that contains a colon in quotes",
    "'\\t' that cannot start any token": "indent with spaces",
    "cannot start any token": "put text that starts with this character in quotes",
    "expected <block end>": "check the indentation of this line",
    "could not find expected ':'": "write a colon and a space between a key and its value",
    "unexpected end of stream": "close the quote",
    "expected ',' or": "add the comma, or close the bracket",
}
"""Usual remedies, by a part of ruamel.yaml's message."""


def _syntax_message(error: MarkedYAMLError) -> str:
    # Some of its messages show a token's name as a tuple of one.
    problem = shortened(re.sub(r"\(('.*'),\)", r"\1", str(error.problem)), 120)
    if error.context and error.context_mark:
        problem = f"{error.context} from line {error.context_mark.line + 1}, {problem}"
    fix = next((fix for fragment, fix in _SYNTAX_FIXES.items() if fragment in problem), None)
    return f"{problem}; {fix}" if fix else problem


def _place(mark: StreamMark) -> Place:
    return mark.line + 1, mark.column + 1
