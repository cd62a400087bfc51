"""The tensor to which a call saves sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from gemmgen.numerics.matrices import Layout
from gemmgen.numerics.side import Checking
from gemmgen.problem import Matmul


@dataclass(frozen=True)
class SavedSumNumbers(Checking):
    """Numbers of a matmul that saves the sums of its accumulators."""

    problem: Matmul

    def tensors(self, layout: Layout) -> Mapping[str, Callable[[], Tensor]]:
        """Return the memory of the sums, which is poison: a call writes it."""
        m, n, _ = layout.shape
        *leading, rows, _ = self.problem.extents_of_d(m, n)
        of_sums = self.problem.d.name, rows, self.problem.columns_of_b(n), None
        return {"saved": partial(layout.matrix, *of_sums, leading=tuple(leading))}


def side_of(problem: Matmul) -> Checking | None:
    """Return the side of saved sums; None if a matmul saves none."""
    return SavedSumNumbers(problem) if problem.saves else None
