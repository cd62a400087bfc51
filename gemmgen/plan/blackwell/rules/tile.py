"""Rules of the tile: what an instruction, a block of scales and tensor memory take."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.blackwell.bounds import least_columns, least_rows, least_step
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.blackwell.rules.problem import operand_dtypes, operand_packing, scale_format
from gemmgen.plan.extents import is_power_of_two
from gemmgen.plan.rules.rule import breaks, rule_id
from gemmgen.plan.rules.tile import odd_extents
from gemmgen.target import SCALE_COLUMNS, SCALE_ROWS, TCGEN05


def tile_power_of_two(plan: Tcgen05Plan) -> Iterator[Violation]:
    """Every block extent in Gluon is a power of two."""
    widest = plan.cta_tile_n if is_power_of_two(plan.cta_tile_n) else TCGEN05.n_max
    step = 1 if breaks_types(plan) else least_step(plan)
    yield from odd_extents(
        (
            ("tile.m", plan.cta_tile_m, least_rows(plan), TCGEN05.m[-1]),
            ("tile.n", plan.cta_tile_n, least_columns(plan), TCGEN05.n_max),
            ("tile.k", plan.cta_tile_k, step, None),
            ("epilogue.subtile_n", plan.subtile_n, narrowest_subtile(plan), widest),
        )
    )


def tile_rows(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A CTA's rows are those of an instruction, and tensor memory has a lane for each of them."""
    rows, (fewest, most) = plan.cta_tile_m, TCGEN05.m
    if not is_power_of_two(rows) or least_rows(plan) <= rows <= most:
        return
    if rows not in TCGEN05.m:
        limit = f"tcgen05.mma takes {fewest} or {most} in each CTA"
        bound = f"use at most {most}" if rows > most else f"use at least {least_rows(plan)}"
        fix = f"use {most}" if least_rows(plan) == most else bound
    elif plan.block_scaled:
        limit = f"tcgen05_mma_scaled does not support blockM={rows}: with scales a CTA has {SCALE_ROWS}"
        fix = f"use {SCALE_ROWS}"
    else:
        limit = f"of a pair of CTAs each has {most}: with {rows} the sums of both would share its lanes"
        fix = f"use {most}"
    yield Violation(rule_id(tile_rows), "tile.m", f"a tile of {rows:,} rows", limit, fix)


def tile_columns(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A CTA's columns are those of one instruction, and with scales whole blocks of them."""
    columns, fewest = plan.cta_tile_n, least_columns(plan)
    if not is_power_of_two(columns) or fewest <= columns <= TCGEN05.n_max:
        return
    fix = f"use at least {fewest}"
    if columns > TCGEN05.n_max:
        limit, fix = f"an instruction has at most {TCGEN05.n_max}", f"use at most {TCGEN05.n_max}"
    elif plan.block_scaled:
        limit = f"the scales of {SCALE_ROWS} lie together"
    else:
        whose = "a pair of CTAs" if plan.paired else f"{plan.cta_tile_m} rows"
        limit = (
            f"an instruction of {whose} has at least {fewest}, and Triton compiles narrower ones in silence"
        )
    yield Violation(rule_id(tile_columns), "tile.n", f"a tile of {columns:,} columns", limit, fix)


def tile_step(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A K step is an instruction deep and has whole blocks of scales; padded boxes need no more."""
    step = plan.cta_tile_k
    if not is_power_of_two(step) or breaks_types(plan) or step >= (fewest := least_step(plan)):
        return
    vectors = [operand.scale.vector for operand in (plan.problem.a, plan.problem.b) if operand.scale]
    limit = f"an instruction of {plan.mma_name} takes k = {plan.mma_k}"
    if fewest > plan.mma_k:
        limit = f"{SCALE_COLUMNS} scales of a row lie together, each of {max(vectors)} elements"
    yield Violation(
        rule_id(tile_step), "tile.k", f"a K step of {step} elements", limit, f"use at least {fewest}"
    )


def narrowest_subtile(plan: Tcgen05Plan) -> int:
    """Return the fewest columns of which TMA can move a row of D."""
    return plan.architecture.tma_alignment_bytes // plan.problem.d.bytes


def breaks_types(plan: Tcgen05Plan) -> bool:
    """Whether there is no instruction for the operands: then its depth and its scales have no true sizes."""
    return breaks(plan, operand_dtypes, scale_format, operand_packing)


def breaks_tile(plan: Tcgen05Plan) -> bool:
    """Whether the tile is none that an instruction takes: then no sum over it is true."""
    extents = (plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k)
    rules = (tile_rows, tile_columns, tile_step)
    return not all(map(is_power_of_two, extents)) or breaks_types(plan) or breaks(plan, *rules)
