"""The features that add to kernels: their sides in planning, for the families of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gemmgen.features.block_scales.planning import BlockScalePlanning, PackedScalePlanning
from gemmgen.features.dependent_launch.planning import DependentLaunchPlanning
from gemmgen.features.gates.planning import GatePlanning
from gemmgen.features.groups.planning import GroupPlanning
from gemmgen.features.output_scales.planning import OutputScalePlanning
from gemmgen.features.promotion.planning import PromotionPlanning
from gemmgen.features.rows_by_index.planning import RowIndexPlanning
from gemmgen.features.saved_sums.planning import SavedSumPlanning
from gemmgen.features.split_k.planning import SplitKPlanning
from gemmgen.plan.planning import Sides

SIDES: Final[Mapping[str, Sides]] = {
    "wgmma": (
        GroupPlanning(),
        GatePlanning(),
        SavedSumPlanning(),
        RowIndexPlanning(),
        PromotionPlanning(),
        BlockScalePlanning(),
        OutputScalePlanning(),
        SplitKPlanning(),
        DependentLaunchPlanning(),
    ),
    "tcgen05": (PackedScalePlanning(),),
}
"""The sides of the features of each instruction.

Their order is that of arguments in one place, and of lines in a section of a ledger. Block scales stand after
promotion, whose time is part of theirs.
"""
