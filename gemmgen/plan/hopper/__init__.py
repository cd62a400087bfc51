"""Plans of Hopper kernels: TMA in and out, wgmma in between."""

from gemmgen.plan.hopper.plan import WgmmaPlan

__all__ = ["WgmmaPlan"]
