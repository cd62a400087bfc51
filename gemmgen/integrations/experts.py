"""The experts of a mixture of experts, by two generated kernels that read and store rows by an index.

The first kernel reads the row of each pair of a token and an expert where the token is, and stores the gated
product. The second one multiplies it with the down projection and the router's weight, and stores each row
at its place in the order of tokens. So nothing is gathered or scattered by copies, and the rows of a token
are neighbours. Weights are tensors, or packed ones, which the kernels decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast
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
from gemmgen.integrations.operator import ANY_ROWS, find_kernel, remember
from gemmgen.integrations.packed_weight import FACTOR, PackedWeight, WeightFormat, format_packed_by

Weight: TypeAlias = Tensor | PackedWeight
"""The weight of all experts, as one of the kernels takes it."""
W_co = TypeVar("W_co", bound=Weight, covariant=True)
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
FACTORED: Final = {name: f"{name} * {FACTOR}" for name in ("gate", "up")}
FACTORED_WITH_BIAS: Final = {name: f"{scaled} + {BIAS}" for name, scaled in FACTORED.items()}
GATES: Final[Mapping[str, Gate]] = {
    "silu(gate) * up": silu_gate,
    f"silu(gate + {BIAS}) * (up + {BIAS})": silu_gate,
    GPT_OSS.format(gate="gate", up="up"): gpt_oss_gate,
    GPT_OSS.format(**WITH_BIAS): gpt_oss_gate,
}
"""The gates that `Experts` knows, by the epilogue in COMPUTES of a kernel."""
FACTORED_GATES: Final[Mapping[str, Gate]] = {
    "silu({gate}) * ({up})".format(**FACTORED): silu_gate,
    "silu({gate}) * ({up})".format(**FACTORED_WITH_BIAS): silu_gate,
    GPT_OSS.format(**FACTORED): gpt_oss_gate,
    GPT_OSS.format(**FACTORED_WITH_BIAS): gpt_oss_gate,
}
"""The gates of kernels whose weights have a factor, in the same way."""

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


def facts_of_gpt_oss(layer: Any, *, has_bias: bool) -> ExpertLayer:
    """Return the facts of a layer of gpt-oss that has ``alpha`` and ``limit``, the numbers of its gate."""

    def gated(sums: Tensor) -> Tensor:
        gate, up = sums[..., ::2].clamp(max=layer.limit), sums[..., 1::2].clamp(-layer.limit, layer.limit)
        return gate * torch.sigmoid(layer.alpha * gate) * (up + 1)

    return ExpertLayer(gated, is_interleaved=True, has_bias=has_bias, has_gate=True)


class ExpertKernels(NamedTuple):
    """The two kernels of an MLP of experts."""

    up: Kernel
    """A gate of groups (`m_offsets`) whose rows of A come by an index (`a_rows: true`)."""
    down: Kernel
    """Groups times `row_scale`, whose rows of D are stored by an index (`d_rows: true`)."""


class ExpertTensors(NamedTuple, Generic[W_co]):
    """The tensors of a call."""

    x: Tensor
    """[tokens, hidden]."""
    expert: Tensor
    """The experts of each token, integers [tokens, top_k]."""
    weight: Tensor
    """The router's weights, floats [tokens, top_k]."""
    gate_up: W_co
    """[experts, hidden, 2 * intermediate], by the strides that the first kernel takes, or packed."""
    down: W_co
    """[experts, intermediate, hidden], or packed."""
    gate_up_bias: Tensor | None = None
    """[experts, 2 * intermediate], for kernels with a bias."""
    down_bias: Tensor | None = None
    """[experts, hidden], for kernels with a bias."""


class _AskedKernels(NamedTuple):
    """Kernels, and the calls that they are asked for."""

    kernels: ExpertKernels
    most_rows: int
    """Most rows of an expert, in the mean of all experts."""


class _Facts(NamedTuple):
    """The facts that a layer and all pairs of kernels for it have in common."""

    gate: Gate
    is_interleaved: bool
    has_bias: bool
    formats: tuple[WeightFormat | None, WeightFormat | None]


