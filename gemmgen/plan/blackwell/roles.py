"""The roles of a Blackwell plan's warps, and what each of them is passed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmgen.plan.roles import Partition

if TYPE_CHECKING:
    from gemmgen.plan.blackwell.plan import Tcgen05Plan

LAUNCH_CONTROL = ("clc_answers", "clc_ready", "clc_empty")
"""From which every role learns the next tile."""


def partitions(plan: Tcgen05Plan) -> Iterator[Partition]:
    """Yield a partition for each role: the epilogue first, which keeps the kernel's own warps."""
    scaled = plan.block_scaled
    claims = LAUNCH_CONTROL if plan.launch_control else ()
    sums = "accumulators" if plan.accumulators > 1 else "accumulator"
    scale_smem = ("a_scale_smem", "b_scale_smem") if scaled else ()
    scale_tmem = ("a_scale_tmem", "b_scale_tmem") if scaled else ()
    handover = ("accumulator_empty", "accumulator_ready")
    scalar = ("tensor_scale_ptr",) if plan.problem.scalar else ()
    registers = plan.architecture.setmaxnreg_max
    yield Partition(
        "epilogue",
        "epilogue_partition",
        plan.default_warps,
        registers,
        ("d_desc", *scalar, sums, "d_smem", *handover, *claims, *plan.tile_counts),
    )
    # Without launch control the MMA warp counts its tiles; with it, it asks like everyone else.
    counts = () if plan.launch_control else plan.tile_counts
    yield Partition(
        "mma",
        "mma_partition",
        1,
        plan.worker_registers,
        (
            "a_smem",
            "b_smem",
            *scale_smem,
            *scale_tmem,
            sums,
            "load_empty",
            "load_ready",
            *handover,
            *claims,
            *counts,
            "k_steps",
        ),
    )
    descriptors = ("a_desc", "b_desc", *(("a_scale_desc", "b_scale_desc") if scaled else ()))
    yield Partition(
        "load",
        "load_partition",
        1,
        plan.worker_registers,
        (
            *descriptors,
            "a_smem",
            "b_smem",
            *scale_smem,
            "load_empty",
            "load_ready",
            *claims,
            *plan.tile_counts,
            "k_steps",
        ),
    )
    if plan.launch_control:
        yield Partition("scheduler", "scheduler_partition", 1, plan.worker_registers, claims)
