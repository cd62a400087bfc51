"""The launcher in C copies no misaligned tensors."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.exportable import PYTHON_MODULE
from gemmgen.plan.fix import leave_out
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation


def refusals(plan: Kernel) -> Iterator[Violation]:
    """Yield why no launcher in C launches a kernel whose module copies misaligned tensors."""
    if plan.problem.copies_misaligned:
        limit = "but the launcher in C copies nothing"
        fix = leave_out() | PYTHON_MODULE
        yield Violation("export-misaligned", "operands.misaligned", "copy", limit, fix)
