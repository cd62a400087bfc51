"""Groups of rows that one matmul multiplies with a matrix B each: experts of a mixture, or batches."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

GroupKind = Literal["m_offsets", "m_masked", "batched"]
"""How a call divides the rows of A into groups.

``m_offsets``: A is [M, K], and ``offs`` [G] has the row behind the last one of each group. ``m_masked``: A is
[G, M, K], and ``rows`` [G] has the number of rows of each group. ``batched``: A is [G, M, K], all of it.
"""


@dataclass(frozen=True)
class Groups:
    """Groups of rows of A: each is multiplied with a matrix of its own of B [G, K, N]."""

    of: GroupKind
    count: int
    """The groups of the problems for which the kernel is planned, checked and timed."""

    @property
    def counts(self) -> str | None:
        """The int32 tensor in memory of the GPU that divides the rows; None if all groups have M rows."""
        return {"m_offsets": "offs", "m_masked": "rows", "batched": None}[self.of]

    @property
    def apart(self) -> bool:
        """True if A and D have a dimension for groups; False if groups follow one another in M rows."""
        return self.of != "m_offsets"

    def all_rows(self, m: int) -> int:
        """Return the rows of A of a problem of M rows: M, or M for each group."""
        return m * self.count if self.apart else m

    def rows_of_each(self, m: int) -> tuple[int, ...]:
        """Return the rows of each group in a problem of M rows, as kernels are planned, checked and timed.

        The rows of ``m_offsets`` are drawn as the experts of tokens are: by softmax(z), with a standard
        normal z for each group. So some groups have several times the mean, and with few rows some have
        none. Groups of ``m_masked`` have from no row to all M; groups of ``batched`` have M.
        """
        if self.of == "batched":
            return (m,) * self.count
        if self.of == "m_masked":
            return tuple(m * (group * 7 % 11) // 10 for group in range(self.count))
        return _routed(m, self.count)


@lru_cache(maxsize=1024)
def _routed(rows: int, groups: int) -> tuple[int, ...]:
    """Divide rows among groups by fixed shares; what rounding leaves goes to those that lost the most."""
    draw = random.Random(0)
    weights = [math.exp(draw.gauss(0, 1)) for _ in range(groups)]
    exact = [rows * weight / sum(weights) for weight in weights]
    found = [int(share) for share in exact]
    lost = sorted(range(groups), key=lambda group: found[group] - exact[group])
    for group in lost[: rows - sum(found)]:
        found[group] += 1
    return tuple(found)
