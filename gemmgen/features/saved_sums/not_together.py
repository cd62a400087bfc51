"""The capabilities with which no Hopper kernel has saved sums."""

from __future__ import annotations

from typing import Final

from gemmgen.features.kernel_traits import EIGHT_BITS, LOADED
from gemmgen.features.rows_by_index.traits import D_ROWS
from gemmgen.features.saved_sums.traits import SAVED_SUMS
from gemmgen.plan.not_together import NotTogether

NOT_TOGETHER: Final = (
    NotTogether(D_ROWS, SAVED_SUMS, "but threads that store rows by an index store D alone"),
    NotTogether(
        EIGHT_BITS,
        SAVED_SUMS,
        "saved sums have the type of D, and 8 bits are too few for a backward without scales",
    ),
    NotTogether(
        SAVED_SUMS,
        LOADED,
        "a backward would need it beside the sums, and only the sums are stored",
    ),
)
