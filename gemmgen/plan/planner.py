"""From a spec to a plan: enumerate what the spec leaves open, judge by the rules, rank by cost."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.errors import GemmgenError, Violation
from gemmgen.plan.candidates import configurations
from gemmgen.plan.cost import cost, overdraft
from gemmgen.plan.decisions import shape_of
from gemmgen.plan.plan import Plan
from gemmgen.plan.problem import Shape
from gemmgen.plan.rules import Rule, judge, rule_id
from gemmgen.plan.rules.epilogue import epilogue_buffers, epilogue_factors, epilogue_ops, epilogue_subtile
from gemmgen.plan.rules.memory import ring_depth, smem_capacity
from gemmgen.plan.rules.problem import (
    accumulator_dtype,
    operand_dtypes,
    output_dtype,
    shape_alignment,
    target_architecture,
)
from gemmgen.spec import SpecFile

PROBLEM_RULES: tuple[Rule, ...] = (
    target_architecture,
    operand_dtypes,
    accumulator_dtype,
    output_dtype,
    shape_alignment,
    epilogue_ops,
    epilogue_factors,
)
"""Rules of what the spec states and nobody chooses: one plan that breaks them speaks for all."""

STORE_RULES = frozenset(map(rule_id, (ring_depth, smem_capacity, epilogue_subtile, epilogue_buffers)))
"""Rules on which it depends how D is stored: a plan that breaks only others speaks for its configuration."""

Rejected = tuple[Plan, tuple[Violation, ...]]


def plan_spec(source: SpecFile) -> Plan:
    """Return the best legal plan for a spec.

    Raises:
        GemmgenError: No combination is legal; carries what is wrong with the one that comes closest.
    """
    shape = shape_of(source.spec)
    best: tuple[tuple[float, ...], int, Plan] | None = None
    rejected: list[Rejected] = []
    bounded = [(cost(found.outline, shape), found) for found in configurations(source.spec)]
    hopeless = any(True for rule in PROBLEM_RULES for _ in rule(bounded[0][1].outline))
    for number in sorted(range(len(bounded)), key=lambda number: bounded[number][0]):
        bound, configuration = bounded[number]
        if best is not None and bound > best[0]:
            break  # no later configuration is as cheap
        if hopeless and rejected and _blames_the_problem_alone(rejected[-1]):
            break  # no later configuration comes closer
        for plan in configuration.plans():
            ranked = cost(plan, shape)
            if best is not None and (ranked, number) >= best[:2]:
                continue  # ties go to the choice that is listed first
            if not (violations := judge(plan)):
                best = (ranked, number, plan)
                continue
            rejected.append((plan, violations))
            if STORE_RULES.isdisjoint(violation.rule for violation in violations):
                break
    if best is None:
        raise GemmgenError(source.diagnose(violation) for violation in closest(rejected, source, shape))
    return best[2]


def _blames_the_problem_alone(candidate: Rejected) -> bool:
    rules = set(map(rule_id, PROBLEM_RULES))
    return all(violation.rule in rules for violation in candidate[1]) and not overdraft(candidate[0])


def closest(rejected: Sequence[Rejected], source: SpecFile, shape: Shape) -> list[Violation]:
    """Return what is wrong with the plan for which the spec's own values are most to blame, and least wrong.

    A violation in a field that the planner chose is reported only if the spec's fields have none.
    """

    def stated(violations: tuple[Violation, ...]) -> list[Violation]:
        return [violation for violation in violations if violation.field in source.positions]

    def wrong(candidate: Rejected) -> tuple[int, int]:
        by_spec = len(stated(candidate[1]))
        return len(candidate[1]) - by_spec, by_spec

    fewest = min(map(wrong, rejected))
    tied = [candidate for candidate in rejected if wrong(candidate) == fewest]
    _, violations = min(tied, key=lambda candidate: (overdraft(candidate[0]), cost(candidate[0], shape)))
    return sorted(stated(violations) or violations, key=lambda violation: source.locate(violation.field))
