"""From a spec to a plan: enumerate what the spec leaves open, judge by the rules, rank by cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from gemmgen.errors import GemmgenError, Violation
from gemmgen.hardware import GPUS
from gemmgen.plan.choices import foreign_choices
from gemmgen.plan.decisions import problem_of
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import judge
from gemmgen.plan.search import Family
from gemmgen.plan.tcgen05.family import TCGEN05_FAMILY
from gemmgen.plan.wgmma.family import WGMMA_FAMILY
from gemmgen.problem import Shape
from gemmgen.spec import Spec, SpecFile

FAMILIES = cast(
    "Mapping[str, Family[Kernel]]",
    {"wgmma": WGMMA_FAMILY, "tcgen05": TCGEN05_FAMILY},
)
"""Each family by its instruction. The cast is safe: a family is only given kernels that it made."""


def family_of(spec: Spec) -> Family[Kernel]:
    """Return the family of a spec's target."""
    return FAMILIES[GPUS[spec.target].architecture.mma]


def family_for(kernel: Kernel) -> Family[Kernel]:
    """Return the family that made a kernel."""
    return FAMILIES[kernel.architecture.mma]


Rejected = tuple[Kernel, tuple[Violation, ...]]


def plan_spec(source: SpecFile) -> Kernel:
    """Return the best legal plan for a spec.

    Raises:
        GemmgenError: No combination is legal; carries what is wrong with the one that comes closest.
    """
    shapes, family = problem_of(source.spec).planned_shapes, family_of(source.spec)
    if foreign := foreign_choices(source.spec, family):
        in_order = sorted(foreign, key=lambda violation: source.locate(violation.field))
        raise GemmgenError(map(source.diagnose, in_order))
    best: tuple[tuple[float, ...], int, Kernel] | None = None
    rejected: list[Rejected] = []
    bounded = [
        (family.cost_over(found.lower_bound, shapes), found)
        for found in family.space.configurations(source.spec)
    ]
    hopeless = bool(judge(bounded[0][1].lower_bound, family.problem_rules))
    for number in sorted(range(len(bounded)), key=lambda number: bounded[number][0]):
        bound, configuration = bounded[number]
        if best is not None and bound > best[0]:
            break  # no later configuration is as cheap
        if hopeless and rejected and _blames_the_problem_alone(rejected[-1], family):
            break  # no later configuration comes closer
        for plan in configuration.kernels():
            ranked = family.cost_over(plan, shapes)
            if best is not None and (ranked, number) >= best[:2]:
                continue  # ties go to the choice that is listed first
            if not (violations := family.judge(plan)):
                best = (ranked, number, plan)
                continue
            rejected.append((plan, violations))
            if family.store_rules.isdisjoint(violation.rule for violation in violations):
                break
    if best is None:
        raise GemmgenError(
            source.diagnose(violation) for violation in closest(rejected, source, shapes, family)
        )
    return best[2]


def _blames_the_problem_alone(candidate: Rejected, family: Family[Kernel]) -> bool:
    rules = family.problem_rule_ids
    return all(violation.rule in rules for violation in candidate[1]) and not family.excess(candidate[0])


def closest(
    rejected: Sequence[Rejected], source: SpecFile, shapes: Sequence[Shape], family: Family[Kernel]
) -> list[Violation]:
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
    _, violations = min(
        tied, key=lambda candidate: (family.excess(candidate[0]), family.cost_over(candidate[0], shapes))
    )
    return sorted(stated(violations) or violations, key=lambda violation: source.locate(violation.field))
