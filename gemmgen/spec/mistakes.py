"""Errors of Pydantic in YAML's words: the expectation, the finding, and a correction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gemmgen.hardware import SCALE_FORMATS
from gemmgen.problem.operations import OPERATIONS, Operation
from gemmgen.spec.diagnostics import (
    Code,
    Location,
    Node,
    Report,
    describe,
    dotted,
    listing,
    meant,
    quoted,
)
from gemmgen.spec.hints import choice_hint, groups_hint, key_hint, scale_hint
from gemmgen.spec.model import BlockScale, Groups, Spec
from gemmgen.spec.table_names import OneOf
from gemmgen.spec.values import SIZE_LIMIT


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

    The node is the value that is wrong, None if it was left out.
    """
    found = describe(node) if node else "nothing"
    limits = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "missing-field", f"expected {_expected(_declared(detail['loc']))}, found {found}"
        case "extra_forbidden":
            *section, key = detail["loc"]
            keys = _keys(_declared(tuple(section)))
            hint = key_hint(str(key), keys, node, tuple(section), fields_named(str(key)))
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


@cache
def fields_named(key: str) -> tuple[str, ...]:
    """Return the fields of a spec, dotted, whose last key is `key`."""
    return tuple(_fields_below(Spec, (), key))


def _fields_below(model: type[BaseModel], section: tuple[str, ...], key: str) -> Iterator[str]:
    """Yield the fields of a section, and of the sections in it, whose last key is `key`."""
    for name, field in model.model_fields.items():
        if name == key:
            yield ".".join((*section, name))
        declared = _bare(field.annotation, field.metadata)
        if isinstance(declared, type) and issubclass(declared, BaseModel):
            yield from _fields_below(declared, (*section, name), key)


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
"""Words that are booleans in YAML 1.1 and text in YAML 1.2."""


def _conversion(declared: Any, node: Node | None) -> str:
    """Return how to write a scalar so that it has the declared type, where that is plain."""
    match node and node.value:
        case bool() | int() | str() as found if declared is Groups:
            return groups_hint(found)
        case str() as word if declared is BlockScale and word not in SCALE_FORMATS:
            return scale_hint(word)
        case str() as word if declared is BlockScale:
            return f"; write {{format: {word}}}"
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
