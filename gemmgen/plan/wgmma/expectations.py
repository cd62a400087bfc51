"""Expectations of a proposed Hopper kernel: others are legal, and proposed only if none keeps these.

No formula gives the registers that the compiler takes. These mostly keep proposals from spilling, and are no
reason to refuse a spec.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware.gpus import round_up
from gemmgen.plan.fix import at_least
from gemmgen.plan.rule import Finding, Rule, rule
from gemmgen.plan.wgmma.bounds import expected_producer_registers, expected_registers
from gemmgen.plan.wgmma.resources import WgmmaKernel


@rule("expected-registers")
def expected_consumer_registers(plan: WgmmaKernel) -> Iterator[Finding]:
    """A consumer has the registers that it is expected to take."""
    if (expected := expected_registers(plan)) > plan.consumer_registers:
        yield Finding(
            "warp_specialization.registers.consumer",
            f"{plan.consumer_registers} registers per consumer thread",
            f"{expected} are expected to be needed, and the rest would spill",
            at_least(round_up(expected, plan.architecture.setmaxnreg_granularity)),
        )


@rule("expected-registers")
def expected_registers_of_producer(plan: WgmmaKernel) -> Iterator[Finding]:
    """A producer has the registers that it is expected to take."""
    if plan.specialized and (expected := expected_producer_registers(plan)) > plan.producer_registers:
        yield Finding(
            "warp_specialization.registers.producer",
            f"{plan.producer_registers} registers per producer thread",
            f"{expected} are expected to be needed, and the rest would spill",
            at_least(expected),
        )


EXPECTATIONS: tuple[Rule[WgmmaKernel], ...] = (expected_consumer_registers, expected_registers_of_producer)
