"""The quantised weight of a layer as its library has loaded it, recognised by the layer's attributes."""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from gemmgen.integrations.reasons import has_own_dispatch
from gemmgen.integrations.weights.awq import from_awq
from gemmgen.integrations.weights.compressed_tensors import from_compressed_tensors
from gemmgen.integrations.weights.gptq import from_gptq
from gemmgen.integrations.weights.mxfp4 import from_mxfp4
from gemmgen.integrations.weights.nvfp4 import from_nvfp4
from gemmgen.integrations.weights.quantized import Bits, QuantizedWeight
from gemmgen.integrations.weights.unpacked import ELEMENTS, from_unpacked
from gemmgen.integrations.weights.words import IN_WORD

SCALES: Final = "weight_scale_inv", "weight_scale"
"""The names of the scales of a weight that is not packed; both are factors."""


def from_layer(layer: nn.Module) -> QuantizedWeight:
    """Return the weight [N, K] of a layer.

    The layer is of compressed-tensors (``weight_packed`` of int4, int8, nvfp4 or mxfp4), GPTQ (``qweight``
    [K / 8, N] or [K / 4, N]), AWQ (``qweight`` [K, N / 8]) or modelopt (``weight`` and ``weight_scale_2``),
    or has a ``weight`` in int8 or e4m3 with ``weight_scale`` or ``weight_scale_inv``. Its tensors are as in
    the checkpoint: a library whose own kernel has permuted them must be told to use torch.

    Raises ValueError for another layer, for another number of bits, and as the function of the format does.
    """
    bits = _bits(layer)
    if (words := tensor_of(layer, "qweight")) is not None:
        return _of_words(layer, words, bits)
    if (stored := tensor_of(layer, "weight_packed")) is not None:
        return _of_compressed_tensors(layer, stored, bits)
    stored, factor = tensor_of(layer, "weight"), tensor_of(layer, "weight_scale_2")
    if stored is not None and factor is not None:
        return from_nvfp4(stored, _needed(layer, "weight_scale"), factor=factor)
    if stored is not None and stored.dtype in ELEMENTS:
        scales = [found for name in SCALES if (found := tensor_of(layer, name)) is not None]
        return from_unpacked(
            stored,
            scales[0] if scales else _needed(layer, SCALES[-1]),
            weight_zero_point=tensor_of(layer, "weight_zero_point"),
            group_size=_group_size(layer),
        )
    raise ValueError(
        f"layer is a {type(layer).__name__} without the tensors of a quantised weight: weight_packed "
        "(compressed-tensors), qweight (GPTQ, AWQ), weight and weight_scale_2 (modelopt), or weight in int8 "
        "or e4m3 and weight_scale or weight_scale_inv"
    )


def _of_words(layer: nn.Module, qweight: Tensor, bits: Bits) -> QuantizedWeight:
    """Return the weight of a layer of GPTQ or AWQ, which its shapes tell apart."""
    scales, group_size = _needed(layer, "scales"), _group_size(layer)
    columns, rows_of_scales = qweight.shape[-1], scales.shape[-1]
    if columns * IN_WORD[4] == rows_of_scales:
        if bits != 4:
            raise ValueError(f"layer has weights of {bits} bits and AWQ's order of columns, which is of 4")
        return from_awq(qweight, _needed(layer, "qzeros"), scales, group_size=group_size)
    if columns != rows_of_scales:
        raise ValueError(
            f"qweight {[*qweight.shape]} with scales {[*scales.shape]} is neither GPTQ's "
            f"[K / {IN_WORD[bits]}, N] nor AWQ's [K, N / 8]: the kernel of a library may have permuted them"
        )
    return from_gptq(
        qweight,
        scales,
        qzeros=tensor_of(layer, "qzeros"),
        g_idx=tensor_of(layer, "g_idx"),
        group_size=group_size,
        bits=bits,
    )


def _of_compressed_tensors(layer: nn.Module, packed: Tensor, bits: Bits) -> QuantizedWeight:
    """Return the weight of a layer of compressed-tensors, whose types tell the formats apart."""
    scales, zeros = _needed(layer, "weight_scale"), tensor_of(layer, "weight_zero_point")
    if packed.dtype != torch.uint8:
        return from_compressed_tensors(
            packed,
            scales,
            weight_zero_point=zeros,
            weight_g_idx=tensor_of(layer, "weight_g_idx"),
            group_size=_group_size(layer),
            bits=bits,
        )
    if zeros is not None:
        raise ValueError("layer has zero points of e2m1 (weight_zero_point), which no kernel subtracts")
    if scales.dtype == torch.float8_e4m3fn:
        return from_nvfp4(packed, scales, divisor=_needed(layer, "weight_global_scale"))
    return from_mxfp4(packed, scales)


def tensor_of(layer: nn.Module, name: str) -> Tensor | None:
    """Return a parameter or a buffer; None if the layer has no such one.

    Raises ValueError for a tensor without data, or with rules of its own for torch's operators.
    """
    found = getattr(layer, name, None)
    if not isinstance(found, Tensor):
        return None
    if found.is_meta:
        raise ValueError(f"{name} has no data (its device is meta): load the checkpoint first")
    if has_own_dispatch(found):
        raise ValueError(f"{name} is a {type(found).__name__}, not a plain tensor")
    return found.detach()


def _needed(layer: nn.Module, name: str) -> Tensor:
    """Return a tensor of a layer; raise ValueError if there is none."""
    if (found := tensor_of(layer, name)) is None:
        raise ValueError(f"layer is a {type(layer).__name__} with a quantised weight and no tensor {name}")
    return found


def _arguments(layer: nn.Module) -> Any:
    """Return the numbers of a weight's quantisation, which compressed-tensors keeps in an object."""
    return getattr(getattr(layer, "quantization_scheme", None), "weights", None)


def _bits(layer: nn.Module) -> Bits:
    """Return the bits of an element as a layer says them, or 4; raise ValueError for other than 4 and 8."""
    bits: Bits = 4
    for holder, name in ((layer, "bits"), (layer, "w_bit"), (_arguments(layer), "num_bits")):
        found = cast(Any, getattr(holder, name, None))
        if found not in (None, *IN_WORD):
            raise ValueError(f"layer has weights of {found} bits ({name}), and kernels decode 4 and 8")
        bits = found or bits
    return bits


def _group_size(layer: nn.Module) -> int | None:
    """Return how many elements along K share a scale, or -1 for K; None if the layer does not say it."""
    sizes = (getattr(holder, "group_size", None) for holder in (layer, _arguments(layer)))
    return next((size for size in sizes if isinstance(size, int)), None)
