"""The side of gates in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.planning import Planning, PlanningByMma, RegisterUse
from gemmgen.plan.roles import Count, N
from gemmgen.plan.wgmma.resources import WgmmaKernel


class GatePlanning(Planning[WgmmaKernel]):
    """Several sums of an element of D, of a Hopper kernel."""

    def counts(self, plan: WgmmaKernel) -> Iterator[Count]:
        """Yield N if the second block of a column operand begins there."""
        if plan.problem.in_blocks and plan.access.places_columns_by_n:
            yield N

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers in which an epilogue of gradients has both matrices of C and of D."""
        blocks = plan.problem.d_blocks
        if use is not RegisterUse.EPILOGUE or blocks == 1:
            return 0
        return 2 * blocks * (plan.accumulator_elements // plan.subtiles)


SIDES: PlanningByMma = {"wgmma": (GatePlanning(),)}
