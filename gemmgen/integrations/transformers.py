"""Kernels in the models of Hugging Face's transformers, by its own interfaces and with no change of it.

The linear layers of a model are replaced as in any model. Experts have a registry in transformers, to which
`register_experts` adds a function; a layer of experts that the kernels do not take is computed by the
function that transformers takes by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

from torch import Tensor, nn

from gemmgen.errors import install_advice
from gemmgen.integrations.caller import KernelCaller
from gemmgen.integrations.experts import ExpertLayer, Experts, ExpertTensors
from gemmgen.integrations.kernels import Kernel
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

    of: Experts
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
        call = tensors_of(layer, hidden_states, top_k_index, top_k_weights)
        reason = why_torch_experts(tuple(zip(call._fields, call, strict=True)))
        return cast(Tensor, self._answer((call, verdict.has_other_pairs), reason, torchs))

    def verdict_on(self, layer: nn.Module) -> _Verdict:
        """Return whether kernels compute a layer; it is found out once for each layer."""
        known = getattr(layer, VERDICT, None)
        if known is not None and known.of is self.experts:
            return known
        found = _Verdict(self.experts, _why_left(layer, self.experts), _has_other_pairs(layer))
        setattr(layer, VERDICT, found)
        return found

    def _product(self, call: tuple[ExpertTensors, bool]) -> Tensor:
        tensors, has_other_pairs = call
        return self.experts(tensors, has_other_pairs=has_other_pairs)

    def _traced(self, call: tuple[ExpertTensors, bool]) -> Tensor | None:
        return self._product(call)  # each kernel is an operator of torch


@dataclass(frozen=True)
class Accelerated:
    """The layers of a model that kernels compute now, and the other ones."""

    replaced: tuple[str, ...]
    """The names of the layers that kernels compute."""
    left: Mapping[str, str]
    """Why each other linear layer, and each other layer of experts, stays as it is, by its name."""

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
        model: A model of transformers. It is changed in place; its parameters stay the same objects.
        kernels: Modules and libraries for linear layers, as of `replace_linear`; those with scales of blocks
            take the layers of fp8 checkpoints. A layer gets the first kernel that takes it.
        experts: Kernels for layers of experts. If they take one, the model is set to their function in the
            registry of transformers, which leaves all other layers to transformers.
        only: Whether a linear layer is meant, by its name.

    Raises ValueError for a kernel that is none of these, and for a model whose function of experts cannot be
    set; ImportError without a transformers that has a registry of experts. The model is then as it was.
    """
    registry = _registry()
    for kernel in kernels:
        require_kernel_of_layers(kernel)
    replaced, left = list[str](), dict[str, str]()
    if experts is not None:
        function = ExpertsFunction(experts)
        layers = [(name, layer) for name, layer in _modules(model) if _is_experts(layer)]
        verdicts = {name: function.verdict_on(layer) for name, layer in layers}
        left |= {name: found.reason for name, found in verdicts.items() if found.reason}
        replaced += [name for name, found in verdicts.items() if not found.reason]
        if replaced:
            registry.register(NAME, function)
            cast(Any, model).set_experts_implementation(NAME)
    for kernel in kernels:
        replaced += replace_layers(model, kernel, only=only, left=left, classes=fp8_classes()).replaced
    kept = {name: reason for name, reason in left.items() if name not in {*replaced}}
    return Accelerated(tuple(replaced), kept)


def register_experts(experts: Experts, name: str = NAME) -> ExpertsFunction:
    """Add a function of experts to transformers' registry, and return it.

    ``from_pretrained(…, experts_implementation=name)`` and ``model.set_experts_implementation(name)`` then
    take it. A function of the same name is replaced, for all models of the process.

    Raises ImportError without a transformers that has such a registry.
    """
    function = ExpertsFunction(experts)
    _registry().register(name, function)
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
    try:
        return (import_module("transformers.integrations.finegrained_fp8").FP8Linear,)
    except (ImportError, AttributeError):
        return ()


def _modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers of a model with their names."""
    return list(cast(Any, model).named_modules())


def _is_experts(layer: nn.Module) -> bool:
    """Return True for a layer of experts, by the attributes that transformers' decorator gives it."""
    return all(hasattr(layer, name) for name in ("has_gate", "is_concatenated", "is_transposed", "has_bias"))


def tensors_of(layer: Any, x: Tensor, expert: Tensor, weight: Tensor) -> ExpertTensors:
    """Return the tensors of a call of a layer that `_why_left` leaves to kernels."""
    gate_up, down = layer.gate_up_proj, layer.down_proj
    if not layer.is_transposed:
        gate_up, down = gate_up.mT, down.mT
    biases = (layer.gate_up_proj_bias, layer.down_proj_bias) if layer.has_bias else (None, None)
    return ExpertTensors(x, expert, weight, gate_up, down, *biases)


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
    for name in ("gate_up_proj", "down_proj"):
        tensor = getattr(layer, name, None)
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            return f"its {name} is no tensor of three dimensions"
    return ""
