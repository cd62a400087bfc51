"""The trait of weights that threads decode."""

from __future__ import annotations

from gemmgen.plan.fix import leave_out, use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

DECODED = Trait[WgmmaKernel](
    "weights that threads decode",
    "operands.b.dtype",
    lambda plan: plan.problem.b.decoded is not None,
    lambda plan: f"decoded {plan.problem.b.dtype.name} weights",
    use("bf16") & leave_out("operands.b.scale"),
)
