"""Plans of Blackwell kernels: TMA in and out, tcgen05 and tensor memory in between."""

from gemmgen.plan.tcgen05.resources import Tcgen05Kernel

__all__ = ["Tcgen05Kernel"]
