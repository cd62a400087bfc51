"""Rules of a tile's extents: powers of two and their sums, and the rows of consumers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import is_power_of_two, power_of_two_below
from gemmgen.plan.fix import at_least, at_most, nearest, use
from gemmgen.plan.rule import Consulted, Finding, Part, rule
from gemmgen.plan.shared_rules import narrowest_subtile, odd_extents
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.warp_rules import CONSUMERS
from gemmgen.spec.words import MmaRows

MAX_TILE_M = 2_048
"""[gluon] TMA loads at most 256 rows at a time: at 4,096 rows, 16 loads a step, producers of 24 and 32
registers spill; at 2,048 none does.
"""
MOST_PARTS = 3
"""Most parts of a tile's columns: each reads A from shared memory again, and four would cost more than they
fill.
"""


def least_rows(plan: WgmmaKernel) -> int:
    """Return the fewest rows of an instruction's tile that give each warp of each consumer 16 rows."""
    return plan.row_shares * plan.warps_across[0] * WGMMA.rows_per_warp


def least_columns(plan: WgmmaKernel) -> int:
    """Return the fewest columns of an instruction's tile that give every warp one instruction."""
    return plan.warps_across[1] * WGMMA.n_min


def mma_tile(plan: WgmmaKernel) -> tuple[int, int]:
    """Return the extents of a CTA's tile along the rows and along the columns of the instruction."""
    return plan.mma.across(plan.cta_tile_m, plan.cta_tile_n)


def least_tile(plan: WgmmaKernel) -> tuple[int, int]:
    """Return the fewest rows and columns of a tile of D that its warps can share."""
    return plan.mma.of_d(least_rows(plan), least_columns(plan))


@rule("tile-power-of-two", consults=CONSUMERS)
def tile_power_of_two(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """Every block extent in Gluon is a power of two: a consumer's rows, and each part of the columns."""
    rows, columns = least_tile(plan)
    thirds = plan.row_shares == 3
    if consulted.broken(*CONSUMERS):
        rows, columns = plan.mma.of_d(WGMMA.m, WGMMA.n_min)
        thirds = False
    widest = plan.column_parts[-1] if adds_up(plan) else WGMMA.n_max
    most = plan.mma.of_d(MAX_TILE_M, WGMMA.n_max)
    if thirds and not (plan.cta_tile_m % 3 == 0 and is_power_of_two(plan.cta_tile_m // 3)):
        below = 3 * power_of_two_below(max(1, plan.cta_tile_m // 3))
        yield Finding(
            "tile.m",
            f"{plan.cta_tile_m:,} rows for 3 consumers",
            "each has a block of them, and Gluon's block extents are powers of two",
            nearest(below, 2 * below, low=rows, high=3 * power_of_two_below(MAX_TILE_M // 3)),
        )
    if not adds_up(plan):
        yield _odd_columns(plan, columns, most[1])
    for found in odd_extents(
        (
            *(() if thirds else (("tile.m", plan.cta_tile_m, rows, most[0]),)),
            ("tile.k", plan.cta_tile_k, plan.mma_shape[2], None),
            ("epilogue.subtile_n", plan.subtile_n, max(WGMMA.n_min, narrowest_subtile(plan)), widest),
        )
    ):
        shared = found.field == "tile.m" and plan.specialization == "cooperative" and not plan.swap_ab
        if shared and plan.cta_tile_m % (3 * WGMMA.m) == 0 and is_power_of_two(plan.cta_tile_m // 3):
            yield replace(found, fix=found.fix | use(3, field="warp_specialization.consumers"))
        else:
            yield found


def adds_up(plan: WgmmaKernel) -> bool:
    """Return True if a tile's columns are a power of two, or a sum of few that instructions can have."""
    return is_power_of_two(plan.cta_tile_n) or _is_sum(plan.cta_tile_n, WGMMA.n_min)


def _is_sum(columns: int, narrowest: int) -> bool:
    return columns.bit_count() <= MOST_PARTS and columns % narrowest == 0


def sum_of_parts(plan: WgmmaKernel) -> str:
    """Return a composed tile's columns as the sum that they are."""
    if plan.staggered:
        return f"{plan.cta_tile_n} ({plan.cta_widest_n} and {plan.cta_widest_n - 2 * plan.stagger_n})"
    return f"{plan.cta_tile_n} = {' + '.join(map(str, plan.column_parts))}"


def sums_around(columns: int, narrowest: int) -> tuple[int, int]:
    """Return the nearest widths below and above that a composed tile with such parts can have."""
    below = next((n for n in range(columns, 0, -1) if _is_sum(n, narrowest)), narrowest)
    above = next(n for n in range(columns, 4 * columns + narrowest) if _is_sum(n, narrowest))
    return below, above


def _odd_columns(plan: WgmmaKernel, low: int, high: int) -> Finding:
    """Return a finding for columns of a tile that are no sum of parts."""
    limit = "Gluon's block extents are powers of two"
    if not plan.specialized or plan.swap_ab:
        below = power_of_two_below(plan.cta_tile_n)
        found = f"{plan.cta_tile_n:,} is not a power of two"
        return Finding("tile.n", found, limit, nearest(below, 2 * below, low=low, high=high))
    found = f"{plan.cta_tile_n:,} is not a sum of at most {MOST_PARTS} powers of two, {WGMMA.n_min} or more"
    high = sum(high >> halvings for halvings in range(MOST_PARTS))
    fix = nearest(*sums_around(min(plan.cta_tile_n, high), WGMMA.n_min), low=low, high=high)
    return Finding("tile.n", found, f"{limit}, and a tile has at most {MOST_PARTS}", fix)


ODD_SIDES = (tile_power_of_two.at("tile.m"), tile_power_of_two.at("tile.n"))


def odd_side(axis: MmaRows) -> Part[WgmmaKernel]:
    """Return the finding that the tile's extent along M or N is no power of two."""
    return ODD_SIDES["mn".index(axis)]


@rule("consumer-rows", after=CONSUMERS, consults=ODD_SIDES)
def consumer_rows(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """Every warp of a consumer has its own 16 rows of the tile: Gluon lets warps repeat others' work."""
    warps, extent = plan.warps_across[0], mma_tile(plan)[0]
    rows = WGMMA.rows_per_warp * warps
    if extent < least_rows(plan) and not consulted.broken(odd_side(plan.mma_axis)):
        share = "for a lone consumer" if plan.consumers == 1 else "for each consumer"
        if plan.row_shares > 1:
            share = f"give {plan.row_shares} consumers {plan.cta_consumer_tile_m} each"
        yield Finding(
            f"tile.{plan.mma_axis}",
            f"{extent} {plan.mma.left.lines} {share}",
            f"the {warps} warps of a consumer take {rows}, {WGMMA.rows_per_warp} each",
            at_least(least_rows(plan)),
        )


@rule("tile-rows", consults=ODD_SIDES)
def tile_rows(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """The producer, which issues a load per 256 rows, has registers for the coordinates of them all."""
    rows = mma_tile(plan)[0]
    if rows > MAX_TILE_M and not consulted.broken(odd_side(plan.mma_axis)):
        yield Finding(
            f"tile.{plan.mma_axis}",
            f"a tile of {rows:,} {plan.mma.left.lines}",
            f"beyond {MAX_TILE_M:,} the TMA loads of a K step take more registers than a producer may have",
            at_most(MAX_TILE_M),
        )
