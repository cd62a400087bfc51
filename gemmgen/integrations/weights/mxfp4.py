"""Weights of mxfp4: e2m1 with a power of two for each 32 elements of K.

Sources: OCP Microscaling Formats 1.0; gpt-oss as transformers 5.24 loads it (``integrations/mxfp4.py``):
``*_blocks`` uint8 [E, N, K / 32, 16] and ``*_scales`` uint8 [E, N, K / 32]; compressed-tensors 0.20.1,
``mxfp4-pack-quantized``: ``weight_packed`` uint8 [N, K / 2] and ``weight_scale`` uint8 [N, K / 32]. In all of
them the element of even K is in the lower half of a byte, and a scale of the code c is 2 ** (c - 127).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from gemmgen.integrations.weights.quantized import QuantizedWeight

VECTOR: Final = 32
BLOCK_BYTES: Final = VECTOR // 2


def from_mxfp4(weight: Tensor, scales: Tensor) -> QuantizedWeight:
    """Return a weight [..., N, K] of e2m1 and its scales, of a layer or of all experts.

    Args:
        weight: uint8 [..., N, K / 2], or in blocks as gpt-oss has it: [..., N, K / 32, 16].
        scales: uint8 or float8_e8m0fnu [..., N, K / 32].

    The memory is the tensors' own if the weight lies one row after the other.

    Raises ValueError if the tensors are of another format.
    """
    blocks = scales.shape[-1] if scales.dim() else 0
    has_blocks = weight.dim() == scales.dim() + 1 and weight.shape[-2:] == (blocks, BLOCK_BYTES)
    codes = weight.flatten(-2) if has_blocks else weight
    *rows, half = codes.shape
    wanted = [*rows, -(-half // BLOCK_BYTES)]
    if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu) or [*scales.shape] != wanted:
        found = f"{scales.dtype} {[*scales.shape]}"
        raise ValueError(
            f"scales of a weight {[*rows, 2 * half]} must be uint8 or float8_e8m0fnu {wanted}, found {found}"
        )
    return QuantizedWeight("e2m1", codes, scales.view(torch.float8_e8m0fnu), VECTOR)
