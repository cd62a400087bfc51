"""A kernel in words, for its module's docstrings."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass

from gemmgen.plan.hopper import WgmmaPlan
from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.problem import Problem

COUNTS = {2: "two", 3: "three", 4: "four"}
OPS = {
    "tensor_scale": "times a scale",
    "row_scale": "times a scale for each row",
    "column_scale": "times a scale for each column",
    "row_bias": "plus a bias for each row",
    "column_bias": "plus a bias for each column",
    "residual": "plus C",
    "relu": "ReLU",
    "gelu_tanh": "GELU (tanh)",
    "gelu_erf": "GELU (erf)",
    "silu": "SiLU",
}


def formula(problem: Problem, a: str, b: str, c: str) -> str:
    """Return what D is in terms of these operands."""
    factor = {1.0: "", -1.0: "-"}.get(problem.alpha, f"{problem.alpha:g} * ")
    text = f"{factor}{a} @ {b}"
    if problem.c and not problem.residual:
        sign, factor = ("-" if problem.beta < 0 else "+"), abs(problem.beta)
        text += f" {sign} {'' if factor == 1 else f'{factor:g} * '}{c}"
    return f"epilogue({text})" if problem.ops else text


@dataclass(frozen=True)
class KernelOverview(ABC):
    """What a reader of any kernel should know before the code."""

    plan: KernelPlan

    @property
    @abstractmethod
    def generation(self) -> str:
        """The GPUs that the kernel is for."""

    @property
    @abstractmethod
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""

    @property
    @abstractmethod
    def resources(self) -> tuple[tuple[str, str], ...]:
        """What the kernel takes, name by name."""

    @property
    def factors(self) -> tuple[str, str]:
        """The factors of the product with their shapes."""
        return "A[M, K]", "B[K, N]"

    @property
    def short_factors(self) -> tuple[str, str]:
        """The factors of the product."""
        return "A", "B"

    @property
    def more_inputs(self) -> tuple[str, ...]:
        """What else has a descriptor, behind B."""
        return ()

    @abstractmethod
    def describe(self) -> str:
        """Say how the kernel goes about it."""

    @property
    def structure(self) -> str:
        """How the kernel goes about it, in one paragraph."""
        return textwrap.fill(self.describe(), width=105)

    @property
    def formula_paragraph(self) -> str:
        """Formula, place and types, wrapped."""
        architecture = self.plan.architecture.name
        product = formula(self.plan.problem, *self.factors, "C[M, N]")
        text = f"D[M, N] = {product} on {self.generation} ({architecture}): {self.dtypes}."
        if ops := self.plan.problem.ops:
            order = ", in order" if len(ops) > 1 else ""
            text += f" The epilogue{order}: {', '.join(OPS[op] for op in ops)}."
        return textwrap.fill(text, width=105)

    @property
    def kernel(self) -> str:
        """The kernel's docstring, with the quotes that end it."""
        problem = self.plan.problem
        stored = [
            "A [M, K]" if problem.a.major == "k" else "A stored as [K, M]",
            "B stored as [N, K]" if problem.b.major == "k" else "B [K, N]",
            *self.more_inputs,
            *(["C [M, N]"] if problem.c else []),
            *(f"{name} [{'M' if name.startswith('row') else 'N'}]" for name in problem.vectors),
        ]
        product = f"D = {formula(problem, *self.short_factors, 'C')}"
        descriptors = f"the descriptors are over {', '.join(stored)}, and D [M, N]."
        if len(line := f'    """{product}; {descriptors}"""') <= 110:
            return line
        body = textwrap.fill(
            descriptors[0].upper() + descriptors[1:],
            width=104,
            initial_indent="    ",
            subsequent_indent="    ",
        )
        return f'    """{product}.\n\n{body}\n    """'


