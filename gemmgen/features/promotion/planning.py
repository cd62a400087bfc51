"""The side of promotion in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.entry import Entry
from gemmgen.plan.planning import EntrySection, Planning, PlanningByMma, Row
from gemmgen.plan.timing import Tiles
from gemmgen.plan.wgmma.cost_constants import POWER_CYCLES_PER_NS, PROMOTION_CYCLES_PER_REGISTER
from gemmgen.plan.wgmma.resources import WgmmaKernel


class PromotionPlanning(Planning[WgmmaKernel]):
    """Sums of a few products that are added to sums of all."""

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the time in which threads add up sums and the tensor cores wait."""
        if not plan.promote_k or not isinstance(row, Tiles):
            return row
        cycles = PROMOTION_CYCLES_PER_REGISTER * plan.sum_registers
        return row._replace(exposed=row.exposed + cycles / POWER_CYCLES_PER_NS)

    def entries(self, plan: WgmmaKernel) -> Iterator[tuple[EntrySection, Entry]]:
        """Yield a line about the registers of the sums that are not added up yet."""
        if plan.promote_k:
            each = f"of {plan.promote_k} of K, then added to the accumulator in fp32"
            yield EntrySection.REGISTERS, Entry("partial sums", plan.partial_registers, "registers", each)


SIDES: PlanningByMma = {"wgmma": (PromotionPlanning(),)}
