"""The launcher in C passes no memory for saved sums."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.exportable import PYTHON_MODULE
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation


def refusals(plan: Kernel) -> Iterator[Violation]:
    """Yield why no launcher in C launches a kernel that saves sums."""
    if plan.problem.saves:
        names = " and ".join(plan.problem.epilogue.accumulators)
        limit = "but the launcher in C passes one D, and no memory for saved sums"
        yield Violation("export-blocks", "epilogue.save", names, limit, PYTHON_MODULE)
