"""A linear layer of e4m3 weights with a scale for each 128 x 128 of them, as checkpoints of DeepSeek have."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any, Final, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemmgen.integrations.kernels import BIAS, REFUSALS, Kernel, dtypes_of, name_of, raise_unless_refused
from gemmgen.integrations.layer import BIAS_OF_LAYER, WEIGHT, LayerError, ParameterLayer
from gemmgen.integrations.operator import (
    count_flops_of_layer,
    find_kernel,
    in_units,
    new_d,
    registered,
    remember,
)
from gemmgen.integrations.quantize import BLOCK, E4M3, dequantized_weight, quantize_rows
from gemmgen.integrations.reasons import rounds_twice, why_torch_blocks
from gemmgen.integrations.scaled import ScaledKernel
from gemmgen.integrations.scaled_operator import TILES, Functions, multiplied

SCALES: Final = "weight_scale_inv"
"""The name of the scales of a weight in checkpoints: an element is multiplied by its scale."""
FP32: Final = torch.float32
WIDENED: Final = (FP32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu)
"""The types of scales in checkpoints: each number of them is one of fp32, in which kernels read scales."""
BYTES: Final = (torch.uint8, torch.int8)
"""The types as which checkpoints store the bits of e4m3, if their writer knows no such type."""
K_UNIT: Final = 16
"""Elements of K that kernels with scales of blocks read at a time."""


class BlockProduct(NamedTuple):
    """The product of quantised rows and a weight without a bias, as servers call it."""

    name: str
    """The kernel's."""
    dtype: torch.dtype
    """The type of D."""

    def __call__(self, a: Tensor, weight: Tensor, a_scale: Tensor, weight_scale: Tensor) -> Tensor:
        """Return D [M, N] of rows [M, K] and a weight [N, K], with scales of 1 x 128 and of 128 x 128."""
        return block_scaled_mm(a, weight, a_scale, weight_scale, None, self.dtype, self.name)


