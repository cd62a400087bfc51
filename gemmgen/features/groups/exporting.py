"""The kernels of groups that the launcher in C does not launch."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.exportable import PYTHON_MODULE
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation
from gemmgen.problem import Matmul


def refusals(plan: Kernel) -> Iterator[Violation]:
    """Yield why no launcher in C launches some kernels of groups."""
    limit = "but the launcher in C describes an A and a B of each group, and D, whose rows are neighbours"
    for field, found in _refused(plan.problem):
        yield Violation("export-groups", field, found, limit, PYTHON_MODULE)


def _refused(problem: Matmul) -> Iterator[tuple[str, str]]:
    """Yield each field of a problem of groups that no launcher in C takes, and the words for its value."""
    groups = problem.groups
    if groups is None:
        return
    yield from ((f"groups.{index}", f"an index {index}") for index in groups.row_indices)
    if groups.broadcast:
        yield "groups.broadcast", f"one {groups.broadcast.upper()} for all groups"
    if problem.c is not None:
        yield "operands.c", f"a C of {groups.of}"
