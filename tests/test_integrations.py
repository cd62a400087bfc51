"""integrations: kernels as layers and as Inductor's choice, and what they would refuse; one test launches."""

from __future__ import annotations

import copy
import importlib
import operator
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fake_gpu import Cuda, SecondCuda, launch_into, on_a_fake_gpu
from modules import GENERATED, module_file
from torch import Tensor, nn

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.integrations import Linear, can_implement, external_matmul, replace_linear
from gemmgen.module import import_generated

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
        raise TypeError(f"a must be strided torch.float32, found torch.strided {a.dtype}")
    return torch.mm(a, b, out=out)


def product_and_bias(a: Tensor, b: Tensor, *, column_bias: Tensor, out: Tensor | None = None) -> Tensor:
    """Return epilogue(a @ b), as the module's docstring has it."""
    return torch.addmm(column_bias, a, b)


PRODUCT = SimpleNamespace(__name__="product", matmul=product)
BIASED = SimpleNamespace(
    __name__="biased",
    __doc__="A linear layer.\n\nAccumulated in fp32. The\nepilogue: plus a bias for each column.\n",
    matmul=product_and_bias,
)
"""Kernels of this CPU."""


# --- can_implement


GOOD: dict[str, Callable[[], dict[str, Tensor]]] = {
    "plain": lambda: {"a": rows(4, 16), "b": rows(24, 16).T},
    "strided": lambda: {"a": rows(4, 16, 32), "b": rows(24, 16, 48).T, "out": rows(4, 24, 40)},
    "padded": lambda: {"a": rows(4, 16), "b": rows(21, 16).T},
    "empty": lambda: {"a": rows(0, 16), "b": rows(24, 16).T},
    "no K": lambda: {"a": rows(4, 0), "b": rows(24, 0).T},
}
BAD: dict[str, Callable[[], dict[str, Tensor]]] = {
    "dtype": lambda: {"a": rows(4, 16, dtype=torch.float16), "b": rows(24, 16).T},
    "device": lambda: {"a": rows(4, 16), "b": rows(24, 16).as_subclass(SecondCuda).T},
    "cpu": lambda: {"a": rows(4, 16).as_subclass(Tensor), "b": rows(24, 16).as_subclass(Tensor).T},
    "K": lambda: {"a": rows(4, 16), "b": rows(24, 32).T},
    "dimensions": lambda: {"a": rows(4, 16)[None], "b": rows(24, 16).T},
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
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability(8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "L40S")  # pyright: ignore
    assert can_implement(imported("h100_bf16"), **operands) == (
        False,
        "this kernel needs capability (9, 0), found L40S: (8, 9)",
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
    found = capability(10, 0) if stem.startswith("b200") else capability(9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", found)
    dtype = module.ARGUMENTS["a"][0]
    extras = {
        name: rows(1, {"M": 16, "N": 64}[axes], dtype=kind)[0]
        for name, (kind, axes, *_) in module.ARGUMENTS.items()
        if axes in ("M", "N")
    }
    a, b = rows(16, 64, dtype=dtype), rows(64, 64, dtype=dtype).T
    assert can_implement(module, a, b, **extras) == (True, "")
    can, reason = can_implement(module, a, rows(64, 32, dtype=dtype).T, **extras)
    assert not can
    assert reason == "b must have shape [64, 64], found [32, 64]"


# --- Inductor


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
    with pytest.raises(ValueError, match=r"^biased computes more than a @ b: Return epilogue"):
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
    theirs = nn.Linear(16, 24, dtype=BF16)
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


def test_a_layer_that_torch_compiles_is_torchs_where_the_module_has_no_operator() -> None:
    theirs = nn.Linear(16, 24, dtype=BF16)
    ours = Linear.of(theirs, PRODUCT)
    x = torch.randn(4, 16, dtype=BF16)
    compiled: Any = cast(Any, torch).compile(ours, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), theirs(x))


def test_a_layer_that_torch_compiles_is_the_modules_operator_where_it_suits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = import_generated(module_file("h100_bf16"))
    monkeypatch.setitem(sys.modules, "h100_bf16", module)  # where torch looks for it
    ours = Linear(16, 24, kernel=module, device="meta", dtype=BF16)
    odd = Linear(12, 24, kernel=module, device="meta", dtype=BF16)  # rows of 24 bytes
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
        assert "gemmgen.h100_bf16" in called
        called.clear()
        compiled(odd, x[..., :12].contiguous())
        compiled(ours.float(), x.float())
    compiled(ours.to(BF16), x)  # which requires grad
    assert called
    assert not any("gemmgen" in name for name in called)


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.stem)
def test_only_kernels_of_a_linear_layer_become_one(path: Any) -> None:
    """Those that multiply A and B, of one type that is D's too, and add a bias at most."""
    module = import_generated(path)
    first = module.matmul.__doc__.partition("\n")[0]
    header = " ".join(str(module.__doc__).split())
    plain = first == "Return a @ b." or (
        first.startswith("Return epilogue(a @ b)") and "The epilogue: plus a bias for each column." in header
    )
    same = module.ARGUMENTS["a"][0] == module.ARGUMENTS["out"][0]
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


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
def test_layers_and_inductors_choice_give_torchs_numbers_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        device = require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    module = import_generated(module_file("h100_bf16"))
    theirs = nn.Linear(512, 384, device=device, dtype=BF16)
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
