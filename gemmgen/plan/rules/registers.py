"""What the register rules of both families judge alike."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.extents import round_up
from gemmgen.plan.rules.rule import nearest
from gemmgen.target import Architecture


def expressible(architecture: Architecture, registers: int) -> bool:
    """Whether ``setmaxnreg`` can ask for so many registers."""
    inside = architecture.setmaxnreg_min <= registers <= architecture.setmaxnreg_max
    return inside and registers % architecture.setmaxnreg_granularity == 0


def inexpressible_request(
    architecture: Architecture, role: str, registers: int, *, least: int | None, most: int | None = None
) -> Iterator[Violation]:
    """Yield what is wrong with a role's registers, of which it needs `least` and can have `most`.

    None is what no kernel needs or has less or more of.
    """
    step, low, high = (
        architecture.setmaxnreg_granularity,
        architecture.setmaxnreg_min,
        architecture.setmaxnreg_max,
    )
    if not expressible(architecture, registers):
        yield Violation(
            "register-granularity",
            f"warp_specialization.registers.{role}",
            f"{registers:,} registers per {role} thread",
            f"setmaxnreg takes multiples of {step} from {low} to {high}",
            nearest(
                registers // step * step,
                round_up(registers, step),
                low=min(least or low, most or high),
                high=most or high,
            ),
        )
