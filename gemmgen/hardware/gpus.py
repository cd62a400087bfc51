"""The GPUs that a spec can name: what the ledger and the cost model need beyond the architecture.

Sources, cited by their tag:

* [h100] NVIDIA H100 Tensor Core GPU datasheet and Hopper architecture whitepaper, SXM5 part.
* [h200] NVIDIA H200 Tensor Core GPU datasheet; SMs and L2 as ``cudaGetDeviceProperties`` gives them.
* [b200] NVIDIA Blackwell architecture technical brief, one B200.
* [derived] Follows from this project's measurements, as the comment says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemmgen.hardware.architecture import BLACKWELL, HOPPER, Architecture
from gemmgen.hardware.elements import Table

HOPPER_CLUSTERS_OF_FOUR = 30
"""[measured] Clusters of four CTAs that 132 SMs hold: a cluster lies within a GPC, and some GPCs lack SMs.

``cuOccupancyMaxActiveClusters`` on an H200. With more programs than that some run after all others, and
double the time of a persistent kernel; of two CTAs all 66 fit.
"""


@dataclass(frozen=True)
class Gpu:
    """One product: an architecture with a number of SMs and a memory system."""

    target: str
    """As a spec names it."""
    name: str
    """As its maker does, with the variant that these numbers are of."""
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
    device: str
    """A regular expression for what the driver calls such a GPU."""

    def is_device(self, name: str) -> bool:
        """Whether a GPU that the driver calls so is one of these."""
        return re.search(self.device, name) is not None

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

GPUS: Table[Gpu] = Table(
    "GPU",
    {
        gpu.target: gpu
        for gpu in (
            Gpu(  # [h100]
                "h100", "H100 SXM", HOPPER, sm_count=132, l2_bytes=50 << 20,
                dram_bytes_per_second=3.35e12, dense_16bit_flops_per_second=989.4e12,
                sustained_hz=SUSTAINED_HOPPER_HZ, clusters_of_four=HOPPER_CLUSTERS_OF_FOUR,
                device=r"\bH100\b",
            ),
            Gpu(  # [h200]
                "h200", "H200", HOPPER, sm_count=132, l2_bytes=60 << 20,
                dram_bytes_per_second=4.8e12, dense_16bit_flops_per_second=989.4e12,
                sustained_hz=SUSTAINED_HOPPER_HZ, clusters_of_four=HOPPER_CLUSTERS_OF_FOUR,
                device=r"\bH200\b",
            ),
            Gpu(  # [b200]; not a GB200, which has more power
                "b200", "B200", BLACKWELL, sm_count=148, l2_bytes=126 << 20,
                dram_bytes_per_second=8.0e12, dense_16bit_flops_per_second=2_250e12,
                sustained_hz=BOOST_BLACKWELL_HZ, clusters_of_four=148 // 4,
                device=r"\bB200\b",
            ),
        )
    },
)  # fmt: skip


def gpu_named(name: str) -> Gpu:
    """Return the GPU of a target, ``h100``; of a compute capability, ``sm90`` or ``sm_90a``, the first one.

    Raises:
        KeyError: There is none; its message lists the targets.
    """
    match = re.fullmatch(r"sm_?(\d+)[af]?", name)
    capability = int(match[1]) if match else None
    having = (gpu for gpu in GPUS.values() if gpu.architecture.compute_capability == capability)
    return next(having, None) or GPUS[name]


def gpu_of(device: str) -> Gpu | None:
    """Return the GPU that the driver calls so, None for one that no spec can name."""
    return next((gpu for gpu in GPUS.values() if gpu.is_device(device)), None)


def targets_of(compute_capability: int | None) -> tuple[str, ...]:
    """Return the targets of specs whose kernels run on GPUs of a compute capability."""
    return tuple(
        name for name, gpu in GPUS.items() if gpu.architecture.compute_capability == compute_capability
    )


def architectures() -> tuple[Architecture, ...]:
    """Return the architectures of all GPUs, each once."""
    return tuple(dict.fromkeys(gpu.architecture for gpu in GPUS.values()))
