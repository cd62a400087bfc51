"""A weight as ``pack_weight`` stores it, back to numbers.

It is written apart from that function, so that it can judge it. Layout 1: bytes [N, K / 2] as words of eight
elements. In each block of 64 x 64, a thread of a warpgroup has four words side by side, for 64 of K and the
two columns, eight apart, that an instruction takes from it. A word has elements of both columns, or, beside
e4m3, of one.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from gemmgen.hardware.elements import WEIGHT_BLOCK
from gemmgen.numerics.encoding import E2M1_VALUES, INT4_ZERO, TORCH_DTYPES
from gemmgen.problem.matmul import Operand

BITS: Final = 6
"""Bits of a place in a block, along N and along K."""
ROWS: Final = {
    (4, 16): ("n32", "n16", "n4", "n1", "k4", "n2"),
    (8, 16): ("n32", "n16", "n4", "n1", "k4", "n2"),
    (4, 8): ("n32", "n16", "n4", "n1", "k8", "n2"),
}
"""The bits of the row of a word in a block, from the highest bit on.

By the bits of elements, and of the type that threads decode them to.
"""
PLACES: Final = {
    (4, 16): (*("k2", "k32", "k16"), *("k1", "k8", "n8")),
    (8, 16): (*("n8", "k2", "k32", "k16"), *("k1", "k8")),
    (4, 8): (*("k4", "k32", "n8"), *("k16", "k2", "k1")),
}
"""The bits of a word in its row, which has 16 bytes of each thread, and of an element in its word."""
POWERS: Final = {
    ("int4", "bf16"): -129, ("int4", "fp16"): -17,
    ("int8", "bf16"): -133, ("int8", "fp16"): -21,
    ("e4m3", "bf16"): -120, ("e4m3", "fp16"): -8,
}  # fmt: skip
"""The power of two that a decoder has elements times, by their type and that of their scales."""
LEAST_POWER: Final = -5
"""The power of two of a scale that an e4m3 has at 0."""
LEAST_EXPONENT: Final = -22
"""The exponent of a scale of nvfp4 whose five bits are 0."""


def weight_of(b: Tensor, b_scale: Tensor, operand: Operand) -> Tensor:
    """Return the numbers [N, K] that a kernel multiplies, of b [K / 2, N] and b_scale [N, words].

    Others than e2m1 have the rounded product of their number and their scale; products of e2m1 are exact.
    """
    stored = b.mT.contiguous()
    n, k = stored.shape[0], stored.shape[1] * operand.dtype.elements_per_byte
    assert operand.scale is not None
    if operand.dtype.bits == 8:
        found = _in_order(stored.view(torch.uint8).flatten(), n, k, operand)
        numbers = found.double() - 128 if operand.dtype.integer else _e4m3(found)
        return _products(numbers, b_scale, operand, k).to(_torch_type(operand))
    codes = _in_order(_codes(stored.view(torch.int32), operand), n, k, operand)
    if operand.dtype.name == "int4":
        numbers = codes.double() - (0 if operand.scale.format.zeros else INT4_ZERO)
    else:
        numbers = E2M1_VALUES.to(codes.device)[codes.long()]

    products = _products(numbers, b_scale, operand, k)
    if operand.scale.format.zeros:
        products += _of_each(_floats(b_scale >> 16, operand), operand, k)
    return products.to(_torch_type(operand))


def _e4m3(codes: Tensor) -> Tensor:
    """Return e4m3 in float64; a decoder makes 480 of NaN, which `pack_weight` refuses."""
    signs = 1.0 - 2.0 * (codes >> 7)
    return torch.where(codes & 0x7F == 0x7F, 480.0 * signs, codes.view(torch.float8_e4m3fn).double())


def _products(numbers: Tensor, b_scale: Tensor, operand: Operand, k: int) -> Tensor:
    """Return numbers [N, K] times their scales, in float64."""
    return numbers.double() * _of_each(scales_of(b_scale, operand), operand, k)


def _of_each(blocks: Tensor, operand: Operand, k: int) -> Tensor:
    """Return values [N, blocks] for each of K elements."""
    assert operand.scale is not None
    return blocks.repeat_interleave(operand.scale.vector, dim=1)[:, :k]


def in_turn(numbers: Tensor) -> Tensor:
    """Return rows [2N, K] of a gate, which a kernel has eight by eight, with both accumulators in turn."""
    pairs = numbers.view(-1, 2, 8, numbers.shape[1])
    return pairs.transpose(1, 2).reshape(numbers.shape)


def _codes(words: Tensor, operand: Operand) -> Tensor:
    """Return the elements [words, 8] of words, in their order within them."""
    if operand.multiplied.bits == 8:
        signs = [words >> 8 * place + bit & 1 for bit in (7, 3) for place in range(4)]
        codes = [words >> 4 * place & 7 | sign << 3 for place, sign in enumerate(signs)]
        return torch.stack(codes, -1).flatten()
    halves = torch.stack((words & 0xFFFF, words >> 16 & 0xFFFF), -1)
    if operand.dtype.name == "int4":
        pairs = [halves >> 4 * pair & 0xF for pair in range(4)]
    else:
        other = halves.flip(-1)  # the signs of two pairs lie there
        signs = halves >> 15, halves >> 9, other >> 3, other >> 5
        numbers = *(halves >> place & 7 for place in (6, 0, 10)), halves >> 12 & 6 | halves >> 4 & 1
        pairs = [(sign & 1) << 3 | number for sign, number in zip(signs, numbers, strict=True)]
    # k + 1 is the upper half of a word; pairs are of k + 8 and of column + 8.
    return torch.stack(pairs, -1).flatten()


def _in_order(codes: Tensor, n: int, k: int, operand: Operand) -> Tensor:
    """Return elements in the order of memory as [N, K], whose places follow from their bits."""
    blocks_n, blocks_k = n // WEIGHT_BLOCK, k // WEIGHT_BLOCK
    types = operand.dtype.bits, operand.multiplied.bits
    of_row, of_word = ROWS[types], PLACES[types]
    stored = codes.view(blocks_n, *[2] * BITS, blocks_k, *[2] * BITS)
    names = ["block n", *of_row, "block k", *of_word]
    wanted = [f"{axis}{1 << bit}" for axis in "nk" for bit in reversed(range(BITS))]
    order = ["block n", *wanted[:BITS], "block k", *wanted[BITS:]]
    return stored.permute([names.index(name) for name in order]).reshape(n, k)


def scales_of(b_scale: Tensor, operand: Operand) -> Tensor:
    """Return the scales [N, blocks] in float64 of those that a kernel reads, [N, words]."""
    assert operand.scale is not None
    row = operand.scale.format
    if (operand.dtype.name, row.dtype) in POWERS:
        words = b_scale.view(torch.int16) if b_scale.dtype == _torch_type(operand) else b_scale
        halves = [_floats(words >> 16 * half, operand) for half in range(row.per_word)]
        return torch.stack(halves, -1).flatten(-2) * 2.0 ** POWERS[operand.dtype.name, row.dtype]
    codes = torch.stack([b_scale >> 8 * byte & 0xFF for byte in range(row.per_word)], -1).flatten(-2)
    if operand.multiplied.bits == 8:
        return 2.0 ** (codes.double() + LEAST_POWER)
    if row.dtype == "ue8m0":
        return 2.0 ** (codes.double() - 126 - 127)
    return 2.0 ** ((codes >> 3).double() + LEAST_EXPONENT) * (1 + (codes & 7).double() / 8) * 2.0**-7


def _torch_type(operand: Operand) -> torch.dtype:
    """Return the type that a kernel decodes to."""
    return TORCH_DTYPES[operand.multiplied.name]


def _floats(bits: Tensor, operand: Operand) -> Tensor:
    """Return the low 16 bits as the type that a kernel decodes to, in float64."""
    wrapped = ((bits.to(torch.int32) & 0xFFFF) ^ 0x8000) - 0x8000  # as int16 holds them
    return wrapped.to(torch.int16).view(_torch_type(operand)).double()


def stored_scales(scales: Tensor, operand: Operand, zeros: Tensor | None = None) -> Tensor:
    """Return scales [N, blocks] in float64 as a kernel reads them, [N, words], as integers of their bits.

    They must be numbers of the format. A format with zero points has one for each block too.
    """
    assert operand.scale is not None
    row = operand.scale.format
    if (operand.dtype.name, row.dtype) in POWERS:
        factors = (scales * 2.0 ** -POWERS[operand.dtype.name, row.dtype]).to(_torch_type(operand))
        bits = factors.view(torch.int16).to(torch.int64) & 0xFFFF
    elif operand.multiplied.bits == 8:
        bits = scales.log2().round().to(torch.int64) - LEAST_POWER
    elif row.dtype == "ue8m0":
        bits = scales.log2().round().to(torch.int64) + 127 + 126
    else:
        exponents = scales.log2().floor()
        bits = (exponents.to(torch.int64) - LEAST_EXPONENT) * 8 + ((scales / 2.0**exponents - 1) * 8).to(
            torch.int64
        )
    if zeros is not None:
        added = (-zeros.double() * scales).to(_torch_type(operand)).view(torch.int16).to(torch.int64)
        bits |= (added & 0xFFFF) << 16
    width = 32 // row.per_word if row.per_word > 1 or row.zeros else 16
    padded = torch.nn.functional.pad(bits, (0, -bits.shape[1] % row.per_word))
    parts = padded.view(len(padded), -1, row.per_word).unbind(-1)
    words = torch.zeros_like(parts[0])
    for place, part in enumerate(parts):
        words |= part << width * place
    limit = 1 << width * row.per_word
    return torch.where(words >= limit // 2, words - limit, words)
