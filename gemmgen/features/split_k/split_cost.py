"""The predicted time to add up the sums of the parts of K."""

from __future__ import annotations

from gemmgen.plan.wgmma import cost_constants as constants
from gemmgen.plan.wgmma.resources import WgmmaKernel


def splits_ns(plan: WgmmaKernel) -> tuple[float, float]:
    """Return the time to add up the sums of a tile's splits, and more of it for each program."""
    sums = _sums_bytes(plan)
    if plan.reduces_apart:
        return constants.PARALLEL_NS, plan.cluster_size * sums / constants.PARALLEL_BYTES_PER_NS
    if plan.reduction == "atomic":
        each = constants.ATOMIC_NS + (constants.ATOMIC_ROLES_NS if plan.specialized else 0)
        return each + sums / constants.ATOMIC_BYTES_PER_NS, 0.0
    if plan.specialized:
        return constants.ROLES_SPLIT_NS + plan.splits * sums / constants.ROLES_SPLIT_BYTES_PER_NS, 0.0
    return constants.SPLIT_NS + plan.splits * sums / constants.SPLIT_BYTES_PER_NS, 0.0


def _sums_bytes(plan: WgmmaKernel) -> int:
    """Return the bytes of a CTA tile's sums."""
    return plan.cta_tile_m * plan.cta_tile_n * plan.problem.accumulator.bytes
