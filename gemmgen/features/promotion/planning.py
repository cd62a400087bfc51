"""The side of promotion in planning."""

from __future__ import annotations

from gemmgen.plan.side import Planning, Row
from gemmgen.plan.timing import Tiles
from gemmgen.plan.wgmma.cost_constants import POWER_CYCLES_PER_NS, PROMOTION_CYCLES_PER_REGISTER
from gemmgen.plan.wgmma.resources import WgmmaKernel


class Promotion(Planning[WgmmaKernel]):
    """Sums of a few products that are added to sums of all."""

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the time in which threads add up sums and the tensor cores wait."""
        if not plan.promote_k or not isinstance(row, Tiles):
            return row
        cycles = PROMOTION_CYCLES_PER_REGISTER * plan.sum_registers
        return row._replace(exposed=row.exposed + cycles / POWER_CYCLES_PER_NS)
