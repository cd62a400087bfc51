"""From a YAML file to a validated spec that knows the line and column of each of its values.

Four steps: the file's name and bytes, its text, its YAML, its fields. A step that cannot go on stops the
load; every other problem is collected, so that one run shows them all. A diagnostic's `field` always exists
in the model; whatever else a user wrote is quoted in the message.
"""

# ruamel.yaml hides `Any` from type checkers, so its attributes have no known type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import difflib
import hashlib
import json
import keyword
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
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

from gemmgen.errors import Diagnostic, GemmgenError, Violation
from gemmgen.spec.model import SIZE_LIMIT, Spec

SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
"""Levels of nesting, several times the model's; it bounds every recursion here."""

Place: TypeAlias = tuple[int, int]
"""Line and column, both 1-based."""
Location: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of the file to a value, as Pydantic spells them."""
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


@dataclass(frozen=True)
class SpecFile:
    """A valid spec together with the file that it came from."""

    spec: Spec
    path: str
    """As the user gave it, with forward slashes."""
    stem: str
    """The name of the module to generate."""
    sha256: str
    """Of the file's bytes, in hexadecimal."""
    positions: Mapping[str, Place]
    """Where each value starts; a list's items are fields too: ``check.shapes.0.2``."""
    key_positions: Mapping[str, Place]
    """Where each field starts: its key, or the value itself for a list's item."""

    def locate(self, field: str) -> Place | tuple[None, None]:
        """Return the place of a field's value.

        A field that the user left out is at the key of the nearest section that would hold it, or at the
        start of the file; only the empty field name, the file as a whole, has no place.
        """
        if not field:
            return None, None
        if field in self.positions:
            return self.positions[field]
        while field := field.rpartition(".")[0]:
            if field in self.key_positions:
                return self.key_positions[field]
        return 1, 1

    def diagnose(self, violation: Violation) -> Diagnostic:
        """Return the message for a violation of a rule, at the line that has to change."""
        line, column = self.locate(violation.field)
        return Diagnostic(
            path=self.path,
            code=violation.rule,
            message=str(violation),
            field=violation.field or None,
            line=line,
            column=column,
        )


def load_spec(path: Path) -> SpecFile:
    """Return the spec in a YAML file, with the place of each value.

    Raises GemmgenError with one diagnostic per bad field, in the order of the file.
    """
    report = _Report(path.as_posix())
    data = _read(path, report)
    _check_module_name(path, report)
    root = _compose(_decode(data, report), report)
    spec = _validate(root, report)
    places = dict(_fields(root, ()))
    return SpecFile(
        spec=spec,
        path=path.as_posix(),
        stem=path.stem,
        sha256=hashlib.sha256(data).hexdigest(),
        positions={field: node.place for field, node in places.items()},
        key_positions={field: node.key_place for field, node in places.items()},
    )


class _Report:
    """The diagnostics of one file, as they are found."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._diagnostics: list[Diagnostic] = []

    def add(self, code: Code, message: str, place: Place | None = None, field: str | None = None) -> None:
        line, column = place or (None, None)
        self._diagnostics.append(Diagnostic(self._path, code, message, field, line, column))

    def stop(self, code: Code, message: str, place: Place | None = None) -> NoReturn:
        """Raise everything found so far, this problem last: nothing behind it can be judged."""
        self.add(code, message, place)
        raise self.error() from None

    def error(self) -> GemmgenError:
        return GemmgenError(sorted(self._diagnostics, key=lambda found: (found.line or 0, found.column or 0)))

    def __bool__(self) -> bool:
        return bool(self._diagnostics)


# The file

# A generated module stands where other modules are imported from: it must not answer in the place of one that
# Python, pytest or the kernel itself imports.
_TAKEN_NAMES = sys.stdlib_module_names | {
    "conftest",
    "gemmgen",
    "numpy",
    "sitecustomize",
    "torch",
    "triton",
    "usercustomize",
}

# Outside the printable characters of YAML 1.2.2, section 5.1; or a second byte order mark; or U+0085, U+2028
# or U+2029, which some editors count as line breaks and YAML does not.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def _read(path: Path, report: _Report) -> bytes:
    """Return the bytes of the file; its kind and size are judged before it is opened."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            report.stop("file-type", "this is a directory, a spec is a file")
        if not stat.S_ISREG(status.st_mode):
            report.stop("file-type", "this is a pipe, a socket or a device, a spec is a regular file")
        if path.suffix not in SUFFIXES:
            report.stop("file-type", f"the name of a spec ends in {_listing(SUFFIXES, 'or')}")
        if status.st_size > MAX_BYTES:
            report.stop("file-size", f"{status.st_size:,} bytes, the limit for a spec is {MAX_BYTES:,}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a path with a NUL
        report.stop("file-missing", f"there is no such file{_similar_file(path)}")
    except OSError as error:
        # `str(error)` would show the path in Python's form.
        report.stop("file-unreadable", f"cannot be read: {error.strerror or type(error).__name__}")
    if len(data) > MAX_BYTES:  # it grew, or its size is not known until it is read
        report.stop("file-size", f"more than {MAX_BYTES:,} bytes, the limit for a spec")
    return data


def _similar_file(path: Path) -> str:
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix in SUFFIXES)
    except (OSError, ValueError):
        names = []
    return _did_you_mean(path.name, names)


