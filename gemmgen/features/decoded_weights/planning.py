"""The side of decoded weights in planning: their scales in a stage, and the time to decode.

Constants with [weights] are fitted to 878 times of 150 kernels at 44 shapes of an H200,
``benchmarks/weights/h200_kernels.json``. Of each format and shape, the kernel with the least predicted time
took 1.6 % more time than the fastest in the mean, and 21 % at most. Tiles of 64 rows and more came later,
with steps of four parts: ``benchmarks/weights/h200_parts.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.features.block_scales.scale_payloads import scales_of
from gemmgen.features.decoded_weights.parts import HELD, decoded_k, has_many_rows
from gemmgen.plan.planning import Planning, PlanningByMma, RegisterUse, Row
from gemmgen.plan.stage import Payload
from gemmgen.plan.storage import Extent
from gemmgen.plan.timing import Tiles
from gemmgen.plan.wgmma import cost_constants as constants
from gemmgen.plan.wgmma.resources import WgmmaKernel

INSTRUCTIONS: Final = {
    "int4": 2.35, "int8": 2.35, "e4m3": 3.2, "mxfp4": 2.68, "nvfp4": 3.04, "mxfp4_e4m3": 1.75,
}  # fmt: skip
"""[weights] That a thread issues in the main loop for each of its weights, by the element or the format.

They were counted in SASS; the numbers of nvfp4, int8 and e4m3 (as a weight) are estimates.
"""
ISSUED_PER_NS: Final = 4 * constants.TENSOR_CYCLES_PER_NS
"""Instructions of warps on an SM: one of each of four schedulers in a cycle."""
PART_NS: Final = 215
"""[weights] From the words of a part to its MMAs, where no other CTA covers for it. With 200, experts of 128
rows in the mean had tiles of 64 rows, and these took 1.09 to 1.15 of the time of 128 rows
(``benchmarks/weights/h200_w4a8.json``).
"""
ALONE_SHARE: Final = {16: 0.25, 8: 0.6}
"""[weights] Of the decoding, beside which no MMA runs then, by the bits that threads decode to. The MMAs of
e4m3 take half the time; its share is fitted to experts of as many rows as a router sends each
(``benchmarks/weights/h200_w4a8.json``).
"""

CROWDED: Final = 1.6
"""Factor of the decoding of small CTAs beside many rows, whose MMAs keep other CTAs of the SM waiting: six
shapes of ``benchmarks/weights/h200_many_rows.json`` took 1.04 to 1.24 of the predicted time without it, and
1.00 to 1.16 with it.
"""


class DecodedWeightsPlanning(Planning[WgmmaKernel]):
    """A B that threads decode, of Hopper kernels."""

    def payloads(self, plan: WgmmaKernel) -> Iterator[Payload]:
        """Yield the scales of a K step: one for each column of B, and for each block of K."""
        b = plan.problem.b
        if b.decoded and b.scale:
            columns = plan.cta_tile_n
            blocks = max(1, plan.cta_tile_k // b.scale_k)
            extent = Extent(columns, "product_n" if plan.problem.gated else "tile_n")
            row_k = Extent(b.scale_k, "scale_k")
            yield scales_of("b_scale", extent, columns, b.scale_dtype, blocks, row_k)

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers of a decoded K step, which no MMA reads any more when its sums are complete.

        [gluon] On an H200's experts in mxfp4, 104 registers hold 8 sums, 64 of the step, the rows of 32
        groups and a gate without spills.
        """
        if use is not RegisterUse.FREED or not plan.problem.b.decoded:
            return 0
        return plan.operand_registers

    def operand_k(self, plan: WgmmaKernel, k: int) -> int:
        """Return the K of two parts, of a B that is decoded part by part."""
        return min(k, HELD * decoded_k(plan)) if plan.problem.b.decoded else k

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the time in which threads decode while no MMA runs."""
        if not plan.problem.b.decoded:
            return row
        decoding = plan.cta_tile_n * plan.cta_tile_k * _instructions(plan) / ISSUED_PER_NS
        parts = plan.cta_tile_k // decoded_k(plan)
        if isinstance(row, Tiles):
            if not has_many_rows(plan):
                share = ALONE_SHARE[plan.problem.b.multiplied.bits]
                return row._replace(exposed=row.exposed + share * decoding)
            # No MMA runs while the first part is decoded; the MMAs of each part cover for the next one.
            of_part = row.tensor_cycles / constants.TENSOR_CYCLES_PER_NS / parts
            exposed = PART_NS + (parts - 1) * max(0.0, PART_NS - of_part)
            return row._replace(exposed=exposed, exposed_of_all=0.0)
        crowded = CROWDED if has_many_rows(plan) else 1.0
        return row._replace(
            multiply=max(row.multiply, row.least_multiply) + crowded * decoding * HELD / parts,
            least_multiply=0.0,
            drain=row.drain + HELD * PART_NS,
        )


def _instructions(plan: WgmmaKernel) -> float:
    """Return the instructions of warps for each weight of a tile."""
    b = plan.problem.b
    assert b.scale is not None
    name = b.dtype.name if b.dtype.name in INSTRUCTIONS else b.scale.format.name
    return INSTRUCTIONS[name] / plan.architecture.threads_per_warp


SIDES: PlanningByMma = {"wgmma": (DecodedWeightsPlanning(),)}
