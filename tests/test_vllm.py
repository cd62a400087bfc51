"""integrations.vllm: vLLM's own classes and its selection of kernels, with kernels of this CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from cpu_kernels import kernel_on_the_cpu
from expert_kernels import (
    down_kernel,
    generated_experts,
    gpt_oss_experts,
    reference,
    silu_experts,
    tensors,
    up_kernel,
)
from modules import ROOT, module_file
from torch import Tensor, nn

pytest.importorskip("vllm")

from gemmgen.integrations import vllm as ours
from gemmgen.integrations.experts import Experts
from gemmgen.integrations.vllm_plug_in import register
from gemmgen.module import import_generated

L: Any = import_module("vllm.model_executor.kernels.linear")
keys: Any = import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
config_of: Any = import_module("vllm.config")
moe: Any = import_module("vllm.model_executor.layers.fused_moe.config")
oracle: Any = import_module("vllm.model_executor.layers.fused_moe.oracle.unquantized")
modular: Any = import_module("vllm.model_executor.layers.fused_moe.modular_kernel")
platforms: Any = import_module("vllm.platforms")
CUDA = platforms.PlatformEnum.CUDA
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with config_of.set_current_vllm_config(config_of.VllmConfig()):
        yield
    ours.plug_in()


def layer_config(n: int = 256, k: int = 512, **changes: Any) -> Any:
    facts = {
        "weight_quant_key": keys.kFp8Static128BlockSym,
        "activation_quant_key": keys.kFp8Dynamic128Sym,
        "weight_shape": (n, k),
        "input_dtype": BF16,
        "out_dtype": BF16,
    }
    return L.FP8ScaledMMLinearLayerConfig(**(facts | changes))


def chosen(config: Any, capability: int = 90) -> Any:
    """Return the class that vLLM's selection chooses among those for CUDA."""
    table = {platforms.current_platform._enum: ours.LINEAR_KERNELS[CUDA]}
    return L.choose_scaled_mm_linear_kernel(
        config, table, compute_capability=capability, quantization="fp8_block_w8a8"
    )


# --- linear layers with scales of blocks


def test_vllm_chooses_the_kernel_before_its_own() -> None:
    before = list(ours.LINEAR_KERNELS[CUDA])
    ours.plug_in(fp8_blocks=import_generated(module_file("h100_e4m3_blockwise")))
    assert ours.LINEAR_KERNELS[CUDA][1:] == before
    assert chosen(layer_config()).__name__ == "GemmgenFp8BlockKernel"
    ours.plug_in()
    assert ours.LINEAR_KERNELS[CUDA] == before


@pytest.mark.parametrize(
    ("changes", "capability", "reason"),
    [
        ({}, 100, "these kernels need compute capability 9.0, found 100"),
        ({"k": 520}, 90, "K must be a multiple of 16, found 520"),
        ({"out_dtype": torch.float16}, 90, "makes torch.bfloat16, and the layer torch.float16"),
    ],
)
def test_layers_that_the_kernel_does_not_take_are_left_with_the_reason(
    changes: dict[str, Any], capability: int, reason: str
) -> None:
    made = ours.linear_kernel(import_generated(module_file("h100_e4m3_blockwise")))
    can, why = L.is_supported_and_can_implement_kernel(made, layer_config(**changes), capability)
    assert not can
    assert reason in why


def test_a_layer_has_the_product_of_the_quantised_rows() -> None:
    called: list[int] = []

    def matmul(
        a: Tensor, b: Tensor, *, a_scale: Tensor, b_scale: Tensor, out: Tensor | None = None
    ) -> Tensor:
        called.append(len(a))
        wide = b.float() * b_scale.T.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (a.float() * a_scale.repeat_interleave(128, 1) @ wide).bfloat16()

    scales = {"scale_vector": 128, "scale_columns": 128, "out_dtype": BF16}
    kernel = kernel_on_the_cpu("blocks", matmul, "a_scale", "b_scale", **scales)
    layer = nn.Module()
    draw = torch.Generator().manual_seed(0)
    layer.weight = nn.Parameter(
        torch.randn(256, 512, generator=draw).to(torch.float8_e4m3fn), requires_grad=False
    )
    layer.weight_scale_inv = nn.Parameter(torch.rand(2, 4, generator=draw), requires_grad=False)
    made = ours.linear_kernel(kernel)(layer_config())
    made.process_weights_after_loading(layer)
    x = torch.randn(6, 512, generator=draw).bfloat16()
    wide = layer.weight.float() * layer.weight_scale_inv.repeat_interleave(128, 0).repeat_interleave(128, 1)
    wanted = x.float() @ wide.T
    found = made.apply_weights(layer, x)
    assert called == [6]
    assert found.dtype == BF16
    assert (found.float() - wanted).square().sum() < 0.05**2 * wanted.square().sum()


