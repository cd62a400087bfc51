"""A linear layer whose weight has four or eight bits an element, which kernels decode in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemmgen.integrations.caller import is_eager
from gemmgen.integrations.kernels import BIAS, REFUSALS, Kernel, again_of, raise_unless_refused
from gemmgen.integrations.layer import BIAS_OF_LAYER, KernelLayer, LayerError
from gemmgen.integrations.operator import (
    by_rows,
    count_flops,
    first_taken,
    in_units,
    new_d,
    registered,
    remember,
)
from gemmgen.integrations.packed_buffers import PackedBuffers
from gemmgen.integrations.packed_weight import (
    FACTOR,
    PackedWeight,
    PackingKernel,
    WeightFormat,
    pack,
    require_one_format,
)
from gemmgen.integrations.plain_layer import hooked
from gemmgen.integrations.reasons import why_torch_blocks
from gemmgen.integrations.weights.checkpoint_layer import from_layer
from gemmgen.integrations.weights.quantized import QuantizedWeight


class _Repeated(NamedTuple):
    """How a known call of a kernel is repeated."""

    most_rows: int
    repeat: Callable[..., Tensor | None] | None
    operands: tuple[str, ...]
    """The arguments of `matmul` after A, in its order."""


class PackedLinear(PackedBuffers, KernelLayer):
    """A linear layer of a weight of four or eight bits, which kernels decode and multiply with activations.

    The weight is packed once, and the layer has no other copy of it. Its buffers are ``packed_weight`` (uint8
    [N, K / 2] of four bits, int8 or float8_e4m3fn [N, K] of eight: layout 1 of the kernels' ``pack_weight``),
    ``packed_scale`` ([words, N]: a scale for 64 or 128 of K in the type of the activations, or an int32 word
    with the scales of several blocks of K) and, for nvfp4, ``tensor_scale`` (fp32, one element). ``bias`` [N]
    is a parameter without a gradient. Two layers of one format have the same state dict, whichever kernels
    they have.

    If no kernel takes a call, torch multiplies by the decoded weight, and `reason` says why: an input of
    another type, on a CPU, or that requires grad, which this product has. It decodes the weight anew in each
    such call, and is slow.

    The layer can be copied, moved with `to`, compiled without a graph break and exported. A cast leaves the
    packed weight as it is. torch.fx records the layer as a whole. torch.jit.script raises
    NotImplementedError.
    """

    packed_weight: Tensor
    packed_scale: Tensor
    tensor_scale: Tensor | None

    def __init__(
        self,
        weight: QuantizedWeight,
        kernel: Kernel,
        *,
        few_rows: Mapping[int, Kernel] | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Pack a weight [N, K], whose N and K are multiples of 64, and keep a bias [N] in the kernels' type.

        `few_rows` has kernels for inputs of few rows, by the most rows: the one with the fewest rows is asked
        first, and `kernel` last. They read the same packed weight.

        Raises ValueError for modules that pack no weight, compute more than the product and a bias, or pack
        other formats than each other or than the weight's; for a bias without a kernel that adds it, whose
        product would be rounded twice; for a weight with zero points that the kernel does not subtract, and
        one that ``pack_weight`` refuses.
        """
        super().__init__()
        asked = by_rows(type(self).__name__, [kernel], few_rows)
        kernels = [PackingKernel.of(each) for each, _ in asked]
        self._format = require_one_format(kernels).scale.name
        self._kernel_name = ", ".join(each.name for each in kernels)
        bias_dtype = kernels[0].bias_dtype
        if bias is None and bias_dtype:
            raise ValueError(f"{self._kernel_name} needs {BIAS}, and the layer has no bias")
        if bias is not None and not bias_dtype:
            raise ValueError(
                f"{self._kernel_name} has no {BIAS}: its product would be rounded before the bias is added"
            )
        packed = pack(kernel, weight)
        self.out_features, self.in_features = weight.shape
        if bias is not None and tuple(bias.shape) != (self.out_features,):
            raise ValueError(f"bias must be [{self.out_features}], found {[*bias.shape]}")
        self._hold(packed, self._format)
        of_kernel = None if bias is None else bias.detach().to(weight.codes.device, bias_dtype, copy=True)
        frozen = None if of_kernel is None else nn.Parameter(of_kernel, requires_grad=False)
        self.register_parameter(BIAS_OF_LAYER, frozen)
        # A layer can be copied, and a module cannot: the layer keeps names, and functions of modules.
        self._names, self._most_rows = [each.name for each in kernels], [most for _, most in asked]
        self._repeated = [
            _Repeated(most, again_of(module), tuple(name for name in each.inputs if name != "a"))
            for each, (module, most) in zip(kernels, asked, strict=True)
        ]
        self._dtype = kernels[0].dtype
        self._traceable = all(each.is_traceable for each in kernels)
        for each, _ in asked:
            remember(each)
        self.reason = ""

    @classmethod
    def of(cls, layer: nn.Module, kernel: Kernel, *, few_rows: Mapping[int, Kernel] | None = None) -> Self:
        """Return a layer with the weight, the bias and the mode of one that its library has loaded.

        The caller answers for the forward of the other layer's class: that it is the product with the
        dequantised weight, and the bias. Activations are multiplied as they are, also if that layer would
        quantise them. Its tensors are copied: let go of it to have the memory back.

        Raises ValueError for a layer without a quantised weight (`from_layer`), one with hooks of its
        calls, and as the constructor does.
        """
        if reason := hooked(layer):
            raise LayerError(reason)
        bias = cast(Any, getattr(layer, BIAS_OF_LAYER, None))
        bias = bias if isinstance(bias, Tensor) else None
        made = cls(from_layer(layer), kernel, few_rows=few_rows, bias=bias)
        made.train(layer.training)
        return made

    @property
    def _packed(self) -> PackedWeight:
        return self._held()

    @property
    def _operands(self) -> dict[str, Tensor]:
        """The arguments of `matmul` beside A: views of buffers, and the bias."""
        # Out of the containers of torch.nn.Module, whose attributes take a microsecond each.
        held = cast("dict[str, Any]", self._buffers)
        operands = {"b": held["packed_weight"].T, "b_scale": held["packed_scale"].T}
        if (factor := held["tensor_scale"]) is not None:
            operands[FACTOR] = factor
        if (bias := cast("dict[str, Any]", self._parameters)[BIAS_OF_LAYER]) is not None:
            operands[BIAS] = bias
        return operands

    def _again(self, input: Tensor) -> Tensor | None:  # noqa: A002
        if not is_eager(input):
            return None
        rows = input.shape[:-1].numel()
        for most_rows, repeat, names in self._repeated:
            if rows <= most_rows:
                operands = self._operands
                return None if repeat is None else repeat(input, *[operands[name] for name in names])
        return None

    def _why_torch(self, input: Tensor) -> str:  # noqa: A002
        if reason := why_torch_blocks(input, self.packed_weight, self.packed_scale, self.bias):
            return reason
        if not input.ndim or input.shape[-1] != self.in_features:
            return "input has another number of columns than the weight"  # torch says what is wrong
        if input.dtype != self._dtype:
            return f"{self._kernel_name} multiplies {self._dtype}, and the input is {input.dtype}"
        if torch.is_grad_enabled() and any(
            each is not None and each.requires_grad for each in (input, self.bias)
        ):
            return "the input or the bias requires grad, and the kernel has no backward"
        return ""

    def _product(self, call: Tensor) -> Tensor:
        return multiplied(call, self._operands, self._names, self._most_rows)

    def _traced(self, call: Tensor) -> Tensor | None:
        on_gpu = call.device.type in ("cuda", "meta")  # the second stands for any
        if not (self._traceable and on_gpu):
            return None
        rows = self._rows(call)
        d = packed_linear(rows, *self._packed, self.bias, self._format, self._names, self._most_rows)
        return d.reshape(*call.shape[:-1], self.out_features)

    def _torchs(self, input: Tensor) -> Tensor:  # noqa: A002
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return functional.linear(input, self._packed.numbers(self._format, input.dtype), bias)

    def extra_repr(self) -> str:
        """Return the text between the brackets of the layer's repr."""
        element, _ = WeightFormat.of(self._format, self.packed_weight.dtype)
        return f"{super().extra_repr()}, weight={element}, scales={self._format}"


def multiplied(
    input: Tensor,  # noqa: A002 - as torch calls it
    operands: Mapping[str, Tensor],
    kernels: Sequence[str],
    most_rows: Sequence[int],
) -> Tensor:
    """Return the output [..., N] of the first kernel that takes an input [..., K].

    Raises ValueError with all refusals if none does.
    """
    rows = input.shape[:-1].numel()

    def why_not_asked(name: str, most: int) -> str:
        return f"{name} is for up to {most} rows" if rows > most else ""

    def compute(kernel: Any) -> Tensor:
        # All dimensions go to a kernel that takes them: a later call with as many is then a known one.
        takes_all = input.ndim > 1 and again_of(kernel) is not None
        matrix = input if takes_all else input.reshape(rows, input.shape[-1])
        d = kernel.matmul(matrix, **operands)
        return d.reshape(*input.shape[:-1], d.shape[-1])

    return first_taken(kernels, why_not_asked, most_rows, compute)


def compute(
    input: Tensor,  # noqa: A002 - as torch calls it
    weight: Tensor,
    scales: Tensor,
    factor: Tensor | None,
    bias: Tensor | None,
    scale_format: str,
    kernels: Sequence[str],
    most_rows: Sequence[int],
) -> Tensor:
    """Return D [M, N] of an input [M, K] and a packed weight, with whole 16-byte units.

    Torch multiplies by the decoded weight if all kernels refuse the tensors.
    """
    packed = PackedWeight(weight, scales, factor)
    biases = {} if bias is None else {BIAS: bias}
    try:
        d = multiplied(input, {**packed.operands, **biases}, kernels, most_rows)
    except REFUSALS as error:
        raise_unless_refused(error)
        d = functional.linear(input, packed.numbers(scale_format, input.dtype), bias)
    return in_units(d)


def shape(input: Tensor, weight: Tensor, *_: object) -> Tensor:  # noqa: A002 - as torch calls it
    """Return D [M, N] without memory."""
    return new_d(input, weight.shape[0])


def flops(input: Any, weight: Any, *_: object, **__: object) -> int:  # noqa: A002 - as torch calls it
    """Return 2 M N K by the shapes of the input [M, K] and the packed weight [N, …]."""
    return count_flops(input, (input[-1], weight[0]))


packed_linear: Final[Any] = registered(
    "packed_linear",
    "(Tensor input, Tensor weight, Tensor scales, Tensor? factor, Tensor? bias, str scale_format, "
    "str[] kernels, int[] most_rows) -> Tensor",
    compute,
    shape,
    flops,
)
