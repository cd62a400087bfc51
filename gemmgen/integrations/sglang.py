"""Kernels in SGLang: of linear layers with scales of blocks, and of experts in bf16.

SGLang computes by itself the layers, and the calls, that these kernels refuse.

SGLang 0.5.23 has a registry of runners of experts, and its experts without quantisation never ask it: they
choose among SGLang's own runners. So the runner is registered, and a hook puts it into such a layer if the
server was started with its name. Linear layers have no registry: hooks go around SGLang's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from logging import getLogger
from typing import Any, Final

import torch
from torch import Tensor, nn

from gemmgen.integrations import BlockScaledLinear
from gemmgen.integrations.experts import SWIGLU_ALPHA, SWIGLU_LIMIT, Experts, ExpertTensors
from gemmgen.integrations.kernels import Kernel
from gemmgen.integrations.quantize import BLOCK, E4M3

SUPPORTED: Final = "0.5.23"
"""The release of SGLang that this file was written for and tested with."""
BACKEND: Final = "gemmgen"
"""The name of the runner of experts, for ``--moe-runner-backend``."""

try:
    _runner: Any = import_module("sglang.srt.layers.moe.moe_runner.runner")
    _base: Any = import_module("sglang.srt.layers.moe.moe_runner.base")
    _moe: Any = import_module("sglang.srt.layers.moe.utils")
    _standard: Any = import_module("sglang.srt.layers.moe.token_dispatcher.standard")
    _fp8: Any = import_module("sglang.srt.layers.quantization.fp8_utils")
    batch_invariance: Any = import_module("sglang.srt.batch_invariant_ops")
    _context: Any = import_module("sglang.srt.runtime_context")
    _choices: Any = import_module("sglang.srt.arg_groups.choices")
    _hooks: Any = import_module("sglang.srt.plugins.hook_registry")
    RunnerCore: Any = _base.DispatchMoeRunnerCore
    RUNNER: Any = _moe.RegisteredMoeRunnerBackend(BACKEND)
    quantize: Callable[..., tuple[Tensor, Tensor]] = _fp8.sglang_per_token_group_quant_fp8
except (ImportError, AttributeError) as error:
    raise ImportError(f"SGLang {SUPPORTED} is needed, whose layers this plug-in knows") from error

QUANTIZATION: Final = "sglang.srt.layers.quantization"
LINEAR_FUNCTIONS: Final = (
    f"{QUANTIZATION}.fp8_utils.deepgemm_w8a8_block_fp8_linear_with_fallback",
    f"{QUANTIZATION}.fp8_utils.triton_w8a8_block_fp8_linear",
)
"""SGLang's functions for linear layers with scales of blocks that it chooses on a Hopper GPU by itself."""
CREATE_RUNNER: Final = f"{QUANTIZATION}.unquant.UnquantizedFusedMoEMethod.create_moe_runner"
CREATE_FP8_RUNNER: Final = f"{QUANTIZATION}.fp8.Fp8MoEMethod.create_moe_runner"

ACTIVATION_NUMBERS: Final[Mapping[str, Mapping[str, tuple[float | None, ...]]]] = {
    "silu": {"gemm1_alpha": (None,), "gemm1_clamp_limit": (None,), "gemm1_beta": (None,)},
    "swigluoai": {
        "gemm1_alpha": (SWIGLU_ALPHA,),
        "gemm1_clamp_limit": (SWIGLU_LIMIT,),
        "gemm1_beta": (None, 1.0),
    },
}
"""The numbers in an activation, by the fields of a configuration. SGLang names both "silu"."""
FREE: Final = frozenset(
    {
        "num_experts",
        "num_local_experts",
        "hidden_size",
        "intermediate_size_per_partition",
        "layer_id",
        "top_k",
        "num_fused_shared_experts",  # these are further experts, with numbers of their own
        "params_dtype",
        "routing_method_type",
        "runner_backend",
        "inplace",  # allows the input to be overwritten, and asks for nothing
        "routed_scaling_factor",  # a factor of the router's weights
        "layer",
    }
)
"""The fields of a configuration that may have any value: sizes, which the weights have too, and names."""

