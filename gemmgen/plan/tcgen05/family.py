"""The family of Blackwell kernels: the values that are tried for open decisions, their cost, and the words.

No Blackwell GPU was measured. The cost has the terms of the Hopper model for which a datasheet has figures:
the tensor cores' rate, the bytes of L2, idle SMs, and an uncovered epilogue. They order plans; a time that
they give is no prediction to rely on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from gemmgen.hardware import PADDED_K, TCGEN05
from gemmgen.plan.capacity import stages_that_fit
from gemmgen.plan.decisions import LINES
from gemmgen.plan.rule import altered
from gemmgen.plan.search import (
    Branch,
    Choices,
    Estimate,
    Family,
    Space,
    Values,
    estimated,
    excess_of,
    l2_bytes,
    narrow_cluster,
    narrow_tile,
    tile_and_cluster,
    whole_cycles,
    whole_number,
)
from gemmgen.plan.tcgen05.bounds import needed_worker_registers
from gemmgen.plan.tcgen05.expectations import EXPECTATIONS
from gemmgen.plan.tcgen05.resource_rules import RESOURCE_RULES
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel
from gemmgen.plan.tcgen05.tile_rules import PROBLEM_RULES, TILE_RULES
from gemmgen.problem import Matmul, Operand, Request, Shape

STEP_BYTES = (128, 256)
"""Rows of the operands' tiles along K in shared memory: 128 fill the widest swizzle."""
CHOICES: Choices = {
    "cta_tile_n": (256, 128, 64),
    "cluster_m": (2, 1),
    "accumulators": (2, 1),
}
"""Values that are tried for open decisions; of equal costs the earlier value wins."""
STORES: Choices = {"subtile_n": (64, 32, 128), "epilogue_buffers": (2, 1)}
"""Ways to store D that are tried: they take shared memory from the ring, and no time that the cost knows."""
MEMORY = ("stages",)
"""Decisions that follow from the remaining shared memory, unless a spec names values for them."""
WORKER_REGISTERS = 40
"""Fewest registers of workers: the epilogue has all that it can use besides."""
DEEPEST_RING = 8
"""Stages beyond which a ring hides nothing more."""
DEFAULTS: Choices = {
    "cta_tile_m": (TCGEN05.m[-1],),
    "cluster_n": (1,),
    "schedule_kind": ("persistent",),
    "order": ("snake",),
    "minor": ("m",),
    "width": (8,),
    "occupancy": (1,),
}
"""Decisions that no rule couples to another one; none of them was measured on a Blackwell GPU."""


class Tcgen05Space(Space[Tcgen05Kernel]):
    """The search space of Blackwell kernels."""

    stores = STORES
    memory = MEMORY

    def branches(
        self,
        request: Request,
        stated: Values,
        wanted: Choices,  # noqa: ARG002  there is one branch, whatever is wanted
    ) -> Iterator[Branch]:
        """Yield the only branch."""
        yield Branch({**CHOICES, **DEFAULTS, **_implied(stated), "cta_tile_k": _step_choices(request.matmul)})

    def bound(self, request: Request, decisions: Values) -> Tcgen05Kernel:
        """Return the kernel with the deepest ring that is tried: no kernel of these decisions is cheaper."""
        open_decisions = {
            "stages": DEEPEST_RING,
            "subtile_n": decisions["cta_tile_n"],
            "epilogue_buffers": 1,
            "a_swizzle_bytes": 1,
            "b_swizzle_bytes": 1,
            "worker_registers": WORKER_REGISTERS,
        }
        kernel = self.decided(Tcgen05Kernel, request, {**open_decisions, **decisions})
        derived = {
            "a_swizzle_bytes": kernel.widest_swizzle(kernel.a_row, kernel.problem.a.smem_bits),
            "b_swizzle_bytes": kernel.widest_swizzle(kernel.b_row, kernel.problem.b.smem_bits),
        }
        kernel = altered(kernel, **{name: value for name, value in derived.items() if name not in decisions})
        if "worker_registers" in decisions:
            return kernel
        return altered(kernel, worker_registers=max(WORKER_REGISTERS, needed_worker_registers(kernel)))

    def stored(self, bound: Tcgen05Kernel, store: Values, decisions: Values) -> Tcgen05Kernel:
        """Return that kernel with a way to store D, in so far as its tile has one."""
        if "subtile_n" not in decisions:
            # Sub-tiles would part the columns of one CTA from another's.
            whole, wanted = bound.cluster_n > 1, whole_number(store["subtile_n"])
            store = {**store, "subtile_n": bound.cta_tile_n if whole else min(wanted, bound.cta_tile_n)}
        kernel = altered(bound, **store)
        if "epilogue_buffers" not in decisions:
            kernel = altered(kernel, epilogue_buffers=min(kernel.epilogue_buffers, kernel.subtiles))
        return kernel

    def filled(self, kernel: Tcgen05Kernel, decided: Collection[str]) -> Tcgen05Kernel:
        """Return a kernel with what follows from the memory that is left, where that is not decided."""
        if "stages" in decided:
            return kernel
        return altered(kernel, stages=max(1, min(DEEPEST_RING, stages_that_fit(kernel))))

    def preferred(self, kernel: Tcgen05Kernel) -> Choices:
        """Return the values that are tried for each decision of a kernel, the best first."""
        steps = _step_choices(kernel.problem)
        return {**STORES, **CHOICES, **DEFAULTS, **_implied(vars(kernel)), "cta_tile_k": steps}


