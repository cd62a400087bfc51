"""Rules of what a kernel computes: types, scales, majors, shapes."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.dtype import FP8
from gemmgen.plan.problem import BlockScale, Operand
from gemmgen.plan.rules.problem import Rows, unaligned_shapes
from gemmgen.plan.rules.rule import breaks, either, one_of, rule_id
from gemmgen.target import MMA_KINDS, PADDED_K, SCALE_FORMATS

OUTPUTS = ("bf16", "fp16", "fp32", "e4m3", "e5m2")
"""What sums of fp32 are converted to."""


def named(plan: Tcgen05Plan) -> tuple[tuple[str, Operand], ...]:
    """Return the operands with their names in a spec."""
    return ("a", plan.problem.a), ("b", plan.problem.b)


def operand_dtypes(plan: Tcgen05Plan) -> Iterator[Violation]:
    """Without scales tcgen05 multiplies equal types, and the two 8-bit floats in any mix."""
    if plan.block_scaled:
        return
    a, b = plan.problem.a.dtype.name, plan.problem.b.dtype.name
    unscaled = {
        "int8": ("this version generates no integer kernels for tcgen05", one_of(FP8)),
        "e2m1": (
            "this version multiplies 4-bit elements with a scale for each block",
            f"{one_of(FP8)}, or a scale",
        ),
    }
    for name, operand in named(plan):
        if operand.dtype.name in unscaled:
            limit, fix = unscaled[operand.dtype.name]
            found = f"{name.upper()} is {operand.dtype.name} without scales"
            yield Violation(rule_id(operand_dtypes), f"operands.{name}.dtype", found, limit, fix)
    if a == b or (a in FP8 and b in FP8) or {a, b} & set(unscaled):
        return
    yield Violation(
        rule_id(operand_dtypes),
        "operands.b.dtype",
        f"B is {b} and A is {a}",
        "tcgen05 multiplies operands of one type, and of different ones only e4m3 and e5m2",
        one_of(FP8 if a in FP8 else (a,)),
    )


def scale_format(plan: Tcgen05Plan) -> Iterator[Violation]:
    """Both operands have scales, of their own formats, which one MMA multiplies: Triton accepts others."""
    scaled = [(name, operand, operand.scale) for name, operand in named(plan) if operand.scale]
    alone = len(scaled) == 1
    for name, operand, scale in scaled:
        if operand.dtype.name not in scale.format.elements:
            yield _foreign_elements(name, operand, scale)
            continue
        if alone or not any(True for _ in _unknown_pair(plan)):  # else the format is wrong, or its partner
            yield from _foreign_scales(name, operand, scale)
        if alone:
            yield _lone_scale(plan, name, scale)
    if alone or any(operand.dtype.name not in scale.format.elements for _, operand, scale in scaled):
        return
    yield from _unknown_pair(plan)


def _lone_scale(plan: Tcgen05Plan, name: str, scale: BlockScale) -> Violation:
    """The violation of an operand with scales beside one without."""
    other_name, other = next(beside for beside in named(plan) if beside[0] != name)
    operand = next(operand for beside, operand in named(plan) if beside == name)
    unscaled = "" if operand.dtype.bits > 4 else f" and use {either(FP8)} for operands.{name}.dtype"
    return Violation(
        rule_id(scale_format),
        f"operands.{name}.scale",
        f"scales of {scale.format.name} for {name.upper()}, and none for {other.dtype.name} beside it",
        "the tensor cores scale both operands or neither",
        f"leave it out{unscaled}, or use an operands.{other_name}.scale",
    )


def _foreign_elements(name: str, operand: Operand, scale: BlockScale) -> Violation:
    """The violation of a format for other elements."""
    fitting = [other.name for other in SCALE_FORMATS.values() if operand.dtype.name in other.elements]
    elements, field = either(scale.format.elements), f"operands.{name}.scale"
    other_type = f"leave it out, or use {elements} for operands.{name}.dtype"
    return Violation(
        rule_id(scale_format),
        f"{field}.format" if fitting else field,
        f"{scale.format.name} for {operand.dtype.name}",
        f"the elements of {scale.format.name} are {elements}",
        one_of(fitting) if fitting else other_type,
    )


def _foreign_scales(name: str, operand: Operand, scale: BlockScale) -> Iterator[Violation]:
    """Yield what a format's scales are not."""
    scale_of = scale.format
    what, field = f"{operand.dtype.name} of {scale_of.name}", f"operands.{name}.scale"
    silent = "Triton compiles others in silence, to a kernel that reads the wrong scales"
    if scale.vector != scale_of.vector:
        yield Violation(
            rule_id(scale_format),
            f"{field}.vector",
            f"a scale for every {scale.vector:,} {what}",
            f"{scale_of.name} has one for {scale_of.vector}, and {silent}",
            f"use {scale_of.vector}, or leave it out",
        )
    if scale.dtype.name != scale_of.dtype:
        yield Violation(
            rule_id(scale_format),
            f"{field}.dtype",
            f"scales of {scale.dtype.name} for {what}",
            f"those of {scale_of.name} are {scale_of.dtype}, and {silent}",
            f"use {scale_of.dtype}, or leave it out",
        )


