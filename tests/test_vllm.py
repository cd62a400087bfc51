"""integrations.vllm: vLLM's own classes and its selection of kernels, with kernels of this CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import pytest
import stored_weights
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
from simulated import signs
from stored_weights import AWQ_ORDER, K, Kernels, N, in_bytes, in_words
from torch import Tensor, nn

pytest.importorskip("vllm")

from gemmgen.integrations import vllm as ours
from gemmgen.integrations.experts import Experts
from gemmgen.integrations.packed_product import PackedProduct
from gemmgen.integrations.vllm_plug_in import register
from gemmgen.integrations.weights import QuantizedWeight
from gemmgen.module import import_generated

L: Any = import_module("vllm.model_executor.kernels.linear")
keys: Any = import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
config_of: Any = import_module("vllm.config")
moe: Any = import_module("vllm.model_executor.layers.fused_moe.config")
oracle: Any = import_module("vllm.model_executor.layers.fused_moe.oracle.unquantized")
modular: Any = import_module("vllm.model_executor.layers.fused_moe.modular_kernel")
platforms: Any = import_module("vllm.platforms")
parameter: Any = import_module("vllm.model_executor.parameter")
gptq: Any = import_module("vllm.model_executor.layers.quantization.auto_gptq")
awq: Any = import_module("vllm.model_executor.layers.quantization.auto_awq")
schemes: Any = import_module("vllm.model_executor.layers.quantization.compressed_tensors.schemes")
types: Any = import_module("vllm.scalar_type").scalar_types
envs: Any = import_module("vllm.envs")
hash_factors: Any = import_module("vllm.config.utils").hash_factors
CUDA = platforms.PlatformEnum.CUDA
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with config_of.set_current_vllm_config(config_of.VllmConfig()):
        yield
    ours.plug_in()


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_hopper(_: int | None) -> tuple[bool, None]:
        return True, None

    monkeypatch.setattr(ours, "_is_hopper", is_hopper)


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


# --- linear layers of weights in int4 and int8

PLAIN, ZEROS, INT8 = "bf16_1x128", "bf16_zero_1x128", "bf16_int8"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("integers"))


@pytest.fixture
def one_cuda_rank(on_hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM choose among its kernels for CUDA, and make parameters without a group of processes."""
    monkeypatch.setitem(ours.MIXED_KERNELS, platforms.current_platform._enum, ours.MIXED_KERNELS[CUDA])
    # On a CPU, the method of GPTQ takes no eight bits.
    monkeypatch.setattr(gptq, "verify_marlin_supported", nothing)
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_world_size", lambda: 1)


def int4_config(n: int = N, k: int = K, **changes: Any) -> Any:
    facts = {
        "full_weight_shape": (k, n),
        "partition_weight_shape": (k, n),
        "weight_type": types.uint4b8,
        "act_type": BF16,
        "group_size": 128,
        "zero_points": False,
    }
    return L.MPLinearLayerConfig(**(facts | changes))


@pytest.mark.usefixtures("one_cuda_rank")
def test_vllm_chooses_the_kernel_of_int4_before_its_own(kernels: Kernels) -> None:
    before = list(ours.MIXED_KERNELS[CUDA])
    ours.plug_in(int4=PackedProduct(kernels.module(PLAIN)))
    assert ours.MIXED_KERNELS[CUDA][1:] == before
    assert L.choose_mp_linear_kernel(int4_config(), 90).__name__ == "GemmgenInt4Kernel"
    assert L.choose_mp_linear_kernel(int4_config(out_type=BF16), 90).__name__ == "GemmgenInt4Kernel"
    ours.plug_in(int4=PackedProduct(kernels.module(ZEROS)))
    assert ours.MIXED_KERNELS[CUDA][1:] == before
    for changes in ({}, {"weight_type": types.uint4, "zero_points": True}):
        assert L.choose_mp_linear_kernel(int4_config(**changes), 90).__name__ == "GemmgenInt4Kernel"
    ours.plug_in()
    assert ours.MIXED_KERNELS[CUDA] == before


