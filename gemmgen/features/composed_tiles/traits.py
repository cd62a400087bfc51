"""Traits of tiles whose columns are several powers of two."""

from __future__ import annotations

from gemmgen.plan.fix import leave_out, use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.extent_rules import adds_up, sum_of_parts
from gemmgen.plan.wgmma.part_rules import plain_widths
from gemmgen.plan.wgmma.resources import WgmmaKernel

COMPOSED = Trait[WgmmaKernel](
    "a composed tile",
    "tile.n",
    lambda plan: plan.composed and adds_up(plan),
    lambda plan: f"a tile of {sum_of_parts(plan)} columns",
    lambda plan: use(*plain_widths(plan)),
)
STAGGERED = Trait[WgmmaKernel](
    "staggered tiles",
    "tile.staggered",
    lambda plan: plan.staggered,
    lambda plan: f"a staggered tile of {plan.cta_tile_n} columns",
    leave_out(),
)
