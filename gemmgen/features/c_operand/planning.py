"""The side of C in planning."""

from __future__ import annotations

from gemmgen.plan.planning import Planning, PlanningByMma, RegisterUse
from gemmgen.plan.wgmma.resources import WgmmaKernel


class AddendPlanning(Planning[WgmmaKernel]):
    """The matrix that the epilogue of a Hopper kernel adds."""

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers in which an epilogue has a part of C."""
        if use is not RegisterUse.EPILOGUE or plan.problem.c is None:
            return 0
        return plan.accumulator_elements // plan.subtiles // 2 + 16


SIDES: PlanningByMma = {"wgmma": (AddendPlanning(),)}
