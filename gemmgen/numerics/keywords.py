"""The inputs of ``matmul`` besides A and B: their names and element types."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.problem import Matmul
from gemmgen.problem.operations import BLOCK_SCALES, KEYWORDS


def dtype_of(problem: Matmul, keyword: str) -> str:
    """Return the element type of an input other than A and B.

    Block scales have the type of their format, other scales are fp32; biases are D's type or fp32.
    """
    if keyword in BLOCK_SCALES:
        scale = problem.operand(keyword[0]).scale
        assert scale is not None
        return scale.dtype.name
    if keyword == "saved":
        return problem.d.name
    if keyword == "c":
        assert problem.c is not None
        return problem.c.name
    return problem.vector_dtype(keyword).name


def keywords_of(problem: Matmul) -> Iterator[str]:
    """Yield the names of ``matmul``'s inputs after A and B, in the order of its signature."""
    for keyword in KEYWORDS:
        scaled = keyword in BLOCK_SCALES and problem.operand(keyword[0]).scale is not None
        if scaled or keyword in problem.epilogue.loads:
            yield keyword
    if problem.groups and problem.groups.counts:
        yield problem.groups.counts
        yield from problem.groups.row_indices
    if problem.saves:
        yield "saved"
