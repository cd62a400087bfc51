"""Libraries have no kernels that save sums."""

from __future__ import annotations

from gemmgen.problem import Matmul


def why_not(problem: Matmul) -> str | None:
    """Return why no library has a kernel with saved sums; None for another kernel."""
    if problem.saves:
        return "it returns saved sums beside D, which no call of a library does"
    return None
