"""The experts of gpt-oss in mxfp4 as transformers has loaded them, recognised by the layer's attributes.

Source: transformers 5.24, ``integrations/mxfp4.py``. A checkpoint has ``*_blocks`` uint8 [E, N, K / 32, 16]
and ``*_scales`` uint8 [E, N, K / 32]. When a model is loaded for the hub's kernels in Triton, these kernels'
own objects take their place: a weight and its scales, each with a layout that can also undo its order.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from gemmgen.integrations.weights.checkpoint_layer import tensor_of
from gemmgen.integrations.weights.mxfp4 import from_mxfp4
from gemmgen.integrations.weights.quantized import QuantizedWeight

GATE_UP: Final = "gate_up_proj"
DOWN: Final = "down_proj"


class ExpertWeights(NamedTuple):
    """The weights and biases of a layer of experts."""

    gate_up: QuantizedWeight
    """[experts, 2 * intermediate, hidden]: rows of gate and up come in turn."""
    down: QuantizedWeight
    """[experts, hidden, intermediate]."""
    gate_up_bias: Tensor | None
    """[experts, 2 * intermediate]."""
    down_bias: Tensor | None
    """[experts, hidden]."""


def from_experts(layer: nn.Module) -> ExpertWeights:
    """Return the weights and biases of a layer of gpt-oss in mxfp4.

    The layer has the checkpoint's tensors (``gate_up_proj_blocks``, ``gate_up_proj_scales``, and the same
    for ``down_proj``), which are not copied, or the objects that transformers makes of them for the hub's
    kernels. The layout of such an object brings a copy back into the checkpoint's order; transformers saves
    models so, too.

    Raises ValueError for another layer, for one whose checkpoint is not loaded, and for a layout that cannot
    be undone.
    """
    return ExpertWeights(
        _weight(layer, GATE_UP),
        _weight(layer, DOWN),
        tensor_of(layer, f"{GATE_UP}_bias"),
        tensor_of(layer, f"{DOWN}_bias"),
    )


def _weight(layer: nn.Module, name: str) -> QuantizedWeight:
    """Return one of the weights; raise ValueError if a layer has it in no state that is known."""
    blocks, scales = tensor_of(layer, f"{name}_blocks"), tensor_of(layer, f"{name}_scales")
    if blocks is not None and scales is not None:
        return from_mxfp4(blocks, scales)
    stored, precision = getattr(layer, name, None), getattr(layer, f"{name}_precision_config", None)
    scales = getattr(precision, "weight_scale", None)
    if stored is not None and scales is not None:
        return from_mxfp4(_in_order(name, stored).mT, _in_order(f"{name}'s scales", scales).mT)
    if isinstance(stored, Tensor) and stored.dtype == torch.uint8:
        raise ValueError(f"{name} has no scales: load the checkpoint first")
    if isinstance(stored, Tensor):
        raise ValueError(
            f"{name} has {stored.dtype}: transformers has dequantised the checkpoint, as it does without a "
            "GPU, without the package kernels, and with use_kernels=True"
        )
    raise ValueError(
        f"layer is a {type(layer).__name__} without the tensors of experts in mxfp4: {name}_blocks and "
        f"{name}_scales, or {name} and {name}_precision_config"
    )


def _in_order(name: str, stored: Any) -> Tensor:
    """Return a tensor of the hub's kernels in its order before they changed it, [E, K / 2 or K / 32, N].

    Raises ValueError for an object that says nothing of it.
    """
    storage = getattr(stored, "storage", None)
    data, layout = getattr(storage, "data", None), getattr(storage, "layout", None)
    undo = getattr(layout, "unswizzle_data", None)
    if not isinstance(data, Tensor) or undo is None:
        raise ValueError(
            f"{name} is a {type(stored).__name__}, whose layout ({type(layout).__name__}) has no "
            "unswizzle_data: its order in memory cannot be undone"
        )
    return cast(Tensor, undo(data))
