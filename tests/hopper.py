"""The plans of Hopper specs, as the planner returns them, by their own type."""

from __future__ import annotations

from gemmgen.plan import Plan
from gemmgen.plan.kernel import KernelPlan


def hopper(plan: KernelPlan) -> Plan:
    """Return the plan of a Hopper spec."""
    assert isinstance(plan, Plan)
    return plan
