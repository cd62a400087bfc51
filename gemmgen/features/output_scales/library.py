"""Libraries have no kernels that compute scales of D."""

from __future__ import annotations

from gemmgen.problem import Matmul


def why_not(problem: Matmul) -> str | None:
    """Return why no library has a kernel with scales of D; None for another kernel."""
    if problem.d_scale:
        return "it returns the scales of D beside D, which no call of a library does"
    return None
