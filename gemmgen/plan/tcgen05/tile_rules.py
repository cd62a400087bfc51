"""Rules of element types and scales, and of tiles: the limits of instructions and of tensor memory."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import MMA_KINDS, PADDED_K, SCALE_COLUMNS, SCALE_FORMATS, SCALE_ROWS, TCGEN05
from gemmgen.hardware.elements import FP8, outputs_of
from gemmgen.hardware.gpus import is_power_of_two
from gemmgen.plan.fix import at_least, at_most, either, hint, leave_out, use
from gemmgen.plan.rule import Consulted, Finding, Rule, counted, rule
from gemmgen.plan.shared_rules import (
    Rows,
    cluster_shapes,
    epilogue_expression,
    epilogue_factors,
    epilogue_ops,
    group_width,
    minor_dimension,
    narrowest_subtile,
    odd_extents,
    oversized_cluster,
    unaligned_shapes,
    unequal_types,
)
from gemmgen.plan.tcgen05.bounds import least_columns, least_rows, least_step
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel
from gemmgen.problem import BlockScale, Operand


def named(plan: Tcgen05Kernel) -> tuple[tuple[str, Operand], ...]:
    """Return the operands with their names in a spec."""
    return ("a", plan.problem.a), ("b", plan.problem.b)


@rule("operand-dtypes", subject="problem")
def operand_dtypes(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """Without scales tcgen05 multiplies equal types, and the two 8-bit floats in any mix."""
    if plan.problem.block_scaled:
        return
    unscaled = [
        (name, operand.dtype) for name, operand in named(plan) if operand.multiplied.tcgen05_kind is None
    ]
    for name, dtype in unscaled:
        limit, fix = "integers are supported on Hopper only", use(*FP8)
        if not dtype.integer:
            limit = "4-bit elements need a scale for each block"
            fix |= hint("a scale")
        yield Finding(f"operands.{name}.dtype", f"{name.upper()} is {dtype.name} without scales", limit, fix)
    if not unscaled:
        yield from unequal_types(plan.problem, "tcgen05")


@rule("scale-format", subject="problem")
def scale_format(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """Both operands have scales, of their own formats, which one MMA multiplies: Triton accepts others."""
    scaled = [(name, operand, operand.scale) for name, operand in named(plan) if operand.scale]
    alone, unknown_pair = len(scaled) == 1, _unknown_pair(plan)
    foreign = False
    for name, operand, scale in scaled:
        if operand.dtype.name not in scale.format.elements:
            yield _foreign_elements(name, operand, scale)
            foreign = True
            continue
        if alone or unknown_pair is None:  # else the format is wrong, or its partner
            yield from _foreign_scales(name, operand, scale)
        if alone:
            yield _lone_scale(plan, name, scale)
    if unknown_pair is not None and not foreign:
        yield unknown_pair


def _lone_scale(plan: Tcgen05Kernel, name: str, scale: BlockScale) -> Finding:
    """Return a finding for an operand with scales beside one without."""
    other_name, other = next(beside for beside in named(plan) if beside[0] != name)
    operand = next(operand for beside, operand in named(plan) if beside == name)
    unscaled = leave_out()
    if operand.dtype.bits <= 4:
        unscaled &= use(*FP8, field=f"operands.{name}.dtype")
    return Finding(
        f"operands.{name}.scale",
        f"scales of {scale.format.name} for {name.upper()}, and none for {other.dtype.name} beside it",
        "the tensor cores scale both operands or neither",
        unscaled | hint(f"an operands.{other_name}.scale"),
    )


def _foreign_elements(name: str, operand: Operand, scale: BlockScale) -> Finding:
    """Return a finding for a format that is for other elements."""
    fitting = [
        other.name
        for other in SCALE_FORMATS.values()
        if operand.dtype.name in other.elements and "mma" in other.applied
    ]
    elements, field = either(scale.format.elements), f"operands.{name}.scale"
    other_type = leave_out() | use(*scale.format.elements, field=f"operands.{name}.dtype")
    return Finding(
        f"{field}.format" if fitting else field,
        f"{scale.format.name} for {operand.dtype.name}",
        f"the elements of {scale.format.name} are {elements}",
        use(*fitting) if fitting else other_type,
    )


def _foreign_scales(name: str, operand: Operand, scale: BlockScale) -> Iterator[Finding]:
    """Yield findings for scales that the format does not have."""
    scale_of = scale.format
    what, field = f"{operand.dtype.name} of {scale_of.name}", f"operands.{name}.scale"
    silent = "Triton compiles others in silence, to a kernel that reads the wrong scales"
    if scale.vector != scale_of.vector:
        yield Finding(
            f"{field}.vector",
            f"a scale for every {scale.vector:,} {what}",
            f"{scale_of.name} has one for {scale_of.vector}, and {silent}",
            use(scale_of.vector) | leave_out(),
        )
    if scale.dtype.name != scale_of.dtype:
        yield Finding(
            f"{field}.dtype",
            f"scales of {scale.dtype.name} for {what}",
            f"those of {scale_of.name} are {scale_of.dtype}, and {silent}",
            use(scale_of.dtype) | leave_out(),
        )


def _unknown_pair(plan: Tcgen05Kernel) -> Finding | None:
    """Return a finding for two formats, each legal by itself, that no instruction multiplies."""
    a, b = plan.problem.a.scale, plan.problem.b.scale
    if a is None or b is None or (a.format.name, b.format.name) in MMA_KINDS:
        return None
    for name, operand, own, other in (("b", plan.problem.b, b, a), ("a", plan.problem.a, a, b)):
        fitting = [
            found
            for found, known in SCALE_FORMATS.items()
            if operand.dtype.name in known.elements
            and ((other.format.name, found) if name == "b" else (found, other.format.name)) in MMA_KINDS
        ]
        if fitting:
            return Finding(
                f"operands.{name}.scale.format",
                f"{own.format.name} beside {other.format.name}",
                "no instruction multiplies the two",
                use(*fitting),
            )
    return None


@rule("operand-packing", subject="problem")
def operand_packing(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """4-bit elements are padded to bytes beside 8-bit elements only: Triton accepts them packed there."""
    for (name, operand), (_, other) in zip(named(plan), reversed(named(plan)), strict=True):
        field, four, beside = f"operands.{name}.packing", operand.dtype.bits == 4, other.dtype.name
        if operand.padded and other.dtype.bits == 4:
            yield Finding(
                field,
                f"padded e2m1 beside {beside}",
                "beside 4-bit elements, kernels read two elements a byte",
                use("packed") | leave_out(),
            )
        elif four and not operand.padded and other.dtype.bits == 8:
            yield Finding(
                field,
                f"packed e2m1 beside {beside}",
                "beside 8-bit elements the tensor cores read padded ones, and Triton compiles packed ones in "
                "silence, to the same instruction",
                use("padded") | leave_out(),
            )


@rule("accumulator-dtype", subject="problem")
def accumulator_dtype(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """The accumulator is fp32."""
    accumulator = plan.problem.accumulator.name
    integers = any(operand.multiplied.integer for _, operand in named(plan))
    if accumulator != "fp32" and not integers:
        yield Finding(
            "accumulator",
            f"products of {plan.problem.a.multiplied.name} added up in {accumulator}",
            "Blackwell kernels have fp32 sums, one in each column of tensor memory",
            use("fp32"),
        )


@rule("output-dtype", subject="problem", after=[accumulator_dtype])
def output_dtype(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """D has a type to which fp32 sums can be converted."""
    d = plan.problem.d.name
    outputs = outputs_of("fp32")
    if d not in outputs:
        yield Finding(
            "operands.d.dtype",
            f"D is {d} and its products are added up in fp32",
            f"an fp32 accumulator becomes {either(outputs)}",
            use(*outputs),
        )


@rule("operand-major", subject="problem")
def operand_major(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """The tensor cores read operands of 16 and 8 bits in either major, and others K-major only."""
    reasons = {
        32: "Triton's tcgen05.mma does not support transposed float32 operands in shared memory",
        4: "a byte holds two elements along K, and the tensor cores read no others",
    }
    for name, operand in named(plan):
        if operand.major == "mn" and operand.dtype.bits in reasons:
            stored = {"a": "A is M-contiguous", "b": "B is N-contiguous"}[name]
            yield Finding(
                f"operands.{name}.major",
                f"{stored}, and its elements have {operand.dtype.bits} bits",
                reasons[operand.dtype.bits],
                use("k", note="B stored as [N, K]" if name == "b" else ""),
            )


@rule("shape-alignment", subject="problem")
def shape_alignment(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """The rows of a contiguous A, B and C of a listed problem have lengths that TMA can stride."""
    axes, problem = {"k": (2, 2), "mn": (0, 1)}, plan.problem
    matrices = [
        _padded_rows(name.upper(), 2)
        if operand.padded and operand.dtype.bits == 4
        else _rows(plan, name.upper(), axes[operand.major][i], operand.dtype.bits)
        for i, (name, operand) in enumerate(named(plan))
    ]
    if problem.c:
        matrices.append(_rows(plan, "C", 1, problem.c.bits))
    yield from unaligned_shapes(plan.request, matrices, copyable=not problem.block_scaled)


def _padded_rows(matrix: str, axis: int) -> Rows:
    """Return what rows an operand has whose elements TMA pads."""
    limit = f"TMA pads 4-bit elements in boxes of {PADDED_K}, and takes no others"
    return Rows(matrix, axis, PADDED_K, lambda extent: f"{extent:,} elements", limit)


def _rows(plan: Tcgen05Kernel, matrix: str, axis: int, bits: int) -> Rows:
    """Return the requirements on rows of a matrix whose elements have `bits` bits."""
    alignment = plan.architecture.tma_alignment_bytes
    limit = f"TMA strides in multiples of {alignment}"
    return Rows(matrix, axis, alignment * 8 // bits, lambda extent: _bytes(extent * bits), limit)


def _bytes(bits: int) -> str:
    return f"{bits // 8:,} bytes" if bits % 8 == 0 else f"{bits / 8:,.1f} bytes"


TYPES = (operand_dtypes, scale_format, operand_packing)
"""Where these are kept, there is an instruction for the operands: else its depth has no true size."""

PROBLEM_RULES: tuple[Rule[Tcgen05Kernel], ...] = (
    operand_dtypes,
    scale_format,
    operand_packing,
    accumulator_dtype,
    output_dtype,
    operand_major,
    shape_alignment,
    epilogue_ops,
    epilogue_factors,
    epilogue_expression,
)


# --- CTAs


MAX_CLUSTER = 8
"""CTAs of a program. [guide] Of more a launch would have to allow them, and a GPU need not hold them."""
PAIR = 2
"""[ptx] CTAs along M that multiply together, with ``cta_group::2``."""
CLUSTERS = frozenset((m, n) for m, n in cluster_shapes(MAX_CLUSTER) if m <= PAIR or n == 1)
"""CTAs of a program along M and N.

