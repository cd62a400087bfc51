"""What the rules of a problem judge alike in both families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gemmgen.errors import Violation
from gemmgen.plan.extents import round_up
from gemmgen.plan.problem import Problem
from gemmgen.plan.rules.rule import nearest


@dataclass(frozen=True)
class Rows:
    """The rows of a contiguous matrix, whose length is an extent of the problem."""

    matrix: str
    axis: int
    """Of M, N and K."""
    multiple: int
    """Elements of which TMA takes multiples."""
    size: Callable[[int], str]
    """Returns how long so many elements are, with the unit that counts."""
    limit: str
    """Why only multiples are taken."""


def unaligned_shapes(problem: Problem, matrices: Iterable[Rows]) -> Iterator[Violation]:
    """Yield the extents of listed problems with which TMA cannot stride over the rows of a matrix.

    An extent is reported once, for the matrix with the longest multiple: what it takes suits the others.
    """
    matrices = sorted(matrices, key=lambda rows: -rows.multiple)
    for section, shapes in (("check", problem.check_shapes), ("bench", problem.bench_shapes)):
        for i, shape in enumerate(shapes):
            reported: set[int] = set()
            for rows in matrices:
                extent, multiple = shape[rows.axis], rows.multiple
                if extent % multiple == 0 or rows.axis in reported:
                    continue
                reported.add(rows.axis)
                yield Violation(
                    "shape-alignment",
                    f"{section}.shapes.{i}.{rows.axis}",
                    f"{'MNK'[rows.axis]} = {extent:,} gives {rows.matrix} rows of {rows.size(extent)}",
                    rows.limit,
                    nearest(extent // multiple * multiple, round_up(extent, multiple), low=multiple),
                )
