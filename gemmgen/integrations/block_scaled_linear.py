"""A linear layer of e4m3 weights with a scale for each 128 x 128 of them, as checkpoints of DeepSeek have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import torch
from torch import Tag, Tensor, nn
from torch.nn import functional
from torch.utils import flop_counter

from gemmgen.integrations.kernels import BIAS, REFUSALS, Kernel, name_of, raise_unless_refused
from gemmgen.integrations.operator import LIBRARY, find_kernel, remember
from gemmgen.integrations.quantize import BLOCK, E4M3, dequantized_weight, quantize_rows
from gemmgen.integrations.reasons import rounds_twice, why_torch
from gemmgen.integrations.replace import Replacement
from gemmgen.integrations.scaled import ScaledKernel
from gemmgen.integrations.scaled_operator import TILES, Functions, count_flops, multiplied, new_d

SCALES: Final = "weight_scale_inv"
"""The name of the scales of a weight in checkpoints: an element is multiplied by its scale."""


class BlockScaledLinear(nn.Module):
    """A linear layer whose weight is e4m3 with a scale for each 128 x 128 elements, which a kernel computes.

    The state dict has ``weight`` [N, K], ``weight_scale_inv`` [ceil(N / 128), ceil(K / 128)] and, if there is
    one, ``bias`` [N], as checkpoints of DeepSeek-V3 and of models like it. A call quantises the rows of its
    input (`quantize_rows`), and the kernel multiplies. If the kernel does not take a call, torch multiplies
    the input by the dequantised weight, and `reason` says why. That product has a gradient of the input.

    The layer has no gradient of its weight. It can be copied, moved with `to`, compiled without a graph break
    and exported.
    """

    reason: str
    """Why the last call was not the kernel's; empty if it was, or before the first."""
    weight: nn.Parameter
    weight_scale_inv: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        kernel: Kernel,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Make a layer whose weight has any values, for a state dict to fill; `dtype` is that of the bias.

        Raises ValueError if the kernel computes anything but e4m3 operands with 1 x 128 scales of A and
        128 x 128 scales of B, and at most a bias.
        """
        super().__init__()
        blocks = -(-out_features // BLOCK), -(-in_features // BLOCK)
        made = torch.empty(out_features, in_features, dtype=E4M3, device=device)
        scales = torch.ones(blocks, dtype=torch.float32, device=device)
        added = torch.zeros(out_features, dtype=dtype, device=device) if bias else None
        self._take(made, scales, added, kernel)

    @classmethod
    def of(cls, layer: nn.Module, kernel: Kernel) -> BlockScaledLinear:
        """Return a layer that shares ``weight``, ``weight_scale_inv`` and ``bias`` of another one.

        The other layer may be of any class, as the linear layers of an engine are. Raises ValueError for
        tensors of other types or shapes, and as the constructor does.
        """
        tensors = [getattr(layer, name, None) for name in ("weight", SCALES, "bias")]
        weight, scales, bias = cast("list[Any]", tensors)
        if not (isinstance(weight, Tensor) and isinstance(scales, Tensor)):
            raise ValueError(f"layer must have tensors weight and {SCALES}, found {type(layer).__name__}")
        if weight.dtype != E4M3 or weight.dim() != 2:
            raise ValueError(f"weight must be {E4M3} [N, K], found {weight.dtype} {[*weight.shape]}")
        blocks = [-(-extent // BLOCK) for extent in weight.shape]
        if scales.dtype != torch.float32 or [*scales.shape] != blocks:
            found = f"{scales.dtype} {[*scales.shape]}"
            raise ValueError(f"{SCALES} must be torch.float32 {blocks}, found {found}")
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(weight, scales, cast("Tensor | None", bias), kernel)
        return made.train(layer.training)

    def _take(self, weight: Tensor, scales: Tensor, bias: Tensor | None, kernel: Kernel) -> None:
        self.out_features, self.in_features = weight.shape
        for name, tensor in (("weight", weight), (SCALES, scales), ("bias", bias)):
            of_layer = tensor if tensor is None or isinstance(tensor, nn.Parameter) else nn.Parameter(
                tensor, requires_grad=False
            )  # fmt: skip
            self.register_parameter(name, of_layer)
        self._kernel = ScaledKernel.of(kernel)
        if self._kernel.recipe != TILES:
            raise ValueError(
                f"{name_of(kernel)} has a scale for each column of b, and weights for 128 of them"
            )
        if self._kernel.has_bias and bias is None:
            raise ValueError(f"{name_of(kernel)} needs {BIAS}, and the layer has no bias")
        # A layer can be copied, and a module cannot: the layer keeps the module's functions.
        self._functions = Functions.of(kernel)
        if self._kernel.is_traceable:
            remember(kernel)
        self.reason = ""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        """Return input [..., K] times the transposed weight, and the bias, in the type of the input."""
        reason = self._why_torch(input)
        if torch.compiler.is_compiling():
            return self._torchs(input) if reason or not self._may_be_taken(input) else self._compiled(input)
        if not reason:
            try:
                d = self._product(*quantize_rows(input.detach().reshape(-1, self.in_features)))
            except REFUSALS as error:
                raise_unless_refused(error)
                reason = str(error)
            else:
                self.reason = ""
                return d.reshape(*input.shape[:-1], self.out_features)
        self.reason = reason
        return self._torchs(input)

    def _why_torch(self, input: Tensor) -> str:  # noqa: A002
        """Return why the kernel is not asked; an empty string if it is."""
        if reason := why_torch(input, input, self.bias):
            return reason
        if not input.ndim or input.shape[-1] != self.in_features:
            return "input has another number of columns than the weight"  # torch says what is wrong
        if input.dtype != self._kernel.out_dtype:
            return f"{self._kernel.name} makes {self._kernel.out_dtype}, and the input is {input.dtype}"
        if torch.is_grad_enabled() and any(
            each is not None and each.requires_grad for each in (input, self.bias)
        ):
            return "the input or the bias requires grad, and the kernel has no backward"
        if self.bias is not None and not self._kernel.has_bias and rounds_twice(self._kernel.out_dtype):
            return f"{self._kernel.name} has no {BIAS}: its product would be rounded before the bias is added"
        return ""

    def _may_be_taken(self, input: Tensor) -> bool:  # noqa: A002
        """Return False if the kernel refuses a call for facts that torch guards."""
        on_gpu = input.device.type in ("cuda", "meta")  # the second stands for any
        return self._kernel.is_traceable and on_gpu and self.in_features % 16 == 0

    @property
    def _fused(self) -> Tensor | None:
        """The bias that the kernel adds."""
        return self.bias if self._kernel.has_bias else None

    def _product(self, a: Tensor, a_scale: Tensor) -> Tensor:
        d = multiplied(self._functions, a, self.weight.T, a_scale, self.weight_scale_inv, self._fused)
        return d if self.bias is None or self._kernel.has_bias else d + self.bias

    def _compiled(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the output under torch.compile and torch.export, which see the quantisation."""
        a, a_scale = quantize_rows(input.reshape(-1, self.in_features))
        name, dtype = self._kernel.name, self._kernel.out_dtype
        d = block_scaled_mm(a, self.weight, a_scale, self.weight_scale_inv, self._fused, dtype, name)
        d = d if self.bias is None or self._kernel.has_bias else d + self.bias
        return d.reshape(*input.shape[:-1], self.out_features)

    def _torchs(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return torch's product by the dequantised weight."""
        weight = dequantized_weight(self.weight, self.weight_scale_inv, input.dtype)
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return functional.linear(input, weight, bias)

    @property
    def kernel_name(self) -> str:
        """The name of the kernel."""
        return self._kernel.name

    def extra_repr(self) -> str:
        """Return the text between the brackets of the layer's repr."""
        features = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{features}, bias={self.bias is not None}, kernel={self._kernel.name}"


def replace_block_scaled_linear(
    model: nn.Module, kernel: Kernel, *, only: Callable[[str], bool] | None = None
) -> Replacement:
    """Let a kernel compute the layers of a model that have a weight with scales of blocks.

    These are the layers of any class with tensors ``weight`` and ``weight_scale_inv``, as engines and models
    have them for such checkpoints; parameters stay the same objects. `only` says by the qualified name if a
    layer is meant; all are without it. A layer at several places of the model is replaced at each by one.

    Return how many layers were replaced, with their names, and the reason for each other such layer: its
    tensors have other types or shapes, it has hooks, or a bias that the kernel does not add.

    Raises ValueError for a kernel as the constructor of `BlockScaledLinear` does.
    """
    has_bias = _kernel_of(kernel).has_bias
    made: dict[int, BlockScaledLinear | str] = {}
    placed: list[tuple[str, nn.Module, str, BlockScaledLinear]] = []
    left: dict[str, str] = {}
    modules = dict(cast(Any, model).named_modules(remove_duplicate=False))
    for name, layer in cast("dict[str, nn.Module]", modules).items():
        if not isinstance(getattr(layer, SCALES, None), Tensor):
            continue
        if not name:
            left[name] = "the model is itself the layer, and nothing holds it: use BlockScaledLinear.of"
        elif isinstance(layer, BlockScaledLinear):
            left[name] = f"{layer.kernel_name} computes the layer already"
        elif only is not None and not only(name):
            left[name] = "`only` does not mean the layer"
        else:
            if id(layer) not in made:
                made[id(layer)] = _made_of(layer, kernel, has_bias=has_bias)
            found = made[id(layer)]
            if isinstance(found, str):
                left[name] = found
            else:
                parent, _, attribute = name.rpartition(".")
                placed.append((name, modules[parent], attribute, found))
    for _, parent, attribute, new in placed:
        setattr(parent, attribute, new)
    return Replacement(len({id(new) for *_, new in placed}), tuple(name for name, *_ in placed), left)


def _made_of(layer: nn.Module, kernel: Kernel, *, has_bias: bool) -> BlockScaledLinear | str:
    """Return the layer of a kernel, or why there is none."""
    if has_bias != isinstance(getattr(layer, "bias", None), Tensor):
        return f"{name_of(kernel)} {'needs' if has_bias else 'adds no'} {BIAS}"
    if any(vars(layer).get(hooks) for hooks in ("_forward_hooks", "_forward_pre_hooks")):
        return "layer has hooks: they would be lost"
    try:
        return BlockScaledLinear.of(layer, kernel)
    except ValueError as error:
        return str(error)


def _kernel_of(kernel: Kernel) -> ScaledKernel:
    """Return a kernel with a scale for each 128 x 128 of B; raise ValueError for any other kernel."""
    found = ScaledKernel.of(kernel)
    if found.recipe != TILES:
        raise ValueError(f"{name_of(kernel)} has a scale for each column of b, and weights for 128 of them")
    return found


def compute(
    a: Tensor,
    weight: Tensor,
    a_scale: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    kernel: str,
) -> Tensor:
    """Return D [M, N] of a type, of quantised rows [M, K] and a weight [N, K], with whole 16-byte units.

    Torch multiplies dequantised operands in fp32 if the kernel refuses the tensors.
    """
    try:
        d = multiplied(Functions.of(find_kernel(kernel)), a, weight.T, a_scale, weight_scale, bias)
    except REFUSALS as error:
        raise_unless_refused(error)
        numbers = a.float() * a_scale.repeat_interleave(BLOCK, 1)[:, : a.shape[1]]
        wide = dequantized_weight(weight, weight_scale, torch.float32)
        d = functional.linear(numbers, wide, None if bias is None else bias.float()).to(dtype)
    made = new_d(a, weight.shape[0], dtype, device="meta")
    return d if d.stride() == made.stride() or d.shape[0] <= 1 else new_d(a, weight.shape[0], dtype).copy_(d)


def shape(
    a: Tensor,
    weight: Tensor,
    a_scale: Tensor,  # noqa: ARG001 - the operator's signature
    weight_scale: Tensor,  # noqa: ARG001
    bias: Tensor | None,  # noqa: ARG001
    dtype: torch.dtype,
    kernel: str,  # noqa: ARG001
) -> Tensor:
    """Return D without memory."""
    return new_d(a, weight.shape[0], dtype)


def count_flops_of_layer(a: Any, weight: Any, *_: object, **__: object) -> int:
    """Return 2 M N K by the shapes of the input and the weight."""
    return count_flops(a, (weight[1], weight[0]))


LIBRARY.define(
    "block_scaled_mm(Tensor a, Tensor weight, Tensor a_scale, Tensor weight_scale, Tensor? bias, "
    "ScalarType dtype, str kernel) -> Tensor",
    tags=(Tag.pt2_compliant_tag, Tag.needs_exact_strides),
)
LIBRARY.impl("block_scaled_mm", compute, "CompositeExplicitAutograd")
LIBRARY.impl("block_scaled_mm", shape, "Meta")
block_scaled_mm: Final[Any] = cast(Any, torch.ops).gemmgen_integrations.block_scaled_mm
cast(Any, flop_counter).register_flop_formula(block_scaled_mm)(count_flops_of_layer)
