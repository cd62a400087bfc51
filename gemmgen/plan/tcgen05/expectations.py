"""Expectations of a proposed Blackwell kernel: others are legal, and proposed only if none keeps these."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import at_most
from gemmgen.plan.rule import Finding, Rule, rule
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel
from gemmgen.plan.verdicts import COMPILER_RULE, refusal_of


@rule(COMPILER_RULE)
def compiler_registers(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """The compiler is not known to spill registers."""
    if refusal := refusal_of(plan):
        found, fix = f"sub-tiles of {plan.subtile_n} columns", at_most(max(1, plan.subtile_n // 2))
        yield Finding("epilogue.subtile_n", found, refusal, fix)


EXPECTATIONS: tuple[Rule[Tcgen05Kernel], ...] = (compiler_registers,)
