"""The trait of kernels whose wrapper copies misaligned tensors."""

from __future__ import annotations

from gemmgen.plan.fix import use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

MISALIGNED = Trait[WgmmaKernel](
    "copies of misaligned tensors",
    "operands.misaligned",
    lambda plan: plan.problem.copies_misaligned,
    "copies of misaligned tensors",
    use("refuse"),
)
