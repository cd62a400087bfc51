"""The rule of Blackwell kernels, which have no groups."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import hint, leave_out
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel


@rule("groups", subject="problem")
def no_groups(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """All rows of A are multiplied with one B: no kernel finds the group of a tile."""
    if plan.problem.groups is not None:
        yield Finding(
            "groups",
            f"groups for {plan.gpu.name}",
            "groups are supported on Hopper only",
            leave_out() | hint("a Hopper GPU as target"),
        )