def _implied(stated: Values) -> Choices:
    """Return the decisions that follow from a single stated one."""
    minor = LINES.get(str(stated.get("order")))
    return {"minor": (minor,), "width": (1,)} if minor else {}


def _step_choices(problem: Matmul) -> tuple[int, ...]:
    """Return the K steps that fill swizzled rows of the wider operand, and blocks of scales."""

    def least(operand: Operand) -> int:
        return PADDED_K if operand.padded else 1

    bits = max(problem.a.smem_bits, problem.b.smem_bits)
    smallest = max(least(problem.a), least(problem.b))
    return tuple(dict.fromkeys(max(smallest, size * 8 // bits) for size in STEP_BYTES))


def _name(plan: Tcgen05Kernel) -> str:
    """Return how a Blackwell plan gets its tiles."""
    return plan.schedule_kind.replace("_", " ")


def _label(plan: Tcgen05Kernel) -> str:
    """Return the decisions of a plan's configuration in one line."""
    accumulators = f"{plan.accumulators} accumulator{'s' * (plan.accumulators > 1)}"
    return ", ".join([_name(plan), *tile_and_cluster(plan), accumulators])


def _as_dict(plan: Tcgen05Kernel) -> dict[str, object]:
    """Return the decisions of a Blackwell plan as plain data."""
    return {
        "kernel": _name(plan),
        "tile": [plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k],
        "cluster": [plan.cluster_m, plan.cluster_n],
        "stages": plan.stages,
        "accumulators": plan.accumulators,
        "epilogue": [plan.epilogue_buffers, plan.subtile_n],
        "order": [plan.order, plan.minor, plan.width],
        "smem_bytes": plan.smem_bytes,
        "tmem_columns": plan.tmem_columns,
    }


# --- the cost

DRAIN_BYTES_PER_CYCLE = 128
"""[derived] Of C and D, through shared memory, whose bandwidth per SM this is; tensor memory is faster."""
START_CYCLES = 3_200
"""[derived] From a launch to the first MMA and from the last store to its end: Hopper's figure."""


def mma_cycles(plan: Tcgen05Kernel) -> float:
    """Return the cycles of a CTA's tensor cores for one K step of its tile."""
    bits = max(plan.problem.a.smem_bits, plan.problem.b.smem_bits)
    fma_per_cycle = plan.architecture.mma_16bit_fma_per_cycle * 16 / bits
    return plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k / fma_per_cycle


def loaded_bytes(plan: Tcgen05Kernel) -> float:
    """Return a CTA's share of the bytes that a K step loads, multicast ones divided by who shares them."""
    return plan.stage.bytes_per_cta


def drain_cycles(plan: Tcgen05Kernel) -> float:
    """Return the cycles in which the epilogue of one tile moves C and D."""
    element_bytes = plan.problem.d.bytes + (plan.problem.c.bytes if plan.problem.c else 0)
    return plan.cta_tile_m * plan.cta_tile_n * element_bytes / DRAIN_BYTES_PER_CYCLE


def _terms(plan: Tcgen05Kernel, shape: Shape) -> dict[str, float]:
    """Return the cycles of the busiest SM by cause."""
    gpu = plan.gpu
    programs = gpu.clusters(plan.cluster_size)
    if not programs:
        return {"tensor cores": math.inf}
    tiles_m, tiles_n = plan.tiles(shape)
    rounds = math.ceil(tiles_m * tiles_n / programs)
    k_steps = math.ceil(shape[2] / plan.cta_tile_k)
    tensor = mma_cycles(plan)
    l2 = loaded_bytes(plan) / plan.architecture.l2_bytes_per_cycle_and_sm
    tile_fma = plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k
    ideal = math.prod(shape) / tile_fma * tensor / gpu.sm_count
    main_loop = k_steps * max(tensor, l2)
    drain = drain_cycles(plan)
    # With a second accumulator only what exceeds the main loop is left, and the last tile's.
    exposed = drain + (rounds - 1) * max(0.0, drain - main_loop) if plan.accumulators > 1 else rounds * drain
    terms = {"tensor cores": ideal, "idle SMs": rounds * k_steps * tensor - ideal}
    if l2 > tensor:
        terms["L2"] = rounds * k_steps * (l2 - tensor)
    return terms | {"epilogue": exposed, "start": START_CYCLES}


def estimate(plan: Tcgen05Kernel, shape: Shape) -> Estimate:
    """Return the estimate of a plan for a problem [M, N, K]."""
    return estimated(plan, shape, _terms(plan, shape), loaded_bytes(plan))


def costs(plan: Tcgen05Kernel, shapes: Sequence[Shape]) -> list[tuple[float, ...]]:
    """Rank a plan for each problem: the smaller the better, the first difference decides (``COST_ORDER``)."""
    loaded, depth = loaded_bytes(plan), plan.stages * plan.cta_tile_k
    return [(whole_cycles(_terms(plan, shape)), l2_bytes(plan, shape, loaded), -depth) for shape in shapes]


COST_ORDER = ("time", "L2 bytes", "depth of the ring")
"""Names of the parts of a cost."""


def excess(plan: Tcgen05Kernel) -> float:
    """Return by how much an illegal kernel exceeds its limits, as a sum of fractions."""
    return excess_of(
        (plan.smem_bytes, plan.smem_limit_bytes),
        (plan.tensor_memory.columns, TCGEN05.tmem_columns),
        (plan.subtile_n, plan.cta_tile_n),
        (plan.epilogue_buffers, plan.subtiles),
    )


TCGEN05_FAMILY = Family(
    kernel=Tcgen05Kernel,
    space=Tcgen05Space(sides=()),
    rules=(*PROBLEM_RULES, *TILE_RULES, *RESOURCE_RULES),
    expectations=EXPECTATIONS,
    costs=costs,
    cost_order=COST_ORDER,
    estimate=estimate,
    excess=excess,
    columns=(
        ("kernel", _name),
        ("tile", narrow_tile),
        ("cluster", narrow_cluster),
        ("order", lambda plan: str(plan.order)),
        ("minor", lambda plan: str(plan.minor)),
        ("width", lambda plan: str(plan.width)),
        ("stages", lambda plan: str(plan.stages)),
        ("sums", lambda plan: str(plan.accumulators)),
        ("D", lambda plan: f"{plan.epilogue_buffers} x {plan.subtile_n}"),
        ("smem", lambda plan: str(plan.smem_bytes)),
        ("tmem", lambda plan: str(plan.tmem_columns)),
    ),
    legend="order of tiles, its minor dimension and width; sums: accumulators; D: buffers x columns; "
    "smem: bytes of a CTA; tmem: columns",
    label=_label,
    as_dict=_as_dict,
)
