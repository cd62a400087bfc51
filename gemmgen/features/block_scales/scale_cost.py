"""The predicted time in which threads scale the sums of a K step and its CTA multiplies nothing.

Times are in nanoseconds of an H200. The constants were fitted to these records:

* [block-scales] kernels of fp8 with scales of blocks, without PDL: the first six of an earlier planner at 62
  shapes on an H100 and at 44 on an H200 (``benchmarks/blockscale/h100_blocks.jsonl``,
  ``h200_blocks_earlier.jsonl``), and kernels written by hand at 80 shapes on an H100
  (``7a8a2c58:benchmarks/blockscale/h100_prototype.jsonl``).
"""

from __future__ import annotations

from gemmgen.plan.wgmma import cost_constants
from gemmgen.plan.wgmma.resources import WgmmaKernel

SCALED_NS = 56
"""[block-scales] In which no consumer of a shared tile multiplies in a K step, as threads scale the sums of a
slab, while one other slab is multiplied. It is divided by the slabs that are: all slabs of the other
consumers, and with an MMA in flight the next one of the same consumer.
"""
SCALED_TURN_NS = 12
"""[block-scales] By which a K step of ping-pong takes longer than one of a lone consumer. No reason is known.
"""
LONE_SCALED_NS = 64
"""[block-scales] The same of a lone consumer, or of one of two that take turns: its barriers and scales."""
LONE_SCALED_REGISTER_NS = 1.5
"""[block-scales] The same of each register of its sums."""
LONE_SCALED_NS_IN_FLIGHT = 56
"""[block-scales] The same of a lone consumer, if the MMAs of the next K step run meanwhile."""
STREAM_SCALED_NS = 40
"""[block-scales] In which a K step's scales are read and nothing is multiplied, if no MMA is in flight."""
STREAM_BLOCK_NS = 125
"""[block-scales] The same of each block of K in the step, whose sums are scaled and added."""
STREAM_BLOCK_REGISTER_NS = 2.8
"""[block-scales] The same of each register of these sums."""
STREAM_REREAD = 1.3
"""[block-scales] Factor of the bytes that L2 sends, if tiles have fewer rows than A: programs that read
one column of B are far apart, and L2 answers each of them.
"""


def scaling_ns(plan: WgmmaKernel) -> float:
    """Return that time in nanoseconds for a K step of tiles in rounds.

    If several consumers share a tile, one scales the sums of a slab while the MMAs of others run. The more
    slabs are multiplied meanwhile, the seldomer the tensor cores wait.
    """
    refill = 0 if plan.specialized else cost_constants.REFILL_NS[plan.schedule_kind]
    if plan.row_shares > 1:
        beside = (plan.row_shares - 1) * plan.row_slabs + plan.scales_in_flight
        return refill + SCALED_NS / beside
    if plan.scales_in_flight:
        alone = LONE_SCALED_NS_IN_FLIGHT
    else:
        alone = LONE_SCALED_NS + LONE_SCALED_REGISTER_NS * plan.sum_registers
    return refill + alone + (SCALED_TURN_NS if plan.ping_pong else 0)


def stream_scaling_ns(plan: WgmmaKernel) -> float:
    """Return that time in nanoseconds for a K step of a stream; 0 where another consumer covers for it."""
    if plan.row_shares > 1:
        return 0  # not 0.0: rows of other kernels keep their text in libraries
    each = STREAM_BLOCK_NS + STREAM_BLOCK_REGISTER_NS * plan.sum_registers
    return STREAM_SCALED_NS + plan.step_blocks * each
