"""From a spec to the ranking of all its configurations, and of the refused ones by rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter

from gemmgen.plan.decisions import searched
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Rule, Violation, judge
from gemmgen.plan.search import MOST_CONFIGURATIONS, Configuration, Family
from gemmgen.plan.verdicts import COMPILER_RULE
from gemmgen.planner.best import Tick, ignore_progress, register_divisions
from gemmgen.planner.families import family_of
from gemmgen.planner.ranking import Candidate, Group, Ranking
from gemmgen.problem import Shape
from gemmgen.spec import SpecFile

Refusal = tuple[tuple[float, ...], str, tuple[Violation, ...]]
"""The cost of a configuration, its label, and its violations."""


def rank(source: SpecFile, tick: Tick = ignore_progress) -> Ranking:
    """Return all configurations of a spec, for the problems that it is planned for.

    Configurations that break an expectation count as refused, unless there are no others. The best legal way
    to store D stands for its configuration.
    """
    found = _rank_by(family_of(source).cautious_rules, source, tick)
    return found if found.legal else _rank_by(family_of(source).rules, source, tick)


def _rank_by(rules: Sequence[Rule[Kernel]], source: SpecFile, tick: Tick) -> Ranking:
    """Return all configurations of a spec, legal if they keep the rules."""
    request, family = source.request, family_of(source)
    shapes, wanted = request.planned_shapes, searched(source.spec)
    legal: list[Candidate] = []
    refused: list[Refusal] = []
    total = min(family.space.size(source), MOST_CONFIGURATIONS)
    for done, configuration in enumerate(family.space.configurations(source)):
        tick(done, total)
        plan, cost, violations = _best_plan(family, rules, configuration, shapes, wanted)
        if violations:
            refused.append((cost, family.label(plan), violations))
        else:
            estimates = tuple(family.estimate(plan, shape) for shape in shapes)
            legal.append(Candidate(family, plan, estimates, cost))
    legal.sort(key=lambda found: (found.cost, family.space.preference_distance(found.plan, wanted)))
    refused.sort(key=lambda refusal: refusal[0])
    return Ranking(request, tuple(legal), tuple(_by_rule(refused)), len(refused), tuple(source.spec.search))


def _best_plan(
    family: Family[Kernel],
    rules: Sequence[Rule[Kernel]],
    configuration: Configuration[Kernel],
    shapes: Sequence[Shape],
    wanted: Collection[str],
) -> tuple[Kernel, tuple[float, ...], tuple[Violation, ...]]:
    """Return the cheapest legal plan of a configuration, or the plan that breaks the fewest rules.

    The plan comes with its cost and its violations.
    """
    judged: list[tuple[Kernel, tuple[float, ...], tuple[Violation, ...]]] = []
    plans = [
        (family.cost_over(plan, shapes), family.space.preference_distance(plan, wanted), plan)
        for plan in configuration.kernels()
    ]
    for cost, _, kernel in sorted(plans, key=itemgetter(0, 1)):
        for plan in register_divisions(kernel, configuration):
            if plan is not kernel:
                cost = family.cost_over(plan, shapes)
            violations = judge(plan, rules)
            if not violations:
                return plan, cost, ()
            judged.append((plan, cost, violations))
            if {each.rule for each in violations} != {COMPILER_RULE}:
                break
    return min(judged, key=lambda item: len(item[2]))


def _by_rule(refused: Sequence[Refusal]) -> Iterator[Group]:
    """Yield for each rule how many configurations it refuses, and the first of them; most frequent first."""
    members: dict[str, list[tuple[str, Violation]]] = defaultdict(list)
    for _, label, violations in refused:
        for rule, violation in {violation.rule: violation for violation in violations}.items():
            members[rule].append((label, violation))
    for rule, found in sorted(members.items(), key=lambda item: -len(item[1])):
        label, violation = found[0]
        yield Group(rule, len(found), label, f"{violation.field}: {violation}")
