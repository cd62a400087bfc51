"""From a spec to a plan: enumerate what the spec leaves open, judge by the rules, rank by cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gemmgen.errors import GemmgenError, Violation
from gemmgen.plan.bounds import most_consumer_registers, most_stages
from gemmgen.plan.cost import cost, overdraft
from gemmgen.plan.dtype import DTYPES
from gemmgen.plan.plan import Plan
from gemmgen.plan.rules import judge
from gemmgen.spec import Spec, SpecFile
from gemmgen.target import GPUS

DEFAULT_SHAPE = (8192, 8192, 8192)
"""The problem [M, N, K] that an open spec is planned for when it names none under ``bench``."""

CHOICES: dict[str, tuple[object, ...]] = {
    "cta_tile_m": (128, 256),
    "cta_tile_n": (256, 128, 64, 32),
    "cta_tile_k": (64, 128),
    "cluster_m": (1, 2),
    "consumers": (2, 1),
    "outstanding_mmas": (0, 1),
    "subtile_n": (128, 64, 32, 256),
    "epilogue_buffers": (1, 2),
}
"""What the planner tries for a decision that a spec leaves open; ties in cost go to earlier values.

Three decisions follow from others: a narrow tile is stored whole, the ring is as deep as shared memory
allows, and the consumers get all the registers that the producer leaves.
"""

DEEPEST_RING = 8
"""Stages beyond which a ring hides nothing more."""

DERIVED = {"stages": 1, "consumer_registers": 0}
"""Placeholders, until the other decisions are there to derive these from."""

DEFAULTS = {"cluster_n": 1, "producer_registers": 40, "order": "snake", "width": 16}
"""Decisions that no rule couples to another one, with values that ran well; no record isolates them."""


def pinned(spec: Spec) -> dict[str, object]:
    """Return the decisions that the spec states, by the name of the plan's field."""
    stated = {
        "cta_tile_m": spec.tile.m,
        "cta_tile_n": spec.tile.n,
        "cta_tile_k": spec.tile.k,
        "cluster_m": spec.cluster.m,
        "cluster_n": spec.cluster.n,
        "stages": spec.buffering.stages,
        "outstanding_mmas": spec.buffering.outstanding_mmas,
        "epilogue_buffers": spec.buffering.epilogue,
        "consumers": spec.warp_specialization.consumers,
        "producer_registers": spec.warp_specialization.registers.producer,
        "consumer_registers": spec.warp_specialization.registers.consumer,
        "order": spec.schedule.order,
        "width": spec.schedule.width,
        "subtile_n": spec.epilogue.subtile_n,
    }
    return {name: value for name, value in stated.items() if value is not None}


def candidates(spec: Spec) -> Iterator[Plan]:
    """Yield a plan for every combination of values that the spec leaves open, legal or not."""
    fixed = DEFAULTS | pinned(spec)
    problem = {
        "title": spec.title,
        "gpu": GPUS[spec.target],
        "a_dtype": DTYPES[spec.operands.a.dtype],
        "b_dtype": DTYPES[spec.operands.b.dtype],
        "d_dtype": DTYPES[spec.operands.d.dtype],
        "a_major": spec.operands.a.major or "k",
        "b_major": spec.operands.b.major or "k",
        "check_shapes": spec.check.shapes if spec.check else (),
        "bench_shapes": spec.bench.shapes if spec.bench else (),
    }
    open_fields = [name for name in CHOICES if name not in fixed]
    for values in itertools.product(*(CHOICES[name] for name in open_fields)):
        decisions = DERIVED | problem | fixed | dict(zip(open_fields, values, strict=True))
        plan = Plan(**decisions)  # pyright: ignore[reportArgumentType]
        if "subtile_n" not in fixed:
            plan = replace(plan, subtile_n=min(plan.subtile_n, plan.cta_tile_n))
        if "consumer_registers" not in fixed:
            plan = balanced(plan)
        yield plan if "stages" in fixed else filled(plan)


def balanced(plan: Plan) -> Plan:
    """Give the consumers all the registers that the producer leaves, in equal shares."""
    return replace(plan, consumer_registers=most_consumer_registers(plan))


def filled(plan: Plan) -> Plan:
    """Give the ring all the stages that shared memory holds, up to ``DEEPEST_RING`` and at least one."""
    return replace(plan, stages=max(1, min(DEEPEST_RING, most_stages(plan))))


def plan_spec(source: SpecFile) -> Plan:
    """Return the best legal plan for a spec.

    Raises:
        GemmgenError: No combination is legal; carries what is wrong with the one that comes closest.
    """
    shape = source.spec.bench.shapes[0] if source.spec.bench else DEFAULT_SHAPE
    best: tuple[tuple[float, ...], Plan] | None = None
    rejected: list[tuple[Plan, tuple[Violation, ...]]] = []
    for plan in candidates(source.spec):
        ranked = cost(plan, shape)
        if best is not None and ranked >= best[0]:
            continue
        if violations := judge(plan):
            rejected.append((plan, violations))
        else:
            best = (ranked, plan)
    if best is None:
        raise GemmgenError(source.diagnose(violation) for violation in closest(rejected, source, shape))
    return best[1]


def closest(
    rejected: Sequence[tuple[Plan, tuple[Violation, ...]]], source: SpecFile, shape: tuple[int, int, int]
) -> list[Violation]:
    """Return what is wrong with the plan for which the spec's own values are most to blame, and least wrong.

    A violation in a field that the planner chose is reported only if the spec's fields have none.
    """

    def stated(violations: tuple[Violation, ...]) -> list[Violation]:
        return [violation for violation in violations if violation.field in source.positions]

    def wrong(candidate: tuple[Plan, tuple[Violation, ...]]) -> tuple[int, int]:
        by_spec = len(stated(candidate[1]))
        return len(candidate[1]) - by_spec, by_spec

    fewest = min(map(wrong, rejected))
    tied = [candidate for candidate in rejected if wrong(candidate) == fewest]
    _, violations = min(tied, key=lambda candidate: (overdraft(candidate[0]), cost(candidate[0], shape)))
    return sorted(stated(violations) or violations, key=lambda violation: source.locate(violation.field))
