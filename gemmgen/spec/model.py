"""The YAML spec as types; only this package imports Pydantic.

A field that is ``None`` was left out and is the planner's to choose. Types and ranges that hold for every
matmul are stated here; what depends on the hardware or on another field is a rule of the planner.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeGuard, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
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
from gemmgen.spec.expression import ExpressionError, parsed

Major = Literal["k", "mn"]
"""The dimension of an operand that is contiguous in memory."""
Source = Literal["shared", "registers"]
"""Where the MMA reads A."""
Specialization = Literal["none", "cooperative", "ping_pong"]
"""How the consumers of a warp-specialized kernel divide their work."""
ScheduleKind = Literal["single_tile", "tiled", "persistent", "launch_control"]
"""How programs get their tiles."""
Order = Literal["row", "column", "grouped", "snake", "hilbert"]
"""How tiles follow one another."""
EarlyOperand = Literal["a", "b", "nothing"]
"""What a kernel may load before the kernel ahead of it has ended."""
Trigger = Literal["loads", "end"]
"""When the kernel behind may be launched."""
Reduction = Literal["ordered", "atomic", "parallel"]
"""How the sums of a tile's splits are added up."""
LastWave = Literal["whole", "stream_k"]
"""How programs take the tiles that do not fill a wave."""
Minor = Literal["m", "n"]
"""The dimension along which tiles follow one another first."""
Misaligned = Literal["refuse", "copy"]
"""What becomes of a tensor over whose rows TMA cannot stride."""
MmaRows = Literal["m", "n"]
"""The dimension of D that lies along the rows of the matrix instruction."""


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
    """Yield what is wrong with the value of a parameter."""
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


SIZE_LIMIT = 2**31 - 1
"""Kernels count in 32-bit integers."""
TITLE_LIMIT = 100
"""Characters."""


_NOT_IN_TITLES = r"""\x00-\x1f\x7f-\x9f"'`\\{}"""
TITLE_PATTERN = rf"^[^\s{_NOT_IN_TITLES}]([^{_NOT_IN_TITLES}]*[^\s{_NOT_IN_TITLES}])?$"
"""What a title may be, as far as a regular expression of JSON Schema can say it."""


