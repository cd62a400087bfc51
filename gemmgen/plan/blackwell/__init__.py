"""Plans of Blackwell kernels: TMA in and out, tcgen05 and tensor memory in between."""

from gemmgen.plan.blackwell.plan import Tcgen05Plan

__all__ = ["Tcgen05Plan"]
