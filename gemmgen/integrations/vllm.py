"""Kernels in vLLM: of linear layers with scales of blocks or weights of integers, and of experts in bf16.

vLLM's own selection asks these kernels first, and takes its own for layers that they refuse.

vLLM 0.32 has three holes here. Its function that registers linear kernels knows no scales of blocks, and puts
kernels behind its own; its experts have no registry; and a compiled model that it keeps on disk is taken
again by a server with other kernels. So kernels are put into its tables, at the front, and into the answer of
the function that lists the experts of its Triton backend; and their names are put beside the environment
variables by which it finds compiled models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn

from gemmgen.integrations.block_scaled_linear import K_UNIT, BlockScaledLinear
from gemmgen.integrations.experts import SWIGLU_ALPHA, SWIGLU_LIMIT, Experts, ExpertTensors
from gemmgen.integrations.kernels import Kernel, name_of
from gemmgen.integrations.packed_product import PackedProduct
from gemmgen.integrations.packed_weight import PackedWeight
from gemmgen.integrations.quantize import BLOCK
from gemmgen.integrations.weights import from_compressed_tensors
from gemmgen.integrations.weights.quantized import Bits

OLDEST: Final = "0.32"
"""The release of vLLM that this file was written for and run with."""
HOPPER: Final = 90
"""The compute capability of these kernels, as vLLM counts."""


ACTIVATION_NUMBERS: Final[Mapping[str, Mapping[str, float | None]]] = {
    "silu": {"swiglu_limit": None, "swiglu_alpha": 1.0, "swiglu_beta": 0.0},
    "swigluoai": {"swiglu_limit": SWIGLU_LIMIT, "swiglu_alpha": SWIGLU_ALPHA, "swiglu_beta": 1.0},
}
"""The numbers in an activation, by the attributes of a layer's configuration, where None stands for these."""

try:
    _linear: Any = import_module("vllm.model_executor.kernels.linear")
    _blocks: Any = import_module("vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel")
    _mixed: Any = import_module("vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel")
    _parameters: Any = import_module("vllm.model_executor.parameter")
    _layers: Any = import_module("vllm.model_executor.layers.quantization.utils")
    _types: Any = import_module("vllm.scalar_type").scalar_types
    _envs: Any = import_module("vllm.envs")
    _moe: Any = import_module("vllm.model_executor.layers.fused_moe.modular_kernel")
    _oracle: Any = import_module("vllm.model_executor.layers.fused_moe.oracle.unquantized")
    _reduced: Any = import_module("vllm.model_executor.layers.fused_moe.topk_weight_and_reduce")
    _activations: Any = import_module("vllm.model_executor.layers.fused_moe.activation")
    _platforms: Any = import_module("vllm.platforms")
    _quantizer: Any = import_module("vllm.model_executor.layers.quantization.input_quant_fp8")
    LINEAR_KERNELS: dict[Any, list[Any]] = _linear._POSSIBLE_FP8_BLOCK_KERNELS
    BlockKernel: Any = _blocks.Fp8BlockScaledMMLinearKernel
    MIXED_KERNELS: dict[Any, list[Any]] = _linear._POSSIBLE_KERNELS
    MixedKernel: Any = _mixed.MPLinearKernel
    FACTORS: dict[str, Callable[[], Any]] = _envs.environment_variables
    ExpertsKernel: Any = _moe.FusedMoEExpertsModular
    TRITON: Any = _oracle.UnquantizedMoeBackend.TRITON
    Activation: Any = _activations.MoEActivation
except (ImportError, AttributeError) as error:
    raise ImportError(f"vLLM {OLDEST} is needed, whose selection of kernels this plug-in knows") from error


FACTOR: Final = "GEMMGEN_KERNELS"
"""The name of the kernels among the environment variables by which vLLM finds a compiled model."""


