"""The rule of kernels that start before the kernel ahead of them has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.plan.fix import at_least, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.wgmma.resources import WgmmaKernel


@rule("dependent-launch")
def dependent_launch(plan: WgmmaKernel) -> Iterator[Finding]:
    """A kernel that starts early begins with loads, by a producer or by a program that loads ahead."""
    if not plan.dependent or plan.specialized:
        return
    found = plan.early_launch
    limit = "an early start needs warp specialization, or programs of one tile that load ahead"
    if plan.schedule_kind != "tiled":
        kind = plan.schedule_kind.replace("_", " ")
        fix = use("tiled")
        if plan.persistent:
            fix |= use("cooperative", field="warp_specialization.kind")
        fix |= leave_out("dependent_launch")
        yield Finding("schedule.kind", f"{found} in a {kind} schedule", limit, fix)
    elif plan.synchronous:
        yield Finding("buffering.stages", f"1 stage and {found}", limit, at_least(2))


RULES: Final = {"wgmma": (dependent_launch,)}
"""The rules by the instruction of a family, in the order of reports."""
