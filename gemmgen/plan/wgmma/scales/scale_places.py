"""How consumers find the scale of B of a block of K, which is one number for all columns of a tile."""

from __future__ import annotations

from gemmgen.plan.wgmma.geometry import WgmmaGeometry


def finds_scales_by_block(kernel: WgmmaGeometry) -> bool:
    """Return True if consumers read the scale of B of a block by its number, which may be past K."""
    by_block = kernel.splits > 1 or kernel.step_blocks > 1 or kernel.scales_in_flight
    return kernel.problem.scales_sums and kernel.has_tile_scales and by_block
