"""The YAML spec as types; only this package imports Pydantic.

A field that is ``None`` was left out and is the planner's to choose. Types and ranges that hold for every
matmul are stated here; what depends on the hardware or on another field is a rule of the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gemmgen.problem import GroupKind
from gemmgen.spec.spelling import SWAP_AB
from gemmgen.spec.table_names import (
    AccumulatorDType,
    AddendDType,
    EpilogueOp,
    InputDType,
    OutputDType,
    ScaleDType,
    ScaleFormatName,
    Target,
)
from gemmgen.spec.values import (
    AccumulatorNames,
    Expression,
    Factor,
    GroupCount,
    NonNegative,
    Positive,
    Range,
    Search,
    Shapes,
    Shares,
    Skew,
    Title,
    ZeroOrOne,
    check_one_name,
)
from gemmgen.spec.words import (
    BColumns,
    EarlyOperand,
    Major,
    Minor,
    Misaligned,
    MmaRows,
    Order,
    Reduction,
    ScheduleKind,
    Source,
    Specialization,
    Trigger,
)


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
        description="tf32 takes torch.float32 tensors; e2m1, and int4, which is for B on Hopper, take "
        "torch.uint8 tensors of two elements a byte"
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
    scale: BlockScale | None = Field(
        default=None,
        description="of a D of 8-bit floats with a scale for each row and block of N, which the kernel "
        "computes and stores beside D",
    )


class Operands(Model):
    """The matrices of D = epilogue(alpha * A @ B + beta * C)."""

    a: InputA = Field(description="the left matrix [M, K]")
    b: InputB = Field(description="the right matrix [K, N]")
    c: Addend | None = Field(
        default=None, description="the matrix that is added to the product; none if left out"
    )
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

    swap_ab: bool | None = Field(
        default=None,
        description="whether A and B change sides, so that B has the instruction's 64 rows and a tile may "
        "have as few as 8 rows of A",
    )
    rows: MmaRows | None = Field(
        default=None,
        description="the earlier name of swap_ab: n for true, m for false",
        json_schema_extra={"deprecated": True},
    )
    n: Positive | None = Field(default=None, description="columns of one instruction")
    promote_k: Positive | None = Field(
        default=None,
        description="elements of K after which sums of 8- or 16-bit floats are added in full fp32",
    )

    @model_validator(mode="before")
    @classmethod
    def _rows_is_swap_ab(cls, section: object) -> object:
        if not isinstance(section, dict):
            return section
        members = dict(cast("dict[str, object]", section))
        key, rows = SWAP_AB.key, members.get(SWAP_AB.earlier_key)
        if not isinstance(rows, str) or rows not in SWAP_AB.values:  # left out, or refused by the field
            return members
        check_one_name(members, SWAP_AB.earlier_key, key)
        del members[SWAP_AB.earlier_key]
        return {**members, key: SWAP_AB.today(rows)}


class Warps(Model):
    """Warps of one consumer along M and N of its tile."""

    m: Positive | None = Field(default=None, description="along the rows of its tile")
    n: Positive | None = Field(default=None, description="along the columns of its tile")


class Cluster(Model):
    """CTAs of one cluster along M and N; they share operand tiles by multicast."""

    m: Positive | None = Field(
        default=None, description="along M: CTAs that differ in M alone share tiles of B"
    )
    n: Positive | None = Field(
        default=None, description="along N: CTAs that differ in N alone share tiles of A"
    )


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
        default=None, description="of each warp that is not the epilogue's, on Blackwell"
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
        description="split-K factor: programs take the splits of a tile one by one; sums are added up",
    )
    reduction: Reduction | None = Field(
        default=None,
        description="ordered: the last split of a tile adds up the sums of all, in their order; atomic: each "
        "adds its own to the tile's as it comes, so that floating-point sums can differ from run to run; "
        "parallel: a second kernel, on all SMs, adds up the sums in their order and stores D",
    )


class DependentLaunch(Model):
    """Programmatic dependent launch: the kernel starts while the one ahead of it in the stream still runs."""

    early: EarlyOperand = Field(
        description="the operand that is loaded at once, which no kernel ahead may still write, as with a "
        "weight; or nothing: then all loads wait for the kernel ahead"
    )
    trigger: Trigger | None = Field(
        default=None,
        description="when the next kernel may start: after the first loads are issued, or at the end",
    )


class Epilogue(Model):
    """How an accumulator becomes D."""

    accumulators: AccumulatorNames | None = Field(
        default=None,
        description="names of the two sums of each element of D, as [gate, up]: B is [K, 2N], with N columns "
        "of each; one sum, acc, if left out",
    )
    columns: BColumns | None = Field(
        default=None,
        description="order of the columns of B for two accumulators, or of the two matrices in C and D: "
        "blocks, the default: N columns for the first one, then N columns for the second one; interleaved: "
        "even columns for the first one, odd columns for the second one",
    )
    c: AccumulatorNames | None = Field(
        default=None,
        description="names of the two matrices [M, N] in C, as [gate, up]: C and D are [M, 2N], and d has an "
        "expression for each matrix in D; C is one matrix, c, if left out",
    )
    d: Expression | None = Field(
        default=None,
        description="D as an expression of the sums, acc, in place of alpha, beta and ops: "
        "silu(acc * row_scale) + c; with accumulators of their names: silu(gate) * up; a list of two "
        "expressions with epilogue.c",
    )
    save: AccumulatorNames | None = Field(
        default=None,
        description="the names of the two accumulators, if their sums are stored beside D for a backward: as "
        "[M, 2N] of D's type, in the order of the columns of B; D is computed from the rounded sums",
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


class Groups(Model):
    """Groups of rows of A with a B [K, N] of their own, or groups of K with a D [M, N] of their own."""

    kind: GroupKind = Field(
        description="how a call divides M or K: m_offsets: A [M, K] and offs [G], the row after the last "
        "one of each group; m_masked: A [G, M, K] and rows [G], the rows of each group; batched: A "
        "[G, M, K]; k_offsets: A [M, K], B [K, N] and offs [G], the end of each group along K"
    )
    count: GroupCount = Field(
        description="groups of the problems that the kernel is planned, checked and timed for"
    )
    skew: Skew | None = Field(
        default=None,
        description="spread of the expected sizes: the standard deviation of their logarithms, 0 if equal",
    )
    shares: Shares | None = Field(
        default=None, description="expected sizes of the groups, in proportion to each other"
    )
    broadcast: Literal["a", "b"] | None = Field(
        default=None, description="the matrix that all batches share, [M, K] or [K, N]; none if left out"
    )
    a_rows: bool = Field(
        default=False,
        description="whether a call has a_rows [M], the row of A that each row of the product is of",
    )
    d_rows: bool = Field(
        default=False,
        description="whether a call has d_rows [M], the row of D in which each row of the product is stored",
    )


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
        default=None, description="type of the accumulator; default int32 for int8, else fp32"
    )
    tile: Tile = Field(default=Tile(), description="what one CTA handles; a cluster's is this times cluster")
    mma: Mma = Field(default=Mma(), description="the matrix instruction")
    warps: Warps = Field(default=Warps(), description="how the warps of a consumer lie over its tile")
    groups: Groups | None = Field(
        default=None,
        description="groups of rows, as of the experts of a mixture; one A and one B if left out",
    )
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
    """Return the statements of a spec as plain data."""
    return spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def spec_of(data: Mapping[str, object]) -> Spec | None:
    """Return the spec that plain data states, or None if the data are no valid spec."""
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
