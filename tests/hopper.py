"""The plans of Hopper specs, as the planner returns them, by their own type; and what judges them."""

from __future__ import annotations

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.family import WGMMA_FAMILY

judge = WGMMA_FAMILY.judge


def hopper(plan: Kernel) -> WgmmaKernel:
    """Return the plan of a Hopper spec."""
    assert isinstance(plan, WgmmaKernel)
    return plan
