"""What a Blackwell plan puts into shared memory: the tiles, and the barriers that hand them over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmgen.plan.storage import Barrier, SharedBuffer, k_extent_name
from gemmgen.target import TCGEN05

if TYPE_CHECKING:
    from gemmgen.plan.blackwell.plan import Tcgen05Plan

ANSWERS = 2
"""Answers of launch control that are kept: one is read while the next is asked for."""


def shared_buffers(plan: Tcgen05Plan) -> Iterator[SharedBuffer]:
    """Yield the tiles in the order in which the kernel allocates them."""
    a_extents = ("PROGRAM_TILE_M", k_extent_name(plan.problem.a))
    b_extents = ("PROGRAM_TILE_N", k_extent_name(plan.problem.b))
    if plan.problem.a.major == "mn":
        a_extents = a_extents[::-1]
    if plan.problem.b.major == "mn":
        b_extents = b_extents[::-1]
    ring = plan.stages
    yield SharedBuffer("a_smem", "a", ("STAGES", *a_extents), ring * plan.a_tile_bytes, plan.a_swizzle_bytes)
    yield SharedBuffer("b_smem", "b", ("STAGES", *b_extents), ring * plan.b_tile_bytes, plan.b_swizzle_bytes)
    if plan.block_scaled:
        for name, size in (("a_scale", plan.a_scale_tile_bytes), ("b_scale", plan.b_scale_tile_bytes)):
            extents = ("STAGES", "1", f"{name.upper()}_BLOCKS", "SCALE_BLOCKS_K", "2", "256")
            yield SharedBuffer(f"{name}_smem", name, extents, ring * size)
    stored = ("PROGRAM_TILE_M", "PROGRAM_TILE_N")
    if plan.subtiles > 1:
        stored = ("EPILOGUE_BUFFERS", "PROGRAM_TILE_M", "SUBTILE_N")
    size = plan.epilogue_buffers * plan.subtile_bytes()
    yield SharedBuffer("d_smem", "d", stored, size, plan.d_swizzle_bytes)
    if plan.launch_control:
        yield SharedBuffer(
            "clc_answers", "clc", ("ANSWERS", "2"), ANSWERS * TCGEN05.answer_bytes, alignment=8
        )


def barriers(plan: Tcgen05Plan) -> Iterator[Barrier]:
    """Yield the mbarriers in the order in which the kernel allocates them."""
    pair = plan.paired
    readers = plan.stage_readers
    read = "the MMAs of all pairs that it fills have read the stage" if readers > 1 else "the stage is read"
    yield Barrier(
        "load_empty",
        plan.stages,
        "STAGES",
        arrivals=readers,
        arrives=str(readers),
        meaning=f"tensor cores to the load warp: {read}",
    )
    yield Barrier(
        "load_ready",
        plan.stages,
        "STAGES",
        arrivals=plan.cta_group,
        arrives="1",
        meaning="TMA to the MMA warp: the stage holds its tiles" + (", in both CTAs" if pair else ""),
        paired=pair,
    )
    depth, ring = (plan.accumulators, "ACCUMULATORS") if plan.accumulators > 1 else (1, "")
    yield Barrier(
        "accumulator_empty",
        depth,
        ring,
        arrivals=plan.cta_group,
        arrives="1",
        meaning="epilogue to the MMA warp: the sums have been read" + (", in both CTAs" if pair else ""),
        paired=pair,
    )
    yield Barrier(
        "accumulator_ready",
        depth,
        ring,
        arrivals=1,
        arrives="1",
        meaning="tensor cores to the epilogue: the sums of a tile are complete",
    )
    if plan.launch_control:
        yield Barrier(
            "clc_ready",
            ANSWERS,
            "ANSWERS",
            arrivals=1,
            arrives="1",
            meaning="launch control to all roles: the answer is there",
        )
        yield Barrier(
            "clc_empty",
            ANSWERS,
            "ANSWERS",
            arrivals=len(plan.partitions) * plan.cluster_size,
            arrives="ROLES",
            meaning="all roles, of every CTA, to the scheduler: the answer has been read",
            groups=1 if plan.cluster_size > 1 else 0,
            bases=((0,),) * (plan.cluster_size.bit_length() - 1),
            shared="an answer",
        )
