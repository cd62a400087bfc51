"""A Hopper kernel in words, for its module's docstrings."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import BlockScale, Operand
from gemmgen.render.overview import KernelOverview, counted


@dataclass(frozen=True)
class HopperOverview(KernelOverview):
    """A Hopper kernel in words."""

    plan: WgmmaKernel

    @property
    def generation(self) -> str:
        """The GPUs that the kernel is for."""
        return "Hopper"

    @property
    def factors(self) -> tuple[str, str]:
        """The factors of the product with their shapes."""
        a, b = super().factors
        return (f"({a} * a_scale)", f"({b} * b_scale)") if self.plan.problem.scales_sums else (a, b)

    @property
    def short_factors(self) -> tuple[str, str]:
        """The factors of the product."""
        if not self.plan.problem.scales_sums:
            return super().short_factors
        return "(A * a_scale)", "(B * b_scale)"

    @property
    def more_inputs(self) -> tuple[str, ...]:
        """The further arguments with a descriptor, after B."""
        scale = self.plan.problem.a.scale
        apart = self.plan.problem.groups is not None and self.plan.problem.groups.apart
        blocks = f"{'G * ' * apart}ceil(K / {scale.vector})" if scale else ""
        extents = {"a_scale": f"[{blocks}, M]", "b_scale": f"[{blocks}, N]"}
        loaded = [payload.tensor for payload in self.plan.stage.payloads]
        return tuple(f"{name} stored as {each}" for name, each in extents.items() if name in loaded)

    @staticmethod
    def _typed(operand: Operand) -> str:
        """Return the element type of an operand, with its scales."""
        if not (scale := operand.scale):
            return operand.dtype.name
        return f"{operand.dtype.name}{words_of_scales(scale)}"

    @property
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""
        problem = self.plan.problem
        a, b, d = self._typed(problem.a), self._typed(problem.b), problem.d.name
        d += f"{words_of_scales(problem.d_scale)} that the kernel computes" if problem.d_scale else ""
        inputs = f"A and B {a}" if a == b else f"A {a}, B {b}"
        inputs += f" ({memory} in memory)" if (memory := problem.a.dtype.in_memory) else ""
        c = f", C {problem.c.name}" if problem.c else ""
        promoted = f" after every {self.plan.promote_k} of K" if self.plan.promote_k else ""
        return f"{inputs}{c}, D {d}, accumulated in {problem.accumulator.name}{promoted}"

    @property
    def resources(self) -> tuple[tuple[str, str], ...]:
        """The resources of the kernel: name and amount."""
        plan = self.plan
        ring = "" if plan.synchronous else f", in {plan.stages} stages"
        together = plan.occupancy > 1 and plan.schedule_kind != "single_tile"  # which runs one CTA in all
        shared = f", {plan.occupancy} CTAs per SM" if together else ""
        columns = f"({' + '.join(map(str, plan.column_parts))})" if plan.composed else f"{plan.cta_tile_n}"
        if plan.problem.gated:
            columns = f"({' + '.join([str(plan.cta_columns)] * plan.problem.b_blocks)})"
            if plan.problem.interleaved:
                columns = f"({plan.problem.b_blocks} * {plan.cta_columns})"
        if plan.staggered:
            widest = plan.cta_widest_n
            columns = (
                f"{plan.cta_tile_n} (of one consumer {widest}, of the other {widest - 2 * plan.stagger_n})"
            )
        return (
            ("CTA tile", f"{plan.cta_tile_m} x {columns}, {plan.cta_tile_k} of K per step{ring}"),
            ("cluster", f"{plan.cluster_m} x {plan.cluster_n} CTAs"),
            ("instruction", f"wgmma {', '.join(plan.mma_names)}"),
            ("shared memory", f"{plan.smem_bytes:,} bytes per CTA{shared}"),
            ("threads", self._threads),
            ("registers", self._registers),
        )

    @property
    def _registers(self) -> str:
        """Registers per thread, role by role."""
        plan = self.plan
        held = "accumulator and partial sum" if plan.promote_k else "the accumulator"
        held = f"({plan.accumulator_registers} hold {held})"
        if not plan.specialized:
            return f"at most {plan.consumer_registers} per thread {held}"
        producer = f"{plan.producer_registers} per producer thread"
        return f"{plan.consumer_registers} per consumer thread {held}, {producer}"

    def describe(self) -> str:
        """Say how the kernel goes about it."""
        text = self._specialized() if self.plan.specialized else self._unspecialized()
        return text + self._slabs + self._parts + self._blocks + self._exchange + self._early

    @property
    def _slabs(self) -> str:
        """The words about slabs of rows or columns whose sums are scaled one after the other."""
        if self.plan.column_slabs > 1:
            return (
                " A consumer multiplies the columns of the two accumulators one after the other: sums of a "
                "block of K are in registers for one of both at a time."
            )
        if self.plan.row_slabs == 1:
            return ""
        return (
            " A consumer multiplies its rows in two slabs, one after the other: sums of a block of K are in "
            "registers for one slab at a time."
        )

    @property
    def _blocks_of_c(self) -> str:
        """The words about the matrices in C and D."""
        first, second = self.plan.problem.epilogue.c_blocks
        if self.plan.problem.interleaved:
            return (
                f" Columns of {first} and {second} alternate in C, so that a thread reads both values beside "
                "its sum, and its two results are neighbours in D."
            )
        return (
            f" A tile of C has a box of {first} and one of {second}, and a tile of D a box for each result."
        )

    @property
    def _blocks(self) -> str:
        """The words about the columns of B that a tile of D takes."""
        if self.plan.problem.d_blocks > 1:
            return self._blocks_of_c
        if not self.plan.problem.gated:
            return ""
        first, second = self.plan.problem.epilogue.accumulators
        if self.plan.problem.interleaved:
            return (
                f" Columns of {first} and {second} alternate in B, in its tiles and in an accumulator, so "
                "that a thread has both sums of an element side by side."
            )
        return (
            f" A tile of B has the columns of {first} and then those of {second} that a tile of D comes "
            "from, so that a thread has both sums of an element in one accumulator."
        )

    @property
    def _parts(self) -> str:
        """How the columns of a composed tile are divided."""
        if not self.plan.composed:
            return ""
        number = counted(len(self.plan.column_parts))
        parts = (
            f" A tile's columns are {number} parts, each a power of two wide, with tiles of B, MMAs and sums "
            "of its own."
        )
        if not self.plan.staggered:
            return parts
        return (
            f"{parts} The last part is of consumer 0's rows alone, which lie above the other's in one tile, "
            "and below them in the tile beside it: two such tiles are one rectangle."
        )

    @property
    def _exchange(self) -> str:
        """The words about swap-AB, if the kernel has it."""
        if not self.plan.swap_ab:
            return ""
        return " The rows of B are wgmma's rows and those of A its columns: its sums are D's tile transposed."

    @property
    def _early(self) -> str:
        """The words about a kernel that starts before the one ahead of it has ended."""
        if not self.plan.dependent:
            return ""
        if not (read := self.plan.read_early):
            return (
                " It starts while the kernel ahead of it may still run, and reads and writes after its end."
            )
        early = read.upper()
        return (
            f" It starts while the kernel ahead of it may still run, loads its first tiles of {early}, and "
            "waits for that one's end before all else."
        )

    @property
    def _programs(self) -> str:
        """How many programs there are, as a sentence."""
        if self.plan.splits == 1:
            return "One program per tile of D."
        return (
            f"{counted(self.plan.splits).capitalize()} programs per tile of D divide its K: {self._reduction}"
        )

    @property
    def _reduction(self) -> str:
        """How parts of K come together, as the end of a sentence."""
        if self.plan.reduction == "ordered":
            return "each leaves its sums in memory, and the last to come adds them up in order and stores D."
        if self.plan.reduces_apart:
            return "each leaves its sums in memory, and a second kernel adds them up in order and stores D."
        return "each adds its sums to those in memory as it comes, and the last to come stores D."

    @property
    def _operands(self) -> str:
        """The words about a wgmma that takes A from registers."""
        return " with A from registers" if self.plan.a_source == "registers" else ""

    def _unspecialized(self) -> str:
        plan = self.plan
        its = "Its" if plan.splits == 1 else "Each one's"
        warps, wgmma = f"{its} {plan.consumer_warps} warps", f"wgmma{self._operands}"
        if plan.schedule_kind == "single_tile":
            loads = "load all of A and B through TMA"
            return (
                f"One program computes the single tile of D. {warps} {loads}, multiply them with {wgmma}, "
                "and store D through TMA."
            )
        if plan.synchronous:
            others = ""
            if plan.occupancy > 1:
                number = f"{counted(plan.occupancy - 1)} " * (plan.occupancy > 2)
                programs = f"{number}other program{'s' * (plan.occupancy > 2)}"
                others = f" Meanwhile the SM's {programs} can multiply."
            return (
                f"{self._programs} {warps} load a K step of A and B through TMA, wait for it, "
                f"multiply it with {wgmma}, and only then load the next one.{others}"
            )
        ring = f"{warps} multiply K steps with {wgmma} out of a ring of {plan.stages} stages that TMA fills"
        flight = "later steps load while one is multiplied"
        if plan.outstanding_mmas:
            flight = "later steps load, and one MMA is in flight while the next is issued"
        if plan.persistent:
            return (
                f"{self.walk} {ring}: {flight}. The loads run on across tiles, so that the next tile is "
                "loading while D is stored."
            )
        return f"{self._programs} {ring}: {flight}."

    def _specialized(self) -> str:
        plan = self.plan
        loads = "In each CTA one producer warp loads tiles of A and B through TMA into a ring of stages"
        if plan.problem.gathers_a:
            loads = (
                "In each CTA four producer warps fill a ring of stages: with rows of A by cp.async, and with "
                "tiles of B through TMA"
            )
        if plan.multicast:
            shared = " or ".join(operand.upper() for operand in plan.multicast)
            loads += f"; a tile of {shared} is loaded once and multicast to the CTAs that share it"
        return f"{self.walk} {loads}. {self._work()}"

    @property
    def _d(self) -> str:
        """How a consumer stores D, in words."""
        return "rows of D by their index" if self.plan.problem.scatters_d else "D through TMA"

    def _work(self) -> str:
        plan = self.plan
        if plan.ping_pong:
            return (
                f"Two consumers take turns with whole tiles: one multiplies with wgmma{self._operands} while "
                f"the other stores {self._d}."
            )
        if plan.splits > 1:
            return f"{self._parts_work()} {self._reduction[0].upper()}{self._reduction[1:]}"
        meanwhile = f"{self._d} while the next tile is already loading."
        if plan.consumers == 1:
            consumer = f"One consumer of {plan.consumer_warps} warps"
            return f"{consumer} multiplies with wgmma{self._operands} and stores {meanwhile}"
        consumers = counted(plan.consumers).capitalize()
        return f"{consumers} consumer warpgroups multiply with wgmma{self._operands} and store {meanwhile}"

    def _parts_work(self) -> str:
        """The words about consumers that multiply parts of tiles."""
        plan = self.plan
        wgmma = f"with wgmma{self._operands} while the next part is already loading."
        if plan.consumers == 1:
            return f"One consumer of {plan.consumer_warps} warps multiplies {wgmma}"
        return f"{counted(plan.consumers).capitalize()} consumer warpgroups multiply {wgmma}"


def words_of_scales(scale: BlockScale) -> str:
    """Return the words about scales that follow an element type."""
    return f" with {scale.dtype.name} scales of blocks of {scale.format.rows} x {scale.vector}"
