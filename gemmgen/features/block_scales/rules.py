"""Rules of kernels whose threads multiply the sums of each block of K by the scales of A and of B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.features.block_scales.traits import UNSCALED
from gemmgen.hardware import SCALE_FORMATS, ScaleFormat
from gemmgen.plan.fix import Fix, at_least, at_most, either, hint, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.stage import LEAST_ROW_BYTES, least_elements
from gemmgen.plan.wgmma.extent_rules import consumer_rows, tile_power_of_two
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.warp_rules import CONSUMERS
from gemmgen.problem import BlockScale, Groups, Operand
from gemmgen.problem.matmul import TMA_PLACE_BITS

STEP_BLOCKS = (1, 2, 4)
"""Blocks of K that a step can have."""
MOST_SLABS = 2
"""Slabs of 64 rows whose sums a warpgroup holds: with more, the stage is read for too long."""
GROUPED_K = 128
"""Elements of K that share a scale in groups."""


@rule("scale-format", subject="problem")
def scale_format(plan: WgmmaKernel) -> Iterator[Finding]:
    """Both operands have scales or neither, each of a format for its elements and operand, and fp32 sums."""
    operands = (("a", plan.problem.a), ("b", plan.problem.b))
    accumulator = plan.problem.accumulator
    if plan.problem.scales_sums and accumulator.bits == 16:
        found = f"sums in {accumulator.name} with scales of blocks"
        yield Finding("accumulator", found, "threads add up the scaled sums in fp32", use("fp32"))
    for (name, operand), (other_name, other) in zip(operands, reversed(operands), strict=True):
        if (scale := operand.scale) and not other.decoded:  # beside decoded weights A has no scales
            yield from _of_format(name, operand, scale)
            if operand.applied != "sums":
                continue
            if other.scale is None:
                pairs = [
                    each.name for each in SCALE_FORMATS.values() if _completes(each, scale.format, other_name)
                ]
                yield Finding(
                    f"operands.{name}.scale",
                    f"scales of {scale.format.name} for {name.upper()}, and none for {other_name.upper()}",
                    "both operands need scales, or neither",
                    leave_out() | hint(f"an operands.{other_name}.scale of {either(pairs)}"),
                )
            elif name == "b" and (vector := other.scale.format.vector) != scale.format.vector:
                yield Finding(
                    "operands.b.scale.format",
                    f"{scale.format.name} for B, and {other.scale.format.name} for A",
                    f"threads scale the sums of a block of K by both, and a scale of A is for {vector} of K",
                    use(*(each.name for each in SCALE_FORMATS.values() if _pairs(each, other.scale.format))),
                )
    problem = plan.problem
    if problem.scales_sums and problem.groups and problem.a.scale and problem.b.scale:
        yield from _of_groups(problem.groups, problem.a.scale, problem.b.scale)


def _of_groups(groups: Groups, a: BlockScale, b: BlockScale) -> Iterator[Finding]:
    """Yield the findings of formats in groups: each kind of groups has scales of its own."""
    rows, of = (1, "K") if groups.divides_k else (128, "rows")
    if b.format.rows != rows:
        wanted = _formats(rows)
        limit = f"groups of {of} need scales of B as {either(wanted)}"
        found = f"{b.format.name} for groups of {of} with block scales"
        yield Finding("operands.b.scale.format", found, limit, use(*wanted))
    if a.vector != GROUPED_K:
        of_a, of_b = (_formats(each, scale.dtype.name) for each, scale in ((1, a), (rows, b)))
        limit = f"groups need scales for blocks of {GROUPED_K} of K"
        found = f"{a.format.name} for groups of {of} with block scales"
        fix = use(*of_a) & use(*of_b, field="operands.b.scale.format")
        yield Finding("operands.a.scale.format", found, limit, fix)


def _pairs(b: ScaleFormat, a: ScaleFormat) -> bool:
    """Return True if a format of B has scales for as much of K as a format of A, of the same type."""
    return (b.applied, b.vector, b.dtype) == (a.applied, a.vector, a.dtype)


def _completes(each: ScaleFormat, stated: ScaleFormat, operand: str) -> bool:
    """Return True if a format is for the other operand of one that has the stated format, of its type."""
    alike = (each.applied, each.vector, each.dtype) == (stated.applied, stated.vector, stated.dtype)
    return alike and operand in each.operands and set(stated.elements) <= set(each.elements)


def _of_format(name: str, operand: Operand, scale: BlockScale) -> Iterator[Finding]:
    """Yield the findings of a format: its elements, the operands that can have it, and its scales."""
    known, field = scale.format, f"operands.{name}.scale"
    if operand.dtype.name not in known.elements:
        yield Finding(
            f"operands.{name}.dtype",
            f"{known.name} for {operand.dtype.name}",
            f"the elements of {known.name} are {either(known.elements)}",
            use(*known.elements) | UNSCALED,
        )
    if name not in known.operands:
        yield Finding(
            f"{field}.format",
            f"{known.name} for {name.upper()}",
            f"a scale for {known.rows} rows is for weights, which are B",
            use(*_formats(1, known.dtype)),
        )
    stated = (("vector", scale.vector, known.vector), ("dtype", scale.dtype.name, known.dtype))
    for part, found, wanted in stated:
        if found != wanted:
            yield Finding(
                f"{field}.{part}",
                f"{part} {found} for {known.name}",
                f"{known.name} has a scale of {known.dtype} for {known.vector} of K",
                use(wanted) | leave_out(),
            )


def _formats(rows: int, *dtypes: str) -> tuple[str, ...]:
    """Return the formats with a scale for 128 of K, by the rows of a block and the types of scales."""
    sums = (each for each in SCALE_FORMATS.values() if "sums" in each.applied and each.vector == GROUPED_K)
    known = (each for each in sums if each.rows == rows)
    return tuple(each.name for each in known if not dtypes or each.dtype in dtypes)


@rule("block-scales", after=[*CONSUMERS, tile_power_of_two, consumer_rows, scale_format])
def block_scales(plan: WgmmaKernel) -> Iterator[Finding]:
    """A K step is a block of K, whose sums one thread scales and promotes, in kernels that have that."""
    if plan.problem.scales_sums:
        for is_broken, field, found, limit, fix in (*_of_steps(plan), *_of_tiles(plan), *_of_work(plan)):
            if is_broken:
                yield Finding(field, f"{found} with block scales", limit, fix)


Row = tuple[bool, str, str, str, Fix]
"""True if there is such a finding; its field, the fault, the limit, and the fix."""


def _of_steps(plan: WgmmaKernel) -> Iterator[Row]:
    """Yield the rows of the K step, of its blocks, and of its sums."""
    block, blocks, in_flight = plan.problem.scaled_k, plan.step_blocks, plan.outstanding_mmas
    assert block is not None
    whole = blocks in STEP_BLOCKS and plan.cta_tile_k == blocks * block
    step, flight = f"{plan.cta_tile_k:,}", f"{in_flight} outstanding MMA"
    limit = f"a K step is {either(STEP_BLOCKS)} blocks of {block}, each with scales of its own"
    yield not whole, "tile.k", step, limit, use(*(each * block for each in STEP_BLOCKS))
    limit = f"the sums of a block of {block} are multiplied by its scales"
    yield plan.promote_k != block, "mma.promote_k", f"{plan.promote_k:,}", limit, use(block)
    side_by_side = plan.has_tile_scales and plan.row_slabs == 1
    limit = "a step of several blocks needs 64 rows for each warpgroup"
    yield whole and blocks > 1 and plan.row_slabs > 1, "tile.k", step, limit, use(block)
    limit = f"the MMAs of a block read {block} bytes of a row, and no swizzle spans two blocks"
    for name, swizzle in (("a", plan.a_swizzle_bytes), ("b", plan.b_swizzle_bytes)):
        wide = whole and blocks > 1 and swizzle > block
        yield wide, f"operands.{name}.swizzle", f"a swizzle of {swizzle} bytes", limit, at_most(block)
    limit = "an MMA in flight needs one scale of B for each tile, and 64 rows for each warpgroup"
    field = "buffering.outstanding_mmas"
    yield bool(in_flight) and not side_by_side, field, flight, limit, use(0)
    several = bool(in_flight) and side_by_side and whole and blocks > 1
    limit = "the blocks of a K step are multiplied side by side, and none is in flight beside them"
    yield several, field, f"{flight} and {blocks} blocks", limit, use(0) | use(block, field="tile.k")


def _of_tiles(plan: WgmmaKernel) -> Iterator[Row]:
    """Yield the rows of tiles, of the cluster, and of the place of A."""
    b = plan.problem.b.scale
    columns, slabs = plan.loaded_n if plan.problem.interleaved else plan.program_tile_n, plan.row_slabs
    assert b is not None
    limit = f"all columns of an accumulator have the same scale of B, one for {b.format.rows}"
    one_scale = b.format.rows % columns == 0 or not plan.has_tile_scales
    blocks = plan.problem.b_blocks if plan.problem.in_blocks else 1
    found = f"{plan.cta_tile_n} columns" + f" ({columns} of each accumulator)" * (blocks > 1)
    yield (
        not (plan.composed or one_scale),
        "cluster.n" if plan.cluster_n > 1 else "tile.n",
        f"{plan.cluster_n} CTAs of {plan.cta_tile_n} columns" if plan.cluster_n > 1 else found,
        limit,
        use(1) if plan.cluster_n > 1 else at_most(blocks * b.format.rows),
    )
    limit = f"a consumer's warpgroup scales at most {MOST_SLABS} slabs of 64 rows, one after the other"
    most = plan.cta_tile_m * MOST_SLABS // slabs
    yield slabs > MOST_SLABS, "tile.m", f"{plan.cta_tile_m:,} rows", limit, at_most(most)
    limit = "scales of single columns, and warpgroups of more than 64 rows, need clusters of one CTA"
    alone = slabs > 1 or not plan.has_tile_scales
    yield alone and plan.cluster_m > 1, "cluster.m", f"{plan.cluster_m} CTAs along M", limit, use(1)
    yield alone and plan.cluster_n > 1, "cluster.n", f"{plan.cluster_n} CTAs along N", limit, use(1)
    assert plan.problem.a.scale is not None
    rows, dtype = plan.cta_consumer_tile_m, plan.problem.a.scale.dtype
    found = f"{plan.cluster_m} CTAs along M with {rows} rows of a consumer in each"
    least = least_elements(dtype)
    limit = f"TMA loads at least {LEAST_ROW_BYTES} bytes of scales for each CTA, {least} of {dtype.name}"
    yield plan.cluster_m > 1 and rows < least, "cluster.m", found, limit, use(1)
    for field, rows, scale in _places(plan):
        unit = scale.unit
        place = f"multiples of {TMA_PLACE_BITS // 8} bytes"
        limit = (
            f"TMA loads the scales of a block of K from {place} on, which are {unit} of {scale.dtype.name}"
        )
        found = f"{rows} {'rows' if field == 'tile.m' else 'columns'}"
        fix = at_least(plan.cta_tile_m // rows * unit if field == "tile.m" else unit)
        yield rows % unit > 0, field, found, limit, fix
    registers, across = plan.a_source == "registers", plan.problem.a.major == "mn"
    limit = "kernels read the A of scaled sums from shared memory, where 8-bit elements are K-contiguous"
    yield registers and across, "operands.a.major", "an M-contiguous A", limit, use("k") | UNSCALED
    limit = "kernels read the A of scaled sums from shared memory"
    yield registers and not across, "operands.a.source", "A in registers", limit, use("shared") | UNSCALED


def _places(plan: WgmmaKernel) -> Iterator[tuple[str, int, BlockScale]]:
    """Yield a field, the rows of A or columns of B from one load of scales to the next, and the scales."""
    a, b = plan.problem.a.scale, plan.problem.b.scale
    # All consumers of a tile of `m_offsets` skip as many scales as its first row is beyond a multiple of 16
    # bytes. So consumers that share the rows begin at such multiples from each other.
    if a is not None and not (plan.access.scales_from_any_row and plan.row_shares == 1):
        yield "tile.m", plan.cta_tile_m // plan.row_shares, a
    if b is not None and not plan.has_tile_scales:
        yield "tile.n", plan.cta_tile_n, b


def _of_work(plan: WgmmaKernel) -> Iterator[Row]:
    """Yield the rows of the schedule, and of matmuls of other kinds."""
    yield from _of_blocks_of_columns(plan)
    early = plan.read_early
    limit = "TMA loads the scales beside the tiles, and a call may copy scales right ahead of the kernel"
    others = use("nothing") if early == "b" or not plan.has_tile_scales else use("b", "nothing")
    loaded = early is not None and f"{early}_scale" in plan.stage.tensors
    yield loaded, "dependent_launch.early", plan.early_launch, limit, others | UNSCALED


def _of_blocks_of_columns(plan: WgmmaKernel) -> Iterator[Row]:
    """Yield the rows of gates, whose B may have blocks of columns with scales of their own."""
    problem, blocks = plan.problem, plan.step_blocks
    limit = "the two blocks of columns of B need steps of one block of K, and no MMA in flight"
    faults = (
        (
            plan.scales_in_flight,
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} MMA in flight",
            use(0),
        ),
        (blocks > 1, "tile.k", f"a step of {plan.cta_tile_k} of K", use(plan.cta_tile_k // blocks)),
    )
    for is_there, field, found, fix in faults:
        yield problem.in_blocks and is_there, field, f"{found} of a gate", limit, fix | UNSCALED
    limit = "scales of groups of rows need steps of one block of K"
    yield (
        plan.access.scales_groups_of_rows and blocks > 1,
        "tile.k",
        f"a step of {plan.cta_tile_k} of K for groups",
        limit,
        use(plan.cta_tile_k // blocks),
    )


RULES: Final = {"wgmma": (scale_format, block_scales)}
"""The rules by the instruction of a family, in the order of reports."""
