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
    """Sums that are stored for a backward are all that the epilogue reads, and TMA stores them as D."""
    problem = plan.problem
    if not problem.saves:
        return
    names = " and ".join(problem.epilogue.saved)
    if problem.epilogue.loads:
        read = " and ".join(problem.epilogue.loads)
        limit = "a backward would need it beside the sums, and only the sums are stored"
        fix = UNSAVED | without_expression("epilogue.d")
        yield Finding("epilogue.save", f"{names} with {read} in the epilogue", limit, fix)
    if problem.scatters_d:
        limit = "but threads that store rows by an index store D alone"
        yield Finding("groups.d_rows", f"d_rows with {names} saved", limit, leave_out() | UNSAVED)
    if problem.d.bits == 8:
        limit = "saved sums have the type of D, and 8 bits are too few for a backward without scales"
        fix = use("bf16", "fp16", "fp32") | UNSAVED
        yield Finding("operands.d.dtype", f"D is {problem.d.name} with {names} saved", limit, fix)
