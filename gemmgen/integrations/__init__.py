"""Generated kernels where torch has a place for them: layers, Inductor's choices, and a question beforehand.

A kernel is a generated module, or anything else with a ``matmul(a, b, *, out=None)`` that refuses what it
does not take with a TypeError or a ValueError, in words and before anything is launched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, MutableMapping
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemmgen.integrations.plain_linear import data_attributes, more_than_linear, registered

BIAS = "column_bias"
"""What modules call a summand for each column."""
Kernel: TypeAlias = Any
"""A generated module, or what else has such a ``matmul``."""


def can_implement(
    kernel: Kernel, a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor
) -> tuple[bool, str]:
    """Return whether a generated module's ``matmul`` takes these tensors, and what it would say if not.

    Nothing is launched. A [M, K], B [K, N] and `out` [M, N] are as ``matmul`` takes them, `extras` what else
    its spec asks for, by name. The module's own checks of each argument in its table are made, and those of
    the problem as a whole: compute capability, rows of `out` that TMA can write, extents of a single tile.
    """
    host = getattr(kernel, "call", None)
    if not hasattr(host, "fault"):
        return False, f"{_name(kernel)} has no table of arguments: it is no generated module"
    wanted: tuple[str, ...] = kernel.COMPUTES["inputs"]
    given = {"a": a, "b": b, **extras} | ({} if out is None else {"out": out})
    if unknown := given.keys() - {*wanted, "out"}:
        return False, f"{_name(kernel)} takes no {', '.join(sorted(unknown))}"
    if missing := {*wanted} - given.keys():
        return False, f"{_name(kernel)} needs {', '.join(sorted(missing))}"
    reason: str = cast(Any, host).fault(given)
    return not reason, reason


def _name(kernel: Kernel) -> str:
    return str(getattr(kernel, "__name__", type(kernel).__name__))


REFUSALS: Final = (TypeError, ValueError, RuntimeError)
"""What a kernel raises for a call that it does not take."""


def _raise_unless_refused(error: Exception) -> None:
    """Raise a RuntimeError again, unless torch's deterministic mode is on, in which it is a refusal.

    Torch raises that type for an operation without a deterministic implementation, and so do kernels.
    """
    if isinstance(error, RuntimeError) and not torch.are_deterministic_algorithms_enabled():
        raise error


# --- Inductor


def external_matmul(kernel: Kernel, name: str | None = None) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Return an ``f(a, b, out)`` for ``torch._inductor.config.external_matmul``.

    Inductor then times it beside its own choices, where it chooses by time (``max_autotune_gemm``). What the
    kernel does not take is computed by ``torch.mm``. `name`, the kernel's by default, is what generated code
    calls it, and no two functions of a process can have the same.

    Raises ValueError if the kernel computes more than a @ b.
    """
    _require_plain(kernel, bias=False)
    matmul = kernel.matmul

    def function(a: Tensor, b: Tensor, out: Tensor) -> None:
        try:
            matmul(a, b, out=out)
        except REFUSALS as error:
            _raise_unless_refused(error)
            torch.mm(a, b, out=out)

    function.__name__ = function.__qualname__ = f"gemmgen_{name or _name(kernel)}"
    function.__doc__ = f"Write a @ b to out, by {_name(kernel)} where it takes the tensors."
    return function


# --- layers


class _LayerError(ValueError):
    """A layer that cannot become one of a kernel, whichever kernel that would be."""