# --- experts


def moe_config(activation: str = "SILU", **changes: Any) -> Any:
    names = ("tp_size", "pcp_size", "dp_size", "ep_size", "sp_size")
    ranks = ("tp_rank", "pcp_rank", "dp_rank", "ep_rank")
    parallel = moe.FusedMoEParallelConfig(
        **dict.fromkeys(names, 1),
        **dict.fromkeys(ranks, 0),
        use_ep=False,
        all2all_backend="",
        enable_eplb=False,
    )
    facts: dict[str, Any] = {
        "num_experts": 4,
        "experts_per_token": 2,
        "hidden_dim": 16,
        "intermediate_size": 24,
        "num_local_experts": 4,
        "num_logical_experts": 4,
        "activation": ours.Activation[activation],
        "device": "cpu",
        "routing_method": moe.RoutingMethodType.Renormalize,
        "moe_parallel_config": parallel,
        "in_dtype": BF16,
    }
    return moe.FusedMoEConfig(**(facts | changes))


def supported(made: Any, config: Any) -> tuple[bool, str | None]:
    """Return what the oracle of vLLM asks of a class of experts."""
    return made.is_supported_config(made, config, None, None, modular.FusedMoEActivationFormat.Standard)


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_hopper(_: int | None) -> tuple[bool, None]:
        return True, None

    monkeypatch.setattr(ours, "_is_hopper", is_hopper)


