"""Generated kernels where torch has a place for them: layers, Inductor's choices, a question beforehand."""

from gemmgen.integrations.grouped import GroupedMM, replace_grouped_mm
from gemmgen.integrations.inductor import external_matmul
from gemmgen.integrations.kernels import BIAS, Kernel, can_implement
from gemmgen.integrations.linear import Linear
from gemmgen.integrations.replace import LinearLeftWarning, Replacement, replace_linear

__all__ = [
    "BIAS",
    "GroupedMM",
    "Kernel",
    "Linear",
    "LinearLeftWarning",
    "Replacement",
    "can_implement",
    "external_matmul",
    "replace_grouped_mm",
    "replace_linear",
]
