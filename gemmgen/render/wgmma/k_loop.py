"""The K loop of a Hopper module: which implementations it is made of, and what their templates name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.storage import Extent, SharedBuffer
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.spelling import extent_name
from gemmgen.render.walks import walk_of
from gemmgen.render.wgmma.lanes import Part, parts_of, register_layout, turned
from gemmgen.render.wgmma.scale_reads import ScaleReads


@dataclass(frozen=True)
class KLoop:
    """The K loop of one plan as its templates see it."""

    plan: WgmmaKernel

    @property
    def words_of_step(self) -> str:
        """The words about the K of a step if it is the block of a scale; else empty."""
        is_block = self.plan.problem.scales_sums and self.plan.step_blocks == 1
        return "of a K step, the block of a scale" if is_block else ""

    # --- implementations

    @property
    def count_of_lanes(self) -> str:
        """The number of a tile's lanes in the names of templates: one or several."""
        return "several" if self.plan.composed else "one"

    @property
    def mmas_of_step(self) -> str:
        """The name of the template that issues MMAs: of all lanes of a K step, or of one of its blocks."""
        if self.plan.column_slabs > 1:
            return "slab"
        return "block" if self.plan.step_blocks > 1 else self.count_of_lanes

    @property
    def pace(self) -> str:
        """How the MMAs of a K step and the next one follow each other: the name of the loop's template."""
        plan = self.plan
        if plan.synchronous:
            return "single_tile" if plan.schedule_kind == "single_tile" else "synchronous"
        if plan.problem.scales_sums:
            return f"scaled{self.scales.pace}"
        if plan.promote_k:
            return "in_order"
        if plan.fragments > 1:
            return "prefetched"
        return "overlapped" if plan.outstanding_mmas else "in_order"

    @property
    def lanes(self) -> str:
        """The template of a K loop's sums: one tensor, or one for each part of a tile's columns."""
        return f"wgmma/lanes/{'staggered' if self.plan.staggered else self.count_of_lanes}.py.j2"

    @property
    def accumulate(self) -> str:
        """The template of how the products of a K step are added to the sums of a tile."""
        return f"wgmma/accumulate/{'promoted' if self.plan.promote_k else 'direct'}.py.j2"

    @property
    def feed(self) -> str:
        """The template of a K loop's last use of a stage: a release, or a refill."""
        return f"wgmma/feed/{'producer' if self.plan.specialized else 'refill'}.py.j2"

    @property
    def scales(self) -> ScaleReads:
        """How the scales of a block of K are read, for sums that have scales."""
        return ScaleReads(self.plan)

    @property
    def scale_parameters(self) -> str:
        """The further parameters of a K loop whose sums have scales; empty for others."""
        if not self.plan.problem.scales_sums:
            return ""
        own = ", a_scale_smem" * self.plan.specialized + ", scale_row" * self.plan.access.scales_from_any_row
        return own + f", {self.scales.of_tiles}" * self.plan.has_tile_scales

    @property
    def _scale_arguments(self) -> Iterator[str]:
        """The further arguments of a K loop whose sums have scales; none for others."""
        if self.plan.problem.scales_sums and self.plan.specialized:
            yield f"args.a_scale_smem{'[consumer]' * (self.plan.row_shares > 1)}"
        if self.plan.access.scales_from_any_row:
            yield self.scales.first_row
        if self.plan.has_tile_scales:
            yield self.scales.found

    @property
    def mma_tiles(self) -> str:
        """The instruction's operands: A as [M, K] and B as [K, N], or B as [N, K] and A as [K, M]."""
        mma = self.plan.mma
        left, right = f"{self.left}_tile", f"{mma.right.tensor}_tile"
        if mma.reads_left:
            left = f"{self.left}_part" if self.plan.composed else left
        else:
            left = turned(left, self._major_of_left == "mn")
        right_major = self.plan.problem.operand(mma.right.tensor).major
        return f"{left}, {turned(right, right_major == 'k')}"

    def as_tile(self, sums: str) -> str:
        """Return the sums of the loop as a tile of D."""
        return turned(sums, self.plan.swap_ab)

    @property
    def left(self) -> str:
        """The tensor that is the instruction's left operand: ``a``, or ``b`` with swap-AB."""
        return self.plan.mma.left.tensor

    @property
    def _major_of_left(self) -> str:
        return self.plan.problem.operand(self.left).major

    @property
    def left_rows(self) -> str:
        """A K step's tile of the left operand in shared memory, along K in its second dimension."""
        return turned(f"{self.left}_smem", self._major_of_left == "mn")

    @property
    def left_layout(self) -> str:
        """The constant that holds the layout in which the left operand is read into registers."""
        return register_layout(self.left, self.columns[0])

    @property
    def columns(self) -> tuple[Part, ...]:
        """The parts of a tile's columns."""
        return parts_of(self.plan)

    @property
    def tiles_read(self) -> str:
        """The tiles that the MMAs of a K step read in shared memory, in words."""
        mma = self.plan.mma
        return f"{mma.right.tensor.upper()}'s tiles" if mma.reads_left else "their tiles"

    @property
    def mma_sums(self) -> str:
        """The sums that the MMAs of a K step add to, or sums of their own that are promoted."""
        plural = "s" * self.plan.composed
        return f"{'step' if self.plan.promote_k else 'accumulator'}{plural}"

    @property
    def mma_options(self) -> str:
        """The last arguments of an MMA: one that is promoted begins with zero."""
        return "use_acc=False, " * bool(self.plan.promote_k) + "is_async=True"

    @property
    def from_zero(self) -> str:
        """The words about such an MMA."""
        return ", a sum from zero" * bool(self.plan.promote_k)

    def reads(self, tensor: str) -> bool:
        """Return True if the function that issues MMAs reads a tensor into registers itself."""
        return self.plan.mma.source_of(tensor) == "registers" and self.pace != "prefetched"

    @property
    def a_of_step(self) -> str:
        """The A of that function: a tile that it reads, or a tile that the MMAs read."""
        return "a_smem" if self.reads("a") else "a_tile"

    def b_of_step(self, tile: str) -> str:
        """Return the B of that function in a tile in shared memory: the tile, or a part of it."""
        return f"read_b({tile})" if self.reads("b") else tile

    @property
    def parts_parameter(self) -> str:
        """The parameter for the number of a consumer's parts; empty if all consumers have the same number."""
        return ", parts: gl.constexpr" if self.plan.staggered else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a call of the loop; the second consumer has all parts except the last one."""
        plan = self.plan
        own = "[consumer]" * (plan.row_shares > 1)
        k_steps = "k_steps" if walk_of(plan).steps else "args.k_steps"
        passed = ("args", f"args.a_smem{own}", k_steps, "ring")
        if not plan.specialized:
            start = "RingPosition(gl.to_tensor(0), gl.to_tensor(0))"
            passed = ("args", "ring" if plan.persistent else start, "loads")
        parts = ("parts=PARTS - consumer",) if plan.staggered else ()
        return (*passed, *parts, *self._scale_arguments)

    def count_of(self, parts: str) -> str:
        """Return how many parts the tuple of a consumer has that is called so."""
        return f"len({parts})" if self.plan.staggered else "PARTS"

    @property
    def zeros(self) -> str:
        """An accumulator of nothing, of a tile that is not composed."""
        return self.zeros_of(Part(None))

    def zeros_of(self, part: Part) -> str:
        """Return an accumulator of nothing for a part of a tile."""
        dtype, (rows, columns) = self.plan.problem.accumulator.gluon, self.extents
        columns = columns if part.number is None else part.columns
        return f"gl.zeros(({rows}, {columns}), {dtype}, {part.layout})"

    @property
    def extents(self) -> tuple[str, str]:
        """The constants that hold the extents of an accumulator."""
        rows, columns = self._rows, "PRODUCT_TILE_N" if self.plan.problem.gated else "PROGRAM_TILE_N"
        return (columns, rows) if self.plan.swap_ab else (rows, columns)

    @property
    def _rows(self) -> str:
        """The constant that holds the rows of a consumer's tile."""
        resources = self.plan.resources
        return extent_name(_rows_of(resources.a[0], self.plan.problem.a.major == "k"))


def _rows_of(buffer: SharedBuffer, k_major: bool) -> Extent:
    """Return the rows of A in a buffer of it."""
    return buffer.shape[0 if k_major else 1]