@pytest.mark.usefixtures("on_hopper")
def test_vllm_asks_our_experts_before_its_triton_ones() -> None:
    own = oracle.backend_to_kernel_cls(ours.TRITON)
    ours.plug_in(experts=silu_experts())
    made, *rest = oracle.backend_to_kernel_cls(ours.TRITON)
    assert (made.__name__, rest) == ("GemmgenExperts", own)
    assert supported(made, moe_config()) == (True, None)
    ours.plug_in(experts=gpt_oss_experts())
    assert [each.__name__ for each in oracle.backend_to_kernel_cls(ours.TRITON)][1:] == [own[0].__name__]
    ours.plug_in()
    assert oracle.backend_to_kernel_cls(ours.TRITON) == own


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"activation": "GELU"}, "kernel does not support MoEActivation.GELU activation"),
        ({"has_bias": True}, "kernel does not support a bias"),
        ({"swiglu_limit": 7.0}, "kernel does not support swiglu_limit 7.0"),
        ({"in_dtype": torch.float16}, "a must be a tensor of torch.bfloat16, found torch.float16"),
        ({"num_local_experts": 129}, "takes from 1 to 128 groups, found 129"),
        ({"hidden_dim": 20}, "multiple"),
        ({"intermediate_size": 36}, "multiple"),
    ],
)
def test_experts_that_the_kernels_do_not_take_are_left_with_the_reason(
    config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    made = ours.experts_kernel(generated_experts("qwen3_moe", tmp_path))
    assert supported(made, moe_config()) == (True, None)
    can, why = supported(made, moe_config(**config))
    assert not can
    assert reason in cast(str, why)


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "swiglu_beta": 1.0}, None),
        ({"swiglu_limit": 10.0}, "kernel does not support swiglu_limit 10.0"),
        ({"swiglu_alpha": 1.0}, "kernel does not support swiglu_alpha 1.0"),
        ({"has_bias": False}, "kernel does not support no bias"),
    ],
)
def test_experts_of_gpt_oss_are_taken_with_its_numbers_alone(
    config: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    made = ours.experts_kernel(generated_experts("gpt_oss", tmp_path, k_major=True))
    asked = moe_config("SWIGLUOAI", **({"has_bias": True} | config))
    assert supported(made, asked) == (reason is None, reason)


@pytest.mark.usefixtures("on_hopper")
def test_experts_with_other_strides_than_those_of_vllm_are_left(tmp_path: Path) -> None:
    made = ours.experts_kernel(generated_experts("gpt_oss", tmp_path))
    can, why = supported(made, moe_config("SWIGLUOAI", has_bias=True))
    assert not can
    assert cast(str, why).startswith("b must lie in memory as [groups, K, 2N]")


def test_no_experts_of_ours_run_on_another_gpu() -> None:
    can, reason = supported(ours.experts_kernel(silu_experts()), moe_config())
    assert not can
    assert cast(str, reason).startswith("kernel does not support current device")


@pytest.mark.parametrize("of_ranks", [False, True])
def test_experts_write_the_weighted_sum_of_each_token(of_ranks: bool) -> None:
    call = tensors(6)
    made = ours.experts_kernel(silu_experts())(moe_config(), moe.FusedMoEQuantConfig.make())
    output, expert_map = torch.empty_like(call.x), None
    ids = call.expert.int()
    if of_ranks:  # this rank has the experts 4 to 7 of eight
        expert_map = torch.tensor([-1, -1, -1, -1, 0, 1, 2, 3], dtype=torch.int32)
        ids = ids + 4
        ids[2, 0] = 1
        call.expert[2, 0] = 4  # beyond the last one here
    workspaces = made.workspace_shapes(6, 48, 16, 2, 8, 4, None, None)
    made.apply(
        output=output,
        hidden_states=call.x,
        w1=call.gate_up.mT.contiguous(),
        w2=call.down.mT.contiguous(),
        topk_weights=call.weight,
        topk_ids=ids,
        activation=ours.Activation.SILU,
        global_num_experts=8 if of_ranks else 4,
        expert_map=expert_map,
        a1q_scale=None,
        a2_scale=None,
        workspace13=torch.empty(workspaces[0]),
        workspace2=torch.empty(workspaces[1]),
        expert_tokens_meta=None,
        apply_router_weight_on_input=False,
    )
    assert workspaces[2] == output.shape
    torch.testing.assert_close(output, reference(call), rtol=1e-4, atol=1e-4)


# --- the plug-in


def test_the_plug_in_reads_its_modules_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kernel in (("an_up", up_kernel()), ("a_down", down_kernel())):
        monkeypatch.setitem(sys.modules, name, kernel)
    path = tmp_path / "kernels.json"
    of_experts = {"up": "an_up", "down": "a_down", "few_rows": {"4": ["an_up", "a_down"]}}
    path.write_text(json.dumps({"experts": of_experts}))
    register()  # which does nothing
    assert not hasattr(oracle.backend_to_kernel_cls, "of_vllm")
    monkeypatch.setenv("GEMMGEN_VLLM", str(path))
    register()
    assert oracle.backend_to_kernel_cls(ours.TRITON)[0].of_gemmgen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "must name a file of JSON"),
        ("[]", "must name a file of JSON"),
        ('{"fp8": "x"}', "must have fp8_blocks and experts with up, down and few_rows, found fp8"),
        ('{"experts": {"up": "x"}}', "must have fp8_blocks and experts with up, down"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernels.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("GEMMGEN_VLLM", str(path))
    with pytest.raises(ValueError, match=said):
        register()


def test_kernels_that_vllm_has_no_name_for_are_refused() -> None:
    with pytest.raises(ValueError, match="have an activation and an order of columns without a name in vLLM"):
        ours.experts_kernel(Experts(up_kernel(interleaved=True), down_kernel()))


def test_vllm_finds_the_plug_in_and_it_imports_nothing_without_a_file() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="gemmgen")
    program = (
        f"import sys; from {found.module} import {found.attr}; register(); assert 'vllm' not in sys.modules"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GEMMGEN_VLLM"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=False)
    assert ran.returncode == 0
