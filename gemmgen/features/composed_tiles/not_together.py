"""The capabilities with which no Hopper kernel has composed and staggered tiles."""

from __future__ import annotations

from typing import Final

from gemmgen.features.composed_tiles.traits import COMPOSED, STAGGERED
from gemmgen.features.kernel_traits import CLUSTER_M, CLUSTER_N, WARPS_N
from gemmgen.features.promotion.traits import PROMOTION
from gemmgen.features.split_k.traits import SPLITS
from gemmgen.plan.fix import use
from gemmgen.plan.not_together import NotTogether

STORED: Final = "a composed tile is stored in sub-tiles, which would part the columns of one"

NOT_TOGETHER: Final = (
    NotTogether(CLUSTER_N, COMPOSED, f"{STORED} CTA from another's", use(1)),
    NotTogether(WARPS_N, COMPOSED, f"{STORED} warp from another's", use(1)),
    NotTogether(SPLITS, COMPOSED, "split-K needs a tile whose columns are one power of two"),
    NotTogether(CLUSTER_M, STAGGERED, "staggered tiles need clusters of one CTA"),
    NotTogether(PROMOTION, STAGGERED, "promotion is supported only without staggered tiles"),
)
