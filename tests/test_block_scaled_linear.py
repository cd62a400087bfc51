"""integrations: a linear layer of weights with scales of blocks, and the quantisation of its input."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from cpu_kernels import Fp8Linear, kernel_on_the_cpu
from modules import module_file
from simulated import on_a_gpu, simulated
from torch import Tensor, nn

from gemmgen.integrations import (
    BlockScaledLinear,
    LinearLeftWarning,
    quantize_rows,
    replace_block_scaled_linear,
)
from gemmgen.integrations.block_scaled_linear import block_scaled_mm
from gemmgen.integrations.operator import remember
from gemmgen.integrations.quantize import dequantized_weight
from gemmgen.module import import_generated
from gemmgen.numerics.quantized import quantized

any_torch: Any = cast(Any, torch)
E4M3, FP32, BF16 = torch.float8_e4m3fn, torch.float32, torch.bfloat16
PLAIN, WITH_BIAS = "h100_e4m3_blockwise", "h100_e4m3_blockwise_overlapped"
N, K = 144, 272


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    any_torch._dynamo.reset()
    yield
    any_torch._dynamo.reset()


# --- the quantisation


def by_definition(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return elements and scales, a block after the other, by Python's numbers."""
    m, k = x.shape
    elements, scales = torch.zeros(m, k), torch.zeros(m, -(-k // 128))
    for row in range(m):
        for first in range(0, k, 128):
            block = x[row, first : first + 128].float()
            largest = torch.tensor(max(2.0**-100, min(2.0**127, block.abs().max().item())))
            scales[row, first // 128] = largest / torch.tensor(448.0)
            elements[row, first : first + 128] = block * (torch.tensor(448.0) / largest)
    return elements.to(E4M3), scales


@pytest.mark.parametrize("dtype", [BF16, torch.float16, FP32])
@pytest.mark.parametrize("shape", [(5, 128), (7, 272), (1, 100), (4, 512)])
def test_rows_are_quantised_by_the_definition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    elements, scales = quantize_rows(x)
    wanted, of_blocks = by_definition(x)
    assert (elements.dtype, scales.dtype) == (E4M3, FP32)
    assert torch.equal(elements.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(scales, of_blocks)
    wide = elements.float() * scales.repeat_interleave(128, 1)[:, : shape[1]]
    # Half of the last of four bits; the least step of a block is that of subnormal e4m3.
    step = scales.repeat_interleave(128, 1)[:, : shape[1]] * 2.0**-10
    assert (wide - x.float()).abs().le(x.float().abs() * 2.0**-4 + step).all()


def test_rows_are_quantised_as_kernels_quantise_d() -> None:
    x = torch.randn(33, 256) * torch.logspace(-20, 20, 33)[:, None]
    x[3, :128] = 0
    x[4, 5], x[4, 130] = float("inf"), float("-inf")
    x[5, 7] = float("nan")
    elements, scales = quantize_rows(x)
    wanted, of_blocks = quantized(x, 128, E4M3)
    assert torch.equal(elements.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(scales, of_blocks)
    assert not elements[3, :128].float().any()
    assert (elements[4, 5], elements[4, 130]) == (448, -448)
    assert torch.equal(elements[5].float().isnan().nonzero(), torch.tensor([[7]]))


@pytest.mark.parametrize("m", [1, 3, 4, 33])
def test_scales_lie_as_kernels_read_them(m: int) -> None:
    _, scales = quantize_rows(torch.randn(m, 384))
    assert scales.stride(1) == -(-m // 4) * 4
    assert m == 1 or scales.stride(0) == 1
    assert quantize_rows(torch.randn(2, 3, 256))[1].shape == (2, 3, 2)
    assert quantize_rows(torch.randn(0, 256))[1].shape == (0, 2)


def test_the_compiled_quantisation_has_one_graph_for_all_rows() -> None:
    compiled = any_torch.compile(quantize_rows, backend="aot_eager", fullgraph=True, dynamic=True)
    for m in (5, 8, 130):
        x = torch.randn(m, 256)
        for ours, theirs in zip(compiled(x), quantize_rows(x), strict=True):
            assert torch.equal(ours.float(), theirs.float())


@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("shape", [(7, 300), (33, 100), (4, 272)])
def test_the_compiled_quantisation_has_the_numbers_of_the_eager_one(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator) * torch.logspace(-20, 20, shape[0])[:, None]
    x[1, 5], x[2, -1] = float("nan"), float("inf")
    found = any_torch.compile(quantize_rows)(x)
    for ours, theirs in zip(found, quantize_rows(x), strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
        isnan = theirs.float().isnan()  # Inductor gives a NaN another sign
        assert torch.equal(ours.float().isnan(), isnan)
        assert torch.equal(ours.float()[~isnan], theirs.float()[~isnan])


@pytest.mark.parametrize("k", [0, 1, 16, 127, 128, 130, 256])
def test_a_vector_is_quantised_as_a_row(k: int) -> None:
    x = torch.randn(k, generator=torch.Generator().manual_seed(4))
    elements, scales = quantize_rows(x)
    rows, of_rows = quantize_rows(x[None])
    assert (elements.shape, scales.shape) == ((k,), (-(-k // 128),))
    assert torch.equal(elements.float(), rows[0].float())
    assert torch.equal(scales, of_rows[0])


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 130), (2, 0, 130), (2, 3, 0), (0, 3, 256), (2, 3, 48)])
def test_shapes_without_elements_are_quantised(shape: tuple[int, ...]) -> None:
    elements, scales = quantize_rows(torch.ones(shape))
    assert elements.shape == shape
    assert scales.shape == (*shape[:-1], -(-shape[-1] // 128))
    compiled = any_torch.compile(quantize_rows, backend="aot_eager", fullgraph=True)(torch.ones(shape))
    assert [each.shape for each in compiled] == [elements.shape, scales.shape]


def test_a_scalar_has_no_rows() -> None:
    with pytest.raises(ValueError, match="must have a dimension to quantise along"):
        quantize_rows(torch.ones(()))


# --- the layer


def weights(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return a weight [N, K] and its scales, as a checkpoint has them."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(N, K, generator=generator).to(E4M3)
    return weight, torch.rand(-(-N // 128), -(-K // 128), generator=generator) + 0.5


def layer_of(kernel: Any, *, bias: bool = False) -> BlockScaledLinear:
    """Return a layer with weights from a state dict."""
    layer = BlockScaledLinear(K, N, bias, kernel=kernel)
    weight, scales = weights()
    state = {"weight": weight, "weight_scale_inv": scales}
    if bias:
        state["bias"] = torch.randn(N, generator=torch.Generator().manual_seed(2)).bfloat16()
    found: Any = layer.load_state_dict(state)
    assert (found.missing_keys, found.unexpected_keys) == ([], [])
    return layer


def exact(x: Tensor, layer: BlockScaledLinear) -> Tensor:
    """Return the product of the quantised input and the weight in float64."""
    rows = x.reshape(-1, K)
    elements, scales = by_definition(rows)
    wide = elements.double() * scales.double().repeat_interleave(128, 1)[:, :K]
    found = wide @ dequantized_weight(layer.weight, layer.weight_scale_inv, torch.float64).T
    found = found if layer.bias is None else found + layer.bias.double()
    return found.view(*x.shape[:-1], N)


def on_gpu(layer: BlockScaledLinear) -> BlockScaledLinear:
    """Move the parameters to a GPU that does not exist."""
    for name, parameter in [*layer.named_parameters()]:
        moved = nn.Parameter(parameter.data, requires_grad=False)
        parameters: dict[str, Any] = cast(Any, layer)._parameters
        parameters[name] = on_a_gpu(moved.data)
    return layer


@pytest.mark.parametrize("shape", [(5, K), (2, 9, K), (1, K)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_kernel_computes_the_layer(
    bias: bool, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layer_of(simulated(WITH_BIAS if bias else PLAIN, monkeypatch), bias=bias)
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3)).bfloat16()
    wanted = exact(x, layer)
    found = on_gpu(layer)(on_a_gpu(x))
    assert layer.reason == ""
    assert (found.dtype, found.shape) == (BF16, (*shape[:-1], N))
    assert torch.allclose(found.as_subclass(Tensor).double(), wanted, rtol=2e-2, atol=2e-2)


def test_torch_computes_the_layer_elsewhere_and_the_reason_is_told() -> None:
    layer = layer_of(import_generated(module_file(PLAIN)))
    x = torch.randn(6, K).bfloat16()
    weight = dequantized_weight(layer.weight, layer.weight_scale_inv, BF16)
    assert torch.equal(layer(x), nn.functional.linear(x, weight))
    assert layer.reason == "a must be on a CUDA device, found cpu"
    assert layer(x.float()).dtype == FP32
    assert layer.reason == f"{PLAIN} makes torch.bfloat16, and the input is torch.float32"
    x.requires_grad_()
    layer(x).float().sum().backward()
    assert layer.reason == "the input or the bias requires grad, and the kernel has no backward"
    assert x.grad is not None
    assert torch.allclose(x.grad.float(), weight.float().sum(0).expand(6, K), rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        layer(x)
    assert layer.reason == "a must be on a CUDA device, found cpu"
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(torch.randn(6, K + 16).bfloat16())


def test_a_bias_that_the_kernel_does_not_add_is_torchs() -> None:
    layer = layer_of(import_generated(module_file(PLAIN)), bias=True)
    x = torch.randn(6, K).bfloat16()
    weight = dequantized_weight(layer.weight, layer.weight_scale_inv, BF16)
    assert torch.equal(layer(x), nn.functional.linear(x, weight, layer.bias))
    assert layer.reason == (
        f"{PLAIN} has no column_bias: its product would be rounded before the bias is added"
    )


# --- parameters, copies, other layers


def test_the_state_dict_has_the_names_of_checkpoints() -> None:
    layer = layer_of(import_generated(module_file(WITH_BIAS)), bias=True)
    assert [*layer.state_dict()] == ["weight", "weight_scale_inv", "bias"]
    assert {name: each.dtype for name, each in layer.state_dict().items()} == {
        "weight": E4M3,
        "weight_scale_inv": FP32,
        "bias": BF16,
    }
    assert not any(each.requires_grad for each in layer.parameters())
    assert "in_features=272, out_features=144, bias=True, kernel=h100_e4m3_blockwise_overlapped" in str(layer)


def test_a_layer_can_be_copied_moved_and_saved() -> None:
    layer = layer_of(import_generated(module_file(PLAIN)))
    x = torch.randn(6, K).bfloat16()
    wanted = layer(x)
    copied = copy.deepcopy(layer)
    assert copied.weight.data_ptr() != layer.weight.data_ptr()
    assert torch.equal(copied(x), wanted)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = BlockScaledLinear(K, N, kernel=import_generated(module_file(PLAIN)), device="meta")
    other = other.to_empty(device="cpu")
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), wanted)
    half = copy.deepcopy(nn.Sequential(layer)).to("cpu")
    assert torch.equal(half(x), wanted)


def test_a_layer_shares_the_parameters_of_another_one() -> None:
    kernel = import_generated(module_file(PLAIN))
    weight, scales = weights()
    given = nn.Module()
    given.weight = nn.Parameter(weight, requires_grad=False)
    given.weight_scale_inv = nn.Parameter(scales, requires_grad=False)
    given.eval()
    layer = BlockScaledLinear.of(given, kernel)
    assert layer.weight is given.weight
    assert layer.weight_scale_inv is given.weight_scale_inv
    assert (layer.bias, layer.training) == (None, False)


def holder(**tensors: Any) -> nn.Module:
    given = nn.Module()
    for name, tensor in tensors.items():
        given.register_buffer(name, tensor)
    return given


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Linear(4, 4), "layer must have tensors weight and weight_scale_inv, found Linear"),
        (
            holder(weight=torch.ones(144, 272), weight_scale_inv=torch.ones(2, 3)),
            r"weight must be torch.float8_e4m3fn \[N, K\], found torch.float32",
        ),
        (
            holder(weight=weights()[0], weight_scale_inv=torch.ones(3, 2)),
            r"weight_scale_inv must be torch.float32 \[2, 3\], found torch.float32 \[3, 2\]",
        ),
    ],
)
def test_a_layer_of_other_tensors_is_refused(layer: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockScaledLinear.of(layer, import_generated(module_file(PLAIN)))


def test_other_kernels_are_refused() -> None:
    for stem, message in (
        ("h100_e4m3_scaled", "computes no a @ b of e4m3"),
        ("h100_e4m3_blockwise_wgrad", "has a scale for each column of b, and weights for 128 of them"),
        (WITH_BIAS, "needs column_bias, and the layer has no bias"),
    ):
        with pytest.raises(ValueError, match=message):
            BlockScaledLinear(K, N, kernel=import_generated(module_file(stem)))


# --- the layers of a model


def model_of(**layers: nn.Module) -> nn.Module:
    model = nn.Module()
    model.mlp = nn.ModuleDict(layers)
    return model


def test_the_layers_of_a_model_are_replaced_and_the_others_told() -> None:
    kernel, shared, hooked = import_generated(module_file(PLAIN)), Fp8Linear(), Fp8Linear()
    cast(Any, hooked).register_forward_hook(print)
    model = model_of(
        up=shared,
        again=shared,
        biased=Fp8Linear(bias=True),
        head=nn.Linear(4, 4),
        hooked=hooked,
        gate=Fp8Linear(),
    )
    options: dict[str, Any] = {"classes": [Fp8Linear], "left": {}}
    found = replace_block_scaled_linear(model, kernel, only=lambda name: "gate" not in name, **options)
    assert found == 1
    assert found.replaced == ("mlp.up", "mlp.again")
    rounded = f"{PLAIN} has no column_bias: its product would be rounded before the bias is added"
    assert dict(found.left) == {
        "mlp.biased": rounded,
        "mlp.hooked": "layer has a forward hook: it would not be called",
        "mlp.gate": "`only` does not mean the layer",
    }
    layers = cast(Any, model).mlp
    assert layers["up"] is layers["again"]
    assert layers["up"].weight is shared.weight
    again = replace_block_scaled_linear(model, kernel, **options)
    assert (again, again.replaced) == (1, ("mlp.gate",))
    assert again.left["mlp.up"] == f"{PLAIN} computes the layer already"
    with_bias = replace_block_scaled_linear(model, import_generated(module_file(WITH_BIAS)), **options)
    assert with_bias.replaced == ("mlp.biased",)
    assert with_bias.left["mlp.hooked"] == f"{WITH_BIAS} needs column_bias, and the layer has no bias"


def test_a_model_that_is_the_layer_is_told_and_other_kernels_are_refused() -> None:
    with pytest.warns(LinearLeftWarning, match="nothing holds it: use BlockScaledLinear.of"):
        found = replace_block_scaled_linear(Fp8Linear(), import_generated(module_file(PLAIN)))
    assert (found, list(found.left)) == (0, [""])
    with pytest.raises(ValueError, match="has a scale for each column of b"):
        replace_block_scaled_linear(model_of(), import_generated(module_file("h100_e4m3_blockwise_wgrad")))


# --- torch.compile and torch.export


def compiled(layer: nn.Module) -> tuple[Any, list[torch.fx.GraphModule]]:
    """Return a layer that is compiled as a whole, and its graphs."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    return any_torch.compile(layer, backend=backend, fullgraph=True, dynamic=True), graphs


def operators(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_a_compiled_layer_is_one_graph_with_the_operator() -> None:
    layer = layer_of(import_generated(module_file(PLAIN))).to("meta")
    function, graphs = compiled(layer)
    for m in (5, 40, 1000):
        assert function(torch.empty(2, m, K, dtype=BF16, device="meta")).shape == (2, m, N)
    (graph,) = graphs
    assert any("block_scaled_mm" in each for each in operators(graph))


def test_a_compiled_layer_on_a_cpu_is_torchs() -> None:
    layer = layer_of(import_generated(module_file(PLAIN)))
    function, graphs = compiled(layer)
    x = torch.randn(7, K).bfloat16()
    assert torch.equal(function(x), layer(x))
    (graph,) = graphs
    assert not any("gemmgen" in each for each in operators(graph))


def test_an_exported_layer_keeps_the_rows_open() -> None:
    layer = layer_of(import_generated(module_file(PLAIN))).to("meta")
    rows = any_torch.export.Dim("rows", min=2, max=4096)
    x = torch.empty(30, K, dtype=BF16, device="meta")
    program = any_torch.export.export(layer, (x,), dynamic_shapes=({0: rows},))
    for m in (2, 33, 4096):
        assert program.module()(torch.empty(m, K, dtype=BF16, device="meta")).shape == (m, N)
    assert [*program.state_dict] == ["weight", "weight_scale_inv"]


def test_the_operator_computes_and_falls_back() -> None:
    weight, scales = weights()
    x = torch.randn(6, K).bfloat16()
    a, a_scale = quantize_rows(x)
    wide = a.float() * a_scale.repeat_interleave(128, 1)[:, :K]
    wanted = wide @ dequantized_weight(weight, scales, FP32).T

    def matmul(a: Tensor, b: Tensor, **_: Tensor) -> Tensor:
        if b.shape[1] != N:
            raise ValueError("b must be another one")
        return torch.full((a.shape[0], N), 7.0, dtype=BF16)

    remember(kernel_on_the_cpu("sevens", matmul))
    assert torch.equal(
        block_scaled_mm(a, weight, a_scale, scales, None, BF16, "sevens"), torch.full((6, N), 7.0).bfloat16()
    )
    less = block_scaled_mm(a, weight[:128], a_scale, scales[:1], None, BF16, "sevens")
    assert torch.allclose(less.float(), wanted[:, :128], rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_layer_on_a_gpu_has_the_numbers_of_the_dequantised_one(mode: str) -> None:
    layer = layer_of(import_generated(module_file(PLAIN))).cuda()
    x = torch.randn(77, K, device="cuda").bfloat16()
    wanted = nn.functional.linear(x, dequantized_weight(layer.weight, layer.weight_scale_inv, BF16))
    function = any_torch.compile(layer, fullgraph=True) if mode == "compiled" else layer
    found = function(x)
    assert layer.reason == ""
    assert (found - wanted).float().square().mean() < 0.05**2 * wanted.float().square().mean()
