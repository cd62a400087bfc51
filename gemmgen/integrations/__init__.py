"""Generated kernels where torch has a place for them: layers, Inductor's choices, a question beforehand."""

from gemmgen.integrations.block_scaled_linear import BlockScaledLinear
from gemmgen.integrations.grouped import GroupedMM, replace_grouped_mm
from gemmgen.integrations.inductor import external_matmul
from gemmgen.integrations.kernels import BIAS, Kernel, can_implement
from gemmgen.integrations.linear import Linear
from gemmgen.integrations.packed_experts import PackedExperts
from gemmgen.integrations.packed_linear import PackedLinear
from gemmgen.integrations.quantize import quantize_rows
from gemmgen.integrations.replace import (
    LinearLeftWarning,
    Replacement,
    replace_block_scaled_linear,
    replace_linear,
)
from gemmgen.integrations.scaled import ScaledMM, replace_scaled_mm

__all__ = [
    "BIAS",
    "BlockScaledLinear",
    "GroupedMM",
    "Kernel",
    "Linear",
    "LinearLeftWarning",
    "PackedExperts",
    "PackedLinear",
    "Replacement",
    "ScaledMM",
    "can_implement",
    "external_matmul",
    "quantize_rows",
    "replace_block_scaled_linear",
    "replace_grouped_mm",
    "replace_linear",
    "replace_scaled_mm",
]
