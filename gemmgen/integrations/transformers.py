"""Kernels in the models of Hugging Face's transformers, by its own interfaces and with no change of it.

The linear layers of a model are replaced as in any model, and so are the experts of gpt-oss in mxfp4. Other
experts have a registry in transformers, to which `register_experts` adds a function; a layer of experts that
the kernels do not take is computed by the function that transformers takes by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from gemmgen.errors import install_advice
from gemmgen.integrations.caller import KernelCaller
from gemmgen.integrations.experts import ExpertLayer, Experts, ExpertTensors
from gemmgen.integrations.kernels import Kernel
from gemmgen.integrations.mxfp4_experts import class_of, replace_mxfp4_experts
from gemmgen.integrations.reasons import why_torch_experts
from gemmgen.integrations.replace import replace_layers, require_kernel_of_layers

NAME: Final = "gemmgen"
"""The name of the function of experts in transformers' registry."""
OLDEST: Final = "5.17"
"""The oldest release of transformers that this file was run with."""
DEFAULT: Final = "grouped_mm"
"""The function of experts that transformers takes by default."""
VERDICT: Final = "_gemmgen_verdict"
"""The attribute of a layer of experts with its `_Verdict`."""


class _Verdict(NamedTuple):
    """The answer to whether kernels compute a layer of experts, by its class and its attributes."""

    token: str
    """The name of the `Experts` that were asked: a layer is copied and pickled with its answer."""
    reason: str
    """Why not; empty if they do."""
    has_other_pairs: bool
    """True if the layer has a part of the experts, and tokens may name others too."""


class ExpertsFunction(KernelCaller):
    """A function of experts for transformers' registry: ``f(layer, hidden_states, index, weights)``."""

    def __init__(self, experts: Experts) -> None:
        self.experts, self.reason = experts, ""
        self._default: Callable[..., Tensor] = _registry()[DEFAULT]

    def __call__(
        self, layer: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
    ) -> Tensor:
        """Return the sum over each token's experts, [tokens, hidden].

        Args:
            layer: A module of experts, as transformers' decorator makes it.
            hidden_states: [tokens, hidden].
            top_k_index: The experts of each token, [tokens, top_k].
            top_k_weights: The router's weights, [tokens, top_k].
        """
        torchs = partial(self._default, layer, hidden_states, top_k_index, top_k_weights)
        verdict = self.verdict_on(layer)
        if verdict.reason:
            return cast(Tensor, self._answer(None, verdict.reason, torchs))
        call = ExpertTensors(hidden_states, top_k_index, top_k_weights, *weights_of(layer))
        reason = why_torch_experts(tuple(zip(call._fields, call, strict=True)))
        return cast(Tensor, self._answer((call, verdict.has_other_pairs), reason, torchs))

    def verdict_on(self, layer: nn.Module) -> _Verdict:
        """Return whether kernels compute a layer; it is found out once for each layer."""
        known = getattr(layer, VERDICT, None)
        if known is not None and known.token == self.experts.token:
            return known
        if torch.compiler.is_compiling():
            reason = "the layer is compiled before its first call, and before accelerate_model"
            return _Verdict("", reason, has_other_pairs=False)
        found = _Verdict(self.experts.token, _why_left(layer, self.experts), _has_other_pairs(layer))
        setattr(layer, VERDICT, found)
        return found

    def _product(self, call: tuple[ExpertTensors[Tensor], bool]) -> Tensor:
        tensors, has_other_pairs = call
        return self.experts(tensors, has_other_pairs=has_other_pairs)

    def _traced(self, call: tuple[ExpertTensors[Tensor], bool]) -> Tensor | None:
        tensors, _ = call
        on_gpu = tensors.x.device.type in ("cuda", "meta")  # the second stands for any
        # The weights had the kernels' type at the verdict, and may have been cast since.
        own = self.experts.dtype or tensors.gate_up.dtype
        if not on_gpu or {tensors.x.dtype, tensors.gate_up.dtype} != {own}:
            return None
        return self._product(call)  # each kernel is an operator of torch


