"""From Pydantic's errors to diagnostics in YAML's words, each at its place in the file."""

from __future__ import annotations

import re
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gemmgen.spec.model import SIZE_LIMIT, Spec
from gemmgen.spec.report import Code, Report
from gemmgen.spec.synonyms import meant
from gemmgen.spec.tree import Location, Node, describe, dotted
from gemmgen.spec.words import did_you_mean, listing, quoted


def explain(error: ValidationError, root: Node, report: Report) -> None:
    """Report each error of Pydantic's at its place in the file."""
    for detail in error.errors(include_url=False, include_input=False):
        _report_field(detail, root, report)


def _report_field(detail: ErrorDetails, root: Node, report: Report) -> None:
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
            keys = tuple(_declared(tuple(section)).model_fields)
            return "unknown-key", (
                f"unknown key {quoted(str(key))}, the keys here are {listing(keys, 'and')}"
                f"{did_you_mean(str(key), keys)}"
            )
        case "literal_error":
            declared = _declared(detail["loc"])
            hint = meant(node.text if node else "", [str(choice) for choice in get_args(declared)])
            return "not-a-choice", f"expected {_expected(declared)}, found {found}{hint}"
        case "int_type" | "float_type" | "finite_number" | "string_type" | "model_type" | "tuple_type":
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
        return listing([str(choice) for choice in get_args(declared)], "or")
    if get_origin(declared) is tuple:  # the only lists are shapes, lists of them, and choices
        first, *others = get_args(declared)
        if get_origin(first) is Literal:
            return f"a list of {_expected(first)}"
        return "a list of shapes [M, N, K]" if Ellipsis in others else "a shape [M, N, K]"
    if issubclass(declared, BaseModel):
        keys = tuple(declared.model_fields)
        return f"a mapping with the {'keys' if len(keys) > 1 else 'key'} {listing(keys, 'and')}"
    return {int: "a whole number", float: "a finite number", str: "text"}[declared]


def _conversion(declared: Any, node: Node | None) -> str:
    """Return how to write a scalar so that it has the declared type, where that is plain."""
    match node and node.value:
        case bool() | int() | float() if declared is str:
            return "; put it in quotes"
        case str() as text if get_origin(declared) is tuple and text in get_args(get_args(declared)[0]):
            return f"; write [{text}]"
        case float() as number if declared is int and number.is_integer() and 0 < number <= SIZE_LIMIT:
            return f"; write {number:.0f}"
        case str() as text if declared is float and re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", text):
            return f"; write {text}"
        case str() as text if declared is int:
            digits = re.sub("[ _,]", "", text)
            return f"; write {digits}" if re.fullmatch("[1-9][0-9]{0,8}", digits) else ""
        case _:
            return ""
