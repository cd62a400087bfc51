"""The rules of all features: a table for each family of kernels, in the order of its reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmgen.features.block_scales.rules import block_scales, scale_format
from gemmgen.features.dependent_launch.rules import dependent_launch
from gemmgen.features.gates.backward_rules import c_blocks
from gemmgen.features.gates.blackwell_rules import not_gated
from gemmgen.features.gates.rules import gated
from gemmgen.features.groups.blackwell_rules import no_groups
from gemmgen.features.groups.rules import groups
from gemmgen.features.not_together import RULES
from gemmgen.features.output_scales.rules import output_scale, quantized_output
from gemmgen.features.promotion.rules import promotion
from gemmgen.features.split_k.rules import parallel_reduction, reduction, same_bits, splits
from gemmgen.features.swap_ab.rules import swap_ab
from gemmgen.plan.rule import Rule

FEATURE_RULES: Mapping[str, tuple[Rule[Any], ...]] = {
    "wgmma": (
        splits,
        reduction,
        parallel_reduction,
        same_bits,
        dependent_launch,
        swap_ab,
        gated,
        c_blocks,
        groups,
        scale_format,
        block_scales,
        output_scale,
        quantized_output,
        promotion,
        *RULES,
    ),
    "tcgen05": (not_gated, no_groups),
}
"""The rules of features by the instruction of the family."""
