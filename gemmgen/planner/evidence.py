"""Evidence for the advice to a spec that the compiler refuses: plans of its changes, and their verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemmgen.errors import Advice
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation
from gemmgen.plan.verdicts import COMPILER_RULE, standing_of
from gemmgen.planner.best import cheapest_plan, ignore_progress
from gemmgen.planner.changes import changed_spec
from gemmgen.planner.families import family_of
from gemmgen.spec import Spec
from gemmgen.spec.model import stated


def plans_advised(violations: Sequence[Violation], spec: Spec) -> dict[Advice, Kernel]:
    """Return the best plan of each change that is advised, if the compiler alone refuses a spec.

    Empty if a rule without a compiler refuses the spec, or if no advice can be applied.
    """
    if [violation.rule for violation in violations] != [COMPILER_RULE]:
        return {}
    (only,) = violations
    found: dict[Advice, Kernel] = {}
    for change in only.fix.changes(only.field):
        source = changed_spec(stated(spec), change)
        if source and (plan := cheapest_plan(source, family_of(source), ignore_progress)):
            found[change] = plan
    return found


def with_evidence(violations: Sequence[Violation], spec: Spec) -> list[Violation]:
    """Return violations with a note behind each change that ends the compiler's refusal.

    The note says that the best plan of the change is predicted or verified to have enough registers.
    """
    notes = {change: standing_of(plan).note for change, plan in plans_advised(violations, spec).items()}
    return [replace(each, fix=each.fix.noted(notes, each.field)) if notes else each for each in violations]
