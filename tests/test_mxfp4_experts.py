"""integrations.transformers: the experts of gpt-oss in mxfp4, as transformers loads them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import MethodType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from expert_kernels import gpt_oss_experts
from packed_experts import (
    ExpertModules,
    assert_close,
    calls_of,
    checkpoint_tensors,
    exact,
    put_as_loaded,
    put_blocks,
)
from torch import Tensor, nn

from gemmgen.integrations import PackedExperts
from gemmgen.integrations import mxfp4_experts as ours
from gemmgen.integrations.transformers import accelerate_model
from gemmgen.integrations.weights import from_experts, from_mxfp4

transformers: Any = pytest.importorskip("transformers")
theirs: Any = pytest.importorskip("transformers.integrations.mxfp4")
gpt_oss: Any = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
TOKENS = torch.arange(24).view(3, 8) % 60
NAMES = tuple(f"model.layers.{layer}.mlp.experts" for layer in range(2))


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> ExpertModules:
    return ExpertModules(tmp_path_factory.mktemp("mxfp4_experts"))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    registry: dict[str, Any] = cast(Any, ALL_EXPERTS_FUNCTIONS)._global_mapping
    known = dict(registry)
    yield
    registry.clear()
    registry.update(known)


def config() -> Any:
    return transformers.GptOssConfig(
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        num_local_experts=8,
        num_experts_per_tok=2,
        vocab_size=64,
    )


def dequantised_into(layer: Any, tensors: dict[str, Tensor], dtype: torch.dtype) -> Any:
    """Put the numbers that transformers dequantises into a layer of transformers."""
    for name in ("gate_up_proj", "down_proj"):
        numbers = theirs.convert_moe_packed_tensors(
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=dtype
        )
        setattr(layer, name, nn.Parameter(numbers))
        setattr(layer, f"{name}_bias", nn.Parameter(tensors[f"{name}_bias"].to(dtype)))
    return layer


def dequantised() -> Any:
    """Return a gpt-oss in bf16 with the dequantised weights of a checkpoint."""
    cast(Any, torch).manual_seed(0)
    model = transformers.GptOssForCausalLM(config()).bfloat16().eval()
    for number, layer in enumerate(model.model.layers):
        nn.init.normal_(layer.mlp.router.weight, std=0.5)
        dequantised_into(layer.mlp.experts, checkpoint_tensors(model.config, number), torch.bfloat16)
    return model


def loaded(put: Callable[[nn.Module, dict[str, Tensor]], nn.Module] = put_as_loaded) -> Any:
    """Return the same model as transformers loads it in mxfp4."""
    model = dequantised()
    for number, layer in enumerate(model.model.layers):
        experts = put(theirs.Mxfp4GptOssExperts(model.config), checkpoint_tensors(model.config, number))
        layer.mlp = theirs.Mxfp4GptOssMLP(layer.mlp.router, experts).eval()
    return model


def mlp_forward(self: Any, hidden_states: Tensor) -> Tensor:
    raise AssertionError("the forward of an earlier release was called")


mlp_forward.__module__ = "transformers.integrations.mxfp4"


def loaded_earlier() -> Any:
    """Return the same model as earlier releases load it: a function is in place of the MLP's method."""
    model = loaded()
    for layer in model.model.layers:
        layer.mlp.__class__ = gpt_oss.GptOssMLP
        layer.mlp.forward = MethodType(mlp_forward, layer.mlp)
    return model


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


def assert_near_fp32(found: Tensor) -> None:
    """Compare with the dequantised model in fp32: transformers' own model in bf16 may be as far from it."""
    model = dequantised()
    in_bf16, wanted = logits_of(model).float(), logits_of(model.float())
    distance, of_theirs = ((each - wanted).abs().mean().item() for each in (found.float(), in_bf16))
    assert distance < 1.5 * of_theirs < 0.05 * wanted.abs().mean().item()


# --- models

STATES: dict[str, Callable[[], Any]] = {
    "for the hub's kernels": loaded,
    "by the checkpoint's names": lambda: loaded(put_blocks),
    "of earlier releases": loaded_earlier,
}


