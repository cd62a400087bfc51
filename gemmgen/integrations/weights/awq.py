"""Weights of AWQ's ``gemm`` format.

Source: AutoAWQ 0.2.9, ``awq/utils/packing_utils.py``: ``qweight`` int32 [K, N / 8] holds eight columns of a
row in a word, and `ORDER` says which column each four bits have, from the lowest bits on; ``qzeros`` int32
[blocks, N / 8] holds the zero points in the same order; ``scales`` are [blocks, N]. A number is
(q - z) * scale.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

from gemmgen.integrations.weights.quantized import QuantizedWeight
from gemmgen.integrations.weights.words import elements_of, pairs_of, require_words, vector_of

ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of a word that each four bits hold, from the lowest bits on."""


def from_awq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, *, group_size: int | None = None
) -> QuantizedWeight:
    """Return a weight [..., N, K] of the tensors that a checkpoint has for a layer, or for stacked experts.

    Args:
        qweight: int32 [..., K, N / 8].
        qzeros: int32 [..., ceil(K / group_size), N / 8].
        scales: fp16 or bf16 [..., ceil(K / group_size), N].
        group_size: elements along K that share a scale, or -1 for K; needed if K is no multiple of it.

    It has the elements twice as bytes for a while: four times the memory of the weight.

    Raises ValueError if the tensors are of another format.
    """
    require_words("qweight", qweight)
    require_words("qzeros", qzeros)
    vector = vector_of(qweight.shape[-2], scales.shape[-2], group_size)
    codes = pairs_of(_columns(qweight).mT)
    return QuantizedWeight(
        "int4", codes.contiguous(), scales.mT.contiguous(), vector, _columns(qzeros).mT.contiguous()
    )


def _columns(words: Tensor) -> Tensor:
    """Return the elements [..., N] of words [..., N / 8] in the order of columns, as uint8."""
    place = [ORDER.index(column) for column in range(len(ORDER))]
    in_words = elements_of(words).view(*words.shape, len(ORDER))
    return in_words[..., place].flatten(-2)
