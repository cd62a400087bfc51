"""Weights of compressed-tensors' ``pack-quantized`` format.

Source: compressed-tensors 0.20.1, ``compressors/pack_quantized``: ``weight_packed`` int32 [N, K / 8] holds
q + 8 of each element of four bits, the one of the lowest K in the lowest bits; ``weight_zero_point`` int32
[N / 8, blocks] holds z + 8 of eight rows in a word. A number is (q - z) * scale. Of eight bits, a word has
four elements, and both are stored plus 128.
"""

from __future__ import annotations

from torch import Tensor

from gemmgen.integrations.weights.quantized import Bits, QuantizedWeight
from gemmgen.integrations.weights.row_order import require_order_of_k
from gemmgen.integrations.weights.words import (
    IN_WORD,
    OFFSET,
    bytes_of,
    elements_of,
    require_words,
    signed,
    vector_of,
)
from gemmgen.integrations.weights.zero_points import require_zero_points


def from_compressed_tensors(
    weight_packed: Tensor,
    weight_scale: Tensor,
    *,
    weight_zero_point: Tensor | None = None,
    weight_g_idx: Tensor | None = None,
    group_size: int | None = None,
    bits: Bits = 4,
) -> QuantizedWeight:
    """Return a weight [..., N, K] of the tensors that a checkpoint has for a layer, or for stacked experts.

    Args:
        weight_packed: int32 [..., N, K * bits / 32].
        weight_scale: bf16, fp16 or fp32 [..., N, ceil(K / group_size)], or [..., N, 1] for a scale of each
            row.
        weight_zero_point: int32 [..., ceil(N * bits / 32), blocks] of an asymmetric layer; of eight bits, it
            must say that all zero points are 0.
        weight_g_idx: the block of each K, if the checkpoint has it.
        group_size: elements along K that share a scale; needed if K is no multiple of it.
        bits: bits of an element, ``num_bits`` of the checkpoint's configuration; 8 is int8.

    Raises ValueError if the tensors are of another format, or K is not in the order of its blocks, and for
    zero points of int8.
    """
    require_words("weight_packed", weight_packed)
    n, k = weight_packed.shape[-2], IN_WORD[bits] * weight_packed.shape[-1]
    vector = vector_of(k, weight_scale.shape[-1], group_size)
    require_order_of_k("weight_g_idx", weight_g_idx, k, vector, bits)
    zeros = None
    if weight_zero_point is not None:
        require_words("weight_zero_point", weight_zero_point)
        zeros = elements_of(weight_zero_point.mT, bits).mT[..., :n, :]
    codes = bytes_of(weight_packed)
    if bits == 4:
        return QuantizedWeight("int4", codes, weight_scale, vector, zeros)
    if zeros is not None:
        require_zero_points("weight_zero_point", zeros, OFFSET)
    return QuantizedWeight("int8", signed(codes), weight_scale, vector)
