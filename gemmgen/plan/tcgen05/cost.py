"""What a Blackwell plan is expected to cost on a problem: ranks, judges nothing.

No Blackwell GPU was measured. The terms are those of the Hopper model for which a datasheet has figures: the
tensor cores' rate, the bytes of L2, idle SMs, and the epilogue where nothing covers it. They order plans;
a time that they give is no prediction to rely on.
"""

from __future__ import annotations

import math

from gemmgen.hardware import TCGEN05
from gemmgen.plan.search import Estimate, estimated, excess_of, l2_bytes, whole_cycles
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel
from gemmgen.problem import Shape

DRAIN_BYTES_PER_CYCLE = 128
"""[derived] Of D, through shared memory, whose bandwidth per SM this is; tensor memory is read faster."""
START_CYCLES = 3_200
"""[derived] From a launch to the first MMA and from the last store to its end: Hopper's figure."""


def mma_cycles(plan: Tcgen05Kernel) -> float:
    """Return the cycles of a CTA's tensor cores for one K step of its tile."""
    bits = max(plan.problem.a.smem_bits, plan.problem.b.smem_bits)
    fma_per_cycle = plan.architecture.mma_16bit_fma_per_cycle * 16 / bits
    return plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k / fma_per_cycle


def loaded_bytes(plan: Tcgen05Kernel) -> float:
    """Return a CTA's share of the bytes that a K step loads, multicast ones divided by who shares them."""
    pairs_m = max(1, plan.cluster_m // plan.cta_group)
    operands = plan.a_loaded_bytes / plan.cluster_n + plan.b_loaded_bytes / pairs_m
    return operands + plan.a_scale_tile_bytes + plan.b_scale_tile_bytes / plan.cluster_m


def drain_cycles(plan: Tcgen05Kernel) -> float:
    """Return the cycles in which the epilogue of one tile moves D."""
    return plan.cta_tile_m * plan.cta_tile_n * plan.problem.d.bytes / DRAIN_BYTES_PER_CYCLE


def _terms(plan: Tcgen05Kernel, shape: Shape) -> dict[str, float]:
    """Return the cycles of the busiest SM by cause."""
    gpu = plan.problem.gpu
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
    """Return what a plan is expected to take for a problem [M, N, K]."""
    return estimated(plan, shape, _terms(plan, shape), loaded_bytes(plan))


def cost(plan: Tcgen05Kernel, shape: Shape) -> tuple[float, ...]:
    """Rank a plan for a problem: the smaller the better, the first difference decides (``COST_ORDER``)."""
    l2 = l2_bytes(plan, shape, loaded_bytes(plan))
    return (whole_cycles(_terms(plan, shape)), l2, -plan.stages * plan.cta_tile_k)


COST_ORDER = ("time", "L2 bytes", "depth of the ring")
"""What the parts of a cost are."""


def excess(plan: Tcgen05Kernel) -> float:
    """Return by how much an illegal kernel exceeds its limits, as a sum of fractions."""
    return excess_of(
        (plan.smem_bytes, plan.smem_limit_bytes),
        (plan.tensor_memory.columns, TCGEN05.tmem_columns),
        (plan.subtile_n, plan.cta_tile_n),
        (plan.epilogue_buffers, plan.subtiles),
    )
