"""Operands of block-scaled MMAs: which formats go together, and their exact values."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from gemmgen.simulate.errors import refusal
from gemmgen.simulate.formats import e8m0, elements, ue4m3
from gemmgen.simulate.parse import Operation
from gemmgen.simulate.types import MemDescType

_FORMATS = {0: "e4m3", 1: "e5m2", 4: "e2m1"}
"""As MLIR numbers them; the others have six bits."""

Dequantize = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""A [M, K], B [K, N] and their scales [M, K / block] and [N, K / block] as stored, to their values."""


def scaled_operands(op: Operation, first_scale: int) -> Dequantize:
    """Return how an MMA reads its operands.

    Raises:
        GemmgenError: The hardware has no such combination of formats, although the compiler accepts it.
    """
    types = [cast(MemDescType, op.operand_types[i]) for i in (0, 1, first_scale, first_scale + 1)]
    numbers: list[int] = [op.attributes["a_type"], op.attributes["b_type"]]
    if any(number not in _FORMATS for number in numbers):
        raise refusal("formats of six bits are not known to the simulator", op.location)
    formats = [_FORMATS[number] for number in numbers]
    decode, block = _scale_format(op, formats, types)

    def dequantize(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> tuple[Tensor, Tensor]:
        left = elements(a, formats[0], 1) * decode(a_scales).repeat_interleave(block, 1)
        right = elements(b, formats[1], 0) * decode(b_scales).repeat_interleave(block, 1).T
        return left, right

    return dequantize


def _scale_format(
    op: Operation, formats: list[str], types: list[MemDescType]
) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return how a scale is read, and how many numbers along K share one."""
    a, b, a_scale, b_scale = types
    both_fp4 = formats == ["e2m1", "e2m1"]
    kinds = {a_scale.element, b_scale.element}
    depth = a.shape[1] * (2 if formats[0] == "e2m1" else 1)
    blocks = {depth // a_scale.shape[1], depth // b_scale.shape[1]}
    for format_, type_, side in zip(formats, (a, b), "AB", strict=False):
        if type_.fp4_padded != (format_ == "e2m1" and not both_fp4):
            padded = "with" if type_.fp4_padded else "without"
            message = f"{side} is {format_} {padded} fp4_padded, and only e2m1 that meets 8 bits is padded"
            raise refusal(message, op.location, "bad-operand")
    known = {("i8", 32): e8m0} | ({("f8E4M3FN", 16): ue4m3} if both_fp4 else {})
    for (kind, block), decode in known.items():
        if kinds == {kind} and blocks == {block}:
            return decode, block
    message = (
        f"the hardware has no MMA of {' and '.join(formats)} with scales of {' and '.join(sorted(kinds))} "
        f"for blocks of {', '.join(map(str, sorted(blocks)))}"
    )
    raise refusal(message, op.location, "bad-scale")
