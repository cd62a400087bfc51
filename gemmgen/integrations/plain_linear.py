"""Checks that a layer is a torch.nn.Linear and nothing more, so that another layer can stand in its place.

A layer can hold more than its weight and bias: hooks, buffers, adapters, a forward of its own. A new layer
that took over the two parameters alone would drop the rest without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

FEATURES: Final = ("in_features", "out_features")
"""The attributes of torch.nn.Linear beside the attributes of every torch.nn.Module."""
STATE_OF_ITS_OWN: Final = frozenset({"training", "_parameters", "_is_full_backward_hook"})
"""Attributes of torch.nn.Module that are judged apart, or that say nothing while there is no hook."""
HELD: Final[Mapping[str, str]] = {
    "_modules": "child modules ({}): they would be lost",
    "_buffers": "buffers ({}): they would be lost",
    "_forward_pre_hooks": "a forward pre-hook: it would not be called",
    "_forward_hooks": "a forward hook: it would not be called",
    "_backward_pre_hooks": "a backward pre-hook: it would not be called",
    "_backward_hooks": "a backward hook: it would not be called",
    "_state_dict_pre_hooks": "a state-dict pre-hook: it would not be called",
    "_state_dict_hooks": "a state-dict hook: it would not be called",
    "_load_state_dict_pre_hooks": "a load-state-dict pre-hook: it would not be called",
    "_load_state_dict_post_hooks": "a load-state-dict post-hook: it would not be called",
}
"""The words for a container of torch.nn.Module that is not empty, by the container's attribute."""
DATA: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout}
)
"""Types of immutable values. An attribute that is one cannot change what torch.nn.Linear.forward computes."""


def more_than_linear(layer: nn.Module, kind: type[nn.Linear] = nn.Linear, own: Collection[str] = ()) -> str:
    """Return the parts of a layer beside a torch.nn.Linear's weight and bias, as a clause; empty if none.

    `kind` is the class that it must have, and `own` names the attributes that each layer of that class has
    and a torch.nn.Linear lacks. Attributes that ``data_attributes`` returns do not count as more, because a
    new layer can have them too.
    """
    return (
        _class(layer, kind)
        or _forward(layer)
        or _parameters(layer)
        or _containers(layer)
        or _attributes(layer, own)
        or _tensors(layer)
    )


def data_attributes(layer: nn.Module, own: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes that someone put on a layer and that are plain values: marks, names, numbers.

    Libraries mark layers so, for example ``_is_hf_initialized`` of transformers. Neither attributes of a
    torch.nn.Linear's own are among them, nor those in `own`, nor any that hides an attribute of the class.
    """
    return {
        name: value
        for name, value in _added(layer, own).items()
        if type(value) in DATA and not hasattr(nn.Linear, name)
    }


def registered(layer: nn.Module) -> dict[str, Tensor | None]:
    """Return the parameters of a layer in its order, also those that are None."""
    return cast(Any, layer)._parameters


def _added(layer: nn.Module, own: Collection[str]) -> dict[str, Any]:
    """Return the attributes of a layer that a new torch.nn.Linear does not have and `own` does not name."""
    plain = {*vars(nn.Module()), *FEATURES, *own}
    return {name: value for name, value in vars(layer).items() if name not in plain}


def _class(layer: nn.Module, kind: type[nn.Linear]) -> str:
    if type(layer) is kind:
        return ""
    if parametrize.is_parametrized(layer):
        return "layer is parametrized: its parametrizations would be lost"
    return f"layer is a {_class_name(layer)}, not a torch.nn.Linear"


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _forward(layer: nn.Module) -> str:
    """Return whose forward, other than its class's from the start, a call of the layer would run."""
    # A function keeps the globals of the file that defines it, even if functools.wraps renames it.
    if getattr(nn.Linear.forward, "__globals__", None) is not vars(torch.nn.modules.linear):
        return "torch.nn.Linear has a patched forward: it would not be called"
    if "forward" in vars(layer) and not _is_own_forward(layer, vars(layer)["forward"]):
        return "layer has a patched forward: it would not be called"
    if vars(layer).get("_compiled_call_impl") is not None:
        return "layer is compiled by its compile(): the compiled call would be lost"
    return ""


def _is_own_forward(layer: nn.Module, forward: object) -> bool:
    """Return whether this is the method of the layer's class: accelerate sets it when it removes a hook."""
    of_layer = getattr(forward, "__self__", None) is layer
    return of_layer and getattr(forward, "__func__", None) is type(layer).forward


def _parameters(layer: nn.Module) -> str:
    names = registered(layer)
    if others := [name for name in names if name not in ("weight", "bias")]:
        return f"layer has other parameters ({', '.join(others)}): they would be lost"
    for name in ("weight", "bias"):
        if name not in names:
            return f"{name} is not a parameter of the layer"
    return ""


def _containers(layer: nn.Module) -> str:
    """Return which container of torch.nn.Module has entries, by its attribute if a later torch added it."""
    empty = vars(nn.Module())
    judged = empty.keys() - STATE_OF_ITS_OWN
    held = [name for name, value in vars(layer).items() if name in judged and value != empty[name]]
    for name, words in HELD.items():
        if name in held:
            return f"layer has {words.format(', '.join(map(str, vars(layer)[name])))}"
    return f"layer has entries in {held[0]}: they would be lost" if held else ""


def _attributes(layer: nn.Module, own: Collection[str]) -> str:
    kept = data_attributes(layer, own).keys() | {"forward"}  # which is judged by then
    lost = [name for name in _added(layer, own) if name not in kept]
    return f"layer has other attributes ({', '.join(lost)}): they would be lost" if lost else ""


def _tensors(layer: nn.Module) -> str:
    """Return in which way the weight or the bias is not a dense tensor of the layer's own shape."""
    weight_shape = tuple(vars(layer).get(name) for name in reversed(FEATURES))
    for name, shape in (("weight", weight_shape), ("bias", weight_shape[:1])):
        tensor = registered(layer)[name]
        if tensor is None and name == "bias":
            continue
        # A subclass can compute otherwise (DTensor, quantised) or have no shape yet (uninitialised).
        if type(tensor) is not nn.Parameter:
            return f"{name} is a {_class_name(tensor)}, not a plain parameter"
        if tensor.layout != torch.strided or tensor.is_quantized:
            return f"{name} is stored as {tensor.layout} {tensor.dtype}, not as a dense tensor"
        if tensor.shape != shape:
            return f"{name} has shape {list(tensor.shape)}, and the layer's features say {list(shape)}"
    return ""
