"""The side of rows by an index in planning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.planning import ArgumentPlace, Planning, PlanningByMma, RegisterUse
from gemmgen.plan.roles import D_STRIDE, ROWS_OF_D, Argument, Count, N
from gemmgen.plan.wgmma.resources import WgmmaKernel

FEW_COPIES: Final = 8
"""Copies of 16 bytes of each thread in a K step for which a producer has registers anyway."""


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

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers with which the threads of a producer copy rows of A.

        [gluon] With 32 groups, threads that copy 8 times in a K step compile with 56, and 16 times with 64.
        """
        if not (use is RegisterUse.PRODUCER and plan.problem.gathers_a):
            return 0
        threads = plan.producer_warps * plan.architecture.threads_per_warp
        return max(0, plan.cta_tile_m * plan.cta_tile_k // (plan.a_unit * threads) - FEW_COPIES)


SIDES: PlanningByMma = {"wgmma": (RowIndexPlanning(),)}
