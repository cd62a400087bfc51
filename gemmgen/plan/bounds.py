"""How far a decision of a plan can go while the others stay as they are, and the measurements behind it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from gemmgen.plan.plan import Plan
from gemmgen.plan.registers import balanced_consumer_registers
from gemmgen.target import WGMMA

WORKING_REGISTERS = 28
"""Registers that a consumer thread needs beside its accumulator: addresses, phases, converted elements.

[gluon] With accumulators of 4, 8, 16, 32, 64 and 128 registers, kernels compile from 32, 40, 48, 64, 96 and
160 registers on; with 8 less ptxas spills (C7512) or drops the request (C7507). About 150 kernels were
lowered on both sides and 700 at the border: tile, dtypes, sub-tiles, order, ring and cluster do not matter.
"""
WORKING_REGISTERS_OF_LONG_STEPS = 72
"""The same where a K step is of more than ``LONG_STEP_MMAS``: the compiler then keeps their addresses.

[gluon] A tiles of 128 x 512 and 256 x 256, 32 instructions to each of two consumers, need 40 to 72, those
of more rows 28; no longer step fits into shared memory.
"""
LONG_STEP_MMAS = 16


def is_power_of_two(value: int) -> bool:
    """Whether Gluon accepts a block extent."""
    return value > 0 and value & (value - 1) == 0


def power_of_two_below(value: int) -> int:
    """Return the largest power of two that is at most `value`."""
    return 1 << (value.bit_length() - 1)


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `value`."""
    return -(-value // step) * step


# --- consumers


def threads_of(plan: Plan, consumers: int) -> int:
    """Return the threads of a CTA with so many of the plan's consumers and a padded warpgroup to load.

    The plan's own figure is the same, but takes a partition for each consumer.
    """
    architecture = plan.architecture
    producer_warps = architecture.warps_per_warpgroup if plan.specialized else 0
    return (consumers * plan.consumer_warps + producer_warps) * architecture.threads_per_warp


def most_consumers(plan: Plan) -> int:
    """Return the most consumers that a CTA has threads for."""
    others = threads_of(plan, 0)
    return (plan.architecture.threads_per_cta - others) // (threads_of(plan, 1) - others)


# --- registers


def most_consumer_registers(plan: Plan) -> int:
    """Return the most registers per thread that all consumers can have beside the plan's producer."""
    architecture = plan.architecture
    if plan.consumers > most_consumers(plan):
        return architecture.setmaxnreg_min
    if not plan.specialized:
        return min(architecture.registers_per_thread, plan.register_pool.launch_registers)
    return balanced_consumer_registers(
        architecture, plan.consumers, plan.consumer_warps, plan.producer_registers, plan.occupancy
    )


def working_registers(plan: Plan) -> int:
    """Return the registers that a consumer thread needs beside its accumulator and its part of A."""
    return WORKING_REGISTERS if plan.mmas_per_step <= LONG_STEP_MMAS else WORKING_REGISTERS_OF_LONG_STEPS


def needed_registers(plan: Plan) -> int:
    """Return the registers per thread that a consumer needs, in multiples that can be asked for."""
    needed = plan.accumulator_registers + plan.operand_registers + working_registers(plan)
    return round_up(needed, plan.architecture.setmaxnreg_granularity)


# --- shared memory


def fits(plan: Plan) -> bool:
    """Whether a CTA's share of shared memory holds all that the plan puts there."""
    return plan.smem_bytes <= smem_limit(plan)


def smem_limit(plan: Plan) -> int:
    """Return the bytes of shared memory that each of the CTAs on an SM can have."""
    architecture = plan.architecture
    share = architecture.smem_bytes_per_sm // plan.occupancy - architecture.smem_reserved_bytes_per_cta
    return min(share, architecture.smem_bytes_per_cta)


def most_stages(plan: Plan) -> int:
    """Return the most stages that fit, 0 if not even one does."""
    if plan.consumers > most_consumers(plan):
        return 0
    if plan.schedule_kind == "single_tile":
        return int(fits(replace(plan, stages=1)))
    limit = smem_limit(plan)
    depths = range(1, limit // plan.stage_bytes + 1)
    return bisect_right(depths, limit, key=lambda stages: replace(plan, stages=stages).smem_bytes)
