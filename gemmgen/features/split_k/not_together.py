"""The capabilities with which no Hopper kernel has split-K and its reductions."""

from __future__ import annotations

from typing import Final

from gemmgen.features.dependent_launch.traits import DEPENDENT, EARLY_LOADS
from gemmgen.features.kernel_traits import ONE_STAGE, PING_PONG
from gemmgen.features.misaligned.traits import MISALIGNED
from gemmgen.features.split_k.traits import PARALLEL_REDUCTION, SPLITS
from gemmgen.plan.fix import at_least, leave_out, use
from gemmgen.plan.not_together import NotTogether

NOT_TOGETHER: Final = (
    NotTogether(PING_PONG, SPLITS, "split-K needs consumers that share a tile"),
    NotTogether(ONE_STAGE, SPLITS, "split-K needs kernels that load ahead", at_least(2)),
    NotTogether(
        PARALLEL_REDUCTION,
        MISALIGNED,
        "copies of misaligned tensors need a kernel that stores D itself",
    ),
    NotTogether(
        PARALLEL_REDUCTION,
        DEPENDENT,
        "a parallel reduction needs a start after all earlier kernels",
    ),
    NotTogether(
        PARALLEL_REDUCTION,
        EARLY_LOADS,
        "the second kernel of the call before may still read its sums then",
        use("ordered") | leave_out("dependent_launch"),
    ),
)
