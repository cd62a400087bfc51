"""The side of rows by an index in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.planning import ArgumentPlace, Planning, PlanningByMma
from gemmgen.plan.roles import D_STRIDE, ROWS_OF_D, Argument, Count, N
from gemmgen.plan.wgmma.resources import WgmmaKernel


class RowIndexPlanning(Planning[WgmmaKernel]):
    """Rows of A that threads copy, and rows of D that they store, by an index."""

    def arguments(self, plan: WgmmaKernel) -> Iterator[tuple[ArgumentPlace, Argument]]:
        """Yield the indices, and the addresses of the matrices beside their descriptors."""
        problem = plan.problem
        for name in problem.groups.row_indices if problem.groups else ():
            yield ArgumentPlace.READ, Argument(name, "row_index", DTYPES["int32"])
        if problem.gathers_a:
            yield ArgumentPlace.LOADED, Argument("a", "address", problem.a.dtype)
        if problem.scatters_d:
            yield ArgumentPlace.STORED, Argument("d", "address", problem.d)

    def counts(self, plan: WgmmaKernel) -> Iterator[Count]:
        """Yield the extents of D: its descriptor, which has them, stays in the kernel."""
        if plan.problem.scatters_d:
            yield from (N, ROWS_OF_D, D_STRIDE)


SIDES: PlanningByMma = {"wgmma": (RowIndexPlanning(),)}
