"""Hardware facts, each with its source."""

from gemmgen.target.architecture import BLACKWELL, HOPPER, WGMMA, Architecture
from gemmgen.target.gpu import GPUS, SMS_PER_GPC_FOR_CLUSTERS, Gpu

__all__ = ["BLACKWELL", "GPUS", "HOPPER", "SMS_PER_GPC_FOR_CLUSTERS", "WGMMA", "Architecture", "Gpu"]
