"""integrations.sglang: SGLang's own layers, runners and hooks, with kernels of this CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_kernels import Fp8Linear, kernel_on_the_cpu
from expert_kernels import (
    down_kernel,
    generated_experts,
    gpt_oss_experts,
    reference,
    silu_experts,
    tensors,
    up_kernel,
)
from modules import ROOT
from stored_weights import Kernels
from torch import Tensor, nn

if find_spec("sglang") and torch.version.cuda is None:
    # torchvision's wheel has operators for a torch with CUDA alone, and its import needs the names of two.
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of SGLang's on a machine without a GPU
    pytest.importorskip("sglang")
    context: Any = import_module("sglang.srt.runtime_context")
    plugins: Any = import_module("sglang.srt.plugins")
    registry: Any = import_module("sglang.srt.plugins.hook_registry")
    runner: Any = import_module("sglang.srt.layers.moe.moe_runner.runner")
    utils: Any = import_module("sglang.srt.layers.moe.utils")
    choices: Any = import_module("sglang.srt.arg_groups.choices")
    layers: Any = import_module("sglang.srt.layers.moe.fused_moe_triton.layer")
    topk: Any = import_module("sglang.srt.layers.moe.topk")
    fp8: Any = import_module("sglang.srt.layers.quantization.fp8")
    fp8_utils: Any = import_module("sglang.srt.layers.quantization.fp8_utils")
    unquant: Any = import_module("sglang.srt.layers.quantization.unquant")
    from gemmgen.integrations import sglang as ours

from gemmgen.integrations.experts import Experts, ExpertTensors, gpt_oss_gate
from gemmgen.integrations.quantize import quantize_rows
from gemmgen.integrations.sglang_plug_in import register

BF16 = torch.bfloat16
HOOKED: tuple[tuple[Any, str], ...] = (
    (fp8_utils, "deepgemm_w8a8_block_fp8_linear_with_fallback"),
    (fp8, "deepgemm_w8a8_block_fp8_linear_with_fallback"),
    (fp8_utils, "triton_w8a8_block_fp8_linear"),
    (unquant.UnquantizedFusedMoEMethod, "create_moe_runner"),
    (fp8.Fp8MoEMethod, "create_moe_runner"),
)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let SGLang take this machine for one with a Hopper GPU, and forget hooks and runners afterwards."""
    for owner, name in HOOKED:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    backends = [*choices.MOE_RUNNER_BACKEND_CHOICES]
    monkeypatch.setattr(runner, "_CUSTOM_RUNNER_CORE_FACTORIES", {})
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    ranks = dict.fromkeys(("moe_ep_rank", "moe_tp_rank", "moe_dp_rank"), 0)
    sizes = dict.fromkeys(("moe_ep_size", "moe_tp_size", "moe_dp_size"), 1)
    with (
        context.get_context().override_server_args(),
        context.get_parallel().override(**ranks, **sizes),
        context.override_platform(is_sm90=True),
    ):
        yield
    registry.HookRegistry.reset()
    choices.MOE_RUNNER_BACKEND_CHOICES[:] = backends


def hooked(**kernels: Any) -> None:
    ours.plug_in(**kernels)
    registry.HookRegistry.apply_hooks()


def moe_flags(backend: str = "gemmgen") -> Any:
    return context.get_flags().moe.override(runner_backend=utils.resolve_moe_runner_backend(backend))


def moe_layer(backend: str = "gemmgen", **changes: Any) -> Any:
    """Return SGLang's layer of four experts with top 2, hidden size 16 and intermediate size 24."""
    facts: dict[str, Any] = {
        "num_experts": 4,
        "hidden_size": 16,
        "intermediate_size": 24,
        "layer_id": 0,
        "top_k": 2,
        "params_dtype": torch.float32,
    }
    with moe_flags(backend):
        return layers.FusedMoE(**(facts | changes))


def run(layer: Any, call: ExpertTensors[Tensor]) -> Tensor:
    """Return what a layer computes on a GPU, from the routes of a call."""
    routes = topk.StandardTopKOutput(call.weight, call.expert.int(), torch.empty(0))
    dispatched = layer.dispatcher.dispatch(call.x, routes)
    return layer.dispatcher.combine(layer.quant_method.forward_cuda(layer, dispatched))


def filled(layer: Any, call: ExpertTensors[Tensor]) -> Any:
    layer.w13_weight.data.copy_(call.gate_up.mT)
    layer.w2_weight.data.copy_(call.down.mT)
    return layer


# --- experts


def test_the_name_of_the_runner_is_a_choice_of_the_server() -> None:
    hooked(experts=silu_experts())
    assert "gemmgen" in choices.MOE_RUNNER_BACKEND_CHOICES
    assert utils.resolve_moe_runner_backend("gemmgen") == ours.RUNNER


