"""integrations: what holds for every layer and function of kernels, by one test for each kind of fault."""

from __future__ import annotations

import copy
import io
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import pytest
import torch
from cpu_kernels import Fp8Linear
from modules import module_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

from gemmgen.integrations import (
    BlockScaledLinear,
    GroupedMM,
    Linear,
    LinearLeftWarning,
    Replacement,
    ScaledMM,
    external_matmul,
    replace_block_scaled_linear,
    replace_grouped_mm,
    replace_linear,
    replace_scaled_mm,
)
from gemmgen.module import import_generated

any_torch: Any = cast(Any, torch)
E4M3, FP32, BF16 = torch.float8_e4m3fn, torch.float32, torch.bfloat16
N, K = 144, 272


class Row(nn.Linear):
    """A layer of a class of its own that is a product and nothing more."""


class Kind(NamedTuple):
    """A class of layers of kernels, with what it replaces."""

    layer: Any
    stem: str
    plain: Callable[..., Any]
    """Make a layer that is replaced, of a device."""
    known: type[nn.Module]
    replace: Callable[..., Replacement]
    classes: tuple[type[nn.Module], ...]
    """The classes that have to be named."""

    @property
    def kernel(self) -> Any:
        return import_generated(module_file(self.stem))

    def made(self, change: Callable[[Any], object] = lambda layer: None) -> Any:
        """Return a layer that is replaced after a change."""
        layer = self.plain()
        change(layer)
        return layer

    def replaced(self, model: nn.Module, **options: Any) -> Replacement:
        """Replace the layers of a model, and expect no warning."""
        return self.replace(model, self.kernel, **{"classes": self.classes, "left": {}, **options})


def plain_linear(device: str = "cpu") -> nn.Linear:
    return nn.Linear(K, N, bias=False, dtype=BF16, device=device).requires_grad_(False)


KINDS = {
    "Linear": Kind(Linear, "h100_bf16", plain_linear, nn.Linear, replace_linear, ()),
    "BlockScaledLinear": Kind(
        BlockScaledLinear,
        "h100_e4m3_blockwise",
        lambda device="cpu": Fp8Linear(device=device),
        Fp8Linear,
        replace_block_scaled_linear,
        (Fp8Linear,),
    ),
}


@pytest.fixture(params=KINDS, name="kind")
def _kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def rows(m: int = 5) -> Tensor:
    return torch.randn(m, K, generator=torch.Generator().manual_seed(1)).bfloat16()


# --- layers that are more than their parameters


def through(layer: Any) -> None:
    inner = layer.forward

    def forward(x: Tensor) -> Tensor:
        return inner(x) + 1

    layer.forward = forward


def of_a_subclass(layer: Any) -> None:
    """Let a layer have a class whose forward does more, as wrappers of FSDP2 and of row-parallel layers."""

    kind: Any = layer.__class__

    def forward(self: Any, x: Tensor) -> Tensor:
        return kind.forward(self, x) * 2

    layer.__class__ = type("Reduced", (kind,), {"forward": forward})


def with_a_call(layer: Any) -> None:
    kind: Any = layer.__class__

    def call(self: Any, *inputs: Any, **options: Any) -> Any:
        return kind.__call__(self, *inputs, **options) + 1

    layer.__class__ = type("Counting", (kind,), {"__call__": call})


def weight_of_a_subclass(layer: Any) -> None:
    class Loaded(nn.Parameter):
        pass

    layer._parameters["weight"] = Loaded(layer.weight.data, requires_grad=False)


def shard_of_the_weight(layer: Any) -> None:
    layer.in_features, layer.out_features = 2 * K, N


def in_a_buffer(layer: Any) -> None:
    weight = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", weight)


def ignored(*_: object, **__: object) -> None:
    """A hook that changes nothing."""


