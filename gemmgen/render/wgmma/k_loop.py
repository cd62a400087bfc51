"""The K loop of a Hopper module as its templates see it: functions, parameters, operands and sums."""

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
    issue_of_feature: str = ""
    """The template with which a feature replaces `issue_mmas` (`Rendering.issue_mmas`); empty without one."""

    @property
    def words_of_step(self) -> str:
        """The words about the K of a step if it is the block of a scale; else empty."""
        is_block = self.plan.problem.scaled_k == self.plan.cta_tile_k
        return "of a K step, the block of a scale" if is_block else ""

    # --- functions

    @property
    def functions(self) -> tuple[str, str]:
        """The templates of the function that issues MMAs, and of the loop."""
        return self._issue_mmas, self._multiply

    @property
    def _issue_mmas(self) -> str:
        """The template that issues the MMAs of a K step, of one of its blocks, or of a slab of columns."""
        plan = self.plan
        if self.issue_of_feature:
            return self.issue_of_feature
        if plan.column_slabs > 1:
            return "wgmma/issue_mmas/slab"
        if plan.step_blocks > 1:
            return "wgmma/issue_mmas/block"
        return "wgmma/issue_mmas/several" if plan.composed else "wgmma/issue_mmas/one"

    @property
    def _multiply(self) -> str:
        """The template of the loop: how the MMAs of a K step and of the next one follow each other."""
        plan = self.plan
        if plan.synchronous:
            single = plan.schedule_kind == "single_tile"
            return "wgmma/k_loop/single_tile" if single else "wgmma/k_loop/synchronous"
        if plan.problem.scaled_k:
            return self.scales.loop
        if self.is_prefetched:
            return "wgmma/k_loop/prefetched"
        overlaps = plan.outstanding_mmas and not self.sums_each_step
        return "wgmma/k_loop/overlapped" if overlaps else "wgmma/k_loop/in_order"

    @property
    def retires_mmas(self) -> bool:
        """True if `issue_mmas` returns when the MMAs of a K step have retired: a feature's function waits."""
        return bool(self.issue_of_feature)

    @property
    def sums_each_step(self) -> bool:
        """True if each K step has sums of its own, from zero on, which threads add to the tile's sums."""
        return bool(self.plan.promote_k)

    @property
    def is_prefetched(self) -> bool:
        """True if the left operand of a K step is read into registers while the MMAs of another one run."""
        return self.plan.fragments > 1 and not self.sums_each_step and not self.plan.synchronous

    @property
    def scales(self) -> ScaleReads:
        """How the scales of a block of K are read, for sums that have scales."""
        return ScaleReads(self.plan)

    # --- parameters

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the loop."""
        return tuple(parameter for parameter, _ in self._passed)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a call of the loop."""
        return tuple(argument for _, argument in self._passed)

    @property
    def _passed(self) -> Iterator[tuple[str, str]]:
        """The parameters of the loop, each with the argument of a call."""
        plan = self.plan
        yield "args", "args"
        if plan.specialized:
            yield "a_smem", self._of_consumer("a_smem")
            yield "k_steps", "k_steps" if walk_of(plan).steps else "args.k_steps"
            yield "ring", "ring"
        else:
            yield "ring", "ring" if plan.persistent else "RingPosition(gl.to_tensor(0), gl.to_tensor(0))"
            yield "loads", "loads"
        if plan.staggered:
            yield "parts: gl.constexpr", "parts=PARTS - consumer"  # the second consumer lacks the last part
        if plan.specialized and plan.problem.scaled_k:
            yield "a_scale_smem", self._of_consumer("a_scale_smem")
        if plan.access.scales_from_any_row:
            yield "scale_row", self.scales.first_row
        if plan.has_tile_scales:
            yield self.scales.passed

    def _of_consumer(self, field: str) -> str:
        """Return a field of the arguments: a consumer's own value if consumers share a tile."""
        return f"args.{field}[consumer]" if self.plan.row_shares > 1 else f"args.{field}"

    # --- operands and sums

    @property
    def left_tile(self) -> str:
        """The instruction's left operand: A as [M, K], or B as [N, K]."""
        if self.plan.mma.reads_left:
            return f"{self.left}_part" if self.plan.composed else f"{self.left}_tile"
        return turned(f"{self.left}_tile", self._major_of_left == "mn")

    @property
    def right_tile(self) -> str:
        """The instruction's right operand: B as [K, N], or A as [K, M]."""
        tensor = self.plan.mma.right.tensor
        return turned(f"{tensor}_tile", self.plan.problem.operand(tensor).major == "k")

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
    def mma_sums(self) -> str:
        """The sums that the MMAs of a K step add to: the tile's sums, or sums of the step alone."""
        if self.sums_each_step:
            return "steps" if self.plan.composed else "step"
        return "accumulators" if self.plan.composed else "accumulator"

    @property
    def reads_left(self) -> bool:
        """True if a function reads the left operand into registers; a feature's `issue_mmas` needs none."""
        return self.plan.mma.reads_left and not self.issue_of_feature

    def reads(self, tensor: str) -> bool:
        """Return True if the function that issues MMAs reads a tensor into registers itself."""
        return self.plan.mma.source_of(tensor) == "registers" and not self.is_prefetched

    def count_of(self, sums: str) -> str:
        """Return how many tensors a variable of sums has: one for each part of a tile or a consumer."""
        if not self.plan.composed:
            return "1"
        return f"len({sums})" if self.plan.staggered else "PARTS"

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
