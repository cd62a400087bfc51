"""From a spec to a proven plan; pure, in milliseconds."""

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import plan_spec

__all__ = ["Kernel", "plan_spec"]
