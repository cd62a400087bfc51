"""Libraries have no kernels of packed weights."""

from __future__ import annotations

from gemmgen.problem import Matmul


def why_not(problem: Matmul) -> str | None:
    """Return why no library has a kernel whose threads decode B; None for another kernel."""
    if problem.b.decoded:
        return (
            "its weight is packed, and a library packs none: kernels of one format read one packed weight, "
            "so call the modules themselves, one for few rows of A and one for many, or by PackedLinear"
        )
    return None
