"""From a spec to a proven plan; pure, in milliseconds."""

from gemmgen.plan.plan import Plan
from gemmgen.plan.planner import plan_spec

__all__ = ["Plan", "plan_spec"]
