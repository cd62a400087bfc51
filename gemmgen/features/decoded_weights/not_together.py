"""The capabilities that no kernel has together with weights that threads decode."""

from __future__ import annotations

from typing import Final

from gemmgen.features.decoded_weights.traits import DECODED
from gemmgen.features.gates.traits import ORDER_OF_BLOCKS
from gemmgen.features.kernel_traits import (
    BACKWARD,
    CLUSTER_M,
    CLUSTER_N,
    M_CONTIGUOUS_A,
    ONE_STAGE,
    SINGLE_TILE,
)
from gemmgen.features.promotion.traits import PROMOTION
from gemmgen.features.saved_sums.traits import SAVED_SUMS
from gemmgen.plan.not_together import NotTogether

NOT_TOGETHER: Final = (
    NotTogether(ORDER_OF_BLOCKS, DECODED, "`pack_weight` takes columns of both accumulators in turn"),
    NotTogether(SAVED_SUMS, DECODED, "they are for a backward, which needs B in another order"),
    NotTogether(SINGLE_TILE, DECODED, "it has one K step, and threads decode one while TMA loads the next"),
    NotTogether(ONE_STAGE, DECODED, "threads decode a K step while TMA loads the next one"),
    NotTogether(PROMOTION, DECODED, "the sums of decoded weights are not promoted"),
    NotTogether(CLUSTER_M, DECODED, "decoded weights are supported in single CTAs only"),
    NotTogether(CLUSTER_N, DECODED, "decoded weights are supported in single CTAs only"),
    NotTogether(M_CONTIGUOUS_A, DECODED, "the MMAs of half a K step read half of each row of A"),
    NotTogether(BACKWARD, DECODED, "the gradient of A needs B in another order than `pack_weight` has"),
)