MORE: dict[str, tuple[Callable[[Any], object], str]] = {
    "forward of the instance": (through, "layer has a patched forward: it would not be called"),
    "compiled": (lambda layer: layer.compile(backend="eager"), "layer is compiled by its compile()"),
    "a class of its own": (of_a_subclass, "Reduced, "),
    "a call of its own": (with_a_call, "Counting, "),
    "adapters": (lambda layer: layer.add_module("lora", nn.Identity()), "child modules (lora)"),
    "a static scale of the input": (
        lambda layer: layer.register_parameter("input_scale", nn.Parameter(torch.ones(()))),
        "other parameters (input_scale)",
    ),
    "a buffer": (lambda layer: layer.register_buffer("zero", torch.zeros(1)), "buffers (zero)"),
    "a tensor": (lambda layer: setattr(layer, "mask", torch.ones(1)), "other attributes (mask)"),
    "an object": (lambda layer: setattr(layer, "quant_method", object()), "other attributes (quant_method)"),
    "objects in a list": (lambda layer: setattr(layer, "parts", [object()]), "other attributes (parts)"),
    "a parametrization": (
        lambda layer: parametrizations.weight_norm(layer.float()),
        "layer is parametrized: its parametrizations would be lost",
    ),
    "pruning": (
        lambda layer: cast(Any, prune).identity(layer, "weight"),
        "other parameters (weight_orig)",
    ),
    "a weight in a buffer": (in_a_buffer, "weight is not a parameter of the layer"),
    "a parameter of another class": (weight_of_a_subclass, "weight is a test_integrations_base."),
    "a shard": (shard_of_the_weight, "the layer's features say [144, 544]"),
    "forward hook": (lambda layer: layer.register_forward_hook(ignored), "a forward hook"),
    "forward pre-hook": (lambda layer: layer.register_forward_pre_hook(ignored), "a forward pre-hook"),
    "backward hook": (lambda layer: layer.register_full_backward_hook(ignored), "a backward hook"),
    "state hook": (lambda layer: layer.register_state_dict_post_hook(ignored), "a state-dict hook"),
    "load hook": (
        lambda layer: layer.register_load_state_dict_pre_hook(ignored),
        "a load-state-dict pre-hook",
    ),
}
"""Ways in which a layer is more than its parameters, and words of the reason not to replace it."""
OF_NUMBERS = {"a parametrization", "pruning"}
"""Those that torch does not know of e4m3: the type of the weight is another reason."""


@pytest.mark.parametrize("way", MORE)
def test_a_layer_that_is_more_is_left_with_the_reason_and_computes_as_before(way: str, kind: Kind) -> None:
    change, words = MORE[way]
    if way in OF_NUMBERS and kind.layer is BlockScaledLinear:
        pytest.skip("torch computes no norm and no mask of e4m3")
    layer = kind.made(change)
    model, x = nn.Sequential(layer), rows()
    names = [name for name, _ in model.named_parameters()]
    wanted = model(x) if "norm" not in way and way != "a parametrization" else None
    left: dict[str, str] = {}
    found = kind.replaced(model, left=left)
    assert (found, found.replaced, list(left)) == (0, (), ["0"])
    assert words in left["0"]
    assert model[0] is layer
    assert [name for name, _ in model.named_parameters()] == names
    if wanted is not None:
        assert torch.equal(model(x), wanted)
    with pytest.warns(LinearLeftWarning, match=re.escape(words)) as caught:
        kind.replace(model, kind.kernel, classes=kind.classes)
    assert [each.filename for each in caught] == [__file__]


def test_a_static_scheme_of_quantisation_is_left() -> None:
    kind = KINDS["BlockScaledLinear"]
    for scheme, count in (("dynamic", 1), ("static", 0)):
        model = nn.Sequential(kind.made(lambda layer, name=scheme: setattr(layer, "activation_scheme", name)))
        found = kind.replaced(model)
        assert found == count
    assert found.left["0"] == "layer has a static scale of its input, and kernels take one of each row"


