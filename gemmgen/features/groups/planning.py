"""The side of groups in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.planning import ArgumentPlace, Planning, PlanningByMma
from gemmgen.plan.roles import Argument, Count, N
from gemmgen.plan.wgmma.resources import WgmmaKernel


class GroupPlanning(Planning[WgmmaKernel]):
    """Groups of rows, or of K, of a Hopper kernel."""

    def arguments(self, plan: WgmmaKernel) -> Iterator[tuple[ArgumentPlace, Argument]]:
        """Yield the tensor that says where groups end, unless all have as many rows."""
        if plan.problem.groups and plan.problem.groups.counts:
            yield ArgumentPlace.READ, Argument(plan.problem.groups.counts, "groups", DTYPES["int32"])

    def counts(self, plan: WgmmaKernel) -> Iterator[Count]:
        """Yield N if a column operand has elements for each group."""
        if plan.problem.groups and plan.access.places_columns_by_n:
            yield N


SIDES: PlanningByMma = {"wgmma": (GroupPlanning(),)}