class BlockScaledLinear(ParameterLayer):
    """A linear layer whose weight is e4m3 with a scale for each 128 x 128 elements, which a kernel computes.

    The state dict has ``weight`` [N, K], ``weight_scale_inv`` [ceil(N / 128), ceil(K / 128)] and, if there is
    one, ``bias`` [N], as checkpoints of DeepSeek-V3 and of models like it. A call quantises the rows of its
    input (`quantize_rows`), and the kernel multiplies. If the kernel does not take a call, torch multiplies
    the input by the dequantised weight, and `reason` says why. That product has a gradient of the input.

    Weight and scales keep their types if the layer is cast, and have no gradient. The layer can be copied,
    moved with `to`, compiled without a graph break and exported. torch.fx records it as a whole.
    torch.jit.script raises NotImplementedError.
    """

    PARAMETERS = (WEIGHT, SCALES, BIAS_OF_LAYER)
    OPTIONAL = frozenset({BIAS_OF_LAYER})
    UNKNOWN = "whose forward may be more than the product: name the class in `classes` if it is not"
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
        128 x 128 scales of B, and at most a bias, or if `in_features` is no multiple of 16.
        """
        super().__init__()
        _require_k(in_features)
        blocks = -(-out_features // BLOCK), -(-in_features // BLOCK)
        made = {
            WEIGHT: torch.empty(out_features, in_features, dtype=E4M3, device=device),
            SCALES: torch.ones(blocks, dtype=FP32, device=device),
            BIAS_OF_LAYER: torch.zeros(out_features, dtype=dtype, device=device) if bias else None,
        }
        for name, tensor in made.items():
            frozen = None if tensor is None else nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(name, frozen)
        self.in_features, self.out_features = in_features, out_features
        self._use(kernel)

    @classmethod
    def of(cls, layer: nn.Module, kernel: Kernel) -> Self:
        """Return a layer that shares ``weight``, ``weight_scale_inv`` and ``bias`` of another one.

        The caller answers for the forward of the other layer's class, which may be any: that it is the
        product with the weight, and the bias. Scales in bf16, fp16 and UE8M0 are widened to fp32, exactly;
        all other parameters are the same objects. The mode and attributes that are plain values are copied.

        Raises ValueError for tensors of other types or shapes, for a layer with anything that the new one
        would not have (as `Linear.of`), and as the constructor does.
        """
        return cls.in_place_of(layer, kernel, None)

    @classmethod
    def adds_bias(cls, kernel: Kernel) -> bool:
        """Return True if a kernel adds the bias; raise ValueError if it computes no layer of this class."""
        found = ScaledKernel.of(kernel)
        if found.recipe != TILES:
            raise ValueError(
                f"{name_of(kernel)} has a scale for each column of b, and weights for 128 of them"
            )
        return found.has_bias

    @classmethod
    def product_of(cls, kernel: Kernel) -> BlockProduct:
        """Return a kernel's product.

        Raises ValueError if the kernel computes no layer of this class, or adds a bias.
        """
        if cls.adds_bias(kernel):
            raise ValueError(f"{name_of(kernel)} adds {BIAS}, and a server adds the bias itself")
        remember(kernel)
        return BlockProduct(name_of(kernel), dtypes_of(kernel).get("out") or kernel.COMPUTES["out_dtype"])

    @classmethod
    def _require_tensors(cls, layer: nn.Module) -> None:
        weight, scales = (cast(Any, getattr(layer, name, None)) for name in (WEIGHT, SCALES))
        if not (isinstance(weight, Tensor) and isinstance(scales, Tensor)):
            found = type(layer).__name__
            raise LayerError(f"layer must have tensors {WEIGHT} and {SCALES}, found {found}")
        found = f"found {weight.dtype} {[*weight.shape]}"
        if weight.dtype != E4M3 or weight.dim() != 2:
            raise LayerError(f"{WEIGHT} must be {E4M3} [N, K], {found}")
        blocks = [-(-extent // BLOCK) for extent in weight.shape]
        found = f"found {scales.dtype} {[*scales.shape]}"
        if scales.dtype not in WIDENED:
            types = _listed(WIDENED)
            raise LayerError(f"{SCALES} must be one of {types} {blocks}, {found}{_bytes_hint(scales)}")
        if [*scales.shape] != blocks:
            raise LayerError(f"{SCALES} must be {scales.dtype} {blocks}, {found}")
        try:
            _require_k(weight.shape[1])
        except ValueError as error:
            raise LayerError(str(error)) from None
        if getattr(layer, "activation_scheme", "dynamic") != "dynamic":
            raise LayerError("layer has a static scale of its input, and kernels take one of each row")

    @classmethod
    def _converted(cls, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if name != SCALES or parameter is None or parameter.dtype == FP32:
            return parameter
        return nn.Parameter(parameter.detach().to(FP32), requires_grad=False)

    def _take(self, kernel: Kernel) -> None:
        self.adds_bias(kernel)
        self._kernel = ScaledKernel.of(kernel)
        self._kernel_name = self._kernel.name
        if self._kernel.has_bias and self.bias is None:
            raise ValueError(f"{name_of(kernel)} needs {BIAS}, and the layer has no bias")
        # A layer can be copied, and a module cannot: the layer keeps the module's functions.
        self._functions = Functions.of(kernel)
        if self._kernel.is_traceable:
            remember(kernel)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Let torch move or cast the parameters; the bits of the weight and its scales have one type each."""
        kept = [self.weight, self.weight_scale_inv]

        def apply(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            is_cast = made.dtype != tensor.dtype and any(tensor is each for each in kept)
            return tensor.to(made.device) if is_cast else made

        return cast(Any, super())._apply(apply, recurse)

    def _load_from_state_dict(
        self,
        state_dict: MutableMapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load a weight of e4m3 or of its bytes, and scales whose numbers are numbers of fp32; no other type.

        Other types are an error of ``load_state_dict``: to convert by value would give other numbers. Torch
        lets a module change `state_dict`, which is a copy of the caller's.
        """
        errors: list[str] = []
        for name, read in ((WEIGHT, _as_weight), (SCALES, _as_scales)):
            found = state_dict.get(f"{prefix}{name}")
            if isinstance(found, Tensor):
                try:
                    state_dict[f"{prefix}{name}"] = read(found)
                except ValueError as error:
                    errors.append(f"{prefix}{name} {error}")
        error_msgs.extend(errors)
        if not errors:
            cast(Any, super())._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )

    @property
    def _numbers(self) -> tuple[Tensor, Tensor]:
        """The weight and its scales for a product, which has no gradient of either."""
        return self.weight.detach(), self.weight_scale_inv.detach()

    def _why_torch(self, input: Tensor) -> str:  # noqa: A002
        if reason := why_torch_blocks(input, self.weight, self.weight_scale_inv, self.bias):
            return reason
        if not input.ndim or input.shape[-1] != self.in_features:
            return "input has another number of columns than the weight"  # torch says what is wrong
        if input.dtype != self._kernel.out_dtype:
            return f"{self._kernel.name} makes {self._kernel.out_dtype}, and the input is {input.dtype}"
        if torch.is_grad_enabled() and any(
            each is not None and each.requires_grad for each in (input, self.bias)
        ):
            return "the input or the bias requires grad, and the kernel has no backward"
        return self.why_never()

    def why_never(self) -> str:
        """Return why the kernel computes no call of the layer as it is now; an empty string if it may."""
        if self.bias is None or self._kernel.has_bias or not rounds_twice(self._kernel.out_dtype):
            return ""
        return f"{self._kernel.name} has no {BIAS}: its product would be rounded before the bias is added"

    @property
    def _fused(self) -> Tensor | None:
        """The bias that the kernel adds."""
        return self.bias if self._kernel.has_bias else None

    def _finished(self, d: Tensor, input: Tensor) -> Tensor:  # noqa: A002
        """Return the output of a product [M, N], with the bias if the kernel does not add it."""
        d = d if self.bias is None or self._kernel.has_bias else d + self.bias
        return d.reshape(*input.shape[:-1], self.out_features)

    def _product(self, call: Tensor) -> Tensor:
        weight, scales = self._numbers
        a, a_scale = quantize_rows(self._rows(call.detach()))
        return self._finished(multiplied(self._functions, a, weight.T, a_scale, scales, self._fused), call)

    def _traced(self, call: Tensor) -> Tensor | None:
        """Return the output of the operator after the quantisation, which the program has as torch's own."""
        on_gpu = call.device.type in ("cuda", "meta")  # the second stands for any
        if not (self._kernel.is_traceable and on_gpu):
            return None
        weight, scales = self._numbers
        a, a_scale = quantize_rows(self._rows(call))
        name, dtype = self._kernel.name, self._kernel.out_dtype
        return self._finished(block_scaled_mm(a, weight, a_scale, scales, self._fused, dtype, name), call)

    def _torchs(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return torch's product by the dequantised weight, also of a proxy."""
        n, k = self.out_features, self.in_features
        weight = dequantized_weight(*self._numbers, input.dtype, (n, k))
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return functional.linear(input, weight, bias)


def _require_k(k: int) -> None:
    """Raise ValueError for a K that no kernel with scales of blocks takes."""
    if k % K_UNIT:
        raise ValueError(f"in_features (K) must be a multiple of {K_UNIT}, found {k}")


def _as_weight(found: Tensor) -> Tensor:
    """Return a weight of a state dict as e4m3, without a copy; raise ValueError for one of another type."""
    if found.dtype in BYTES:
        return found.view(E4M3)
    if found.dtype != E4M3:
        raise ValueError(
            f"must be {E4M3} or its bytes in {torch.uint8}, found {found.dtype}: quantise it first"
        )
    return found


def _listed(types: Iterable[torch.dtype]) -> str:
    """Return types of elements, separated by commas."""
    return ", ".join(map(str, types))


def _bytes_hint(scales: Tensor) -> str:
    """Return the end of a message about scales that are bytes: the view which makes them numbers."""
    is_byte = scales.dtype in (torch.uint8, torch.int8)
    return ": pass bytes of UE8M0 as scales.view(torch.float8_e8m0fnu)" if is_byte else ""


def _as_scales(found: Tensor) -> Tensor:
    """Return scales of a state dict in fp32, exactly; raise ValueError for a type that fp32 does not hold."""
    if found.dtype not in WIDENED:
        raise ValueError(f"must be one of {_listed(WIDENED)}, found {found.dtype}{_bytes_hint(found)}")
    return found if found.dtype == FP32 else found.to(FP32)


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
    return in_units(d)


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


block_scaled_mm: Final[Any] = registered(
    "block_scaled_mm",
    "(Tensor a, Tensor weight, Tensor a_scale, Tensor weight_scale, Tensor? bias, ScalarType dtype, "
    "str kernel) -> Tensor",
    compute,
    shape,
    count_flops_of_layer,
)
