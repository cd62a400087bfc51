"""Libraries have no kernels of the gradients of a gate."""

from __future__ import annotations

from gemmgen.problem import Matmul


def why_not(problem: Matmul) -> str | None:
    """Return why no library has a kernel with two matrices in C and D; None for another kernel."""
    if problem.d_blocks > 1:
        return "its C and D have two matrices side by side, and a library checks a C and a D of N columns"
    return None
