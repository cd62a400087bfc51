"""The sides of block scales in planning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.features.block_scales import scale_cost
from gemmgen.features.block_scales.packed_payloads import packed_scales
from gemmgen.features.block_scales.scale_payloads import scales_of_step
from gemmgen.plan.entry import Entry
from gemmgen.plan.planning import ArgumentPlace, EntrySection, Planning, PlanningByMma, RegisterUse, Row
from gemmgen.plan.roles import Argument, Count, K, N
from gemmgen.plan.stage import Payload
from gemmgen.plan.tcgen05.geometry import Tcgen05Geometry
from gemmgen.plan.timing import Tiles
from gemmgen.plan.wgmma.resources import WgmmaKernel

THREADS_OF_ROW: Final = 4
"""[ptx] Threads that hold the sums of a row of an instruction."""


def scale_registers(plan: WgmmaKernel) -> int:
    """Return the registers of a consumer thread that hold the scales of its sums' columns in a K step."""
    along = plan.problem.a if plan.swap_ab else plan.problem.b
    if not plan.problem.scales_sums or along.scale is None or along.scale.format.rows > 1:
        return 0
    return plan.step_blocks * plan.consumer_extents[1] // THREADS_OF_ROW // plan.warps_across[1]


class BlockScalePlanning(Planning[WgmmaKernel]):
    """Scales that multiply the sums of a block of K, of Hopper kernels."""

    def payloads(self, plan: WgmmaKernel) -> Iterator[Payload]:
        """Return the scales that TMA loads for a K step."""
        return scales_of_step(plan)

    def arguments(self, plan: WgmmaKernel) -> Iterator[tuple[ArgumentPlace, Argument]]:
        """Yield the scales of B that threads read by address."""
        if plan.has_tile_scales and (scale := plan.problem.b.scale):
            yield ArgumentPlace.LOADED, Argument("b_scale", "tile_scales", scale.dtype, "n")

    def counts(self, plan: WgmmaKernel) -> Iterator[Count]:
        """Yield the extents by which threads find the scale of B of a block."""
        # The scales of a second block of columns, and of a group, begin at a row of scales that N decides.
        several = plan.problem.in_blocks or plan.access.scales_groups_of_rows
        if plan.has_tile_scales and several:
            yield N
        if plan.finds_scales_by_block:
            yield K

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers of the scales of a K step."""
        return scale_registers(plan) if use is RegisterUse.STEP else 0

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the time in which threads scale sums and the tensor cores wait."""
        if not plan.problem.scales_sums:
            return row
        if isinstance(row, Tiles):
            # Threads scale sums where they would only add them up: promotion takes no time of its own.
            return row._replace(exposed=scale_cost.scaling_ns(plan))
        drain = row.drain + scale_cost.stream_scaling_ns(plan)
        return row._replace(drain=drain, reread=scale_cost.STREAM_REREAD if plan.swap_ab else row.reread)

    def entries(self, plan: WgmmaKernel) -> Iterator[tuple[EntrySection, Entry]]:
        """Yield a line about the registers that hold scales."""
        if taken := scale_registers(plan):
            yield EntrySection.REGISTERS, Entry("scales", taken, "registers", "of the columns of a K step")


class PackedScalePlanning(Planning[Tcgen05Geometry]):
    """Scales that the tensor cores apply, of Blackwell kernels."""

    def payloads(self, plan: Tcgen05Geometry) -> Iterator[Payload]:
        """Return the packed scales of a K step."""
        return packed_scales(plan)


SIDES: PlanningByMma = {"wgmma": (BlockScalePlanning(),), "tcgen05": (PackedScalePlanning(),)}