def _check_title(title: str) -> str:
    """Refuse what could end the docstring that holds the title, or mean something to a template."""
    for index, character in enumerate(title, start=1):
        if character in "\"'`\\{}" or not character.isprintable():
            code_point = f"U+{ord(character):04X}"
            raise PydanticCustomError(
                "title",
                "found {character} as character {index},"
                " expected one line of printable text without quotes, backticks, backslashes or braces",
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
    """Return a number as the range that holds it alone; refuse what is neither a number nor two of them."""
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


def _check_search(search: object) -> object:
    """Refuse what is no mapping of fields to lists of whole numbers or words, and an empty list."""
    if not isinstance(search, dict):
        raise PydanticCustomError("wrong-type", "expected a mapping of fields to lists of values")
    for field, values in cast("dict[object, object]", search).items():
        if not _is_list(values) or not values:
            raise PydanticCustomError(
                "wrong-type", "expected a list of values for {field}, at least one", {"field": str(field)}
            )
        if wrong := [
            value for value in values if isinstance(value, bool) or not isinstance(value, int | str)
        ]:
            raise PydanticCustomError(
                "wrong-type",
                "expected whole numbers or words for {field}, found {value}",
                {"field": str(field), "value": str(wrong[0])},
            )
    return cast(object, search)


Title = Annotated[
    str,
    AfterValidator(_check_title),
    WithJsonSchema({"maxLength": TITLE_LIMIT, "minLength": 1, "pattern": TITLE_PATTERN, "type": "string"}),
]
Positive = Annotated[int, Field(ge=1, le=SIZE_LIMIT)]
NonNegative = Annotated[int, Field(ge=0, le=SIZE_LIMIT)]
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
SearchValues = Annotated[tuple[int | str, ...], Field(strict=False, min_length=1)]
Search = Annotated[dict[str, SearchValues], BeforeValidator(_check_search)]
Shapes = Annotated[tuple[Extents, ...], Field(strict=False), BeforeValidator(_check_shapes)]


class Model(BaseModel):
    """Strict types, no unknown keys, immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, section: object) -> object:
        if not isinstance(section, dict):
            return section
        members = cast("dict[str, object]", section).items()
        return {key: value for key, value in members if value is not None or key not in cls.model_fields}


InputDType = Annotated[str, OneOf(INPUTS)]
"""Of A and B; tf32 is what the tensor cores make of fp32 tensors."""
AddendDType = Annotated[str, OneOf(ADDENDS)]
OutputDType = Annotated[str, OneOf(OUTPUTS)]
AccumulatorDType = Annotated[str, OneOf(ACCUMULATORS)]
ScaleFormatName = Annotated[str, OneOf(Names(lambda: SCALE_FORMATS))]
ScaleDType = Annotated[str, OneOf(SCALE_DTYPES)]
Target = Annotated[str, OneOf(Names(lambda: GPUS))]
EpilogueOp = Annotated[str | dict[str, dict[str, float]], OneOperation(OPS)]
"""What the epilogue does to the product, element by element: its name, or ``{name: {parameter: value}}``."""


class BlockScale(Model):
    """Scales of an operand: one for each row and each block of K."""

    format: ScaleFormatName = Field(description="the format, which fixes the scales' type and block")
    dtype: ScaleDType | None = Field(default=None, description="of the scales; the format's if left out")
    vector: Positive | None = Field(
        default=None, description="elements of K that share a scale; the format's if left out"
    )


class InputB(Model):
    """The input matrix B [K, N]."""

    dtype: InputDType = Field(
        description="tf32 takes torch.float32 tensors, e2m1 torch.uint8 tensors of two elements a byte"
    )
    scale: BlockScale | None = Field(default=None, description="of an operand with a scale for each block")
    packing: Literal["packed", "padded"] | None = Field(
        default=None,
        description="e2m1 in shared memory: two elements in a byte, or 16 in 16 bytes, half of them empty",
    )
    major: Major | None = Field(default=None, description="the dimension that is contiguous in memory")
    swizzle: NonNegative | None = Field(default=None, description="bytes of the shared-memory swizzle")


class InputA(InputB):
    """The input matrix A [M, K]."""

    source: Source | None = Field(default=None, description="where the MMA reads A")


class Addend(Model):
    """The matrix C [M, N], row-major, that is added to the product."""

    dtype: AddendDType = Field(description="the elements of C")


class Output(Model):
    """The output matrix D [M, N], row-major."""

    dtype: OutputDType = Field(description="the elements of D, to which sums are converted")


class Operands(Model):
    """The matrices of D = epilogue(alpha * A @ B + beta * C)."""

    a: InputA = Field(description="the left matrix [M, K]")
    b: InputB = Field(description="the right matrix [K, N]")
    c: Addend | None = Field(default=None, description="what is added to the product; nothing if left out")
    d: Output = Field(description="the result [M, N]")
    misaligned: Misaligned | None = Field(
        default=None,
        description="a tensor whose address or row stride is no multiple of 16 bytes: refuse, or copy in "
        "every call; refused if left out",
    )


class Tile(Model):
    """Elements of D (m, n) and of the K dimension (k) that one CTA handles in one main-loop step."""

    m: Positive | None = Field(default=None, description="rows of D of one CTA")
    n: Positive | None = Field(default=None, description="columns of D of one CTA")
    k: Positive | None = Field(default=None, description="elements of K in one step of the main loop")
    staggered: bool | None = Field(
        default=None,
        description="whether the first of two consumers has more columns than the second",
    )


class Mma(Model):
    """The matrix instruction."""

    rows: MmaRows | None = Field(
        default=None,
        description="the dimension of D along its rows, of which it has 64: n exchanges the operands, so "
        "that a tile may have as few as 8 rows of A",
    )
    n: Positive | None = Field(default=None, description="columns of one instruction")
    promote_k: Positive | None = Field(
        default=None, description="elements of K after which 8-bit floats' sums are added up in full fp32"
    )


class Warps(Model):
    """Warps of one consumer along M and N of its tile."""

    m: Positive | None = Field(default=None, description="along the rows of its tile")
    n: Positive | None = Field(default=None, description="along the columns of its tile")


class Cluster(Model):
    """CTAs of one cluster along M and N; they share operand tiles by multicast."""

    m: Positive | None = Field(default=None, description="along M: those of a row share tiles of B")
    n: Positive | None = Field(default=None, description="along N: those of a column share tiles of A")


class Buffering(Model):
    """Depth of each ring of shared-memory buffers, and of the MMA queue."""

    stages: Positive | None = Field(default=None, description="A and B tiles in flight per CTA")
    outstanding_mmas: ZeroOrOne | None = Field(
        default=None, description="MMAs of earlier K steps still running when a K step's MMA is issued"
    )
    accumulators: Positive | None = Field(
        default=None, description="in tensor memory: with two, one is stored while the other is summed"
    )
    epilogue: Positive | None = Field(default=None, description="C and D sub-tile buffers per consumer")


class Registers(Model):
    """Registers per thread of each role."""

    producer: Positive | None = Field(default=None, description="of the warp that loads A and B")
    consumer: Positive | None = Field(default=None, description="of the warps that multiply and store D")
    worker: Positive | None = Field(
        default=None, description="of each warp beside the epilogue's, where the tensor cores have a warp"
    )


class WarpSpecialization(Model):
    """Roles of a CTA's warps: one producer warp that loads, and consumers that multiply and store."""

    kind: Specialization | None = Field(
        default=None,
        description="none: all warps do everything; cooperative: the consumers share one CTA tile, split "
        "along M; ping_pong: each has a tile of its own, and one multiplies while the other stores",
    )
    consumers: Positive | None = Field(
        default=None, description="groups of warps that multiply and store, beside the producer"
    )
    registers: Registers = Field(default=Registers(), description="registers per thread of each role")


class Schedule(Model):
    """Which tile each program takes, and in which order."""

    kind: ScheduleKind | None = Field(
        default=None,
        description="single_tile: one program for a problem of one tile; tiled: a program for each tile; "
        "persistent: one program per SM or cluster, which walks over tiles; launch_control: a program for "
        "each tile, and those that run take over the tiles of those that have not started",
    )
    order: Order | None = Field(
        default=None,
        description="how tiles follow one another: along rows or columns, in groups, in groups there "
        "and back (snake), or along a Hilbert curve",
    )
    minor: Minor | None = Field(
        default=None, description="the dimension along which neighbouring tiles of a group follow"
    )
    width: Positive | None = Field(
        default=None, description="tiles along the minor dimension that are walked together"
    )
    splits: Positive | None = Field(
        default=None,
        description="parts of K, which programs take one by one; their sums are added up",
    )
    reduction: Reduction | None = Field(
        default=None,
        description="ordered: the last split of a tile adds up the sums of all, in their order; atomic: each "
        "adds its own to the tile's as it comes, so that floating-point sums can differ from run to run; "
        "parallel: a second kernel, on all SMs, adds up the sums in their order and stores D",
    )
    last_wave: LastWave | None = Field(
        default=None,
        description="whole: programs compute tiles whole to the end; stream_k: those that fill no wave are "
        "divided by K steps over all programs",
    )


class DependentLaunch(Model):
    """Programmatic dependent launch: the kernel starts while the one ahead of it in the stream still runs."""

    early: EarlyOperand = Field(
        description="the operand that is loaded at once, which no kernel ahead may still write, as with a "
        "weight; or nothing: then all loads wait for the kernel ahead"
    )
    trigger: Trigger | None = Field(
        default=None,
        description="when the kernel behind may start: once the first loads are issued, or at the end",
    )


def _check_expression(text: str) -> str:
    """Refuse text that is no expression of D; the error says where in the text."""
    try:
        parsed(text)
    except ExpressionError as error:
        context = {"said": error.message, "offset": error.offset}
        raise PydanticCustomError("expression", "{said}", context) from None
    return text


Expression = Annotated[str, AfterValidator(_check_expression)]
"""What D is, in terms of the sums, tensors, numbers, ``+``, ``-``, ``*`` and operations."""


class Epilogue(Model):
    """How an accumulator becomes D."""

    d: Expression | None = Field(
        default=None,
        description="D as an expression of the sums, acc, in place of alpha, beta and ops: "
        "silu(acc * row_scale) + c",
    )

    alpha: Factor | None = Field(default=None, description="factor of A @ B, 1 if left out")
    beta: Factor | None = Field(default=None, description="factor of C, 1 if left out")
    ops: Annotated[tuple[EpilogueOp, ...], Field(strict=False)] = Field(
        default=(), description="applied in this order after alpha and beta"
    )
    subtile_n: Positive | None = Field(
        default=None, description="columns of D converted and stored at a time"
    )

    @property
    def steps(self) -> tuple[tuple[str, dict[str, float]], ...]:
        """The operations by name, each with the parameters that are stated."""
        return tuple((step, {}) if isinstance(step, str) else next(iter(step.items())) for step in self.ops)


class Runs(Model):
    """Problem shapes [M, N, K] for `gemmgen test` or `gemmgen bench`."""

    shapes: Shapes = Field(description="a list of problems [M, N, K]")


class Ranges(Model):
    """The problems [M, N, K] that the kernel is for: each extent a number, or a range [least, most]."""

    m: Range = Field(description="rows of A and D, or [least, most]")
    n: Range = Field(description="columns of B and D, or [least, most]")
    k: Range = Field(description="columns of A and rows of B, or [least, most]")


class Spec(Model):
    """One matmul: D[M, N] = epilogue(alpha * A[M, K] @ B[K, N] + beta * C[M, N])."""

    title: Title = Field(description="one line of plain text for the module's docstring")
    target: Target = Field(description="the GPU that the plan is made for")
    operands: Operands = Field(description="the matrices: their types, and how they lie in memory")
    accumulator: AccumulatorDType | None = Field(
        default=None, description="what sums are kept in; int32 for int8 and else fp32, if left out"
    )
    tile: Tile = Field(default=Tile(), description="what one CTA handles; a cluster's is this times cluster")
    mma: Mma = Field(default=Mma(), description="the matrix instruction")
    warps: Warps = Field(default=Warps(), description="how the warps of a consumer lie over its tile")
    cluster: Cluster = Field(default=Cluster(), description="CTAs that run together and share tiles")
    buffering: Buffering = Field(default=Buffering(), description="how deep rings of buffers are")
    warp_specialization: WarpSpecialization = Field(
        default=WarpSpecialization(), description="what each warp does for the whole kernel"
    )
    schedule: Schedule = Field(default=Schedule(), description="which tiles a program takes, and their order")
    occupancy: Positive | None = Field(default=None, description="CTAs that share an SM")
    dependent_launch: DependentLaunch | None = Field(
        default=None, description="how the kernel starts while the one ahead still runs; not, if left out"
    )
    epilogue: Epilogue = Field(default=Epilogue(), description="what happens to the sums before they are D")
    search: Search = Field(
        default={}, description="values to choose from for fields that are left out, by their path: tile.n"
    )
    deterministic: bool = Field(
        default=False,
        description="whether D must have the same bits in every run: what may differ is refused",
    )
    batch_invariant: bool = Field(
        default=False,
        description="whether a row of D must have the same bits whatever M and the other rows are, also in "
        "kernels that the planner chooses for other M",
    )
    backward: bool = Field(
        default=False,
        description="whether autograd goes through the module: the build adds a module for each gradient",
    )
    problem: Ranges | None = Field(
        default=None, description="what open fields are chosen for; by default the first shape under bench"
    )
    check: Runs | None = Field(default=None, description="what gemmgen test computes and compares")
    bench: Runs | None = Field(default=None, description="what gemmgen bench times")


def stated(spec: Spec) -> dict[str, Any]:
    """Return what a spec states, as plain data."""
    return spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def spec_of(data: Mapping[str, object]) -> Spec | None:
    """Return the spec that plain data states, None where it is none."""
    try:
        return Spec.model_validate(data)
    except ValidationError:
        return None


SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_ID = "urn:gemmgen:spec"
"""A name and no address: the schema of a release is what its own `gemmgen schema` prints."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec; rules of the hardware, and some of YAML, are none of it."""
    return {"$schema": SCHEMA_DIALECT, "$id": SCHEMA_ID, **Spec.model_json_schema()}
