"""The experts of gpt-oss in mxfp4 in a model of transformers, which has a class of its own for them.

There, a layer's MLP does not call its router: the hub's kernels in Triton route tokens themselves. Other
kernels need the router's choice, so the MLP becomes the one that transformers has for experts in bf16.
Transformers 5.24 has a class for the first one, and earlier releases replace the method of an MLP.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, cast

from torch import nn

from gemmgen.integrations.experts import Experts
from gemmgen.integrations.packed_experts import PackedExperts
from gemmgen.integrations.plain_layer import patched_forward

FILE: Final = "transformers.integrations.mxfp4"
HAS_KERNELS: Final = "it is a PackedExperts, which has kernels already"
MODELS: Final = "transformers.models.gpt_oss.modeling_gpt_oss"


def replace_mxfp4_experts(model: nn.Module, experts: Experts | None) -> tuple[list[str], dict[str, str]]:
    """Put a `PackedExperts` in the place of each layer of experts in mxfp4.

    Returns the names of the replaced layers, and why each other one stays, by its name. One layer is replaced
    after the other, so that the memory of each is free before the next one is packed.
    """
    known = class_of(FILE, "Mxfp4GptOssExperts")
    replaced, left = list[str](), dict[str, str]()
    named: list[tuple[str, nn.Module]] = [*cast(Any, model).named_modules()]
    names = [name for name, layer in named if type(layer) is known]
    left |= {name: HAS_KERNELS for name, layer in named if isinstance(layer, PackedExperts)}
    del named
    for name in names:
        reason = "no kernel for experts was given" if experts is None else _replace(model, name, experts)
        if reason:
            left[name] = reason
        else:
            replaced.append(name)
    return replaced, left


def class_of(file: str, name: str) -> type[nn.Module] | None:
    """Return a class of transformers; None if this release has none of that name."""
    try:
        return getattr(import_module(file), name)
    except (ImportError, AttributeError):
        return None


def _replace(model: nn.Module, name: str, experts: Experts) -> str:
    """Replace the layer of a name; return why it is left, or an empty string."""
    if not name:
        return "it is the whole model: PackedExperts.of(layer, experts) is a layer for its place"
    of_mlp, _, attribute = name.rpartition(".")
    mlp = model.get_submodule(of_mlp)
    if reason := _why_not_mlp(mlp):
        return reason
    try:
        made = PackedExperts.of(model.get_submodule(name), experts)
    except ValueError as error:
        return str(error)
    setattr(mlp, attribute, made)
    _let_route(mlp)
    return ""


def _why_not_mlp(mlp: nn.Module) -> str:
    """Return why an MLP cannot call its router and then its experts; an empty string if it can."""
    plain = class_of(MODELS, "GptOssMLP")
    if plain is None or type(mlp) not in (plain, class_of(FILE, "Mxfp4GptOssMLP")):
        return f"it belongs to a {type(mlp).__name__}, which is no MLP of gpt-oss"
    return "" if _has_their_forward(mlp) else patched_forward(mlp).replace("layer", "its MLP", 1)


def _has_their_forward(mlp: nn.Module) -> bool:
    """Return True if transformers has put its function for mxfp4 in place of the method."""
    function: Any = getattr(vars(mlp).get("forward"), "__func__", None)
    return getattr(function, "__module__", None) == FILE


def _let_route(mlp: nn.Module) -> None:
    """Let an MLP call its router, and its experts with the router's choice.

    It stays the same object, with its parts and its hooks.
    """
    vars(mlp).pop("forward", None)
    mlp.__class__ = cast("type[nn.Module]", class_of(MODELS, "GptOssMLP"))