Where pairs lie both ways, as in 4 x 2, two of them share neither A nor B. One could be a lap ahead of the
other, and the barrier of a CTA that shares tiles with both takes its second arrival for the other's first:
the simulator finds a load that overwrites what has not been read.
"""

PAIRS_BOTH_WAYS = cluster_shapes(MAX_CLUSTER) - CLUSTERS


@rule("cluster-shape")
def cluster_shape(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A program is a power of two of CTAs, up to eight, whose pairs, along M, all share A or all share B."""
    sides = (plan.cluster_m, plan.cluster_n)
    yield from oversized_cluster(plan, CLUSTERS, why="a GPU need not hold larger ones")
    if sides in PAIRS_BOTH_WAYS:
        yield Finding(
            "cluster.m",
            f"pairs of CTAs both ways in {plan.cluster_m} x {plan.cluster_n}",
            "two that share no tile could be a lap apart, and the arrivals for a stage count them alike",
            at_most(PAIR),
        )


@rule("occupancy")
def occupancy(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """One CTA runs on an SM: it may use all of tensor memory, and its threads start with all registers."""
    if plan.occupancy > 1:
        yield Finding(
            "occupancy",
            f"{counted(plan.occupancy, 'CTA')} on each SM",
            f"the {plan.threads} threads of one start with all of its registers",
            use(1),
        )


# --- the tile


@rule("tile-power-of-two", consults=TYPES)
def tile_power_of_two(plan: Tcgen05Kernel, consulted: Consulted) -> Iterator[Finding]:
    """Every block extent in Gluon is a power of two."""
    widest = plan.cta_tile_n if is_power_of_two(plan.cta_tile_n) else TCGEN05.n_max
    step = 1 if consulted.broken(*TYPES) else least_step(plan)
    yield from odd_extents(
        (
            ("tile.m", plan.cta_tile_m, least_rows(plan), TCGEN05.m[-1]),
            ("tile.n", plan.cta_tile_n, least_columns(plan), TCGEN05.n_max),
            ("tile.k", plan.cta_tile_k, step, None),
            ("epilogue.subtile_n", plan.subtile_n, narrowest_subtile(plan), widest),
        )
    )


@rule("tile-rows", after=[tile_power_of_two.at("tile.m")])
def tile_rows(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A CTA has as many rows as an instruction, and tensor memory has a lane for each."""
    rows, (fewest, most) = plan.cta_tile_m, TCGEN05.m
    if least_rows(plan) <= rows <= most:
        return
    if rows not in TCGEN05.m:
        limit = f"tcgen05.mma takes {fewest} or {most} in each CTA"
        bound = at_most(most) if rows > most else at_least(least_rows(plan))
        fix = use(most) if least_rows(plan) == most else bound
    elif plan.scale_rows > 1:
        limit = f"tcgen05_mma_scaled does not support blockM={rows}: with scales a CTA has {SCALE_ROWS}"
        fix = use(SCALE_ROWS)
    else:
        limit = f"of a pair of CTAs each has {most}: with {rows} the sums of both would share its lanes"
        fix = use(most)
    yield Finding("tile.m", f"a tile of {rows:,} rows", limit, fix)


@rule("tile-columns", after=[tile_power_of_two.at("tile.n")])
def tile_columns(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A CTA has as many columns as one instruction, and with scales whole blocks of columns."""
    columns, fewest = plan.cta_tile_n, least_columns(plan)
    if fewest <= columns <= TCGEN05.n_max:
        return
    fix = at_least(fewest)
    if columns > TCGEN05.n_max:
        limit, fix = f"an instruction has at most {TCGEN05.n_max}", at_most(TCGEN05.n_max)
    elif plan.scale_rows > 1:
        limit = f"the scales of {SCALE_ROWS} lie together"
    else:
        whose = "a pair of CTAs" if plan.paired else f"{plan.cta_tile_m} rows"
        limit = (
            f"an instruction of {whose} has at least {fewest}, and Triton compiles narrower ones in silence"
        )
    yield Finding("tile.n", f"a tile of {columns:,} columns", limit, fix)


@rule("tile-step", after=[tile_power_of_two.at("tile.k"), *TYPES])
def tile_step(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A K step is an instruction deep and has whole blocks of scales; padded boxes need no more."""
    step, fewest = plan.cta_tile_k, least_step(plan)
    if step >= fewest:
        return
    vectors = [operand.scale.vector for operand in (plan.problem.a, plan.problem.b) if operand.scale]
    limit = f"an instruction of {plan.mma_name} takes k = {plan.mma_k}"
    if fewest > plan.mma_k:
        limit = f"{SCALE_COLUMNS} scales of a row lie together, each of {max(vectors)} elements"
    yield Finding("tile.k", f"a K step of {step} elements", limit, at_least(fewest))


TILE = (
    tile_power_of_two.at("tile.m", "tile.n", "tile.k"),
    *TYPES,
    tile_rows,
    tile_columns,
    tile_step,
)
"""Where these are kept, an instruction takes the tile: else no sum over it is true."""

TILE_RULES: tuple[Rule[Tcgen05Kernel], ...] = (
    cluster_shape,
    occupancy,
    group_width,
    minor_dimension,
    tile_power_of_two,
    tile_rows,
    tile_columns,
    tile_step,
)
