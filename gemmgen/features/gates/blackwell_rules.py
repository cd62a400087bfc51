"""The rule of Blackwell kernels, which have no gates."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import hint
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel


@rule("gated", subject="problem")
def not_gated(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """An element of D is computed from one sum: no kernel reads two from tensor memory."""
    if plan.problem.gated:
        yield Finding(
            "epilogue.d",
            f"{' and '.join(plan.problem.epilogue.accumulators)} as accumulators for {plan.gpu.name}",
            "two accumulators are supported on Hopper only",
            without_expression() | hint("a Hopper GPU as target"),
        )
