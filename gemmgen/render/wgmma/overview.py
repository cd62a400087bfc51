"""A Hopper kernel in words, for its module's docstrings."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Operand
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
    def more_inputs(self) -> tuple[str, ...]:
        """The further arguments with a descriptor, after B."""
        problem = self.plan.problem
        loaded = [payload.tensor for payload in self.plan.stage.payloads]
        groups = "G * " if problem.groups is not None and problem.groups.apart else ""
        found: list[str] = []
        for name, operand, rows in ("a_scale", problem.a, "M"), ("b_scale", problem.b, self.columns_of_b):
            if name in loaded:
                found.append(f"{name} stored as [{groups}ceil(K / {operand.scale_k}), {rows}]")
        return tuple(found)

    @property
    def columns_of_b(self) -> str:
        """The columns of B: of all sums of an element of D."""
        return "2N" if self.plan.problem.gated else "N"

    @staticmethod
    def _typed(operand: Operand) -> str:
        """Return the element type of an operand, with its scales."""
        if not (scale := operand.scale):
            return operand.dtype.name
        return f"{operand.dtype.name}{scale.words}"

    @property
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""
        problem = self.plan.problem
        a, b, d = self._typed(problem.a), self._typed(problem.b), problem.d.name
        d += f"{problem.d_scale.words} that the kernel computes" if problem.d_scale else ""
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
        return self._specialized() if self.plan.specialized else self._unspecialized()

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
        """The words about a wgmma that takes its left operand from registers."""
        mma = self.plan.mma
        return f" with {mma.left.tensor.upper()} from registers" if mma.reads_left else ""

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
            if plan.occupancy == 2:
                others = " Meanwhile the SM's other program can multiply."
            elif plan.occupancy > 2:
                others = f" Meanwhile the SM's {counted(plan.occupancy - 1)} other programs can multiply."
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
