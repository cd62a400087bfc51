"""How the memory rules of both families find what has to shrink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gemmgen.plan.rules.rule import AnyPlan


def largest_that_fits(
    attempts: Iterable[tuple[AnyPlan, str, str]],
    *,
    legal: Callable[[AnyPlan], bool],
    fits: Callable[[AnyPlan], bool],
) -> tuple[str, int]:
    """Halve one decision after the other; return the first field that does it and its largest value.

    An attempt is a plan, the decision to halve, and its field in a spec. A sub-tile shrinks with its tile.

    Raises:
        AssertionError: No attempt leads to a plan that fits.
    """
    for base, name, field in attempts:
        value: int = getattr(base, name)
        while value > 1:
            value //= 2
            smaller = replace(base, **{name: value})
            if name == "cta_tile_n":
                smaller = replace(smaller, subtile_n=min(value, base.subtile_n))
            if not legal(smaller):
                break
            if fits(smaller):
                return field, value
    raise AssertionError("a stage of the smallest tile fits")
