"""Checks that a layer is a few parameters and nothing more, so that another layer can stand in its place.

A layer can hold more than its weight, its scales and its bias: hooks, buffers, adapters, a forward of its
own. A new layer that took over these parameters alone would drop the rest without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

FEATURES: Final = ("in_features", "out_features")
"""The attributes of a linear layer beside the attributes of every torch.nn.Module."""
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
"""Types of immutable values. An attribute of such a type cannot change the result of a plain forward."""


class Shape(NamedTuple):
    """The parts of a layer of one kind."""

    made: type[nn.Module]
    """The class of the new layer."""
    unknown: str
    """The end of the sentence about a layer of another class."""
    classes: Collection[type[nn.Module]] | None
    """Classes whose forward is known to be plain; None if the caller knows it of the layer at hand."""
    parameters: tuple[str, ...]
    """The names of its parameters."""
    optional: frozenset[str] = frozenset()
    """Names of parameters that it may lack altogether."""
    own: frozenset[str] = frozenset()
    """Attributes that each layer of its class has and a torch.nn.Linear lacks."""


def more_than_plain(layer: nn.Module, shape: Shape) -> str:
    """Return the parts of a layer beside its parameters, as a clause; empty if there are none.

    Attributes that ``data_attributes`` returns do not count as more, because a new layer can have them too.
    The parameters' own types and shapes are not looked at (``not_plain``).
    """
    return (
        _class(layer, shape)
        or _forward(layer)
        or _parameters(layer, shape)
        or _containers(layer)
        or _attributes(layer, shape)
    )


def data_attributes(layer: nn.Module, shape: Shape) -> dict[str, Any]:
    """Return the attributes that someone put on a layer and that are plain values: marks, names, numbers.

    Libraries mark layers so, for example ``_is_hf_initialized`` of transformers. Neither attributes of a
    linear layer's own are among them, nor attributes of `shape`, nor any that hides one of the class.
    """
    return {
        name: value
        for name, value in _added(layer, shape).items()
        if _is_data(value) and not hasattr(nn.Linear, name)
    }


def registered(layer: nn.Module) -> dict[str, Tensor | None]:
    """Return the parameters of a layer in its order, also those that are None."""
    return cast(Any, layer)._parameters


def not_plain(name: str, tensor: Tensor | None) -> str:
    """Return in which way a parameter is not a dense tensor without rules of its own; empty if it is one."""
    # A subclass can compute otherwise (DTensor, quantised) or have no shape yet (uninitialised).
    if type(tensor) is not nn.Parameter:
        return f"{name} is a {_class_name(tensor)}, not a plain parameter"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"{name} is stored as {tensor.layout} {tensor.dtype}, not as a dense tensor"
    return ""


def other_shape(layer: nn.Module, name: str, default: tuple[int, ...]) -> str:
    """Return in which way a parameter has another shape than the features of the layer say; empty if not.

    `default` has the features of a layer that states none, the columns after the rows. A parameter of one
    dimension has as many elements as the layer has output features.
    """
    tensor = cast(Tensor, registered(layer)[name])
    wanted = tuple(vars(layer).get(key, size) for key, size in zip(reversed(FEATURES), default, strict=True))
    wanted = wanted if name == "weight" else wanted[:1]
    if tensor.shape == wanted:
        return ""
    return f"{name} has shape {list(tensor.shape)}, and the layer's features say {list(wanted)}"


def hooked(layer: nn.Module) -> str:
    """Return which hook of a layer a new one would not call, as a clause; empty if it has none.

    Hooks of state dicts are not among them.
    """
    for name, words in HELD.items():
        if ("_forward" in name or "_backward" in name) and vars(layer)[name]:
            return f"layer has {words}"
    return ""


def patched_forward(layer: nn.Module) -> str:
    """Return which call of a layer, set on itself, a new one would not make, as a clause; empty if none."""
    if "forward" in vars(layer) and not _is_own_forward(layer, vars(layer)["forward"]):
        return "layer has a patched forward: it would not be called"
    if vars(layer).get("_compiled_call_impl") is not None:
        return "layer is compiled by its compile(): the compiled call would be lost"
    return ""


def _is_data(value: object) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_data, cast("Collection[object]", value)))
    return type(value) in DATA


def _added(layer: nn.Module, shape: Shape) -> dict[str, Any]:
    """Return the attributes of a layer that a new one does not have and the shape does not name."""
    plain = {*vars(nn.Module()), *FEATURES, *shape.own}
    absent = {name for name in shape.optional if vars(layer).get(name, "") is None}  # as if it were no name
    return {name: value for name, value in vars(layer).items() if name not in plain | absent}


def _class(layer: nn.Module, shape: Shape) -> str:
    """Return why the class of a layer may do more than a product; empty if it is known to do nothing else."""
    if parametrize.is_parametrized(layer):
        return "layer is parametrized: its parametrizations would be lost"
    if shape.classes is not None and type(layer) not in shape.classes:
        return f"layer is a {_class_name(layer)}, {shape.unknown}"
    if cast(Any, type(layer)).__call__ is not cast(Any, shape.made).__call__:
        return f"{_class_name(layer)} has a __call__ of its own: it would not be called"
    return ""


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _forward(layer: nn.Module) -> str:
    """Return whose forward, other than its class's from the start, a call of the layer would run."""
    # A function keeps the globals of the file that defines it, even if functools.wraps renames it.
    of_torch = getattr(nn.Linear.forward, "__globals__", None) is vars(torch.nn.modules.linear)
    if isinstance(layer, nn.Linear) and not of_torch:
        return "torch.nn.Linear has a patched forward: it would not be called"
    return patched_forward(layer)


def _is_own_forward(layer: nn.Module, forward: object) -> bool:
    """Return whether this is the method of the layer's class: accelerate sets it when it removes a hook."""
    of_layer = getattr(forward, "__self__", None) is layer
    return of_layer and getattr(forward, "__func__", None) is type(layer).forward


def _parameters(layer: nn.Module, shape: Shape) -> str:
    names = registered(layer)
    # A name without a parameter, as transformers' fp8 layers have one, is nothing to be lost.
    if others := [
        name for name, found in names.items() if name not in shape.parameters and found is not None
    ]:
        return f"layer has other parameters ({', '.join(others)}): they would be lost"
    for name in shape.parameters:
        is_absent = name in shape.optional and getattr(layer, name, None) is None
        if name not in names and not is_absent:
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


def _attributes(layer: nn.Module, shape: Shape) -> str:
    kept = data_attributes(layer, shape).keys() | {"forward"}  # which is judged by then
    lost = [name for name in _added(layer, shape) if name not in kept]
    return f"layer has other attributes ({', '.join(lost)}): they would be lost" if lost else ""
