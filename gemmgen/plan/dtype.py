"""Element types: one row per type, with its name in the spec, in Gluon, torch and Triton signatures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """An element type."""

    name: str
    bits: int
    gluon: str
    torch: str
    triton: str
    """As a kernel's signature spells it."""

    @property
    def bytes(self) -> int:
        """Bytes of one element, for types that fill them."""
        return self.bits // 8

    @property
    def elements_per_byte(self) -> int:
        """Elements that share a byte, in global memory."""
        return max(1, 8 // self.bits)


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("bf16", 16, gluon="gl.bfloat16", torch="torch.bfloat16", triton="bf16"),
        DType("fp16", 16, gluon="gl.float16", torch="torch.float16", triton="fp16"),
        DType("fp32", 32, gluon="gl.float32", torch="torch.float32", triton="fp32"),
        # fp32 in memory; the tensor cores use the first 10 bits of its mantissa.
        DType("tf32", 32, gluon="gl.float32", torch="torch.float32", triton="fp32"),
        DType("e4m3", 8, gluon="gl.float8e4nv", torch="torch.float8_e4m3fn", triton="fp8e4nv"),
        DType("e5m2", 8, gluon="gl.float8e5", torch="torch.float8_e5m2", triton="fp8e5"),
        DType("int8", 8, gluon="gl.int8", torch="torch.int8", triton="i8"),
        # Two in a byte, the one of lower index in its lower half.
        DType("e2m1", 4, gluon="gl.uint8", torch="torch.uint8", triton="u8"),
        # A power of two, 2**(code - 127).
        DType("ue8m0", 8, gluon="gl.uint8", torch="torch.float8_e8m0fnu", triton="u8"),
        DType("int32", 32, gluon="gl.int32", torch="torch.int32", triton="i32"),
    )
}
FP8 = ("e4m3", "e5m2")
"""The 8-bit floats, which wgmma multiplies in any mix."""
