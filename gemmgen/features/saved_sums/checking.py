"""The tensor to which a call saves sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from gemmgen.numerics.matrices import Layout, Matrix
from gemmgen.numerics.side import Checking
from gemmgen.problem import Matmul


@dataclass(frozen=True)
class SavedSumNumbers(Checking):
    """Numbers of a matmul that saves the sums of its accumulators."""

    problem: Matmul

    def tensors(self, layout: Layout) -> Mapping[str, Callable[[], Tensor]]:
        """Return the memory of the sums, which is poison: a call writes it."""
        m, n, _ = layout.shape
        *counts, _ = self.problem.extents_of_d(m, n)
        columns = self.problem.columns_of_b(n)

        def saved() -> Tensor:
            at = math.prod(counts), columns, self.problem.d.name, layout.device
            return Matrix.poisoned(*at, guarded=layout.guarded).view.view(*counts, columns)

        return {"saved": saved}


def side_of(problem: Matmul) -> Checking | None:
    """Return the side of saved sums; None if a matmul saves none."""
    return SavedSumNumbers(problem) if problem.saves else None
