"""Numbers of 4 and 8 bits that block-scaled MMAs multiply: the value of every code, exactly, in float64.

Sources: OCP Microscaling Formats 1.0 (e2m1, e8m0), OCP FP8 1.0 (e4m3, e5m2), PTX ISA 9.0 (ue4m3).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gemmgen.problem.quantize import E2M1_PAIRS, UE8M0_VALUES
from gemmgen.simulate.errors import refusal

ELEMENTS: dict[str, torch.dtype | None] = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e2m1": None,  # two in a byte
}
"""The formats of operands, with the type of their elements in memory."""


def codes(tensor: Tensor) -> Tensor:
    """Return the bits of 8-bit elements as numbers from 0 to 255."""
    return tensor.contiguous().view(torch.uint8).to(torch.int64)


def unpack_e2m1(tensor: Tensor, dim: int) -> Tensor:
    """Return the values of packed pairs; the low four bits of a byte are the first of two along `dim`."""
    return E2M1_PAIRS[codes(tensor)].movedim(-1, dim + 1).flatten(dim, dim + 1)


def e8m0(tensor: Tensor) -> Tensor:
    """Return powers of two; the last code is NaN."""
    return UE8M0_VALUES[codes(tensor)]


def ue4m3(tensor: Tensor) -> Tensor:
    """Return the values of unsigned e4m3 codes.

    Raises:
        GemmgenError: A code's top bit is set: the format has seven bits.
    """
    if bool((codes(tensor) > 0x7F).any()):
        raise refusal("a ue4m3 scale has its top bit set, and the format has seven bits", code="bad-scale")
    return tensor.to(torch.float64)


def elements(tensor: Tensor, format_: str, k_dim: int) -> Tensor:
    """Return the values of an operand; packed pairs lie along K."""
    dtype = ELEMENTS[format_]
    if dtype is None:
        return unpack_e2m1(tensor, k_dim)
    return tensor.contiguous().view(dtype).to(torch.float64)