@dataclass(frozen=True)
class HopperOverview(KernelOverview):
    """A Hopper kernel in words."""

    plan: WgmmaPlan

    @property
    def generation(self) -> str:
        """The GPUs that the kernel is for."""
        return "Hopper"

    @property
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""
        problem = self.plan.problem
        a, b, d = problem.a.dtype.name, problem.b.dtype.name, problem.d.name
        inputs = f"A and B {a}" if a == b else f"A {a}, B {b}"
        inputs += " (fp32 in memory)" if a == "tf32" else ""
        c = f", C {problem.c.name}" if problem.c else ""
        promoted = f" after every {self.plan.promote_k} of K" if self.plan.promote_k else ""
        return f"{inputs}{c}, D {d}, accumulated in {problem.accumulator.name}{promoted}"

    @property
    def resources(self) -> tuple[tuple[str, str], ...]:
        """What the kernel takes, name by name."""
        plan = self.plan
        ring = "" if plan.synchronous else f", in {plan.stages} stages"
        shared = f", {plan.occupancy} CTAs per SM" if plan.occupancy > 1 else ""
        return (
            ("CTA tile", f"{plan.cta_tile_m} x {plan.cta_tile_n}, {plan.cta_tile_k} of K per step{ring}"),
            ("cluster", f"{plan.cluster_m} x {plan.cluster_n} CTAs"),
            ("instruction", f"wgmma {plan.mma_name}"),
            ("shared memory", f"{plan.smem_bytes:,} bytes per CTA{shared}"),
            ("threads", f"{plan.threads} per CTA"),
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
    def _operands(self) -> str:
        """Where wgmma takes its operands from, where that is not shared memory alone."""
        return " with A from registers" if self.plan.a_source == "registers" else ""

    def _unspecialized(self) -> str:
        plan = self.plan
        warps, wgmma = f"Its {plan.consumer_warps} warps", f"wgmma{self._operands}"
        if plan.schedule_kind == "single_tile":
            loads = "load all of A and B through TMA"
            return (
                f"One program computes the single tile of D. {warps} {loads}, multiply them with {wgmma}, "
                "and store D through TMA."
            )
        if plan.synchronous:
            others = " Meanwhile the SM's other program can multiply." if plan.occupancy > 1 else ""
            return (
                f"One program per tile of D. {warps} load a K step of A and B through TMA, wait for it, "
                f"multiply it with {wgmma}, and only then load the next one.{others}"
            )
        ring = f"{warps} multiply K steps with {wgmma} out of a ring of {plan.stages} stages that TMA fills"
        flight = "later steps load while one is multiplied"
        if plan.outstanding_mmas:
            flight = "later steps load, and one MMA is in flight while the next is issued"
        if plan.persistent:
            return (
                f"One program per SM walks over tiles of D. {ring}: {flight}. The loads run on across "
                "tiles, so that the next tile is loading while D is stored."
            )
        return f"One program per tile of D. {ring}: {flight}."

    def _specialized(self) -> str:
        plan = self.plan
        program = "SM" if plan.cluster_size == 1 else f"cluster of {plan.cluster_size} SMs"
        if plan.occupancy > 1:
            program = f"CTA, {plan.occupancy} of which share an SM,"
        loads = "In each CTA one producer warp loads tiles of A and B through TMA into a ring of stages"
        if plan.multicast:
            shared = " or ".join(operand.upper() for operand in plan.multicast)
            loads += f"; a tile of {shared} is loaded once and multicast to the CTAs that share it"
        return f"One program per {program} walks over tiles of D. {loads}. {self._work()}"

    def _work(self) -> str:
        plan = self.plan
        if plan.ping_pong:
            return (
                f"Two consumers take turns with whole tiles: one multiplies with wgmma{self._operands} while "
                "the other stores D through TMA."
            )
        meanwhile = "D through TMA while the next tile is already loading."
        if plan.consumers == 1:
            consumer = f"One consumer of {plan.consumer_warps} warps"
            return f"{consumer} multiplies with wgmma{self._operands} and stores {meanwhile}"
        consumers = COUNTS.get(plan.consumers, str(plan.consumers)).capitalize()
        return f"{consumers} consumer warpgroups multiply with wgmma{self._operands} and store {meanwhile}"
