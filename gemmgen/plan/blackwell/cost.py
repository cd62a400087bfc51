"""What a Blackwell plan is expected to cost on a problem: ranks, judges nothing.

No Blackwell GPU was measured. The terms are those of the Hopper model for which a datasheet has figures: the
tensor cores' rate, the bytes of L2, idle SMs, and the epilogue where nothing covers it. They order plans;
a time that they give is no prediction to rely on.
"""

from __future__ import annotations

import math

from gemmgen.plan.blackwell.bounds import smem_limit
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.estimate import Estimate
from gemmgen.plan.problem import Shape
from gemmgen.target import TCGEN05

DRAIN_BYTES_PER_CYCLE = 128
"""[derived] Of D, through shared memory, whose bandwidth per SM this is; tensor memory is read faster."""
START_CYCLES = 3_200
"""[derived] From a launch to the first MMA and from the last store to its end: Hopper's figure."""


def mma_cycles(plan: Tcgen05Plan) -> float:
    """Return the cycles of a CTA's tensor cores for one K step of its tile."""
    bits = max(plan.problem.a.smem_bits, plan.problem.b.smem_bits)
    fma_per_cycle = plan.architecture.mma_16bit_fma_per_cycle * 16 / bits
    return plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k / fma_per_cycle


def loaded_bytes(plan: Tcgen05Plan) -> float:
    """Return a CTA's share of the bytes that a K step loads, multicast ones divided by who shares them."""
    pairs_m = max(1, plan.cluster_m // plan.cta_group)
    operands = plan.a_loaded_bytes / plan.cluster_n + plan.b_loaded_bytes / pairs_m
    return operands + plan.a_scale_tile_bytes + plan.b_scale_tile_bytes / plan.cluster_m


def drain_cycles(plan: Tcgen05Plan) -> float:
    """Return the cycles in which the epilogue of one tile moves D."""
    return plan.cta_tile_m * plan.cta_tile_n * plan.problem.d.bytes / DRAIN_BYTES_PER_CYCLE


def l2_bytes(plan: Tcgen05Plan, shape: Shape) -> int:
    """Return the bytes that programs load for a problem: a tile's A and B and scales at every K step."""
    tiles_m, tiles_n = plan.tiles(shape)
    k_steps = math.ceil(shape[2] / plan.cta_tile_k)
    return round(tiles_m * tiles_n * k_steps * plan.cluster_size * loaded_bytes(plan))


def dram_bytes(plan: Tcgen05Plan, shape: Shape) -> int:
    """Return the fewest bytes from and to DRAM: A, B and their scales read, D written, once."""
    problem, (m, n, k) = plan.problem, shape
    total = m * n * problem.d.bytes
    for operand, rows in ((problem.a, m), (problem.b, n)):
        total += rows * k * operand.dtype.bits // 8
        total += rows * math.ceil(k / operand.scale.vector) if operand.scale else 0
    return total


def _terms(plan: Tcgen05Plan, shape: Shape) -> dict[str, float]:
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


def estimate(plan: Tcgen05Plan, shape: Shape) -> Estimate:
    """Return what a plan is expected to take for a problem [M, N, K]."""
    gpu = plan.problem.gpu
    dram = dram_bytes(plan, shape)
    return Estimate(
        terms=_terms(plan, shape),
        l2_bytes=l2_bytes(plan, shape),
        dram_bytes=dram,
        dram_seconds=dram / gpu.dram_bytes_per_second,
        hz=gpu.sustained_hz,
    )


def cost(plan: Tcgen05Plan, shape: Shape) -> tuple[float, ...]:
    """Rank a plan for a problem: the smaller the better, the first difference decides (``COST_ORDER``)."""
    total = sum(_terms(plan, shape).values())
    cycles = total if math.isinf(total) else round(total)
    return (cycles, l2_bytes(plan, shape), -plan.stages * plan.cta_tile_k)


COST_ORDER = ("time", "L2 bytes", "depth of the ring")
"""What the parts of a cost are."""


def overdraft(plan: Tcgen05Plan) -> float:
    """Return by how much an illegal plan exceeds what it has, as the sum of the fractions of each limit."""
    used_of_limits = (
        (plan.smem_bytes, smem_limit(plan)),
        (plan.tensor_memory.columns, TCGEN05.tmem_columns),
        (plan.subtile_n, plan.cta_tile_n),
        (plan.epilogue_buffers, plan.subtiles),
    )
    return sum(max(0.0, used / limit - 1) for used, limit in used_of_limits)