def test_a_class_must_be_named_itself(kind: Kind) -> None:
    class Own(kind.known):
        pass

    own = kind.made(lambda layer: setattr(layer, "__class__", Own))
    for classes, count in ((kind.classes, 0), ((Own,), 1)):
        found = kind.replaced(nn.Sequential(own), classes=classes)
        assert found == count
        assert count or f"{Own.__module__}.{Own.__qualname__}, " in found.left["0"]
    if kind.layer is BlockScaledLinear:
        model = nn.Sequential(Fp8Linear())
        with pytest.warns(LinearLeftWarning, match="name the class in `classes` if it is not"):
            assert replace_block_scaled_linear(model, kind.kernel) == 0
        assert type(BlockScaledLinear.of(model[0], kind.kernel)) is BlockScaledLinear  # it is named so


def test_what_a_class_that_is_named_has_beside_its_forward_is_refused(kind: Kind) -> None:
    layer = kind.made(with_a_call)
    found = kind.replaced(nn.Sequential(layer), classes=(type(layer),))
    assert found.left["0"].endswith("has a __call__ of its own: it would not be called")
    hooked = kind.made(lambda layer: layer.register_forward_hook(ignored))
    assert kind.replaced(nn.Sequential(hooked), classes=(type(hooked),)) == 0


def test_a_class_of_torch_modules_can_be_named_for_replace_linear() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(N, K).bfloat16(), requires_grad=False)
            self.register_parameter("bias", None)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    model, x = nn.Sequential(Product(), Row(N, K, bias=False, dtype=BF16)), rows()
    wanted = model(x)
    found = replace_linear(model, import_generated(module_file("h100_bf16")), classes=(Product, Row))
    assert found.replaced == ("0", "1")
    assert (model[0].in_features, model[0].out_features, model[0].bias) == (K, N, None)
    assert torch.equal(model(x), wanted)


def test_a_model_in_which_nothing_is_replaced_is_warned_of(kind: Kind) -> None:
    for model, words in (
        (nn.Sequential(nn.ReLU()), "replaced nothing: the model has no "),
        (kind.made(), f"nothing holds it: use {kind.layer.__name__}.of"),
    ):
        with pytest.warns(LinearLeftWarning, match=words):
            assert kind.replace(model, kind.kernel, classes=kind.classes) == 0
    model = nn.Sequential(kind.made())
    with pytest.warns(LinearLeftWarning, match="`only` does not mean the layer"):
        kind.replace(model, kind.kernel, classes=kind.classes, only="other".__eq__)
    assert kind.replace(model, kind.kernel, classes=kind.classes) == 1
    assert kind.replace(model, kind.kernel, classes=kind.classes) == 0  # it has a kernel: no warning
    with warnings.catch_warnings(action="error"):
        assert kind.replaced(nn.Sequential(nn.ReLU())) == 0


def test_a_kernel_that_no_layer_can_have_leaves_the_model(kind: Kind) -> None:
    model = nn.Sequential(kind.made())
    for kernel in (import_generated(module_file("h100_bf16_grouped")), "h100_bf16"):
        with pytest.raises(ValueError, match="h100_bf16"):
            kind.replace(model, kernel, classes=kind.classes)
    assert type(model[0]) is kind.known


# --- what a new layer keeps


@pytest.mark.parametrize("training", [False, True])
def test_a_new_layer_keeps_parameters_mode_and_marks(training: bool, kind: Kind) -> None:
    old = kind.made().train(training)
    old.role, old.sizes = "up", [1, (2, 3)]
    model = nn.Sequential(old)
    assert kind.replaced(model) == 1
    new = model[0]
    assert type(new) is kind.layer
    assert dict(new.named_parameters()).keys() == dict(old.named_parameters()).keys()
    assert all(new.get_parameter(name) is each for name, each in old.named_parameters())
    assert (new.training, new.role, new.sizes) == (training, "up", [1, (2, 3)])
    again = kind.layer.of(new, kind.kernel)
    assert (again.weight is old.weight, again.role) == (True, "up")
    new.register_forward_hook(ignored)
    with pytest.raises(ValueError, match="a forward hook"):
        kind.layer.of(new, kind.kernel)


