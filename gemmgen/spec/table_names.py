"""Names of tables as fields of a spec: element types, scale formats, GPUs and epilogue operations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from gemmgen.hardware.elements import (
    ACCUMULATORS,
    ADDENDS,
    INPUTS,
    OUTPUTS,
    SCALE_DTYPES,
    SCALE_FORMATS,
    Names,
)
from gemmgen.hardware.gpus import GPUS
from gemmgen.problem.operations import OPERATIONS, OPS, Operation, Parameter


@dataclass(frozen=True)
class OneOf:
    """A name of a table, as the table is when a spec is read."""

    names: Sequence[str]

    def check(self, value: object) -> object:
        """Return the name; of anything else raise what Pydantic's own literals do."""
        if isinstance(value, str) and value in self.names:
            return value
        raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, self.names))})

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        return {"enum": list(self.names), "type": "string"}


class OneOperation(OneOf):
    """An operation by its name, or a mapping of it to values of its parameters."""

    def check(self, value: object) -> object:
        """Return the name, or a mapping of it to the parameters that are stated, as floats."""
        if not isinstance(value, dict):
            return super().check(value)
        stated = cast("dict[str, object]", value)
        if len(stated) != 1:
            raise PydanticCustomError(
                "wrong-type",
                "expected one operation, found a mapping of {count}; write an item of the list for each",
                {"count": len(stated)},
            )
        ((name, parameters),) = stated.items()
        super().check(name)
        rows = {row.name: row for row in OPERATIONS[name].parameters}
        if not rows:
            raise PydanticCustomError(
                "wrong-type", "{name} has no parameters; write {name} alone", {"name": name}
            )
        if parameters is None:
            return name
        if not isinstance(parameters, dict):
            raise _at([("model_type", (name,), parameters, {"class_name": name})])
        errors: list[_Error] = []
        for parameter, found in cast("dict[str, object]", parameters).items():
            if parameter not in rows:
                errors.append(("extra_forbidden", (name, parameter), found, {}))
            elif found is not None:
                errors += _number_errors(found, (name, parameter), rows[parameter])
        if errors:
            raise _at(errors)
        given = cast("dict[str, float | None]", parameters).items()
        numbers = {parameter: float(found) for parameter, found in given if found is not None}
        return {name: numbers} if numbers else name

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        named = super().__get_pydantic_json_schema__(_schema, _handler)
        mappings = [_operation_schema(OPERATIONS[name]) for name in self.names if OPERATIONS[name].parameters]
        return {"anyOf": [named, *mappings]}


def _operation_schema(operation: Operation) -> dict[str, Any]:
    """Return the JSON schema of a mapping of an operation to its parameters."""
    numbers = {
        row.name: {
            "anyOf": [{"maximum": row.high, "minimum": row.low, "type": "number"}, {"type": "null"}],
            "default": row.default,
            "description": row.meaning,
        }
        for row in operation.parameters
    }
    parameters = {"additionalProperties": False, "properties": numbers, "type": "object"}
    return {
        "additionalProperties": False,
        "properties": {
            operation.name: {
                "anyOf": [parameters, {"type": "null"}],
                "description": "the operation with values of its parameters",
            }
        },
        "required": [operation.name],
        "type": "object",
    }


_Error = tuple[str, tuple[str, ...], object, dict[str, Any]]
"""Type, place below the value, value and context of an error of Pydantic's."""


def _number_errors(found: object, place: tuple[str, ...], row: Parameter) -> Iterator[_Error]:
    """Yield the errors of a parameter's value."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        yield "float_type", place, found, {}
    elif not math.isfinite(found):
        yield "finite_number", place, found, {}
    elif found < row.low:
        yield "greater_than_equal", place, found, {"ge": _shown(row.low)}
    elif found > row.high:
        yield "less_than_equal", place, found, {"le": _shown(row.high)}


def _shown(limit: float) -> float:
    """Return a limit as a user would write it."""
    return int(limit) if limit.is_integer() else limit


def _at(errors: Sequence[_Error]) -> ValidationError:
    """Return Pydantic's error for problems at places inside one value."""
    details = [
        InitErrorDetails(type=kind, loc=place, input=found, ctx=context)
        for kind, place, found, context in errors
    ]
    return ValidationError.from_exception_data("ops", details)


InputDType = Annotated[str, OneOf(INPUTS)]
"""Element types of A and B; the tensor cores read fp32 tensors as tf32."""
AddendDType = Annotated[str, OneOf(ADDENDS)]
OutputDType = Annotated[str, OneOf(OUTPUTS)]
AccumulatorDType = Annotated[str, OneOf(ACCUMULATORS)]
ScaleFormatName = Annotated[str, OneOf(Names(lambda: SCALE_FORMATS))]
ScaleDType = Annotated[str, OneOf(SCALE_DTYPES)]
Target = Annotated[str, OneOf(Names(lambda: GPUS))]
EpilogueOp = Annotated[str | dict[str, dict[str, float]], OneOperation(OPS)]
"""An operation of the epilogue: its name, or ``{name: {parameter: value}}``."""