class Experts:
    """The MLP of the experts of a layer, by generated kernels: the sum over each token's experts.

    A copy of a layer has the same object. It is pickled as the names of its kernels.
    """

    gate: Gate
    is_interleaved: bool
    """True if columns of gate and up come in turn, False if all columns of the gate come first."""
    has_bias: bool
    formats: tuple[WeightFormat | None, WeightFormat | None]
    """The formats of the packed weights gate_up and down; None for one that is not packed."""
    token: str
    """A name of this object that no other one has, in any process."""
    dtype: torch.dtype | None
    """The type of tokens, and of weights that are not packed; None if kernels have no table of arguments."""

    def __init__(
        self, up: Kernel, down: Kernel, *, few_rows: Mapping[int, tuple[Kernel, Kernel]] | None = None
    ) -> None:
        """Take the two kernels.

        `few_rows` has further pairs of kernels. A key is the largest mean number of rows of an expert for
        which its pair is used; the smallest key that is large enough counts.

        Raises ValueError for kernels that compute anything else, for a gate that is not in `GATES`, for
        kernels of different gates or formats of weights, and for a gate of packed weights whose columns do
        not come in turn.
        """
        _require_pairs(few_rows or {})
        asked = [*sorted((few_rows or {}).items()), (ANY_ROWS, (up, down))]
        self._candidates = tuple(_AskedKernels(ExpertKernels(*pair), most) for most, pair in asked)
        self.token = uuid4().hex
        self.dtype = dtypes_of(up).get("a")
        facts = {_facts_of(each.kernels) for each in self._candidates}
        if len({each[:3] for each in facts}) > 1:
            raise ValueError(f"{_names(self._candidates)} have different gates, biases or orders of columns")
        if len(facts) > 1:
            raise ValueError(
                f"{_names(self._candidates)} have different formats of weights: a layer has each of its "
                "weights in one format"
            )
        ((self.gate, self.is_interleaved, self.has_bias, self.formats),) = facts

    def __str__(self) -> str:
        return _names(self._candidates)

    def __deepcopy__(self, _: object) -> Experts:
        return self  # it has no state of a layer, and modules cannot be copied

    def __reduce__(self) -> tuple[Any, ...]:
        for each in self._candidates:
            for kernel in each.kernels:
                remember(kernel)
        return _by_names, ([(each.most_rows, *map(name_of, each.kernels)) for each in self._candidates],)

    @property
    def pair(self) -> ExpertKernels:
        """The kernels for any number of rows, which pack weights for all others too."""
        return self._candidates[-1].kernels

    def __call__(self, call: ExpertTensors[Weight], *, has_other_pairs: bool = False) -> Tensor:
        """Return the sum of the products of each token's experts, times their weights, [tokens, hidden].

        With `has_other_pairs`, tokens may name experts beyond the last one: these pairs add nothing.

        Raises TypeError or ValueError for tensors that one of the kernels refuses.
        """
        kernels = self.kernels_for(call.expert.numel(), _operands(call.gate_up)["b"].shape[0])
        return self._sum(kernels, call, has_other_pairs=has_other_pairs)

    def why_not_weights(
        self,
        gate_up: Weight,
        down: Weight,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> str:
        """Return why generated kernels refuse these weights, as in `ExpertTensors`; empty if they take them.

        They are asked for eight tokens with two experts each, by shapes, strides and types alone.
        """
        for name, weight, packs in zip(("gate_up", "down"), (gate_up, down), self.formats, strict=True):
            if packs and isinstance(weight, Tensor):
                return f"its weight {name} has {weight.dtype}, and {self} take a packed one of {packs}"
            if not packs and not isinstance(weight, Tensor):
                return f"its weight {name} is packed, and {self} take one that is not"
        meta: dict[str, Any] = {"device": "meta"}
        dtype = gate_up.dtype if isinstance(gate_up, Tensor) else self.dtype
        x = torch.empty(8, _operands(down)["b"].shape[-1], dtype=dtype, **meta)
        expert, weight = torch.empty(8, 2, dtype=torch.int64, **meta), torch.empty(8, 2, **meta)
        weights = _like(gate_up), _like(down)
        call = ExpertTensors(x, expert, weight, *weights, _if_any(gate_up_bias), _if_any(down_bias))
        for each in self._candidates:
            if all(map(is_traceable, each.kernels)):
                try:
                    self._sum(each.kernels, call, has_other_pairs=False)
                except REFUSALS as error:
                    return str(error)
        return ""

    def _sum(self, kernels: ExpertKernels, call: ExpertTensors[Weight], *, has_other_pairs: bool) -> Tensor:
        """Return the weighted sum of each token, by these kernels."""
        up, down = kernels
        tokens, top_k = call.expert.shape
        of_up, of_down = _operands(call.gate_up), _operands(call.down)
        experts, hidden = of_up["b"].shape[0], of_down["b"].shape[-1]
        # torch sorts two bytes faster than eight. Stable, so that equal calls have equal bits.
        kind = torch.int16 if experts < 2**15 else torch.int32
        sorted_experts, order = call.expert.flatten().to(kind).sort(stable=True)
        numbers = torch.arange(experts, device=order.device, dtype=kind)
        # torch.bincount would wait for the GPU, which a CUDA graph cannot.
        offs = torch.searchsorted(sorted_experts, numbers, right=True, out_int32=True)
        place = order.int()
        if self.has_bias:
            of_up, of_down = {**of_up, BIAS: call.gate_up_bias}, {**of_down, BIAS: call.down_bias}
        h = up.matmul(call.x, **of_up, offs=offs, a_rows=place // top_k)
        out = call.x.new_zeros(tokens * top_k, hidden) if has_other_pairs else None
        weight = call.weight.flatten()[order].float()
        pairs = down.matmul(h, **of_down, row_scale=weight, offs=offs, d_rows=place, out=out)
        return pairs.unflatten(0, (tokens, top_k)).sum(1)

    def activated(self, sums: Tensor) -> Tensor:
        """Return the gated product of sums [..., 2 * intermediate], whose columns come in turn."""
        return self.gate(sums[..., ::2], sums[..., 1::2])

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
    return ", ".join(_pair_names(each.kernels) for each in candidates)


def _pair_names(kernels: ExpertKernels) -> str:
    """Return the names of two kernels."""
    return ", ".join(map(name_of, kernels))


def _by_names(pairs: Sequence[tuple[int, str, str]]) -> Experts:
    """Return `Experts` of the kernels with these names, in the order of the most rows."""
    *few, (_, up, down) = [(most, find_kernel(up), find_kernel(down)) for most, up, down in pairs]
    return Experts(up, down, few_rows={most: (first, second) for most, first, second in few})


def _operands(weight: Weight) -> dict[str, Any]:
    """Return the arguments of `matmul` that hold a weight."""
    return {"b": weight} if isinstance(weight, Tensor) else weight.operands


def _facts_of(kernels: ExpertKernels) -> _Facts:
    """Return the facts of two kernels.

    Raises ValueError for kernels that `Experts` does not take.
    """
    for kernel in kernels:
        require_kernel(kernel)
    formats = format_packed_by(kernels.up), format_packed_by(kernels.down)
    for kernel, packs in zip(kernels, formats, strict=True):
        if packs:
            packs.require_activations(name_of(kernel))
    up, down = (getattr(kernel, "COMPUTES", {}) for kernel in kernels)
    has_bias, bias = BIAS in up.get("inputs", ()), {BIAS} if BIAS in up.get("inputs", ()) else set[str]()
    gates = FACTORED_GATES if formats[0] and formats[0].scale.factor == FACTOR else GATES
    gate = gates.get(", ".join(up.get("epilogue", ())))
    if {*up.get("inputs", ())} != {*_of_weight(formats[0]), "a", "offs", "a_rows", *bias} or gate is None:
        raise ValueError(
            f"{name_of(kernels.up)}, the first kernel, does not gate groups whose rows come by an index"
            f" (a_rows): {said(kernels.up)}; known gates are {', '.join(gates)}"
        )
    of_weight = _of_weight(formats[1])
    steps = (*[FACTOR] * (FACTOR in of_weight), *[BIAS] * has_bias, "row_scale")
    wanted = {*of_weight, *steps, "a", "offs", "d_rows"}
    if {*down.get("inputs", ())} != wanted or tuple(down.get("epilogue", ())) != steps:
        raise ValueError(
            f"{name_of(kernels.down)}, the second kernel, does not multiply groups, store rows by an index"
            f" (d_rows) and have the epilogue {', '.join(steps)}: {said(kernels.down)}"
        )
    is_interleaved = bool(up.get("interleaved", False))
    if formats[0] and not is_interleaved:
        raise ValueError(f"{name_of(kernels.up)} packs columns of gate and up that do not come in turn")
    if any(formats):
        types = [dtypes_of(kernel)[name] for kernel in kernels for name in ("a", "out")]
        if len({*types}) > 1:
            found = ", ".join(map(str, types))
            raise ValueError(f"{_pair_names(kernels)} have different types of A and D: {found}")
    return _Facts(gate, is_interleaved, has_bias, formats)


def _of_weight(packs: WeightFormat | None) -> tuple[str, ...]:
    """Return the inputs of a kernel that hold its weight."""
    if packs is None:
        return ("b",)
    return ("b", "b_scale", FACTOR) if packs.scale.factor == FACTOR else ("b", "b_scale")


def _without_memory(tensor: Tensor) -> Tensor:
    """Return a tensor with the same shape, strides and type, which requires no gradient."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _if_any(tensor: Tensor | None) -> Tensor | None:
    """Return the same of a tensor that may be absent."""
    return None if tensor is None else _without_memory(tensor)


def _like(weight: Weight) -> Weight:
    """Return the same of a weight."""
    if isinstance(weight, Tensor):
        return _without_memory(weight)
    factor = _if_any(weight.factor)
    return PackedWeight(_without_memory(weight.weight), _without_memory(weight.scales), factor)
