"""Limits of each compute capability, and the GPUs that a spec can name, as data.

Sources, cited by their tag:

* [guide] CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability".
* [ptx] PTX ISA 9.0, sections ``wgmma.mma_async``, ``setmaxnreg`` and ``cp.async.bulk.tensor``.
* [wp] NVIDIA H100 Tensor Core GPU Architecture whitepaper.
* [h100] NVIDIA H100 Tensor Core GPU datasheet and Hopper architecture whitepaper, SXM5 part.
* [h200] NVIDIA H200 Tensor Core GPU datasheet; SMs and L2 as ``cudaGetDeviceProperties`` gives them.
* [b200] NVIDIA Blackwell architecture technical brief, one B200.
* [derived] Follows from this project's or a public measurement, as the comment says.
* [gluon] Triton 3.9.0, measured by lowering kernels on both sides of the limit (``tests/test_lower.py``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

Row = TypeVar("Row")


class Table(dict[str, Row]):
    """Rows by their names, in the order in which a message lists them."""

    def __init__(self, what: str, rows: Mapping[str, Row]) -> None:
        super().__init__(rows)
        self._what = what

    def __missing__(self, name: str) -> Row:
        close = difflib.get_close_matches(name, self, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise KeyError(f"no {self._what} is called {name!r}; there are {', '.join(self)}{hint}")


# --- architectures


@dataclass(frozen=True)
class Architecture:
    """The limits of one compute capability that a plan is checked against."""

    name: str
    """The ``ptxas`` target."""
    compute_capability: int
    """Major * 10 + minor."""
    mma: Literal["wgmma", "tcgen05"]
    """The matrix instruction family that the architecture has."""
    generation: str
    """The maker's name for the GPUs of the generation."""

    threads_per_warp: int = 32  # [guide]
    warps_per_warpgroup: int = 4  # [ptx] wgmma is issued by four consecutive warps
    threads_per_cta: int = 1024  # [guide]
    ctas_per_sm: int = 32  # [guide]
    warps_per_sm: int = 64  # [guide]
    registers_per_sm: int = 65_536  # [guide] 32-bit registers
    registers_per_thread: int = 255  # [guide]
    smem_bytes_per_sm: int = 233_472  # [guide] 228 KiB
    smem_reserved_bytes_per_cta: int = 1_024  # [guide] taken by the system
    smem_bytes_per_cta: int = 232_448  # [guide] 227 KiB, after opting in
    tmem_columns: int = 0  # [ptx] per SM, of 32 bits in each of 128 lanes; only tcgen05 has them

    mma_16bit_fma_per_cycle: int = 2_048  # [wp] dense, per SM: 989.4 TFLOP/s / 2 / 132 SMs / 1.83 GHz
    smem_bytes_per_cycle: int = 128  # [wp] per SM
    # [derived] 128 x 128 tiles, which need 64, were no slower than with half of B's traffic (no record kept).
    l2_bytes_per_cycle_and_sm: int = 64

    setmaxnreg_granularity: int = 8  # [ptx]
    setmaxnreg_min: int = 24  # [ptx]
    setmaxnreg_max: int = 256  # [ptx]

    tma_rows: int = 256  # [ptx] the largest extent of a box
    tma_alignment_bytes: int = 16  # [ptx] base address, row strides, and inner box extent
    tma_padded_alignment_bytes: int = 32  # [ptx] the same of 4-bit elements that are padded to a byte
    tma_swizzle_bytes: tuple[int, ...] = (128, 64, 32)  # [ptx] widest first; [gluon] wgmma needs one of them


@dataclass(frozen=True)
class Wgmma:
    """Shape limits of ``wgmma.mma_async``: D[m, n] += A[m, k] @ B[k, n] by one warpgroup."""

    m: int = 64  # [ptx]
    n_min: int = 8  # [ptx]
    n_max: int = 256  # [ptx]; [gluon] only powers of two, other multiples of 8 abort the compiler
    k_bytes: int = 32  # [ptx] 16 elements of 16 bits

    rows_per_warp: int = 16  # [ptx] warp i of the warpgroup holds rows 16*i to 16*i+15 of D


