"""How far a decision of a Blackwell plan can go while the others stay as they are."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.target import SCALE_COLUMNS, SCALE_ROWS, TCGEN05

# --- the tile


def least_rows(plan: Tcgen05Plan) -> int:
    """Return the fewest rows of a CTA's tile: 64 take no pair, and no scales, of which 128 lie together."""
    return SCALE_ROWS if plan.paired or plan.block_scaled else TCGEN05.m[0]


def least_columns(plan: Tcgen05Plan) -> int:
    """Return the fewest columns of an instruction, or of those whose scales lie together.

    [gluon] Triton compiles narrower instructions in silence; those for scales it refuses.
    """
    if plan.block_scaled:
        return SCALE_ROWS
    if plan.paired:
        return TCGEN05.n_min_pair
    return TCGEN05.n_min if plan.cta_tile_m > TCGEN05.m[0] else TCGEN05.n_min_64_rows


def least_step(plan: Tcgen05Plan) -> int:
    """Return the fewest elements of a K step: an instruction's, or a block of scales.

    That of formats beside padded elements is as long as a box of those.
    """
    operands = (plan.problem.a, plan.problem.b)
    vectors = [SCALE_COLUMNS * operand.scale.format.vector for operand in operands if operand.scale]
    return max([plan.mma_k, *vectors])


# --- tensor memory


def scale_columns(plan: Tcgen05Plan) -> int:
    """Return the columns of tensor memory that are not the accumulators'."""
    return plan.tensor_memory.columns - plan.accumulators * plan.cta_tile_n


def most_accumulators(plan: Tcgen05Plan) -> int:
    """Return the most accumulators that fit beside the scales, 0 if not even one does."""
    return max(0, TCGEN05.tmem_columns - scale_columns(plan)) // plan.cta_tile_n


# --- shared memory


def smem_limit(plan: Tcgen05Plan) -> int:
    """Return the bytes of shared memory that a CTA can have, alone on its SM."""
    return plan.architecture.smem_bytes_per_cta


def fits(plan: Tcgen05Plan) -> bool:
    """Whether a CTA's shared memory holds all that the plan puts there."""
    return plan.smem_bytes <= smem_limit(plan)


def most_stages(plan: Tcgen05Plan) -> int:
    """Return the most stages that fit, 0 if not even one does."""
    limit = smem_limit(plan)
    depths = range(1, limit // max(1, plan.stage_bytes) + 1)
    return bisect_right(depths, limit, key=lambda stages: replace(plan, stages=stages).smem_bytes)
