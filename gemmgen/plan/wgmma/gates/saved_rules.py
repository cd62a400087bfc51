"""The rule of kernels that store the sums of a gate beside D."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.resources import WgmmaKernel

UNSAVED = leave_out("epilogue.save")
"""The fix that stores D alone."""


@rule("saved-sums")
def saved_sums(plan: WgmmaKernel) -> Iterator[Finding]:
    """Sums that are stored for a backward are all that the epilogue of a dense matmul reads."""
    problem = plan.problem
    if not problem.saves:
        return
    names = " and ".join(problem.epilogue.saved)
    if problem.epilogue.loads:
        read = " and ".join(problem.epilogue.loads)
        limit = "a backward would need it beside the sums, and this version stores the sums alone"
        fix = UNSAVED | without_expression("epilogue.d")
        yield Finding("epilogue.save", f"{names} with {read} in the epilogue", limit, fix)
    if problem.groups:
        limit = "but this version describes the rows of groups in D alone"
        yield Finding("epilogue.save", f"{names} of {problem.groups.of}", limit, UNSAVED)
    if problem.d.bits == 8:
        limit = "saved sums have the type of D, and 8 bits are too few for a backward without scales"
        fix = use("bf16", "fp16", "fp32") | UNSAVED
        yield Finding("operands.d.dtype", f"D is {problem.d.name} with {names} saved", limit, fix)
