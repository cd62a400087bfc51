"""integrations.transformers: models of transformers by its own interfaces, with kernels of this CPU."""

from __future__ import annotations

import copy
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from cpu_kernels import Fp8Linear, kernel_on_the_cpu
from expert_kernels import (
    EXAMPLES,
    GPT_OSS,
    KERNELS,
    calls,
    down_kernel,
    generated_experts,
    gpt_oss_experts,
    reference,
    silu_experts,
    tensors,
    up_kernel,
)
from modules import made, module_file
from simulated import on_a_gpu, simulated_file
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

import gemmgen.integrations.transformers as ours
from gemmgen.device import captured_graph, require_gpu
from gemmgen.hardware import HOPPER
from gemmgen.integrations.experts import Experts, ExpertTensors
from gemmgen.integrations.transformers import Accelerated, ExpertsFunction, accelerate_model, register_experts
from gemmgen.module import import_generated
from gemmgen.product import write

transformers: Any = pytest.importorskip("transformers")
TOKENS = torch.arange(24).view(3, 8) % 60
any_torch, any_registry = cast(Any, torch), cast(Any, ALL_EXPERTS_FUNCTIONS)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    calls.clear()
    registry: dict[str, Any] = any_registry._global_mapping
    known = dict(registry)
    yield
    registry.clear()
    registry.update(known)


def qwen3_moe(**changes: Any) -> nn.Module:
    """Return a Qwen3-MoE of two layers with random weights."""
    any_torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 64,
    }
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**(sizes | changes))).eval()


def gpt_oss() -> nn.Module:
    """Return a gpt-oss of two layers with random weights: transposed, with biases, columns in turn."""
    any_torch.manual_seed(0)
    config = transformers.GptOssConfig(
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_local_experts=8,
        num_experts_per_tok=2,
        vocab_size=64,
    )
    model = transformers.GptOssForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "experts" in name:  # transformers leaves them without numbers, or biases at zero
            nn.init.normal_(parameter, std=0.5)
    return model


def logits_of(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Experts]]] = {
    "qwen3_moe": (qwen3_moe, silu_experts),
    "gpt_oss": (gpt_oss, gpt_oss_experts),
}


@pytest.mark.parametrize("name", MODELS)
def test_kernels_compute_the_experts_of_a_model(name: str) -> None:
    make, experts = MODELS[name]
    model = make()
    expected = logits_of(model)
    done = accelerate_model(model, experts=experts())
    assert done.replaced == tuple(f"model.layers.{layer}.mlp.experts" for layer in range(2))
    assert set(done.left.values()) == {"no kernel was given"}
    assert done.function is any_registry["gemmgen"]
    torch.testing.assert_close(logits_of(model), expected, rtol=1e-4, atol=1e-5)
    assert calls == ["up", "down"] * 2
    assert cast(Any, model).config._experts_implementation == "gemmgen"


