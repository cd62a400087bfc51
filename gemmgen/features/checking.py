"""The features whose numbers are checked: their sides, for verification and benchmarks."""

from __future__ import annotations

from typing import Final

from gemmgen.features.batch_invariance import checking as batch_invariance
from gemmgen.features.block_scales import checking as block_scales
from gemmgen.features.c_operand import checking as c_operand
from gemmgen.features.groups import checking as groups
from gemmgen.features.rows_by_index import checking as rows_by_index
from gemmgen.features.saved_sums import checking as saved_sums
from gemmgen.numerics.side import Checking
from gemmgen.problem import Matmul

FEATURES: Final = (
    block_scales.side_of,
    c_operand.side_of,
    batch_invariance.side_of,
    groups.side_of,
    rows_by_index.side_of,
    saved_sums.side_of,
)
"""Functions from a matmul to the side of a feature, or to None if it lacks the feature.

A feature stands after those whose rows of D it moves. The checks of features run in this order.
"""


def sides_of(problem: Matmul) -> tuple[Checking, ...]:
    """Return the sides of all features that a matmul has."""
    return tuple(side for each in FEATURES if (side := each(problem)) is not None)