def test_shared_layers_and_shared_weights_stay_shared(kind: Kind) -> None:
    shared, tied = kind.made(), kind.made()
    tied.weight = shared.weight
    model = nn.ModuleDict({"one": shared, "two": shared, "tied": tied})
    found = kind.replaced(model)
    assert (found, found.replaced) == (2, ("one", "two", "tied"))
    assert model["one"] is model["two"]
    assert model["tied"].weight is model["one"].weight is shared.weight


def test_a_model_without_data_is_replaced_and_loaded_later(kind: Kind) -> None:
    state = kind.made().state_dict()
    model = nn.Sequential(kind.plain(device="meta"))
    assert kind.replaced(model) == 1
    assert model[0].weight.is_meta
    model.to_empty(device="cpu")
    model[0].load_state_dict(state)
    reference = kind.made()
    reference.load_state_dict(state)
    assert torch.equal(model(rows()), reference(rows()))


def test_hooks_of_all_modules_are_called_for_new_layers(kind: Kind) -> None:
    called: list[nn.Module] = []

    def note(module: nn.Module, *_: object) -> None:
        called.append(module)

    model = nn.Sequential(kind.made())
    assert kind.replaced(model) == 1
    handle = any_torch.nn.modules.module.register_module_forward_hook(note)
    try:
        model(rows())
    finally:
        handle.remove()
    assert called == [model[0], model]