@dataclass(frozen=True)
class Tcgen05:
    """Limits of ``tcgen05.mma`` and tensor memory: D[m, n] += A[m, k] @ B[k, n] by one CTA or a pair."""

    m: tuple[int, int] = (64, 128)  # [ptx] rows in one CTA
    n_max: int = 256  # [ptx] columns of one instruction
    n_min: int = 16  # [ptx] of one instruction of 128 rows; [gluon] Triton compiles less in silence
    n_min_64_rows: int = 8  # [ptx]
    n_min_pair: int = 32  # [ptx] over both CTAs
    k_bytes: int = 32  # [ptx] 16 elements of 16 bits, 64 of 4 bits
    tmem_columns: int = 512  # [ptx] per SM, of 32 bits in each of 128 lanes
    tmem_columns_min: int = 32  # [ptx] the smallest allocation; every one is a power of two
    scale_bytes_per_column: int = 128  # [gluon] 32 lanes of 4 bytes, repeated for each of four warps
    copy_bytes: int = 512  # [ptx] tcgen05.cp.32x128b: 32 lanes of 16 bytes
    response_bytes: int = 16  # [ptx] of clusterlaunchcontrol.try_cancel


WGMMA = Wgmma()
TCGEN05 = Tcgen05()
HOPPER = Architecture(name="sm_90a", compute_capability=90, mma="wgmma", generation="Hopper")
BLACKWELL = Architecture(
    name="sm_100a",
    compute_capability=100,
    mma="tcgen05",
    generation="Blackwell",
    tmem_columns=TCGEN05.tmem_columns,
    mma_16bit_fma_per_cycle=4_096,  # [derived] dense, per SM: 2,250 TFLOP/s / 2 / 148 SMs / 1.85 GHz
)


# --- GPUs

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
    """A regular expression for the driver's name of the GPU."""

    def is_device(self, name: str) -> bool:
        """Return True if a GPU that the driver calls so is one of these."""
        return re.search(self.device, name) is not None

    def clusters(self, ctas: int) -> int:
        """Return the clusters of `ctas` CTAs that run at the same time, each CTA on an SM of its own."""
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


# --- cards that run the kernels of a target, which no spec names


@dataclass(frozen=True)
class Product:
    """Rates of a card, for libraries that choose kernels for the card that they run on."""

    device: str
    """A regular expression for the driver's name of the card."""
    memory_gb: int
    sm_count: int
    dram_bytes_per_second: float
    dense_16bit_flops_per_second: float
    sustains_clock: bool = False
    """True if its peak is so low that power does not limit it."""

    @classmethod
    def of(cls, gpu: Gpu, memory_gb: int) -> Product:
        """Return a GPU that specs can name."""
        return cls(
            gpu.device, memory_gb, gpu.sm_count, gpu.dram_bytes_per_second, gpu.dense_16bit_flops_per_second
        )


HOPPER_PRODUCTS = (  # datasheets of each; the first whose name matches counts
    Product(r"\bH20-3e\b", 141, 78, 4.8e12, 148e12, sustains_clock=True),
    Product(r"\bH20\b", 96, 78, 4.0e12, 148e12, sustains_clock=True),
    Product(r"\bH[18]00 PCIe\b", 80, 114, 2.0e12, 756e12),
    Product(r"\bH100 NVL\b", 94, 132, 3.9e12, 835e12),
    Product(r"\bH200 NVL\b", 141, 132, 4.8e12, 835e12),
    Product(r"\bGH200 144G\b", 144, 132, 4.9e12, 989.4e12),
    Product(r"\bGH200\b", 96, 132, 4.0e12, 989.4e12),
    Product(r"\bH800\b", 80, 132, 3.35e12, 989.4e12),
    Product.of(GPUS["h100"], memory_gb=80),
    Product.of(GPUS["h200"], memory_gb=141),
)


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


# --- powers of two and multiples, in which extents come


def is_power_of_two(value: int) -> bool:
    """Return True if Gluon accepts a block extent."""
    return value > 0 and value & (value - 1) == 0


def power_of_two_below(value: int) -> int:
    """Return the largest power of two that is at most `value`."""
    return 1 << (value.bit_length() - 1)


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `value`."""
    return -(-value // step) * step
