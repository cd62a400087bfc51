"""Kernels in place of the linear layers of a model, and a report of the layers that stay as they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, MutableMapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, cast

from torch import Tensor, nn

from gemmgen.integrations.kernels import BIAS, Kernel, name_of, require_plain
from gemmgen.integrations.linear import LayerError, Linear


class LinearLeftWarning(UserWarning):
    """``replace_linear`` left layers as they are that it was meant to replace; the message says why."""


NAMES_TOLD: Final = 3
"""Most names of layers that a warning gives for one reason."""
REASONS_TOLD: Final = 5
"""Most reasons that a warning gives."""


class _Place(NamedTuple):
    """Where a linear layer is in a model."""

    parent: nn.Module | None
    """The module that has the layer as a child; None if the layer is the model itself."""
    attribute: str
    layer: nn.Linear
    names: tuple[str, ...]
    """Qualified, as of ``named_modules``, one for each name of the parent; empty for the model itself."""


class Replacement(int):
    """How many layers ``replace_linear`` replaced, with the names of all that it found.

    Names are qualified, as of ``named_modules``; a layer at several places has one for each.
    """

    replaced: tuple[str, ...]
    """The names of the layers that the kernel computes now."""
    left: Mapping[str, str]
    """Why each other torch.nn.Linear stays as it is, by its name."""

    def __new__(
        cls, count: int, replaced: tuple[str, ...] = (), left: Mapping[str, str] | None = None
    ) -> Self:
        """Return the number of new layers with the names of their places, and the reasons for the others."""
        found = super().__new__(cls, count)
        found.replaced, found.left = replaced, MappingProxyType(dict(left or {}))
        return found


def replace_linear(
    model: nn.Module,
    kernel: Kernel,
    *,
    only: Callable[[str], bool] | None = None,
    left: MutableMapping[str, str] | None = None,
) -> Replacement:
    """Let a kernel compute the linear layers of a model; return how many were replaced, and which.

    `only` says by the qualified name whether a layer is meant; all are without it. Parameters stay the same
    objects. A layer that is at several places of the model is replaced by one new layer at all of them that
    are meant, and counts once. A child of a parent that has several names is meant if one of them is.

    Layers that ``Linear.of`` refuses stay as they are, and so do those with a bias that the kernel would add
    to a rounded product. A LinearLeftWarning says which and why, also if nothing was replaced and no layer
    had a kernel before. With `left` nothing is warned of: the reasons are put there too, by qualified name,
    for every torch.nn.Linear that is not replaced. These include layers that `only` does not mean, that have
    no bias for a kernel with one, or that a kernel computes already; a warning names them only if nothing
    else is to be told.

    Raises ValueError for a kernel as the constructor of ``Linear``. The model is then as it was.
    """
    fused = require_plain(kernel, bias=True)
    made: dict[int, Linear | str] = {}
    expected: dict[str, str] = {}
    surprising: dict[str, str] = {}
    placed: list[tuple[_Place, str, Linear]] = []
    had_kernels = False
    for place in _linear_layers(model):
        layer = place.layer
        meant = [name for name in place.names if only is None or place.parent is None or only(name)]
        name = (meant or place.names)[0]
        if isinstance(layer, Linear):
            had_kernels = True
            expected[name] = f"{layer._kernel_name} computes the layer already"  # pyright: ignore[reportPrivateUsage]
        elif place.parent is None:
            surprising[name] = "the model is itself the layer, and nothing holds it: use Linear.of"
        elif not meant:
            expected[name] = "`only` does not mean the layer"
        elif fused and cast("Tensor | None", getattr(layer, "bias", None)) is None:
            expected[name] = f"{name_of(kernel)} needs {BIAS}, and the layer has no bias"
        else:
            if id(layer) not in made:
                made[id(layer)] = _made_of(layer, kernel)
            found = made[id(layer)]
            if isinstance(found, Linear):
                placed.append((place, name, found))
            else:
                surprising[name] = found
    # First what may raise: a model is replaced as a whole or stays as it was.
    if left is not None:
        left.update(expected | surprising)
    elif surprising:
        warnings.warn(_told(surprising), LinearLeftWarning, stacklevel=2)
    elif not placed and not had_kernels:
        told = _told(expected) if expected else "the model has no torch.nn.Linear"
        warnings.warn(f"replace_linear replaced nothing: {told}", LinearLeftWarning, stacklevel=2)
    for place, _, new in placed:
        setattr(place.parent, place.attribute, new)
    names = tuple(name for _, name, _ in placed)
    return Replacement(len({id(new) for _, _, new in placed}), names, expected | surprising)


def _linear_layers(model: nn.Module) -> list[_Place]:
    """Return every place of a linear layer, once, also if the same layer is there again."""
    found: dict[tuple[int, str], _Place] = {}
    if isinstance(model, nn.Linear):
        found[0, ""] = _Place(None, "", model, ("",))
    parents: list[tuple[str, nn.Module]] = cast(Any, model).named_modules(remove_duplicate=False)
    for prefix, parent in parents:
        children: Mapping[str, nn.Module | None] = cast(Any, parent)._modules
        for attribute, child in children.items():
            if isinstance(child, nn.Linear):
                key, name = (id(parent), attribute), f"{prefix}.{attribute}".lstrip(".")
                names = (*found[key].names, name) if key in found else (name,)
                found[key] = _Place(parent, attribute, child, names)
    return list(found.values())


def _made_of(layer: nn.Linear, kernel: Kernel) -> Linear | str:
    """Return the layer of a kernel, or why there is none."""
    try:
        made = Linear.of(layer, kernel)
    except LayerError as error:
        return str(error)
    return made.why_never() or made


def _told(reasons: Mapping[str, str]) -> str:
    """Return the message for layers that are left: by reason, some of their names, then how many more."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name or "(the model)")
    lines = [f"replace_linear left linear layers as they are ({len(reasons)})"]
    for reason, names in islice(by_reason.items(), REASONS_TOLD):
        more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
        lines.append(f"  {', '.join(names[:NAMES_TOLD])}{more}: {reason}")
    if len(by_reason) > REASONS_TOLD:
        lines.append(f"  and {len(by_reason) - REASONS_TOLD} more reasons")
    return "\n".join([*lines, "Pass left={...}, a dict, to get every name with its reason and no warning."])
