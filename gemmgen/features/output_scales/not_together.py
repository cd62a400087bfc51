"""The capabilities with which no Hopper kernel has scales of D."""

from __future__ import annotations

from typing import Final

from gemmgen.features.kernel_traits import CLUSTER_N, SINGLE_TILE, WARPS_N
from gemmgen.features.output_scales.traits import SCALES_OF_D
from gemmgen.features.rows_by_index.traits import D_ROWS
from gemmgen.features.split_k.traits import PARALLEL_REDUCTION
from gemmgen.features.swap_ab.traits import SWAP_AB
from gemmgen.plan.not_together import NotTogether

NOT_TOGETHER: Final = (
    NotTogether(
        SWAP_AB,
        SCALES_OF_D,
        "the columns of D are rows of the instruction, which warps divide, and one warp has a scale",
    ),
    NotTogether(CLUSTER_N, SCALES_OF_D, "the columns of a scale would be in different CTAs"),
    NotTogether(WARPS_N, SCALES_OF_D, "the columns of a scale would be in different warps"),
    NotTogether(
        PARALLEL_REDUCTION,
        SCALES_OF_D,
        "the kernel that adds up the sums of splits stores pieces of rows, narrower than a scale",
    ),
    NotTogether(SINGLE_TILE, SCALES_OF_D, "the function of a single tile finds no place for scales"),
    NotTogether(D_ROWS, SCALES_OF_D, "scales of D need rows that lie group by group"),
)
