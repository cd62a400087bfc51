"""The features that add to kernels: their sides in planning, for the families of kernels."""

from __future__ import annotations

from typing import Final, cast

from gemmgen.features.registry import REPORTED, sides
from gemmgen.plan.planning import PlanningByMma

_OF_FEATURES: Final = tuple(cast("PlanningByMma", side.SIDES) for side in sides("planning", REPORTED))

SIDES: Final[PlanningByMma] = {
    mma: tuple(side for each in _OF_FEATURES for side in each.get(mma, ())) for mma in ("wgmma", "tcgen05")
}
"""The sides of the features of each instruction.

Their order is that of arguments in one place, and of lines in a section of a ledger.
"""
