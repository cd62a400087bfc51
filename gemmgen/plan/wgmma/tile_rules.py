"""Rules of the matrix instruction over a tile, and the list of all rules of tiles, warps and work."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import is_power_of_two, power_of_two_below
from gemmgen.plan.fix import at_least, at_most, nearest
from gemmgen.plan.rule import Consulted, Finding, Rule, rule
from gemmgen.plan.shared_rules import group_width, minor_dimension
from gemmgen.plan.wgmma.extent_rules import (
    ODD_SIDES,
    consumer_rows,
    least_columns,
    odd_side,
    tile_power_of_two,
    tile_rows,
)
from gemmgen.plan.wgmma.part_rules import composed_tile, staggered_tile
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.warp_rules import (
    CONSUMERS,
    cluster_shape,
    consumer_count,
    occupancy,
    schedule_kind,
    warp_layout,
)


@rule("mma-n", after=[warp_layout], consults=ODD_SIDES)
def mma_n(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """The tile is at least as wide as an instruction, and Gluon has the instruction."""
    if consulted.broken(odd_side(plan.mma.right.axis)):
        return
    columns, warps, axis = plan.mma_parts[0], plan.warps_across[1], plan.mma.right.axis.upper()
    share = columns // warps
    narrowest = least_columns(plan)
    if columns < narrowest:
        yield Finding(
            f"tile.{plan.mma.right.axis}",
            f"a tile of {columns} {plan.mma.right.lines}",
            f"the narrowest wgmma has n = {WGMMA.n_min}"
            + (f", for each of {warps} warps along {axis}" if warps > 1 else ""),
            at_least(narrowest),
        )
    elif not is_power_of_two(plan.mma_n) or not WGMMA.n_min <= plan.mma_n <= plan.widest_mma_n:
        below = power_of_two_below(plan.mma_n)
        high = min(share, plan.widest_mma_n)
        yield Finding(
            "mma.n",
            f"an instruction of {plan.mma_n:,} columns",
            f"Gluon's instructions for {plan.problem.a.multiplied.name} have a power of two of columns, from "
            f"{WGMMA.n_min} to {plan.widest_mma_n}",
            nearest(below, 2 * below, low=WGMMA.n_min, high=high),
        )
    elif plan.mma_n > share:
        yield Finding(
            "mma.n",
            f"an instruction of {plan.mma_n} columns",
            f"the warps of a consumer have {share} each along {axis}",
            at_most(share),
        )


@rule("mma-k", after=[tile_power_of_two.at("tile.k")])
def mma_k(plan: WgmmaKernel) -> Iterator[Finding]:
    """A K step is at least one instruction deep."""
    k = plan.mma_shape[2]
    if plan.cta_tile_k < k:
        yield Finding(
            "tile.k",
            f"a K step of {plan.cta_tile_k} elements",
            f"a wgmma of {plan.problem.a.multiplied.name} takes k = {k}",
            at_least(k),
        )


EXTENTS = (
    tile_power_of_two.at("tile.m", "tile.n", "tile.k"),
    composed_tile,
    *CONSUMERS,
    consumer_rows,
    mma_n.at("tile.m", "tile.n"),
    mma_k,
)
"""Where these are kept, consumers can share the tile: else its parts have no true sizes."""
TILE = (*EXTENTS, tile_rows, mma_n)
"""Where these are kept, instructions can too: else no sum over the tile is true."""


TILE_RULES: tuple[Rule[WgmmaKernel], ...] = (
    schedule_kind,
    cluster_shape,
    consumer_count,
    warp_layout,
    occupancy,
    group_width,
    minor_dimension,
    tile_power_of_two,
    composed_tile,
    staggered_tile,
    consumer_rows,
    tile_rows,
    mma_n,
    mma_k,
)