def _unknown_pair(plan: Tcgen05Plan) -> Iterator[Violation]:
    """Yield what is wrong with two formats that are legal each for itself."""
    a, b = plan.problem.a.scale, plan.problem.b.scale
    if a is None or b is None or (a.format.name, b.format.name) in MMA_KINDS:
        return
    for name, operand, own, other in (("b", plan.problem.b, b, a), ("a", plan.problem.a, a, b)):
        fitting = [
            found
            for found, known in SCALE_FORMATS.items()
            if operand.dtype.name in known.elements
            and ((other.format.name, found) if name == "b" else (found, other.format.name)) in MMA_KINDS
        ]
        if fitting:
            yield Violation(
                rule_id(scale_format),
                f"operands.{name}.scale.format",
                f"{own.format.name} beside {other.format.name}",
                "no instruction multiplies the two",
                one_of(fitting),
            )
            return


def operand_packing(plan: Tcgen05Plan) -> Iterator[Violation]:
    """4-bit elements are padded to bytes beside 8-bit ones, and only there: Triton accepts them packed."""
    for (name, operand), (_, other) in zip(named(plan), reversed(named(plan)), strict=True):
        field, four, beside = f"operands.{name}.packing", operand.dtype.bits == 4, other.dtype.name
        if operand.padded and other.dtype.bits == 4:
            yield Violation(
                rule_id(operand_packing),
                field,
                f"padded e2m1 beside {beside}",
                "where both operands have 4 bits this version's kernels read two elements a byte",
                "use packed, or leave it out",
            )
        elif four and not operand.padded and other.dtype.bits == 8:
            yield Violation(
                rule_id(operand_packing),
                field,
                f"packed e2m1 beside {beside}",
                "beside 8-bit elements the tensor cores read padded ones, and Triton compiles packed ones in "
                "silence, to the same instruction",
                "use padded, or leave it out",
            )


def accumulator_dtype(plan: Tcgen05Plan) -> Iterator[Violation]:
    """The accumulator is fp32."""
    accumulator = plan.problem.accumulator.name
    integers = any(operand.dtype.name == "int8" for _, operand in named(plan))
    if accumulator != "fp32" and not integers:
        yield Violation(
            rule_id(accumulator_dtype),
            "accumulator",
            f"products of {plan.problem.a.dtype.name} added up in {accumulator}",
            "this version's Blackwell kernels add them up in fp32, one sum in each column of tensor memory",
            "use fp32",
        )


def output_dtype(plan: Tcgen05Plan) -> Iterator[Violation]:
    """D can hold what becomes of the accumulator."""
    d = plan.problem.d.name
    if d not in OUTPUTS and not breaks(plan, accumulator_dtype):
        yield Violation(
            rule_id(output_dtype),
            "operands.d.dtype",
            f"D is {d} and its products are added up in fp32",
            f"an fp32 accumulator becomes {either(OUTPUTS)}",
            one_of(OUTPUTS),
        )


def operand_major(plan: Tcgen05Plan) -> Iterator[Violation]:
    """The tensor cores read operands of 16 and 8 bits either way, and others along K only."""
    reasons = {
        32: "Triton's tcgen05.mma does not support transposed float32 operands in shared memory",
        4: "a byte holds two elements along K, and the tensor cores read no others",
    }
    for name, operand in named(plan):
        if operand.major == "mn" and operand.dtype.bits in reasons:
            stored = {"a": "A is M-contiguous", "b": "B is N-contiguous"}[name]
            yield Violation(
                rule_id(operand_major),
                f"operands.{name}.major",
                f"{stored}, of {operand.dtype.bits} bits",
                reasons[operand.dtype.bits],
                "use k" + (" (B stored as [N, K])" if name == "b" else ""),
            )


def shape_alignment(plan: Tcgen05Plan) -> Iterator[Violation]:
    """The rows of a contiguous A and B of a listed problem are multiples of what TMA can stride."""
    axes = {"k": (2, 2), "mn": (0, 1)}
    yield from unaligned_shapes(
        plan.problem,
        [
            _rows(plan, name.upper(), axes[operand.major][i], operand)
            for i, (name, operand) in enumerate(named(plan))
        ],
    )


def _rows(plan: Tcgen05Plan, matrix: str, axis: int, operand: Operand) -> Rows:
    """Return what rows an operand has, of bytes or of elements that TMA pads."""
    if operand.padded and operand.dtype.bits == 4:
        limit = f"TMA pads 4-bit elements in boxes of {PADDED_K}, and takes no others"
        return Rows(matrix, axis, PADDED_K, lambda extent: f"{extent:,} elements", limit)
    alignment, bits = plan.architecture.tma_alignment_bytes, operand.dtype.bits
    limit = f"TMA strides in multiples of {alignment}"
    return Rows(matrix, axis, alignment * 8 // bits, lambda extent: _bytes(extent * bits), limit)


def _bytes(bits: int) -> str:
    return f"{bits // 8:,} bytes" if bits % 8 == 0 else f"{bits / 8:,.1f} bytes"
