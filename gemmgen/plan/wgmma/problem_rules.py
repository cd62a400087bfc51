"""Rules of what a kernel computes: types, majors, shapes, operations of the epilogue."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware.elements import WGMMA_ACCUMULATORS, DType, outputs_of
from gemmgen.plan.rule import Finding, Rule, either, one_of, rule
from gemmgen.plan.shared_rules import Rows, repeated_ops, unaligned_shapes, unequal_types, unusable_factor
from gemmgen.plan.wgmma.resources import WgmmaKernel


@rule("operand-dtypes", subject="problem")
def operand_dtypes(plan: WgmmaKernel) -> Iterator[Finding]:
    """Wgmma multiplies equal types, and the two 8-bit floats in any mix."""
    yield from unequal_types(plan.problem, "wgmma")


@rule("accumulator-dtype", subject="problem")
def accumulator_dtype(plan: WgmmaKernel) -> Iterator[Finding]:
    """The accumulator is one that the instruction has."""
    a, accumulator = plan.problem.a.dtype.name, plan.problem.accumulator.name
    if accumulator not in WGMMA_ACCUMULATORS[a]:
        yield Finding(
            "accumulator",
            f"products of {a} added up in {accumulator}",
            f"wgmma adds them up in {either(WGMMA_ACCUMULATORS[a])}",
            one_of(WGMMA_ACCUMULATORS[a]),
        )


@rule("output-dtype", subject="problem")
def output_dtype(plan: WgmmaKernel) -> Iterator[Finding]:
    """D has a type to which the accumulator, and what is computed of it, can be converted."""
    problem = plan.problem
    accumulator, d = problem.accumulator.name, problem.d.name
    outputs = outputs_of(accumulator)
    if d not in outputs:
        yield Finding(
            "operands.d.dtype",
            f"D is {d} and its products are added up in {accumulator}",
            f"an {accumulator} accumulator becomes {either(outputs)}",
            one_of(outputs),
        )
    elif d == "int32" and problem.transforms:
        yield Finding(
            "operands.d.dtype",
            "D is int32 behind an epilogue that computes",
            "it does so in fp32, whose 24 bits of mantissa do not hold every int32",
            one_of([name for name in outputs if name != "int32"]),
        )


@rule("operand-major")
def operand_major(plan: WgmmaKernel) -> Iterator[Finding]:
    """Shared memory holds operands of 16 bits either way, and others along K only."""
    problem = plan.problem
    if problem.a.major == "mn" and problem.a.dtype.bits != 16 and plan.a_source == "shared":
        yield Finding(
            "operands.a.major",
            f"A is M-contiguous, of {problem.a.dtype.bits} bits",
            "wgmma reads only 16-bit operands across their rows in shared memory",
            "use k, or registers for operands.a.source",
        )
    if problem.b.major == "mn" and problem.b.dtype.bits != 16:
        yield Finding(
            "operands.b.major",
            f"B is N-contiguous, of {problem.b.dtype.bits} bits",
            "wgmma reads only 16-bit operands across their rows in shared memory, and B from nowhere else",
            "use k (B stored as [N, K])",
        )


@rule("shape-alignment", subject="problem")
def shape_alignment(plan: WgmmaKernel) -> Iterator[Finding]:
    """The rows of a contiguous A, B and C of a listed problem are multiples of what TMA can stride."""
    problem, alignment = plan.problem, plan.architecture.tma_alignment_bytes

    def rows(matrix: str, axis: int, dtype: DType) -> Rows:
        return Rows(
            matrix,
            axis,
            alignment // dtype.bytes,
            lambda extent: f"{extent * dtype.bytes:,} bytes",
            f"TMA strides in multiples of {alignment}",
        )

    matrices = [
        rows("A", 2 if problem.a.major == "k" else 0, problem.a.dtype),
        rows("B", 2 if problem.b.major == "k" else 1, problem.b.dtype),
    ]
    if problem.c:
        matrices.append(rows("C", 1, problem.c))
    yield from unaligned_shapes(problem, matrices, copyable=not plan.dependent)


@rule("single-tile-shapes")
def single_tile_shapes(plan: WgmmaKernel) -> Iterator[Finding]:
    """A problem that is listed for a kernel of a single tile is no larger than the tile."""
    if plan.schedule_kind != "single_tile":
        return
    tile = (plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k)
    for field, axis, extent in plan.problem.stated_extents():
        if extent > tile[axis]:
            yield Finding(
                field,
                f"{'MNK'[axis]} = {extent:,}",
                f"a kernel of a single tile computes at most {tile[axis]}",
                f"use at most {tile[axis]}",
            )


@rule("epilogue-ops", subject="problem")
def epilogue_ops(plan: WgmmaKernel) -> Iterator[Finding]:
    """Each operation occurs once, for its operand has one name, and one that adds C has a C to add."""
    problem = plan.problem
    yield from repeated_ops(problem)
    if problem.residual and problem.c is None:
        yield Finding(
            f"epilogue.ops.{problem.ops.index('residual')}",
            "residual without a C",
            "it adds the matrix operands.c",
            "leave it out, or use it with an operands.c",
        )


@rule("epilogue-factors", subject="problem")
def epilogue_factors(plan: WgmmaKernel) -> Iterator[Finding]:
    """A factor is that of a matrix, and a number with which fp32 computes: Gluon takes others as fp64."""
    problem = plan.problem
    if problem.beta != 1 and (problem.c is None or problem.residual):
        why = "without a C" if problem.c is None else "for a C that residual adds"
        limit = "it is the factor of operands.c" if problem.c is None else "residual adds C as it is"
        yield Finding(
            "epilogue.beta",
            f"a factor of {problem.beta:g} {why}",
            limit,
            "leave it out, or use it with a C that is added to the product",
        )
    yield from unusable_factor("alpha", problem.alpha, "A @ B")
    if problem.c:
        yield from unusable_factor("beta", problem.beta, "C")


TYPE_RULES: tuple[Rule[WgmmaKernel], ...] = (
    operand_dtypes,
    accumulator_dtype,
    output_dtype,
    operand_major,
    shape_alignment,
    single_tile_shapes,
)
OPERATION_RULES: tuple[Rule[WgmmaKernel], ...] = (epilogue_ops, epilogue_factors)