def plug_in(
    *,
    fp8_blocks: Kernel | None = None,
    experts: Experts | None = None,
    int4: PackedProduct | None = None,
    int8: PackedProduct | None = None,
) -> None:
    """Put kernels before vLLM's own, for this process, in place of the kernels of an earlier call.

    Args:
        fp8_blocks: A module or a library with fp32 scales of blocks, for linear layers.
        experts: Kernels for experts in bf16.
        int4: Kernels for linear layers of weights in int4.
        int8: Kernels for linear layers of weights in int8.

    Raises ValueError for a kernel that computes anything else.
    """
    made = linear_kernel(fp8_blocks) if fp8_blocks is not None else None
    experts_made = experts_kernel(experts) if experts is not None else None
    products = {"int4": int4, "int8": int8}
    for name, product in products.items():
        if product is not None and product.format.element != name:
            raise ValueError(f"{name} is for kernels of {name}, and {product.name} packs {product.format}")
    mixed = [integer_kernel(product) for product in products.values() if product is not None]
    cuda = _platforms.PlatformEnum.CUDA
    _put_first(LINEAR_KERNELS[cuda], [made] if made else [])
    _put_first(MIXED_KERNELS[cuda], mixed)
    listed: Any = _oracle.backend_to_kernel_cls
    listed = getattr(listed, "of_vllm", listed)
    _oracle.backend_to_kernel_cls = _before(listed, experts_made) if experts_made else listed
    names = {
        "fp8_blocks": None if fp8_blocks is None else name_of(fp8_blocks),
        "experts": None if experts is None else str(experts),
        **{name: None if product is None else str(product) for name, product in products.items()},
    }
    FACTORS.pop(FACTOR, None)
    if any(names.values()):
        FACTORS[FACTOR] = lambda: str(names)


def _put_first(table: list[Any], made: list[Any]) -> None:
    """Put classes first into a table of vLLM's, in place of the classes of an earlier call."""
    table[:] = [*made, *(each for each in table if not hasattr(each, "of_gemmgen"))]


def _before(listed: Callable[[Any], list[Any]], made: Any) -> Callable[[Any], list[Any]]:
    """Return the function that lists the experts of a backend, with ours before those in Triton."""

    def backend_to_kernel_cls(backend: Any) -> list[Any]:
        found = listed(backend)
        return [made, *found] if backend == TRITON else found

    setattr(backend_to_kernel_cls, "of_vllm", listed)  # noqa: B010 - a function has no such attribute
    return backend_to_kernel_cls


def linear_kernel(kernel: Kernel) -> Any:
    """Return a class of vLLM's for linear layers with scales of blocks, which a kernel computes.

    Raises ValueError for a kernel that computes anything else.
    """
    product = BlockScaledLinear.product_of(kernel)
    name, d_type = product.name, product.dtype

    class GemmgenFp8BlockKernel(BlockKernel):
        of_gemmgen = True

        def __init__(self, config: Any) -> None:
            BlockKernel.__init__(self, config)
            self.quant_fp8 = _quantizer.QuantFP8(
                static=False,
                group_shape=config.activation_quant_key.scale.group_shape,
                column_major_scales=True,
                tma_aligned_scales=True,  # which the kernel reads without a copy
                use_ue8m0=False,
            )

        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
            return _is_hopper(compute_capability)

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            can, reason = BlockKernel.can_implement(config)
            if not can:
                return False, str(reason)
            blocks = [
                (key.scale.group_shape.row, key.scale.group_shape.col)
                for key in (config.activation_quant_key, config.weight_quant_key)
            ]
            if blocks != [(1, BLOCK), (BLOCK, BLOCK)]:
                return False, f"{name} has scales of 1 x 128 and 128 x 128, and the layer of {blocks}"
            if config.out_dtype != d_type:
                return False, f"{name} makes {d_type}, and the layer {config.out_dtype}"
            if config.weight_shape[1] % K_UNIT:
                return False, f"K must be a multiple of {K_UNIT}, found {config.weight_shape[1]}"
            return True, None

        def apply_block_scaled_mm(self, A: Tensor, B: Tensor, As: Tensor, Bs: Tensor) -> Tensor:  # noqa: N803
            return product(A, B, As, Bs)

    return GemmgenFp8BlockKernel


