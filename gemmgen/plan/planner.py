"""From a spec to a plan: enumerate what the spec leaves open, judge by the rules, rank by cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gemmgen.errors import GemmgenError, Violation
from gemmgen.plan.bounds import most_consumer_registers, most_stages
from gemmgen.plan.cost import cost, overdraft
from gemmgen.plan.dtype import DTYPES
from gemmgen.plan.plan import Plan
from gemmgen.plan.problem import Operand, Problem, Shape
from gemmgen.plan.rules import judge
from gemmgen.spec import Spec, SpecFile
from gemmgen.target import GPUS, WGMMA

DEFAULT_SHAPE = (8192, 8192, 8192)
"""The problem [M, N, K] that an open spec is planned for when it names none under ``bench``."""

CHOICES: dict[str, tuple[object, ...]] = {
    "schedule_kind": ("persistent",),
    "specialization": ("cooperative",),
    "cta_tile_m": (128, 256, 64),
    "cta_tile_n": (256, 128, 64, 32),
    "cta_tile_k": (64, 128, 32, 256),
    "cluster_m": (1, 2),
    "cluster_n": (1,),
    "consumers": (2, 1),
    "outstanding_mmas": (0, 1),
    "subtile_n": (128, 64, 32, 256),
    "epilogue_buffers": (1, 2),
}
"""What the planner tries for a decision that a spec leaves open; ties in cost go to earlier values."""

UNSPECIALIZED = {"consumers": 1, "producer_registers": 0, "cluster_m": 1, "cluster_n": 1}
"""Decisions that follow where no warp has a role of its own."""

SINGLE_TILE = {"stages": 1, "outstanding_mmas": 0}
"""Decisions that follow where all of K is one step."""

DEEPEST_RING = 8
"""Stages beyond which a ring hides nothing more."""

DEFAULTS = {
    "producer_registers": 40,
    "order": "snake",
    "minor": "m",
    "width": 16,
    "occupancy": 1,
    "promote_k": 0,
}
"""Decisions that no rule couples to another one, with values that ran well; no record isolates them."""


def problem_of(spec: Spec) -> Problem:
    """Return what the spec says that the kernel computes."""
    a, b, c, d = spec.operands.a, spec.operands.b, spec.operands.c, spec.operands.d
    exact = a.dtype == "int8" and b.dtype == "int8"
    return Problem(
        title=spec.title,
        gpu=GPUS[spec.target],
        a=Operand(DTYPES[a.dtype], a.major or "k"),
        b=Operand(DTYPES[b.dtype], b.major or "k"),
        c=DTYPES[c.dtype] if c else None,
        d=DTYPES[d.dtype],
        accumulator=DTYPES[spec.accumulator or ("int32" if exact else "fp32")],
        alpha=1.0 if spec.epilogue.alpha is None else spec.epilogue.alpha,
        beta=1.0 if spec.epilogue.beta is None else spec.epilogue.beta,
        ops=spec.epilogue.ops,
        check_shapes=spec.check.shapes if spec.check else (),
        bench_shapes=spec.bench.shapes if spec.bench else (),
    )


def pinned(spec: Spec) -> dict[str, object]:
    """Return the decisions that the spec states, by the name of the plan's field."""
    roles = spec.warp_specialization
    stated = {
        "cta_tile_m": spec.tile.m,
        "cta_tile_n": spec.tile.n,
        "cta_tile_k": spec.tile.k,
        "mma_n": spec.mma.n,
        "promote_k": spec.mma.promote_k,
        "warps_m": spec.warps.m,
        "warps_n": spec.warps.n,
        "cluster_m": spec.cluster.m,
        "cluster_n": spec.cluster.n,
        "a_source": spec.operands.a.source,
        "a_swizzle_bytes": spec.operands.a.swizzle,
        "b_swizzle_bytes": spec.operands.b.swizzle,
        "stages": spec.buffering.stages,
        "outstanding_mmas": spec.buffering.outstanding_mmas,
        "epilogue_buffers": spec.buffering.epilogue,
        "subtile_n": spec.epilogue.subtile_n,
        "specialization": roles.kind,
        "consumers": roles.consumers,
        "producer_registers": roles.registers.producer,
        "consumer_registers": roles.registers.consumer,
        "schedule_kind": spec.schedule.kind,
        "order": spec.schedule.order,
        "minor": spec.schedule.minor,
        "width": spec.schedule.width,
        "occupancy": spec.occupancy,
    }
    return {name: value for name, value in stated.items() if value is not None}


