"""The layouts of a module's tensors as the constants that define them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.dtype import DType
from gemmgen.plan.hopper import WgmmaPlan
from gemmgen.plan.plan import KernelPlan
from gemmgen.render.fit import fit
from gemmgen.target import WGMMA


@dataclass(frozen=True)
class KernelLayouts:
    """How any kernel spells its layouts."""

    plan: KernelPlan

    def _shared(
        self, name: str, swizzle_bytes: int, dtype: DType, bases: list[list[int]], rank: int = 2
    ) -> str:
        arguments = [
            f"swizzle_byte_width={swizzle_bytes}",
            f"element_bitwidth={dtype.bits}",
            f"rank={rank}",
        ]
        return self._constant(f"{name}_LAYOUT", "gl.NVMMASharedLayout", arguments, bases)

    def _constant(self, name: str, constructor: str, arguments: list[str], bases: list[list[int]]) -> str:
        arguments = [*arguments, f"cga_layout={bases}"] if bases else arguments
        line = fit(f"{name} = gl.constexpr({constructor}(", arguments, "))")
        if "\n" not in line:
            return line
        return fit(f"{name} = gl.constexpr(", [fit(f"{constructor}(", arguments, ")", indent=4)], ")")


@dataclass(frozen=True)
class HopperLayouts(KernelLayouts):
    """The layout constants of one Hopper plan."""

    plan: WgmmaPlan

    @property
    def definitions(self) -> Iterator[str]:
        """Each constant's definition, in the order in which operands are named."""
        plan, problem = self.plan, self.plan.problem
        a_axes, b_axes = (0, 1) if problem.a.major == "k" else (1, 0), (0 if problem.b.major == "k" else 1)
        yield self._shared("A", plan.a_swizzle_bytes, problem.a.dtype, plan.bases(a_axes[0], None))
        yield self._shared("B", plan.b_swizzle_bytes, problem.b.dtype, plan.bases(None, b_axes))
        if problem.c:
            yield self._shared("C", plan.c_swizzle_bytes, problem.c, plan.bases(0, 1))
        for vector in problem.vectors:
            bases = plan.bases(*((0, None) if vector.startswith("row") else (None, 0)), rank=1)
            yield self._shared(vector.upper(), 0, problem.vector_dtype(vector), bases, rank=1)
        yield self._shared("D", plan.d_swizzle_bytes, problem.d, plan.bases(0, 1))
        yield self._accumulator()
        if plan.a_source == "registers":
            k_width = 32 // problem.a.dtype.bits  # elements of a row that a thread holds side by side
            arguments = ["operand_index=0", "parent=ACCUMULATOR_LAYOUT", f"k_width={k_width}"]
            yield self._constant("A_REGISTER_LAYOUT", "gl.DotOperandLayout", arguments, [])

    def _accumulator(self) -> str:
        """Return the accumulator's layout; Gluon's instruction shape is one warp's, of 16 rows."""
        _, n, k = self.plan.mma_shape
        arguments = [
            "version=[3, 0]",
            f"warps_per_cta=[{self.plan.warps_m}, {self.plan.warps_n}]",
            f"instr_shape=[{WGMMA.rows_per_warp}, {n}, {k}]",
        ]
        bases = self.plan.bases(0, 1)
        return self._constant("ACCUMULATOR_LAYOUT", "gl.NVMMADistributedLayout", arguments, bases)
