"""The predicted time to add up the sums of the parts of K.

Times are in nanoseconds of an H200. `gemmgen.plan.wgmma.cost_constants` describes the records to which the
constants were fitted.
"""

from __future__ import annotations

from gemmgen.plan.wgmma.resources import WgmmaKernel

SPLIT_NS = 740
"""[few-rows] To leave sums in memory and to count the programs that have."""
SPLIT_BYTES_PER_NS = 23
"""[few-rows] At which the last program of a tile adds up the sums of all."""
ROLES_SPLIT_NS = 3_000
"""[long-k] To leave sums, to count the programs that have, in a cluster together, and to store the tile."""
ROLES_SPLIT_BYTES_PER_NS = 130
"""[long-k] At which consumers add up sums that lie in the order of registers."""
PARALLEL_NS = 500
"""[parallel] From the last sums in memory to a second kernel that reads them, and to the end of that."""
PARALLEL_BYTES_PER_NS = 1_800
"""[parallel] At which sums go to memory and come back, all of them."""
ATOMIC_NS = 740
"""[long-k] To count, and to store the tile."""
ATOMIC_ROLES_NS = 1_250
"""[long-k] What both take longer in a program with roles."""
ATOMIC_BYTES_PER_NS = 17.5
"""[long-k] At which a CTA adds its sums to those in memory, and at which one reads and clears them."""


def splits_ns(plan: WgmmaKernel) -> tuple[float, float]:
    """Return the time to add up the sums of a tile's splits, and more of it for each program."""
    sums = _sums_bytes(plan)
    if plan.reduces_apart:
        return PARALLEL_NS, plan.cluster_size * sums / PARALLEL_BYTES_PER_NS
    if plan.reduction == "atomic":
        each = ATOMIC_NS + (ATOMIC_ROLES_NS if plan.specialized else 0)
        return each + sums / ATOMIC_BYTES_PER_NS, 0.0
    if plan.specialized:
        return ROLES_SPLIT_NS + plan.splits * sums / ROLES_SPLIT_BYTES_PER_NS, 0.0
    return SPLIT_NS + plan.splits * sums / SPLIT_BYTES_PER_NS, 0.0


def _sums_bytes(plan: WgmmaKernel) -> int:
    """Return the bytes of a CTA tile's sums."""
    return plan.cta_tile_m * plan.cta_tile_n * plan.problem.accumulator.bytes