def test_linear_layers_get_the_first_kernel_that_takes_them() -> None:
    def product(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        calls.append("plain")
        return a @ b

    model = qwen3_moe(num_experts=0, mlp_only_layers=[0, 1]).to(torch.bfloat16)
    expected = logits_of(model)
    done = accelerate_model(
        model, kernel_on_the_cpu("plain", product), only=lambda name: "lm_head" not in name
    )
    assert len(done.replaced) == 14
    assert done.left == {"lm_head": "`only` does not mean the layer"}
    assert str(done) == "14 layers replaced, 1 left"
    torch.testing.assert_close(logits_of(model), expected, rtol=0.05, atol=0.05)
    assert calls == ["plain"] * 14


# --- layers that are left


def changed(model: nn.Module, **facts: bool) -> nn.Module:
    """Say of a model's experts what transformers says of other ones."""
    for layer in model.modules():
        if hasattr(layer, "has_gate"):
            vars(layer).update(facts)
    return model


LEFT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Experts], str]] = {
    "columns in turn": (
        qwen3_moe,
        lambda: silu_experts(interleaved=True),
        "its weights have all columns of the gate first, and up, down take columns of gate and up in turn",
    ),
    "columns of the gate first": (
        gpt_oss,
        lambda: gpt_oss_experts(interleaved=False),
        "its weights have columns of gate and up in turn, and up, down take all columns of the gate first",
    ),
    "a bias": (gpt_oss, lambda: silu_experts(interleaved=True), "it has a bias, and up, down add none"),
    "a norm": (
        lambda: changed(qwen3_moe(), has_post_expert_norm=True),
        silu_experts,
        "it has a norm after each expert, which no kernel computes",
    ),
    "no gate": (
        lambda: changed(qwen3_moe(), has_gate=False),
        silu_experts,
        "it has no gate, and up, down compute one",
    ),
    "another gate": (
        lambda: qwen3_moe(hidden_act="gelu"),
        silu_experts,
        "its gate is another one than that of up, down",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_layer_that_kernels_do_not_take_is_left_with_the_reason(name: str) -> None:
    make, experts, reason = LEFT[name]
    model = make()
    before = cast(Any, model).config._experts_implementation
    done = accelerate_model(model, experts=experts())
    assert done.replaced == ()
    assert {why for place, why in done.left.items() if place.endswith("experts")} == {reason}
    assert cast(Any, model).config._experts_implementation == before


def test_a_model_without_experts_or_linear_layers_is_left_as_it_is() -> None:
    model = nn.Sequential(nn.LayerNorm(8))
    assert accelerate_model(model, experts=silu_experts()) == Accelerated((), {})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (qwen3_moe, r"^its gate_up_proj has torch.float32, and up_gather_decode, .* take torch.bfloat16$"),
        (lambda: qwen3_moe(num_experts=130).bfloat16(), r"takes from 1 to 128 groups, found 130"),
        (lambda: qwen3_moe(moe_intermediate_size=36).bfloat16(), r"multiple"),
    ],
)
def test_layers_that_generated_kernels_refuse_are_left_before_the_first_call(
    model: Callable[[], nn.Module], reason: str, tmp_path: Path
) -> None:
    done = accelerate_model(model(), experts=generated_experts("qwen3_moe", tmp_path))
    assert done.replaced == ()
    assert re.search(reason, done.left["model.layers.0.mlp.experts"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_compiled_layer_that_was_cast_after_its_verdict_is_transformers_own(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # for the compiled program
    experts = generated_experts("qwen3_moe", tmp_path)
    function = register_experts(experts)
    layer = qwen3_moe().bfloat16().get_submodule("model.layers.0.mlp.experts")
    assert not function.verdict_on(layer).reason
    cast(Any, layer).config._experts_implementation = "gemmgen"
    layer.to("meta", dtype)
    operators: list[str] = []

    def noted(graph: Any, _: object) -> Any:
        operators.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    x = torch.empty(8, 64, dtype=dtype, device="meta")
    expert = torch.empty(8, 2, dtype=torch.int64, device="meta")
    with torch.no_grad():
        any_torch.compile(layer, backend=noted)(x, expert, torch.empty(8, 2, device="meta"))
    assert any("up_gather_decode" in each for each in operators) == (dtype == torch.bfloat16)


def test_two_models_with_other_kernels_keep_their_own() -> None:
    first, second = qwen3_moe(), gpt_oss()
    experts = silu_experts()
    accelerate_model(first, experts=experts)
    accelerate_model(second, experts=gpt_oss_experts())
    assert accelerate_model(qwen3_moe(), experts=experts).function is any_registry["gemmgen"]
    for model in (first, second):
        calls.clear()
        logits_of(model)
        assert calls == ["up", "down"] * 2


def test_an_accelerated_model_can_be_copied_and_pickled() -> None:
    model = qwen3_moe()
    expected = logits_of(model)
    accelerate_model(model, experts=silu_experts())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        calls.clear()
        torch.testing.assert_close(logits_of(other), expected, rtol=1e-4, atol=1e-5)
        assert calls == ["up", "down"] * 2


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")  # of transformers, to a cached function
def test_a_compiled_model_on_a_cpu_is_transformers_own(tmp_path: Path) -> None:
    model = qwen3_moe().bfloat16()
    expected = logits_of(model)
    assert accelerate_model(model, experts=generated_experts("qwen3_moe", tmp_path)).replaced
    with torch.no_grad():
        found = any_torch.compile(model, backend="eager")(TOKENS, use_cache=False).logits
    torch.testing.assert_close(found, expected)


class MyQwen(transformers.Qwen3MoeForCausalLM):
    """A model of a script, whose function of experts transformers does not change."""

    # Transformers finds it out from the source of a class, or of its parent.
    _can_set_experts_implementation_cached_value = False


def test_a_model_whose_function_cannot_be_changed_is_left() -> None:
    whole = qwen3_moe()
    part = nn.Sequential(cast(Any, whole).model)
    done = accelerate_model(part, experts=silu_experts())
    why = "a Sequential is no model of transformers, which could change their function"
    assert (done.replaced, done.left["0.layers.0.mlp.experts"]) == ((), why)
    whole.__class__ = MyQwen
    done = accelerate_model(whole, experts=silu_experts())
    assert done.replaced == ()
    assert "MyQwen" in done.left["model.layers.0.mlp.experts"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: accelerate_model(cast(Any, "model")), "^model must be a model, found 'model'"),
        (
            lambda: accelerate_model(nn.Linear(8, 8), experts=cast(Any, ())),
            r"^experts must be Experts\(up, down\)",
        ),
        (lambda: accelerate_model(nn.Linear(8, 8), only=cast(Any, ["a"])), "^only must be a function from"),
        (lambda: register_experts(silu_experts(), "eager"), "^eager is a function of transformers' own"),
        (
            lambda: register_experts(silu_experts(), "grouped_mm"),
            "^grouped_mm is a function of transformers' own",
        ),
        (lambda: register_experts(cast(Any, 1)), r"^experts must be Experts\(up, down\), found 1"),
    ],
)
def test_wrong_arguments_are_refused_in_words(call: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def test_torch_computes_what_the_kernels_refuse_and_the_reason_is_told() -> None:
    model, expected = qwen3_moe(), logits_of(qwen3_moe())
    function = register_experts(silu_experts(least=1000))
    cast(Any, model).set_experts_implementation("gemmgen")
    torch.testing.assert_close(logits_of(model), expected)
    assert (calls, function.reason) == ([], "up is for 1000 rows and more")
    function.experts = silu_experts()
    torch.testing.assert_close(logits_of(model), expected, rtol=1e-4, atol=1e-5)
    assert (calls, function.reason) == (["up", "down"] * 2, "")


def test_torch_computes_a_call_that_is_trained() -> None:
    model = qwen3_moe()
    function = register_experts(silu_experts())
    cast(Any, model).set_experts_implementation("gemmgen")
    model(TOKENS, use_cache=False).logits.sum().backward()
    assert calls == []
    assert function.reason == "x requires grad, and kernels have no backward"
    gradients = [parameter.grad for name, parameter in model.named_parameters() if "experts" in name]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


# --- the function


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_experts_are_the_weighted_sum_of_the_products_of_each_token(tokens: int) -> None:
    call = tensors(tokens)
    torch.testing.assert_close(silu_experts()(call), reference(call), rtol=1e-4, atol=1e-4)


def test_pairs_of_other_ranks_add_nothing() -> None:
    call = tensors()
    expert = call.expert.clone()
    expert[0, :], expert[3, 1] = 4, 4  # no expert of this rank
    call = call._replace(expert=expert)
    found = silu_experts()(call, has_other_pairs=True)
    assert torch.equal(found[0], torch.zeros(16))
    torch.testing.assert_close(found, reference(call), rtol=1e-4, atol=1e-4)


def test_a_layer_with_a_forward_of_ranks_may_have_other_pairs() -> None:
    (layer,) = [layer for layer in qwen3_moe(num_hidden_layers=1).modules() if hasattr(layer, "has_gate")]
    assert not ExpertsFunction(silu_experts()).verdict_on(layer).has_other_pairs
    layer.forward = layer.forward
    assert ExpertsFunction(silu_experts()).verdict_on(layer).has_other_pairs


def test_few_rows_of_an_expert_have_kernels_of_their_own() -> None:
    few = {4: (up_kernel(name="up4"), down_kernel()), 2: (up_kernel(name="up2"), down_kernel())}
    experts = Experts(up_kernel(), down_kernel(), few_rows=few)
    for tokens in (4, 8, 9):
        experts(tensors(tokens))
    assert calls[::2] == ["up2", "up4", "up"]
    assert str(experts) == "up2, down, up4, down, up, down"


WRONG: dict[str, tuple[Callable[[], Experts], str]] = {
    "the order of kernels": (
        lambda: Experts(down_kernel(), up_kernel()),
        "^down, the first kernel, does not gate groups ",
    ),
    "a gate that is not known": (
        lambda: Experts(kernel_on_the_cpu("up", torch.mm, "offs", "a_rows", epilogue=("up",)), down_kernel()),
        "known gates are silu",
    ),
    "one bias": (
        lambda: Experts(up_kernel(), down_kernel(bias=True)),
        "^down, the second kernel, does not multiply groups",
    ),
    "no kernel": (lambda: Experts("up", down_kernel()), "^a kernel is an imported module or library "),
    "two gates": (
        lambda: Experts(
            up_kernel(), down_kernel(), few_rows={4: (up_kernel(GPT_OSS), down_kernel(bias=True))}
        ),
        "^up, down, up, down have different gates, biases or orders of columns",
    ),
    "keys of two types": (
        lambda: Experts(up_kernel(), down_kernel(), few_rows=cast(Any, {"4": (1, 2), 8: (1, 2)})),
        "^a key of few_rows must be a number of rows from 1 on, found '4'",
    ),
    "no pair": (
        lambda: Experts(up_kernel(), down_kernel(), few_rows=cast(Any, {4: "up"})),
        r"^few_rows\[4\] must be a pair of kernels \(up, down\), found 'up'",
    ),
    "no dict": (
        lambda: Experts(up_kernel(), down_kernel(), few_rows=cast(Any, [4])),
        "^few_rows must be a dict of pairs of kernels",
    ),
    "no rows": (
        lambda: Experts(up_kernel(), down_kernel(), few_rows={0: (up_kernel(), down_kernel())}),
        "^a key of few_rows must be a number of rows from 1 on, found 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_kernels_are_refused_in_words(name: str) -> None:
    make, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        make()


# --- fp8 checkpoints, and releases of transformers


def test_layers_of_fp8_checkpoints_are_found_by_the_class_of_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = import_generated(module_file("h100_e4m3_blockwise"))
    model = nn.Sequential(Fp8Linear(256, 256))
    assert set(accelerate_model(model, kernel).left) == {"0"}
    monkeypatch.setattr(ours, "fp8_classes", lambda: (Fp8Linear,))
    assert accelerate_model(model, kernel).replaced == ("0",)


def test_transformers_own_fp8_layer_is_taken() -> None:
    (found,) = ours.fp8_classes()
    layer = cast(Any, found)(256, 256, block_size=(128, 128))
    model = nn.Sequential(layer)
    kernel = import_generated(module_file("h100_e4m3_blockwise"))
    done = accelerate_model(model, kernel)
    assert done == Accelerated(("0",), {})


def test_without_transformers_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ImportError, match=r"^transformers is not installed: run `pip install '\.\[transformers"
    ):
        accelerate_model(nn.Linear(8, 8))


def test_a_release_without_the_registry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", None)
    with pytest.raises(ImportError, match=r"^transformers [\d.]+ has no registry of experts: 5\.17 has"):
        register_experts(silu_experts())


# --- generated kernels


@pytest.mark.parametrize("name", KERNELS)
def test_generated_kernels_compute_experts_in_the_simulator(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, _ = MODELS[name]
    layer = next(layer for layer in make().to(torch.bfloat16).modules() if hasattr(layer, "has_gate"))
    up, down = (EXAMPLES / f"{path}_decode.yaml" for path in KERNELS[name])
    modules = [simulated_file(write(made(spec), tmp_path), made(spec), monkeypatch) for spec in (up, down)]
    experts = Experts(*modules)
    function = ExpertsFunction(experts)
    assert function.verdict_on(layer).reason == ""
    call = ExpertTensors(*routed(5, 64, experts=8), *ours.weights_of(layer))
    with torch.no_grad():
        on_gpu: list[Any] = [each if each is None else on_a_gpu(each) for each in call]
        found = experts(ExpertTensors(*on_gpu))
        theirs: Tensor = any_registry["grouped_mm"](layer, call.x, call.expert, call.weight)
    assert_near(found, theirs)


def routed(tokens: int, hidden: int, *, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens in bf16, two experts of each, and the router's weights."""
    draw = torch.Generator().manual_seed(2)
    expert = torch.stack([torch.randperm(experts, generator=draw)[:2] for _ in range(tokens)])
    x = torch.randn(tokens, hidden, generator=draw).bfloat16()
    return x, expert, torch.rand(tokens, 2, generator=draw).bfloat16()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Experts]]:
    """The kernels for experts of both models, imported by their names, as compiled programs find them."""
    folder = tmp_path_factory.mktemp("experts")
    sys.path.insert(0, str(folder))
    found = dict[str, Experts]()
    for name, stems in KERNELS.items():
        files = [
            write(made(EXAMPLES / f"{stem}_{regime}.yaml"), folder)
            for regime in ("prefill", "decode")
            for stem in stems
        ]
        up, down, *few = (import_module(file.stem) for file in files)
        found[name] = Experts(up, down, few_rows={4: (few[0], few[1])})
    yield found
    sys.path.remove(str(folder))


@pytest.mark.gpu
@pytest.mark.filterwarnings("default::UserWarning")  # Inductor's, of products and softmaxes of transformers
@pytest.mark.parametrize("tokens", [1, 16, 300])
@pytest.mark.parametrize("name", KERNELS)
def test_models_are_right_on_a_gpu(name: str, tokens: int, built: dict[str, Experts]) -> None:
    """The model eager and compiled, and its experts in a CUDA graph, beside transformers' own experts.

    A compiled model is compared with a compiled one: Inductor rounds less often, so a router whose second and
    third expert nearly tie can choose another one than in eager mode, with transformers' own experts too.
    """
    require_gpu(HOPPER)
    model = MODELS[name][0]().to("cuda", torch.bfloat16)
    ids = torch.arange(tokens, device="cuda")[:, None] % 60
    layer = next(layer for layer in model.modules() if hasattr(layer, "has_gate"))
    routing = [each.cuda() for each in routed(tokens, 64, experts=8)]
    with torch.no_grad():
        theirs, of_layer = model(ids, use_cache=False).logits, layer(*routing)
        compiled_theirs = compiled(model)(ids, use_cache=False).logits
        done = accelerate_model(model, experts=built[name])
        assert len(done.replaced) == 2
        assert set(done.left.values()) == {"no kernel was given"}  # for linear layers
        assert_near(model(ids, use_cache=False).logits, theirs)
        assert any_registry["gemmgen"].reason == ""
        assert_near(layer(*routing), of_layer)
        with captured_graph() as graph:
            captured = layer(*routing)
        graph.replay()
        assert_near(captured, of_layer)
        assert_near(compiled(model)(ids, use_cache=False).logits, compiled_theirs)


def compiled(model: nn.Module) -> Any:
    """Compile a model as it is now, without the programs of its earlier state."""
    any_torch.compiler.reset()
    return any_torch.compile(model, dynamic=False)


def assert_near(found: Tensor, theirs: Tensor) -> None:
    """Compare with transformers' own numbers, whose products are rounded to bf16 before they are added up."""
    bound = 0.02 * theirs.float().abs().max().item()
    torch.testing.assert_close(found.as_subclass(Tensor), theirs, rtol=0.05, atol=bound)
