"""Libraries have no kernels that gather rows of A."""

from __future__ import annotations

from gemmgen.problem import Matmul


def why_not(problem: Matmul) -> str | None:
    """Return why no library has a kernel with an index of rows of A; None for another kernel."""
    if problem.gathers_a:
        return "a call has an index of rows of A, and a library chooses by the rows of A"
    return None
