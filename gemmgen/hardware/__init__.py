"""Hardware facts, each with its source, in one table of each kind."""

from gemmgen.hardware.elements import (
    DTYPES,
    FP8,
    MMA_KINDS,
    PADDED_K,
    SCALE_COLUMNS,
    SCALE_FORMATS,
    SCALE_LANES,
    SCALE_ROWS,
    DType,
    ScaleFormat,
)
from gemmgen.hardware.gpus import BLACKWELL, GPUS, HOPPER, TCGEN05, WGMMA, Architecture, Gpu
from gemmgen.hardware.triton_releases import TRITON

__all__ = [
    "BLACKWELL",
    "DTYPES",
    "FP8",
    "GPUS",
    "HOPPER",
    "MMA_KINDS",
    "PADDED_K",
    "SCALE_COLUMNS",
    "SCALE_FORMATS",
    "SCALE_LANES",
    "SCALE_ROWS",
    "TCGEN05",
    "TRITON",
    "WGMMA",
    "Architecture",
    "DType",
    "Gpu",
    "ScaleFormat",
]
