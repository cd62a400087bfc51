"""Records as JSON and as files: written for people to read and diff, read back without trust."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, NoReturn, cast

from gemmgen.bench.record import SCHEMA, Record
from gemmgen.errors import Diagnostic, GemmgenError


def to_json(record: Record) -> str:
    """Return the record as a JSON document, the samples of a repetition on one line.

    A member that is None by default and None here is left out: older records do not know it.
    """
    return _layout(_encoded(record), "") + "\n"


def from_json(text: str, path: str) -> Record:
    """Return the record in a document that ``to_json`` wrote; ``path`` is for messages.

    Raises GemmgenError (``bad-record``) with the first field that is missing, unknown or of another kind.
    """
    try:
        document: object = json.loads(text, parse_constant=_refuse_constant)
        _check_schema(document)
        return cast("Record", _decode(Record, document, ""))
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}"
        found = Diagnostic(path, "bad-record", message, line=error.lineno, column=error.colno)
    except _BadFieldError as error:
        found = Diagnostic(path, "bad-record", error.message, field=error.field or None)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        found = Diagnostic(path, "bad-record", f"not a record: {error}")
    raise GemmgenError([found])


def read_record(path: Path) -> Record:
    """Return the record in a file.

    Raises:
        GemmgenError: The file cannot be read or holds no record.
    """
    try:
        return from_json(path.read_text(encoding="utf-8"), path.as_posix())
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the record: {error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "bad-record", message)]) from error


def write_record(record: Record, path: Path) -> None:
    """Write a record to a file.

    Raises:
        GemmgenError: The file cannot be written.
    """
    try:
        path.write_text(to_json(record), encoding="utf-8", newline="\n")
    except OSError as error:
        message = f"cannot write the record: {error.strerror or error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "cannot-write", message)]) from error


class _BadFieldError(Exception):
    """A value that is not what its place in the record demands."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field, self.message = field, message


def _check_schema(document: object) -> None:
    """Refuse another version before its other fields are called wrong."""
    if isinstance(document, dict):
        version = cast("dict[str, object]", document).get("schema", SCHEMA)
        if version != SCHEMA:
            raise _BadFieldError("schema", f"is {_shown(version)}; this gemmgen reads version {SCHEMA}")


def _encoded(value: object) -> object:
    """Return a dataclass as a dict of its members, and theirs likewise."""
    if isinstance(value, tuple):
        return tuple(map(_encoded, cast("tuple[object, ...]", value)))
    if not dataclasses.is_dataclass(value):
        return value
    return {
        member.name: _encoded(getattr(value, member.name))
        for member in dataclasses.fields(value)
        if member.default is not None or getattr(value, member.name) is not None
    }


def _refuse_constant(name: str) -> NoReturn:
    raise _BadFieldError("", f"{name} is not a JSON number")


def _layout(value: object, indent: str) -> str:
    """Return JSON with a line for each member and each element, but one line for a list of plain values."""
    deeper = indent + "  "
    if isinstance(value, dict):
        members = cast("dict[str, object]", value).items()
        lines = [f"{deeper}{json.dumps(name)}: {_layout(member, deeper)}" for name, member in members]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, tuple):
        elements = cast("tuple[object, ...]", value)
        if any(isinstance(element, dict | tuple) for element in elements):
            lines = [deeper + _layout(element, deeper) for element in elements]
            return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _decode(kind: Any, value: object, field: str) -> object:
    """Return ``value`` as an instance of the annotation ``kind``: exactly its members, exactly its types."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_members(kind, value, field)
    if origin is tuple:
        return _decode_elements(arguments, value, field)
    if origin in (types.UnionType, typing.Union):  # only ``X | None`` occurs
        return None if value is None else _decode(arguments[0], value, field)
    if origin in (typing.Literal, typing.Annotated):  # of the latter only the names of a table occur
        choices = arguments if origin is typing.Literal else tuple(kind.__metadata__[0])
        if value in choices and isinstance(value, str):
            return value
        raise _BadFieldError(field, f"must be one of {', '.join(choices)}, not {_shown(value)}")
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is kind and not (isinstance(value, float) and math.isinf(value)):
        return value
    raise _BadFieldError(field, f"must be {_NAMES[kind]}, not {_shown(value)}")


_NAMES: dict[type, str] = {int: "an integer", float: "a number", str: "a string"}


def _decode_members(kind: Any, value: object, field: str) -> object:
    if not isinstance(value, dict):
        raise _BadFieldError(field, f"must be an object, not {_shown(value)}")
    members = cast("dict[str, object]", value)
    hints = typing.get_type_hints(kind, include_extras=True)
    optional = {member.name: member.default is None for member in dataclasses.fields(kind)}
    for name in (*optional, *members):
        if name not in optional:
            raise _BadFieldError(_join(field, name), "is not known")
        if name not in members and not optional[name]:
            raise _BadFieldError(_join(field, name), "is missing")
    decoded = {
        name: _decode(hints[name], members[name], _join(field, name)) for name in optional if name in members
    }
    try:
        return kind(**decoded)
    except ValueError as error:
        raise _BadFieldError(field, str(error)) from error


def _decode_elements(arguments: tuple[Any, ...], value: object, field: str) -> object:
    if not isinstance(value, list):
        raise _BadFieldError(field, f"must be a list, not {_shown(value)}")
    elements = cast("list[object]", value)
    kinds = [arguments[0]] * len(elements) if arguments[-1] is Ellipsis else list(arguments)
    if len(kinds) != len(elements):
        raise _BadFieldError(field, f"must have {len(kinds)} elements, not {len(elements)}")
    pairs = zip(kinds, elements, strict=True)
    return tuple(
        _decode(kind, element, _join(field, str(index))) for index, (kind, element) in enumerate(pairs)
    )


def _join(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
