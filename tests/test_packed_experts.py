"""integrations: a layer of experts whose weights two kernels decode."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from expert_kernels import down_kernel, gpt_oss_experts, up_kernel
from modules import module_file
from packed_experts import (
    EXPERTS,
    GPT_OSS,
    HIDDEN,
    INTERMEDIATE,
    SILU,
    ExpertModules,
    assert_close,
    calls_of,
    drawn_biases,
    drawn_call,
    drawn_weight,
    drawn_weights,
    exact,
)
from simulated import on_a_gpu, simulated_file
from torch import Tensor, nn

from gemmgen.device import captured_graph, require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.integrations import PackedExperts
from gemmgen.integrations.experts import Experts
from gemmgen.integrations.operator import kernels as remembered
from gemmgen.integrations.packed_weight import PackedWeight, pack_experts
from gemmgen.integrations.weights import QuantizedWeight
from gemmgen.module import import_generated
from gemmgen.product import Product

any_torch: Any = cast(Any, torch)
KINDS: dict[str, tuple[str, str | None, str, bool]] = {
    "gpt-oss in mxfp4": ("mxfp4", None, GPT_OSS, True),
    "gpt-oss in nvfp4": ("nvfp4", None, GPT_OSS, True),
    "silu in nvfp4": ("nvfp4", None, SILU, False),
    "silu in int4": ("fp16_1x128", None, SILU, False),
    "silu in int8": ("bf16_int8", None, SILU, False),
    "gpt-oss in fp8": ("fp16_e4m3", None, GPT_OSS, True),
    "two formats": ("mxfp4", "bf16_1x128", SILU, True),
    "four bits and eight": ("bf16_1x128", "bf16_e4m3", SILU, True),
}
"""The formats of both weights, the gate, and whether there are biases."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> ExpertModules:
    return ExpertModules(tmp_path_factory.mktemp("packed_experts"))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    any_torch._dynamo.reset()
    before = dict(remembered)
    yield
    remembered.clear()
    remembered.update(before)


def mxfp4_layer(experts: Experts) -> PackedExperts:
    return PackedExperts(*drawn_weights(), experts, **drawn_biases())


# --- a call


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_two_kernels_compute_the_layer(kind: str, tokens: int, modules: ExpertModules) -> None:
    up, down, gate, bias = KINDS[kind]
    experts = modules.cpu_experts(up, down, gate=gate, bias=bias)
    assert experts.dtype is not None
    weights, biases = drawn_weights(up, down), drawn_biases(experts.dtype) if bias else {}
    layer, call = PackedExperts(*weights, experts, **biases), drawn_call(tokens, experts.dtype)
    found = layer(*call)
    assert (layer.reason, calls_of(experts)) == ("", [[2 * tokens], [2 * tokens]])
    assert_close(found, exact(call, weights, biases, gate))