@dataclass(frozen=True)
class Accelerated:
    """The layers of a model that kernels compute now, and the other ones."""

    replaced: tuple[str, ...]
    """The names of the layers that kernels compute."""
    left: Mapping[str, str]
    """Why each other linear layer, and each other layer of experts, stays as it is, by its name."""
    function: ExpertsFunction | None = field(default=None, compare=False, repr=False)
    """The function of the layers of experts; its `reason` says why transformers computed the last call."""

    def __str__(self) -> str:
        return f"{len(self.replaced)} layers replaced, {len(self.left)} left"


def accelerate_model(
    model: nn.Module,
    *kernels: Kernel,
    experts: Experts | None = None,
    only: Callable[[str], bool] | None = None,
) -> Accelerated:
    """Let kernels compute the layers of a model of transformers that they take; return which, and why not.

    Args:
        model: A model of transformers. It is changed in place; its other parameters stay the same objects.
        kernels: Modules and libraries for linear layers, as of `replace_linear`; those with scales of blocks
            take the layers of fp8 checkpoints. A layer gets the first kernel that takes it.
        experts: Kernels for layers of experts. If they take one, the model is set to their function in the
            registry of transformers, which leaves all other layers to transformers. If they pack
            weights in mxfp4, a `PackedExperts` replaces each layer of experts of a gpt-oss that is loaded in
            mxfp4, and packed weights replace its parameters.
        only: Whether a linear layer is meant, by its name.

    Raises ValueError for a kernel that is none of these, and for other arguments of a wrong type; ImportError
    without a transformers that has a registry of experts. The model is then as it was.
    """
    registry = _registry()
    for kernel in kernels:
        require_kernel_of_layers(kernel)
    _require(model, experts, only)
    replaced, left = replace_mxfp4_experts(model, experts)
    layers, function = _modules(model), None
    of_experts = [(name, layer) for name, layer in layers if _is_experts(layer)]
    left |= {name: "no kernel for experts was given" for name, _ in of_experts}
    if not kernels:
        left |= {name: "no kernel was given" for name, layer in layers if isinstance(layer, nn.Linear)}
    if experts is not None and of_experts:
        name, function = _named_function(registry, experts)
        verdicts = {each: function.verdict_on(layer) for each, layer in of_experts}
        taken = [each for each, found in verdicts.items() if not found.reason]
        left |= {each: found.reason for each, found in verdicts.items()}
        if taken and (reason := _set_function(model, registry, name, function)):
            left |= dict.fromkeys(taken, reason)
        else:
            replaced += taken
    for kernel in kernels:
        replaced += replace_layers(model, kernel, only=only, left=left, classes=fp8_classes()).replaced
    kept = {name: reason for name, reason in left.items() if name not in {*replaced}}
    return Accelerated(tuple(replaced), kept, function)


