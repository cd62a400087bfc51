"""integrations: kernels as layers and as Inductor's choice, and what they would refuse; one test launches."""

from __future__ import annotations

import copy
import importlib
import operator
import pickle
import re
import sys
import types
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from cpu_kernels import kernel_on_the_cpu
from fake_gpu import Cuda, SecondCuda, launch_into, on_a_fake_gpu
from modules import SPECS, made, module_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.integrations import (
    Linear,
    LinearLeftWarning,
    can_implement,
    external_matmul,
    replace_linear,
)
from gemmgen.module import import_generated
from gemmgen.problem.epilogue import listed_steps

pytestmark = pytest.mark.quick

BF16 = torch.bfloat16


def rows(m: int, n: int, stride: int | None = None, dtype: torch.dtype = BF16) -> Tensor:
    """Zeros [m, n] on a GPU that there is not, whose rows lie `stride` elements apart."""
    stride = n if stride is None else stride
    return torch.zeros(m * stride + 8, dtype=dtype).as_subclass(Cuda).as_strided((m, n), (stride, 1))


def capability(major: int, minor: int) -> Callable[[object], tuple[int, int]]:
    """What tells it of every GPU."""

    def told(device: object) -> tuple[int, int]:
        return major, minor

    return told


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability(9, 0))


def imported(stem: str, launched: list[str] | None = None) -> ModuleType:
    """A committed module that launches nothing, and notes that it would have."""
    module = import_generated(module_file(stem))

    def launch(*arguments: object) -> None:
        if launched is not None:
            launched.append(stem)

    launch_into(module, launch)
    return module


