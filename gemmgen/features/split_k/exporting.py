"""The launcher in C launches no second kernel that adds up sums."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.exportable import PYTHON_MODULE
from gemmgen.plan.fix import use
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation


def refusals(plan: Kernel) -> Iterator[Violation]:
    """Yield why no launcher in C launches a module of two kernels."""
    if plan.reduces_apart:
        limit = "but the launcher in C launches one kernel"
        fix = use("ordered") | PYTHON_MODULE
        yield Violation("export-reduction", "schedule.reduction", "parallel", limit, fix)
