"""From a YAML file to a validated spec that knows the line and column of each of its values.

Four steps: the file's name and bytes, its text, its YAML (``compose``), its fields (``explain`` where they
are wrong). A step that cannot go on stops the load; every other problem is
collected, so that one run shows them all. A diagnostic's `field` always exists in the model; whatever else a
user wrote is quoted in the message.
"""

from __future__ import annotations

import hashlib
import re
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TextIO, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import Matmul, Request
from gemmgen.problem.contest import Contest, description_of
from gemmgen.problem.operations import OPERATIONS, Operation
from gemmgen.spec.diagnostics import (
    Code,
    Location,
    Node,
    Place,
    Report,
    compose,
    describe,
    did_you_mean,
    dotted,
    fields,
    listing,
    meant,
    quoted,
)
from gemmgen.spec.hints import choice_hint, key_hint
from gemmgen.spec.model import SIZE_LIMIT, OneOf, Spec
from gemmgen.spec.names import stem_problem
from gemmgen.spec.request import request_of

SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 64 * 1024

# Outside the printable characters of YAML 1.2.2, section 5.1; or a second byte order mark; or U+0085, U+2028
# or U+2029, which some editors count as line breaks and YAML does not.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


STDIN = "<stdin>"
"""What diagnostics call the spec that ``-`` names."""
STDIN_STEM = "matmul"
"""Of the module of a spec that has no file, as of the one that ``gemmgen init`` writes."""


@lru_cache(maxsize=1)
def stdin_bytes(stream: TextIO | None) -> bytes:
    """Return what a stream holds up to the limit of a spec, and one byte more; it can be read only once."""
    return stream.buffer.read(MAX_BYTES + 1) if stream else b""


def read_bytes(path: Path, report: Report) -> bytes:
    """Return the bytes of the file; its kind and size are judged before it is opened. ``-`` is stdin."""
    try:
        if str(path) == "-":
            data = stdin_bytes(sys.stdin)
            if len(data) > MAX_BYTES:
                report.stop("file-size", f"more than {MAX_BYTES:,} bytes, the limit for a spec")
            return data
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            report.stop("file-type", "this is a directory, a spec is a file")
        if not stat.S_ISREG(status.st_mode):
            report.stop("file-type", "this is a pipe, a socket or a device, a spec is a regular file")
        if path.suffix not in SUFFIXES:
            report.stop("file-type", f"the name of a spec ends in {listing(SUFFIXES, 'or')}")
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


SIMILAR_STEMS = 0.85
"""How alike two names must be that one is offered for the other. The suffix does not count, which all share;
and specs that lie beside each other differ by a word, so a name that is only related is another spec's."""


def _similar_file(path: Path) -> str:
    try:
        names = {
            entry.stem: entry.name for entry in sorted(path.parent.iterdir()) if entry.suffix in SUFFIXES
        }
    except (OSError, ValueError):
        names = {}
    return did_you_mean(path.stem, names, SIMILAR_STEMS)


def decode(data: bytes, report: Report) -> str:
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


@dataclass(frozen=True)
class SpecFile:
    """A valid spec together with the file that it came from."""

    spec: Spec
    path: str
    """As the user gave it, with forward slashes; ``<stdin>`` for ``-``."""
    stem: str
    """The name of the module to generate."""
    sha256: str
    """Of the file's bytes, in hexadecimal."""
    positions: Mapping[str, Place]
    """Where each value starts; a list's items are fields too: ``check.shapes.0.2``."""
    key_positions: Mapping[str, Place]
    """Where each field starts: its key, or the value itself for a list's item."""

    @classmethod
    def of(cls, spec: Spec) -> SpecFile:
        """Return a spec that was made by a program: diagnostics call it by its title, at its first line."""
        return cls(spec, path=spec.title, stem="", sha256="", positions={}, key_positions={})

    @cached_property
    def request(self) -> Request:
        """What the spec asks for: what its kernel computes, for which sizes, and on which GPU."""
        return request_of(self.spec)

    @property
    def problem(self) -> Matmul:
        """What the spec says that its kernel computes."""
        return self.request.matmul

    @property
    def promote_k(self) -> int | None:
        """The K after which sums of 8-bit floats are promoted to fp32, None if the spec states none."""
        return self.spec.mma.promote_k

    @cached_property
    def contest(self) -> Contest:
        """Which kernels can be timed against its own: what it computes, and how sums must be rounded."""
        return Contest.of(self.problem, promoted=bool(self.promote_k))

    @property
    def description(self) -> str:
        """What it computes in the fewest words, for people."""
        return description_of(self.request, promoted=bool(self.promote_k))

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


class SpecError(GemmgenError):
    """Mistakes in a spec file that leave a spec which can be planned, so that its rules can be judged too."""

    def __init__(self, diagnostics: Iterable[Diagnostic], usable: SpecFile) -> None:
        super().__init__(diagnostics)
        self.usable = usable
        """The spec without its unknown keys, under the name that the file has."""

    def with_others(self, found: Iterable[Diagnostic]) -> GemmgenError:
        """Return these mistakes and others of the same file as one error, in the order of the file."""
        every = (*self.diagnostics, *found)
        return GemmgenError(sorted(every, key=lambda each: (each.line or 0, each.column or 0)))


