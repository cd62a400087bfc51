"""The features whose numbers are checked: their sides, for verification and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from gemmgen.features.registry import sides
from gemmgen.numerics.side import Checking
from gemmgen.problem import Matmul

FEATURES: Final = tuple(
    cast("Callable[[Matmul], Checking | None]", side.side_of) for side in sides("checking")
)
"""Functions from a matmul to the side of a feature, or to None if it lacks the feature.

The checks of features run in this order.
"""


def sides_of(problem: Matmul) -> tuple[Checking, ...]:
    """Return the sides of all features that a matmul has."""
    return tuple(side for each in FEATURES if (side := each(problem)) is not None)
