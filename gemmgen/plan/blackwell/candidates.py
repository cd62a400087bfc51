"""What can be decided for a Blackwell kernel where a spec decides nothing, or names values to choose from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from gemmgen.plan.blackwell.bounds import most_stages, needed_worker_registers
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.decisions import pinned, problem_of, searched
from gemmgen.plan.family import Configuration
from gemmgen.plan.problem import Operand, Problem
from gemmgen.spec import Spec
from gemmgen.target import PADDED_K, TCGEN05

Decisions = dict[str, object]
"""Values by the name of the plan's field."""

STEP_BYTES = (128, 256)
"""Rows of the operands' tiles along K in shared memory: 128 fill the widest swizzle."""
CHOICES: dict[str, tuple[object, ...]] = {
    "cta_tile_n": (256, 128, 64),
    "cluster_m": (2, 1),
    "accumulators": (2, 1),
}
"""What is tried for a decision that a spec leaves open; ties in cost go to earlier values."""
STORES: dict[str, tuple[object, ...]] = {"subtile_n": (64, 32, 128), "epilogue_buffers": (2, 1)}
"""The same for how D is stored: it takes shared memory from the ring, and no time that the cost knows."""
MEMORY = ("stages",)
"""What is derived from the shared memory that is left, but for values that a spec names."""
WORKER_REGISTERS = 40
"""What workers are given at least: the epilogue has all that it can use besides."""
DEEPEST_RING = 8
"""Stages beyond which a ring hides nothing more."""
DEFAULTS: Decisions = {
    "cta_tile_m": TCGEN05.m[-1],
    "cluster_n": 1,
    "schedule_kind": "persistent",
    "order": "snake",
    "minor": "m",
    "width": 8,
    "occupancy": 1,
}
"""Decisions that no rule couples to another one; none of them was measured on a Blackwell GPU."""


@dataclass(frozen=True)
class BlackwellConfiguration(Configuration):
    """The decisions that set a plan's time, stated or tried, and the stores that go with them."""

    problem: Problem
    decisions: Decisions
    stores: dict[str, tuple[object, ...]]

    @cached_property
    def outline(self) -> Tcgen05Plan:
        """The configuration with the deepest ring that is tried: no plan of it is cheaper."""
        tile_n = self.decisions["cta_tile_n"]
        open_decisions: Decisions = {
            "stages": DEEPEST_RING,
            "subtile_n": tile_n,
            "epilogue_buffers": 1,
            "a_swizzle_bytes": 1,
            "b_swizzle_bytes": 1,
            "worker_registers": WORKER_REGISTERS,
        }
        plan = Tcgen05Plan(problem=self.problem, **(open_decisions | self.decisions))  # pyright: ignore[reportArgumentType]
        derived = {
            "a_swizzle_bytes": plan.widest_swizzle(plan.a_row, self.problem.a.smem_bits),
            "b_swizzle_bytes": plan.widest_swizzle(plan.b_row, self.problem.b.smem_bits),
        }
        plan = replace(plan, **{name: value for name, value in derived.items() if name not in self.decisions})
        if "worker_registers" in self.decisions:
            return plan
        return replace(plan, worker_registers=max(WORKER_REGISTERS, needed_worker_registers(plan)))

    def plans(self) -> Iterator[Tcgen05Plan]:
        """Yield a plan for each way to store D, legal or not, each once."""
        seen: set[Tcgen05Plan] = set()
        for values in itertools.product(*self.stores.values()):
            store = dict(zip(self.stores, values, strict=True))
            plan = self._stored(store)
            if "stages" not in (*self.decisions, *store):
                plan = replace(plan, stages=max(1, min(DEEPEST_RING, most_stages(plan))))
            if plan not in seen:
                seen.add(plan)
                yield plan

    def _stored(self, store: Decisions) -> Tcgen05Plan:
        """Return the outline with a way to store D, in so far as its tile has one."""
        tile_n = self.outline.cta_tile_n
        if "subtile_n" not in self.decisions:
            # Sub-tiles would part the columns of one CTA from another's.
            whole = self.outline.cluster_n > 1
            wanted = store["subtile_n"]
            assert isinstance(wanted, int)
            store = store | {"subtile_n": tile_n if whole else min(wanted, tile_n)}
        plan = replace(self.outline, **store)  # pyright: ignore[reportArgumentType]
        if "epilogue_buffers" not in self.decisions:
            plan = replace(plan, epilogue_buffers=min(plan.epilogue_buffers, plan.subtiles))
        return plan


def configurations(spec: Spec) -> Iterator[BlackwellConfiguration]:
    """Yield every combination of values that the spec leaves open, legal or not."""
    stated, problem, wanted = pinned(spec), problem_of(spec), searched(spec)
    fixed = DEFAULTS | _implied(stated) | stated
    fixed = {name: value for name, value in fixed.items() if name not in wanted or name in stated}
    choices = CHOICES | {"cta_tile_k": _step_choices(problem)} | wanted
    stores = {name: values for name, values in (STORES | wanted).items() if name in (*STORES, *MEMORY)}
    open_choices = {name: values for name, values in choices.items() if name not in (*fixed, *stores)}
    open_stores = {name: values for name, values in stores.items() if name not in fixed}
    for values in itertools.product(*open_choices.values()):
        yield BlackwellConfiguration(
            problem, fixed | dict(zip(open_choices, values, strict=True)), open_stores
        )


def _implied(stated: Decisions) -> Decisions:
    """Return the decisions that follow from a single stated one."""
    return {"minor": "n", "width": 1} if stated.get("order") == "row" else {}


def _step_choices(problem: Problem) -> tuple[int, ...]:
    """Return the K steps that fill swizzled rows of the wider operand, and blocks of scales."""

    def least(operand: Operand) -> int:
        return PADDED_K if operand.padded else 1

    bits = max(problem.a.smem_bits, problem.b.smem_bits)
    smallest = max(least(problem.a), least(problem.b))
    return tuple(dict.fromkeys(max(smallest, size * 8 // bits) for size in STEP_BYTES))