@pytest.mark.parametrize("factor", [None, 2.5])
def test_a_layer_of_sglang_has_the_weighted_sum_of_each_token(factor: float | None) -> None:
    hooked(experts=silu_experts())
    call = tensors(6)
    layer = filled(moe_layer(routed_scaling_factor=factor), call)
    assert layer.runner_backend == ours.RUNNER
    assert layer.moe_runner_config.inplace
    x = call.x.clone()
    torch.testing.assert_close(run(layer, call), reference(call) * (factor or 1), rtol=1e-4, atol=1e-4)
    assert torch.equal(call.x, x)


def test_experts_of_other_ranks_add_nothing() -> None:
    hooked(experts=silu_experts())
    call = tensors(6)
    layer = filled(moe_layer(), call)
    layer.moe_runner_config.num_experts = 8
    call.expert[2, 0] = -1
    wanted = reference(call._replace(expert=call.expert.where(call.expert >= 0, 4)))
    torch.testing.assert_close(run(layer, call), wanted, rtol=1e-4, atol=1e-4)


def test_a_layer_of_gpt_oss_has_its_gate_and_biases() -> None:
    hooked(experts=gpt_oss_experts())
    call = tensors(6)
    layer = filled(moe_layer(with_bias=True, gemm1_alpha=1.702, gemm1_clamp_limit=7.0), call)
    assert layer.runner_backend == ours.RUNNER
    draw = torch.Generator().manual_seed(2)
    for bias in (layer.w13_weight_bias, layer.w2_weight_bias):
        bias.data.copy_(torch.randn(bias.shape, generator=draw))
    wanted = torch.zeros_like(call.x)
    for token, experts in enumerate(call.expert):
        for weight, expert in zip(call.weight[token], map(int, experts), strict=True):
            sums = call.x[token] @ call.gate_up[expert] + layer.w13_weight_bias[expert]
            h = gpt_oss_gate(sums[::2], sums[1::2])
            wanted[token] += weight * (h @ call.down[expert] + layer.w2_weight_bias[expert])
    torch.testing.assert_close(run(layer, call), wanted, rtol=1e-4, atol=1e-4)


