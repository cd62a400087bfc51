"""The least time that a GPU needs for a matmul, from ceilings that were measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmgen.problem import Shape
from gemmgen.problem.dtype import DType


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


def ceilings_of(gpu: str, operand: DType = "bf16") -> Ceilings | None:
    """Return the ceilings measured on the GPU of this product name; None of tf32, int8 and other GPUs."""
    if "H200" not in gpu:
        return None
    return {"bf16": H200, "fp16": H200, "e4m3": H200_FP8, "e5m2": H200_FP8}.get(operand)


def flops(shape: Shape) -> int:
    """Return the operations of the product: one multiplication and one addition for each m, n, k."""
    m, n, k = shape
    return 2 * m * n * k


def moved_bytes(shape: Shape, operand_bytes: int, d_bytes: int, c_bytes: int = 0) -> int:
    """Return the fewest bytes through device memory: A, B and C read once and D written once.

    Vectors and scales, a row or a column at most, are left out.
    """
    m, n, k = shape
    return (m * k + n * k) * operand_bytes + m * n * (c_bytes + d_bytes)
