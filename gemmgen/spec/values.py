"""Types of values of a spec, and the checks that hold for every matmul: titles, sizes, shapes, searches."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeGuard, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError

from gemmgen.problem.epilogue import ACCUMULATOR, MATRIX
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec.diagnostics import quoted, shortened
from gemmgen.spec.expression import ExpressionError, parsed
from gemmgen.spec.spelling import RENAMED
from gemmgen.spec.words import Searched

SIZE_LIMIT = 2**31 - 1
"""Kernels count in 32-bit integers."""
MOST_PLANNED_GROUPS = 2**16
"""Greatest number of groups of the problems that a kernel is planned, checked and timed for.

Models have up to 512 experts; the batches of an attention are its sequences times its heads. Each group has a
matrix of its own in the inputs of a check.
"""
TITLE_LIMIT = 100
"""Characters."""


_NOT_IN_TITLES = r"""\x00-\x1f\x7f-\x9f"`\\{}"""
TITLE_PATTERN = rf"^[^\s{_NOT_IN_TITLES}]([^{_NOT_IN_TITLES}]*[^\s{_NOT_IN_TITLES}])?$"
"""The form of a title, as far as a regular expression of JSON Schema can state it."""


def _check_title(title: str) -> str:
    """Refuse what could end the docstring that holds the title, or mean something to a template."""
    for index, character in enumerate(title, start=1):
        if character in '"`\\{}' or not character.isprintable():
            code_point = f"U+{ord(character):04X}"
            raise PydanticCustomError(
                "title",
                "found {character} as character {index},"
                " expected one printable line without double quotes, backticks, backslashes or braces",
                {
                    "character": f"{character} ({code_point})" if character.isprintable() else code_point,
                    "index": index,
                },
            )
    if not title.strip():
        raise PydanticCustomError("title", "expected one line of text, found a blank")
    if title != title.strip():
        raise PydanticCustomError("title", "found a space at the start or the end; remove it")
    if len(title) > TITLE_LIMIT:
        raise PydanticCustomError(
            "title",
            "expected at most {limit} characters, found {length}",
            {"limit": TITLE_LIMIT, "length": len(title)},
        )
    return title


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _check_shape(shape: object) -> object:
    """Refuse a shape of another length; Pydantic would report each absent size on its own."""
    if _is_list(shape) and len(shape) != 3:
        raise PydanticCustomError(
            "wrong-length", "expected the three sizes [M, N, K], found {count}", {"count": len(shape)}
        )
    return shape


def _check_shapes(shapes: object) -> object:
    """Refuse an empty list, and the sizes of a single shape where a list of shapes belongs."""
    if not _is_list(shapes):
        return shapes
    if not shapes:
        raise PydanticCustomError(
            "wrong-length", "expected at least one shape [M, N, K], found an empty list"
        )
    if all(type(size) is int for size in shapes):
        raise PydanticCustomError(
            "wrong-type", "expected a list of shapes [M, N, K], found whole numbers; write [[M, N, K]]"
        )
    return shapes


def _check_range(extent: object) -> object:
    """Return a number as a range of one; refuse anything but a number or a list of two."""
    if type(extent) is int:
        if extent < 1:
            raise PydanticKnownError("greater_than_equal", {"ge": 1})
        if extent > SIZE_LIMIT:
            raise PydanticKnownError("less_than_equal", {"le": SIZE_LIMIT})
        return extent, extent
    if not _is_list(extent):
        raise PydanticKnownError("tuple_type")
    if len(extent) != 2:
        raise PydanticCustomError(
            "wrong-length", "expected a range [least, most], found a list of {count}", {"count": len(extent)}
        )
    return extent


def _check_ascending(extents: tuple[int, int]) -> tuple[int, int]:
    least, most = extents
    if least > most:
        raise PydanticCustomError(
            "out-of-range",
            "expected a range [least, most], found the larger number first; write [{least}, {most}]",
            {"least": most, "most": least},
        )
    return extents


def _check_zero_or_one(count: object) -> object:
    """Refuse what Pydantic's literals let through (`True == 1.0 == 1`) or fail on (more than 64 bits)."""
    if type(count) is not int or count not in (0, 1):
        raise PydanticKnownError("literal_error", {"expected": "0 or 1"})
    return count