log = getLogger(__name__)


def plug_in(*, fp8_blocks: Kernel | None = None, experts: Experts | None = None) -> None:
    """Register kernels in SGLang, for this process; SGLang then applies the hooks.

    Args:
        fp8_blocks: A module or a library with fp32 scales of blocks, for linear layers.
        experts: Kernels for experts in bf16, of a server with ``--moe-runner-backend gemmgen``.

    Raises ValueError for a kernel that computes anything else, and for experts in a second call. Nothing is
    registered then.
    """
    around_linear = linear_hook(fp8_blocks) if fp8_blocks is not None else None
    if experts is not None:
        _runner.register_moe_runner_core(BACKEND, runner_core(experts))
        _choices.add_moe_runner_backend_choices([BACKEND])
        around = _hooks.HookType.AROUND
        _hooks.HookRegistry.register(CREATE_RUNNER, runner_hook(experts), around)
        _hooks.HookRegistry.register(CREATE_FP8_RUNNER, _refuse_fp8, around)
    if around_linear:
        for target in LINEAR_FUNCTIONS:
            _hooks.HookRegistry.register(target, around_linear, _hooks.HookType.AROUND)


# --- linear layers with scales of blocks


def linear_hook(kernel: Kernel) -> Callable[..., Tensor]:
    """Return a function around one of SGLang's for linear layers, which a kernel computes.

    Raises ValueError for a kernel that computes anything else.
    """
    product = BlockScaledLinear.product_of(kernel)

    def linear(
        original: Callable[..., Tensor],
        input: Tensor,  # noqa: A002 - SGLang's name
        weight: Tensor,
        block_size: list[int],
        weight_scale: Tensor,
        input_scale: Tensor | None = None,
        bias: Tensor | None = None,
        act_scale_ue8m0: bool = False,
        **others: Any,
    ) -> Tensor:
        is_taken = (
            input_scale is None
            and not act_scale_ue8m0
            and [*block_size] == [BLOCK, BLOCK]
            and input.dtype == product.dtype
            and _has_blocks(weight, weight_scale)
            and input.numel() > 0
            and _context.get_platform().is_sm90
            # A library has other kernels for other numbers of rows.
            and not batch_invariance.is_batch_invariant_mode_enabled()
        )
        if not is_taken:
            return original(
                input, weight, block_size, weight_scale, input_scale, bias, act_scale_ue8m0, **others
            )
        # Scales that the kernel reads without a copy.
        a, a_scale = quantize(
            input.view(-1, input.shape[-1]), BLOCK, column_major_scales=True, scale_tma_aligned=True
        )
        d = product(a, weight, a_scale, weight_scale)
        if bias is not None:
            d.add_(bias)
        return d.view(*input.shape[:-1], weight.shape[0])

    return linear


