"""Why torch's own linear computes a call of a layer, as far as the tensors and torch's modes tell beforehand.

A kernel writes memory behind torch's back. Where torch would cast, shard, dequantise or record a call, only
its own linear does what torch.nn.Linear does.
"""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import Tensor, nn

PLAIN: Final[tuple[type, ...]] = (Tensor, nn.Parameter)
"""The types of tensors without a dispatch of their own, which need no further check."""
TRACERS: Final = "torch._subclasses."
"""The package of torch's fake and functional tensors, which stand for plain ones while torch traces."""
ACCUMULATOR_BYTES: Final = torch.float32.itemsize
"""A kernel adds up in float32: a product of this size is not rounded when it is written."""


def why_torch(input: Tensor, weight: Tensor, bias: Tensor | None) -> str:  # noqa: A002 - as torch calls it
    """Return why no kernel may compute a linear layer's call with these tensors; an empty string if one may.

    The kernel's own checks of types, strides and addresses are not made.
    """
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if tensor is not None and has_own_dispatch(tensor):
            return f"{name} is a {type(tensor).__name__}, for which torch's own operators have rules"
    if not torch.compiler.is_compiling() and cast(Any, torch).jit.is_tracing():
        return "torch.jit.trace records torch's own operators only"
    return _cast(input, weight, bias)


def has_own_dispatch(tensor: Tensor) -> bool:
    """Return True for a tensor of a class with rules of its own for torch's operators, as DTensor."""
    kind: Any = type(tensor)
    if kind in PLAIN:
        return False
    if torch.compiler.is_dynamo_compiling():  # which sees no fake tensors
        return True
    if kind.__module__.startswith(TRACERS):
        return False
    plain: Any = Tensor
    is_dispatched = kind.__torch_dispatch__ is not plain.__torch_dispatch__
    of_function = getattr(kind.__torch_function__, "__func__", None)
    return is_dispatched or of_function is not plain.__torch_function__.__func__


def _cast(input: Tensor, weight: Tensor, bias: Tensor | None) -> str:  # noqa: A002
    """Return which tensor torch's autocast would cast, as it does all floats but float64."""
    device = "cuda" if input.is_cuda else input.device.type  # the first is asked in a tenth of the time
    if device == "meta" or not torch.is_autocast_enabled(device):
        return ""
    wanted = torch.get_autocast_dtype(device)
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if tensor is None or tensor.dtype in (wanted, torch.float64) or not tensor.is_floating_point():
            continue
        return f"autocast casts {name} from {tensor.dtype} to {wanted}"
    return ""


def rounds_twice(dtype: torch.dtype) -> bool:
    """Return True if a product of this type is rounded, so that a bias added to it is rounded once more.

    The second rounding is small beside the product, and large beside a sum that nearly cancels: bf16 layers
    had elements with a relative error of 0.33, and torch's of 0.004.
    """
    return dtype.itemsize < ACCUMULATOR_BYTES
