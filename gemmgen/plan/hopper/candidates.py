"""What can be decided where a spec decides nothing: the choices, what follows from them, and all plans.

A *configuration* has every decision on which a plan's time depends; its *plans* are the ways to store D that
go with it. The planner looks at configurations in the order of their cost and completes those that can win.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from gemmgen.plan.decisions import pinned, problem_of, searched
from gemmgen.plan.family import Configuration
from gemmgen.plan.hopper.bounds import most_consumer_registers, most_stages
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.problem import Problem
from gemmgen.spec import Spec
from gemmgen.target import HOPPER, WGMMA

Decisions = dict[str, object]
"""Values by the name of the plan's field."""

KINDS = ("cooperative", "ping_pong")
"""Specializations that are tried for a persistent schedule; other schedules have none."""

STEP_BYTES = (128, 256, 64, 512)
"""Rows of the operands' tiles along K: 128 fill the widest swizzle."""

CHOICES: dict[str, tuple[object, ...]] = {
    "cta_tile_m": (128, 256, 64),
    "cta_tile_n": (256, 128, 64, 32),
    "cluster_m": (1, 2),
    "cluster_n": (1,),
    "consumers": (2, 1),
    "outstanding_mmas": (0, 1),
}
"""What is tried for a decision that a spec leaves open; ties in cost go to earlier values."""

TILED_CHOICES: dict[str, tuple[object, ...]] = {"warps_m": (8, 4), "occupancy": (1, 2, 3)}
"""The same in a tiled schedule, where one CTA can multiply while its neighbours load, start or store."""

STORES: dict[str, tuple[object, ...]] = {"subtile_n": (128, 64, 32, 256), "epilogue_buffers": (1, 2)}
"""The same for how D is stored: it takes shared memory from the ring, and no time that the cost knows."""

DEEPEST_RING = 8
"""Stages beyond which a ring hides nothing more."""

DEFAULTS: Decisions = {
    "schedule_kind": "persistent",
    "producer_registers": 40,
    "order": "snake",
    "minor": "m",
    "width": 16,
    "promote_k": 0,
}
"""Decisions that no rule couples to another one, with values that ran well; no record isolates them."""


PING_PONG_WIDTH = 8
"""The width that ran best with ping-pong, whose consumers have neighbouring tiles."""


@dataclass(frozen=True)
class Derived:
    """A decision that follows from others where the spec leaves it open."""

    name: str
    value: Callable[[WgmmaPlan], object]


