"""Weights of eight bits whose elements are numbers of torch: int8 and fp8 (e4m3).

Sources: compressed-tensors 0.20.1, ``compressors/naive_quantized`` (``int-quantized``, ``float-quantized``):
``weight`` [N, K] and ``weight_scale`` [1] of the tensor, [N, 1] of rows, [N, blocks] of groups of K, or
[N / 128, K / 128] of blocks, and ``weight_zero_point`` like it, of an asymmetric layer; DeepSeek-V3 and Qwen3
in fp8 as transformers 5.24 loads them (``integrations/finegrained_fp8.py``): ``weight`` and
``weight_scale_inv``, which is a factor, too: [N / 128, K / 128] of blocks, or one number.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from gemmgen.integrations.quantize import BLOCK
from gemmgen.integrations.weights.quantized import Element, QuantizedWeight
from gemmgen.integrations.weights.words import vector_of
from gemmgen.integrations.weights.zero_points import require_zero_points

ELEMENTS: Final[dict[torch.dtype, Element]] = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3"}
"""The elements by the types of tensors."""


def from_unpacked(
    weight: Tensor,
    weight_scale: Tensor,
    *,
    weight_zero_point: Tensor | None = None,
    group_size: int | None = None,
) -> QuantizedWeight:
    """Return a weight [..., N, K] of int8 or e4m3, of a layer or of stacked experts; a number is w * scale.

    Args:
        weight: int8 or float8_e4m3fn [..., N, K].
        weight_scale: bf16, fp16, fp32 or float8_e8m0fnu: [...], [..., 1] or [..., 1, 1] of the matrix,
            [..., N, 1] of rows, [..., N, ceil(K / group_size)] of groups, or
            [..., ceil(N / 128), ceil(K / 128)] of blocks of 128 x 128, which is ``weight_scale_inv`` of
            DeepSeek and Qwen.
        weight_zero_point: a number for each scale, if the checkpoint has it; all must be 0.
        group_size: elements along K that share a scale; needed if K is no multiple of it.

    The memory of the elements is the checkpoint's own. A scale of a matrix or of 128 rows is repeated for
    each row.

    Raises ValueError for other types and extents, and for zero points, whose check waits for a GPU.
    """
    element = ELEMENTS.get(weight.dtype)
    if element is None or weight.dim() < 2:
        found = f"{weight.dtype} {[*weight.shape]}"
        raise ValueError(f"a weight that is not packed must be int8 or float8_e4m3fn [N, K], found {found}")
    if weight_zero_point is not None:
        require_zero_points("weight_zero_point", weight_zero_point, 0)
    if weight_scale.dtype == torch.float8_e8m0fnu:
        weight_scale = weight_scale.float()  # in which each power of two is exact
    scales, vector = _of_rows(weight, weight_scale, group_size)
    return QuantizedWeight(element, weight, scales, vector)


def _of_rows(weight: Tensor, scales: Tensor, group_size: int | None) -> tuple[Tensor, int]:
    """Return scales as [..., N, blocks], and the elements of K of a block."""
    *experts, n, k = weight.shape
    found, blocks = [*scales.shape], [-(-n // BLOCK), -(-k // BLOCK)]
    if found in (experts, [*experts, 1], [*experts, 1, 1]):
        return scales.reshape(*experts, 1, 1).expand(*experts, n, 1), k
    if found == [*experts, *blocks] and blocks[0] != n:
        return scales.repeat_interleave(BLOCK, -2)[..., :n, :], BLOCK
    if found[:-1] == [*experts, n]:
        return scales, vector_of(k, found[-1], group_size)
    raise ValueError(
        f"a weight {[*weight.shape]} has scales {[*experts, 1]} of its matrix, {[*experts, n, 1]} of rows, "
        f"{str([*experts, n])[:-1]}, groups], or {[*experts, *blocks]} of blocks of {BLOCK} x {BLOCK}, "
        f"found {found}"
    )
