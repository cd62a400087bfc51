"""Traits of dependent launch."""

from __future__ import annotations

from gemmgen.plan.fix import leave_out, use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

DEPENDENT = Trait[WgmmaKernel](
    "dependent launch",
    "dependent_launch",
    lambda plan: plan.dependent and not plan.read_early,
    lambda plan: plan.early_launch,
    leave_out(),
)
EARLY_LOADS = Trait[WgmmaKernel](
    "early loads",
    "dependent_launch.early",
    lambda plan: plan.read_early is not None,
    lambda plan: plan.early_launch,
    use("nothing"),
)
