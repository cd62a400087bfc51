"""The features whose numbers are checked: their sides, for verification and benchmarks."""

from __future__ import annotations

from typing import Final

from gemmgen.features.block_scales import checking as block_scales
from gemmgen.features.groups import checking as groups
from gemmgen.features.rows_by_index import checking as rows_by_index
from gemmgen.features.saved_sums import checking as saved_sums
from gemmgen.numerics.inputs import Numbers
from gemmgen.problem import Matmul

FEATURES: Final = (
    block_scales.numbers_of,
    groups.numbers_of,
    rows_by_index.numbers_of,
    saved_sums.numbers_of,
)
"""Functions from a matmul to the side of a feature, or to None if it lacks the feature.

A feature stands after those whose rows of D it moves.
"""


def sides_of(problem: Matmul) -> tuple[Numbers, ...]:
    """Return the sides of all features that a matmul has."""
    return tuple(side for each in FEATURES if (side := each(problem)) is not None)
