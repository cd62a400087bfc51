"""The kernels that a launcher in C can launch, those that a pack can have, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import Fix, hint, leave_out, use
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Matmul


def refusals(plan: Kernel) -> Iterator[Violation]:
    """Yield why no launcher in C launches a kernel."""
    problem, module = plan.problem, hint("the Python module")
    if not isinstance(plan, WgmmaKernel):
        found, limit = plan.gpu.target, "but the launcher in C is for Hopper kernels"
        yield Violation("export-target", "target", found, limit, use("h100", "h200") | module)
    if problem.copies_misaligned:
        limit = "but the launcher in C copies nothing"
        yield Violation(
            "export-misaligned",
            "operands.misaligned",
            "copy",
            limit,
            leave_out() | module,
        )
    if plan.reduces_apart:
        yield Violation(
            "export-reduction",
            "schedule.reduction",
            "parallel",
            "but the launcher in C launches one kernel",
            use("ordered") | module,
        )
    yield from _beside_d(problem, module)
    for field, found in _of_groups(problem):
        limit = "but the launcher in C describes an A and a B of each group, and D, whose rows are neighbours"
        yield Violation("export-groups", field, found, limit, module)


def refusals_of_packs(plan: Kernel) -> Iterator[Violation]:
    """Yield why no pack has a kernel."""
    if plan.problem.copies_misaligned:
        limit = "but a pack has no kernel that copies matrices of any type"
        module = hint("the Python module")
        yield Violation("pack-misaligned", "operands.misaligned", "copy", limit, leave_out() | module)


def _beside_d(problem: Matmul, module: Fix) -> Iterator[Violation]:
    """Yield violations of results beside one matrix D: more matrices, and saved sums."""
    if problem.d_blocks > 1:
        names = " and ".join(problem.epilogue.c_blocks)
        limit = "but the launcher in C passes a C and a D of N columns"
        yield Violation("export-blocks", "epilogue.c", names, limit, module)
    if problem.saves:
        names = " and ".join(problem.epilogue.accumulators)
        limit = "but the launcher in C passes one D, and no memory for saved sums"
        yield Violation("export-blocks", "epilogue.save", names, limit, module)


def _of_groups(problem: Matmul) -> Iterator[tuple[str, str]]:
    """Yield each field of a problem of groups that no launcher in C takes, and the words for its value."""
    groups = problem.groups
    if groups is None:
        return
    yield from ((f"groups.{index}", f"an index {index}") for index in groups.row_indices)
    if groups.broadcast:
        yield "groups.broadcast", f"one {groups.broadcast.upper()} for all groups"
    if problem.c is not None:
        yield "operands.c", f"a C of {groups.of}"
