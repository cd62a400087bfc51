"""JSON files as dataclasses: Pydantic reads them, and a fault is told at its place in the file.

Somebody else may have written a file, so a document has exactly the members of its dataclass, of exactly
their types, and of their kinds (``gemmgen/kinds.py``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.files import read_bytes
from gemmgen.kinds import shown

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")

STRICT: Final[ConfigDict] = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""How Pydantic reads a document. A dataclass inside another one inherits it."""


class BadFieldError(Exception):
    """A value that is not what its place in a document demands."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        """A dotted path, empty for the document as a whole."""
        self.message = message


def decode_json(kind: type[T], text: str | bytes) -> T:
    """Return a text of JSON as an instance of a dataclass or another type.

    Raises BadFieldError with the first member that is missing, unknown, of another type or not of its kind,
    or without a member if the text is not JSON.
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise _first(error.errors(include_url=False)[0]) from None


def decode(kind: type[T], value: object) -> T:
    """Return a value of JSON as an instance of a type; raises as ``decode_json``."""
    return decode_json(kind, json.dumps(value))  # in JSON a list stands for a tuple, in Python it does not


def read_json(kind: type[T], path: Path, code: str, check: Callable[[T], object] = lambda found: found) -> T:
    """Return the contents of a JSON file as an instance of a type, if ``check`` raises no BadFieldError.

    Raises GemmgenError with this code: the file cannot be read, or the first fault at its member.
    """
    try:
        found = decode_json(kind, read_bytes(path))
        check(found)
        return found
    except OSError as error:
        refused = Diagnostic(path.as_posix(), code, f"cannot be read: {error.strerror or error}")
    except BadFieldError as error:
        refused = refusal(error, path.as_posix(), code)
    raise GemmgenError([refused]) from None


def refusal(error: BadFieldError, path: str, code: str, line: int | None = None) -> Diagnostic:
    """Return the diagnostic for a value of a file."""
    return Diagnostic(path, code, error.message, field=error.field or None, line=line)


def encoded(value: object) -> object:
    """Return a dataclass as a dict of its members, and theirs likewise.

    A member that is None by default and None here is left out: older documents do not know it.
    """
    if isinstance(value, tuple):
        return tuple(map(encoded, cast("tuple[object, ...]", value)))
    if not dataclasses.is_dataclass(value):
        return value
    return {
        member.name: encoded(getattr(value, member.name))
        for member in dataclasses.fields(value)
        if member.default is not None or getattr(value, member.name) is not None
    }


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return Pydantic's reader of a type, which takes milliseconds to build."""
    from pydantic import TypeAdapter

    if not dataclasses.is_dataclass(kind):
        return TypeAdapter[Any](kind, config=STRICT)
    document = cast("Any", kind)
    document.__pydantic_config__ = STRICT  # where Pydantic looks for that of a dataclass
    return TypeAdapter[Any](document)


def _first(error: ErrorDetails) -> BadFieldError:
    """Return an error of Pydantic's as the path of a member and a message."""
    place = ".".join(_name(step) for step in error["loc"] if step != "[key]")
    match error["type"]:
        case "missing":
            message = "is missing"
        case "unexpected_keyword_argument":
            message = "is not known"
        case "value_error":  # of a kind, or of a dataclass
            message = str(error.get("ctx", {})["error"])
        case "json_invalid":
            message = f"not JSON: {error.get('ctx', {})['error']}"
        case _:
            message = f"{error['msg'][0].lower()}{error['msg'][1:]}, not {shown(error['input'])}"
    return BadFieldError(place, message)


def _name(step: str | int) -> str:
    """Return the name of a member that somebody else has chosen, as a part of a path."""
    return step if isinstance(step, str) and step.isidentifier() else shown(step)
