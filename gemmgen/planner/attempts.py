"""From a spec to its plan, or to diagnostics with advice that ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gemmgen.errors import GemmgenError
from gemmgen.plan.choices import foreign_choices
from gemmgen.plan.fix import leave_out, use
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation
from gemmgen.plan.verdicts import verdict_of
from gemmgen.planner.best import Tick, cheapest_plan, ignore_progress
from gemmgen.planner.changes import value_at
from gemmgen.planner.closest import closest
from gemmgen.planner.evidence import plans_advised, with_evidence
from gemmgen.planner.families import family_of
from gemmgen.planner.repair import advised
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.model import stated


def plan_spec(source: SpecFile, tick: Tick = ignore_progress) -> Kernel:
    """Return the best legal plan for a spec.

    Raises:
        GemmgenError: No combination is legal; carries the violations of the combination that comes closest.
    """
    found = attempted(source, tick)
    if isinstance(found, Kernel):
        return found
    violations = with_evidence(advised(found, source.spec), source.spec)
    raise GemmgenError(violation.diagnosed(source) for violation in violations)


def attempted(source: SpecFile, tick: Tick = ignore_progress) -> Kernel | Sequence[Violation]:
    """Return the best legal plan for a spec, or the violations of the plan that comes closest.

    Violations are in the order of the file. Each has the advice of its own rule, which may break another
    rule.
    """
    family = family_of(source)
    if foreign := foreign_choices(source, family):
        return in_order((as_stated(found, source.spec) for found in foreign), source)
    if (best := cheapest_plan(source, family, tick)) is not None:
        return best
    plan, violations = closest(source, family)
    if not violations:  # where there was more to try than was tried, the closest one can be legal
        return plan
    told = (as_searched(as_stated(found, source.spec), source.spec) for found in violations)
    return in_order(told, source)


def plans_to_verify(source: SpecFile) -> tuple[Kernel, ...]:
    """Return the plans without a known verdict that the advice to a refused spec gives.

    Empty if the spec is legal, if a rule without a compiler refuses it, or if all verdicts are known.
    """
    found = attempted(source)
    if isinstance(found, Kernel):
        return ()
    plans = plans_advised(advised(found, source.spec), source.spec).values()
    return tuple(plan for plan in plans if verdict_of(plan) is None)


def in_order(violations: Iterable[Violation], source: SpecFile) -> list[Violation]:
    """Return violations in the order of the file."""
    return sorted(violations, key=lambda violation: source.locate(violation.field))


def as_stated(violation: Violation, spec: Spec) -> Violation:
    """Return a violation whose fix leaves out another field only if the spec states that field."""
    data = stated(spec)
    fix = violation.fix.for_stated(lambda path: value_at(data, path) is not None)
    return replace(violation, fix=fix)


def as_searched(violation: Violation, spec: Spec) -> Violation:
    """Return a violation of a field whose values the spec wants searched as one of those values."""
    if violation.field not in spec.search:
        return violation
    field = f"search.{violation.field}"
    named = [dict(found) for found in violation.fix.changes(violation.field)]
    values = [found[violation.field] for found in named if list(found) == [violation.field]]
    lists = dict.fromkeys((value,) for value in values if value is not None)
    return replace(violation, field=field, fix=use(*lists) if lists else leave_out())
