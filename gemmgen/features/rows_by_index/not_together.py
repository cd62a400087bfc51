"""The capabilities with which no Hopper kernel has indices of rows."""

from __future__ import annotations

from typing import Final

from gemmgen.features.kernel_traits import BACKWARD, CLUSTER_M, CLUSTER_N, REGISTERS_A, SEVERAL_BUFFERS
from gemmgen.features.rows_by_index.traits import A_ROWS, D_ROWS
from gemmgen.plan.not_together import NotTogether

ONE_CTA: Final = "rows by an index need clusters of one CTA"

NOT_TOGETHER: Final = (
    NotTogether(CLUSTER_M, A_ROWS, ONE_CTA),
    NotTogether(CLUSTER_N, A_ROWS, ONE_CTA),
    NotTogether(REGISTERS_A, A_ROWS, "rows of A by an index need A in shared memory"),
    NotTogether(
        BACKWARD,
        A_ROWS,
        "but the gradients of A and B would read the gradient of D by the index, which no kernel does",
    ),
    NotTogether(
        D_ROWS,
        A_ROWS,
        "but the number of rows of the product is that of A or of D, and both have rows of their own",
    ),
    NotTogether(CLUSTER_M, D_ROWS, ONE_CTA),
    NotTogether(CLUSTER_N, D_ROWS, ONE_CTA),
    NotTogether(
        BACKWARD,
        D_ROWS,
        "but the gradients of A and B would read the gradient of D by the index, which no kernel does",
    ),
    NotTogether(
        SEVERAL_BUFFERS,
        D_ROWS,
        "but threads read a buffer back before they fill the next one, which then needs none of its own",
    ),
)
