"""The side of promotion in planning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.plan.entry import Entry
from gemmgen.plan.planning import EntrySection, Planning, PlanningByMma, RegisterUse, Row
from gemmgen.plan.sum_order import SumOrder
from gemmgen.plan.timing import Tiles
from gemmgen.plan.wgmma import cost_constants
from gemmgen.plan.wgmma.resources import WgmmaKernel

PROMOTION_CYCLES_PER_REGISTER = 2
"""[session] To add a register of partial sums to the accumulator: fp8 promoted after 128 of K had 0.893,
after 256 1.010, in ping-pong 0.53. `gemmgen.plan.wgmma.cost_constants` describes the record.
"""


def partial_registers(plan: WgmmaKernel) -> int:
    """Return the registers per consumer thread that hold partial sums before promotion.

    These are the sums of a slab of rows or columns, of each block of a K step, and of the step in flight.
    """
    if not plan.promote_k:
        return 0
    each = plan.sum_registers // (plan.row_slabs * plan.column_slabs)
    return each * plan.step_blocks * (1 + plan.outstanding_mmas)


class PromotionPlanning(Planning[WgmmaKernel]):
    """Sums of a few products that are added to sums of all."""

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers of the partial sums."""
        return partial_registers(plan) if use is RegisterUse.SUMS else 0

    def sum_order(self, plan: WgmmaKernel, order: SumOrder) -> SumOrder:
        """Return the order of sums that start anew after some K."""
        return replace(order, promote_k=plan.promote_k)

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the time in which threads add up sums and the tensor cores wait."""
        if not plan.promote_k or not isinstance(row, Tiles):
            return row
        cycles = PROMOTION_CYCLES_PER_REGISTER * plan.sum_registers
        return row._replace(exposed=row.exposed + cycles / cost_constants.POWER_CYCLES_PER_NS)

    def entries(self, plan: WgmmaKernel) -> Iterator[tuple[EntrySection, Entry]]:
        """Yield a line about the registers of the sums that are not added up yet."""
        if plan.promote_k:
            each = f"of {plan.promote_k} of K, then added to the accumulator in fp32"
            yield EntrySection.REGISTERS, Entry("partial sums", partial_registers(plan), "registers", each)


SIDES: PlanningByMma = {"wgmma": (PromotionPlanning(),)}