TILE_DERIVED = (
    Derived("mma_n", lambda plan: max(1, min(plan.cta_tile_n // plan.warps_n, plan.widest_mma_n))),
    Derived("a_source", lambda plan: _a_source(plan)),
    Derived("a_swizzle_bytes", lambda plan: plan.widest_swizzle(plan.a_row, plan.problem.a.dtype.bits)),
    Derived("b_swizzle_bytes", lambda plan: plan.widest_swizzle(plan.b_row, plan.problem.b.dtype.bits)),
)
"""What follows from the tile and its warps, each from those alone."""
MEMORY_DERIVED = (
    Derived("consumer_registers", most_consumer_registers),
    Derived("stages", lambda plan: max(1, min(DEEPEST_RING, most_stages(plan)))),
)
"""What follows from everything else, in this order."""


@dataclass(frozen=True)
class WgmmaConfiguration(Configuration):
    """The decisions that set a plan's time, stated or tried, and those that the spec leaves open."""

    problem: Problem
    decisions: Decisions
    stores: dict[str, tuple[object, ...]]

    @cached_property
    def outline(self) -> WgmmaPlan:
        """The configuration with the deepest ring that is tried: no plan of it is cheaper."""
        decisions = self.decisions
        tile_n = decisions["cta_tile_n"]
        open_decisions: Decisions = {
            "stages": DEEPEST_RING,
            "consumer_registers": 1,
            "subtile_n": tile_n,
            "epilogue_buffers": 1,
            "warps_n": 1,
            "warps_m": 1 if "warps_m" in decisions else _warps_m(decisions),
        } | dict.fromkeys(("mma_n", "a_source", "a_swizzle_bytes", "b_swizzle_bytes"), 1)
        plan = WgmmaPlan(problem=self.problem, **(open_decisions | decisions))  # pyright: ignore[reportArgumentType]
        return _derive(plan, TILE_DERIVED, decisions)

    def plans(self) -> Iterator[WgmmaPlan]:
        """Yield a plan for each way to store D, legal or not, each once."""
        decisions, outline = self.decisions, self.outline
        stores = {name: values for name, values in self.stores.items() if name not in decisions}
        seen: set[WgmmaPlan] = set()
        for values in itertools.product(*stores.values()):
            store = dict(zip(stores, values, strict=True))
            if "subtile_n" in store:
                # Sub-tiles would part the columns of one CTA, or of one warp along N, from another's.
                whole = outline.cluster_n > 1 or outline.warps_n > 1
                wanted = store["subtile_n"]
                assert isinstance(wanted, int)
                store["subtile_n"] = outline.cta_tile_n if whole else min(wanted, outline.cta_tile_n)
            plan = replace(outline, **store)  # pyright: ignore[reportArgumentType]
            for derived in MEMORY_DERIVED:
                plan = _derive(plan, (derived,), decisions)
            if plan not in seen:
                seen.add(plan)
                yield plan


def configurations(spec: Spec) -> Iterator[WgmmaConfiguration]:
    """Yield every combination of values that the spec leaves open, legal or not."""
    stated, problem, wanted = pinned(spec), problem_of(spec), searched(spec)
    stores = {name: values for name, values in (STORES | wanted).items() if name in STORES}
    for kind in wanted.get("specialization") or _kinds(stated):
        fixed = DEFAULTS | _implied(stated, kind) | {"specialization": kind} | stated
        fixed = {
            name: value for name, value in fixed.items() if name not in wanted or name == "specialization"
        }
        choices = CHOICES | {"cta_tile_k": _step_choices(problem)}
        if fixed.get("schedule_kind") == "tiled":
            choices |= TILED_CHOICES
        choices |= {name: values for name, values in wanted.items() if name not in STORES}
        open_choices = {name: values for name, values in choices.items() if name not in fixed}
        for values in itertools.product(*open_choices.values()):
            yield WgmmaConfiguration(problem, fixed | dict(zip(open_choices, values, strict=True)), stores)


def candidates(spec: Spec) -> Iterator[WgmmaPlan]:
    """Yield a plan for every combination of values that the spec leaves open, legal or not."""
    for configuration in configurations(spec):
        yield from configuration.plans()


def _kinds(stated: Decisions) -> tuple[object, ...]:
    if "specialization" in stated:
        return (stated["specialization"],)
    persistent = stated.get("schedule_kind", "persistent") == "persistent"
    if not persistent:
        return ("none",)  # a program of one tile has nothing to overlap it with
    return KINDS if stated.get("consumers", 2) == 2 else KINDS[:1]


def _implied(stated: Decisions, kind: object) -> Decisions:
    """Return the decisions that follow from a kind of kernel, or from a single stated decision."""
    implied: Decisions = {}
    if kind == "none":
        implied |= {"consumers": 1, "producer_registers": 0, "cluster_m": 1, "cluster_n": 1}
    if stated.get("schedule_kind") != "tiled":
        implied["occupancy"] = 1
    if kind == "ping_pong":
        implied |= {"consumers": 2, "width": PING_PONG_WIDTH}
    if stated.get("schedule_kind") == "single_tile":
        implied |= {"stages": 1, "outstanding_mmas": 0}
    if stated.get("order") == "row":
        implied |= {"minor": "n", "width": 1}
    if stated.get("stages") == 1:  # an MMA in flight needs a second one
        implied["outstanding_mmas"] = 0
    if "promote_k" in stated:  # a sum is promoted after each K step
        implied |= {"cta_tile_k": stated["promote_k"], "outstanding_mmas": 0}
    return implied


def _step_choices(problem: Problem) -> tuple[int, ...]:
    return tuple(size // problem.a.dtype.bytes for size in STEP_BYTES)


def _derive(plan: WgmmaPlan, derived: tuple[Derived, ...], decisions: Decisions) -> WgmmaPlan:
    """Return the plan with those decisions that are open derived from it."""
    found = {item.name: item.value(plan) for item in derived if item.name not in decisions}
    return replace(plan, **found) if found else plan  # pyright: ignore[reportArgumentType]


def _warps_m(decisions: Decisions) -> int:
    """Return the warps along M: two warpgroups where all the tile's rows are one consumer's and suffice."""
    warpgroup = HOPPER.warps_per_warpgroup
    warps_n, tile_m = decisions.get("warps_n", 1), decisions["cta_tile_m"]
    assert isinstance(warps_n, int)
    assert isinstance(tile_m, int)
    lone = decisions["consumers"] == 1 and tile_m >= 2 * WGMMA.m
    return max(warpgroup, 2 * warpgroup // warps_n) if lone else warpgroup


def _a_source(plan: WgmmaPlan) -> str:
    """Return where A is read: of 16 bits it may lie either way in shared memory, of others only along K."""
    return "registers" if plan.problem.a.major == "mn" and plan.problem.a.dtype.bits != 16 else "shared"
