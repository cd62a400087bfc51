"""How a Hopper module reads the scales of a block of K: which template, and the expressions of the scales."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.wgmma.lanes import turned


@dataclass(frozen=True)
class ScaleReads:
    """The scales of a K step of one plan as the templates of its K loop see them.

    Scales lie in a stage as one row, [1, N] for the columns of the accumulator; turned to [M, 1], they are
    for its rows.
    """

    plan: WgmmaKernel

    @property
    def template(self) -> str:
        """The template of the scales of B: one for all columns of a tile, or one for each column."""
        return f"wgmma/scales/{'tile' if self.plan.has_tile_scales else 'columns'}.py.j2"

    def of_rows(self, slab: int) -> str:
        """Return the scales of A as a column or row of the accumulator, of one of several slabs of rows."""
        plan = self.plan
        smem = "a_scale_smem" if plan.specialized else "args.a_scale_smem"
        scales = f"{smem}.index(ring.stage)"
        if plan.row_slabs > 1:
            first = "SLAB_M" if slab else "0"
            scales += f".slice({first}, SLAB_M, dim=1)"
        elif plan.stage.payloads_of("a_scale")[0].elements > plan.cta_consumer_tile_m:
            scales += ".slice(0, PROGRAM_TILE_M, dim=1)"
        return f"{turned(scales, not plan.swap_ab)}.load(ACCUMULATOR_LAYOUT)"

    @property
    def of_columns(self) -> str:
        """The scales of B as a row or column of the accumulator."""
        scales = "args.b_scale_smem.index(ring.stage)"
        return f"{turned(scales, self.plan.swap_ab)}.load(ACCUMULATOR_LAYOUT)"
