"""The side of block scales in rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware import SCALE_COLUMNS, SCALE_LANES, SCALE_ROWS
from gemmgen.plan.axes import axes_of, extent_of, shown
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.blackwell import SCALE_BLOCK_EXTENTS
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.side import Rendering, SidesByMma
from gemmgen.render.spelling import extent_name
from gemmgen.render.wgmma.scale_reads import RUN_STEPS, ScaleReads


@dataclass(frozen=True)
class BlockScales(Rendering):
    """Scales that multiply the sums of a block of K, of a Hopper plan."""

    plan: WgmmaKernel
    name = "block_scales"

    @property
    def applies(self) -> bool:
        """True if sums are multiplied by scales."""
        return self.plan.problem.scales_sums

    @property
    def constants(self) -> Iterator[Constant]:
        """The extents of blocks, and of the rows and columns that are scaled at a time."""
        plan, reads, b = self.plan, ScaleReads(self.plan), self.plan.problem.b
        if plan.step_blocks > 1:
            meaning = "blocks of a K step, each with scales of its own"
            yield Constant(Place.STEP, "STEP_BLOCKS", plan.step_blocks, meaning)
        if plan.step_blocks > 1 or (plan.has_tile_scales and reads.by_block):
            yield Constant(
                Place.STEP, "SCALE_K", plan.cta_tile_k // plan.step_blocks, "of K that share a scale"
            )
        if plan.scales_in_flight:
            yield Constant(Place.STEP, "RUN", RUN_STEPS, "K steps whose MMAs are issued beside those before")
        if plan.has_tile_scales and b.scale:
            yield Constant(Place.STEP, "SCALE_COLUMNS", b.scale.format.rows, "of B that share a scale")
        if plan.access.scales_from_any_row:
            meaning = "of A whose scales a stage has, also of rows ahead of a tile"
            yield Constant(Place.STEP, "SCALE_ROWS", reads.rows_in_stage, meaning)
        if plan.row_slabs > 1:
            meaning = "rows of a consumer that are multiplied at a time"
            yield Constant(Place.STEP, "SLAB_M", plan.cta_consumer_tile_m // plan.row_slabs, meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The functions that read scales, and the function of the host that arranges them."""
        for template in ScaleReads(self.plan).functions:
            yield Function(Section.READ, template)
        of_groups = "_of_groups" if self.plan.access.scales_groups_of_rows else ""
        yield Function(Section.MEMORY, f"wrapper/arrange_scales{of_groups}")

    @property
    def imported(self) -> tuple[tuple[str, str], ...]:
        """The fence between the reads of threads and the next load of TMA."""
        return (("hopper", "fence_async_shared"),)

    @property
    def sentences(self) -> Iterator[str]:
        """A sentence about slabs of rows or columns, whose sums are scaled one after the other."""
        if self.plan.column_slabs > 1:
            yield (
                "A consumer multiplies the columns of the two accumulators one after the other: sums of a "
                "block of K are in registers for one of both at a time."
            )
        elif self.plan.row_slabs > 1:
            yield (
                "A consumer multiplies its rows in two slabs, one after the other: sums of a block of K are "
                "in registers for one slab at a time."
            )

    @property
    def docs(self) -> dict[str, str]:
        """The extents and the memory of the scales of A and of B."""
        problem = self.plan.problem
        docs = dict[str, str]()
        for operand in ("a", "b"):
            scale, name = problem.operand(operand).scale, f"{operand}_scale"
            assert scale is not None  # sums have scales of both operands
            *groups, rows, blocks = axes_of(problem, self.plan.argument(name))
            extents = [extent_of(problem, axis).words for axis in (rows, blocks)]
            memory = f"{rows} contiguous, blocks of K at multiples of 16 bytes"
            if scale.format.rows > 1:
                memory = f"rows {extents[1]} apart, rounded up to a multiple of {scale.unit}"
                if problem.in_blocks:
                    memory += f", and N a multiple of {scale.format.rows}"
            shape = shown([*groups, *extents])
            docs[name] = f"{shape}, {scale.dtype.torch}, {memory}; else see `arrange_scales`"
        return docs


@dataclass(frozen=True)
class PackedScales(Rendering):
    """Scales that the tensor cores apply, of a Blackwell plan."""

    plan: Tcgen05Kernel
    name = "block_scales"

    @property
    def applies(self) -> bool:
        """True if the tensor cores apply scales."""
        return self.plan.problem.packs_scales

    @property
    def constants(self) -> Iterator[Constant]:
        """The extents of a block of scales, and the blocks of a stage."""
        first, *_ = both = self.plan.resources.scales
        yield Constant(Place.STEP, "SCALE_ROWS", SCALE_ROWS, "rows whose scales lie together in a block")
        meaning = "scales of each of these rows in a block, of a byte each"
        yield Constant(Place.STEP, "SCALE_COLUMNS", SCALE_COLUMNS, meaning)
        meaning = "lanes of tensor memory that a block is divided among"
        yield Constant(Place.STEP, "SCALE_LANES", SCALE_LANES, meaning)
        *_, blocks, lines, line = first.shape
        yield Constant(Place.STEP, SCALE_BLOCK_EXTENTS[0], lines.size, "of a block, as TMA moves it")
        meaning = "the most that a box of TMA has along an extent"
        yield Constant(Place.STEP, SCALE_BLOCK_EXTENTS[1], line.size, meaning)
        meanings = ("blocks along the rows of A's tile", "blocks along the columns of B's tile")
        for buffer, meaning in zip(both, meanings, strict=True):
            yield Constant(Place.STEP, extent_name(buffer.shape[1]), buffer.shape[1].size, meaning)
        yield Constant(Place.STEP, extent_name(blocks), blocks.size, "blocks along K in a step")

    @property
    def functions(self) -> Iterator[Function]:
        """The view of scales as a matrix, and the function of the host that packs them."""
        yield Function(Section.READ, "tcgen05/as_matrix")
        yield Function(Section.MEMORY, "wrapper/pack_scales", passed=("pack_scales",))

    @property
    def imported(self) -> Iterator[tuple[str, str]]:
        """The layout of scales in tensor memory, and the copy of scales to it."""
        yield "blackwell", "TensorMemoryScalesLayout"
        yield "blackwell", "tcgen05_copy"

    @property
    def docs(self) -> dict[str, str]:
        """The extents of the scales of A and of B."""
        scale = self.plan.problem.a.scale
        assert scale is not None  # the tensor cores apply scales of both operands
        made = f"{scale.dtype.torch}; or packed by `pack_scales`"
        rows = {"a_scale": "M", "b_scale": "N"}
        return {name: f"[{of}, ceil(K / {scale.vector})], {made}" for name, of in rows.items()}


SIDES: SidesByMma = {"wgmma": (BlockScales,), "tcgen05": (PackedScales,)}
