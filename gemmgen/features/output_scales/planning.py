"""The side of scales of D in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.planning import ArgumentPlace, Planning, PlanningByMma
from gemmgen.plan.roles import Argument, Count, M, N
from gemmgen.plan.wgmma.resources import WgmmaKernel


class OutputScalePlanning(Planning[WgmmaKernel]):
    """The scales of D that a Hopper kernel computes."""

    def arguments(self, plan: WgmmaKernel) -> Iterator[tuple[ArgumentPlace, Argument]]:
        """Yield the scales, which threads store by address."""
        if scale := plan.problem.d_scale:
            yield ArgumentPlace.STORED, Argument("d_scale", "d_scales", scale.dtype, "m")

    def counts(self, plan: WgmmaKernel) -> Iterator[Count]:
        """Yield the extents of D, by which threads leave out scales outside of it."""
        if plan.problem.d_scale:
            yield from (N, M)


SIDES: PlanningByMma = {"wgmma": (OutputScalePlanning(),)}
