"""The trait of kernels that compute scales of D."""

from __future__ import annotations

from gemmgen.plan.fix import leave_out
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

SCALES_OF_D = Trait[WgmmaKernel](
    "scales of D",
    "operands.d.scale",
    lambda plan: plan.problem.d_scale is not None,
    "scales of D",
    leave_out(),
)
