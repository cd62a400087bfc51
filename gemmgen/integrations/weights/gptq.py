"""Weights of GPTQ's symmetric format.

Source: GPTQModel 7.7.0, ``nn_modules/qlinear``: ``qweight`` int32 [K / 8, N] holds eight K of a column in a
word, the lowest K in the lowest bits; ``qzeros`` int32 [blocks, N / 8] holds z - 1 (``gptq``) or z
(``gptq_v2``); ``scales`` are [blocks, N]. A number is (q - z) * scale, and z is 8 of a symmetric layer. Of
eight bits, a word has four elements, and z is 128.
"""

from __future__ import annotations

from torch import Tensor

from gemmgen.integrations.weights.quantized import Bits, QuantizedWeight
from gemmgen.integrations.weights.row_order import require_order_of_k
from gemmgen.integrations.weights.words import (
    IN_WORD,
    bytes_of,
    elements_of,
    require_words,
    signed,
    vector_of,
)


def from_gptq(
    qweight: Tensor,
    scales: Tensor,
    *,
    qzeros: Tensor | None = None,
    g_idx: Tensor | None = None,
    group_size: int | None = None,
    bits: Bits = 4,
) -> QuantizedWeight:
    """Return a weight [..., N, K] of the tensors that a checkpoint has for a layer, or for stacked experts.

    Args:
        qweight: int32 [..., K * bits / 32, N].
        scales: fp16 or bf16 [..., ceil(K / group_size), N].
        qzeros: int32 [..., blocks, N * bits / 32], which must say that all zero points are 8, or 128 of eight
            bits: 7 or 127 if stored less 1.
        g_idx: the block of each K, if the checkpoint has it.
        group_size: elements along K that share a scale, or -1 for K; needed if K is no multiple of it.
        bits: bits of an element, as the checkpoint's configuration says; 8 becomes int8.

    Raises ValueError if the tensors are of another format, for an asymmetric layer, and if K is not in the
    order of its blocks. Reading `qzeros` and `g_idx` waits for the GPU.
    """
    require_words("qweight", qweight)
    k = IN_WORD[bits] * qweight.shape[-2]
    vector = vector_of(k, scales.shape[-2], group_size)
    require_order_of_k("g_idx", g_idx, k, vector, bits)
    if qzeros is not None:
        _require_symmetric(qzeros, (*scales.shape[:-1], qweight.shape[-1] // IN_WORD[bits]), bits)
    codes, of_blocks = bytes_of(qweight.mT), scales.mT.contiguous()
    if bits == 4:
        return QuantizedWeight("int4", codes, of_blocks, vector)
    return QuantizedWeight("int8", signed(codes), of_blocks, vector)


def _require_symmetric(qzeros: Tensor, shape: tuple[int, ...], bits: Bits) -> None:
    """Raise ValueError unless each scale has a zero point, and all are the middle, or that less 1."""
    require_words("qzeros", qzeros)
    if tuple(qzeros.shape) != shape:
        raise ValueError(f"qzeros must be int32 {[*shape]}, found {[*qzeros.shape]}: are these {bits} bits?")
    middle = 1 << bits - 1
    low, high = (int(value) for value in elements_of(qzeros, bits).aminmax())
    if low != high or low not in (middle - 1, middle):
        raise ValueError(
            f"qzeros has numbers from {low} to {high}; a symmetric layer has {middle - 1} everywhere (gptq) "
            f"or {middle} (gptq_v2): an asymmetric layer's file does not say which of the two it means"
        )
