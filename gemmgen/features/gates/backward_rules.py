"""The rule of kernels whose C and D have two matrices side by side: backwards of gates."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import hint
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.resources import WgmmaKernel


@rule("c-blocks", subject="problem")
def c_blocks(plan: WgmmaKernel) -> Iterator[Finding]:
    """An expression reads both matrices in C."""
    epilogue = plan.problem.epilogue
    read = {load.block for load in epilogue.loaded}
    for name in epilogue.c_blocks:
        if name not in read:
            fix = without_expression("epilogue.d") | hint(f"{name} in an expression")
            yield Finding("epilogue.d", f"{name} in no expression", "kernels load both matrices in C", fix)
