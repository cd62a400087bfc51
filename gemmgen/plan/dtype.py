"""Element types: one row per type, with its name in the spec, in Gluon and in torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """An element type; its spec name is also the one in a Triton signature."""

    name: str
    bits: int
    gluon: str
    torch: str

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return self.bits // 8


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("bf16", 16, gluon="gl.bfloat16", torch="torch.bfloat16"),
        DType("fp16", 16, gluon="gl.float16", torch="torch.float16"),
        DType("fp32", 32, gluon="gl.float32", torch="torch.float32"),
    )
}