@pytest.mark.usefixtures("one_cuda_rank")
@pytest.mark.parametrize("group_size", [128, 256, -1])
def test_vllm_chooses_the_kernels_by_the_bits_of_a_weight(group_size: int, kernels: Kernels) -> None:
    before = list(ours.MIXED_KERNELS[CUDA])
    int4, int8 = (PackedProduct(kernels.module(each)) for each in (PLAIN, INT8))
    ours.plug_in(int4=int4, int8=int8)
    assert ours.MIXED_KERNELS[CUDA][2:] == before
    for weight_type, name in (
        (types.uint4b8, "GemmgenInt4Kernel"),
        (types.uint8b128, "GemmgenInt8Kernel"),
    ):
        config = int4_config(k=512, weight_type=weight_type, group_size=group_size)
        assert L.choose_mp_linear_kernel(config, 90).__name__ == name
    with pytest.raises(ValueError, match="int4 is for kernels of int4, and h100_bf16_int8_rows16 packs int8"):
        ours.plug_in(int4=int8)
    with pytest.raises(
        ValueError, match="int8 is for kernels of int8, and h100_bf16_1x128_rows16 packs int4"
    ):
        ours.plug_in(int8=int4)


@pytest.mark.usefixtures("one_cuda_rank")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weight_type": types.uint4b8}, "multiplies weights of uint8b128, and the layer has uint4b8"),
        ({"weight_type": types.uint8, "zero_points": True}, "subtracts 128, and the layer has zero points"),
        ({"group_size": 64}, "has a scale for 128 of K, and the layer has groups of 64"),
        ({"n": 96}, "N must be a multiple of 64, found 96"),
    ],
)
def test_layers_of_int8_that_the_kernel_does_not_take_are_left_with_the_reason(
    changes: dict[str, Any], reason: str, kernels: Kernels
) -> None:
    made = ours.integer_kernel(PackedProduct(kernels.module(INT8)))
    can, why = made.can_implement(int4_config(**({"weight_type": types.uint8b128} | changes)))
    assert not can
    assert cast(str, why).endswith(reason)


@pytest.mark.usefixtures("one_cuda_rank")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weight_type": types.uint4, "zero_points": True}, "subtracts 8, and the layer has zero points"),
        ({"weight_type": types.uint8b128}, "multiplies weights of uint4b8, and the layer has uint8b128"),
        ({"weight_type": types.uint4}, "multiplies weights of uint4b8, and the layer has uint4"),
        ({"act_type": torch.float16}, "makes torch.bfloat16, and the layer torch.float16"),
        ({"out_type": torch.float32}, "makes torch.bfloat16, and the layer torch.float32"),
        ({"group_size": 64}, "has a scale for 128 of K, and the layer has groups of 64"),
        ({"k": 448}, "K must be a multiple of the group of 128, found 448"),
        ({"n": 96}, "N must be a multiple of 64, found 96"),
    ],
)
def test_layers_of_int4_that_the_kernel_does_not_take_are_left_with_the_reason(
    changes: dict[str, Any], reason: str, kernels: Kernels
) -> None:
    ours.plug_in(int4=PackedProduct(kernels.module(PLAIN)))
    with pytest.raises(ValueError, match="Failed to find a kernel") as found:
        L.choose_mp_linear_kernel(int4_config(**changes), 90)
    (line,) = (line for line in str(found.value).splitlines() if "GemmgenInt4Kernel" in line)
    assert line.startswith(" GemmgenInt4Kernel cannot implement due to: ")
    assert line.endswith(reason)


def test_no_kernel_of_int4_runs_on_another_gpu(kernels: Kernels) -> None:
    made = ours.integer_kernel(PackedProduct(kernels.module(PLAIN)))
    assert made.get_min_capability() == 90
    can, reason = made.can_implement(int4_config())
    assert not can
    assert reason == "these kernels need compute capability 9.0, found None"


