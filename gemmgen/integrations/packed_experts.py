"""A layer of experts whose weights have four or eight bits an element, which two kernels decode."""

from __future__ import annotations

from typing import Final, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemmgen.features.decoded_weights.stored import in_turn
from gemmgen.integrations.caller import is_recorded
from gemmgen.integrations.experts import Experts, ExpertTensors, facts_of_gpt_oss
from gemmgen.integrations.kernels import BIAS, Kernel, dtypes_of
from gemmgen.integrations.layer import KernelModule, LayerError
from gemmgen.integrations.packed_buffers import NAMES, PackedBuffers
from gemmgen.integrations.packed_weight import PackedWeight, pack_experts
from gemmgen.integrations.plain_layer import hooked, patched_forward
from gemmgen.integrations.reasons import why_torch_experts
from gemmgen.integrations.weights.checkpoint_experts import from_experts
from gemmgen.integrations.weights.quantized import QuantizedWeight

GATE_UP: Final = "gate_up_"
DOWN: Final = "down_"
ARGUMENTS: Final = ("hidden_states", "top_k_index", "top_k_weights")
"""The arguments of a call."""


class PackedExperts(PackedBuffers, KernelModule):
    """A layer of experts whose weights have four or eight bits: two kernels decode and multiply them.

    The weights are packed once, and the layer has no other copy of them. Its buffers are
    ``gate_up_packed_weight`` (uint8 [experts, 2 * intermediate, hidden / 2] of four bits, int8 or
    float8_e4m3fn [experts, 2 * intermediate, hidden] of eight: layout 1 of the kernels' ``pack_weight``),
    ``gate_up_packed_scale`` and, for nvfp4, ``gate_up_tensor_scale``, and the same with ``down_``.
    ``gate_up_bias`` and ``down_bias`` are parameters without a gradient, or None.

    If no kernel takes a call, torch multiplies by the decoded weights, and `reason` says why: tokens of
    another type, on a CPU, or that require grad, which this product has. It decodes the weights anew in each
    such call and computes all experts for all tokens, and is slow.

    The layer can be copied, moved with `to`, and compiled. A cast leaves the packed weights as they are.
    torch.fx records the layer as a whole. torch.jit.script raises NotImplementedError.
    """

    gate_up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None

    def __init__(
        self,
        gate_up: QuantizedWeight,
        down: QuantizedWeight,
        experts: Experts,
        *,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> None:
        """Pack the weights of all experts, and keep their biases in the kernels' type.

        Args:
            gate_up: [experts, 2 * intermediate, hidden]: rows of gate and up come in turn.
            down: [experts, hidden, intermediate].
            experts: The kernels, which pack weights of these formats.
            gate_up_bias: [experts, 2 * intermediate], in the order of the rows.
            down_bias: [experts, hidden].

        Raises ValueError for kernels that pack no weights, or other formats than the weights'; for weights
        and biases whose shapes do not fit each other; for biases without kernels that add them, and for such
        kernels without biases; for weights that ``pack_weight`` refuses, and for sizes that a kernel refuses.
        """
        super().__init__()
        of_gate_up, of_down = experts.formats
        if of_gate_up is None or of_down is None:
            raise ValueError(f"{experts} do not both take packed weights")
        _require_shapes(gate_up, down)
        self.num_experts, self.hidden_size, self.intermediate_size = down.shape
        self._experts, self._kernel_name = experts, str(experts)
        packed = pack_experts(experts.pair.up, gate_up), pack_experts(experts.pair.down, down)
        self._hold(packed[0], of_gate_up.scale.name, GATE_UP)
        self._hold(packed[1], of_down.scale.name, DOWN)
        given = (("gate_up", gate_up, gate_up_bias), ("down", down, down_bias))
        for (name, weight, bias), kernel in zip(given, experts.pair, strict=True):
            self.register_parameter(f"{name}_bias", _bias_of(name, weight, bias, experts, kernel))
        if reason := experts.why_not_weights(*packed, self.gate_up_bias, self.down_bias):
            raise ValueError(reason)
        self.reason = ""

    @classmethod
    def of(cls, layer: nn.Module, experts: Experts) -> Self:
        """Return a layer with the weights, the biases and the mode of one of gpt-oss in mxfp4.

        `layer` is transformers' ``Mxfp4GptOssExperts`` with a loaded checkpoint, or has the checkpoint's
        tensors by their names, and ``alpha`` and ``limit``, the numbers of its gate. It is called otherwise:
        see `forward`. Its tensors are copied: let go of it to have the memory back.

        Raises ValueError for a layer without such weights (`from_experts`), one with hooks of its calls or a
        forward of its own, as where ranks share the experts, one with another gate, and as the constructor
        does.
        """
        if reason := hooked(layer) or patched_forward(layer):
            raise LayerError(reason)
        weights = from_experts(layer)
        facts = facts_of_gpt_oss(layer, has_bias=weights.gate_up_bias is not None)
        if reason := experts.why_not(facts):
            raise ValueError(reason)
        gate_up, down, *biases = weights
        made = cls(gate_up, down, experts, gate_up_bias=biases[0], down_bias=biases[1])
        made.train(layer.training)
        return made

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the sum over each token's experts, [tokens, hidden].

        Args:
            hidden_states: [tokens, hidden].
            top_k_index: The experts of each token, integers from 0 to experts - 1, [tokens, top_k].
            top_k_weights: The router's weights, [tokens, top_k].
        """
        given = hidden_states, top_k_index, top_k_weights
        if is_recorded(given):
            return self._recorded(self._torchs, *given)
        return self._answer(given, self._why_torch(*given), lambda: self._torchs(*given))

    @property
    def _weights(self) -> tuple[PackedWeight, PackedWeight]:
        return self._held(GATE_UP), self._held(DOWN)

    def _why_torch(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> str:
        given = hidden_states, top_k_index, top_k_weights
        biases = ("gate_up_bias", self.gate_up_bias), ("down_bias", self.down_bias)
        packed = [
            (f"{prefix}{name}", tensor)
            for prefix, weight in zip((GATE_UP, DOWN), self._weights, strict=True)
            for name, tensor in zip(NAMES, weight, strict=True)
        ]
        if reason := why_torch_experts((*zip(ARGUMENTS, given, strict=True), *biases), packed):
            return reason
        if hidden_states.ndim != 2 or hidden_states.shape[-1] != self.hidden_size:
            found = [*hidden_states.shape]
            return f"hidden_states must be [tokens, {self.hidden_size}], found {found}"
        if hidden_states.dtype != self._experts.dtype:
            found, wanted = hidden_states.dtype, self._experts.dtype
            return f"{self._kernel_name} multiply {wanted}, and hidden_states are {found}"
        return ""

    def _product(self, call: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return self._experts(ExpertTensors(*call, *self._weights, self.gate_up_bias, self.down_bias))

    def _traced(self, call: tuple[Tensor, Tensor, Tensor]) -> Tensor | None:
        on_gpu = call[0].device.type in ("cuda", "meta")  # the second stands for any
        return self._product(call) if on_gpu else None  # each kernel is an operator of torch

    def _torchs(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        x, (of_gate_up, of_down) = hidden_states, self._weights
        total = torch.zeros((), dtype=torch.float64, device=of_down.weight.device)
        for expert in range(self.num_experts):
            gate_up = of_gate_up.of_expert(expert).numbers(self._format_of[f"{GATE_UP}{NAMES[0]}"], x.dtype)
            down = of_down.of_expert(expert).numbers(self._format_of[f"{DOWN}{NAMES[0]}"], x.dtype)
            sums = functional.linear(x, in_turn(gate_up), _of_expert(self.gate_up_bias, expert, x))
            h = self._experts.activated(sums)
            product = functional.linear(h, down, _of_expert(self.down_bias, expert, x))
            chosen = top_k_index == expert
            weight = (top_k_weights * chosen).sum(-1, keepdim=True)
            # Where a token has not chosen the expert, its product may be infinite, and 0 times that is no 0.
            total = total + torch.where(chosen.any(-1, keepdim=True), product * weight, 0)
        return total.to(x.dtype)

    def extra_repr(self) -> str:
        """Return the text between the brackets of the layer's repr."""
        sizes = f"experts={self.num_experts}, hidden={self.hidden_size}"
        sizes = f"{sizes}, intermediate={self.intermediate_size}"
        formats = [each for each in self._experts.formats if each]
        elements = ", ".join(each.element for each in formats)
        scales = ", ".join(each.scale.name for each in formats)
        has_bias = self.gate_up_bias is not None
        return f"{sizes}, bias={has_bias}, kernels={self._kernel_name}, weights={elements}, scales={scales}"


def _require_shapes(gate_up: QuantizedWeight, down: QuantizedWeight) -> None:
    """Raise ValueError unless both weights are of experts of the same sizes."""
    for name, weight in (("gate_up", gate_up), ("down", down)):
        if len(weight.shape) != 3:
            raise ValueError(f"{name} must be a weight [experts, N, K], found {weight.shape}")
    experts, hidden, intermediate = down.shape
    if gate_up.shape != [experts, 2 * intermediate, hidden]:
        raise ValueError(
            f"with down {down.shape}, gate_up must be {[experts, 2 * intermediate, hidden]}, "
            f"found {gate_up.shape}"
        )


def _bias_of(
    name: str, weight: QuantizedWeight, bias: Tensor | None, experts: Experts, kernel: Kernel
) -> nn.Parameter | None:
    """Return a bias [experts, N] as a kernel adds it; None if neither the layer nor the kernel has one."""
    if bias is None:
        if experts.has_bias:
            raise ValueError(f"{experts} need {BIAS}, and the layer has no {name}_bias")
        return None
    if not experts.has_bias:
        raise ValueError(f"{experts} add no bias, and the layer has {name}_bias")
    if [*bias.shape] != weight.shape[:2]:
        raise ValueError(f"{name}_bias must be {weight.shape[:2]}, found {[*bias.shape]}")
    made = bias.detach().to(weight.codes.device, dtypes_of(kernel)[BIAS], copy=True)
    return nn.Parameter(made, requires_grad=False)


def _of_expert(bias: Tensor | None, expert: int, x: Tensor) -> Tensor | None:
    """Return the bias of an expert in the type of its tokens."""
    return None if bias is None else bias[expert].to(x.dtype)