def _check_group_count(count: int) -> int:
    """Refuse more groups than a kernel is planned for."""
    if count > MOST_PLANNED_GROUPS:
        raise PydanticCustomError(
            "out-of-range",
            "expected at most {most} groups to plan, check and time the kernel for, found the whole number "
            "{count}; a call of batched or k_offsets may have more",
            {"most": f"{MOST_PLANNED_GROUPS:,}", "count": shortened(str(count))},
        )
    return count


def _check_search(search: object) -> object:
    """Return a mapping of fields, by their names of today, to lists of values.

    Anything else raises, as do an empty list and a value that no field can have.
    """
    if not isinstance(search, dict):
        raise PydanticCustomError("wrong-type", "expected a mapping of fields to lists of values")
    for field, values in cast("dict[object, object]", search).items():
        if not _is_list(values) or not values:
            raise PydanticCustomError(
                "wrong-type", "expected a list of values for {field}, at least one", {"field": str(field)}
            )
        if wrong := [value for value in values if not isinstance(value, int | str)]:
            raise PydanticCustomError(
                "wrong-type",
                "expected whole numbers, words, true or false for {field}, found {value}",
                {"field": str(field), "value": str(wrong[0])},
            )
    fields = cast("dict[str, Sequence[object]]", search)
    for renamed in RENAMED:
        if renamed.earlier in fields:
            check_one_name(fields, renamed.earlier, renamed.path)
            members = fields.items()
            fields = {path: values for path, values in members if path != renamed.earlier}
            fields[renamed.path] = [*map(renamed.today, dict(members)[renamed.earlier])]
    return fields


def check_one_name(members: Mapping[str, object], earlier: str, name: str) -> None:
    """Refuse a mapping that has a field under its name and under its earlier name."""
    if members.get(name) is not None:
        raise PydanticCustomError(
            "wrong-type",
            "found {name} and {earlier}, which are two names of one field; leave {earlier} out",
            {"name": name, "earlier": earlier},
        )


Title = Annotated[
    str,
    AfterValidator(_check_title),
    WithJsonSchema({"maxLength": TITLE_LIMIT, "minLength": 1, "pattern": TITLE_PATTERN, "type": "string"}),
]
Positive = Annotated[int, Field(ge=1, le=SIZE_LIMIT)]
GroupCount = Annotated[
    int,
    Field(ge=1),
    AfterValidator(_check_group_count),
    WithJsonSchema({"maximum": MOST_PLANNED_GROUPS, "minimum": 1, "type": "integer"}),
]
NonNegative = Annotated[int, Field(ge=0, le=SIZE_LIMIT)]
Skew = Annotated[float, Field(ge=0, le=4)]
Shares = Annotated[tuple[NonNegative, ...], Field(strict=False, min_length=1)]
Factor = Annotated[float, Field(allow_inf_nan=False)]
ZeroOrOne = Annotated[Literal[0, 1], BeforeValidator(_check_zero_or_one)]
# A YAML sequence arrives as a list; strict mode would refuse it where a tuple is declared.
Extents = Annotated[tuple[Positive, Positive, Positive], Field(strict=False), BeforeValidator(_check_shape)]
_EXTENT_SCHEMA: dict[str, Any] = {"maximum": SIZE_LIMIT, "minimum": 1, "type": "integer"}
Range = Annotated[
    tuple[Positive, Positive],
    Field(strict=False),
    BeforeValidator(_check_range),
    AfterValidator(_check_ascending),
    WithJsonSchema(
        {
            "anyOf": [
                _EXTENT_SCHEMA,
                {
                    "maxItems": 2,
                    "minItems": 2,
                    "prefixItems": [_EXTENT_SCHEMA, _EXTENT_SCHEMA],
                    "type": "array",
                },
            ]
        }
    ),
]
"""The least and the most of an extent."""
SearchValues = Annotated[tuple[Searched, ...], Field(strict=False, min_length=1)]
Search = Annotated[dict[str, SearchValues], BeforeValidator(_check_search)]
Shapes = Annotated[tuple[Extents, ...], Field(strict=False), BeforeValidator(_check_shapes)]


