"""Kernels in place of layers of a model, and a report of the layers that stay as they are.

One walk replaces layers of all classes: they are left for the same reasons, and reported in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, MutableMapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, cast

from torch import Tensor, nn

from gemmgen.integrations.block_scaled_linear import SCALES, BlockScaledLinear
from gemmgen.integrations.kernels import BIAS, Kernel, name_of
from gemmgen.integrations.layer import LayerError, ParameterLayer
from gemmgen.integrations.linear import Linear


class LinearLeftWarning(UserWarning):
    """A function left layers of a model as they are that it was meant to replace; the message says why."""


NAMES_TOLD: Final = 3
"""Most names of layers that a warning gives for one reason."""
REASONS_TOLD: Final = 5
"""Most reasons that a warning gives."""


class _Place(NamedTuple):
    """Where a layer is in a model."""

    parent: nn.Module | None
    """The module that has the layer as a child; None if the layer is the model itself."""
    attribute: str
    layer: nn.Module
    names: tuple[str, ...]
    """Qualified, as of ``named_modules``, one for each name of the parent; empty for the model itself."""


class Replacement(int):
    """How many layers of a model were replaced, with the names of all that it found.

    Names are qualified, as of ``named_modules``; a layer at several places has one for each.
    """

    replaced: tuple[str, ...]
    """The names of the layers that the kernel computes now."""
    left: Mapping[str, str]
    """Why each other layer of the kind that was looked for stays as it is, by its name."""

    def __new__(
        cls, count: int, replaced: tuple[str, ...] = (), left: Mapping[str, str] | None = None
    ) -> Self:
        """Return the number of new layers with the names of their places, and the reasons for the others."""
        found = super().__new__(cls, count)
        found.replaced, found.left = replaced, MappingProxyType(dict(left or {}))
        return found


class _Search(NamedTuple):
    """The layers that a function of this file replaces, and the class that takes their place."""

    function: str
    """The name of the function, in messages."""
    made: type[ParameterLayer]
    what: str
    """The layers that are looked for, in messages."""
    is_found: Callable[[nn.Module], bool]


def replace_linear(
    model: nn.Module,
    kernel: Kernel,
    *,
    only: Callable[[str], bool] | None = None,
    left: MutableMapping[str, str] | None = None,
    classes: Collection[type[nn.Module]] = (),
) -> Replacement:
    """Let a kernel compute the linear layers of a model; return how many were replaced, and which.

    `only` says by the qualified name whether a layer is meant; all are without it. Parameters stay the same
    objects. A layer that is at several places of the model is replaced by one new layer at all of them that
    are meant, and counts once. A child of a parent that has several names is meant if one of them is.

    `classes` are classes of layers beside torch.nn.Linear that are replaced too: the caller answers for their
    forward, that it is input @ weight.T + bias. A subclass of a class must be named itself.

    Layers that ``Linear.of`` refuses stay as they are, and so do those with a bias that the kernel would add
    to a rounded product. A LinearLeftWarning says which and why, also if nothing was replaced and no layer
    had a kernel before. With `left` nothing is warned of: the reasons are put there too, by qualified name,
    for every torch.nn.Linear that is not replaced. These include layers that `only` does not mean, that have
    no bias for a kernel with one, or that a kernel computes already; a warning names them only if nothing
    else is to be told.

    Raises ValueError for a kernel as the constructor of ``Linear``. The model is then as it was.
    """

    def is_found(layer: nn.Module) -> bool:
        return isinstance(layer, nn.Linear) or type(layer) in classes

    search = _Search("replace_linear", Linear, "torch.nn.Linear", is_found)
    return _replaced(search, model, kernel, only, left, classes)


def replace_block_scaled_linear(
    model: nn.Module,
    kernel: Kernel,
    *,
    only: Callable[[str], bool] | None = None,
    left: MutableMapping[str, str] | None = None,
    classes: Collection[type[nn.Module]] = (),
) -> Replacement:
    """Let a kernel compute the layers of a model whose weights have scales of blocks.

    Layers with a tensor ``weight_scale_inv`` are found, as engines and models have them for checkpoints with
    scales of blocks. `classes` are the classes of these layers whose forward is the product with the
    dequantised weight, and the bias: the caller answers for it. A layer of any other class stays as it is,
    because its forward may do more, for example add up over ranks, or return a pair.

    `only`, `left`, the warnings and the result are as of `replace_linear`. Layers that
    ``BlockScaledLinear.of`` refuses stay as they are.

    Raises ValueError for a kernel as the constructor of `BlockScaledLinear`. The model is then as it was.
    """

    def is_found(layer: nn.Module) -> bool:
        return isinstance(getattr(layer, SCALES, None), Tensor) or type(layer) in classes

    search = _Search("replace_block_scaled_linear", BlockScaledLinear, f"layer with {SCALES}", is_found)
    return _replaced(search, model, kernel, only, left, classes)


def replace_layers(
    model: nn.Module,
    kernel: Kernel,
    *,
    only: Callable[[str], bool] | None,
    left: MutableMapping[str, str],
    classes: Collection[type[nn.Module]],
) -> Replacement:
    """Let a kernel compute the layers of the kind that it is for: with scales of blocks, or plain ones.

    `classes` are layers with such scales. The rest is as of the two functions above.
    """
    if _has_blocks(kernel):
        return replace_block_scaled_linear(model, kernel, only=only, left=left, classes=classes)
    return replace_linear(model, kernel, only=only, left=left)


def require_kernel_of_layers(kernel: Kernel) -> None:
    """Raise ValueError for a kernel that computes no linear layer of either kind."""
    (BlockScaledLinear if _has_blocks(kernel) else Linear).adds_bias(kernel)


def _has_blocks(kernel: Kernel) -> bool:
    return bool(getattr(kernel, "COMPUTES", {}).get("scale_vector"))


def _replaced(
    search: _Search,
    model: nn.Module,
    kernel: Kernel,
    only: Callable[[str], bool] | None,
    left: MutableMapping[str, str] | None,
    classes: Collection[type[nn.Module]],
) -> Replacement:
    """Replace the layers of a model that are found and meant, and report the others."""
    adds_bias = search.made.adds_bias(kernel)
    made: dict[int, ParameterLayer | str] = {}
    expected: dict[str, str] = {}
    surprising: dict[str, str] = {}
    placed: list[tuple[_Place, str, ParameterLayer]] = []
    had_kernels = False
    for place in _places(model, search.is_found):
        layer = place.layer
        meant = [name for name in place.names if only is None or place.parent is None or only(name)]
        name = (meant or place.names)[0]
        if isinstance(layer, search.made):
            had_kernels = True
            expected[name] = f"{layer.kernel_name} computes the layer already"
        elif place.parent is None:
            use = f"use {search.made.__name__}.of"
            surprising[name] = f"the model is itself the layer, and nothing holds it: {use}"
        elif not meant:
            expected[name] = "`only` does not mean the layer"
        elif adds_bias and cast("Tensor | None", getattr(layer, "bias", None)) is None:
            expected[name] = f"{name_of(kernel)} needs {BIAS}, and the layer has no bias"
        else:
            if id(layer) not in made:
                made[id(layer)] = _made_of(search.made, layer, kernel, classes)
            found = made[id(layer)]
            if isinstance(found, ParameterLayer):
                placed.append((place, name, found))
            else:
                surprising[name] = found
    # First what may raise: a model is replaced as a whole or stays as it was.
    of_caller = 3
    if left is not None:
        left.update(expected | surprising)
    elif surprising:
        warnings.warn(_told(search, surprising), LinearLeftWarning, stacklevel=of_caller)
    elif not placed and not had_kernels:
        told = _told(search, expected) if expected else f"the model has no {search.what}"
        text = f"{search.function} replaced nothing: {told}"
        warnings.warn(text, LinearLeftWarning, stacklevel=of_caller)
    for place, _, new in placed:
        setattr(place.parent, place.attribute, new)
    names = tuple(name for _, name, _ in placed)
    return Replacement(len({id(new) for _, _, new in placed}), names, expected | surprising)


def _places(model: nn.Module, is_found: Callable[[nn.Module], bool]) -> list[_Place]:
    """Return every place of a layer that is found, once, also if the same layer is there again."""
    found: dict[tuple[int, str], _Place] = {}
    if is_found(model):
        found[0, ""] = _Place(None, "", model, ("",))
    parents: list[tuple[str, nn.Module]] = cast(Any, model).named_modules(remove_duplicate=False)
    for prefix, parent in parents:
        children: Mapping[str, nn.Module | None] = cast(Any, parent)._modules
        for attribute, child in children.items():
            if child is not None and is_found(child):
                key, name = (id(parent), attribute), f"{prefix}.{attribute}".lstrip(".")
                names = (*found[key].names, name) if key in found else (name,)
                found[key] = _Place(parent, attribute, child, names)
    return list(found.values())


def _made_of(
    made: type[ParameterLayer], layer: nn.Module, kernel: Kernel, classes: Collection[type[nn.Module]]
) -> ParameterLayer | str:
    """Return the layer of a kernel, or why there is none."""
    try:
        new = made.in_place_of(layer, kernel, classes)
    except LayerError as error:
        return str(error)
    return new.why_never() or new


def _told(search: _Search, reasons: Mapping[str, str]) -> str:
    """Return the message for layers that are left: by reason, some of their names, then how many more."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name or "(the model)")
    lines = [f"{search.function} left linear layers as they are ({len(reasons)})"]
    for reason, names in islice(by_reason.items(), REASONS_TOLD):
        more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
        lines.append(f"  {', '.join(names[:NAMES_TOLD])}{more}: {reason}")
    if len(by_reason) > REASONS_TOLD:
        lines.append(f"  and {len(by_reason) - REASONS_TOLD} more reasons")
    return "\n".join([*lines, "Pass left={...}, a dict, to get every name with its reason and no warning."])
