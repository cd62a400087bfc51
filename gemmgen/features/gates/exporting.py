"""The launcher in C has one matrix in C and in D, and no gradients of gates."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.exportable import PYTHON_MODULE
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation


def refusals(plan: Kernel) -> Iterator[Violation]:
    """Yield why no launcher in C launches a kernel of the gradients of a gate."""
    if plan.problem.d_blocks > 1:
        names = " and ".join(plan.problem.epilogue.c_blocks)
        limit = "but the launcher in C passes a C and a D of N columns"
        yield Violation("export-blocks", "epilogue.c", names, limit, PYTHON_MODULE)
