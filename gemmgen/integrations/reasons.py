"""Why torch's own operator computes a call, as far as the tensors and torch's modes tell beforehand.

A kernel writes memory without torch's knowledge. If torch would cast, shard, dequantise or record a call,
only its own operator computes the call as torch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

PLAIN: Final[tuple[type, ...]] = (Tensor, nn.Parameter)
"""The types of tensors without a dispatch of their own, which need no further check."""
TRACERS: Final = "torch._subclasses."
"""The package of torch's fake and functional tensors, which stand for plain ones while torch traces."""
ACCUMULATOR_BYTES: Final = torch.float32.itemsize
"""A kernel adds up in float32: a product of this size is not rounded when it is written."""


Named: TypeAlias = Sequence[tuple[str, Tensor | None]]
"""The tensors of a call with their names; None for an operand that the call does not have."""


class Autocasting(NamedTuple):
    """A tensor whose type differs from the one that torch's autocast converts floats to."""

    name: str
    found: torch.dtype
    wanted: torch.dtype


def why_torch(input: Tensor, weight: Tensor, bias: Tensor | None) -> str:  # noqa: A002 - as torch calls it
    """Return why no kernel may compute a linear layer's call with these tensors; an empty string if one may.

    The kernel's own checks of types, strides and addresses are not made.
    """
    tensors = (("input", input), ("weight", weight), ("bias", bias))
    return _seen_by_torch(tensors) or _why_cast(tensors)


def why_torch_blocks(
    input: Tensor,  # noqa: A002 - as torch calls it
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
) -> str:
    """Return why no kernel may compute a linear layer with scales of blocks; an empty string if one may.

    Torch's autocast casts the input and the bias of such a layer. The kernel's own checks are not made.
    """
    cast_by_torch = (("input", input), ("bias", bias))
    return _seen_by_torch((*cast_by_torch, ("weight", weight), ("scales", scales))) or _why_cast(
        cast_by_torch
    )


def why_torch_experts(tensors: Named, packed: Named = ()) -> str:
    """Return why no kernel may compute the experts of a layer; an empty string if kernels may.

    Torch's autocast casts no tensor of a packed weight. The kernels' own checks of types, strides and
    addresses are not made.
    """
    if reason := _seen_by_torch((*tensors, *packed)) or _why_cast(tensors):
        return reason
    if torch.is_grad_enabled():
        for name, tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return f"{name} requires grad, and kernels have no backward"
    return ""


def why_torch_groups(mat_a: Tensor, mat_b: Tensor, offs: Tensor | None) -> str:
    """Return why no kernel may compute a call of torch's grouped_mm; an empty string if one may.

    The kernel's own checks of types, strides and addresses are not made.
    """
    tensors = (("mat_a", mat_a), ("mat_b", mat_b), ("offs", offs))
    if reason := _seen_by_torch(tensors):
        return reason
    if found := _cast(tensors):  # torch 2.13 casts no operand of grouped_mm, and a later release may
        return f"autocast is on: {found.name} is {found.found}, and it casts to {found.wanted}"
    return ""


def why_torch_scaled(tensors: Named) -> str:
    """Return why no kernel may compute a call with scales of blocks; an empty string if one may.

    Torch's autocast casts no operand of such a call. The kernel's own checks are not made.
    """
    return _seen_by_torch(tensors)


def _why_cast(tensors: Named) -> str:
    """Return which tensor torch's autocast casts, as a clause; empty if it casts none."""
    if found := _cast(tensors):
        return f"autocast casts {found.name} from {found.found} to {found.wanted}"
    return ""


def _seen_by_torch(tensors: Named) -> str:
    """Return which tensor has rules of its own for torch's operators, or whether torch records them."""
    for name, tensor in tensors:
        if tensor is not None and has_own_dispatch(tensor):
            return f"{name} is a {type(tensor).__name__}, for which torch's own operators have rules"
    if not torch.compiler.is_compiling() and cast(Any, torch).jit.is_tracing():
        return "torch.jit.trace records torch's own operators only"
    return ""


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


def _cast(tensors: Named) -> Autocasting | None:
    """Return the first tensor that torch's autocast casts, as it does all floats but float64."""
    first = cast(Tensor, tensors[0][1])
    device = "cuda" if first.is_cuda else first.device.type  # the first is asked in a tenth of the time
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    wanted = torch.get_autocast_dtype(device)
    for name, tensor in tensors:
        if tensor is None or tensor.dtype in (wanted, torch.float64) or not tensor.is_floating_point():
            continue
        return Autocasting(name, tensor.dtype, wanted)
    return None


def rounds_twice(dtype: torch.dtype) -> bool:
    """Return True if a product of this type is rounded, so that a bias added to it is rounded once more.

    The second rounding is small beside the product, and large beside a sum that nearly cancels: bf16 layers
    had elements with a relative error of 0.33, and torch's of 0.004.
    """
    return dtype.itemsize < ACCUMULATOR_BYTES