@pytest.mark.parametrize("state", STATES)
def test_kernels_compute_the_experts_of_a_model_in_mxfp4(state: str, modules: ExpertModules) -> None:
    model, experts = STATES[state](), modules.cpu_experts()
    mlp = model.model.layers[0].mlp
    done = accelerate_model(model, experts=experts)
    assert (done.replaced, done.function) == (NAMES, None)
    assert set(done.left.values()) == {"no kernel was given"}  # for linear layers
    assert model.model.layers[0].mlp is mlp
    assert [type(layer.mlp) for layer in model.model.layers] == [gpt_oss.GptOssMLP] * 2
    for other in (model, copy.deepcopy(model)):
        assert_near_fp32(logits_of(other))
    assert calls_of(experts) == [[48] * 4] * 2
    assert {layer.mlp.experts.reason for layer in model.model.layers} == {""}
    assert not model.model.layers[0].mlp.experts.training


def test_the_second_call_leaves_the_replaced_layers(modules: ExpertModules) -> None:
    model, experts = loaded(), modules.cpu_experts()
    accelerate_model(model, experts=experts)
    done = accelerate_model(model, experts=experts)
    assert done.replaced == ()
    assert {done.left[name] for name in NAMES} == {"it is a PackedExperts, which has kernels already"}


def test_a_layer_has_the_numbers_that_transformers_dequantises(modules: ExpertModules) -> None:
    tensors = checkpoint_tensors(config())
    experts = modules.cpu_experts()
    layer = PackedExperts.of(put_as_loaded(theirs.Mxfp4GptOssExperts(config()), tensors), experts)
    their_layer = dequantised_into(gpt_oss.GptOssExperts(config()), tensors, torch.float32).eval()
    draw = torch.Generator().manual_seed(0)
    x, weights = torch.randn(9, 128, generator=draw), torch.rand(9, 2, generator=draw)
    index = torch.stack([torch.randperm(8, generator=draw)[:2] for _ in range(9)])
    with torch.no_grad():
        wanted = their_layer(x, index, weights)
        torch.testing.assert_close(layer(x, index, weights), wanted, rtol=1e-4, atol=1e-3)
        call = x.bfloat16(), index, weights.bfloat16()
        found = layer(*call)
    assert layer.reason == ""
    assert (found - wanted).abs().max() <= 0.02 * wanted.abs().max()
    of_layer = from_experts(put_blocks(theirs.Mxfp4GptOssExperts(config()), tensors))
    assert of_layer.gate_up_bias is not None
    assert of_layer.down_bias is not None
    biases = {"gate_up_bias": of_layer.gate_up_bias, "down_bias": of_layer.down_bias}
    assert_close(found, exact(call, of_layer[:2], biases))


def test_a_layer_in_bf16_takes_the_tensors_of_the_checkpoint(modules: ExpertModules) -> None:
    model, experts = dequantised(), modules.cpu_experts()
    for number, layer in enumerate(model.model.layers):
        tensors = checkpoint_tensors(model.config, number)
        gate_up, down = (
            from_mxfp4(tensors[f"{name}_blocks"], tensors[f"{name}_scales"])
            for name in ("gate_up_proj", "down_proj")
        )
        biases = {"gate_up_bias": tensors["gate_up_proj_bias"], "down_bias": tensors["down_proj_bias"]}
        layer.mlp.experts = PackedExperts(gate_up, down, experts, **biases)
    assert_near_fp32(logits_of(model))
    assert calls_of(experts) == [[48] * 2] * 2


# --- layers that are left


def changed(change: Callable[[Any], object]) -> Callable[[], Any]:
    """Return what makes a model whose first MLP was changed."""

    def made() -> Any:
        model = loaded()
        change(model.model.layers[0].mlp)
        return model

    return made


def without_layout(mlp: Any) -> None:
    mlp.experts.gate_up_proj.storage.layout = SimpleNamespace()


def with_great_scales(mlp: Any) -> None:
    scales = mlp.experts.down_proj_precision_config.weight_scale
    scales.storage.data = torch.full_like(scales.storage.data, 130)


def padded(mlp: Any) -> None:
    scales = mlp.experts.down_proj_precision_config.weight_scale
    scales.storage.data = torch.nn.functional.pad(scales.storage.data, (0, 2))


def unloaded(mlp: Any) -> None:
    mlp.experts = theirs.Mxfp4GptOssExperts(config())


def of_another_mlp(mlp: Any) -> None:
    class MyMLP(nn.Module): ...

    mlp.__class__ = MyMLP


def patched(mlp: Any) -> None:
    mlp.forward = print


def divided(mlp: Any) -> None:
    mlp.experts.forward = print


