"""What one compute capability allows, as data.

Sources, cited by their tag:

* [guide] CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability".
* [ptx] PTX ISA 9.0, sections ``wgmma.mma_async``, ``setmaxnreg`` and ``cp.async.bulk.tensor``.
* [wp] NVIDIA H100 Tensor Core GPU Architecture whitepaper.
* [derived] Follows from this project's or a public measurement, as the comment says.
* [gluon] Triton 3.9.0, measured by lowering kernels on both sides of the limit (``tests/test_lower.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    """What its maker calls the GPUs that have it."""

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
    n_max_int8: int = 128  # [gluon] 256, which PTX has, aborts the compiler
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
    tmem_excess_columns: int = 64  # [gluon] step in which a metadata figure above the limit grows
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


# --- powers of two and multiples, in which extents come


def is_power_of_two(value: int) -> bool:
    """Whether Gluon accepts a block extent."""
    return value > 0 and value & (value - 1) == 0


def power_of_two_below(value: int) -> int:
    """Return the largest power of two that is at most `value`."""
    return 1 << (value.bit_length() - 1)


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `value`."""
    return -(-value // step) * step
