"""The least time that a GPU needs for a matmul, from ceilings measured on it or from its datasheet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gemmgen.problem import Shape
from gemmgen.problem.dtype import DType
from gemmgen.target import GPUS, Gpu


@dataclass(frozen=True)
class Ceilings:
    """What one GPU sustains on operands of one kind."""

    flops_per_second: float
    bytes_per_second: float
    source: str

    def __post_init__(self) -> None:
        if min(self.flops_per_second, self.bytes_per_second) <= 0:
            raise ValueError("a ceiling must be positive")

    def seconds(self, shape: Shape, moved_bytes: int) -> float:
        """Return the larger of the times for the arithmetic and for the bytes."""
        return max(flops(shape) / self.flops_per_second, moved_bytes / self.bytes_per_second)


H200: Final = Ceilings(
    flops_per_second=873e12,
    bytes_per_second=4.3e12,
    source="measured on an H200: wgmma m64n256k16 from resident shared memory on random bf16 operands; "
    "device-to-device copy, bytes read plus bytes written",
)
"""16-bit floats."""
H200_FP8: Final = Ceilings(
    flops_per_second=1693e12,
    bytes_per_second=4.3e12,
    source="measured on an H200: wgmma m64n256k32 from resident shared memory on random e4m3 operands; "
    "device-to-device copy, bytes read plus bytes written",
)


def ceilings_of(gpu: str, operand: DType = "bf16", smem_bits: int = 16) -> Ceilings | None:
    """Return the ceilings of the GPU of this product name; None of tf32 and int8 on an H200, and of others.

    On an H200 they were measured. No B200 was at hand: there they are the datasheet's, by the bits that an
    element takes in shared memory: 4 for e2m1, but 8 where it is padded.
    """
    if re.search(r"\bB200\b", gpu):  # not a GB200, which has more power
        return _datasheet(GPUS["b200"], smem_bits)
    if "H200" not in gpu:
        return None
    return {"bf16": H200, "fp16": H200, "e4m3": H200_FP8, "e5m2": H200_FP8}.get(operand)


def _datasheet(gpu: Gpu, bits: int) -> Ceilings:
    """Return a product's peaks, which no kernel sustains."""
    return Ceilings(
        flops_per_second=gpu.dense_flops_per_second(bits),
        bytes_per_second=gpu.dram_bytes_per_second,
        source=f"datasheet of the {gpu.name}, not measured: dense MMA of {bits}-bit operands; "
        "memory bandwidth",
    )


def flops(shape: Shape) -> int:
    """Return the operations of the product: one multiplication and one addition for each m, n, k."""
    m, n, k = shape
    return 2 * m * n * k


def moved_bytes(m: int, n: int, a_row_bytes: int, b_row_bytes: int, d_bytes: int) -> int:
    """Return the fewest bytes through device memory: A, B and C read once and D written once.

    The rows are those of A [M, K] and of B's transpose [N, K], with scales of blocks; ``d_bytes`` are those
    of an element of D, and of C where there is one. Vectors and a scale, a row or column at most, are left
    out.
    """
    return m * a_row_bytes + n * b_row_bytes + m * n * d_bytes
