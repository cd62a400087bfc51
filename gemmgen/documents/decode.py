"""JSON to dataclasses and back: exactly the members, exactly the types, and only values of their kinds."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from gemmgen.documents.kinds import LINE, Kind

T = TypeVar("T")

MOST_MAGNITUDE = 2.0**100
"""The largest number of a kind without a limit of its own: products of a few such numbers are finite."""


class BadFieldError(Exception):
    """A value that is not what its place in a document demands."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        """A dotted path, empty for the document as a whole."""
        self.message = message


def parsed(text: str) -> object:
    """Return the value of a JSON document; ``decode`` rejects NaN and infinity at their places.

    Raises ValueError or RecursionError if the text is no JSON, or if an object has one name twice.
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(members: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(members)
    if len(found) < len(members):
        names = [name for name, _ in members]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return found


def decode(kind: type[T], value: object, field: str = "") -> T:
    """Return a value of JSON as an instance of a dataclass.

    Raises BadFieldError with the first member that is missing, unknown, of another type or not of its kind.
    """
    return cast("T", _decode(kind, value, field))


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


def shown(value: object) -> str:
    """Return a value as JSON in ASCII, its end left out if it is long."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def joined(field: str, name: str) -> str:
    """Return the path of a member."""
    return f"{field}.{name}" if field else name


def _decode(kind: Any, value: object, field: str) -> object:
    """Return ``value`` as an instance of the annotation ``kind``."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_members(kind, value, field)
    if origin is tuple:
        return _decode_elements(arguments, value, field)
    if origin is Mapping or kind is Mapping or origin is dict:
        return _decode_mapping(arguments, value, field)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(arguments, value, field)
    if origin is typing.Annotated and isinstance(rule := kind.__metadata__[0], Kind):
        return _held(rule, _typed(arguments[0], value, field), field)
    if origin in (typing.Literal, typing.Annotated):  # of the latter only the names of a table are left
        choices = arguments if origin is typing.Literal else tuple(kind.__metadata__[0])
        if isinstance(value, str) and value in choices:
            return value
        raise BadFieldError(field, f"must be one of {', '.join(choices)}, not {shown(value)}")
    found = _typed(kind, value, field)
    return _held(LINE, found, field) if isinstance(found, str) else found


def _decode_union(arguments: tuple[Any, ...], value: object, field: str) -> object:
    """Return a value of ``X | None``, or of one of several types that JSON tells apart."""
    if value is None and type(None) in arguments:
        return None
    others = [each for each in arguments if each is not type(None)]
    return _decode(next((each for each in others if each is type(value)), others[0]), value, field)


def _typed(kind: type, value: object, field: str) -> object:
    """Return a text or a number of exactly this type; a whole number may stand for one with a fraction."""
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise BadFieldError(field, f"must be {_NAMES[kind]}, not {shown(value)}")
    if isinstance(value, int | float) and abs(value) > MOST_MAGNITUDE:
        raise BadFieldError(field, f"must be {_NAMES[kind]} up to {MOST_MAGNITUDE:g}, not {shown(value)}")
    return value


def _held(kind: Kind, value: object, field: str) -> object:
    """Return a value of the right type if it is of its kind."""
    if not kind.accepts(value):
        raise BadFieldError(field, f"must be {kind.expected}, not {shown(value)}")
    return value


_NAMES: dict[type, str] = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _decode_members(kind: Any, value: object, field: str) -> object:
    if not isinstance(value, dict):
        raise BadFieldError(field, f"must be an object, not {shown(value)}")
    members = cast("dict[str, object]", value)
    hints, optional = _members_of(kind)
    for name in (*optional, *members):
        if name not in optional:
            raise BadFieldError(joined(field, _name(name)), "is not known")
        if name not in members and not optional[name]:
            raise BadFieldError(joined(field, name), "is missing")
    found = {
        name: _decode(hints[name], members[name], joined(field, name)) for name in optional if name in members
    }
    try:
        return kind(**found)
    except ValueError as error:
        raise BadFieldError(field, str(error)) from error


@cache
def _members_of(kind: Any) -> tuple[Mapping[str, Any], Mapping[str, bool]]:
    """Return the annotations of a dataclass's members, and whether each may be left out.

    Annotations are texts until then, and a record has thousands of objects of few kinds.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    return hints, {member.name: member.default is None for member in dataclasses.fields(kind)}


def _decode_elements(arguments: tuple[Any, ...], value: object, field: str) -> object:
    if not isinstance(value, list | tuple):
        raise BadFieldError(field, f"must be a list, not {shown(value)}")
    elements = cast("Sequence[object]", value)
    kinds: Sequence[Any] = [arguments[0]] * len(elements) if arguments[-1] is Ellipsis else arguments
    if len(kinds) != len(elements):
        raise BadFieldError(field, f"must have {len(kinds)} elements, not {len(elements)}")
    pairs = zip(kinds, elements, strict=True)
    return tuple(
        _decode(kind, element, joined(field, str(index))) for index, (kind, element) in enumerate(pairs)
    )


def _decode_mapping(arguments: tuple[Any, ...], value: object, field: str) -> object:
    """Return an object of JSON whose names are of one kind, and its values of another one."""
    if not isinstance(value, dict):
        raise BadFieldError(field, f"must be an object, not {shown(value)}")
    names, values = arguments
    return {
        _decode(names, name, joined(field, _name(name))): _decode(values, each, joined(field, _name(name)))
        for name, each in cast("dict[str, object]", value).items()
    }


def _name(name: str) -> str:
    """Return the name of a member that somebody else has chosen, as a part of a message."""
    return name if name.isidentifier() else shown(name)
