"""The side of composed and of staggered tiles in planning."""

from __future__ import annotations

from typing import Final

from gemmgen.plan.planning import Planning, PlanningByMma, RegisterUse
from gemmgen.plan.wgmma.bounds import ROLE_REGISTERS
from gemmgen.plan.wgmma.resources import WgmmaKernel

PART_REGISTERS: Final = 20
"""Registers for addresses that the compiler keeps if several parts multiply a left operand from registers."""


class ComposedTilePlanning(Planning[WgmmaKernel]):
    """The parts of the columns of a tile, of a Hopper kernel."""

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers for addresses of parts, and to place staggered tiles in a producer."""
        if use is RegisterUse.PRODUCER and plan.staggered:
            return ROLE_REGISTERS
        return PART_REGISTERS if use is RegisterUse.KEPT and plan.composed and plan.mma.reads_left else 0


SIDES: PlanningByMma = {"wgmma": (ComposedTilePlanning(),)}
