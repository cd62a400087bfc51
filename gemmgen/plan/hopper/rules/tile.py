"""Rules of the tile: what instructions and consumers can share."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.dtype import FP8
from gemmgen.plan.extents import is_power_of_two, power_of_two_below
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.hopper.rules.epilogue import narrowest_subtile
from gemmgen.plan.hopper.rules.roles import consumer_count, warp_layout
from gemmgen.plan.rules.rule import breaks, nearest, rule_id
from gemmgen.plan.rules.tile import odd_extents
from gemmgen.target import WGMMA

MAX_TILE_M = 2_048
"""[gluon] TMA loads at most 256 rows at a time: at 4,096 rows, 16 loads a step, producers of 24 and 32
registers spill; at 2,048 none does.
"""


def least_rows(plan: WgmmaPlan) -> int:
    """Return the fewest rows of a tile of which every warp of every consumer has its own 16."""
    return plan.row_shares * plan.warps_m * WGMMA.rows_per_warp


def least_columns(plan: WgmmaPlan) -> int:
    """Return the fewest columns of a tile of which every warp has an instruction's."""
    return plan.warps_n * WGMMA.n_min


def tile_power_of_two(plan: WgmmaPlan) -> Iterator[Violation]:
    """Every block extent in Gluon is a power of two."""
    consumers = not breaks(plan, consumer_count, warp_layout)
    rows, columns = (least_rows(plan), least_columns(plan)) if consumers else (WGMMA.m, WGMMA.n_min)
    widest = plan.cta_tile_n if is_power_of_two(plan.cta_tile_n) else WGMMA.n_max
    yield from odd_extents(
        (
            ("tile.m", plan.cta_tile_m, rows, MAX_TILE_M),
            ("tile.n", plan.cta_tile_n, columns, WGMMA.n_max),
            ("tile.k", plan.cta_tile_k, plan.mma_shape[2], None),
            ("epilogue.subtile_n", plan.subtile_n, max(WGMMA.n_min, narrowest_subtile(plan)), widest),
        )
    )


def consumer_rows(plan: WgmmaPlan) -> Iterator[Violation]:
    """Every warp of a consumer has its own 16 rows of the tile: Gluon lets warps repeat others' work."""
    if not is_power_of_two(plan.cta_tile_m) or breaks(plan, consumer_count, warp_layout):
        return
    rows = WGMMA.rows_per_warp * plan.warps_m
    if plan.cta_tile_m < least_rows(plan):
        share = "for a lone consumer" if plan.consumers == 1 else "for each consumer"
        if plan.row_shares > 1:
            share = f"give {plan.row_shares} consumers {plan.cta_consumer_tile_m} each"
        yield Violation(
            rule_id(consumer_rows),
            "tile.m",
            f"{plan.cta_tile_m} rows {share}",
            f"the {plan.warps_m} warps of a consumer take {rows}, {WGMMA.rows_per_warp} each",
            f"use at least {least_rows(plan)}",
        )


def tile_rows(plan: WgmmaPlan) -> Iterator[Violation]:
    """The producer, which issues a load per 256 rows, has registers for the coordinates of them all."""
    if plan.cta_tile_m > MAX_TILE_M and is_power_of_two(plan.cta_tile_m):
        yield Violation(
            rule_id(tile_rows),
            "tile.m",
            f"a tile of {plan.cta_tile_m:,} rows",
            f"beyond {MAX_TILE_M:,} the TMA loads of a K step take more registers than a producer may have",
            f"use at most {MAX_TILE_M}",
        )


def mma_n(plan: WgmmaPlan) -> Iterator[Violation]:
    """The tile is as wide as an instruction, and the instruction one that Gluon has."""
    share = plan.cta_tile_n // plan.warps_n
    narrowest = least_columns(plan)
    if breaks(plan, warp_layout) or not is_power_of_two(plan.cta_tile_n):
        return
    if plan.cta_tile_n < narrowest:
        yield Violation(
            rule_id(mma_n),
            "tile.n",
            f"a tile of {plan.cta_tile_n} columns",
            f"the narrowest wgmma has n = {WGMMA.n_min}"
            + (f", for each of {plan.warps_n} warps along N" if plan.warps_n > 1 else ""),
            f"use at least {narrowest}",
        )
    elif not is_power_of_two(plan.mma_n) or not WGMMA.n_min <= plan.mma_n <= plan.widest_mma_n:
        below = power_of_two_below(plan.mma_n)
        high = min(share, plan.widest_mma_n)
        yield Violation(
            rule_id(mma_n),
            "mma.n",
            f"an instruction of {plan.mma_n:,} columns",
            f"of those for {plan.problem.a.dtype.name} Gluon has the powers of two from {WGMMA.n_min} to "
            f"{plan.widest_mma_n}",
            nearest(below, 2 * below, low=WGMMA.n_min, high=high),
        )
    elif plan.mma_n > share:
        yield Violation(
            rule_id(mma_n),
            "mma.n",
            f"an instruction of {plan.mma_n} columns",
            f"the warps of a consumer have {share} each along N",
            f"use at most {share}",
        )


def mma_k(plan: WgmmaPlan) -> Iterator[Violation]:
    """A K step is at least one instruction deep."""
    k = plan.mma_shape[2]
    if plan.cta_tile_k < k and is_power_of_two(plan.cta_tile_k):
        yield Violation(
            rule_id(mma_k),
            "tile.k",
            f"a K step of {plan.cta_tile_k} elements",
            f"a wgmma of {plan.problem.a.dtype.name} takes k = {k}",
            f"use at least {k}",
        )


def promotion(plan: WgmmaPlan) -> Iterator[Violation]:
    """Only sums of 8-bit floats are promoted, after each K step."""
    if not plan.promote_k:
        return
    field, a = "mma.promote_k", plan.problem.a.dtype.name
    if a not in FP8 or plan.problem.accumulator.name != "fp32":
        yield Violation(
            rule_id(promotion),
            field,
            f"sums of {plan.promote_k:,} products of {a} in {plan.problem.accumulator.name}",
            "promotion is for 8-bit floats added up in fp32, of which wgmma keeps fewer bits",
            "leave it out, or use e4m3 or e5m2 operands and fp32",
        )
    elif plan.promote_k != plan.cta_tile_k:
        yield Violation(
            rule_id(promotion),
            field,
            f"promotion after {plan.promote_k:,} of K",
            f"sums are promoted after each K step, of {plan.cta_tile_k}",
            f"use {plan.cta_tile_k}",
        )
    elif plan.outstanding_mmas:
        yield Violation(
            rule_id(promotion),
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA with promotion",
            "a sum is promoted when it has retired, before the next one starts",
            "use 0",
        )
    elif plan.schedule_kind == "single_tile":
        yield Violation(
            rule_id(promotion),
            field,
            f"promotion after {plan.promote_k} of K",
            "a kernel of a single tile has one K step",
            "leave it out, or use a tiled or persistent schedule",
        )


def breaks_extents(plan: WgmmaPlan) -> bool:
    """Whether the tile is none that consumers can share: then its parts have no true sizes."""
    extents = (plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k)
    rules = (consumer_count, warp_layout, consumer_rows, mma_k)
    narrow = plan.cta_tile_n < least_columns(plan)
    return narrow or not all(map(is_power_of_two, extents)) or breaks(plan, *rules)


def breaks_tile(plan: WgmmaPlan) -> bool:
    """Whether the tile is none that instructions and consumers can share: then no sum over it is true."""
    return breaks_extents(plan) or breaks(plan, tile_rows, mma_n)
