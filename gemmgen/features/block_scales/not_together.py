"""The capabilities with which no Hopper kernel has block scales."""

from __future__ import annotations

from typing import Final

from gemmgen.features.block_scales.traits import BLOCK_SCALES, COLUMN_SCALES, SCALED_GROUPS_OF_ROWS
from gemmgen.features.composed_tiles.traits import COMPOSED
from gemmgen.features.gates.traits import GATE
from gemmgen.features.groups.traits import BATCHED
from gemmgen.features.kernel_traits import CLUSTER_M, CLUSTER_N, ONE_STAGE, SINGLE_TILE
from gemmgen.features.rows_by_index.traits import A_ROWS, D_ROWS
from gemmgen.plan.fix import use
from gemmgen.plan.not_together import NotTogether

NOT_TOGETHER: Final = (
    NotTogether(
        COMPOSED,
        BLOCK_SCALES,
        "block scales need a tile whose columns are one power of two",
        use(128, 64),
    ),
    NotTogether(SINGLE_TILE, BLOCK_SCALES, "a block's scales come with a stage of a ring"),
    NotTogether(ONE_STAGE, BLOCK_SCALES, "a block's scales come with a stage of a ring"),
    NotTogether(A_ROWS, BLOCK_SCALES, "block scales need rows of A and D that lie group by group"),
    NotTogether(D_ROWS, BLOCK_SCALES, "block scales need rows of A and D that lie group by group"),
    NotTogether(BATCHED, BLOCK_SCALES, "block scales need groups that a tensor divides (`offs` or `rows`)"),
    NotTogether(GATE, COLUMN_SCALES, "a gate needs scales of B for blocks of columns"),
    NotTogether(CLUSTER_M, SCALED_GROUPS_OF_ROWS, "scales of groups of rows need clusters of one CTA"),
    NotTogether(CLUSTER_N, SCALED_GROUPS_OF_ROWS, "scales of groups of rows need clusters of one CTA"),
)
