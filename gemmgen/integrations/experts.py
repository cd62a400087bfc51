"""The experts of a mixture of experts, by two generated kernels that read and store rows by an index.

The first kernel reads the row of each pair of a token and an expert where the token is, and stores the gated
product. The second one multiplies it with the down projection and the router's weight, and stores each row
at its place in the order of tokens. So nothing is gathered or scattered by copies, and the rows of a token
are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast
from uuid import uuid4

import torch
from torch import Tensor
from torch.nn import functional

from gemmgen.integrations.kernels import (
    BIAS,
    REFUSALS,
    Kernel,
    dtypes_of,
    is_traceable,
    name_of,
    require_kernel,
    said,
)
from gemmgen.integrations.operator import ANY_ROWS

Gate = Callable[[Tensor, Tensor], Tensor]
"""A function of the sums of the gate and of up, with their biases."""


SWIGLU_LIMIT: Final = 7
"""The bound of the sums in the gate of gpt-oss."""
SWIGLU_ALPHA: Final = 1.702
"""The factor in the sigmoid of that gate."""


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return the gate of most models."""
    return functional.silu(gate) * up


def gpt_oss_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return the gate of gpt-oss."""
    gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)


GPT_OSS: Final = (
    f"quick_gelu(clamp_max({{gate}}, max={SWIGLU_LIMIT}), alpha={SWIGLU_ALPHA})"
    f" * (clamp({{up}}, min=-{SWIGLU_LIMIT}, max={SWIGLU_LIMIT}) + 1)"
)
WITH_BIAS: Final = {"gate": f"gate + {BIAS}", "up": f"up + {BIAS}"}
GATES: Final[Mapping[str, Gate]] = {
    "silu(gate) * up": silu_gate,
    f"silu(gate + {BIAS}) * (up + {BIAS})": silu_gate,
    GPT_OSS.format(gate="gate", up="up"): gpt_oss_gate,
    GPT_OSS.format(**WITH_BIAS): gpt_oss_gate,
}
"""The gates that `Experts` knows, by the epilogue in COMPUTES of a kernel."""

ACTIVATIONS: Final[Mapping[tuple[Gate, bool, bool], str]] = {
    (silu_gate, False, False): "silu",
    (gpt_oss_gate, True, True): "swigluoai",
}
"""The name that servers have for a gate, by the order of its columns and whether it adds biases."""

GATE_SAMPLES: Final = (*(number / 2 for number in range(-24, 25)), -80.0, -20.0, 20.0, 80.0)
"""Numbers of the gate, and of up, at which a layer's gate is compared: beyond the bounds of known gates."""


class ExpertLayer(NamedTuple):
    """The facts of a layer of experts that kernels must have too."""

    gate: Callable[[Tensor], Tensor]
    """From both products [rows, 2 * intermediate] to the gated one; also in fp32 on the CPU."""
    is_interleaved: bool
    """True if columns of gate and up come in turn, False if all columns of the gate come first."""
    has_bias: bool
    has_gate: bool


class ExpertKernels(NamedTuple):
    """The two kernels of an MLP of experts."""

    up: Kernel
    """A gate of groups (`m_offsets`) whose rows of A come by an index (`a_rows: true`)."""
    down: Kernel
    """Groups times `row_scale`, whose rows of D are stored by an index (`d_rows: true`)."""


class ExpertTensors(NamedTuple):
    """The tensors of a call."""

    x: Tensor
    """[tokens, hidden]."""
    expert: Tensor
    """The experts of each token, integers [tokens, top_k]."""
    weight: Tensor
    """The router's weights, floats [tokens, top_k]."""
    gate_up: Tensor
    """[experts, hidden, 2 * intermediate], by the strides that the first kernel takes."""
    down: Tensor
    """[experts, intermediate, hidden]."""
    gate_up_bias: Tensor | None = None
    """[experts, 2 * intermediate], for kernels with a bias."""
    down_bias: Tensor | None = None
    """[experts, hidden], for kernels with a bias."""


class _AskedKernels(NamedTuple):
    """Kernels, and the calls that they are asked for."""

    kernels: ExpertKernels
    most_rows: int
    """Most rows of an expert, in the mean of all experts."""


