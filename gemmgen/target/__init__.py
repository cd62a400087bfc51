"""Hardware facts, each with its source."""

from gemmgen.target.architecture import BLACKWELL, HOPPER, WGMMA, Architecture
from gemmgen.target.gpu import GPUS, Gpu

__all__ = ["BLACKWELL", "GPUS", "HOPPER", "WGMMA", "Architecture", "Gpu"]