def nothing(*_: Any, **__: Any) -> None:
    """Stand for a function of vLLM's that tests do not need, as the loader of a parameter."""


def gptq_method(bits: int = 4) -> Any:
    return gptq.AutoGPTQLinearMethod(gptq.AutoGPTQConfig(bits, 128, False, True, False, {}, {}))


def awq_method() -> Any:
    return awq.AutoAWQMarlinLinearMethod(awq.AutoAWQConfig(4, 128, True, False))


def scheme(*, symmetric: bool, bits: int = 4) -> Callable[[], Any]:
    def made() -> Any:
        return schemes.CompressedTensorsWNA16("group", bits, 128, symmetric, "a layer")

    return made


def drawn_zeros() -> Tensor:
    """Return zero points [N, blocks] that differ."""
    return torch.randint(0, 16, (N, K // 128), generator=torch.Generator().manual_seed(2))


def of_asymmetric_awq() -> Any:
    layer = stored_weights.of_awq()
    layer.qzeros = in_words(drawn_zeros().mT, AWQ_ORDER)
    return layer


def of_asymmetric_compressed_tensors() -> Any:
    return stored_weights.of_compressed_tensors(weight_zero_point=in_words(drawn_zeros().mT).mT)


OF_ROWS = "compressed-tensors with a scale for each row"
INT8_OF_ROWS = "int8 of compressed-tensors with a scale for each row"


def of_rows(bits: int = 4) -> Any:
    elements, exponents = stored_weights.drawn(N, K, K, bits=bits)
    words = in_words(elements, tuple(range(32 // bits)))
    return stored_weights.holder(weight_packed=words, weight_scale=(2.0**exponents).bfloat16())


def scheme_of_rows(bits: int = 4) -> Any:
    return schemes.CompressedTensorsWNA16("channel", bits, None, True, "a layer")


METHODS: dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]] = {
    "gptq": (PLAIN, gptq_method, stored_weights.of_gptq),
    "gptq, by a kernel that subtracts zero points": (ZEROS, gptq_method, stored_weights.of_gptq),
    "compressed-tensors": (PLAIN, scheme(symmetric=True), stored_weights.of_compressed_tensors),
    OF_ROWS: (PLAIN, scheme_of_rows, of_rows),
    "awq": (ZEROS, awq_method, of_asymmetric_awq),
    "compressed-tensors with zero points": (
        ZEROS,
        scheme(symmetric=False),
        of_asymmetric_compressed_tensors,
    ),
    "int8 of gptq": (INT8, lambda: gptq_method(8), lambda: stored_weights.of_gptq(bits=8)),
    "int8 of compressed-tensors": (
        INT8,
        scheme(symmetric=True, bits=8),
        lambda: stored_weights.of_compressed_tensors(bits=8),
    ),
    INT8_OF_ROWS: (INT8, lambda: scheme_of_rows(8), lambda: of_rows(8)),
}
"""The format of the kernel, vLLM's method of a layer, and the tensors of its checkpoint."""


def bits_of(method: str) -> int:
    """Return the bits of an element of the checkpoint of a method."""
    return 8 if METHODS[method][0] == INT8 else 4


def weight_of_layer(method: str) -> QuantizedWeight:
    """Return the weight of the checkpoint of a method."""
    vector = K if method in (OF_ROWS, INT8_OF_ROWS) else 128
    bits = bits_of(method)
    elements, exponents = stored_weights.drawn(N, K, vector, bits=bits)
    if bits == 8:
        return QuantizedWeight("int8", (elements - 128).char(), 2.0**exponents, vector)
    is_symmetric = METHODS[method][2] in (
        stored_weights.of_gptq,
        stored_weights.of_compressed_tensors,
        of_rows,
    )
    zeros = None if is_symmetric else drawn_zeros().to(torch.uint8)
    return QuantizedWeight("int4", in_bytes(elements), (2.0**exponents).bfloat16(), vector, zeros)


def created(method: str, product: PackedProduct) -> tuple[Any, Any]:
    """Return a method of vLLM's with the kernel that it chooses, and a layer with a checkpoint's tensors."""
    _, make, checkpoint = METHODS[method]
    named: dict[str, Any] = {product.format.element: product}
    ours.plug_in(**named)
    found, layer, loaded = make(), nn.Module(), checkpoint()
    facts: dict[str, Any] = {
        "input_size": K,
        "output_size": N,
        "input_size_per_partition": K,
        "output_partition_sizes": [N // 2, N // 2],
        "params_dtype": BF16,
        "weight_loader": nothing,
    }
    found.create_weights(layer, **facts)
    assert found.kernel.of_gemmgen
    for name, each in layer.named_parameters():
        if name != "weight_shape":
            each.data.copy_(getattr(loaded, name))
    return found, layer


def applied(method: Any) -> Callable[..., Tensor]:
    return getattr(method, "apply_weights", None) or method.apply


@pytest.mark.usefixtures("one_cuda_rank")
@pytest.mark.parametrize("name", METHODS)
def test_a_layer_of_integers_has_the_product_of_the_dequantised_weight(name: str, kernels: Kernels) -> None:
    few, many = (kernels.on_the_cpu(METHODS[name][0], rows=rows) for rows in (16, 32))
    method, layer = created(name, PackedProduct(many, few_rows={16: few}))
    olds = [weakref.ref(each) for key, each in layer.named_parameters() if key != "weight_shape"]
    method.process_weights_after_loading(layer)
    assert not any(old() is not None for old in olds)
    held = {key: each for key, each in layer.named_parameters() if key != "weight_shape"}
    assert sorted(each.dtype.itemsize * each.numel() for each in held.values())[1:] == [
        N * K * bits_of(name) // 8
    ]
    numbers = weight_of_layer(name).numbers()
    for shape in (5, K), (2, 20, K), (0, K):
        x = signs(*shape)
        found = applied(method)(layer, x, None)
        assert torch.equal(found, (x.double() @ numbers.T).to(BF16))
    assert few.calls == [(5, K), (0, K)]
    assert many.calls == [(40, K)]


@pytest.mark.usefixtures("one_cuda_rank")
def test_a_bias_is_added_to_the_rounded_product(kernels: Kernels) -> None:
    method, layer = created("gptq", PackedProduct(kernels.on_the_cpu(PLAIN)))
    method.process_weights_after_loading(layer)
    x, bias = signs(2, 3, K), torch.randn(N, generator=torch.Generator().manual_seed(3)).bfloat16()
    rounded = (x.double() @ weight_of_layer("gptq").numbers().T).to(BF16)
    assert torch.equal(method.apply(layer, x, bias), rounded + bias)


@pytest.mark.usefixtures("one_cuda_rank")
def test_a_compiled_layer_of_int4_is_one_graph(kernels: Kernels) -> None:
    method, layer = created("compressed-tensors", PackedProduct(kernels.on_the_cpu(PLAIN)))
    method.process_weights_after_loading(layer)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def forward(x: Tensor, bias: Tensor) -> Tensor:
        return method.apply_weights(layer, x, bias)

    function = cast(Any, torch).compile(forward, backend=backend, fullgraph=True, dynamic=True)
    bias = signs(N)
    for rows in 4, 40:
        x = signs(rows, K)
        assert torch.equal(function(x, bias), forward(x, bias))
    (graph,) = graphs
    named = [str(node.target) for node in graph.graph.nodes]
    assert len([each for each in named if "packed_linear" in each]) == 1


@pytest.mark.usefixtures("one_cuda_rank")
def test_a_weight_that_the_kernel_cannot_decode_says_how_vllm_takes_its_own(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, layer = created("gptq", PackedProduct(kernels.on_the_cpu(PLAIN)))
    layer.scales.data[0, 0] = 0.5
    with pytest.raises(
        ValueError, match="qweight is no weight for h100_bf16_1x128_rows16: scales must be"
    ) as said:
        method.process_weights_after_loading(layer)
    assert "with VLLM_DISABLED_KERNELS=GemmgenInt4Kernel vLLM takes its own" in str(said.value)
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "GemmgenInt4Kernel")
    with pytest.raises(ValueError, match="GemmgenInt4Kernel disabled by environment variable"):
        L.choose_mp_linear_kernel(int4_config(), 90)


def test_a_compiled_model_of_other_kernels_is_not_taken_again(kernels: Kernels) -> None:
    def key() -> str:
        return hash_factors(envs.compile_factors())

    own = key()
    few, many = (kernels.on_the_cpu(PLAIN, rows=rows) for rows in (16, 32))
    found = [own]
    parts: list[dict[str, Any]] = [
        {"int4": PackedProduct(many)},
        {"int4": PackedProduct(many, few_rows={16: few})},
        {"int4": PackedProduct(many, few_rows={8: few})},
        {"int8": PackedProduct(kernels.on_the_cpu(INT8))},
        {"experts": silu_experts()},
        {"fp8_blocks": import_generated(module_file("h100_e4m3_blockwise"))},
    ]
    for part in parts:
        ours.plug_in(**part)
        found.append(key())
        assert key() == found[-1]
    assert len({*found}) == 7
    ours.plug_in()
    assert key() == own


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


@pytest.mark.usefixtures("one_cuda_rank")
def test_the_file_names_the_modules_of_integers(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (kernels.on_the_cpu(PLAIN, rows=rows) for rows in (16, 32))
    for name, kernel in (("a_few", few), ("a_many", many), ("an_int8", kernels.on_the_cpu(INT8))):
        monkeypatch.setitem(sys.modules, name, kernel)
    path = tmp_path / "kernels.json"
    int4 = {"module": "a_many", "few_rows": {"16": "a_few"}}
    path.write_text(json.dumps({"int4": int4, "int8": {"module": "an_int8"}}))
    monkeypatch.setenv("GEMMGEN_VLLM", str(path))
    register()
    made = L.choose_mp_linear_kernel(int4_config(), 90)
    with pytest.raises(ValueError, match="a scale for 128 of K") as found:
        L.choose_mp_linear_kernel(int4_config(group_size=32), 90)
    assert made.of_gemmgen
    of_int8 = L.choose_mp_linear_kernel(int4_config(weight_type=types.uint8b128), 90)
    assert of_int8.__name__ == "GemmgenInt8Kernel"
    assert f"{few.__name__}, {many.__name__} has a scale" in str(found.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "must name a file of JSON"),
        ("[]", "must name a file of JSON"),
        ('{"fp8": "x"}', "must have fp8_blocks, experts with up, down and few_rows, and int4 and int8 with"),
        ('{"experts": {"up": "x"}}', "must have fp8_blocks, experts with up, down"),
        ('{"int4": {"few_rows": {}}}', "and int4 and int8 with module and few_rows, found int4"),
        ('{"int4": {"module": "x", "rows": {}}}', "and int4 and int8 with module and few_rows, found int4"),
        ('{"int8": {"few_rows": {}}}', "and int4 and int8 with module and few_rows, found int8"),
        ('{"int4": "x"}', "and int4 and int8 with module and few_rows, found int4"),
        ('{"int4": {"module": "json", "few_rows": {"few": "x"}}}', "few_rows must have modules by the most"),
        ('{"int4": {"module": "json", "few_rows": ["x"]}}', "few_rows must have modules by the most rows"),
        ('{"int4": {"module": "json"}}', "a kernel is an imported module or library with a function matmul"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernels.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("GEMMGEN_VLLM", str(path))
    with pytest.raises(ValueError, match=said) as found:
        register()
    assert str(path) in str(found.value)


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