def integer_kernel(product: PackedProduct) -> Any:
    """Return a class of vLLM's for linear layers of weights in int4 or int8, which kernels compute."""
    name, (element, scale_format) = product.name, product.format
    bits: Bits = 4 if element == "int4" else 8
    vector, middle = scale_format.vector, 1 << bits - 1
    symmetric = {"int4": _types.uint4b8, "int8": _types.uint8b128}[element]

    def why_not(config: Any) -> str:
        """Return why the kernels do not compute a layer of a configuration; empty if they do."""
        if config.zero_points and not scale_format.zeros:
            return f"{name} subtracts {middle}, and the layer has zero points"
        wanted = _types.uint4 if config.zero_points else symmetric
        if config.weight_type != wanted:
            return f"{name} multiplies weights of {wanted}, and the layer has {config.weight_type}"
        for dtype in (config.act_type, config.out_type):
            if dtype not in (product.dtype, None):
                return f"{name} multiplies and makes {product.dtype}, and the layer {dtype}"
        k, n = config.partition_weight_shape
        is_of_rows = config.group_size == -1
        if not is_of_rows and config.group_size % vector:
            return f"{name} has a scale for {vector} of K, and the layer has groups of {config.group_size}"
        if not is_of_rows and k % config.group_size:
            return f"K must be a multiple of the group of {config.group_size}, found {k}"
        return product.why_not(n, k)

    class GemmgenIntegerKernel(MixedKernel):
        of_gemmgen = True

        @classmethod
        def get_min_capability(cls) -> int:
            return HOPPER

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            can, reason = _is_hopper(None)
            reason = reason or why_not(config)
            return can and not reason, reason or None

        def process_weights_after_loading(self, layer: nn.Module) -> None:
            """Put the packed weight in place of the checkpoint's tensors, whose memory is then free."""
            words, scales, zeros = self._get_weight_params(layer)
            # To the order of compressed-tensors, which GPTQ's parameters are turned to.
            _parameters.permute_param_layout_(words, input_dim=1, output_dim=0, packed_dim=1)
            _parameters.permute_param_layout_(scales, input_dim=1, output_dim=0)
            if self.config.zero_points:
                _parameters.permute_param_layout_(zeros, input_dim=1, output_dim=0, packed_dim=0)
            try:
                packed = product.pack(
                    from_compressed_tensors(
                        words.data,
                        scales.data,
                        weight_zero_point=zeros.data if self.config.zero_points else None,
                        group_size=self.config.group_size,
                        bits=bits,
                    )
                )
            except ValueError as error:
                own = f"with VLLM_DISABLED_KERNELS={type(self).__name__} vLLM takes its own kernels"
                raise ValueError(f"{self.w_q_name} is no weight for {name}: {error} ({own})") from None
            _layers.replace_parameter(layer, self.w_q_name, packed.weight)
            _layers.replace_parameter(layer, self.w_s_name, packed.scales)
            if self.w_zp_name is not None:  # GPTQ has zero points of symmetric weights, too
                layer.register_parameter(self.w_zp_name, None)

        def apply_weights(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
            weight, scales, _ = self._get_weight_params(layer)
            d = product(x.reshape(-1, x.shape[-1]), PackedWeight(weight, scales, None))
            if bias is not None:
                # vLLM chooses a class before it says if a layer has a bias. Machete rounds before it, too.
                d.add_(bias)
            return d.reshape(*x.shape[:-1], d.shape[-1])

    # The name by which VLLM_DISABLED_KERNELS disables a class.
    GemmgenIntegerKernel.__name__ = f"Gemmgen{element.capitalize()}Kernel"
    return GemmgenIntegerKernel


def _is_hopper(compute_capability: int | None) -> tuple[bool, str | None]:
    """Return whether a GPU has these kernels' compute capability, by default the one of this process."""
    if compute_capability is None:
        found = _platforms.current_platform.get_device_capability()
        compute_capability = found.to_int() if found else None
    if compute_capability == HOPPER:
        return True, None
    return False, f"these kernels need compute capability 9.0, found {compute_capability}"


def experts_kernel(experts: Experts) -> Any:
    """Return a class of vLLM's for experts in bf16, which kernels compute.

    Raises ValueError for kernels whose activation has no name in vLLM for their order of columns.
    """
    if experts.activation is None:
        raise ValueError(f"{experts} have an activation and an order of columns without a name in vLLM")
    known = Activation(experts.activation)
    numbers = ACTIVATION_NUMBERS[experts.activation]

    class GemmgenExperts(ExpertsKernel):
        of_gemmgen = True

        @staticmethod
        def is_supported_config(kind: Any, moe_config: Any, *rest: Any) -> tuple[bool, str | None]:
            supported, reason = ExpertsKernel.is_supported_config(kind, moe_config, *rest)
            if not supported:
                return supported, reason
            if moe_config.has_bias != experts.has_bias:
                return False, f"kernel does not support {'a' if moe_config.has_bias else 'no'} bias"
            for name, own in numbers.items():
                if (number := getattr(moe_config, name)) not in (None, own):
                    return False, f"kernel does not support {name} {number}"
            reason = experts.why_not_weights(*_weights(moe_config))
            return not reason, reason or None

        @staticmethod
        def activation_format() -> Any:
            return _moe.FusedMoEActivationFormat.Standard

        @staticmethod
        def _supports_current_device() -> bool:
            return _is_hopper(None)[0]

        @staticmethod
        def _supports_no_act_and_mul() -> bool:
            return False

        @staticmethod
        def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
            return weight_key is None and activation_key is None

        @staticmethod
        def _supports_activation(activation: Any) -> bool:
            return activation == known

        @staticmethod
        def _supports_parallel_config(moe_parallel_config: Any) -> bool:
            return not moe_parallel_config.use_all2all_kernels

        @staticmethod
        def _supports_shape(hidden_dim: int) -> bool:  # noqa: ARG004 - `is_supported_config` asks for all sizes
            return True

        def workspace_shapes(self, *sizes: Any) -> tuple[tuple[int, ...], ...]:
            tokens, _, hidden, *_ = sizes
            return (0,), (0,), (tokens, hidden)

        def finalize_weight_and_reduce_impl(self) -> Any:
            return _reduced.TopKWeightAndReduceNoOP()

        def apply(
            self,
            output: Tensor,
            hidden_states: Tensor,
            w1: Tensor,
            w2: Tensor,
            topk_weights: Tensor,
            topk_ids: Tensor,
            *_: Any,
            expert_map: Tensor | None,
            apply_router_weight_on_input: bool,
            **__: Any,
        ) -> None:
            if expert_map is not None:  # -1 for experts of other ranks
                local = expert_map[topk_ids.long()]
                topk_ids = torch.where(local < 0, len(w1), local)
            if apply_router_weight_on_input:  # of a single expert of each token
                hidden_states = (hidden_states * topk_weights).to(hidden_states.dtype)
                topk_weights = torch.ones_like(topk_weights)
            biases = (self.w1_bias, self.w2_bias) if experts.has_bias else (None, None)
            call = ExpertTensors(hidden_states, topk_ids, topk_weights, w1.mT, w2.mT, *biases)
            output.copy_(experts(call, has_other_pairs=expert_map is not None))

    return GemmgenExperts


def _weights(moe_config: Any) -> tuple[Tensor, ...]:
    """Return the weights and biases of a layer, as the kernels take them, without memory."""
    experts, hidden = moe_config.num_local_experts, moe_config.hidden_dim
    width = moe_config.intermediate_size_per_partition

    def empty(*shape: int) -> Tensor:
        return torch.empty(experts, *shape, dtype=moe_config.in_dtype, device="meta")

    biases = (empty(2 * width), empty(hidden)) if moe_config.has_bias else ()
    return empty(2 * width, hidden).mT, empty(hidden, width).mT, *biases
