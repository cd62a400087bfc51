"""Rules of what a kernel computes: types, majors, shapes."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.dtype import FP8, DType
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.rules.problem import Rows, unaligned_shapes
from gemmgen.plan.rules.rule import either, one_of, rule_id

ACCUMULATORS = {
    "bf16": ("fp32",),
    "fp16": ("fp32", "fp16"),
    "tf32": ("fp32",),
    "e4m3": ("fp32", "fp16"),
    "e5m2": ("fp32", "fp16"),
    "int8": ("int32",),
}
"""[ptx] What wgmma adds up the products of a type in."""
OUTPUTS = {
    "fp32": ("bf16", "fp16", "fp32", "e4m3", "e5m2"),
    "fp16": ("bf16", "fp16", "fp32", "e4m3", "e5m2"),
    "int32": ("int32", "bf16", "fp16", "fp32"),
}
"""What an accumulator is converted to. 8-bit floats hold no sum of integers worth keeping."""


def operand_dtypes(plan: WgmmaPlan) -> Iterator[Violation]:
    """Wgmma multiplies equal types, and the two 8-bit floats in any mix."""
    a, b = plan.problem.a.dtype.name, plan.problem.b.dtype.name
    if a == b or (a in FP8 and b in FP8):
        return
    yield Violation(
        rule_id(operand_dtypes),
        "operands.b.dtype",
        f"B is {b} and A is {a}",
        "wgmma multiplies operands of one type, and of different ones only e4m3 and e5m2",
        one_of(FP8 if a in FP8 else (a,)),
    )


def accumulator_dtype(plan: WgmmaPlan) -> Iterator[Violation]:
    """The accumulator is one that the instruction has."""
    a, accumulator = plan.problem.a.dtype.name, plan.problem.accumulator.name
    if accumulator not in ACCUMULATORS[a]:
        yield Violation(
            rule_id(accumulator_dtype),
            "accumulator",
            f"products of {a} added up in {accumulator}",
            f"wgmma adds them up in {either(ACCUMULATORS[a])}",
            one_of(ACCUMULATORS[a]),
        )


def output_dtype(plan: WgmmaPlan) -> Iterator[Violation]:
    """D can hold what becomes of the accumulator."""
    problem = plan.problem
    accumulator, d = problem.accumulator.name, problem.d.name
    if d not in OUTPUTS[accumulator]:
        yield Violation(
            rule_id(output_dtype),
            "operands.d.dtype",
            f"D is {d} and its products are added up in {accumulator}",
            f"an {accumulator} accumulator becomes {either(OUTPUTS[accumulator])}",
            one_of(OUTPUTS[accumulator]),
        )
    elif d == "int32" and problem.transforms:
        yield Violation(
            rule_id(output_dtype),
            "operands.d.dtype",
            "D is int32 behind an epilogue that computes",
            "it does so in fp32, whose 24 bits of mantissa do not hold every int32",
            one_of([name for name in OUTPUTS[accumulator] if name != "int32"]),
        )


def operand_major(plan: WgmmaPlan) -> Iterator[Violation]:
    """Shared memory holds operands of 16 bits either way, and others along K only."""
    problem = plan.problem
    if problem.a.major == "mn" and problem.a.dtype.bits != 16 and plan.a_source == "shared":
        yield Violation(
            rule_id(operand_major),
            "operands.a.major",
            f"A is M-contiguous, of {problem.a.dtype.bits} bits",
            "wgmma reads only 16-bit operands across their rows in shared memory",
            "use k, or registers for operands.a.source",
        )
    if problem.b.major == "mn" and problem.b.dtype.bits != 16:
        yield Violation(
            rule_id(operand_major),
            "operands.b.major",
            f"B is N-contiguous, of {problem.b.dtype.bits} bits",
            "wgmma reads only 16-bit operands across their rows in shared memory, and B from nowhere else",
            "use k (B stored as [N, K])",
        )


def shape_alignment(plan: WgmmaPlan) -> Iterator[Violation]:
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
    yield from unaligned_shapes(problem, matrices)


def single_tile_shapes(plan: WgmmaPlan) -> Iterator[Violation]:
    """A problem that is listed for a kernel of a single tile is no larger than the tile."""
    if plan.schedule_kind != "single_tile":
        return
    problem = plan.problem
    tile = (plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k)
    for section, shapes in (("check", problem.check_shapes), ("bench", problem.bench_shapes)):
        for i, shape in enumerate(shapes):
            for axis, (extent, limit) in enumerate(zip(shape, tile, strict=True)):
                if extent > limit:
                    yield Violation(
                        rule_id(single_tile_shapes),
                        f"{section}.shapes.{i}.{axis}",
                        f"{'MNK'[axis]} = {extent:,}",
                        f"a kernel of a single tile computes at most {limit}",
                        f"use at most {limit}",
                    )
