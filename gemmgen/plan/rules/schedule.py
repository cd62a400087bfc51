"""Rules of the order of tiles, which all programs walk over alike."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.extents import is_power_of_two, power_of_two_below
from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.rules.rule import counted, nearest, rule_id

MAX_WIDTH = 4_096
"""[derived] The tiles of a group are counted in 32 bits: this leaves N 2**19 tiles, 4 million columns."""
MAX_SQUARE = 64
"""[derived] The curve takes five selects per halving of the square: 64 tiles, six halvings, fill any L2."""


def group_width(plan: KernelPlan) -> Iterator[Violation]:
    """The tiles of a group fit into the integers that count them, and a curve fills a square."""
    field = "schedule.width"
    if plan.schedule_kind == "single_tile":
        return
    if plan.order == "row":
        if plan.width > 1:
            yield Violation(
                rule_id(group_width),
                field,
                f"groups of {plan.width:,} in the order row",
                "it walks over one row of tiles at a time",
                "use 1",
            )
    elif plan.order == "hilbert":
        if not is_power_of_two(plan.width) or not 2 <= plan.width <= MAX_SQUARE:
            below = power_of_two_below(plan.width)
            yield Violation(
                rule_id(group_width),
                field,
                f"squares of {counted(plan.width, 'tile')}",
                f"a Hilbert curve fills those whose sides are powers of two, here from 2 to {MAX_SQUARE}",
                nearest(below, 2 * below, low=2, high=MAX_SQUARE),
            )
    elif plan.width > MAX_WIDTH:
        lines = "rows" if plan.minor == "m" else "columns"
        yield Violation(
            rule_id(group_width),
            field,
            f"groups of {plan.width:,} {lines} of tiles",
            f"their tiles are counted in 32 bits, which hold those of {MAX_WIDTH:,}",
            f"use at most {MAX_WIDTH}",
        )


def minor_dimension(plan: KernelPlan) -> Iterator[Violation]:
    """Where tiles are not walked in groups, the dimension along which neighbours follow is fixed."""
    fixed = {
        "row": ("n", "tiles of a row follow one another"),
        "hilbert": ("m", "a curve has no minor dimension"),
    }
    if plan.order not in fixed or plan.schedule_kind == "single_tile":
        return
    minor, reason = fixed[plan.order]
    if plan.minor != minor:
        yield Violation(
            rule_id(minor_dimension),
            "schedule.minor",
            f"{plan.minor} in the order {plan.order}",
            reason,
            f"use {minor}, or leave it out",
        )
