"""The predicted time in which threads scale the sums of a K step and its CTA multiplies nothing."""

from __future__ import annotations

from gemmgen.plan.wgmma import cost_constants as constants
from gemmgen.plan.wgmma.resources import WgmmaKernel


def scaling_ns(plan: WgmmaKernel) -> float:
    """Return that time in nanoseconds for a K step of tiles in rounds.

    If several consumers share a tile, one scales the sums of a slab while the MMAs of others run. The more
    slabs are multiplied meanwhile, the seldomer the tensor cores wait.
    """
    refill = 0 if plan.specialized else constants.REFILL_NS[plan.schedule_kind]
    if plan.row_shares > 1:
        beside = (plan.row_shares - 1) * plan.row_slabs + plan.scales_in_flight
        return refill + constants.SCALED_NS / beside
    if plan.scales_in_flight:
        alone = constants.LONE_SCALED_NS_IN_FLIGHT
    else:
        alone = constants.LONE_SCALED_NS + constants.LONE_SCALED_REGISTER_NS * plan.sum_registers
    return refill + alone + (constants.SCALED_TURN_NS if plan.ping_pong else 0)


def stream_scaling_ns(plan: WgmmaKernel) -> float:
    """Return that time in nanoseconds for a K step of a stream; 0 where another consumer covers for it."""
    if plan.row_shares > 1:
        return 0  # not 0.0: rows of other kernels keep their text in libraries
    each = constants.STREAM_BLOCK_NS + constants.STREAM_BLOCK_REGISTER_NS * plan.sum_registers
    return constants.STREAM_SCALED_NS + plan.step_blocks * each
