"""Hardware facts, each with its source."""

from gemmgen.target.architecture import BLACKWELL, HOPPER, TCGEN05, WGMMA, Architecture
from gemmgen.target.gpu import GPUS, Gpu
from gemmgen.target.scale import (
    MMA_KINDS,
    PADDED_K,
    SCALE_COLUMNS,
    SCALE_FORMATS,
    SCALE_ROWS,
    ScaleFormat,
)

__all__ = [
    "BLACKWELL",
    "GPUS",
    "HOPPER",
    "MMA_KINDS",
    "PADDED_K",
    "SCALE_COLUMNS",
    "SCALE_FORMATS",
    "SCALE_ROWS",
    "TCGEN05",
    "WGMMA",
    "Architecture",
    "Gpu",
    "ScaleFormat",
]
