"""Traits of scales for blocks of K."""

from __future__ import annotations

from typing import Final

from gemmgen.plan.fix import leave_out
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

UNSCALED: Final = leave_out("operands.a.scale") & leave_out("operands.b.scale")
"""The fix that leaves the scales of A and B out."""

BLOCK_SCALES = Trait[WgmmaKernel](
    "block scales",
    "operands.a.scale",
    lambda plan: plan.problem.scales_sums,
    "block scales",
    UNSCALED,
)
COLUMN_SCALES = Trait[WgmmaKernel](
    "block scales with one for each column of B",
    "operands.b.scale",
    lambda plan: plan.problem.scales_sums and not plan.has_tile_scales,
    "block scales of single columns",
    UNSCALED,
)
SCALED_GROUPS_OF_ROWS = Trait[WgmmaKernel](
    "block scales of groups of rows",
    "operands.a.scale",
    lambda plan: plan.access.scales_groups_of_rows,
    "block scales of groups",
    UNSCALED,
)
