"""The plan of an illegal spec that comes closest to a legal one, and its violations."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.decisions import FIELDS
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation
from gemmgen.plan.search import Family
from gemmgen.plan.verdicts import COMPILER_RULE
from gemmgen.spec import SpecFile

Rejected = tuple[Kernel, tuple[Violation, ...]]


MOST_REJECTED, SOME_REJECTED = 600, 300
"""Configurations among which the closest is looked for: all if there are up to 600, else 300."""
MOST_STORED = 60
"""Configurations for which every way to store D is judged, not only the first."""


def closest(source: SpecFile, family: Family[Kernel]) -> Rejected:
    """Return the plan that comes closest to a legal one, and its violations in the spec's own fields.

    A violation in a field that the planner chose is reported only if the spec's fields have none. A field
    whose values the spec wants searched is the spec's, and so is one that is no decision: the planner did not
    choose its default. A plan that the compiler alone refuses is the least wrong. If there are many
    configurations, only a part is judged, evenly spread over all.
    """
    shapes = source.request.planned_shapes
    own = {*source.positions, *source.spec.search}

    def to_blame(violations: tuple[Violation, ...]) -> tuple[Violation, ...]:
        return tuple(each for each in violations if each.field in own or each.field not in FIELDS)

    def wrong(candidate: Rejected) -> tuple[bool, int, bool, int, float]:
        by_spec = len(to_blame(candidate[1]))
        by_rules = any(violation.rule != COMPILER_RULE for violation in candidate[1])
        others = len(candidate[1]) - by_spec
        # A violation in a field that the planner chose may hide rules that are judged after it.
        return by_rules, others, not by_spec, by_spec, family.excess(candidate[0])

    first: list[tuple[tuple[bool, int, bool, int, float], Rejected, Iterator[Kernel]]] = []
    most = MOST_REJECTED if family.space.size(source) <= MOST_REJECTED else SOME_REJECTED
    for configuration in family.space.configurations(source, most):
        kernels = configuration.kernels()
        plan = next(kernels)
        candidate = plan, family.judge(plan)
        first.append((wrong(candidate), candidate, kernels))
        if _blames_the_problem_alone(candidate, family):
            break  # no later configuration comes closer
    first.sort(key=lambda found: found[0])
    rejected = [(rank, candidate) for rank, candidate, _ in first]
    for _, (_, violations), others in first[:MOST_STORED]:
        if family.store_rules.isdisjoint(violation.rule for violation in violations):
            continue  # they say the same of all ways to store D
        judged = ((plan, family.judge(plan)) for plan in others)
        rejected += ((wrong(candidate), candidate) for candidate in judged)
    least = min(rank for rank, _ in rejected)
    tied = (candidate for rank, candidate in rejected if rank == least)
    plan, violations = min(tied, key=lambda candidate: family.cost_over(candidate[0], shapes))
    return plan, to_blame(violations) or violations


def _blames_the_problem_alone(candidate: Rejected, family: Family[Kernel]) -> bool:
    rules = family.problem_rule_ids
    return all(violation.rule in rules for violation in candidate[1]) and not family.excess(candidate[0])