def test_layers_of_a_server_without_the_name_keep_their_runner() -> None:
    hooked(experts=silu_experts())
    assert moe_layer("auto").runner_backend == utils.MoeRunnerBackend.TRITON
    assert moe_layer("triton").runner_backend == utils.MoeRunnerBackend.TRITON


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, ""),
        ({"activation": "gelu"}, "kernels do not support activation gelu"),
        ({"is_gated": False}, "kernels do not support is_gated False"),
        ({"with_bias": True}, "kernels do not support a bias"),
        ({"swiglu_limit": 10.0}, "kernels do not support swiglu_limit 10.0"),
        ({"gemm1_alpha": 1.702}, "kernels do not support gemm1_alpha 1.702"),
        ({"gemm1_clamp_limit": 7.0}, "kernels do not support gemm1_clamp_limit 7.0"),
        ({"gemm1_beta": 1.0}, "kernels do not support gemm1_beta 1.0"),
        ({"apply_router_weight_on_input": True}, "kernels do not support apply_router_weight_on_input True"),
        ({"no_combine": True, "inplace": False}, "kernels do not support no_combine True"),
        ({"params_dtype": torch.float16}, "a must be a tensor of torch.bfloat16, found torch.float16"),
        ({"num_experts": 129}, "takes from 1 to 128 groups, found 129"),
        ({"hidden_size": 20}, "multiple"),
        ({"intermediate_size": 36}, "multiple"),
    ],
)
def test_layers_that_the_kernels_do_not_take_keep_sglangs_runner(
    facts: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    experts = generated_experts("qwen3_moe", tmp_path)
    hooked(experts=experts)
    layer = moe_layer("gemmgen", **({"params_dtype": BF16} | facts))
    wanted = utils.MoeRunnerBackend.TRITON if reason else ours.RUNNER
    assert layer.runner_backend == wanted
    found = ours.why_not(experts, layer.moe_runner_config)
    assert reason in found if reason else not found


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, ""),
        ({"gemm1_beta": 1.0}, ""),
        ({"gemm1_clamp_limit": 10.0}, "kernels do not support gemm1_clamp_limit 10.0"),
        ({"gate_up_interleaved": False}, "kernels do not support gate_up_interleaved False"),
        ({"with_bias": False}, "kernels do not support no bias"),
    ],
)
def test_experts_of_gpt_oss_are_taken_with_its_numbers_alone(
    facts: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    experts = generated_experts("gpt_oss", tmp_path, k_major=True)
    hooked(experts=experts)
    numbers: dict[str, Any] = {
        "params_dtype": BF16,
        "gemm1_alpha": 1.702,
        "gemm1_clamp_limit": 7.0,
        "with_bias": True,
    }
    layer = moe_layer("gemmgen", **(numbers | facts))
    assert ours.why_not(experts, layer.moe_runner_config) == reason
    assert (layer.runner_backend == ours.RUNNER) is not bool(reason)


@pytest.mark.parametrize(
    ("bag", "values", "reason"),
    [
        (lambda: context.get_lora(), {"enable_lora": True}, "kernels do not support LoRA"),
        (
            lambda: context.get_exec().deterministic,
            {"enable_deterministic_inference": True},
            "kernels differ with the number of tokens, and inference is to be deterministic",
        ),
        (
            lambda: context.get_flags().moe,
            {"a2a_backend": utils.MoeA2ABackend.DEEPEP},
            "kernels do not support tokens of an all-to-all",
        ),
    ],
)
def test_servers_whose_experts_the_kernels_do_not_compute(
    bag: Callable[[], Any], values: dict[str, Any], reason: str
) -> None:
    experts = silu_experts()
    hooked(experts=experts)
    config = moe_layer().moe_runner_config
    with bag().override(**values):
        assert ours.why_not(experts, config) == reason
    with context.override_platform(is_sm90=False):
        assert ours.why_not(experts, config) == "these kernels need compute capability 9.0"


def test_experts_in_fp8_are_refused_at_the_start() -> None:
    hooked(experts=silu_experts())
    method = object.__new__(fp8.Fp8MoEMethod)
    with moe_flags(), pytest.raises(ValueError, match="computes experts in bf16, and these are in fp8"):
        method.create_moe_runner(nn.Module(), runner.MoeRunnerConfig())


def test_a_runner_of_a_layer_that_the_kernels_refuse_is_an_error_at_the_start() -> None:
    hooked(experts=silu_experts())
    with pytest.raises(ValueError, match="computes no such layer: the layer has no w13_weight"):
        runner.MoeRunner(ours.RUNNER, runner.MoeRunnerConfig())


def test_adapters_are_refused() -> None:
    hooked(experts=silu_experts())
    core = moe_layer().runner.runner_core
    with pytest.raises(ValueError, match="computes no LoRA"):
        core.run_from_dispatch(None, None, core.config, hooks=object())


def test_kernels_that_sglang_has_no_numbers_for_are_refused() -> None:
    with pytest.raises(ValueError, match="have an activation and an order of columns that SGLang has not"):
        ours.plug_in(experts=Experts(up_kernel(interleaved=True), down_kernel()))
    assert not runner._CUSTOM_RUNNER_CORE_FACTORIES


# --- linear layers with scales of blocks


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand for the functions of a GPU, and return the names of those that were called."""
    names: list[str] = []

    def quantize(x: Tensor, group: int, **layout: bool) -> tuple[Tensor, Tensor]:
        assert (group, layout) == (128, {"column_major_scales": True, "scale_tma_aligned": True})
        return quantize_rows(x)

    def sglangs(*_: Any, **__: Any) -> Tensor:
        names.append("sglang")
        return torch.empty(0)

    monkeypatch.setattr(ours, "quantize", quantize)
    for owner, name in HOOKED[:3]:
        monkeypatch.setattr(owner, name, sglangs)
    return names


def blocks_kernel(called: list[str], *inputs: str) -> Any:
    def matmul(
        a: Tensor, b: Tensor, *, a_scale: Tensor, b_scale: Tensor, out: Tensor | None = None
    ) -> Tensor:
        called.append("ours")
        wide = b.float() * b_scale.T.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, : b.shape[1]]
        return (a.float() * a_scale.repeat_interleave(128, 1) @ wide).bfloat16()

    scales = {"scale_vector": 128, "scale_columns": 128, "out_dtype": BF16}
    return kernel_on_the_cpu("blocks", matmul, "a_scale", "b_scale", *inputs, **scales)


def linear(layer: Fp8Linear, x: Tensor, **changes: Any) -> Tensor:
    """Return the output of the function that SGLang chooses for a layer."""
    facts: dict[str, Any] = {
        "input": x,
        "weight": layer.weight,
        "block_size": [128, 128],
        "weight_scale": layer.weight_scale_inv,
        "input_scale": None,
        "bias": layer.bias,
    }
    return fp8_utils.dispatch_w8a8_block_fp8_linear([128, 128])(**(facts | changes))


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_has_the_product_of_the_quantised_rows(bias: bool, called: list[str]) -> None:
    hooked(fp8_blocks=blocks_kernel(called))
    layer = Fp8Linear(144, 256, bias=bias)
    if layer.bias is not None:
        layer.bias.data.fill_(3.0)
    x = torch.randn(2, 3, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    found, wanted = linear(layer, x), layer(x.float() if not bias else x).float()
    assert called == ["ours"]
    assert (found.dtype, found.shape) == (BF16, (2, 3, 144))
    assert (found.float() - wanted).square().sum() < 0.05**2 * wanted.square().sum()


def test_modules_that_have_sglangs_function_get_the_hook(called: list[str]) -> None:
    hooked(fp8_blocks=blocks_kernel(called))
    name = "deepgemm_w8a8_block_fp8_linear_with_fallback"
    assert getattr(fp8, name) is getattr(fp8_utils, name)
    layer = Fp8Linear(144, 256)
    getattr(fp8, name)(torch.ones(2, 256, dtype=BF16), layer.weight, [128, 128], layer.weight_scale_inv)
    assert called == ["ours"]


@pytest.mark.parametrize(
    "changes",
    [
        {"input": torch.ones(2, 256)},
        {"input": torch.ones(0, 256, dtype=BF16)},
        {"input_scale": torch.ones(2, 2)},
        {"act_scale_ue8m0": True},
        {"block_size": [32, 32]},
        {"weight": torch.ones(144, 256)},
        {"weight_scale": torch.ones(2, 1, dtype=torch.int32)},
        {"weight_scale": torch.ones(5, 8)},
    ],
    ids=lambda each: "-".join(each),
)
def test_sglang_computes_the_calls_that_the_kernel_does_not_take(
    changes: dict[str, Any], called: list[str]
) -> None:
    hooked(fp8_blocks=blocks_kernel(called))
    linear(Fp8Linear(144, 256), torch.ones(2, 256, dtype=BF16), **changes)
    assert called == ["sglang"]


def test_sglang_computes_linear_layers_of_other_machines_and_modes(
    called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked(fp8_blocks=blocks_kernel(called))
    layer, x = Fp8Linear(144, 256), torch.ones(2, 256, dtype=BF16)
    with context.override_platform(is_sm90=False):
        linear(layer, x)
    monkeypatch.setattr(ours.batch_invariance, "is_batch_invariant_mode_enabled", lambda: True)
    linear(layer, x)
    assert called == ["sglang", "sglang"]


def test_a_kernel_that_adds_a_bias_is_refused(called: list[str]) -> None:
    with pytest.raises(ValueError, match="blocks adds column_bias, and a server adds the bias itself"):
        ours.plug_in(fp8_blocks=blocks_kernel(called, "column_bias"))


# --- the plug-in


def test_sglang_loads_the_plug_in_which_reads_its_modules_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: list[str]
) -> None:
    names = {"an_up": up_kernel(), "a_down": down_kernel(), "blocks": blocks_kernel(called)}
    for name, kernel in names.items():
        monkeypatch.setitem(sys.modules, name, kernel)
    path = tmp_path / "kernels.json"
    of_experts = {"up": "an_up", "down": "a_down", "few_rows": {"4": ["an_up", "a_down"]}}
    path.write_text(json.dumps({"fp8_blocks": "blocks", "experts": of_experts}))
    register()  # which does nothing
    assert not registry.HookRegistry._hooks
    monkeypatch.setenv("GEMMGEN_SGLANG", str(path))
    plugins.load_plugins()
    assert moe_layer().runner_backend == ours.RUNNER
    linear(Fp8Linear(144, 256), torch.ones(2, 256, dtype=BF16))
    assert called == ["ours"]


def test_a_wrong_file_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernels.json"
    path.write_text('{"fp8": "x"}')
    monkeypatch.setenv("GEMMGEN_SGLANG", str(path))
    with pytest.raises(ValueError, match="must have fp8_blocks, experts with up, down and few_rows, and"):
        register()


@pytest.mark.parametrize(("name", "scale_format"), [("int4", "bf16_1x128"), ("int8", "bf16_int8")])
def test_a_file_with_weights_of_integers_is_refused(
    name: str, scale_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "a_kernel", Kernels(tmp_path).on_the_cpu(scale_format))
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({name: {"module": "a_kernel"}}))
    monkeypatch.setenv("GEMMGEN_SGLANG", str(path))
    words = rf"has parts for vLLM alone \({name}\): this plug-in puts no"
    with pytest.raises(ValueError, match=words) as error:
        register()
    assert str(error.value).startswith(f"{path}: ")


def test_the_plug_in_imports_nothing_without_a_file() -> None:
    ((function, _),) = plugins.load_plugins_by_group("sglang.srt.plugins").values()
    program = (
        f"import sys; from {function.__module__} import {function.__name__}; {function.__name__}();"
        " assert 'sglang' not in sys.modules"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GEMMGEN_SGLANG"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=False)
    assert ran.returncode == 0