def test_few_rows_of_an_expert_have_kernels_of_their_own(modules: ExpertModules) -> None:
    few, many = (
        tuple(modules.on_the_cpu(part, "mxfp4", rows=rows) for part in ("up", "down")) for rows in (16, 32)
    )
    layer = mxfp4_layer(Experts(*many, few_rows={2: (few[0], few[1])}))
    for tokens in (8, 9):
        layer(*drawn_call(tokens))
    assert [kernel.calls for kernel in (*few, *many)] == [[16], [16], [18], [18]]


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_kernels_compute_the_layer(
    kind: str, modules: ExpertModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    up, down, gate, bias = KINDS[kind]
    built: list[tuple[Product, Path]] = [
        modules.build(part, scale_format, gate, bias=bias)
        for part, scale_format in (("up", up), ("down", down or up))
    ]
    experts = Experts(*(simulated_file(file, product, monkeypatch) for product, file in built))
    assert experts.dtype is not None
    weights, biases = drawn_weights(up, down), drawn_biases(experts.dtype) if bias else {}
    layer, call = PackedExperts(*weights, experts, **biases), drawn_call(5, experts.dtype)
    for held in (cast(Any, layer)._buffers, cast(Any, layer)._parameters):
        for name, tensor in held.items():
            held[name] = tensor if tensor is None else on_a_gpu(tensor)
    found = layer(*map(on_a_gpu, call))
    assert layer.reason == ""
    assert_close(found.as_subclass(Tensor), exact(call, weights, biases, gate))


# --- torch in the kernels' place


@pytest.mark.parametrize("kind", KINDS)
def test_torch_computes_the_layer_elsewhere(kind: str, modules: ExpertModules) -> None:
    up, down, gate, bias = KINDS[kind]
    experts = modules.modules(up, down, gate=gate, bias=bias)
    assert experts.dtype is not None
    weights, biases = drawn_weights(up, down), drawn_biases(experts.dtype) if bias else {}
    layer, call = PackedExperts(*weights, experts, **biases), drawn_call(5, experts.dtype)
    assert_close(layer(*call), exact(call, weights, biases, gate))
    assert layer.reason == "a must be on a CUDA device, found cpu"
    wide = call[0].float(), call[1], call[2].float()
    wanted = exact(wide, weights, biases, gate)
    torch.testing.assert_close(layer(*wide).double(), wanted, rtol=1e-3, atol=1e-3)
    assert layer.reason == f"{experts} multiply {experts.dtype}, and hidden_states are torch.float32"


def test_torch_computes_what_kernels_cannot_and_the_reason_is_told(modules: ExpertModules) -> None:
    experts = modules.cpu_experts()
    layer, (x, index, weights) = mxfp4_layer(experts), drawn_call(3)
    x.requires_grad_()
    layer(x, index, weights).float().sum().backward()
    assert layer.reason == "hidden_states requires grad, and kernels have no backward"
    assert x.grad is not None
    assert bool((x.grad != 0).any())
    with torch.autocast("cpu", torch.float16):
        layer(x.detach(), index, weights)
    assert layer.reason == "autocast casts hidden_states from torch.bfloat16 to torch.float16"
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(x.detach()[:, :64], index, weights)
    assert layer.reason == "hidden_states must be [tokens, 128], found [3, 64]"
    assert calls_of(experts) == [[], []]


def test_an_infinite_product_of_another_expert_adds_nothing(modules: ExpertModules) -> None:
    biases = drawn_biases()
    biases["down_bias"][7] = torch.inf
    layer = PackedExperts(*drawn_weights(), modules.modules(), **biases)
    x, _, weights = drawn_call(3)
    assert layer(x, torch.tensor([[0, 1]] * 3), weights).isfinite().all()


# --- what is refused


def without_turns(modules: ExpertModules) -> Experts:
    up = modules.on_the_cpu("up", "mxfp4")
    up.COMPUTES = {**up.COMPUTES, "interleaved": False}
    return Experts(up, modules.on_the_cpu("down", "mxfp4"))


def other_formats(modules: ExpertModules) -> Experts:
    few = modules.module("up", "nvfp4"), modules.module("down", "nvfp4")
    return Experts(modules.module("up", "mxfp4"), modules.module("down", "mxfp4"), few_rows={4: few})


def of_bf16_and_mxfp4(modules: ExpertModules) -> Experts:
    up = up_kernel("silu(gate + column_bias) * (up + column_bias)", interleaved=True)
    few = up, down_kernel(bias=True)
    return Experts(
        modules.module("up", "mxfp4", SILU), modules.module("down", "mxfp4", SILU), few_rows={4: few}
    )


WRONG: dict[str, tuple[Callable[[ExpertModules], Experts], str]] = {
    "columns that do not come in turn": (
        without_turns, "^up_mxfp4_.* packs columns of gate and up that do not come in turn"
    ),
    "formats": (other_formats, "^up_nvfp4_.* have different formats of weights: a layer has each of its"),
    "weights packed or not": (of_bf16_and_mxfp4, "^up, down, up_mxfp4.* have different formats of weights"),
    "types": (
        lambda modules: Experts(
            modules.module("up", "mxfp4", SILU, bias=False), modules.module("down", "fp16_1x128", bias=False)
        ),
        r"have different types of A and D: torch.bfloat16, torch.bfloat16, torch.float16, torch.float16",
    ),
    "a gate": (
        lambda modules: Experts(modules.module("down", "nvfp4"), modules.module("down", "nvfp4")),
        r"does not gate groups .*known gates are silu\(gate \* tensor_scale\) \* \(up \* tensor_scale\), ",
    ),
    "activations in e4m3": (
        lambda _: Experts(*[import_generated(module_file("h100_e4m3_mxfp4_experts"))] * 2),
        "h100_e4m3_mxfp4_experts multiplies activations in e4m3, to which no layer brings its input",
    ),
    "one bias": (
        lambda modules: Experts(modules.module("up", "nvfp4"), modules.module("down", "nvfp4", bias=False)),
        "have the epilogue tensor_scale, column_bias, row_scale: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_other_kernels_are_refused_in_words(name: str, modules: ExpertModules) -> None:
    make, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        make(modules)


def layer_with(
    modules: ExpertModules, weights: tuple[QuantizedWeight, QuantizedWeight], **biases: Tensor
) -> PackedExperts:
    return PackedExperts(*weights, modules.modules(), **biases)


def cut(weight: QuantizedWeight) -> QuantizedWeight:
    """Return the weight of the first expert as that of a layer."""
    return QuantizedWeight(weight.element, weight.codes[0], weight.scales[0], weight.vector)


def doubled(weight: QuantizedWeight) -> QuantizedWeight:
    """Return a weight with a scale of 4."""
    scales = weight.scales.view(torch.uint8).clone()
    scales[1, 2, 1] = 129
    return QuantizedWeight("e2m1", weight.codes, scales.view(torch.float8_e8m0fnu), weight.vector)


def factored() -> tuple[QuantizedWeight, QuantizedWeight]:
    """Return weights of nvfp4 whose experts have different factors."""
    up, down = drawn_weights("nvfp4")
    factors = torch.arange(1.0, EXPERTS + 1)
    return QuantizedWeight("e2m1", up.codes, up.scales, 16, tensor_scale=factors), down


UP, DOWN = drawn_weights()
REFUSED: dict[str, tuple[Callable[[ExpertModules], object], str]] = {
    "kernels of weights that are not packed": (
        lambda _: PackedExperts(UP, DOWN, gpt_oss_experts()),
        "up, down do not both take packed weights",
    ),
    "a layer's weight": (
        lambda modules: layer_with(modules, (cut(UP), DOWN), **drawn_biases()),
        "gate_up must be a weight [experts, N, K], found [128, 128]",
    ),
    "weights of other sizes": (
        lambda modules: layer_with(modules, (DOWN, UP), **drawn_biases()),
        "with down [8, 128, 128], gate_up must be [8, 256, 128], found [8, 128, 64]",
    ),
    "no biases": (
        lambda modules: layer_with(modules, (UP, DOWN)), "column_bias, and the layer has no gate_up_bias"
    ),
    "biases": (
        lambda modules: PackedExperts(UP, DOWN, modules.modules(bias=False), **drawn_biases()),
        "add no bias, and the layer has gate_up_bias",
    ),
    "a bias of another size": (
        lambda modules: layer_with(modules, (UP, DOWN), **drawn_biases() | {"down_bias": torch.zeros(8)}),
        "down_bias must be [8, 128], found [8]",
    ),
    "another format": (
        lambda modules: layer_with(modules, drawn_weights("nvfp4"), **drawn_biases()),
        "packs e2m1 with ue8m0 scales of 32 elements of K (mxfp4), and the weight is e2m1 with torch.float8",
    ),
    "scales that are not decoded": (
        lambda modules: layer_with(modules, (UP, doubled(DOWN)), **drawn_biases()),
        "scales must be float8_e8m0fnu or its bytes, at most 2",
    ),
    "a factor of each expert": (
        lambda modules: PackedExperts(*factored(), modules.modules("nvfp4"), **drawn_biases()),
        "the weight has another tensor_scale for each expert, and up_nvfp4_gpt_oss_bias_rows16 takes one",
    ),
    "more experts than the kernels take": (
        lambda modules: PackedExperts(
            drawn_weight("mxfp4", 128, 64, 33), drawn_weight("mxfp4", 64, 64, 33), modules.modules(bias=False)
        ),
        "takes from 1 to 32 groups, found 33",
    ),
    "a weight of a layer to pack": (
        lambda modules: pack_experts(modules.module("up", "mxfp4"), cut(UP)),
        "a layer of experts has a weight [experts, N, K], found [128, 128]",
    ),
    "a kernel that packs nothing": (
        lambda _: pack_experts(up_kernel(), UP), "up packs no weight: COMPUTES says"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_weights_are_refused_in_words(name: str, modules: ExpertModules) -> None:
    make, text = REFUSED[name]
    with pytest.raises(ValueError) as found:  # noqa: PT011  the message is compared
        make(modules)
    assert text in str(found.value)


def test_experts_say_which_weights_they_take(modules: ExpertModules) -> None:
    packed, tensor = PackedWeight(*[torch.empty(8, 64, 64)] * 3), torch.empty(8, 64, 64)
    packing, plain = modules.modules(), gpt_oss_experts()
    assert packing.why_not_weights(tensor, tensor) == (
        f"its weight gate_up has torch.float32, and {packing} take a packed one of e2m1 with ue8m0 scales of "
        "32 elements of K (mxfp4)"
    )
    assert plain.why_not_weights(tensor, packed) == (
        "its weight down is packed, and up, down take one that is not"
    )


# --- buffers, copies, casts


@pytest.mark.parametrize("scale_format", ["mxfp4", "nvfp4", "bf16_int8", "bf16_e4m3"])
def test_the_state_dict_has_the_packed_weights(scale_format: str, modules: ExpertModules) -> None:
    experts, biases = modules.cpu_experts(scale_format), drawn_biases()
    weights, call = drawn_weights(scale_format), drawn_call(4)
    layer = PackedExperts(*weights, experts, **biases)
    parts = ["packed_weight", "packed_scale", *["tensor_scale"] * (scale_format == "nvfp4")]
    names = [f"{weight}_{part}" for weight in ("gate_up", "down") for part in parts]
    assert [*layer.state_dict()] == ["gate_up_bias", "down_bias", *names]
    assert not any(each.requires_grad for each in layer.parameters())
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    gate_up = drawn_weight(scale_format, 2 * INTERMEDIATE, HIDDEN, seed=9)
    down = drawn_weight(scale_format, HIDDEN, INTERMEDIATE, seed=9)
    for assign in (False, True):
        other = PackedExperts(gate_up, down, experts, **{name: bias * 2 for name, bias in biases.items()})
        file.seek(0)
        other.load_state_dict(torch.load(file), assign=assign)
        assert torch.equal(other(*call), layer(*call))
        assert other.reason == ""


def test_a_state_dict_of_another_format_is_refused(modules: ExpertModules) -> None:
    int4 = PackedExperts(*drawn_weights("bf16_1x128"), modules.modules("bf16_1x128"), **drawn_biases())
    with pytest.raises(RuntimeError, match=r"gate_up_packed_scale must be torch\.bfloat16, as weights"):
        int4.load_state_dict(mxfp4_layer(modules.modules()).state_dict())


def test_a_cast_leaves_the_packed_weights(modules: ExpertModules) -> None:
    layer = PackedExperts(*drawn_weights("nvfp4"), modules.modules("nvfp4"), **drawn_biases())
    before = copy.deepcopy(dict(layer.named_buffers()))
    model = nn.Sequential(layer).half()
    assert {bias.dtype for bias in layer.parameters()} == {torch.float16}
    for name, buffer in layer.named_buffers():
        assert buffer.dtype == before[name].dtype
        assert torch.equal(buffer, before[name])
    assert {buffer.device.type for buffer in model.to("meta").buffers()} == {"meta"}


def test_a_layer_can_be_copied_and_pickled(modules: ExpertModules, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (
        tuple(modules.module(part, "mxfp4", rows=rows) for part in ("up", "down")) for rows in (16, 32)
    )
    layer: Any = mxfp4_layer(Experts(*many, few_rows={4: (few[0], few[1])}))
    call = drawn_call(4)
    text = pickle.dumps(layer)
    remembered.clear()  # as in another process, which imports the modules by their names
    for module in (*few, *many):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for other in (copy.deepcopy(layer), pickle.loads(text)):
        assert other.down_packed_weight.data_ptr() != layer.down_packed_weight.data_ptr()
        assert torch.equal(other(*call), layer(*call))
        assert other.kernel_name == layer.kernel_name
        assert [other._experts.kernels_for(pairs, 1) for pairs in (4, 5)] == [few, many]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit is deprecated
def test_the_layer_says_what_it_has(modules: ExpertModules) -> None:
    layer = mxfp4_layer(modules.modules())
    kernels = "up_mxfp4_gpt_oss_bias_rows16, down_mxfp4_gpt_oss_bias_rows16"
    assert str(layer) == (
        f"PackedExperts(experts=8, hidden=128, intermediate=64, bias=True, kernels={kernels}, "
        "weights=e2m1, e2m1, scales=mxfp4, mxfp4)"
    )
    with pytest.raises(NotImplementedError, match=f"torch.jit.script compiles no layer of {kernels}"):
        any_torch.jit.script(layer)


# --- compilers


class Model(nn.Module):
    """A layer of experts in a model."""

    def __init__(self, experts: PackedExperts) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Return twice the sum over experts."""
        return 2 * self.experts(x, index, weights)


def test_torch_fx_records_the_layer_as_a_whole(modules: ExpertModules) -> None:
    layer, call = mxfp4_layer(modules.cpu_experts()), drawn_call(4)
    traced = torch.fx.symbolic_trace(Model(layer))
    assert [node.op for node in traced.graph.nodes] == ["placeholder"] * 3 + [
        "call_module", "call_function", "output"
    ]  # fmt: skip
    assert torch.equal(traced(*call), 2 * layer(*call))
    assert_close(torch.fx.symbolic_trace(layer)(*call), exact(call, drawn_weights(), drawn_biases()))


def compiled(layer: nn.Module) -> tuple[Any, list[str]]:
    """Return a layer that is compiled as a whole, and the operators of its graphs."""
    operators: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        operators.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    return any_torch.compile(layer, backend=backend, fullgraph=True), operators


def test_a_compiled_layer_is_one_graph_with_both_kernels(
    modules: ExpertModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(modules.folder), *sys.path])  # for the compiled program
    few, many = (
        tuple(modules.module(part, "mxfp4", rows=rows) for part in ("up", "down")) for rows in (16, 32)
    )
    layer = mxfp4_layer(Experts(*many, few_rows={4: (few[0], few[1])})).to("meta")
    function, operators = compiled(layer)
    x, index, weights = (each.to("meta") for each in drawn_call(6))
    assert function(x, index, weights).shape == (6, HIDDEN)
    found = [each for each in operators if "mxfp4" in each]
    assert ["up" in found[0], "down" in found[1], len(found)] == [True, True, 2]


def test_a_compiled_layer_on_a_cpu_is_torchs(modules: ExpertModules) -> None:
    layer, call = mxfp4_layer(modules.modules()), drawn_call(7)
    function, operators = compiled(layer)
    torch.testing.assert_close(function(*call), layer(*call))
    assert not any("mxfp4" in each for each in operators)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("tokens", [1, 8, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_on_a_gpu_has_the_numbers_of_the_decoded_weights(
    kind: str, tokens: int, modules: ExpertModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager, in a CUDA graph, and compiled."""
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(sys, "path", [str(modules.folder), *sys.path])  # for the compiled program
    up, down, gate, bias = KINDS[kind]
    few, many = (
        tuple(
            modules.module(part, scale_format, gate, bias=bias, rows=rows)
            for part, scale_format in (("up", up), ("down", down or up))
        )
        for rows in (16, 32)
    )
    experts = Experts(*many, few_rows={4: (few[0], few[1])})
    assert experts.dtype is not None
    weights, biases = drawn_weights(up, down), drawn_biases(experts.dtype) if bias else {}
    layer, call = PackedExperts(*weights, experts, **biases).cuda(), drawn_call(tokens, experts.dtype)
    wanted, given = exact(call, weights, biases, gate), [each.cuda() for each in call]
    found = layer(*given)
    assert_close(found, wanted)
    with captured_graph() as graph:
        captured = layer(*given)
    graph.replay()
    assert torch.equal(captured, found)
    assert_close(any_torch.compile(layer, fullgraph=True)(*given), wanted)
    assert layer.reason == ""