def product(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return a @ b."""
    if a.dtype != torch.float32:
        raise TypeError(f"a must be a tensor of torch.float32, found {a.dtype}")
    return torch.mm(a, b, out=out)


def product_and_bias(a: Tensor, b: Tensor, *, column_bias: Tensor, out: Tensor | None = None) -> Tensor:
    """Return epilogue(a @ b), as the module's docstring has it."""
    return torch.addmm(column_bias, a, b)


PRODUCT = kernel_on_the_cpu("product", product)
BIASED = kernel_on_the_cpu("biased", product_and_bias, "column_bias")
"""Kernels of this CPU."""


# --- can_implement


GOOD: dict[str, Callable[[], dict[str, Tensor]]] = {
    "plain": lambda: {"a": rows(4, 16), "b": rows(24, 16).T},
    "strided": lambda: {"a": rows(4, 16, 32), "b": rows(24, 16, 48).T, "out": rows(4, 24, 40)},
    "padded": lambda: {"a": rows(4, 16), "b": rows(21, 16).T},
    "empty": lambda: {"a": rows(0, 16), "b": rows(24, 16).T},
    "three dimensions": lambda: {"a": rows(4, 16)[None], "b": rows(24, 16).T},
    "no K": lambda: {"a": rows(4, 0), "b": rows(24, 0).T},
}
BAD: dict[str, Callable[[], dict[str, Tensor]]] = {
    "dtype": lambda: {"a": rows(4, 16, dtype=torch.float16), "b": rows(24, 16).T},
    "device": lambda: {"a": rows(4, 16), "b": rows(24, 16).as_subclass(SecondCuda).T},
    "cpu": lambda: {"a": rows(4, 16).as_subclass(Tensor), "b": rows(24, 16).as_subclass(Tensor).T},
    "K": lambda: {"a": rows(4, 16), "b": rows(24, 32).T},
    "dimensions": lambda: {"a": rows(4, 16), "b": rows(24, 16).T[None]},
    "major": lambda: {"a": rows(4, 16), "b": rows(16, 24)},
    "stride": lambda: {"a": rows(4, 16, 20), "b": rows(24, 16).T},
    "address": lambda: {"a": rows(4, 17, 24)[:, 1:], "b": rows(24, 16).T},
    "grad": lambda: {"a": rows(4, 16).requires_grad_(), "b": rows(24, 16).T},
    "units": lambda: {"a": rows(4, 16), "b": rows(21, 16).T, "out": rows(4, 21, 24)},
    "out": lambda: {"a": rows(4, 16), "b": rows(24, 16).T, "out": rows(5, 24)},
}


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_the_answer_is_what_matmul_says(name: str, gpu: None) -> None:
    launched: list[str] = []
    module = imported("h100_bf16", launched)
    given = (GOOD | BAD)[name]()
    found = can_implement(module, **given)
    assert launched == []
    a, b = given.pop("a"), given.pop("b")
    if name in GOOD:
        module.matmul(a, b, **given)
        assert found == (True, "")
        return
    with pytest.raises((TypeError, ValueError)) as error:
        module.matmul(a, b, **given)
    assert found == (False, str(error.value))


def test_a_single_tile_another_gpu_and_missing_tensors_are_told(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported("h100_bf16_single_tile")
    c = rows(65, 24, dtype=torch.float32)
    operands = {"a": rows(65, 16), "b": rows(24, 16).T, "c": c}
    with pytest.raises(
        ValueError, match="takes M, N and K up to 64, 128 and 64, found 65, 24 and 16"
    ) as error:
        module.matmul(operands["a"], operands["b"], c=c)
    assert can_implement(module, **operands) == (False, str(error.value))
    operands["a"], operands["c"] = operands["a"][:64], c[:64]
    assert can_implement(module, **operands) == (True, "")
    del operands["c"]
    assert can_implement(module, **operands) == (False, "h100_bf16_single_tile needs c")
    assert can_implement(imported("h100_bf16"), **operands, row_bias=rows(1, 8)) == (
        False,
        "h100_bf16 takes no row_bias",
    )
    on_a_fake_gpu(monkeypatch, (8, 9))
    assert can_implement(imported("h100_bf16"), **operands) == (
        False,
        "this kernel needs capability (9, 0), found NVIDIA X: (8, 9)",
    )
    assert can_implement(PRODUCT, **operands) == (
        False,
        "product has no table of arguments: it is no generated module",
    )


@pytest.mark.parametrize(
    "stem",
    ["h100_bf16_128x320", "h100_e4m3_scaled", "h100_bf16_split8_bias", "b200_bf16", "h100_bf16_misaligned"],
)
def test_every_kind_of_table_is_understood(stem: str, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of B, vectors, workspaces, Blackwell, and copies of what is misaligned."""
    module = imported(stem)
    on_a_fake_gpu(monkeypatch, (10, 0) if stem.startswith("b200") else (9, 0))
    dtype = module.ARGUMENTS["a"]["dtype"]
    extras = {
        name: rows(1, {"M": 16, "N": 64}[row["axes"][0]], dtype=row["dtype"])[0]
        for name, row in module.ARGUMENTS.items()
        if row["axes"] in (("M",), ("N",))
    }
    a, b = rows(16, 64, dtype=dtype), rows(64, 64, dtype=dtype).T
    assert can_implement(module, a, b, **extras) == (True, "")
    can, reason = can_implement(module, a, rows(64, 32, dtype=dtype).T, **extras)
    assert not can
    assert reason == "b must have shape [64, 64], found [32, 64]"


# --- Inductor


@pytest.mark.check
def test_inductor_calls_the_kernel_and_what_it_refuses_torch_computes() -> None:
    register: Any = importlib.import_module("torch._inductor.kernel.mm").lazy_register_extern_choice
    function = external_matmul(PRODUCT)
    assert function.__name__ == "gemmgen_product"
    choice = register(function)  # as Inductor does with each of the list
    for dtype in (torch.float32, torch.float64):
        a, b = torch.ones(3, 4, dtype=dtype), torch.full((4, 5), 2.0, dtype=dtype)
        out = torch.empty(3, 5, dtype=dtype)
        choice.to_callable()(a, b, out=out)
        assert torch.equal(out, torch.full((3, 5), 8.0, dtype=dtype))
    with pytest.raises(ValueError, match=r"^biased computes more than a @ b: COMPUTES says"):
        external_matmul(BIASED)


# --- layers


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 12), (12,), (2, 3, 12), (0, 12)])
def test_a_layer_computes_what_torchs_does(shape: tuple[int, ...], bias: bool) -> None:
    theirs = nn.Linear(12, 5, bias)
    ours = Linear.of(theirs, PRODUCT)
    x = torch.randn(shape)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    assert ours.reason == ""
    assert list(ours.state_dict()) == list(theirs.state_dict())
    other = Linear(12, 5, bias, kernel=PRODUCT)
    other.load_state_dict(theirs.state_dict())
    assert torch.allclose(other(x), theirs(x), atol=1e-6)
    assert str(ours) == f"Linear(in_features=12, out_features=5, bias={bias}, kernel=product)"


def test_a_kernel_with_a_bias_adds_the_layers() -> None:
    theirs = nn.Linear(12, 5)
    ours = Linear.of(theirs, BIASED)
    x = torch.randn(7, 12)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    with pytest.raises(ValueError, match=r"^biased needs column_bias, and the layer has no bias$"):
        Linear(12, 5, bias=False, kernel=BIASED)


def test_what_the_kernel_refuses_torch_computes_and_the_layer_says_why() -> None:
    theirs = nn.Linear(16, 24, bias=False, dtype=BF16)
    ours = Linear.of(theirs, imported("h100_bf16"))
    x = torch.randn(4, 16, dtype=BF16)
    assert torch.equal(ours(x), theirs(x))
    assert ours.reason == "a must be on a CUDA device, found cpu"
    assert torch.equal(ours(x), theirs(x))
    ours(x).float().sum().backward()  # torch's own backward
    assert ours.weight.grad is not None
    assert torch.equal(copy.deepcopy(ours)(x), theirs(x))  # a model can be copied
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ours(torch.randn(4, 15, dtype=BF16))


def test_a_module_launches_for_a_layer(gpu: None) -> None:
    launched: list[str] = []
    ours = Linear(16, 24, False, kernel=imported("h100_bf16", launched), dtype=BF16)
    ours.weight = nn.Parameter(rows(24, 16), requires_grad=False)
    with torch.no_grad():
        found = ours(rows(4, 16).reshape(2, 2, 16))
    assert (ours.reason, launched, found.shape) == ("", ["h100_bf16"], (2, 2, 24))


@pytest.mark.check
def test_a_layer_that_torch_compiles_is_torchs_where_the_module_has_no_operator() -> None:
    theirs = nn.Linear(16, 24, dtype=BF16)
    ours = Linear.of(theirs, PRODUCT)
    x = torch.randn(4, 16, dtype=BF16)
    compiled: Any = cast(Any, torch).compile(ours, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), theirs(x))


def test_a_layer_that_torch_compiles_is_one_operator_where_its_kernel_suits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = import_generated(module_file("h100_bf16"))
    monkeypatch.setitem(sys.modules, "h100_bf16", module)  # where torch looks for it
    ours = Linear(16, 24, bias=False, kernel=module, device="meta", dtype=BF16)
    odd = Linear(12, 24, bias=False, kernel=module, device="meta", dtype=BF16)  # rows of 24 bytes
    called: list[str] = []

    def backend(graph: Any, _: object) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    def run(layer: Any, x: Tensor) -> Any:
        return layer(x)

    compiled: Any = cast(Any, torch).compile(run, fullgraph=True, backend=backend)
    x = torch.empty(2, 3, 16, device="meta", dtype=BF16)
    with torch.no_grad():
        assert compiled(ours, x).shape == (2, 3, 24)
        assert "gemmgen_integrations.linear" in called
        called.clear()
        compiled(odd, x[..., :12].contiguous())
        compiled(ours.float(), x.float())
    compiled(ours.to(BF16), x)  # which requires grad
    assert called
    assert not any("gemmgen" in name for name in called)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_only_kernels_of_a_linear_layer_become_one(path: Any) -> None:
    """Those that multiply A and B, of one type that is D's too, and add a bias at most."""
    module = import_generated(module_file(path.stem))
    problem = made(path).plan.problem
    plain = (
        not (problem.block_scaled or problem.b.decoded)
        and problem.c is None
        and problem.epilogue.alpha == 1
        and [step.name for step in listed_steps(problem.epilogue, lists_c=False)] in ([], ["column_bias"])
    )
    same = module.ARGUMENTS["a"]["dtype"] == module.ARGUMENTS["out"]["dtype"]
    if plain and same:
        Linear(16, 16, kernel=module, device="meta")
    else:
        with pytest.raises(
            ValueError, match=rf"^{path.stem} (computes more than a @ b and a bias|makes torch)"
        ):
            Linear(16, 16, kernel=module, device="meta")


def test_the_linear_layers_of_a_model_are_replaced() -> None:
    model = nn.Sequential(
        nn.Linear(12, 8),
        nn.ReLU(),
        nn.ModuleDict({"head": nn.Linear(8, 4, bias=False), "other": nn.Linear(8, 4)}),
    )
    x = torch.randn(3, 12)
    before, state = model[0](x), model.state_dict()
    assert replace_linear(model, PRODUCT, only=lambda name: name != "2.other") == 2
    assert isinstance(model[0], Linear)
    assert torch.allclose(model[0](x), before, atol=1e-6)
    assert {name: id(value) for name, value in model.named_parameters()}.keys() == state.keys()
    assert all(value.data_ptr() == state[name].data_ptr() for name, value in model.named_parameters())
    assert replace_linear(model, BIASED) == 1  # of the others, the one that has a bias
    assert replace_linear(model, PRODUCT) == 0


# --- layers that are more than a weight and a bias


class Subclass(nn.Linear):
    """A linear layer that someone else wrote."""


def changed(change: Callable[[Any], object]) -> nn.Linear:
    """A torch.nn.Linear of 12 to 8 features after a change."""
    layer = nn.Linear(12, 8)
    change(layer)
    return layer


def patched(layer: Any) -> None:
    """Let calls of the layer pass through a function first, as tools for offloading do."""
    inner = layer.forward

    def forward(x: Tensor) -> Tensor:
        return inner(x)

    layer.forward = forward


def pruned(name: str) -> Callable[[Any], object]:
    """Prune half of a parameter, as torch does: by a mask, and a hook that applies it."""
    return lambda layer: cast(Any, prune).random_unstructured(layer, name, 0.5)


def frozen_in_a_buffer(layer: Any) -> None:
    weight = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", weight)


def weight_normed(layer: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and models have it
        cast(Any, torch).nn.utils.weight_norm(layer)


def with_weight(weight: Callable[[], Tensor]) -> Callable[[Any], None]:
    def change(layer: Any) -> None:
        layer.weight = weight() if isinstance(weight(), nn.Parameter) else nn.Parameter(weight(), False)

    return change


def ignored(*_: object, **__: object) -> None:
    """A hook that changes nothing."""


MORE: dict[str, tuple[Callable[[], nn.Linear], str]] = {
    "subclass": (lambda: Subclass(12, 8), "layer is a test_integrations.Subclass, not a torch.nn.Linear"),
    "uninitialised": (
        lambda: nn.LazyLinear(8),
        "layer is a torch.nn.modules.linear.LazyLinear, not a torch.nn.Linear",
    ),
    "parametrized": (
        lambda: changed(parametrizations.orthogonal),
        "layer is parametrized: its parametrizations would be lost",
    ),
    "patched forward": (
        lambda: changed(patched),
        "layer has a patched forward: it would not be called",
    ),
    "forward of another layer": (
        lambda: changed(lambda layer: setattr(layer, "forward", nn.Linear(12, 8).forward)),
        "layer has a patched forward: it would not be called",
    ),
    "compiled": (
        lambda: changed(lambda layer: layer.compile(backend="eager")),
        "layer is compiled by its compile(): the compiled call would be lost",
    ),
    "pruned": (
        lambda: changed(pruned("weight")),
        "layer has other parameters (weight_orig): they would be lost",
    ),
    "pruned bias": (
        lambda: changed(pruned("bias")),
        "layer has other parameters (bias_orig): they would be lost",
    ),
    "weight norm": (
        lambda: changed(weight_normed),
        "layer has other parameters (weight_g, weight_v): they would be lost",
    ),
    "another parameter": (
        lambda: changed(lambda layer: layer.register_parameter("scale", nn.Parameter(torch.ones(8)))),
        "layer has other parameters (scale): they would be lost",
    ),
    "weight in a buffer": (lambda: changed(frozen_in_a_buffer), "weight is not a parameter of the layer"),
    "no bias of any kind": (
        lambda: changed(lambda layer: delattr(layer, "bias")),
        "bias is not a parameter of the layer",
    ),
    "buffer": (
        lambda: changed(lambda layer: layer.register_buffer("scale", torch.ones(8), persistent=False)),
        "layer has buffers (scale): they would be lost",
    ),
    "adapters": (
        lambda: changed(lambda layer: layer.add_module("lora_a", nn.Identity())),
        "layer has child modules (lora_a): they would be lost",
    ),
    "tensor attribute": (
        lambda: changed(lambda layer: setattr(layer, "mask", torch.ones(8))),
        "layer has other attributes (mask): they would be lost",
    ),
    "object attribute": (
        lambda: changed(lambda layer: setattr(layer, "_hf_hook", SimpleNamespace())),
        "layer has other attributes (_hf_hook): they would be lost",
    ),
    "patched method": (
        lambda: changed(lambda layer: setattr(layer, "state_dict", dict)),
        "layer has other attributes (state_dict): they would be lost",
    ),
    "value that hides a method": (
        lambda: changed(lambda layer: setattr(layer, "extra_repr", None)),
        "layer has other attributes (extra_repr): they would be lost",
    ),
    "name of the new layer's own": (
        lambda: changed(lambda layer: setattr(layer, "reason", "frozen")),
        "layer has an attribute reason, a name that Linear uses itself",
    ),
    "weight of another class": (
        lambda: changed(with_weight(lambda: rows(8, 12))),
        "weight is a fake_gpu.Cuda, not a plain parameter",
    ),
    "weight that is not there yet": (
        lambda: changed(with_weight(nn.UninitializedParameter)),
        "weight is a torch.nn.parameter.UninitializedParameter, not a plain parameter",
    ),
    "no weight": (
        lambda: changed(lambda layer: setattr(layer, "weight", None)),
        "weight is a builtins.NoneType, not a plain parameter",
    ),
    "sparse weight": (
        lambda: changed(with_weight(lambda: torch.ones(8, 12).to_sparse())),
        "weight is stored as torch.sparse_coo torch.float32, not as a dense tensor",
    ),
    "weight of another shape": (
        lambda: changed(with_weight(lambda: torch.ones(9, 12))),
        "weight has shape [9, 12], and the layer's features say [8, 12]",
    ),
    "weight of a shard": (
        lambda: changed(with_weight(lambda: torch.ones(0))),
        "weight has shape [0], and the layer's features say [8, 12]",
    ),
    "bias of another shape": (
        lambda: changed(lambda layer: setattr(layer, "bias", nn.Parameter(torch.ones(1)))),
        "bias has shape [1], and the layer's features say [8]",
    ),
}
"""Ways in which a layer is more than its weight and bias, and the reason not to replace it."""

HOOKS: dict[str, tuple[Callable[[Any], object], str]] = {
    "forward": (lambda layer: layer.register_forward_hook(ignored), "forward hook"),
    "forward with keywords": (
        lambda layer: layer.register_forward_hook(ignored, with_kwargs=True),
        "forward hook",
    ),
    "forward, always": (
        lambda layer: layer.register_forward_hook(ignored, always_call=True),
        "forward hook",
    ),
    "before forward": (lambda layer: layer.register_forward_pre_hook(ignored), "forward pre-hook"),
    "before forward with keywords": (
        lambda layer: layer.register_forward_pre_hook(ignored, with_kwargs=True),
        "forward pre-hook",
    ),
    "backward": (lambda layer: layer.register_backward_hook(ignored), "backward hook"),
    "full backward": (lambda layer: layer.register_full_backward_hook(ignored), "backward hook"),
    "before backward": (lambda layer: layer.register_full_backward_pre_hook(ignored), "backward pre-hook"),
    "state dict": (lambda layer: layer.register_state_dict_post_hook(ignored), "state-dict hook"),
    "before state dict": (
        lambda layer: layer.register_state_dict_pre_hook(ignored),
        "state-dict pre-hook",
    ),
    "before load": (
        lambda layer: layer.register_load_state_dict_pre_hook(ignored),
        "load-state-dict pre-hook",
    ),
    "after load": (
        lambda layer: layer.register_load_state_dict_post_hook(ignored),
        "load-state-dict post-hook",
    ),
}
"""All that torch.nn.Module registers for one module, and its name in the reason."""


def assert_is_left(layer: nn.Linear, reason: str) -> None:
    """Linear.of refuses the layer for the reason; replace_linear leaves it as it is and warns once."""
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        Linear.of(layer, PRODUCT)
    model = nn.Sequential(layer, nn.Linear(8, 4))
    before = dict(vars(layer))
    with pytest.warns(LinearLeftWarning, match=f"^.*\n  0: {re.escape(reason)}\n") as caught:
        assert replace_linear(model, PRODUCT) == 1
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert model[0] is layer
    assert vars(layer).keys() == before.keys()
    assert type(model[1]) is Linear
    left: dict[str, str] = {}
    assert replace_linear(model, PRODUCT, left=left) == 0
    assert left == {"0": reason, "1": "product computes the layer already"}


@pytest.mark.parametrize("way", MORE)
def test_a_layer_that_is_more_than_its_weight_and_bias_is_left_with_the_reason(way: str) -> None:
    make, reason = MORE[way]
    assert_is_left(make(), reason)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_layer_with_a_hook_is_left_with_the_reason(hook: str) -> None:
    register, name = HOOKS[hook]
    assert_is_left(changed(register), f"layer has a {name}: it would not be called")


@pytest.mark.parametrize(
    "container", [name for name, value in vars(nn.Module()).items() if isinstance(value, (dict, set))]
)
def test_no_container_of_torchs_modules_is_dropped_with_its_entries(container: str) -> None:
    """Also those that a later torch adds."""
    layer = nn.Linear(12, 8)
    held: Any = vars(layer)[container]
    if isinstance(held, set):
        cast("set[str]", held).add("name")
    else:
        held["name"] = nn.Parameter(torch.zeros(1)) if container == "_parameters" else None
    with pytest.raises(ValueError, match=r"(would be lost|would not be called)$"):
        Linear.of(layer, PRODUCT)


def test_a_container_that_a_later_torch_adds_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    init: Any = nn.Module.__init__

    def later(module: Any) -> None:
        init(module)
        object.__setattr__(module, "_later_hooks", {})

    monkeypatch.setattr(nn.Module, "__init__", later)
    layer: Any = nn.Linear(12, 8)
    Linear.of(layer, PRODUCT)
    layer._later_hooks[0] = ignored
    assert_is_left(layer, "layer has entries in _later_hooks: they would be lost")


def test_every_layer_is_left_while_the_forward_of_the_class_is_patched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward: Any = nn.Linear.forward

    def through(self: Any, input: Tensor) -> Tensor:  # noqa: A002
        return forward(self, input)

    layer = nn.Linear(12, 8)
    monkeypatch.setattr(nn.Linear, "forward", through)
    with pytest.raises(ValueError, match=r"^torch.nn.Linear has a patched forward: it would not be called$"):
        Linear.of(layer, PRODUCT)


@pytest.mark.parametrize("undone", ["hook", "pruning", "parametrization", "forward", "lazy"])
def test_a_layer_that_is_plain_again_is_replaced(undone: str) -> None:
    layer: Any = nn.Linear(12, 8)
    if undone == "hook":
        layer.register_full_backward_hook(ignored).remove()
    elif undone == "pruning":
        cast(Any, prune).remove(pruned("weight")(layer), "weight")
    elif undone == "parametrization":
        parametrize.remove_parametrizations(parametrizations.orthogonal(layer), "weight")
    elif undone == "forward":
        layer.forward = types.MethodType(nn.Linear.forward, layer)  # so does accelerate
    else:
        layer = nn.LazyLinear(8)
        layer(torch.ones(2, 12))
    names, x = [name for name, _ in layer.named_parameters()], torch.randn(3, 12)
    model = nn.Sequential(layer)
    assert replace_linear(model, PRODUCT) == 1
    assert torch.allclose(model(x), layer(x), atol=1e-6)
    # An optimizer's state is saved by the order of parameters, which pruning has changed.
    assert [name for name, _ in model[0].named_parameters()] == names


def test_a_replaced_layer_has_the_parameters_the_mode_and_the_marks_of_the_old_one() -> None:
    theirs: Any = nn.Linear(12, 8, dtype=torch.float64).eval()
    theirs.weight.requires_grad_(False)
    theirs._is_hf_initialized, theirs.role, theirs.precision = True, "up", torch.bfloat16
    model = nn.Sequential(theirs).train()
    theirs.eval()
    called: list[nn.Module] = []

    def hook(module: nn.Module, *_: object) -> None:
        called.append(module)

    model.register_forward_hook(hook)
    assert replace_linear(model, PRODUCT) == 1
    ours: Any = model[0]
    assert ours.weight is theirs.weight
    assert ours.bias is theirs.bias
    assert (ours.weight.requires_grad, ours.bias.requires_grad, ours.weight.dtype) == (
        False,
        True,
        torch.float64,
    )
    assert (model.training, ours.training) == (True, False)
    assert (ours._is_hf_initialized, ours.role, ours.precision) == (True, "up", torch.bfloat16)
    model(torch.ones(2, 12, dtype=torch.float64))
    assert called == [model]
    assert ours.reason.startswith("a must be a tensor of torch.float32")
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(copied.weight, theirs.weight)
        assert copied.role == "up"


def test_a_layer_of_a_kernel_gets_another_one_and_keeps_what_was_put_on_it() -> None:
    first: Any = Linear(12, 8, kernel=PRODUCT)
    first.role = "up"
    second: Any = Linear.of(first, BIASED)
    assert second.weight is first.weight
    assert (second.role, str(second).partition("kernel=")[2]) == ("up", "biased)")
    first.register_forward_hook(ignored)
    with pytest.raises(ValueError, match=r"^layer has a forward hook: it would not be called$"):
        Linear.of(first, BIASED)


class Tied(nn.Module):
    """A weight that an embedding and a layer share, and a layer that is at three places."""

    def __init__(self) -> None:
        cast(Any, super()).__init__()
        self.embedding = nn.Embedding(8, 12)
        self.head = nn.Linear(12, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.first = self.second = nn.Linear(12, 12)
        self.block = nn.Sequential(self.first)
        self.again = self.block


def test_what_is_shared_in_a_model_stays_shared() -> None:
    model = Tied()
    shared = model.first
    assert replace_linear(model, PRODUCT) == 2
    assert model.head.weight is model.embedding.weight
    assert type(model.first) is Linear
    assert model.first.weight is shared.weight
    assert model.second is model.first
    assert model.block[0] is model.first
    assert model.again is model.block
    assert list(model.state_dict()) == list(Tied().state_dict())


def test_a_layer_at_several_places_is_replaced_where_it_is_meant() -> None:
    model = Tied()
    shared = model.first
    left: dict[str, str] = {}
    assert replace_linear(model, PRODUCT, only=lambda name: name in ("second", "again.0"), left=left) == 1
    assert model.first is shared
    assert type(model.second) is Linear
    assert model.block[0] is model.second
    assert left == dict.fromkeys(("head", "first"), "`only` does not mean the layer")


def test_a_model_that_is_itself_the_layer_is_not_left_in_silence() -> None:
    with pytest.warns(LinearLeftWarning, match=r"\(the model\): the model is itself the layer, .*Linear.of"):
        assert replace_linear(nn.Linear(12, 8), PRODUCT) == 0
    left: dict[str, str] = {}
    assert replace_linear(nn.Linear(12, 8), PRODUCT, left=left) == 0
    assert list(left) == [""]


def test_layers_that_are_expected_to_stay_are_told_and_not_warned_of() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 4, bias=False), changed(patched))

    left: dict[str, str] = {}
    ours = model()
    assert replace_linear(ours, BIASED, only=lambda name: name != "2", left=left) == 1
    assert left == {
        "1": "biased needs column_bias, and the layer has no bias",
        "2": "`only` does not mean the layer",
    }
    assert replace_linear(model(), BIASED, only=lambda name: name != "2") == 1
    assert replace_linear(ours, BIASED, only=lambda name: name != "2") == 0  # and warns of nothing
    assert replace_linear(Linear(12, 8, kernel=PRODUCT), PRODUCT) == 0


def test_a_warning_names_some_layers_of_each_reason_and_counts_the_others() -> None:
    layers = [changed(patched) for _ in range(5)]
    odd = [changed(with_weight(lambda n=n: torch.ones(n, 12))) for n in range(9, 15)]
    with pytest.warns(LinearLeftWarning) as caught:
        replace_linear(nn.Sequential(*layers, *odd), PRODUCT)
    lines = str(caught[0].message).split("\n")
    assert lines[0] == "replace_linear left linear layers as they are (11)"
    assert lines[1] == "  0, 1, 2 and 2 more: layer has a patched forward: it would not be called"
    assert lines[2].startswith("  5: weight has shape [9, 12], ")
    assert lines[6:] == [
        "  and 2 more reasons",
        "Pass left={...}, a dict, to get every name with its reason and no warning.",
    ]


def test_a_module_of_an_earlier_release_is_to_be_generated_again() -> None:
    module = SimpleNamespace(
        __name__="earlier",
        matmul=product,
        COMPUTES={"inputs": ("a", "b"), "epilogue": ()},
        ARGUMENTS={"a": (torch.float16, "MK", None, None)},
    )
    with pytest.raises(ValueError, match=r"^earlier is of an earlier release of gemmgen: generate it again$"):
        replace_linear(nn.Sequential(nn.Linear(12, 8)), module)


def test_a_kernel_that_no_layer_can_have_leaves_the_model_as_it_was() -> None:
    module = SimpleNamespace(
        __name__="widening",
        matmul=product,
        COMPUTES={"inputs": ("a", "b"), "epilogue": ()},
        ARGUMENTS={"a": {"dtype": torch.float16}, "out": {"dtype": torch.float32}},
    )
    model = nn.Sequential(nn.Linear(12, 8))
    with pytest.raises(ValueError, match=r"^widening makes torch.float32 of torch.float16"):
        replace_linear(model, module)
    assert type(model[0]) is nn.Linear


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
def test_layers_and_inductors_choice_give_torchs_numbers_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        device = require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    module = import_generated(module_file("h100_bf16"))
    theirs = nn.Linear(512, 384, bias=False, device=device, dtype=BF16)
    ours = Linear.of(theirs, module)
    x = torch.randn(3, 64, 512, device=device, dtype=BF16)
    with torch.no_grad():
        right, found = theirs(x), ours(x)
        assert ours.reason == ""
        assert can_implement(module, x[0], ours.weight.T) == (True, "")
        torch.testing.assert_close(found, right, rtol=2e-2, atol=2e-2)
        odd = torch.randn(64, 516, device=device, dtype=BF16)[:, 4:]
        assert torch.equal(ours(odd), theirs(odd))
        assert ours.reason == "a must have rows a multiple of 16 bytes apart, found 516 elements"
        config: Any = importlib.import_module("torch._inductor.config")
        calls: list[Tensor] = []

        def counted(a: Tensor, b: Tensor, out: Tensor) -> None:
            calls.append(out)
            external(a, b, out)

        external = external_matmul(module)
        with config.patch(
            external_matmul=[counted],
            max_autotune_gemm=True,
            max_autotune_gemm_backends="ATEN",
            force_disable_caches=True,
        ):
            compiled: Any = cast(Any, torch).compile(cast(Any, operator).matmul)
            a, b = x[0], theirs.weight.T
            torch.testing.assert_close(compiled(a, b), a @ b, rtol=2e-2, atol=2e-2)
        assert calls  # Inductor timed it, at least
        monkeypatch.setitem(sys.modules, "h100_bf16", module)  # where torch looks for it
        layer: Any = cast(Any, torch).compile(ours, fullgraph=True)
        torch.testing.assert_close(layer(x), right, rtol=2e-2, atol=2e-2)
    loss = ours(x.requires_grad_()).float().sum()
    assert ours.reason == "a must not require grad (no backward): detach it"
    loss.backward()
