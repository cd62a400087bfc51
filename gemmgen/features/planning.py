"""The features that add to kernels: their sides in planning, for the families of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gemmgen.features.block_scales.planning import BlockScales, PackedScales
from gemmgen.features.promotion.planning import Promotion
from gemmgen.features.split_k.planning import SplitK
from gemmgen.plan.side import Sides

SIDES: Final[Mapping[str, Sides]] = {
    "wgmma": (Promotion(), BlockScales(), SplitK()),
    "tcgen05": (PackedScales(),),
}
"""The sides of the features of each instruction, in the order of their additions.

Block scales stand after promotion, which their time includes.
"""
