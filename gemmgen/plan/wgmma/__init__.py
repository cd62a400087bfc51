"""Plans of Hopper kernels: TMA in and out, wgmma in between."""

from gemmgen.plan.wgmma.resources import WgmmaKernel

__all__ = ["WgmmaKernel"]
