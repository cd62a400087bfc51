"""The GPUs that a spec can name: what the ledger and the cost model need beyond the architecture.

Sources, cited by their tag:

* [h100] NVIDIA H100 Tensor Core GPU datasheet and Hopper architecture whitepaper, SXM5 part.
* [h200] NVIDIA H200 Tensor Core GPU datasheet; SMs and L2 as ``cudaGetDeviceProperties`` gives them.
* [b200] NVIDIA Blackwell architecture technical brief, one B200.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.target.architecture import BLACKWELL, HOPPER, Architecture

CLUSTERS_OF_FOUR = 30
"""[measured] Clusters of four CTAs that 132 SMs hold: a cluster lies within a GPC, and some GPCs lack SMs.

``cuOccupancyMaxActiveClusters`` on an H200. With more programs than that some run after all others, and
double the time of a persistent kernel; of two CTAs all 66 fit.
"""


@dataclass(frozen=True)
class Gpu:
    """One product: an architecture with a number of SMs and a memory system."""

    name: str
    architecture: Architecture
    sm_count: int
    l2_bytes: int
    dram_bytes_per_second: float
    dense_16bit_flops_per_second: float
    """Datasheet peak of dense bf16 or fp16 MMA; a power-limited chip sustains less."""

    def clusters(self, ctas: int) -> int:
        """Return the clusters of so many CTAs, each on an SM of its own, that run at the same time."""
        fitting = self.sm_count // ctas
        return fitting if ctas <= 2 else min(fitting, CLUSTERS_OF_FOUR)

    @property
    def ridge_flops_per_byte(self) -> float:
        """Arithmetic intensity above which the tensor cores, not DRAM, set the time."""
        return self.dense_16bit_flops_per_second / self.dram_bytes_per_second


GPUS = {
    "h100": Gpu("H100 SXM", HOPPER, 132, 50 << 20, 3.35e12, 989.4e12),  # [h100]
    "h200": Gpu("H200", HOPPER, 132, 60 << 20, 4.8e12, 989.4e12),  # [h200]
    "b200": Gpu("B200", BLACKWELL, 148, 126 << 20, 8.0e12, 2_250e12),  # [b200]
}
