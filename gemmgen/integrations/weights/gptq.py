"""Weights of GPTQ's symmetric format.

Source: GPTQModel 7.7.0, ``nn_modules/qlinear``: ``qweight`` int32 [K / 8, N] holds eight K of a column in a
word, the lowest K in the lowest bits; ``qzeros`` int32 [blocks, N / 8] holds z - 1 (``gptq``) or z
(``gptq_v2``); ``scales`` are [blocks, N]. A number is (q - z) * scale, and z is 8 of a symmetric layer.
"""

from __future__ import annotations

from torch import Tensor

from gemmgen.integrations.weights.quantized import MIDDLE, QuantizedWeight
from gemmgen.integrations.weights.row_order import require_order_of_k
from gemmgen.integrations.weights.words import IN_WORD, bytes_of, elements_of, require_words, vector_of


def from_gptq(
    qweight: Tensor,
    scales: Tensor,
    *,
    qzeros: Tensor | None = None,
    g_idx: Tensor | None = None,
    group_size: int | None = None,
) -> QuantizedWeight:
    """Return a weight [..., N, K] of the tensors that a checkpoint has for a layer, or for stacked experts.

    Args:
        qweight: int32 [..., K / 8, N].
        scales: fp16 or bf16 [..., ceil(K / group_size), N].
        qzeros: int32 [..., blocks, N / 8], which must say that all zero points are 8: 7 if stored less 1.
        g_idx: the block of each K, if the checkpoint has it.
        group_size: elements along K that share a scale, or -1 for K; needed if K is no multiple of it.

    Raises ValueError if the tensors are of another format, for an asymmetric layer, and if K is not in the
    order of its blocks. Reading `qzeros` and `g_idx` waits for the GPU.
    """
    require_words("qweight", qweight)
    k = IN_WORD * qweight.shape[-2]
    vector = vector_of(k, scales.shape[-2], group_size)
    require_order_of_k("g_idx", g_idx, k, vector)
    if qzeros is not None:
        _require_symmetric(qzeros, (*scales.shape[:-1], qweight.shape[-1] // IN_WORD))
    return QuantizedWeight("int4", bytes_of(qweight.mT), scales.mT.contiguous(), vector)


def _require_symmetric(qzeros: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless there is a zero point for each scale, and all are 8, stored as 7 or as 8."""
    require_words("qzeros", qzeros)
    if tuple(qzeros.shape) != shape:
        raise ValueError(f"qzeros must be int32 {[*shape]}, found {[*qzeros.shape]}: are these 4 bits?")
    found = elements_of(qzeros)
    low, high = (int(value) for value in found.aminmax())
    if low != high or low not in (MIDDLE - 1, MIDDLE):
        raise ValueError(
            f"qzeros has numbers from {low} to {high}; a symmetric layer has {MIDDLE - 1} everywhere (gptq) "
            f"or {MIDDLE} (gptq_v2): an asymmetric layer's file does not say which of the two it means"
        )
