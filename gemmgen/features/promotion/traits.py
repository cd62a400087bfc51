"""The trait of promotion."""

from __future__ import annotations

from gemmgen.plan.fix import leave_out
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

PROMOTION = Trait[WgmmaKernel](
    "promotion",
    "mma.promote_k",
    lambda plan: bool(plan.promote_k),
    lambda plan: f"sums promoted after {plan.promote_k} of K",
    leave_out(),
)
