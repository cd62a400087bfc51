"""A Blackwell kernel in words, for its module's docstrings."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.hardware import TCGEN05
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.problem import Operand
from gemmgen.render.overview import KernelOverview


@dataclass(frozen=True)
class BlackwellOverview(KernelOverview):
    """A Blackwell kernel in words."""

    plan: Tcgen05Kernel

    @property
    def generation(self) -> str:
        """The GPUs that the kernel is for."""
        return "Blackwell"

    @property
    def more_inputs(self) -> tuple[str, ...]:
        """The further arguments with a descriptor, after B."""
        return ("scales from `pack_scales`",) if self.plan.resources.scales else ()

    @property
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""
        problem = self.plan.problem
        a, b = self._typed(problem.a), self._typed(problem.b)
        inputs = f"A and B {a}" if a == b else f"A {a}, B {b}"
        c = f", C {problem.c.name}" if problem.c else ""
        return f"{inputs}{c}, D {problem.d.name}, accumulated in {problem.accumulator.name}"

    @staticmethod
    def _typed(operand: Operand) -> str:
        name = operand.dtype.name
        name += f" ({operand.dtype.in_memory} in memory)" if operand.dtype.in_memory else ""
        if not (scale := operand.scale):
            return name
        return (
            f"{scale.format.name} ({name} with a scale of {scale.dtype.name} for every {scale.vector} of K)"
        )

    @property
    def resources(self) -> tuple[tuple[str, str], ...]:
        """The resources of the kernel: name and amount."""
        plan = self.plan
        m, n, k = plan.mma_shape
        columns = f"{plan.tmem_columns} of {TCGEN05.tmem_columns} columns"
        accumulators = "1 accumulator" if plan.accumulators == 1 else f"{plan.accumulators} accumulators"
        scales = " and the scales of a K step" if plan.resources.scales else ""
        pool, ring = plan.register_pool, f", in {plan.stages} stages"
        return (
            ("CTA tile", f"{plan.cta_tile_m} x {plan.cta_tile_n}, {plan.cta_tile_k} of K per step{ring}"),
            ("cluster", f"{plan.cluster_m} x {plan.cluster_n} CTAs"),
            ("instruction", f"tcgen05.mma {plan.mma_kind}, {m} x {n} x {k}, of {self._group}"),
            ("tensor memory", f"{columns}, for {accumulators}{scales}"),
            ("shared memory", f"{plan.smem_bytes:,} bytes per CTA"),
            ("threads", self._threads),
            ("registers", f"{pool.default_registers} per epilogue thread, {plan.worker_registers} per other"),
        )

    @property
    def _place(self) -> str:
        """The SMs that a program runs on."""
        size = self.plan.cluster_size
        return "an SM" if size == 1 else f"a cluster of {size} SMs"

    @property
    def _group(self) -> str:
        return "two CTAs" if self.plan.paired else "one CTA"

    def describe(self) -> str:
        """Say how the kernel goes about it."""
        plan = self.plan
        if plan.launch_control:
            text = (
                f"There is a program for each tile of D, on {self._place}. A program that has computed its "
                "tile takes over the tile of one that has not started, as cluster launch control assigns it: "
                "a warp asks for the next tile while this one is computed."
            )
        else:
            text = self.walk
        what = "tiles of A and B and their scales" if plan.resources.scales else "tiles of A and B"
        text += f" In each CTA one warp loads {what} through TMA into a ring of stages."
        if plan.paired:
            text += (
                " Pairs of CTAs multiply together: each holds its rows of A and half of B's columns, and the "
                "MMA warp of the first one issues for both. Each holds the sums of its rows in tensor memory."
            )
        else:
            text += " Another issues the MMAs, whose sums are in tensor memory."
        what = [*(["a tile of C"] if plan.problem.c else []), *map(_vector, plan.problem.vectors)]
        *most, last = what or [""]
        loaded = f"{', '.join(most)} and {last}" if most else last
        loaded = f" load {loaded} through TMA while A and B are multiplied," if what else ""
        stored = f"{'compute D of them and store it' if what else 'convert them and store D'} through TMA"
        meanwhile = " while the next tile is multiplied" if plan.accumulators > 1 else ""
        return f"{text} Four warps{loaded} read the sums from tensor memory, {stored}{meanwhile}."


def _vector(name: str) -> str:
    """Return a row or column operand in words: ``a column bias``."""
    return f"a {name.replace('_', ' ')}"
