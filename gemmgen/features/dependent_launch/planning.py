"""The side of a dependent launch in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.features.dependent_launch.early_cost import early_stream, early_tiles
from gemmgen.plan.entry import Entry
from gemmgen.plan.planning import EntrySection, Planning, PlanningByMma, RegisterUse, Row
from gemmgen.plan.timing import Tiles
from gemmgen.plan.wgmma.bounds import ROLE_REGISTERS
from gemmgen.plan.wgmma.resources import WgmmaKernel


class DependentLaunchPlanning(Planning[WgmmaKernel]):
    """A Hopper kernel that is launched before the one ahead of it has ended."""

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers in which a producer loads one operand ahead of the others."""
        return ROLE_REGISTERS if use is RegisterUse.PRODUCER and plan.read_early else 0

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the gains and the losses of an early start."""
        return early_tiles(plan, row) if isinstance(row, Tiles) else early_stream(plan, row)

    def entries(self, plan: WgmmaKernel) -> Iterator[tuple[EntrySection, Entry]]:
        """Yield a line about the loads that a producer starts before it waits for the kernel ahead."""
        if not (plan.read_early and plan.specialized):
            return
        tile_bytes = plan.stage.bytes_of(plan.read_early)
        early = f"of {plan.read_early.upper()}, {plan.stages * tile_bytes:,} bytes in each CTA"
        entry = Entry("early", plan.stages, "tiles", f"{early}, before the kernel ahead has ended")
        yield EntrySection.DECISIONS, entry


SIDES: PlanningByMma = {"wgmma": (DependentLaunchPlanning(),)}
