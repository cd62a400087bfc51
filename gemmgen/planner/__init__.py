"""From a spec to a plan: the best kernel, the ranking of all, warnings, and advice for an illegal spec."""

from gemmgen.planner.attempts import attempted, plan_spec, plans_to_verify
from gemmgen.planner.best import Tick
from gemmgen.planner.changes import applied
from gemmgen.planner.families import FAMILIES, family_for, family_of, field_values
from gemmgen.planner.plan_warnings import warnings
from gemmgen.planner.ranked import rank
from gemmgen.planner.ranking import Candidate, Ranking

__all__ = [
    "FAMILIES",
    "Candidate",
    "Ranking",
    "Tick",
    "applied",
    "attempted",
    "family_for",
    "family_of",
    "field_values",
    "plan_spec",
    "plans_to_verify",
    "rank",
    "warnings",
]
