"""The side of saved sums in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.planning import ArgumentPlace, Planning, PlanningByMma
from gemmgen.plan.roles import Argument
from gemmgen.plan.wgmma.resources import WgmmaKernel


class SavedSumPlanning(Planning[WgmmaKernel]):
    """The sums that a Hopper kernel stores beside D."""

    def arguments(self, plan: WgmmaKernel) -> Iterator[tuple[ArgumentPlace, Argument]]:
        """Yield the matrix of the sums."""
        if plan.problem.saves:
            yield ArgumentPlace.STORED, Argument("saved", "matrix", plan.problem.d)


SIDES: PlanningByMma = {"wgmma": (SavedSumPlanning(),)}