def _has_blocks(weight: Tensor, scales: Tensor) -> bool:
    """Return True for a weight [N, K] in e4m3 of whole blocks of K, as SGLang's quantisation needs them."""
    if weight.dtype != E4M3 or weight.dim() != 2 or weight.shape[1] % BLOCK:
        return False
    return scales.dtype == torch.float32 and [*scales.shape] == [-(-size // BLOCK) for size in weight.shape]


# --- experts


def runner_core(experts: Experts) -> Any:
    """Return a class of SGLang's that runs experts in bf16, which kernels compute.

    Its objects are of one layer's configuration; ValueError is raised for a layer that kernels refuse. A
    call's hidden states are [tokens, hidden]; a negative number of an expert adds nothing if the layer has
    only some of the experts, and is that of a row without a meaning otherwise.

    Raises ValueError for kernels whose activation SGLang has no numbers for.
    """
    _numbers_of(experts)

    class GemmgenRunnerCore(RunnerCore):
        def __init__(self, config: Any) -> None:
            if reason := why_not(experts, config):
                raise ValueError(f"--moe-runner-backend {BACKEND} computes no such layer: {reason}")
            RunnerCore.__init__(self, config)

        @property
        def runner_backend(self) -> Any:
            return RUNNER

        def run_from_dispatch(
            self, dispatch_output: Any, quant_info: Any, runner_config: Any, hooks: Any = None
        ) -> Any:
            if hooks is not None:
                raise ValueError(f"--moe-runner-backend {BACKEND} computes no LoRA")
            weights, ids, *_ = dispatch_output.topk_output
            gate_up, down = quant_info.w13_weight, quant_info.w2_weight
            if runner_config.routed_scaling_factor is not None:
                weights = weights * runner_config.routed_scaling_factor
            is_part = runner_config.num_experts != runner_config.num_local_experts
            if is_part:  # the kernels add nothing for experts beyond the last one
                ids = torch.where(ids < 0, len(gate_up), ids)
            biases = _rounded((quant_info.b13, quant_info.b2), gate_up.dtype)
            call = ExpertTensors(dispatch_output.hidden_states, ids, weights, gate_up.mT, down.mT, *biases)
            return _standard.StandardCombineInput(hidden_states=experts(call, has_other_pairs=is_part))

    return GemmgenRunnerCore


def runner_hook(experts: Experts) -> Callable[..., None]:
    """Return a function around SGLang's that gives a layer of experts without quantisation its runner."""

    def create_runner(original: Callable[..., None], method: Any, layer: nn.Module, config: Any) -> None:
        original(method, layer, config)
        if not _is_asked():
            return
        if reason := why_not(experts, config):
            log.warning("layer %s keeps SGLang's experts: %s", config.layer_id, reason)
        else:
            method.runner = _runner.MoeRunner(RUNNER, config)

    return create_runner


def _refuse_fp8(original: Callable[..., None], *arguments: Any) -> None:
    """Raise ValueError for a server whose experts in fp8 would run by a name that they do not know."""
    if _is_asked():
        raise ValueError(f"--moe-runner-backend {BACKEND} computes experts in bf16, and these are in fp8")
    original(*arguments)


def _is_asked() -> bool:
    """Return True if the server was started with the name of our runner."""
    return _moe.get_moe_runner_backend().value == BACKEND


def _numbers_of(experts: Experts) -> Mapping[str, tuple[float | None, ...]]:
    """Return the fields of a configuration that an activation needs; raise ValueError if none are known."""
    if experts.activation is None:
        raise ValueError(f"{experts} have an activation and an order of columns that SGLang has not")
    return ACTIVATION_NUMBERS[experts.activation]


def why_not(experts: Experts, config: Any) -> str:
    """Return why kernels do not compute a layer by its configuration and weights; empty if they do.

    A field that this file does not know must have its default.
    """
    numbers = _numbers_of(experts)
    for field in fields(config):
        found = getattr(config, field.name)
        if field.name not in FREE and found not in numbers.get(field.name, (field.default,)):
            return f"kernels do not support {field.name} {found}"
    if not _context.get_platform().is_sm90:
        return "these kernels need compute capability 9.0"
    if not _moe.get_moe_a2a_backend().is_none():
        return "kernels do not support tokens of an all-to-all"
    if _context.get_lora().enable_lora or _context.get_lora().lora_paths:
        return "kernels do not support LoRA"
    if _context.get_exec().deterministic.enable_deterministic_inference:
        return "kernels differ with the number of tokens, and inference is to be deterministic"
    names = "w13_weight", "w2_weight", "w13_weight_bias", "w2_weight_bias"
    gate_up, down, *biases = (getattr(config.layer, name, None) for name in names)
    if gate_up is None or down is None:
        return "the layer has no w13_weight and w2_weight"
    if experts.has_bias != (biases[0] is not None):
        return f"kernels do not support {'no' if experts.has_bias else 'a'} bias"
    return experts.why_not_weights(gate_up.mT, down.mT, *_rounded(biases, gate_up.dtype))


def _rounded(biases: Iterable[Tensor | None], dtype: torch.dtype) -> list[Tensor | None]:
    """Return biases, which SGLang keeps in fp32, in the type of the weights, which kernels add."""
    return [None if bias is None else bias.to(dtype) for bias in biases]
