"""The sides of block scales in planning."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.features.block_scales.packed_payloads import packed_scales
from gemmgen.features.block_scales.scale_cost import scaling_ns, stream_scaling_ns
from gemmgen.features.block_scales.scale_payloads import scales_of_step
from gemmgen.plan.side import Planning, Row
from gemmgen.plan.stage import Payload
from gemmgen.plan.tcgen05.geometry import Tcgen05Geometry
from gemmgen.plan.timing import Tiles
from gemmgen.plan.wgmma.cost_constants import STREAM_REREAD
from gemmgen.plan.wgmma.resources import WgmmaKernel


class BlockScales(Planning[WgmmaKernel]):
    """Scales that multiply the sums of a block of K, of Hopper kernels."""

    def payloads(self, plan: WgmmaKernel) -> Iterator[Payload]:
        """Return the scales that TMA loads for a K step."""
        return scales_of_step(plan)

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the time in which threads scale sums and the tensor cores wait."""
        if not plan.problem.scales_sums:
            return row
        if isinstance(row, Tiles):
            return row._replace(exposed=scaling_ns(plan))
        drain = row.drain + stream_scaling_ns(plan)
        return row._replace(drain=drain, reread=STREAM_REREAD if plan.swap_ab else row.reread)


class PackedScales(Planning[Tcgen05Geometry]):
    """Scales that the tensor cores apply, of Blackwell kernels."""

    def payloads(self, plan: Tcgen05Geometry) -> Iterator[Payload]:
        """Return the packed scales of a K step."""
        return packed_scales(plan)
