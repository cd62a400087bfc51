"""The plans of Hopper specs, as the planner returns them, by their own type; and what judges them."""

from __future__ import annotations

from gemmgen.plan.families import FAMILIES
from gemmgen.plan.hopper import WgmmaPlan
from gemmgen.plan.plan import KernelPlan

judge = FAMILIES["wgmma"].judge


def hopper(plan: KernelPlan) -> WgmmaPlan:
    """Return the plan of a Hopper spec."""
    assert isinstance(plan, WgmmaPlan)
    return plan