def load_spec(path: Path) -> SpecFile:
    """Return the spec in a YAML file, or with ``-`` on stdin, with the place of each value.

    Raises GemmgenError with one diagnostic per bad field, in the order of the file; it is a SpecError
    if the file still has a spec that can be planned.
    """
    given = str(path) == "-"
    name, stem = (STDIN, STDIN_STEM) if given else (path.as_posix(), path.stem)
    report = Report(name)
    data = read_bytes(path, report)
    if not given and (problem := stem_problem(path)):
        report.add(*problem)
    return _accepted(_parse(data, name, stem, report), report)


def parse_spec(data: bytes, stem: str) -> SpecFile:
    """Return the spec in the bytes of a file of this stem, which need not be there.

    Raises GemmgenError as ``load_spec`` does.
    """
    name = f"{stem}.yaml"
    report = Report(name)
    return _accepted(_parse(data, name, stem, report), report)


def _parse(data: bytes, name: str, stem: str, report: Report) -> SpecFile:
    root = compose(decode(data, report), report)
    spec = _validate(root, report)
    places = dict(fields(root, ()))
    return SpecFile(
        spec=spec,
        path=name,
        stem=stem,
        sha256=hashlib.sha256(data).hexdigest(),
        positions={field: node.place for field, node in places.items()},
        key_positions={field: node.key_place for field, node in places.items()},
    )


def _accepted(source: SpecFile, report: Report) -> SpecFile:
    """Return a spec, or raise SpecError if a mistake was reported."""
    if report:
        raise SpecError(report.error().diagnostics, source)
    return source


PLANNABLE: tuple[Code, ...] = ("module-name", "unknown-key", "duplicate-key")
"""Codes of mistakes beside which the rest of a spec still means what its user wanted."""


def _validate(root: Node, report: Report) -> Spec:
    """Return the spec that a tree says, without its unknown keys.

    Raises GemmgenError with everything that was reported, unless each problem leaves a spec to plan.
    """
    data = root.plain()
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        explain(error, root, report)
        for detail in error.errors(include_url=False, include_input=False):
            if detail["type"] == "extra_forbidden":
                _remove(data, detail["loc"])
        try:
            spec = Spec.model_validate(data)
        except ValidationError:
            raise report.error() from None
    if not report.only(PLANNABLE):
        raise report.error()
    return spec


def _remove(data: Any, location: Location) -> None:
    """Remove a key from nested mappings and lists."""
    *section, key = location
    with suppress(LookupError, TypeError):  # a location can name a type that the value might have had
        for step in section:
            data = data[step]
        del data[key]


# --- what Pydantic finds wrong, in YAML's words


def explain(error: ValidationError, root: Node, report: Report) -> None:
    """Report each error of Pydantic's at its place in the file."""
    for detail in error.errors(include_url=False, include_input=False):
        _report_field(detail, root, report)


def _report_field(detail: ErrorDetails, root: Node, report: Report) -> None:
    """Report an error of Pydantic's at its place in the file, unless that place was already reported."""
    location = detail["loc"]
    path = root.descend(location)
    if any(node.refused for node in path) or detail["type"] == "string_unicode":
        return  # half of a character is told where YAML is read, also of a key, which no node of a path has
    present = len(path) == len(location) + 1
    if detail["type"] == "extra_forbidden":
        location = location[:-1]
        place = path[-1].key_place
    else:
        place = path[-1].place if present else path[-1].key_place
    if detail["type"] == "expression" and path[-1].letters:
        line, column = path[-1].letters
        place = line, column + detail.get("ctx", {})["offset"]
    code, message = _translate(detail, path[-1] if present else None)
    report.add(code, message, place, dotted(location) or None)


def _translate(detail: ErrorDetails, node: Node | None) -> tuple[Code, str]:
    """Return the code and the text for an error of Pydantic's; no other function knows its error types.

    The node is the value that is wrong, None where it was left out.
    """
    found = describe(node) if node else "nothing"
    limits = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "missing-field", f"expected {_expected(_declared(detail['loc']))}, found {found}"
        case "extra_forbidden":
            *section, key = detail["loc"]
            keys = _keys(_declared(tuple(section)))
            hint = key_hint(str(key), keys, node, top=not section)
            found = f"unknown key {quoted(str(key))}"
            return "unknown-key", f"{found}: {hint}" if hint else f"{found}; {_known_keys(keys)}"
        case "literal_error":
            declared = _declared(detail["loc"])
            word = node.text if node else ""
            if node and isinstance(node.value, dict) and len(node.value) == 1:  # an operation with parameters
                (word,) = node.value
                found = f"the key {quoted(word)}"
            hint = choice_hint(word, detail["loc"], _choices(declared)) or meant(word, _choices(declared))
            return "not-a-choice", f"expected {_expected(declared)}, found {found}{hint}"
        case (
            "bool_type"
            | "int_type"
            | "float_type"
            | "finite_number"
            | "string_type"
            | "model_type"
            | "tuple_type"
        ):
            declared = _declared(detail["loc"])
            return "wrong-type", f"expected {_expected(declared)}, found {found}{_conversion(declared, node)}"
        case "greater_than_equal":
            return "out-of-range", f"expected at least {limits['ge']:,}, found {found}"
        case "less_than_equal":
            return "out-of-range", f"expected at most {limits['le']:,}, found {found}"
        case (
            "title" | "expression" | "wrong-length" | "wrong-type" | "out-of-range" as code
        ):  # raised by the model, text and all
            return code, detail["msg"]
        case unknown:
            raise NotImplementedError(f"no text for Pydantic's {unknown!r}")


