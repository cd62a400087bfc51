"""Operands of block-scaled MMAs: which formats go together, and the exact value of every code.

Sources: OCP Microscaling Formats 1.0 (e2m1, e8m0), OCP FP8 1.0 (e4m3, e5m2), PTX ISA 9.0 (ue4m3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from gemmgen.hardware import DTYPES
from gemmgen.numerics.encoding import TORCH_DTYPES, UE8M0_VALUES, as_float32, e2m1_as_float32
from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import SHARED_MEMORY, MemDescType


def codes(tensor: Tensor) -> Tensor:
    """Return the bits of 8-bit elements as numbers from 0 to 255."""
    return tensor.contiguous().view(torch.uint8).to(torch.int64)


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


def elements(tensor: Tensor, format_: str, packed: int = 1) -> Tensor:
    """Return the fp32 values of an operand; pairs of four bits lie along the dimension `packed`."""
    if DTYPES[format_].bits < 8:
        return e2m1_as_float32(tensor.movedim(packed, -1)).movedim(-1, packed)
    return as_float32(tensor.contiguous().view(TORCH_DTYPES[format_]))


_LARGEST_SCALE = 2.0**50
"""Up to here, and down to one by this, a scaled element and the product of two are normal numbers of fp32."""


def _moderate(scales: Tensor) -> bool:
    """Return whether fp32 holds what these scales make of any element, and so any product of two such."""
    smallest, largest = (bound.item() for bound in scales.aminmax())
    return (smallest == 0 or smallest >= 1 / _LARGEST_SCALE) and largest <= _LARGEST_SCALE


_E2M1 = 4
_FORMATS = {0: "e4m3", 1: "e5m2", _E2M1: "e2m1"}
"""As MLIR numbers them."""
_OTHER_FORMATS = {2: "e2m3", 3: "e3m2", 5: "bf16", 6: "fp16"}
"""Triton 3.9 names them, and Gluon has no MMA of them."""

Dequantize = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""A [M, K], B [K, N] and their scales [M, K / block] and [N, K / block] as stored, to their values.

These are fp32 where that holds them, and else float64.
"""


def scaled_operands(op: Operation, first_scale: int) -> Dequantize:
    """Return how an MMA reads its operands.

    Raises:
        GemmgenError: The hardware has no such combination of formats, although the compiler accepts it.
    """
    types = [cast(MemDescType, op.operand_types[i]) for i in (0, 1, first_scale, first_scale + 1)]
    formats = _formats(op)
    decode = _scale_format(op, formats, types)
    _check_scales(op, types)
    # Of A as it is, and of B transposed: rows of K.
    packed = [0 if outer else 1 for outer in packed_outside(op)]

    def dequantize(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> tuple[Tensor, Tensor]:
        scales = decode(a_scales), decode(b_scales)
        dtype = torch.float32 if all(map(_moderate, scales)) else torch.float64
        left = _scaled(elements(a, formats[0], packed[0]).to(dtype), scales[0].to(dtype))
        right = _scaled(elements(b.T, formats[1], packed[1]).to(dtype), scales[1].to(dtype)).T
        return left, right

    return dequantize


def _formats(op: Operation) -> list[str]:
    numbers: list[int] = [op.attributes["a_type"], op.attributes["b_type"]]
    if unknown := [number for number in numbers if number not in _FORMATS]:
        name = _OTHER_FORMATS.get(unknown[0], str(unknown[0]))
        raise refusal(f"operands of the format {name} are not known to the simulator", op.location)
    return [_FORMATS[number] for number in numbers]


def packed_outside(op: Operation) -> tuple[bool, bool]:
    """Return whether two elements in a byte are neighbours along M of A, and along N of B, not along K.

    Triton takes that from the dimension that is contiguous in shared memory.
    """
    found: list[bool] = []
    for type_, name, k_dim in ((op.operand_types[0], "a_type", 1), (op.operand_types[1], "b_type", 0)):
        assert isinstance(type_, MemDescType)
        in_shared = type_.space == SHARED_MEMORY and type_.encoding is not None
        transposed = bool(in_shared and type_.encoding and type_.encoding.fields.get("transposed"))
        contiguous = 0 if transposed else 1
        found.append(in_shared and op.attributes.get(name) == _E2M1 and contiguous != k_dim)
    return found[0], found[1]


def _check_scales(op: Operation, types: Sequence[MemDescType]) -> None:
    """Refuse scales that do not belong to all rows and blocks of a CTA's operands."""
    d = cast(MemDescType, op.operand_types[2])
    for type_, rows, side in zip(types[2:], d.local_shape, "AB", strict=True):
        if type_.local_shape != (rows, type_.shape[1]):
            held, needed = list(type_.local_shape), [rows, type_.shape[1]]
            message = f"each CTA needs scales of {side} of the shape {needed}, and holds {held}"
            raise refusal(message, op.location, "bad-scale")


def _scaled(values: Tensor, scales: Tensor) -> Tensor:
    """Return values [rows, K] times their scales [rows, K / block]."""
    rows, depth = values.shape
    blocks = values.reshape(rows, scales.shape[1], depth // scales.shape[1])
    return (blocks * scales.unsqueeze(2)).reshape(rows, depth)


def _scale_format(op: Operation, formats: list[str], types: list[MemDescType]) -> Callable[[Tensor], Tensor]:
    """Return how a scale is read."""
    a, b, a_scale, b_scale = types
    outside = packed_outside(op)
    # The MMA of fp4 alone takes K-major operands; another one takes eight bits for each element.
    both_fp4 = formats == ["e2m1", "e2m1"] and not any(outside)
    kinds = {a_scale.element, b_scale.element}
    depth = a.shape[1] * (2 if formats[0] == "e2m1" and not outside[0] else 1)
    blocks = {depth // a_scale.shape[1], depth // b_scale.shape[1]}
    for format_, type_, side in zip(formats, (a, b), "AB", strict=False):
        if type_.fp4_padded != (format_ == "e2m1" and not both_fp4):
            padded = "with" if type_.fp4_padded else "without"
            message = (
                f"{side} is {format_} {padded} fp4_padded: e2m1 is padded if it meets 8 bits, or if A or B "
                "is contiguous along another dimension than K"
            )
            raise refusal(message, op.location, "bad-operand")
    known = {("i8", 32): e8m0} | ({("f8E4M3FN", 16): ue4m3} if both_fp4 else {})
    for (kind, block), decode in known.items():
        if kinds == {kind} and blocks == {block}:
            return decode
    message = (
        f"the hardware has no MMA of {' and '.join(formats)} with scales of {' and '.join(sorted(kinds))} "
        f"for blocks of {', '.join(map(str, sorted(blocks)))}"
    )
    raise refusal(message, op.location, "bad-scale")
