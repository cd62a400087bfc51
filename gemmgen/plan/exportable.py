"""Why no launcher in C launches a kernel of a family, and why no pack has a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import hint, leave_out, use
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation
from gemmgen.plan.wgmma import WgmmaKernel

PYTHON_MODULE = hint("the Python module")
"""The fix for each kernel that is not exported."""


def refusals_of_target(plan: Kernel) -> Iterator[Violation]:
    """Yield why no launcher in C launches a kernel for this GPU."""
    if not isinstance(plan, WgmmaKernel):
        found, limit = plan.gpu.target, "but the launcher in C is for Hopper kernels"
        yield Violation("export-target", "target", found, limit, use("h100", "h200") | PYTHON_MODULE)


def refusals_of_packs(plan: Kernel) -> Iterator[Violation]:
    """Yield why no pack has a kernel."""
    if plan.problem.copies_misaligned:
        limit = "but a pack has no kernel that copies matrices of any type"
        yield Violation("pack-misaligned", "operands.misaligned", "copy", limit, leave_out() | PYTHON_MODULE)
