"""Libraries have no kernels whose scales are packed."""

from __future__ import annotations

from gemmgen.problem import Matmul


def why_not(problem: Matmul) -> str | None:
    """Return why no library has a kernel with packed scales; None for another kernel."""
    if problem.packs_scales:
        return "its scales are packed for one kernel"
    return None