def test_a_replaced_model_is_copied_pickled_and_shared(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, model = kind.kernel, nn.Sequential(kind.made())
    monkeypatch.setitem(sys.modules, kind.stem, kernel)  # where pickle looks for its functions
    assert kind.replace(model, kernel, classes=kind.classes) == 1
    wanted = model(rows())
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    copies: tuple[Any, ...] = (
        copy.deepcopy(model),
        torch.load(stored, weights_only=False),
        copy.deepcopy(model).share_memory(),
        # The pickle module alone cannot read a tensor of e4m3: that is torch's, of any model.
        *([pickle.loads(pickle.dumps(model))] if kind.layer is Linear else []),
    )
    for each in copies:
        assert torch.equal(each(rows()), wanted)
        assert each[0].kernel_name == kind.stem
        assert each[0].weight.data_ptr() != cast(Any, model)[0].weight.data_ptr()
    assert copies[2][0].weight.is_shared()


# --- traces


@pytest.fixture(name="layer")
def _layer(kind: Kind) -> Any:
    return kind.layer.of(kind.made(), kind.kernel)


def test_torch_fx_records_a_layer_as_a_leaf(layer: Any) -> None:
    model = nn.Sequential(layer, nn.ReLU())
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    assert torch.equal(traced(rows()), model(rows()))
    assert traced.get_submodule("0") is layer


def test_torch_fx_records_torchs_operators_of_the_layer_itself(layer: Any) -> None:
    traced = torch.fx.symbolic_trace(layer)
    assert any(node.target is functional.linear for node in traced.graph.nodes)
    assert torch.equal(traced(rows()), layer(rows()))
    assert torch.equal(traced(rows(9)), layer(rows(9)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_jit_traces_and_refuses_scripts(layer: Any) -> None:
    traced = any_torch.jit.trace(layer, rows(), check_trace=False)
    assert layer.reason == "torch.jit.trace records torch's own operators only"
    assert torch.equal(traced(rows()), layer(rows()))
    with pytest.raises(NotImplementedError, match=r"use torch\.compile or torch\.export"):
        any_torch.jit.script(layer)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_has_the_operator(strict: bool, layer: Any) -> None:
    any_torch._dynamo.reset()
    x = torch.empty(30, K, dtype=BF16, device="meta")
    shapes = ({0: any_torch.export.Dim("rows", min=2, max=4096)},)
    program = any_torch.export.export(layer.to("meta"), (x,), dynamic_shapes=shapes, strict=strict)
    assert "gemmgen_integrations" in str(program.graph)
    assert program.module()(torch.empty(7, K, dtype=BF16, device="meta")).shape == (7, N)


def test_transforms_of_torch_func_compute_a_layer(layer: Any) -> None:
    func: Any = any_torch.func
    x = rows()
    batched = func.vmap(layer)(x[:, None])
    assert torch.allclose(batched[:, 0], layer(x), rtol=2e-2, atol=2e-1)

    def total(each: Tensor) -> Tensor:
        return layer(each).float().sum()

    gradient = func.grad(total)(x)
    x.requires_grad_()
    layer(x).float().sum().backward()
    assert x.grad is not None
    assert torch.equal(gradient, x.grad)
    called = func.functional_call(layer, dict(layer.named_parameters()), (x.detach(),))
    assert torch.equal(called, layer(x.detach()))


class Own(Tensor):
    """A tensor with a function of its own, as DTensor and quantised tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cast(Any, super()).__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("name", ["input", "weight"])
def test_tensors_with_rules_of_their_own_are_torchs(name: str, layer: Any) -> None:
    wanted, x = layer(rows()), rows()
    if name == "weight":
        layer._parameters["weight"] = nn.Parameter(layer.weight.data, requires_grad=False)
        layer._parameters["weight"] = layer.weight.as_subclass(Own)
    found = layer(x.as_subclass(Own) if name == "input" else x)
    assert torch.equal(found.as_subclass(Tensor), wanted)
    assert layer.reason == f"{name} is a Own, for which torch's own operators have rules"


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_without_input_features_is_zeros_and_the_bias(bias: bool, kind: Kind) -> None:
    layer = kind.layer(0, N, bias, kernel=kind.kernel, dtype=BF16).requires_grad_(False)
    if bias:
        layer.bias.copy_(torch.arange(N))
    for shape in ((2, 0), (0,), (2, 3, 0), (0, 0)):
        found = layer(torch.zeros(shape, dtype=BF16))
        assert found.shape == (*shape[:-1], N)
        assert torch.equal(found, (torch.arange(N) * bias).bfloat16().expand(found.shape))
    empty = kind.layer(128, 0, False, kernel=kind.kernel, dtype=BF16)
    assert empty(torch.zeros(2, 128, dtype=BF16)).shape == (2, 0)


# --- weights with scales of blocks


def block_layer(*, bias: bool = False, k: int = K) -> Any:
    layer = BlockScaledLinear(k, N, bias, kernel=KINDS["BlockScaledLinear"].kernel)
    layer.load_state_dict(Fp8Linear(k=k).state_dict(), strict=False)
    return layer


CASTS: dict[str, Callable[[Any], Any]] = {
    "to a type": lambda layer: layer.to(BF16),
    "to a type and a device": lambda layer: layer.to("cpu", torch.float16),
    "half": lambda layer: layer.half(),
    "bfloat16": lambda layer: layer.bfloat16(),
    "float": lambda layer: layer.float(),
    "double": lambda layer: layer.double(),
    "type": lambda layer: layer.type(torch.float16),
    "as a part of a model": lambda layer: nn.Sequential(layer).to(torch.float16)[0],
    "like a tensor": lambda layer: layer.to(torch.zeros(1, dtype=torch.float64)),
}


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize("name", CASTS)
def test_a_cast_is_of_the_bias_alone(name: str, swaps: bool) -> None:
    layer = block_layer(bias=True)
    before = [copy.deepcopy(each) for each in (layer.weight, layer.weight_scale_inv)]
    cast(Any, torch).__future__.set_swap_module_params_on_conversion(swaps)
    try:
        found = CASTS[name](layer)
    finally:
        cast(Any, torch).__future__.set_swap_module_params_on_conversion(False)
    reference = CASTS[name](nn.Linear(4, 4, dtype=BF16))
    assert found.bias.dtype == reference.bias.dtype
    assert (found.weight.dtype, found.weight_scale_inv.dtype) == (E4M3, FP32)
    assert torch.equal(found.weight.view(torch.uint8), before[0].view(torch.uint8))
    assert torch.equal(found.weight_scale_inv, before[1])


def test_a_layer_moves_with_a_cast() -> None:
    layer = block_layer(bias=True).to("meta", torch.float16)
    assert {(each.device.type, each.dtype) for each in layer.parameters()} == {
        ("meta", E4M3),
        ("meta", FP32),
        ("meta", torch.float16),
    }
    assert {each.dtype for each in layer.to_empty(device="cpu").parameters()} == {E4M3, FP32, torch.float16}


SCALES: dict[str, Tensor] = {
    "fp32": torch.rand(2, 3, generator=torch.Generator().manual_seed(3)),
    "bf16": torch.rand(2, 3, generator=torch.Generator().manual_seed(3)).bfloat16(),
    "fp16": torch.rand(2, 3, generator=torch.Generator().manual_seed(3)).half(),
    "ue8m0": torch.tensor([[0, 1, 120], [127, 254, 130]], dtype=torch.uint8).view(torch.float8_e8m0fnu),
}
EXACT_UE8M0 = torch.tensor([[2.0**-127, 2.0**-126, 2.0**-7], [1.0, 2.0**127, 8.0]])


@pytest.mark.parametrize("way", ["of", "replaced", "load", "assign"])
@pytest.mark.parametrize("name", SCALES)
def test_scales_of_checkpoints_are_widened_exactly(name: str, way: str) -> None:
    scales, kernel = SCALES[name], KINDS["BlockScaledLinear"].kernel
    given = Fp8Linear()
    state = {"weight": given.weight.data, "weight_scale_inv": scales}
    given.weight_scale_inv = nn.Parameter(scales, requires_grad=False)
    if way == "of":
        layer: Any = BlockScaledLinear.of(given, kernel)
    elif way == "replaced":
        model = nn.Sequential(given)
        assert replace_block_scaled_linear(model, kernel, classes=[Fp8Linear]) == 1
        layer = model[0]
    else:
        layer = BlockScaledLinear(K, N, kernel=kernel)
        layer.load_state_dict(state, assign=way == "assign")
        assert state["weight_scale_inv"] is scales  # the caller's state dict stays as it was
    assert layer.weight_scale_inv.dtype == FP32
    assert not layer.weight_scale_inv.requires_grad
    assert torch.equal(layer.weight_scale_inv, EXACT_UE8M0 if name == "ue8m0" else scales.float())
    assert given.weight_scale_inv.dtype == scales.dtype


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_bytes_of_a_state_dict_are_e4m3(dtype: torch.dtype, assign: bool) -> None:
    model: Any = nn.Sequential(block_layer())
    every = torch.arange(N * K).remainder(256).to(torch.uint8).view(N, K)
    scales = torch.ones(2, 3)
    model.load_state_dict({"0.weight": every.view(dtype), "0.weight_scale_inv": scales}, assign=assign)
    assert model[0].weight.dtype == E4M3
    assert isinstance(model[0].weight, nn.Parameter)
    assert torch.equal(model[0].weight.view(torch.uint8), every)


OTHER_STATES: dict[str, tuple[str, Tensor]] = {
    "bf16": ("weight", torch.ones(N, K).bfloat16()),
    "fp32": ("weight", torch.ones(N, K)),
    "e5m2": ("weight", torch.ones(N, K).to(torch.float8_e5m2)),
    "int32": ("weight", torch.ones(N, K, dtype=torch.int32)),
    "scales of bytes": ("weight_scale_inv", torch.ones(2, 3, dtype=torch.uint8)),
    "scales of fp64": ("weight_scale_inv", torch.ones(2, 3, dtype=torch.float64)),
}


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("name", OTHER_STATES)
def test_other_types_of_a_state_dict_are_an_error(name: str, assign: bool) -> None:
    key, tensor = OTHER_STATES[name]
    model = nn.Sequential(block_layer(), nn.ReLU())
    before = copy.deepcopy(model)
    state = {**model.state_dict(), f"0.{key}": tensor}
    for strict in (False, True):
        with pytest.raises(RuntimeError, match=rf"0\.{key} must be .* found {tensor.dtype}"):
            model.load_state_dict(state, assign=assign, strict=strict)
    assert torch.equal(model(rows()), before(rows()))


def test_a_state_dict_of_another_shape_or_without_a_tensor_is_an_error_of_torch() -> None:
    layer = block_layer()
    with pytest.raises(RuntimeError, match="size mismatch for weight_scale_inv"):
        layer.load_state_dict({**layer.state_dict(), "weight_scale_inv": torch.ones(3, 3).bfloat16()})
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict({"weight": layer.weight.data})


def test_weights_and_scales_have_no_gradient() -> None:
    model, x = nn.Sequential(nn.Linear(K, K, dtype=BF16), block_layer(bias=True)), rows()
    model.requires_grad_(True)
    model(x).float().sum().backward()
    layer: Any = model[1]
    assert (layer.weight.grad, layer.weight_scale_inv.grad) == (None, None)
    assert layer.bias.grad is not None
    first: Any = model[0]
    assert first.weight.grad.abs().sum() > 0
    alone = block_layer().requires_grad_(True)
    assert not alone(x).requires_grad


@pytest.mark.parametrize("k", [1, 8, 200, 1000])
def test_a_k_that_no_kernel_takes_is_refused(k: int) -> None:
    kernel = KINDS["BlockScaledLinear"].kernel
    words = rf"in_features \(K\) must be a multiple of 16, found {k}$"
    with pytest.raises(ValueError, match=words):
        BlockScaledLinear(k, N, kernel=kernel)
    with pytest.raises(ValueError, match=words):
        BlockScaledLinear.of(Fp8Linear(k=k), kernel)
    found = KINDS["BlockScaledLinear"].replaced(nn.Sequential(Fp8Linear(k=k)))
    assert re.search(words, found.left["0"])


# --- kernels and functions


CALLERS: dict[str, Callable[[Any], Any]] = {
    "Linear": lambda kernel: Linear(16, 16, kernel=kernel),
    "BlockScaledLinear": lambda kernel: BlockScaledLinear(16, 16, kernel=kernel),
    "GroupedMM": GroupedMM,
    "ScaledMM": ScaledMM,
    "GroupedMM, few rows": lambda kernel: GroupedMM(few_rows={8: kernel}),
    "ScaledMM, few rows": lambda kernel: ScaledMM(few_rows={8: kernel}),
    "external_matmul": external_matmul,
    "replace_linear": lambda kernel: replace_linear(nn.Sequential(nn.Linear(8, 8)), kernel),
    "replace_block_scaled_linear": lambda kernel: replace_block_scaled_linear(nn.Sequential(), kernel),
    "replace_grouped_mm": replace_grouped_mm,
    "replace_scaled_mm": replace_scaled_mm,
}


@pytest.mark.parametrize("name", CALLERS)
def test_no_kernel_and_a_kernel_of_something_else_are_refused_in_words(name: str) -> None:
    for value in ("h100_bf16", None, 3):
        with pytest.raises(ValueError, match=r"^a kernel is an imported module or library .*found") as error:
            CALLERS[name](value)
        assert repr(value) in str(error.value)
    for stem in ("h100_bf16_gated", "h100_bf16_masked"):
        with pytest.raises(ValueError, match=f"^{stem} computes ") as error:
            CALLERS[name](import_generated(module_file(stem)))
        assert "{" not in str(error.value)


def test_a_refusal_says_what_the_kernel_computes() -> None:
    with pytest.raises(ValueError, match=r"it takes a \[M, K\], b \[K, N\]$"):
        GroupedMM(import_generated(module_file("h100_bf16")))
    with pytest.raises(ValueError, match=r"b \[K, 2N\], and that its epilogue is silu\(gate\) \* up$"):
        Linear(16, 16, kernel=import_generated(module_file("h100_bf16_gated")))


class Calls(NamedTuple):
    """A function of kernels, and tensors of a call of it."""

    function: Any
    tensors: Callable[[], tuple[Any, ...]]


def scaled_tensors() -> tuple[Any, ...]:
    return torch.zeros(8, 128).to(E4M3), torch.zeros(16, 128).to(E4M3).T, torch.ones(8, 1), torch.ones(1, 1)


FUNCTIONS: dict[str, Calls] = {
    "GroupedMM": Calls(
        lambda: GroupedMM(import_generated(module_file("h100_bf16_grouped"))),
        lambda: (
            torch.zeros(8, 16, dtype=BF16),
            torch.zeros(2, 16, 16, dtype=BF16).mT,
            torch.tensor([3, 8], dtype=torch.int32),
        ),
    ),
    "ScaledMM": Calls(
        lambda: ScaledMM(import_generated(module_file("h100_e4m3_blockwise"))).inferred, scaled_tensors
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_torch_fx_records_a_function_if_any_argument_is_a_proxy(place: int, name: str) -> None:
    function, given = FUNCTIONS[name].function(), FUNCTIONS[name].tensors()

    class Model(nn.Module):
        constants: ClassVar[tuple[Any, ...]] = given

        def forward(self, x: Tensor) -> Tensor:
            arguments = [*self.constants]
            arguments[place] = x
            return function(*arguments)

    graph = torch.fx.symbolic_trace(Model()).graph
    assert any("_mm" in str(node.target) for node in graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_copied_and_pickled(name: str) -> None:
    function = FUNCTIONS[name].function()
    function = getattr(function, "__self__", function)
    for other in (copy.deepcopy(function), pickle.loads(pickle.dumps(function))):
        assert type(other) is type(function)
        assert vars(other) == vars(function)


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["as it is", "cast", "bytes", "scales in bf16", "requires grad", "a copy"])
def test_the_kernel_computes_a_layer_on_a_gpu_after_each_change(way: str, kind: Kind) -> None:
    """Casts, loading and flags used to leave the layer to torch for good, or to change its numbers."""
    if kind.layer is Linear and way in ("bytes", "scales in bf16", "requires grad"):
        pytest.skip("of weights with scales of blocks")
    old = kind.made()
    if way == "scales in bf16":
        old.weight_scale_inv = nn.Parameter(old.weight_scale_inv.bfloat16(), requires_grad=False)
    model: Any = nn.Sequential(old).cuda()
    x = rows(77).cuda()
    wanted = model(x)
    assert kind.replaced(model) == 1
    if way == "cast":
        model.float().to(BF16)
    elif way == "bytes":
        model.load_state_dict({**model.state_dict(), "0.weight": old.weight.view(torch.uint8)})
    elif way == "requires grad":
        model.requires_grad_(True)
    elif way == "a copy":
        model = copy.deepcopy(model)
    found = model(x)
    assert model[0].reason == ""
    error = (found - wanted).float().square().mean()
    assert error < 0.05**2 * wanted.float().square().mean()


@pytest.mark.gpu
def test_a_layer_in_a_transform_of_torch_func_is_torchs_on_a_gpu(kind: Kind) -> None:
    func: Any = any_torch.func
    made, x = kind.made(), rows(64).cuda()
    plain = copy.deepcopy(made).cuda()(x)
    layer = kind.layer.of(made, kind.kernel).cuda()
    batched = func.vmap(layer)(x[:, None])
    assert layer.reason != ""
    assert torch.allclose(batched[:, 0].float(), plain.float(), rtol=2e-2, atol=0.5)

    def total(each: Tensor) -> Tensor:
        return layer(each).float().sum()

    assert func.grad(total)(x).shape == x.shape
