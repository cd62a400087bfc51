"""Rules of registers: what the workers ask for."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.bounds import round_up
from gemmgen.plan.rules.rule import nearest, rule_id


def register_granularity(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A register request is one that ``setmaxnreg`` can express: others are rounded or dropped in silence."""
    architecture, registers = plan.architecture, plan.worker_registers
    step, low, high = (
        architecture.setmaxnreg_granularity,
        architecture.setmaxnreg_min,
        architecture.setmaxnreg_max,
    )
    if registers % step or not low <= registers <= high:
        yield Violation(
            rule_id(register_granularity),
            "warp_specialization.registers.worker",
            f"{registers:,} registers per worker thread",
            f"setmaxnreg takes multiples of {step} from {low} to {high}",
            nearest(registers // step * step, round_up(registers, step), low=low, high=high),
        )
