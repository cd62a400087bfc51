"""The side of split-K in planning."""

from __future__ import annotations

from gemmgen.features.split_k.split_cost import splits_ns
from gemmgen.plan.side import Planning, Row
from gemmgen.plan.timing import Stream
from gemmgen.plan.wgmma.resources import WgmmaKernel


class SplitK(Planning[WgmmaKernel]):
    """The sums that programs of a Hopper kernel leave each other."""

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the time to add up the sums of a tile."""
        if plan.splits == 1 or not isinstance(row, Stream):
            return row
        sums, sums_of_program = splits_ns(plan)
        return row._replace(sums=sums, sums_of_program=sums_of_program)
