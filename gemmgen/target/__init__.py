"""Hardware facts, each with its source."""

from gemmgen.target.architecture import BLACKWELL, HOPPER, WGMMA, Architecture
from gemmgen.target.gpu import CLUSTERS_OF_FOUR, GPUS, Gpu

__all__ = ["BLACKWELL", "CLUSTERS_OF_FOUR", "GPUS", "HOPPER", "WGMMA", "Architecture", "Gpu"]