LEFT: dict[str, tuple[Callable[[], Any], str]] = {
    "a layout that cannot be undone": (
        changed(without_layout),
        "gate_up_proj is a SimpleNamespace, whose layout (SimpleNamespace) has no unswizzle_data",
    ),
    "scales that are not decoded": (
        changed(with_great_scales),
        "scales must be float8_e8m0fnu or its bytes, at most 2",
    ),
    "scales of another shape": (changed(padded), "scales of a weight [8, 128, 64] must be uint8 or"),
    "no checkpoint": (changed(unloaded), "gate_up_proj has no scales: load the checkpoint first"),
    "no data": (lambda: loaded(put_blocks).to("meta"), "gate_up_proj_blocks has no data"),
    "a limit of its own": (
        changed(lambda mlp: setattr(mlp.experts, "limit", 8.0)), "its gate is another one than that of up_"
    ),
    "no limit": (
        changed(lambda mlp: setattr(mlp.experts, "limit", None)), "its gate is another one than that of up_"
    ),
    "a hook": (
        changed(lambda mlp: mlp.experts.register_forward_hook(print)), "layer has a forward hook: it would "
    ),
    "experts of ranks": (changed(divided), "layer has a patched forward: it would not be called"),
    "another MLP": (changed(of_another_mlp), "it belongs to a MyMLP, which is no MLP of gpt-oss"),
    "an MLP of another forward": (
        changed(patched), "its MLP has a patched forward: it would not be called"
    ),
    "an MLP that is compiled": (
        changed(lambda mlp: mlp.compile(backend="eager")), "its MLP is compiled by its compile()"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_a_layer_that_kernels_cannot_take_is_left_with_the_reason(name: str, modules: ExpertModules) -> None:
    make, reason = LEFT[name]
    model = make()
    before = model.model.layers[0].mlp.experts
    done = accelerate_model(model, experts=modules.cpu_experts())
    assert reason in done.left[NAMES[0]]
    assert model.model.layers[0].mlp.experts is before
    assert NAMES[0] not in done.replaced


def test_kernels_of_other_weights_leave_the_layers(modules: ExpertModules) -> None:
    model = loaded()
    assert accelerate_model(model).left[NAMES[0]] == "no kernel for experts was given"
    left = accelerate_model(model, experts=gpt_oss_experts()).left
    assert {left[name] for name in NAMES} == {"up, down do not both take packed weights"}
    left = accelerate_model(model, experts=modules.cpu_experts("nvfp4")).left
    assert "packs e2m1 with e4m3 scales of 16 elements of K (nvfp4), and the weight is" in left[NAMES[0]]
    left = accelerate_model(model, experts=modules.cpu_experts(bias=False)).left
    assert left[NAMES[0]].startswith("it has a bias, and up_mxfp4_gpt_oss_rows16, ")


def test_packed_kernels_leave_experts_in_bf16(modules: ExpertModules) -> None:
    done = accelerate_model(dequantised(), experts=modules.cpu_experts())
    assert done.replaced == ()
    kernels = "up_mxfp4_gpt_oss_bias_rows16, down_mxfp4_gpt_oss_bias_rows16"
    packs = "e2m1 with ue8m0 scales of 32 elements of K (mxfp4)"
    assert {done.left[name] for name in NAMES} == {
        f"its weight gate_up has torch.bfloat16, and {kernels} take a packed one of {packs}"
    }


def test_a_layer_alone_is_replaced_by_its_user(modules: ExpertModules) -> None:
    layer = put_as_loaded(theirs.Mxfp4GptOssExperts(config()), checkpoint_tensors(config()))
    done = accelerate_model(layer, experts=modules.cpu_experts())
    assert done.left == {
        "": "it is the whole model: PackedExperts.of(layer, experts) is a layer for its place"
    }


def test_a_release_without_the_class_has_no_such_layers(
    modules: ExpertModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(theirs, "Mxfp4GptOssExperts")
    assert ours.replace_mxfp4_experts(nn.Sequential(), modules.cpu_experts()) == ([], {})


OTHERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a layer in bf16": (
        lambda: gpt_oss.GptOssExperts(config()).bfloat16(),
        "gate_up_proj has torch.bfloat16: transformers has dequantised the checkpoint, as it does without",
    ),
    "another layer": (
        lambda: nn.Linear(8, 8), "layer is a Linear without the tensors of experts in mxfp4: gate_up_proj_"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_are_refused_in_words(name: str, modules: ExpertModules) -> None:
    make, reason = OTHERS[name]
    with pytest.raises(ValueError) as found:  # noqa: PT011  the message is compared
        PackedExperts.of(make(), modules.cpu_experts())
    assert reason in str(found.value)
