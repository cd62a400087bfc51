"""The side of groups in planning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.planning import ArgumentPlace, Planning, PlanningByMma, RegisterUse
from gemmgen.plan.roles import Argument, Count, N
from gemmgen.plan.wgmma.resources import WgmmaKernel

GROUPS_REGISTERS: Final = 24
"""Registers to find the group of a tile, beside the rows of all groups."""
VALUES_OF_GROUP: Final = 4
"""Values that a warp holds of each group: its number, its first row, its end, and tiles up to it."""


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

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers for the rows of all groups, which each warp holds.

        [gluon] Beside slabs of rows, whose loop holds 192 registers of sums, a consumer keeps the rows of
        groups in the working registers: 32 and 128 groups compile with 224 registers. So do 16 and 32 groups
        beside 192 registers whose sums are promoted while the next MMAs run.
        """
        if not plan.group_slots:
            return 0
        keeps_rows = use is RegisterUse.KEPT and plan.row_slabs == 1 and not plan.scales_in_flight
        if not (keeps_rows or use is RegisterUse.PRODUCER):
            return 0
        return GROUPS_REGISTERS + VALUES_OF_GROUP * plan.group_slots // plan.architecture.threads_per_warp


SIDES: PlanningByMma = {"wgmma": (GroupPlanning(),)}
