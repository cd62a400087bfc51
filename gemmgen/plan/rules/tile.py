"""What the tile rules of both families judge alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gemmgen.errors import Violation
from gemmgen.plan.extents import is_power_of_two, power_of_two_below
from gemmgen.plan.rules.rule import nearest


def odd_extents(extents: Iterable[tuple[str, int, int, int | None]]) -> Iterator[Violation]:
    """Yield the extents that no block can have; each is given as field, extent, lowest and highest legal."""
    for field, extent, low, high in extents:
        if not is_power_of_two(extent):
            below = power_of_two_below(extent)
            yield Violation(
                "tile-power-of-two",
                field,
                f"{extent:,} is no power of two",
                "Gluon's block extents are powers of two",
                nearest(below, 2 * below, low=low, high=high),
            )