def _known_keys(keys: Sequence[str]) -> str:
    """Return the part of a message that lists the keys of a section."""
    return f"the keys here are {listing(keys, 'and')}" if len(keys) > 1 else f"the only key here is {keys[0]}"


def _declared(location: Location) -> Any:
    """Return the type that the model declares at a location, without its metadata and its None.

    A name of a table is declared by the ``OneOf`` that lists them, an operation with parameters by its row.
    """
    declared: Any = Spec
    for step in location:
        match declared, step:
            case OneOf(), str():
                declared = OPERATIONS[step]
            case Operation(), _:
                declared = float
            case _, int():
                declared = _bare(get_args(declared)[0])
            case _, str():
                field = declared.model_fields[step]
                declared = _bare(field.annotation, field.metadata)
    return declared


def _bare(declared: Any, metadata: Sequence[object] = ()) -> Any:
    """Return a type without its metadata and its None, which comes last; for a name of a table its OneOf."""
    names = [found for found in metadata if isinstance(found, OneOf)]
    if names:
        return names[0]
    if get_origin(declared) is Annotated:
        return _bare(get_args(declared)[0], declared.__metadata__)
    if get_origin(declared) in (Union, UnionType):
        return _bare(get_args(declared)[0])
    return declared


def _choices(declared: Any) -> list[str]:
    """Return the words that a type allows, none where it is not a choice of words."""
    if isinstance(declared, OneOf):
        return list(declared.names)
    return [str(choice) for choice in get_args(declared)] if get_origin(declared) is Literal else []


def _items(declared: Any) -> list[str]:
    """Return the words that the items of a list can be."""
    return _choices(_bare(get_args(declared)[0]))


def _keys(declared: Any) -> tuple[str, ...]:
    """Return the keys of a section, or of an operation with parameters."""
    if isinstance(declared, Operation):
        return tuple(parameter.name for parameter in declared.parameters)
    return tuple(declared.model_fields)


def _expected(declared: Any) -> str:
    """Return a declared type in YAML's words."""
    if choices := _choices(declared):
        return listing(choices, "or")
    if get_origin(declared) is tuple:  # the only lists are ranges, shapes, lists of them, and choices
        first, *others = map(_bare, get_args(declared))
        if others == [int]:
            return "a whole number or a range [least, most]"
        if _choices(first):
            return f"a list of {_expected(first)}"
        return "a list of shapes [M, N, K]" if Ellipsis in others else "a shape [M, N, K]"
    if isinstance(declared, Operation) or issubclass(declared, BaseModel):
        keys = _keys(declared)
        return f"a mapping with the {'keys' if len(keys) > 1 else 'key'} {listing(keys, 'and')}"
    return {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}[declared]


def _has_dtype(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, BaseModel) and "dtype" in declared.model_fields


def _dtype_in(text: str, declared: Any) -> str:
    """Return the element type that a word names where an operand's section belongs; nothing for another."""
    field = declared.model_fields["dtype"]
    choices = _choices(_bare(field.annotation, field.metadata))
    return text if text in choices else ""


_TRUTHS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""What YAML 1.1 takes for booleans, and YAML 1.2 for text."""


def _conversion(declared: Any, node: Node | None) -> str:
    """Return how to write a scalar so that it has the declared type, where that is plain."""
    match node and node.value:
        case str() as text if _has_dtype(declared) and (dtype := _dtype_in(text, declared)):
            return f"; write {{dtype: {dtype}}}"
        case bool() | int() | float() if declared is str:
            return "; put it in quotes"
        case str() as text if get_origin(declared) is tuple and text in _items(declared):
            return f"; write [{text}]"
        case str() as text if declared is bool and text.lower() in _TRUTHS:
            return f"; write {_TRUTHS[text.lower()]}"
        case float() as number if declared is int and number.is_integer() and 0 < number <= SIZE_LIMIT:
            return f"; write {number:.0f}"
        case str() as text if declared is float and re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", text):
            return f"; write {text}"
        case str() as text if declared is int:
            digits = re.sub("[ _,]", "", text.removesuffix("B"))  # a swizzle of 128 bytes is called 128B
            return f"; write {digits}" if re.fullmatch("[1-9][0-9]{0,8}", digits) else ""
        case _:
            return ""
