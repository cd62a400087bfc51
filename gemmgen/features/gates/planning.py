"""The side of gates in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.planning import Planning, PlanningByMma
from gemmgen.plan.roles import Count, N
from gemmgen.plan.wgmma.resources import WgmmaKernel


class GatePlanning(Planning[WgmmaKernel]):
    """Several sums of an element of D, of a Hopper kernel."""

    def counts(self, plan: WgmmaKernel) -> Iterator[Count]:
        """Yield N if the second block of a column operand begins there."""
        if plan.problem.in_blocks and plan.access.places_columns_by_n:
            yield N


SIDES: PlanningByMma = {"wgmma": (GatePlanning(),)}