def _check_module_name(path: Path, report: _Report) -> None:
    """Report a stem that Python could not import, or that would stand in another module's way."""
    problem = _module_name_problem(path.stem)
    if not problem:
        return
    fixed = re.sub("[^A-Za-z0-9]+", "_", path.stem).strip("_")
    if _module_name_problem(fixed):
        fixed = f"matmul_{fixed}".rstrip("_")
    report.add(
        "module-name",
        f"the file's name is the generated module's, and {_quoted(path.stem)} {problem};"
        f" rename it, e.g. to {fixed}{path.suffix}",
    )


def _module_name_problem(name: str) -> str | None:
    # `match` and other soft keywords can be imported; which words are soft depends on Python's version.
    if not (name.isascii() and name.isidentifier()):
        return "is not made of ASCII letters, digits and underscores with no digit first"
    if keyword.iskeyword(name):
        return "is a keyword of Python"
    if name in _TAKEN_NAMES or name.startswith("__"):
        return "would shadow a module that Python or the kernel imports"
    return None


def _decode(data: bytes, report: _Report) -> str:
    """Return the text of the file, without the byte order mark that some editors write."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # `error.start` counts from behind the byte order mark.
        before = data.removeprefix(b"\xef\xbb\xbf")[: error.start].decode()
        found = f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
        report.stop("file-encoding", f"{found}; save the file as UTF-8 text", _place_after(before))
    if unprintable := _UNPRINTABLE.search(text):
        found = f"the character U+{ord(unprintable[0]):04X} is not allowed in a spec"
        report.stop("file-encoding", f"{found}; remove it", _place_after(text[: unprintable.start()]))
    if not text.strip():
        report.stop("file-empty", "the file is empty; a spec starts with its title and target")
    return text


def _place_after(text: str) -> Place:
    lines = re.split("\r\n|\r|\n", text)
    return len(lines), len(lines[-1]) + 1


# The YAML


@dataclass(frozen=True)
class _Node:
    """One YAML value and its place."""

    place: Place
    key_place: Place
    """Where its field starts: at its key, or at the value itself for a list's item."""
    value: str | float | list[_Node] | dict[str, _Node] | None
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

    def descend(self, location: Location) -> list[_Node]:
        """Return the nodes from this one towards a location, as far as the file goes."""
        path: list[_Node] = [self]
        for step in location:
            match path[-1].value, step:
                case dict() as members, str() if step in members:
                    path.append(members[step])
                case list() as items, int() if step < len(items):
                    path.append(items[step])
                case _:
                    break
        return path


def _fields(node: _Node, location: Location) -> Iterator[tuple[str, _Node]]:
    """Yield every value below a node under the dotted name of its field."""
    children: Iterable[tuple[str | int, _Node]]
    match node.value:
        case dict() as members:
            children = members.items()
        case list() as items:
            children = enumerate(items)
        case _:
            return
    for step, child in children:
        here = (*location, step)
        yield _dotted(here), child
        yield from _fields(child, here)


def _compose(text: str, report: _Report) -> _Node:
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
        report.stop("file-empty", "the file holds only comments; a spec starts with its title and target")
    return root


