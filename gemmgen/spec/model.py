"""The YAML spec as types; only this package imports Pydantic.

A field that is ``None`` was left out and is the planner's to choose. Types and ranges that hold for every
matmul are stated here; what depends on the hardware or on another field is a rule of the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeGuard, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

SIZE_LIMIT = 2**31 - 1
"""Kernels count in 32-bit integers."""
TITLE_LIMIT = 100
"""Characters."""


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


def _check_zero_or_one(count: object) -> object:
    """Refuse what Pydantic's literals let through (`True == 1.0 == 1`) or fail on (more than 64 bits)."""
    if type(count) is not int or count not in (0, 1):
        raise PydanticKnownError("literal_error", {"expected": "0 or 1"})
    return count


Title = Annotated[str, AfterValidator(_check_title)]
Positive = Annotated[int, Field(ge=1, le=SIZE_LIMIT)]
ZeroOrOne = Annotated[Literal[0, 1], BeforeValidator(_check_zero_or_one)]
# A YAML sequence arrives as a list; strict mode would refuse it where a tuple is declared.
Shape = Annotated[tuple[Positive, Positive, Positive], Field(strict=False), BeforeValidator(_check_shape)]
Shapes = Annotated[tuple[Shape, ...], Field(strict=False), BeforeValidator(_check_shapes)]


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


class Operand(Model):
    """An input matrix: A [M, K] or B [K, N]."""

    dtype: Literal["bf16", "fp16"]
    major: Literal["k", "mn"] | None = Field(
        default=None, description="the dimension that is contiguous in memory"
    )


class Output(Model):
    """The output matrix D [M, N], row-major."""

    dtype: Literal["bf16", "fp16", "fp32"]


class Operands(Model):
    """The matrices of D = A @ B."""

    a: Operand
    b: Operand
    d: Output


class Tile(Model):
    """Elements of D (m, n) and of the K dimension (k) that one CTA handles in one main-loop step."""

    m: Positive | None = None
    n: Positive | None = None
    k: Positive | None = None


class Cluster(Model):
    """CTAs of one cluster along M and N; they share operand tiles by multicast."""

    m: Positive | None = None
    n: Positive | None = None


class Buffering(Model):
    """Depth of each ring of shared-memory buffers, and of the MMA queue."""

    stages: Positive | None = Field(default=None, description="A and B tiles in flight per CTA")
    outstanding_mmas: ZeroOrOne | None = Field(
        default=None, description="MMAs of earlier K steps still running when a K step's MMA is issued"
    )
    epilogue: Positive | None = Field(default=None, description="D sub-tile buffers per consumer")


class Registers(Model):
    """Registers per thread of each role."""

    producer: Positive | None = None
    consumer: Positive | None = None


class WarpSpecialization(Model):
    """Roles of a CTA's warps: one producer warp that loads, and consumers that multiply and store."""

    kind: Literal["cooperative"] | None = Field(
        default=None, description="cooperative: the consumers share one CTA tile, split along M"
    )
    consumers: Positive | None = None
    registers: Registers = Registers()


class Schedule(Model):
    """Which tile each program takes, and in which order."""

    kind: Literal["persistent"] | None = None
    order: Literal["grouped", "snake"] | None = None
    width: Positive | None = Field(
        default=None, description="tiles along M that are visited per column of a group"
    )


class Epilogue(Model):
    """How an accumulator becomes D."""

    subtile_n: Positive | None = Field(
        default=None, description="columns of D converted and stored at a time"
    )


class Runs(Model):
    """Problem shapes [M, N, K] for `gemmgen test` or `gemmgen bench`."""

    shapes: Shapes


class Spec(Model):
    """One matmul: D[M, N] = A[M, K] @ B[K, N]."""

    title: Title = Field(description="one line of plain text for the module's docstring")
    target: Literal["h100", "h200", "b200"]
    operands: Operands
    accumulator: Literal["fp32"] | None = None
    tile: Tile = Tile()
    cluster: Cluster = Cluster()
    buffering: Buffering = Buffering()
    warp_specialization: WarpSpecialization = WarpSpecialization()
    schedule: Schedule = Schedule()
    epilogue: Epilogue = Epilogue()
    check: Runs | None = None
    bench: Runs | None = None
