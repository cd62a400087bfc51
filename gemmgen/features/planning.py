"""The features that add to kernels: their sides in planning, for the families of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gemmgen.features.block_scales.planning import BlockScales, PackedScales
from gemmgen.features.dependent_launch.planning import DependentKernel
from gemmgen.features.gates.planning import Gates
from gemmgen.features.groups.planning import GroupedKernel
from gemmgen.features.output_scales.planning import OutputScales
from gemmgen.features.promotion.planning import Promotion
from gemmgen.features.rows_by_index.planning import RowsByIndex
from gemmgen.features.saved_sums.planning import SavedSums
from gemmgen.features.split_k.planning import SplitK
from gemmgen.plan.side import Sides

SIDES: Final[Mapping[str, Sides]] = {
    "wgmma": (
        *(GroupedKernel(), Gates(), SavedSums(), RowsByIndex(), Promotion(), BlockScales()),
        *(OutputScales(), SplitK(), DependentKernel()),
    ),
    "tcgen05": (PackedScales(),),
}
"""The sides of the features of each instruction.

Their order is that of arguments in one place, and of lines in a section of a ledger. Block scales stand after
promotion, whose time is part of theirs.
"""
