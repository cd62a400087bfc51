"""Rules of the matrix instruction over a tile, and the list of all rules of tiles, warps and work."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import is_power_of_two, power_of_two_below
from gemmgen.plan.fix import at_least, at_most, hint, leave_out, nearest, use
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
from gemmgen.plan.wgmma.gate_rules import gated
from gemmgen.plan.wgmma.gates.c_block_rules import c_blocks
from gemmgen.plan.wgmma.gates.saved_rules import saved_sums
from gemmgen.plan.wgmma.group_rules import groups
from gemmgen.plan.wgmma.part_rules import composed_tile, staggered_tile
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.scales.output_rules import output_scale, quantized_output
from gemmgen.plan.wgmma.scales.scale_rules import block_scales, scale_format
from gemmgen.plan.wgmma.warp_rules import (
    CONSUMERS,
    cluster_shape,
    consumer_count,
    occupancy,
    swap_ab,
    warp_layout,
)
from gemmgen.plan.wgmma.work_rules import (
    dependent_launch,
    parallel_reduction,
    reduction,
    same_bits,
    schedule_kind,
    splits,
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
            f"Gluon's instructions for {plan.problem.a.dtype.name} have a power of two of columns, from "
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
            f"a wgmma of {plan.problem.a.dtype.name} takes k = {k}",
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


WIDEST_PROMOTED_BITS = 16
"""Bits of the widest operands whose sums can be promoted."""


@rule("promotion", after=[scale_format, block_scales])
def promotion(plan: WgmmaKernel) -> Iterator[Finding]:
    """Sums of 8- and 16-bit floats in fp32 are promoted, after each K step."""
    if not plan.promote_k:
        return
    field, a = "mma.promote_k", plan.problem.a.dtype
    if a.integer or a.bits > WIDEST_PROMOTED_BITS or plan.problem.accumulator.name != "fp32":
        yield Finding(
            field,
            f"sums of {plan.promote_k:,} products of {a.name} in {plan.problem.accumulator.name}",
            "promotion needs 8- or 16-bit floats whose products wgmma adds up in fp32",
            leave_out() | hint("operands of 8- or 16-bit floats, and fp32"),
        )
    elif plan.problem.scales_sums:
        return  # whose blocks have rules of their own
    elif plan.promote_k != plan.cta_tile_k:
        yield Finding(
            field,
            f"promotion after {plan.promote_k:,} of K",
            f"sums are promoted after each K step, of {plan.cta_tile_k}",
            use(plan.cta_tile_k),
        )
    elif plan.outstanding_mmas:
        yield Finding(
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA with promotion",
            "a sum is promoted when it has retired, before the next one starts",
            use(0),
        )
    elif plan.schedule_kind == "single_tile":
        yield Finding(
            field,
            f"promotion after {plan.promote_k} of K",
            "a kernel of a single tile has one K step",
            leave_out() | hint("a tiled or persistent schedule"),
        )


TILE_RULES: tuple[Rule[WgmmaKernel], ...] = (
    schedule_kind,
    splits,
    reduction,
    parallel_reduction,
    same_bits,
    dependent_launch,
    cluster_shape,
    consumer_count,
    warp_layout,
    swap_ab,
    occupancy,
    group_width,
    minor_dimension,
    tile_power_of_two,
    composed_tile,
    staggered_tile,
    gated,
    c_blocks,
    saved_sums,
    groups,
    consumer_rows,
    tile_rows,
    mma_n,
    mma_k,
    scale_format,
    block_scales,
    output_scale,
    quantized_output,
    promotion,
)