class Experts:
    """The MLP of the experts of a layer, by generated kernels: the sum over each token's experts."""

    gate: Gate
    is_interleaved: bool
    """True if columns of gate and up come in turn, False if all columns of the gate come first."""
    has_bias: bool
    token: str
    """A name of this object that no other one has, in any process."""
    dtype: torch.dtype | None
    """The type of the weights; None if the kernels have no table of arguments."""

    def __init__(
        self, up: Kernel, down: Kernel, *, few_rows: Mapping[int, tuple[Kernel, Kernel]] | None = None
    ) -> None:
        """Take the two kernels.

        `few_rows` has further pairs of kernels. A key is the largest mean number of rows of an expert for
        which its pair is used; the smallest key that is large enough counts.

        Raises ValueError for kernels that compute anything else, for a gate that is not in `GATES`, and for
        kernels of different gates.
        """
        _require_pairs(few_rows or {})
        asked = [*sorted((few_rows or {}).items()), (ANY_ROWS, (up, down))]
        self._candidates = tuple(_AskedKernels(ExpertKernels(*pair), most) for most, pair in asked)
        self.token = uuid4().hex
        self.dtype = dtypes_of(up).get("b")
        facts = {_facts_of(each.kernels) for each in self._candidates}
        if len(facts) > 1:
            raise ValueError(f"{_names(self._candidates)} have different gates, biases or orders of columns")
        ((self.gate, self.is_interleaved, self.has_bias),) = facts

    def __str__(self) -> str:
        return _names(self._candidates)

    def __call__(self, call: ExpertTensors, *, has_other_pairs: bool = False) -> Tensor:
        """Return the sum of the products of each token's experts, times their weights, [tokens, hidden].

        With `has_other_pairs`, tokens may name experts beyond the last one: these pairs add nothing.

        Raises TypeError or ValueError for tensors that one of the kernels refuses.
        """
        kernels = self.kernels_for(call.expert.numel(), call.gate_up.shape[0])
        return self._sum(kernels, call, has_other_pairs=has_other_pairs)

    def why_not_weights(
        self,
        gate_up: Tensor,
        down: Tensor,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> str:
        """Return why generated kernels refuse these weights, as in `ExpertTensors`; empty if they take them.

        They are asked for eight tokens with two experts each, by shapes, strides and types alone.
        """
        meta: dict[str, Any] = {"device": "meta"}
        x = torch.empty(8, down.shape[-1], dtype=gate_up.dtype, **meta)
        expert, weight = torch.empty(8, 2, dtype=torch.int64, **meta), torch.empty(8, 2, **meta)
        biases = (bias if bias is None else _without_memory(bias) for bias in (gate_up_bias, down_bias))
        call = ExpertTensors(x, expert, weight, _without_memory(gate_up), _without_memory(down), *biases)
        for each in self._candidates:
            if all(map(is_traceable, each.kernels)):
                try:
                    self._sum(each.kernels, call, has_other_pairs=False)
                except REFUSALS as error:
                    return str(error)
        return ""

    def _sum(self, kernels: ExpertKernels, call: ExpertTensors, *, has_other_pairs: bool) -> Tensor:
        """Return the weighted sum of each token, by these kernels."""
        up, down = kernels
        tokens, top_k = call.expert.shape
        experts, hidden = call.gate_up.shape[0], call.down.shape[-1]
        # torch sorts two bytes faster than eight. Stable, so that equal calls have equal bits.
        kind = torch.int16 if experts < 2**15 else torch.int32
        sorted_experts, order = call.expert.flatten().to(kind).sort(stable=True)
        numbers = torch.arange(experts, device=order.device, dtype=kind)
        # torch.bincount would wait for the GPU, which a CUDA graph cannot.
        offs = torch.searchsorted(sorted_experts, numbers, right=True, out_int32=True)
        place = order.int()
        biases: list[dict[str, Tensor | None]] = [{}, {}]
        if self.has_bias:
            biases = [{BIAS: call.gate_up_bias}, {BIAS: call.down_bias}]
        h = up.matmul(call.x, call.gate_up, offs=offs, a_rows=place // top_k, **biases[0])
        out = call.x.new_zeros(tokens * top_k, hidden) if has_other_pairs else None
        weight = call.weight.flatten()[order].float()
        pairs = down.matmul(h, call.down, row_scale=weight, offs=offs, d_rows=place, out=out, **biases[1])
        return pairs.unflatten(0, (tokens, top_k)).sum(1)

    def why_not(self, layer: ExpertLayer) -> str:
        """Return why these kernels do not compute a layer of experts; empty if they do.

        Gates are compared by their numbers.
        """
        if not layer.has_gate:
            return f"it has no gate, and {self} compute one"
        orders = "all columns of the gate first", "columns of gate and up in turn"
        if layer.is_interleaved != self.is_interleaved:
            own, theirs = orders[layer.is_interleaved], orders[self.is_interleaved]
            return f"its weights have {own}, and {self} take {theirs}"
        if layer.has_bias != self.has_bias:
            words = ("has a bias", "add none") if layer.has_bias else ("has no bias", "add one")
            return f"it {words[0]}, and {self} {words[1]}"
        return "" if self._has_gate_of(layer) else f"its gate is another one than that of {self}"

    @property
    def activation(self) -> str | None:
        """The name that servers have for the gate with this order of columns and these biases, or None."""
        return ACTIVATIONS.get((self.gate, self.is_interleaved, self.has_bias))

    @torch.no_grad()
    def _has_gate_of(self, layer: ExpertLayer) -> bool:
        """Return True if a layer's gate gives the numbers of the kernels' gate."""
        numbers = torch.tensor(GATE_SAMPLES)
        gate, up = torch.cartesian_prod(numbers, numbers).unbind(1)
        both = torch.stack((gate, up), 1).flatten() if layer.is_interleaved else torch.cat((gate, up))
        try:
            found = layer.gate(both[None])
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return False
        wanted = self.gate(gate, up)[None]
        return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)

    def kernels_for(self, pairs: int, experts: int) -> ExpertKernels:
        """Return the kernels for a number of pairs of a token and an expert."""
        return next(each.kernels for each in self._candidates if pairs <= each.most_rows * experts)


def _require_pairs(few_rows: object) -> None:
    """Raise ValueError for anything but a dict from numbers of rows to pairs of kernels."""
    if not isinstance(few_rows, Mapping):
        raise ValueError(f"few_rows must be a dict of pairs of kernels, found {few_rows!r}")
    for most, pair in cast("Mapping[object, object]", few_rows).items():
        if type(most) is not int or most < 1:
            raise ValueError(f"a key of few_rows must be a number of rows from 1 on, found {most!r}")
        if not isinstance(pair, tuple) or len(cast("tuple[object, ...]", pair)) != len(ExpertKernels._fields):
            raise ValueError(f"few_rows[{most}] must be a pair of kernels (up, down), found {pair!r}")


def _names(candidates: Sequence[_AskedKernels]) -> str:
    """Return the names of kernels."""
    return ", ".join(name_of(kernel) for each in candidates for kernel in each.kernels)


def _facts_of(kernels: ExpertKernels) -> tuple[Gate, bool, bool]:
    """Return the gate of two kernels, whether its columns come in turn, and whether there are biases.

    Raises ValueError for kernels that `Experts` does not take.
    """
    for kernel in kernels:
        require_kernel(kernel)
    up, down = (getattr(kernel, "COMPUTES", {}) for kernel in kernels)
    has_bias = BIAS in up.get("inputs", ())
    bias = {BIAS} if has_bias else set[str]()
    gate = GATES.get(", ".join(up.get("epilogue", ())))
    if {*up.get("inputs", ())} != {"a", "b", "offs", "a_rows", *bias} or gate is None:
        raise ValueError(
            f"{name_of(kernels.up)}, the first kernel, does not gate groups whose rows come by an index"
            f" (a_rows): {said(kernels.up)}; known gates are {', '.join(GATES)}"
        )
    wanted = {"a", "b", "offs", "d_rows", "row_scale", *bias}
    steps = (*([BIAS] if has_bias else []), "row_scale")
    if {*down.get("inputs", ())} != wanted or tuple(down.get("epilogue", ())) != steps:
        raise ValueError(
            f"{name_of(kernels.down)}, the second kernel, does not multiply groups, store rows by an index"
            f" (d_rows) and have the epilogue {', '.join(steps)}: {said(kernels.down)}"
        )
    return gate, bool(up.get("interleaved", False)), has_bias


def _without_memory(tensor: Tensor) -> Tensor:
    """Return a tensor with the same shape, strides and type, which requires no gradient."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
