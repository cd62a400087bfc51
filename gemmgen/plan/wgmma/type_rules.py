"""Rules of element types, majors, alignment and the epilogue of a Hopper kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.hardware.elements import SCALE_FORMATS, WEIGHT_BLOCK, WGMMA_ACCUMULATORS, DType, outputs_of
from gemmgen.plan.access import NUnit
from gemmgen.plan.fix import at_most, either, use
from gemmgen.plan.rule import Finding, Rule, rule
from gemmgen.plan.shared_rules import (
    Rows,
    epilogue_expression,
    epilogue_factors,
    epilogue_ops,
    unaligned_shapes,
    unequal_types,
)
from gemmgen.plan.wgmma.resources import WgmmaKernel

BLOCKS: dict[NUnit, str] = {
    "scales of D": "each has a scale",
    "scales of B": "each has scales of one accumulator",
    "rows of TMA": "TMA reads or writes the second matrix from column N on",
}
"""Why D has whole blocks of columns, unless B is a weight that threads decode."""
PERMUTED = f"`pack_weight` permutes whole blocks of {WEIGHT_BLOCK} columns of B and {WEIGHT_BLOCK} of K"
"""Why N and K are made of blocks if B is such a weight."""


@rule("operand-dtypes", subject="problem")
def operand_dtypes(plan: WgmmaKernel) -> Iterator[Finding]:
    """Wgmma multiplies equal types, and the two 8-bit floats in any mix."""
    a, b = plan.problem.a.dtype.name, plan.problem.b.dtype.name
    if plan.problem.b.decoded:  # weights and their activations have a rule of their own
        return
    decoding = [each.name for each in SCALE_FORMATS.values() if each.decoded_to == a and b in each.elements]
    for found in unequal_types(plan.problem, "wgmma"):
        if decoding:
            fix = found.fix | use(*decoding, field="operands.b.scale.format")
            limit = f"{found.limit}, and threads decode a B with scales of {either(decoding)}"
            yield replace(found, fix=fix, limit=limit)
        else:
            yield found


@rule("accumulator-dtype", subject="problem")
def accumulator_dtype(plan: WgmmaKernel) -> Iterator[Finding]:
    """The instruction has the accumulator's type."""
    a, accumulator = plan.problem.a.multiplied.name, plan.problem.accumulator.name
    if accumulator not in WGMMA_ACCUMULATORS[a]:
        yield Finding(
            "accumulator",
            f"products of {a} added up in {accumulator}",
            f"wgmma adds them up in {either(WGMMA_ACCUMULATORS[a])}",
            use(*WGMMA_ACCUMULATORS[a]),
        )


@rule("output-dtype", subject="problem")
def output_dtype(plan: WgmmaKernel) -> Iterator[Finding]:
    """D has a type to which the accumulator, and values computed from it, can be converted."""
    problem = plan.problem
    accumulator, d = problem.accumulator.name, problem.d.name
    outputs = outputs_of(accumulator)
    if d not in outputs:
        yield Finding(
            "operands.d.dtype",
            f"D is {d} and its products are added up in {accumulator}",
            f"an {accumulator} accumulator becomes {either(outputs)}",
            use(*outputs),
        )
    elif d == "int32" and problem.transforms:
        yield Finding(
            "operands.d.dtype",
            "D is int32 after an epilogue that computes",
            "it does so in fp32, whose 24 bits of mantissa do not hold every int32",
            use(*(name for name in outputs if name != "int32")),
        )


@rule("operand-major")
def operand_major(plan: WgmmaKernel) -> Iterator[Finding]:
    """Wgmma takes MN-major operands from shared memory for 16-bit types only."""
    problem = plan.problem
    if problem.a.major == "mn" and problem.a.dtype.bits != 16 and plan.mma.source_of("a") == "shared":
        yield Finding(
            "operands.a.major",
            f"A is M-contiguous, and its elements have {problem.a.dtype.bits} bits",
            "wgmma takes MN-major operands from shared memory for 16-bit types only",
            use("k") | use("registers", field="operands.a.source"),
        )
    if problem.b.major == "mn" and problem.b.dtype.bits != 16 and plan.mma.source_of("b") == "shared":
        yield Finding(
            "operands.b.major",
            f"B is N-contiguous, and its elements have {problem.b.dtype.bits} bits",
            "wgmma takes MN-major operands from shared memory for 16-bit types only, and B from nowhere else",
            use("k", note="B stored as [N, K]"),
        )


@rule("shape-alignment", subject="problem")
def shape_alignment(plan: WgmmaKernel) -> Iterator[Finding]:
    """The rows of a contiguous A, B and C of a listed problem have lengths that TMA can stride."""
    problem, alignment = plan.problem, plan.architecture.tma_alignment_bytes

    def rows(matrix: str, axis: int, dtype: DType) -> Rows:
        return Rows(
            matrix,
            axis,
            8 * alignment // dtype.bits,
            lambda extent: f"{extent * dtype.bits // 8:,} bytes",
            f"TMA strides in multiples of {alignment}",
        )

    matrices = [
        rows("A", 2 if problem.a.major == "k" else 0, problem.a.dtype),
        rows("B", 2 if problem.b.major == "k" else 1, problem.b.dtype),
    ]
    if (multiple := problem.b.permuted_block) > 1:
        limit = f"K is a multiple of {multiple}: {PERMUTED}"
        matrices[1] = Rows("B", 2, multiple, lambda k: f"{k:,} elements", limit, copyable=False)
    if problem.c:
        matrices.append(rows("C", 1, problem.c))
    if (multiple := plan.access.n_multiple) > 1:
        if plan.access.n_unit == "blocks of weights":
            limit = f"N is a multiple of {multiple}: {PERMUTED}"
            if (columns := WEIGHT_BLOCK // multiple) > 1:
                limit += f", and D has a column for {columns} columns of B"
        else:
            limit = f"D has whole blocks of {multiple} columns: {BLOCKS[plan.access.n_unit]}"
        matrices.append(Rows("D", 1, multiple, lambda n: f"{n:,} columns", limit, copyable=False))
    yield from unaligned_shapes(plan.request, matrices, copyable=plan.read_early is None)


@rule("single-tile-shapes")
def single_tile_shapes(plan: WgmmaKernel) -> Iterator[Finding]:
    """A problem that is listed for a kernel of a single tile is no larger than the tile."""
    if plan.schedule_kind != "single_tile":
        return
    tile = (plan.cta_tile_m, plan.cta_columns, plan.cta_tile_k)
    for field, axis, extent in plan.request.stated_extents():
        if extent > tile[axis]:
            yield Finding(
                field,
                f"{'MNK'[axis]} = {extent:,}",
                f"a kernel of a single tile computes at most {tile[axis]}",
                at_most(tile[axis]),
            )


TYPE_RULES: tuple[Rule[WgmmaKernel], ...] = (
    operand_dtypes,
    accumulator_dtype,
    output_dtype,
    operand_major,
    shape_alignment,
    single_tile_shapes,
)
OPERATION_RULES: tuple[Rule[WgmmaKernel], ...] = (epilogue_ops, epilogue_factors, epilogue_expression)
