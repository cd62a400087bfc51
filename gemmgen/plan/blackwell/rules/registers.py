"""Rules of registers: what the workers ask for, and what they need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.errors import Violation
from gemmgen.plan.blackwell.bounds import (
    FEW_LOADS,
    STEP_REGISTERS,
    loads_across,
    mma_registers,
    most_stages,
    needed_worker_registers,
    operand_loads,
    step_operations,
)
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.blackwell.rules.memory import operand_swizzle
from gemmgen.plan.blackwell.rules.tile import breaks_tile
from gemmgen.plan.rules.registers import inexpressible_request
from gemmgen.plan.rules.rule import breaks, counted, rule_id


def register_granularity(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A register request is one that ``setmaxnreg`` can express: others are rounded or dropped in silence."""
    least = None if breaks_tile(plan) or breaks(plan, operand_swizzle) else needed_worker_registers(plan)
    yield from inexpressible_request(plan.architecture, "worker", plan.worker_registers, least=least)


def worker_registers(plan: Tcgen05Plan) -> Iterator[Violation]:
    """The workers have registers for the addresses of every MMA, copy of scales and load of a K step."""
    if breaks_tile(plan) or breaks(plan, register_granularity, operand_swizzle):
        return
    operations, (most, registers) = step_operations(plan), STEP_REGISTERS[-1]
    copies = f" and {plan.scale_copies} copies of scales" if plan.scale_copies else ""
    found = f"{counted(plan.mmas_per_step, 'MMA')}{copies} a K step"
    if operations > most and most_stages(plan):
        step = plan.cta_tile_k
        while step_operations(replace(plan, cta_tile_k=step)) > most:
            step //= 2
        yield Violation(
            rule_id(worker_registers),
            "tile.k",
            f"{found} of {plan.cta_tile_k:,} elements",
            f"the addresses of more than {most} take more than {registers} registers of the MMA warp",
            f"use at most {step}",
        )
    elif operations <= most and plan.worker_registers < (needed := needed_worker_registers(plan)):
        taken = f"{found} take {needed} of the MMA warp"
        if mma_registers(plan) < needed:
            taken = f"{_loads(plan)} {needed} of the load warp"
        yield Violation(
            rule_id(worker_registers),
            "warp_specialization.registers.worker",
            f"{plan.worker_registers} registers per worker thread",
            taken,
            f"use at least {needed}",
        )


def _loads(plan: Tcgen05Plan) -> str:
    """Name what makes the load warp need more than the fewest registers, and the verb."""
    across, loads = loads_across(plan), operand_loads(plan)
    if across > FEW_LOADS:
        return f"{across} TMA loads a K step across rows of K take"
    if loads > FEW_LOADS:
        return f"a Hilbert curve and {loads} TMA loads a K step take"
    return "a Hilbert curve takes"
