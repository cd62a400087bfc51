"""A kernel in words, for its module's docstrings."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from gemmgen.plan import Plan

COUNTS = {1: "one", 2: "two", 4: "four"}
OPS = {
    "tensor_scale": "a scale",
    "row_scale": "a scale per row",
    "column_scale": "a scale per column",
    "row_bias": "a bias per row",
    "column_bias": "a bias per column",
    "residual": "C",
    "relu": "ReLU",
    "gelu_tanh": "GELU (tanh)",
    "gelu_erf": "GELU (erf)",
    "silu": "SiLU",
}


@dataclass(frozen=True)
class OverviewView:
    """What a reader should know before the code."""

    plan: Plan

    @property
    def formula(self) -> str:
        """What D is, in a line."""
        problem = self.plan.problem
        factor = {1.0: "", -1.0: "-"}.get(problem.alpha, f"{problem.alpha:g} * ")
        text = f"{factor}A[M, K] @ B[K, N]"
        if problem.c and not problem.residual:
            sign, factor = ("-" if problem.beta < 0 else "+"), abs(problem.beta)
            text += f" {sign} {'' if factor == 1 else f'{factor:g} * '}C[M, N]"
        if problem.ops:
            text = f"ops({text})"
        return f"D[M, N] = {text}"

    @property
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""
        problem = self.plan.problem
        a, b, d = problem.a.dtype.name, problem.b.dtype.name, problem.d.name
        inputs = f"A and B {a}" if a == b else f"A {a}, B {b}"
        c = f", C {problem.c.name}" if problem.c else ""
        return f"{inputs}{c}, D {d}, accumulated in {problem.accumulator.name}"

    @property
    def formula_paragraph(self) -> str:
        """Formula, place and types, wrapped."""
        architecture = self.plan.architecture.name
        text = f"{self.formula} on Hopper ({architecture}): {self.dtypes}."
        if ops := self.plan.problem.ops:
            text += f" The ops, in order: {', '.join(OPS[op] for op in ops)}."
        return textwrap.fill(text, width=105)

    @property
    def resources(self) -> tuple[tuple[str, str], ...]:
        """What the kernel takes, name by name."""
        plan = self.plan
        ring = "" if plan.synchronous else f", in {plan.stages} stages"
        registers = f"{plan.consumer_registers} per consumer thread ({plan.accumulator_registers} hold the accumulator)"
        if plan.specialized:
            registers += f", {plan.producer_registers} per producer thread"
        else:
            registers = f"at most {plan.consumer_registers} per thread ({plan.accumulator_registers} hold the accumulator)"
        shared = f"{plan.smem_bytes:,} bytes per CTA" + (f", {plan.occupancy} CTAs per SM" if plan.occupancy > 1 else "")
        return (
            ("CTA tile", f"{plan.cta_tile_m} x {plan.cta_tile_n}, {plan.cta_tile_k} of K per step{ring}"),
            ("cluster", f"{plan.cluster_m} x {plan.cluster_n} CTAs"),
            ("instruction", f"wgmma {plan.mma_name}"),
            ("shared memory", shared),
            ("threads", f"{plan.threads} per CTA"),
            ("registers", registers),
        )

    @property
    def lone_consumer(self) -> str:
        """Who multiplies where there is one consumer."""
        warpgroups = self.plan.consumer_warps // self.plan.architecture.warps_per_warpgroup
        return "The consumer warpgroup" if warpgroups == 1 else "Both consumer warpgroups"

    @property
    def kernel(self) -> str:
        """The kernel's docstring."""
        problem = self.plan.problem
        a = "A [M, K]" if problem.a.major == "k" else "A stored as [K, M]"
        b = "B stored as [N, K]" if problem.b.major == "k" else "B [K, N]"
        return f"{self.formula.replace('[M, K]', '').replace('[K, N]', '').replace('[M, N]', '')}; the descriptors are over {a}, {b}, and D [M, N]."

    @property
    def structure(self) -> str:
        """How the kernel goes about it, in one paragraph."""
        return textwrap.fill(self._structure(), width=100)

    def _structure(self) -> str:
        plan = self.plan
        if plan.specialized:
            return self._specialized()
        warps = f"Its {plan.consumer_warps} warps"
        if plan.schedule_kind == "single_tile":
            return f"One program for a problem of a single tile. {warps} load A and B whole through TMA, multiply them with wgmma, and store D through TMA."
        if plan.synchronous:
            return f"One program per tile of D. {warps} load a K step of A and B through TMA, wait for it, and multiply it with wgmma; then comes the next one. Another program on the same SM can fill the waits."
        ring = f"a ring of {plan.stages} stages that TMA fills"
        flight = "one MMA stays in flight while the next is issued" if plan.outstanding_mmas else "loads for later steps are in flight while one is multiplied"
        if plan.persistent:
            return f"One program per SM walks over tiles of D. {warps} multiply K steps with wgmma from {ring}: {flight}, over the borders of tiles too, so that D is stored while the next tile loads."
        return f"One program per tile of D. {warps} multiply K steps with wgmma from {ring}: {flight}."

    def _specialized(self) -> str:
        plan = self.plan
        program = "SM" if plan.cluster_size == 1 else f"cluster of {plan.cluster_size} SMs"
        loads = "loads tiles of A and B through TMA"
        if plan.multicast:
            shared = " and ".join(operand.upper() for operand in plan.multicast)
            loads += f", those of {shared} once for all CTAs that share them by multicast,"
        if plan.ping_pong:
            work = "two consumers take turns with whole tiles: one multiplies with wgmma while the other stores D through TMA"
        else:
            consumers = f"{COUNTS.get(plan.consumers, str(plan.consumers))} consumer warpgroups" if plan.consumers > 1 else f"one consumer of {plan.consumer_warps} warps"
            verbs = ("multiplies", "stores") if plan.consumers == 1 else ("multiply", "store")
            work = f"{consumers} {verbs[0]} them with wgmma, and {verbs[1]} D through TMA while the loads of the next tile are already in flight"
        return f"One program per {program} walks over tiles of D. In each CTA one producer warp {loads} into a ring of shared-memory stages; {work}."