RESERVED: Final = frozenset((ACCUMULATOR, MATRIX, *OPERATIONS, *keyword.kwlist))
"""Words that mean something else in an expression of D. A module's own names are no such words: gemmgen
gives its variables other names where they would meet."""


NAME_PATTERN: Final = r"^[a-z][a-z0-9_]{0,19}$"


def _check_accumulator(name: str) -> str:
    """Refuse a name that means something else in an expression, and one that is no short word."""
    if name in RESERVED or not re.fullmatch(NAME_PATTERN, name):
        raise PydanticCustomError(
            "wrong-type",
            "expected a name for sums, in lower case and with no other meaning, as gate or up, found {name}",
            {"name": quoted(name)},
        )
    return name


def _check_pair(names: object) -> object:
    """Refuse anything but a list of two."""
    if not _is_list(names):
        raise PydanticCustomError("wrong-type", "expected a list of the names of two sums, as [gate, up]")
    if len(names) != 2:
        raise PydanticCustomError(
            "wrong-length", "expected the names of two sums, found {count}", {"count": len(names)}
        )
    return names


def _check_distinct(names: tuple[str, str]) -> tuple[str, str]:
    """Refuse one name for both sums."""
    if names[0] == names[1]:
        raise PydanticCustomError(
            "wrong-type", "expected two different names, found {name} twice", {"name": names[0]}
        )
    return names


AccumulatorName = Annotated[
    str, AfterValidator(_check_accumulator), WithJsonSchema({"pattern": NAME_PATTERN, "type": "string"})
]
AccumulatorNames = Annotated[
    tuple[AccumulatorName, AccumulatorName],
    Field(strict=False),
    BeforeValidator(_check_pair),
    AfterValidator(_check_distinct),
    WithJsonSchema(
        {
            "items": {"pattern": NAME_PATTERN, "type": "string"},
            "maxItems": 2,
            "minItems": 2,
            "type": "array",
            "uniqueItems": True,
        }
    ),
]
"""Names of the two sums of each element of D."""


def _check_d(value: object, info: ValidationInfo) -> object:
    """Return the text of an expression, or the texts of two for a D of two matrices.

    Anything else raises, as does a text that is no expression; the error says where in the text.
    """
    if isinstance(value, str):
        return _check_expression(value, info)
    if not _is_list(value):
        raise PydanticKnownError("string_type")
    if "c" in info.data and info.data["c"] is None:
        raise PydanticCustomError(
            "wrong-type",
            "expected one expression, found a list; the two matrices of a C and a D [M, 2N] need names, as "
            "epilogue.c: [gate, up]",
        )
    if len(value) != 2:
        raise PydanticCustomError(
            "wrong-length", "expected the expressions of two matrices, found {count}", {"count": len(value)}
        )
    errors: list[InitErrorDetails] = []
    for index, text in enumerate(value):
        try:
            if not isinstance(text, str):
                raise PydanticCustomError("wrong-type", "expected an expression, as acc * silu(gate)")
            _check_expression(text, info)
        except PydanticCustomError as error:
            errors.append(InitErrorDetails(type=error, loc=(index,), input=text))
    if errors:
        raise ValidationError.from_exception_data("d", errors)
    return tuple(value)


def _check_expression(text: str, info: ValidationInfo) -> str:
    """Return the text of an expression of D; if the names of sums or matrices are wrong, it is not read."""
    if not {"accumulators", "c"} <= info.data.keys():
        return text
    try:
        parsed(text, info.data["accumulators"] or (ACCUMULATOR,), info.data["c"] or ())
    except ExpressionError as error:
        context = {"said": error.message, "offset": error.offset}
        raise PydanticCustomError("expression", "{said}", context) from None
    return text


Expression = Annotated[
    str | tuple[str, ...],
    PlainValidator(_check_d),
    PlainSerializer(lambda value: value, return_type=Any),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"items": {"type": "string"}, "maxItems": 2, "minItems": 2, "type": "array"},
            ]
        }
    ),
]
"""D in terms of the sums, tensors, numbers, ``+``, ``-``, ``*`` and operations, or two of D's matrices."""
