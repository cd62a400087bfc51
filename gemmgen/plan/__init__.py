"""From a spec to a proven plan; pure, in milliseconds."""

from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.planner import plan_spec

__all__ = ["KernelPlan", "plan_spec"]
