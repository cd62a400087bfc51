"""The time that a kernel gains and loses by a launch before the kernel ahead has ended.

Times are in nanoseconds of an H200. The constants were fitted to these records:

* [early] the 696 times of such kernels in ``benchmarks/fit/h200_few_rows.json``;
* [early-roles] the first three kernels with roles at 17 shapes, with and without such a launch:
  ``benchmarks/fit/h200_dependent.json``.
"""

from __future__ import annotations

from gemmgen.plan.timing import Stream, Tiles
from gemmgen.plan.wgmma.resources import WgmmaKernel

EARLY_NS = 900
"""[early] By which a kernel that is launched early starts sooner, if it takes more than half of the GPU."""
EARLY_PLACES = 0.95
"""[early] Share of the places on the GPU that its programs take from where on nothing is lost by that."""
EARLY_LOSS = 1.02
"""[early] Of its time, for each place that is left: the programs behind wait there, and those for which there
is no place come late, beside others.
"""
EARLY_COVER = 2.5
"""[early] Of that loss, how much for each part of K that a program's ring holds: it is loaded ahead."""
EARLY_DELIVERY = 0.9
"""[early-roles] The share of the rates of L2 and DRAM that is left where kernels with roles start beside the
one ahead: 51 gains of 0.86 to 1.11 are known to 4.0 % with it and ``EARLY_NS``, and to 5.5 % without. If they
start when all of the one ahead have ended (trigger end), they gain nothing by it, 0.990 in the mean.
"""


def early_tiles(plan: WgmmaKernel, row: Tiles) -> Tiles:
    """Return the numbers of a kernel that computes tiles in rounds, with its early start."""
    if not _overlaps(plan):
        return row
    return row._replace(start=row.start - EARLY_NS, delivery=EARLY_DELIVERY)


def early_stream(plan: WgmmaKernel, row: Stream) -> Stream:
    """Return the numbers of a kernel that streams B, with its early start."""
    if _overlaps(plan):
        return row._replace(early=EARLY_NS, delivery=EARLY_DELIVERY)
    if plan.read_early is None or plan.specialized:
        return row
    # A program without roles is launched early in a place of its own, or takes one of the kernel ahead.
    return row._replace(
        early=EARLY_NS,
        early_places=EARLY_PLACES,
        early_loss=EARLY_LOSS,
        early_steps=EARLY_COVER * plan.stages,
    )


def _overlaps(plan: WgmmaKernel) -> bool:
    """Return True if programs of a kernel with roles load while programs of the kernel ahead end."""
    return plan.specialized and plan.read_early is not None and plan.trigger == "loads"