def _require(model: object, experts: object, only: object) -> None:
    """Raise ValueError for arguments that are no model, no `Experts` or no function."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a model, found {model!r}")
    if experts is not None:
        _require_experts(experts)
    if not (only is None or callable(only)):
        raise ValueError(f"only must be a function from the name of a layer to a bool, found {only!r}")


def _require_experts(experts: object) -> None:
    """Raise ValueError for anything but `Experts`."""
    if not isinstance(experts, Experts):
        raise ValueError(f"experts must be Experts(up, down), found {experts!r}")


def _named_function(registry: Any, experts: Experts) -> tuple[str, ExpertsFunction]:
    """Return the function of kernels in the registry, or a new one, with a name that is its own."""
    name, number = NAME, 1
    while isinstance(known := registry.get(name), ExpertsFunction):
        if known.experts is experts:
            return name, known
        number += 1
        name = f"{NAME}_{number}"
    return name, ExpertsFunction(experts)


def _set_function(model: Any, registry: Any, name: str, function: ExpertsFunction) -> str:
    """Let the layers of experts of a model call a function; return why they cannot, else an empty string."""
    if not hasattr(model, "set_experts_implementation"):
        return f"a {type(model).__name__} is no model of transformers, which could change their function"
    registry.register(name, function)
    try:
        model.set_experts_implementation(name)
    except ValueError as error:
        return str(error)
    if model.config._experts_implementation != name:
        return f"transformers cannot change the function of experts of a {type(model).__name__}"
    return ""


def register_experts(experts: Experts, name: str = NAME) -> ExpertsFunction:
    """Add a function of experts to transformers' registry, and return it.

    ``from_pretrained(…, experts_implementation=name)`` and ``model.set_experts_implementation(name)`` then
    take it. A function of the same name is replaced, for all models of the process. A layer that torch
    compiles before its first call is computed by transformers: call the model once before.

    Raises ValueError for anything but `Experts`, and for a name of transformers' own; ImportError without a
    transformers that has such a registry.
    """
    registry = _registry()
    _require_experts(experts)
    if name == "eager" or not isinstance(registry.get(name), ExpertsFunction | None):
        raise ValueError(f"{name} is a function of transformers' own: choose another name")
    function = ExpertsFunction(experts)
    registry.register(name, function)
    return function


def _registry() -> Any:
    """Return transformers' functions of experts by their names."""
    try:
        found: Any = import_module("transformers")
    except ImportError as error:
        message = f"transformers is not installed: {install_advice('transformers')}"
        raise ImportError(message) from error
    try:
        return import_module("transformers.integrations.moe").ALL_EXPERTS_FUNCTIONS
    except (ImportError, AttributeError) as error:
        message = f"transformers {found.__version__} has no registry of experts: {OLDEST} has, and later ones"
        raise ImportError(message) from error


def fp8_classes() -> tuple[type[nn.Module], ...]:
    """Return the classes of linear layers of fp8 checkpoints; none if this release has none of that name."""
    found = class_of("transformers.integrations.finegrained_fp8", "FP8Linear")
    return () if found is None else (found,)


def _modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers of a model with their names."""
    return list(cast(Any, model).named_modules())


def _is_experts(layer: nn.Module) -> bool:
    """Return True for a layer of experts, by the attributes that transformers' decorator gives it."""
    return all(hasattr(layer, name) for name in ("has_gate", "is_concatenated", "is_transposed", "has_bias"))


def weights_of(layer: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the weights and biases of a layer, as `ExpertTensors` has them."""
    gate_up, down = layer.gate_up_proj, layer.down_proj
    if not layer.is_transposed:
        gate_up, down = gate_up.mT, down.mT
    if not layer.has_bias:
        return gate_up, down, None, None
    return gate_up, down, layer.gate_up_proj_bias, layer.down_proj_bias


def _has_other_pairs(layer: nn.Module) -> bool:
    """Return True if tokens may name experts of other ranks.

    Where ranks share the experts of a layer, transformers puts a forward of its own before it.
    """
    return "forward" in vars(layer) or bool(getattr(layer, "_is_expert_parallel", False))


def _why_left(layer: Any, experts: Experts) -> str:
    """Return why kernels do not compute a layer of experts; empty if they do."""
    facts = ExpertLayer(layer._apply_gate, not layer.is_concatenated, layer.has_bias, layer.has_gate)
    if reason := experts.why_not(facts):
        return reason
    if getattr(layer, "has_post_expert_norm", False):
        return "it has a norm after each expert, which no kernel computes"
    for name in ("gate_up_proj", "down_proj"):
        tensor = getattr(layer, name, None)
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            return f"its {name} is no tensor of three dimensions"
        if experts.dtype not in (None, tensor.dtype):
            return f"its {name} has {tensor.dtype}, and {experts} take {experts.dtype}"
    return experts.why_not_weights(*weights_of(layer))
