"""The predicted time to add up the sums of the parts of K.

Times are in nanoseconds of an H200. `gemmgen.plan.wgmma.cost_constants` describes the records to which the
constants were fitted, except [decoded]: persistent kernels whose threads decode int4 at 128 and 256 rows,
``benchmarks/weights/h200_split.json``.
"""

from __future__ import annotations

from typing import NamedTuple

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
DECODED_SPLIT_BYTES_PER_NS = 47
"""[decoded] At which a lone consumer of decoded weights leaves sums, and adds up all sums of a tile, in each
round. If the splits divide the number of programs, each program takes the same part of every tile, so the
program that comes last to a tile is the last of its next tile too. 120 times of two to four splits are known
to 4.7 % with this constant, and to 17 % with the constants of other kernels with roles.
"""
DECODED_PARALLEL_BYTES_PER_NS = 2_200
"""[decoded] At which sums go to memory and come back there if a second kernel adds them up."""
ATOMIC_NS = 740
"""[long-k] To count, and to store the tile."""
ATOMIC_ROLES_NS = 1_250
"""[long-k] What both take longer in a program with roles."""
ATOMIC_BYTES_PER_NS = 17.5
"""[long-k] At which a CTA adds its sums to those in memory, and at which one reads and clears them."""


class SplitsTime(NamedTuple):
    """The time to add up the sums of a tile's splits."""

    once: float
    of_program: float = 0.0
    """More for each program."""
    of_round: float = 0.0
    """More for each round of work units but the first."""


def splits_ns(plan: WgmmaKernel) -> SplitsTime:
    """Return the time to add up the sums of a tile's splits."""
    sums, decoded = _sums_bytes(plan), plan.specialized and plan.mma.source_of("b") == "registers"
    if plan.reduces_apart:
        rate = DECODED_PARALLEL_BYTES_PER_NS if decoded else PARALLEL_BYTES_PER_NS
        return SplitsTime(PARALLEL_NS, of_program=plan.cluster_size * sums / rate)
    if plan.reduction == "atomic":
        each = ATOMIC_NS + (ATOMIC_ROLES_NS if plan.specialized else 0)
        return SplitsTime(each + sums / ATOMIC_BYTES_PER_NS)
    if decoded:
        each = plan.splits * sums / DECODED_SPLIT_BYTES_PER_NS
        return SplitsTime(each, of_round=each)
    if plan.specialized:
        return SplitsTime(ROLES_SPLIT_NS + plan.splits * sums / ROLES_SPLIT_BYTES_PER_NS)
    return SplitsTime(SPLIT_NS + plan.splits * sums / SPLIT_BYTES_PER_NS)


def _sums_bytes(plan: WgmmaKernel) -> int:
    """Return the bytes of a CTA tile's sums."""
    return plan.cta_tile_m * plan.cta_tile_n * plan.problem.accumulator.bytes
