"""The GPUs that a spec can name: what the ledger and the cost model need beyond the architecture.

Sources, cited by their tag:

* [h100] NVIDIA H100 Tensor Core GPU datasheet and Hopper architecture whitepaper, SXM5 part.
* [h200] NVIDIA H200 Tensor Core GPU datasheet; SMs and L2 as ``cudaGetDeviceProperties`` gives them.
* [b200] NVIDIA Blackwell architecture technical brief, one B200.
* [derived] Follows from this project's measurements, as the comment says.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.target.architecture import BLACKWELL, HOPPER, Architecture

HOPPER_CLUSTERS_OF_FOUR = 30
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
    sustained_hz: float
    """Clock of the SMs under a large matmul of random operands, which power limits."""
    clusters_of_four: int
    """Clusters of four CTAs that its GPCs hold, some of which lack SMs; where that was not measured, as many
    as there are SMs for."""

    def clusters(self, ctas: int) -> int:
        """Return the clusters of so many CTAs, each on an SM of its own, that run at the same time."""
        fitting = self.sm_count // ctas
        return fitting if ctas <= 2 else min(fitting, self.clusters_of_four)

    def dense_flops_per_second(self, bits: int) -> float:
        """Return the datasheet peak of dense MMA by the operands' bits: half of them, twice the rate."""
        return self.dense_16bit_flops_per_second * 16 / bits

    def ridge_flops_per_byte(self, bits: int) -> float:
        """Return the arithmetic intensity above which the tensor cores, not DRAM, set the time."""
        return self.dense_flops_per_second(bits) / self.dram_bytes_per_second


SUSTAINED_HOPPER_HZ = 1.35e9
"""[derived] bf16 128 x 256 x 64 at 8192 x 8192 x 8192 on an H200 of 700 W: 16 rounds of 128 steps of 1,024
MMA cycles, and about 2,000 more each, took 1.59 ms. The tool reads 1.3 to 1.4 GHz.
"""
BOOST_BLACKWELL_HZ = 1.85e9
"""[derived] 2,250 TFLOP/s over 148 SMs of 4,096 FMA a cycle: a peak, for no Blackwell was measured."""

GPUS = {
    "h100": Gpu(  # [h100]
        "H100 SXM", HOPPER, 132, 50 << 20, 3.35e12, 989.4e12, SUSTAINED_HOPPER_HZ, HOPPER_CLUSTERS_OF_FOUR
    ),
    "h200": Gpu(  # [h200]
        "H200", HOPPER, 132, 60 << 20, 4.8e12, 989.4e12, SUSTAINED_HOPPER_HZ, HOPPER_CLUSTERS_OF_FOUR
    ),
    "b200": Gpu("B200", BLACKWELL, 148, 126 << 20, 8.0e12, 2_250e12, BOOST_BLACKWELL_HZ, 148 // 4),  # [b200]
}