def candidates(spec: Spec) -> Iterator[Plan]:
    """Yield a plan for every combination of values that the spec leaves open, legal or not."""
    stated = pinned(spec)
    problem = problem_of(spec)
    if stated.get("schedule_kind", "persistent") != "persistent":
        stated = {"specialization": "none"} | stated  # a program of one tile has nothing to overlap it with
    implied: dict[str, object] = {}
    if stated.get("specialization") == "none":
        implied |= UNSPECIALIZED
    if stated.get("specialization") == "ping_pong":
        implied["consumers"] = 2
    if stated.get("schedule_kind") == "single_tile":
        implied |= SINGLE_TILE
    if stated.get("order") == "row":
        implied |= {"minor": "n", "width": 1}
    fixed = DEFAULTS | implied | stated
    open_fields = [name for name in CHOICES if name not in fixed]
    seen: set[Plan] = set()
    for values in itertools.product(*(CHOICES[name] for name in open_fields)):
        decisions = fixed | dict(zip(open_fields, values, strict=True))
        plan = completed(problem, decisions, open_fields)
        if plan not in seen:
            seen.add(plan)
            yield plan


@dataclass(frozen=True)
class Derived:
    """A decision that follows from others where the spec leaves it open."""

    name: str
    value: Callable[[Plan], object]


DERIVED = (
    Derived("warps_n", lambda plan: 1),
    Derived("warps_m", lambda plan: _warps_m(plan)),
    Derived("mma_n", lambda plan: max(1, min(plan.cta_tile_n // plan.warps_n, plan.widest_mma_n))),
    Derived("a_source", lambda plan: _a_source(plan)),
    Derived("a_swizzle_bytes", lambda plan: plan.widest_swizzle(plan.a_row, plan.problem.a.dtype)),
    Derived("b_swizzle_bytes", lambda plan: plan.widest_swizzle(plan.b_row, plan.problem.b.dtype)),
    Derived("consumer_registers", most_consumer_registers),
    Derived("stages", lambda plan: max(1, min(DEEPEST_RING, most_stages(plan)))),
)
"""In this order: each may rely on those before it."""


def completed(problem: Problem, decisions: dict[str, object], open_fields: Sequence[str]) -> Plan:
    """Return the plan of these decisions, with those that follow from them."""
    placeholders = {derived.name: 1 for derived in DERIVED}
    plan = Plan(problem=problem, **(placeholders | decisions))  # pyright: ignore[reportArgumentType]
    if "subtile_n" in open_fields:
        whole = plan.cluster_n > 1  # sub-tiles would part the columns of one CTA from another's
        plan = replace(plan, subtile_n=plan.cta_tile_n if whole else min(plan.subtile_n, plan.cta_tile_n))
    for derived in DERIVED:
        if derived.name not in decisions:
            plan = replace(plan, **{derived.name: derived.value(plan)})
    return plan


def _warps_m(plan: Plan) -> int:
    """Return the warps along M: two warpgroups where all the tile's rows are one consumer's and suffice."""
    warpgroup = plan.architecture.warps_per_warpgroup
    lone = plan.consumers == 1 and plan.cta_tile_m >= 2 * WGMMA.m
    return max(warpgroup, 2 * warpgroup // plan.warps_n) if lone else warpgroup


def _a_source(plan: Plan) -> str:
    """Return where A is read: of 16 bits it may lie either way in shared memory, of others only along K."""
    return "registers" if plan.problem.a.major == "mn" and plan.problem.a.dtype.bits != 16 else "shared"


def shape_of(spec: Spec) -> Shape:
    """Return the problem for which an open spec is planned."""
    return spec.bench.shapes[0] if spec.bench else DEFAULT_SHAPE


def plan_spec(source: SpecFile) -> Plan:
    """Return the best legal plan for a spec.

    Raises:
        GemmgenError: No combination is legal; carries what is wrong with the one that comes closest.
    """
    shape = shape_of(source.spec)
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
    rejected: Sequence[tuple[Plan, tuple[Violation, ...]]], source: SpecFile, shape: Shape
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
