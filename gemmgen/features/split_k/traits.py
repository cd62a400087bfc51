"""Traits of split-K."""

from __future__ import annotations

from gemmgen.plan.fix import OWN, Fix, leave_out, use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel


def whole_k(plan: WgmmaKernel, field: str = OWN) -> Fix:
    """Return the fix that leaves K undivided; a reduction that only several parts of K have goes too."""
    one = use(1, field=field)
    return one if plan.reduction == "ordered" else one & leave_out("schedule.reduction")


SPLITS = Trait[WgmmaKernel](
    "split-K",
    "schedule.splits",
    lambda plan: plan.splits > 1,
    lambda plan: f"{plan.splits:,} parts of K",
    whole_k,
)
PARALLEL_REDUCTION = Trait[WgmmaKernel](
    "a parallel reduction",
    "schedule.reduction",
    lambda plan: plan.reduces_apart,
    "a parallel reduction",
    use("ordered"),
)
