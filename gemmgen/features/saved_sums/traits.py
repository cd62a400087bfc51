"""The trait of kernels that store the sums of a gate beside D."""

from __future__ import annotations

from gemmgen.plan.fix import leave_out
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

SAVED_SUMS = Trait[WgmmaKernel](
    "saved sums",
    "epilogue.save",
    lambda plan: plan.problem.saves,
    lambda plan: f"{' and '.join(plan.problem.epilogue.saved)} saved",
    leave_out(),
)
