"""Why no launcher in C launches a kernel: the reasons of its family, and of its features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, cast

from gemmgen.features.registry import sides
from gemmgen.plan.exportable import refusals_of_target
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation

_OF_FEATURES: Final = tuple(
    cast("Callable[[Kernel], Iterator[Violation]]", side.refusals) for side in sides("exporting")
)


def refusals(plan: Kernel) -> Iterator[Violation]:
    """Yield why no launcher in C launches a kernel."""
    yield from refusals_of_target(plan)
    for refusals_of_feature in _OF_FEATURES:
        yield from refusals_of_feature(plan)