class Linear(nn.Linear):
    """A ``torch.nn.Linear`` that a generated kernel computes, with the same parameters and state dict.

    Where the kernel does not take a call ``torch.nn.functional.linear`` computes it, and `reason` says why:
    something requires grad and the kernel has no backward, has another type, is on a CPU. A bias is the
    kernel's if it has one (``column_bias``), else torch adds it.
    """

    reason: str
    """Why the last call was not the kernel's; empty if it was, or before the first."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        kernel: Kernel,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer as ``torch.nn.Linear`` does.

        Raises ValueError if the kernel computes something else than a @ b, or than that and a bias.
        """
        cast(Any, super()).__init__(in_features, out_features, bias, device, dtype)
        self._use(kernel)

    @classmethod
    def of(cls, linear: nn.Linear, kernel: Kernel) -> Linear:
        """Return a layer that shares the parameters of another one, and has its mode and its marks.

        `linear` must be a torch.nn.Linear and nothing more, or a layer of this class, which so gets another
        kernel. Its attributes that are plain values (a bool, a number, a string) are copied.

        Raises ValueError as the constructor does, and for a layer with anything that the new one would not
        have: a hook, a forward of its own, further parameters, buffers, children or attributes, a weight that
        is a tensor of another class or shape.
        """
        bound = type(linear) is Linear
        kind, own = (Linear, linear._of_kernel) if bound else (nn.Linear, frozenset[str]())
        if reason := more_than_linear(linear, kind, own):
            raise _LayerError(reason)
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.in_features, layer.out_features = linear.in_features, linear.out_features
        for name, parameter in registered(linear).items():  # in its order, by which optimizers save state
            layer.register_parameter(name, cast("nn.Parameter | None", parameter))
        layer.train(linear.training)
        layer._use(kernel)
        for name, value in data_attributes(linear, own).items():
            if hasattr(layer, name):
                raise _LayerError(f"layer has an attribute {name}, a name that {cls.__name__} uses itself")
            setattr(layer, name, value)
        return layer

    def _use(self, kernel: Kernel) -> None:
        before = frozenset(vars(self))
        self._fused = _require_plain(kernel, bias=True)
        if self._fused and cast("Tensor | None", self.bias) is None:
            raise ValueError(f"{_name(kernel)} needs {BIAS}, and the layer has no bias")
        table: Mapping[str, tuple[Any, ...]] = getattr(kernel, "ARGUMENTS", {})
        self._dtype = table["a"][0] if table else None
        if table and table["out"][0] != self._dtype:
            raise ValueError(
                f"{_name(kernel)} makes {table['out'][0]} of {self._dtype}, as no linear layer does"
            )
        # Not the module itself, of which no copy can be made, and so none of the layer.
        self._matmul: Callable[..., Tensor] = kernel.matmul
        host = getattr(kernel, "call", None)
        self._kernel_name, self._traceable = (
            _name(kernel),
            hasattr(kernel, "OPERATOR") or hasattr(host, "traced"),
        )
        self._differentiable = bool(getattr(host, "has_backward", False))
        self.reason = ""
        # Attributes that another kernel is to replace. Any further one was put on the layer by its user.
        self._of_kernel = frozenset(vars(self)) - before | {"_of_kernel"}

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        """Return input @ weight.T + bias, for an input of any number of dimensions."""
        if torch.compiler.is_compiling():
            return self._traced(input)
        if not input.ndim or input.shape[-1] != self.in_features:
            return functional.linear(input, self.weight, self.bias)  # which says what is wrong
        try:
            product = self._product(input)
        except REFUSALS as error:
            _raise_unless_refused(error)
            self.reason = str(error)
            return functional.linear(input, self.weight, self.bias)
        self.reason = ""
        return product

    def _product(self, input: Tensor) -> Tensor:  # noqa: A002
        bias = cast("Tensor | None", self.bias)
        extras = {BIAS: bias} if self._fused else {}
        product = self._matmul(input.reshape(-1, self.in_features), self.weight.T, **extras)
        product = product if self._fused or bias is None else product + bias
        return product.reshape(*input.shape[:-1], self.out_features)

    def _traced(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the same under torch.compile, which sees no addresses: what is known beforehand decides."""
        read = (input, *(self.parameters() if self._fused else (self.weight,)))  # else torch adds the bias
        learns = any(each.requires_grad for each in read)
        follows = self._differentiable or not (learns and torch.is_grad_enabled())
        whole = self.in_features * input.element_size() % 16 == 0 and self.weight.is_contiguous()
        dtypes = input.dtype == self.weight.dtype and self._dtype in (None, input.dtype)
        on_gpu = input.device.type in ("cuda", "meta")  # the second stands for any
        if self._traceable and on_gpu and whole and dtypes and follows:
            return self._product(input)
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return what is shown of the layer between its brackets."""
        return f"{super().extra_repr()}, kernel={self._kernel_name}"


class LinearLeftWarning(UserWarning):
    """``replace_linear`` left layers as they are that it was meant to replace; the message says why."""


NAMES_TOLD: Final = 3
"""Most names of layers that a warning gives for one reason."""
REASONS_TOLD: Final = 5
"""Most reasons that a warning gives."""


class _Place(NamedTuple):
    """Where a linear layer is in a model."""

    parent: nn.Module | None
    """What has the layer as a child; None if the layer is the model itself."""
    attribute: str
    layer: nn.Linear
    names: tuple[str, ...]
    """Qualified, as of ``named_modules``, one for each name of the parent; empty for the model itself."""


def replace_linear(
    model: nn.Module,
    kernel: Kernel,
    *,
    only: Callable[[str], bool] | None = None,
    left: MutableMapping[str, str] | None = None,
) -> int:
    """Let a kernel compute the linear layers of a model; return how many layers were replaced.

    `only` says by the qualified name whether a layer is meant; all are without it. Parameters stay the same
    objects. A layer that is at several places of the model is replaced by one new layer at all of them that
    are meant, and counts once. A child of a parent that has several names is meant if one of them is.

    Layers that ``Linear.of`` refuses stay as they are, and a LinearLeftWarning says which and why. With
    `left` nothing is warned of: the reasons are put there instead, by qualified name, for every
    torch.nn.Linear that is not replaced. These include layers that `only` does not mean, that have no bias
    for a kernel with one, or that a kernel computes already, which are never warned of.

    Raises ValueError for a kernel as the constructor of ``Linear``. The model is then as it was.
    """
    fused = _require_plain(kernel, bias=True)
    made: dict[int, Linear | str] = {}
    expected: dict[str, str] = {}
    surprising: dict[str, str] = {}
    placed: list[tuple[_Place, Linear]] = []
    for place in _linear_layers(model):
        layer = place.layer
        meant = [name for name in place.names if only is None or place.parent is None or only(name)]
        name = (meant or place.names)[0]
        if isinstance(layer, Linear):
            expected[name] = f"{layer._kernel_name} computes the layer already"  # pyright: ignore[reportPrivateUsage]
        elif place.parent is None:
            surprising[name] = "the model is itself the layer, and nothing holds it: use Linear.of"
        elif not meant:
            expected[name] = "`only` does not mean the layer"
        elif fused and cast("Tensor | None", getattr(layer, "bias", None)) is None:
            expected[name] = f"{_name(kernel)} needs {BIAS}, and the layer has no bias"
        else:
            if id(layer) not in made:
                made[id(layer)] = _made_of(layer, kernel)
            found = made[id(layer)]
            if isinstance(found, Linear):
                placed.append((place, found))
            else:
                surprising[name] = found
    # First what may raise: a model is replaced as a whole or stays as it was.
    if left is not None:
        left.update(expected | surprising)
    elif surprising:
        warnings.warn(_told(surprising), LinearLeftWarning, stacklevel=2)
    for place, new in placed:
        setattr(place.parent, place.attribute, new)
    return len({id(new) for _, new in placed})


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
        return Linear.of(layer, kernel)
    except _LayerError as error:
        return str(error)


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


def _require_plain(kernel: Kernel, *, bias: bool) -> bool:
    """Return whether a kernel adds a bias, as it may if `bias`; raise ValueError for one that does more."""
    computes: Mapping[str, Any] = getattr(kernel, "COMPUTES", {})
    epilogue = computes.get("epilogue")
    if computes.get("inputs") == ("a", "b") and epilogue == ():
        return False
    if bias and epilogue == (BIAS,):
        return True
    said = "it has no COMPUTES" if epilogue is None else f"COMPUTES says {dict(computes)}"
    raise ValueError(f"{_name(kernel)} computes more than a @ b{' and a bias' * bias}: {said}")
