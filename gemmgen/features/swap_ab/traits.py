"""The trait of swap-AB."""

from __future__ import annotations

from gemmgen.plan.fix import use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

SWAP_AB = Trait[WgmmaKernel](
    "swap-AB",
    "mma.swap_ab",
    lambda plan: plan.swap_ab,
    "swap-AB",
    use(False),
)