class _Composer:
    """Builds a tree from the parser's events and refuses the YAML that a spec does not need.

    ruamel.yaml's own composer recurses as deep as the file says, resolves aliases, and types `010` or `1_000`
    in ways of its own; its parser keeps an explicit stack and leaves all of that to its caller.
    """

    def __init__(self, text: str, report: _Report) -> None:
        self._events: Iterator[Event] = YAML(typ="safe", pure=True).parse(text)
        self._report = report
        self.reached: Place = (1, 1)
        """Where the latest event started."""

    def document(self) -> _Node | None:
        """Return the root, or None when the file holds only comments."""
        root = None
        for event in self._events:
            if not isinstance(event, DocumentStartEvent):
                continue
            place = _place(event.start_mark)
            if root is not None:
                message = "a second document starts here; a spec is one document"
                self._report.add("yaml-feature", message, place)
                break
            if event.version or event.tags:
                message = "a %YAML or %TAG directive is not part of a spec; remove it"
                self._report.add("yaml-feature", message, place)
            root = self._node(self._next(), depth=0, key_place=(1, 1))
        return root

    def _next(self) -> Event:
        event = next(self._events)
        self.reached = _place(event.start_mark)
        return event

    def _node(self, event: Event, depth: int, key_place: Place | None = None) -> _Node:
        place = _place(event.start_mark)
        if depth > MAX_DEPTH:
            self._report.stop(
                "yaml-depth", f"nested more than {MAX_DEPTH} levels deep; no field of a spec is", place
            )
        refusal = _refusal(event)
        if refusal:
            self._report.add(*refusal, place)
        text = ""
        match event:
            case MappingStartEvent():
                value = self._mapping(depth + 1)
            case SequenceStartEvent():
                value = self._sequence(depth + 1)
            case ScalarEvent():
                text = str(event.value)
                value = _resolve(text) if event.implicit[0] else text
            case _:  # an alias
                value = None
        return _Node(place, key_place or place, value, text, refused=refusal is not None)

    def _sequence(self, depth: int) -> list[_Node]:
        items: list[_Node] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            items.append(self._node(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, _Node]:
        members: dict[str, _Node] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            key = self._node(event, depth)
            member = self._node(self._next(), depth, key.place)
            name = key.value
            if not isinstance(name, str):
                if not key.refused:
                    message = f"expected a key that is text, found {_found(key)}"
                    self._report.add("wrong-type", message, key.place)
            elif name == "<<":
                message = "a merge key is not part of a spec; write the keys themselves"
                self._report.add("yaml-feature", message, key.place)
            elif name in members:
                lines = f"line {members[name].key_place[0]} and again on line {key.place[0]}"
                self._report.add(
                    "duplicate-key", f"the key {_quoted(name)} is on {lines}; keep one", key.place
                )
            else:
                members[name] = replace(member, refused=True) if key.refused else member
        return members


def _refusal(event: Event) -> tuple[Code, str] | None:
    """Return what bars a node from a spec, whatever its field; the first reason will do."""
    match event:
        case AliasEvent():
            return "yaml-feature", "an alias is not part of a spec; write the value itself"
        case NodeEvent(anchor=str()):
            return "yaml-feature", "an anchor is not part of a spec; remove it"
        case ScalarEvent() | CollectionStartEvent() if event.tag is not None:
            return "yaml-feature", "a tag is not part of a spec; remove it"
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
"""What usually helps, by what ruamel.yaml's message contains."""


def _syntax_message(error: MarkedYAMLError) -> str:
    # Some of its messages show a token's name as a tuple of one.
    problem = _shortened(re.sub(r"\(('.*'),\)", r"\1", str(error.problem)), 120)
    if error.context and error.context_mark:
        problem = f"{error.context} from line {error.context_mark.line + 1}, {problem}"
    fix = next((fix for fragment, fix in _SYNTAX_FIXES.items() if fragment in problem), None)
    return f"{problem}; {fix}" if fix else problem


def _place(mark: StreamMark) -> Place:
    return mark.line + 1, mark.column + 1


# The fields


def _validate(root: _Node, report: _Report) -> Spec:
    """Return the spec that a tree says, unless anything was reported on the way."""
    try:
        spec = Spec.model_validate(root.plain())
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            _report_field(detail, root, report)
        raise report.error() from None
    if report:
        raise report.error()
    return spec


def _report_field(detail: ErrorDetails, root: _Node, report: _Report) -> None:
    """Report an error of Pydantic's at its place in the file, unless that place was already reported."""
    location = detail["loc"]
    path = root.descend(location)
    if any(node.refused for node in path):
        return
    present = len(path) == len(location) + 1
    if detail["type"] == "extra_forbidden":
        location = location[:-1]
        place = path[-1].key_place
    else:
        place = path[-1].place if present else path[-1].key_place
    code, message = _translate(detail, path[-1] if present else None)
    report.add(code, message, place, _dotted(location) or None)


def _translate(detail: ErrorDetails, node: _Node | None) -> tuple[Code, str]:
    """Return the code and the text for an error of Pydantic's; no other function knows its error types.

    The node is the value that is wrong, None where it was left out.
    """
    found = _found(node) if node else "nothing"
    limits = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "missing-field", f"expected {_expected(_declared(detail['loc']))}, found {found}"
        case "extra_forbidden":
            *section, key = detail["loc"]
            keys = tuple(_declared(tuple(section)).model_fields)
            return "unknown-key", (
                f"unknown key {_quoted(str(key))}, the keys here are {_listing(keys, 'and')}"
                f"{_did_you_mean(str(key), keys)}"
            )
        case "literal_error":
            declared = _declared(detail["loc"])
            closest = _did_you_mean(node.text if node else "", [str(choice) for choice in get_args(declared)])
            return "not-a-choice", f"expected {_expected(declared)}, found {found}{closest}"
        case "int_type" | "string_type" | "model_type" | "tuple_type":
            declared = _declared(detail["loc"])
            return "wrong-type", f"expected {_expected(declared)}, found {found}{_conversion(declared, node)}"
        case "greater_than_equal":
            return "out-of-range", f"expected at least {limits['ge']:,}, found {found}"
        case "less_than_equal":
            return "out-of-range", f"expected at most {limits['le']:,}, found {found}"
        case "title" | "wrong-length" | "wrong-type" as code:  # raised by the model, text and all
            return code, detail["msg"]
        case unknown:
            raise NotImplementedError(f"no text for Pydantic's {unknown!r}")


def _declared(location: Location) -> Any:
    """Return the type that the model declares at a location, without its metadata and its None."""
    declared: Any = Spec
    for step in location:
        match step:
            case int():
                declared = get_args(declared)[0]
            case str():
                declared = declared.model_fields[step].annotation
        while get_origin(declared) in (Annotated, Union, UnionType):
            declared = get_args(declared)[0]  # a None comes last
    return declared


def _expected(declared: Any) -> str:
    """Return a declared type in YAML's words."""
    if get_origin(declared) is Literal:
        return _listing([str(choice) for choice in get_args(declared)], "or")
    if get_origin(declared) is tuple:  # the only lists are shapes, and lists of them
        return "a list of shapes [M, N, K]" if Ellipsis in get_args(declared) else "a shape [M, N, K]"
    if issubclass(declared, BaseModel):
        keys = tuple(declared.model_fields)
        return f"a mapping with the {'keys' if len(keys) > 1 else 'key'} {_listing(keys, 'and')}"
    return {int: "a whole number", str: "text"}[declared]


def _found(node: _Node) -> str:
    """Return a value in YAML's words, shortened."""
    match node.value:
        case None:
            return "null"
        case bool():
            return f"the boolean {node.text}"
        case int():
            return f"the whole number {_shortened(node.text)}"
        case float():
            return f"the number {_shortened(node.text)}"
        case str():
            return f"the text {_quoted(node.text)}"
        case list() as items:
            return f"a list of {len(items)}" if items else "an empty list"
        case dict() as members:
            return f"a mapping of {len(members)}" if members else "an empty mapping"


def _conversion(declared: Any, node: _Node | None) -> str:
    """Return how to write a scalar so that it has the declared type, where that is plain."""
    match node and node.value:
        case bool() | int() | float() if declared is str:
            return "; put it in quotes"
        case float() as number if declared is int and number.is_integer() and 0 < number <= SIZE_LIMIT:
            return f"; write {number:.0f}"
        case str() as text if declared is int:
            digits = re.sub("[ _,]", "", text)
            return f"; write {digits}" if re.fullmatch("[1-9][0-9]{0,8}", digits) else ""
        case _:
            return ""


# The words


def _dotted(location: Location) -> str:
    return ".".join(map(str, location))


def _listing(words: Sequence[str], conjunction: str) -> str:
    *others, last = words
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    closest = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {closest[0]}?" if closest else ""


def _quoted(text: str) -> str:
    """Return text in double quotes, shortened, with everything that a terminal would not show escaped."""
    text = _shortened(text)
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _shortened(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
