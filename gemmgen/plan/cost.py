"""What a plan is expected to cost on a problem, and how far it is beyond limits: ranks, judges nothing."""

from __future__ import annotations

import math

from gemmgen.plan.bounds import most_consumers, smem_limit, working_registers
from gemmgen.plan.plan import Plan

TILE_OVERHEAD_CYCLES = 1_000
"""Per tile: the first loads' latency and the part of the epilogue that no load covers.

An assumption, 0.7 us at 1.4 GHz: it only has to make many small tiles dearer than few large ones.
"""


def step_cycles(plan: Plan) -> float:
    """Return the cycles of one K step of a CTA tile: the slowest of tensor cores, shared memory and L2."""
    architecture = plan.architecture
    fma_per_cycle = architecture.mma_16bit_fma_per_cycle * 16 / plan.problem.a.dtype.bits
    mma = plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k / fma_per_cycle
    # Every instruction reads its own 64 rows of A and all its columns of B.
    instruction_m, instruction_n, _ = plan.mma_shape
    rows = (
        (plan.cta_tile_m / instruction_m)
        * (plan.cta_tile_n / instruction_n)
        * (instruction_m + instruction_n)
    )
    smem = rows * plan.cta_tile_k * plan.problem.a.dtype.bytes / architecture.smem_bytes_per_cycle
    l2_bytes = plan.a_tile_bytes / plan.cluster_n + plan.b_tile_bytes / plan.cluster_m
    return max(mma, smem, l2_bytes / architecture.l2_bytes_per_cycle_and_sm)


def cycles(plan: Plan, shape: tuple[int, int, int]) -> float:
    """Return the SM cycles of a problem [M, N, K]: full waves of tiles, one after the other."""
    if not plan.resident_programs:
        return math.inf  # a cluster of more CTAs than the GPU has SMs
    waves = math.ceil(plan.waves(shape))
    k_steps = math.ceil(shape[2] / plan.cta_tile_k)
    return waves * (k_steps * step_cycles(plan) + TILE_OVERHEAD_CYCLES)


def cost(plan: Plan, shape: tuple[int, int, int]) -> tuple[float, ...]:
    """Rank a plan for a problem: the smaller the better, the first difference decides.

    1. Cycles.
    2. Queue: a lone consumer must keep an MMA in flight, several cover for one another.
    3. K that the ring holds: deeper hides more latency.
    """
    idle_queue = bool(plan.outstanding_mmas) != (plan.consumers == 1)
    return (cycles(plan, shape), idle_queue, -plan.stages * plan.cta_tile_k)


def overdraft(plan: Plan) -> float:
    """Return by how much an illegal plan exceeds what it has, as the sum of the fractions of each limit."""
    if plan.consumers > most_consumers(plan):
        return 0.0  # nothing can be summed up over that many consumers
    used_of_limits = (
        (plan.smem_bytes, smem_limit(plan)),
        (plan.accumulator_registers + working_registers(plan), plan.consumer_registers),
        (plan.subtile_n, plan.cta_tile_n),
        (plan.epilogue_buffers, plan.subtiles),
    )
    return sum(max(0.0, used / limit - 1) for used, limit in used_of_limits)
