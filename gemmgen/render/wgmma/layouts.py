"""The layout constants of Hopper modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware import WGMMA
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.resources import VECTOR_SUMS
from gemmgen.problem.operations import BLOCK_SCALES
from gemmgen.render.kernel import KernelLayouts
from gemmgen.render.wgmma.lanes import parts_of, register_layout


@dataclass(frozen=True)
class HopperLayouts(KernelLayouts):
    """The layout constants of one Hopper plan."""

    plan: WgmmaKernel

    @property
    def definitions(self) -> Iterator[str]:
        """Each constant's definition, in the order in which operands are named."""
        plan, problem = self.plan, self.plan.problem
        a_axes, b_axes = (0, 1) if problem.a.major == "k" else (1, 0), (0 if problem.b.major == "k" else 1)
        yield self._shared("A", plan.a_swizzle_bytes, problem.a.dtype, plan.bases(a_axes[0], None))
        if problem.gathers_a:
            yield self.of_rows("A", plan.a_unit, plan.cta_tile_k, plan.producer_warps)
        if self.plan.access.has_box_axis("a"):
            yield self._shared(
                "A_BOX", plan.a_swizzle_bytes, problem.a.dtype, plan.bases(1 + a_axes[0], None, rank=3), 3
            )
        buffers = plan.resources.b
        for part in buffers:
            if part is buffers[0] or part.swizzle_bytes != buffers[0].swizzle_bytes:
                name = part.operand.upper()
                yield self._shared(name, part.swizzle_bytes, problem.b.dtype, plan.bases(None, b_axes))
                if self.plan.access.has_box_axis("b"):
                    bases = plan.bases(None, 1 + b_axes, rank=3)
                    yield self._shared(f"{name}_BOX", part.swizzle_bytes, problem.b.dtype, bases, 3)
        for buffers in map(plan.resources.of, BLOCK_SCALES):
            for buffer in buffers[:1]:
                bases = plan.bases(1, None) if buffer.tensor == "a_scale" else plan.bases(None, 1)
                dtype, name = plan.argument(buffer.tensor).dtype, buffer.tensor.upper()
                yield self._shared(name, 0, dtype, bases)
                if self.plan.access.has_box_axis(buffer.tensor):
                    yield self._shared(f"{name}_BOX", 0, dtype, plan.bases(None, 2, rank=3), 3)
        if plan.reduces_apart:
            yield "# L2 keeps A and B no longer than it must: the second kernel reads the sums out of it."
            policy = 'FractionalEvictionPolicy("evict_first", 1.0)'
            yield f"READ_ONCE = gl.constexpr(CachePolicy(l2={policy}))"
            yield f"SUMS_LAYOUT = gl.constexpr({self._sums})"
        else:
            yield from self._epilogue
        for part, shape in zip(parts_of(plan), plan.mma_shapes, strict=True):
            yield self._accumulator(part.layout, shape)
        if plan.mma.reads_left:
            left = plan.mma.left.tensor
            # Elements of a row that a thread holds side by side.
            k_width = 32 // problem.operand(left).multiplied.bits
            names = [register_layout(left, part) for part in parts_of(plan)]
            for name, part in zip(names, parts_of(plan), strict=True):
                arguments = ["operand_index=0", f"parent={part.layout}", f"k_width={k_width}"]
                yield self._constant(name, "gl.DotOperandLayout", arguments, [])
            if plan.composed:
                yield f"{left.upper()}_REGISTER_LAYOUTS = gl.constexpr(({', '.join(names)}))"

    @property
    def _sums(self) -> str:
        """The layout of the sums that a program adds up: of one split, or of splits side by side."""
        lanes, splits = self.plan.architecture.threads_per_warp, self.plan.splits_side_by_side
        if splits == 1:
            return f"gl.BlockedLayout([{VECTOR_SUMS}], [{lanes}], [{self.plan.reduction_warps}], [0])"
        warps = [splits, self.plan.reduction_warps // splits]
        return f"gl.BlockedLayout([1, {VECTOR_SUMS}], [1, {lanes}], {warps}, [1, 0])"

    def _accumulator(self, name: str, mma_shape: tuple[int, int, int]) -> str:
        """Return an accumulator's layout; Gluon's instruction shape is one warp's, of 16 rows."""
        _, n, k = mma_shape
        arguments = [
            "version=[3, 0]",
            f"warps_per_cta={list(self.plan.warps_across)}",
            f"instr_shape=[{WGMMA.rows_per_warp}, {n}, {k}]",
        ]
        bases = self.plan.bases(1, 0) if self.plan.swap_ab else self.plan.bases(0, 1)
        return self._constant(name, "gl.NVMMADistributedLayout", arguments, bases)
