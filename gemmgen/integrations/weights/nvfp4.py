"""Weights of nvfp4: e2m1 with a scale in e4m3 for each 16 elements of K, and a factor for the matrix.

Sources: TensorRT Model Optimizer 0.47, ``torch/quantization/qtensor/nvfp4_tensor.py``: ``weight`` uint8
[N, K / 2] whose lower halves have even K, ``weight_scale`` e4m3 [N, K / 16], and ``weight_scale_2`` fp32, a
factor; compressed-tensors 0.20.1, ``nvfp4-pack-quantized``: the same as ``weight_packed`` and
``weight_scale``, and ``weight_global_scale``, a divisor.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from gemmgen.integrations.weights.quantized import QuantizedWeight

VECTOR: Final = 16


def from_nvfp4(
    weight: Tensor, weight_scale: Tensor, *, factor: Tensor | None = None, divisor: Tensor | None = None
) -> QuantizedWeight:
    """Return a weight [..., N, K] of e2m1 and its scales, of a layer or of all experts.

    Args:
        weight: uint8 [..., N, K / 2].
        weight_scale: float8_e4m3fn [..., N, K / 16].
        factor: fp32 with one element for each matrix: ``weight_scale_2`` of modelopt.
        divisor: the same as a divisor: ``weight_global_scale`` of compressed-tensors.

    Raises ValueError if the tensors are of another format, or not exactly one of `factor` and `divisor` is
    there: a weight that takes the one for the other is wrong by their square.
    """
    if (factor is None) == (divisor is None):
        raise ValueError(
            "nvfp4 needs one of factor (modelopt's weight_scale_2) and divisor (compressed-tensors)"
        )
    if weight_scale.dtype != torch.float8_e4m3fn:
        raise ValueError(f"scales of nvfp4 must be float8_e4m3fn, found {weight_scale.dtype}")
    experts = weight.shape[:-2]
    if factor is not None:
        tensor_scale = factor.float()
    else:
        assert divisor is not None
        tensor_scale = 1 / divisor.float()
    if tensor_scale.numel() != experts.numel():
        raise ValueError(
            f"nvfp4 has one factor for each matrix of {[*experts]}, found {[*tensor_scale.shape]}"
        )
    return QuantizedWeight("e2m1", weight, weight_scale, VECTOR, tensor_scale=tensor_scale.reshape(experts))
