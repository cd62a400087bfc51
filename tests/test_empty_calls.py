"""Calls without K, rows, columns or groups: D is what the epilogue makes of a product of zeros."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from fake_gpu import Cuda, on_a_fake_gpu
from fake_triton import on_a_fake_driver
from modules import module_file
from simulated import signs, simulated
from torch import Tensor

from gemmgen.module import import_generated

BATCHED, GROUPS_OF_K, DENSE = (
    "h100_bf16_batched_accumulated",
    "h100_bf16_wgrad_accumulated",
    "h100_fp16_axpby",
)
STEMS = (BATCHED, GROUPS_OF_K, DENSE)
"""Modules with a C: of batches, of groups of K, and of one product."""
EXTENTS = {"groups": 3, "M": 40, "N": 160, "K": 0}


def operands(module: ModuleType, extents: dict[str, int], *, device: str = "cpu") -> dict[str, Tensor]:
    """Return the tensors of a call, of any numbers; those of operands that are transposed lie so."""
    found: dict[str, Tensor] = {}
    for name in module.COMPUTES["inputs"]:
        dtype = module.ARGUMENTS[name]["dtype"]
        shape = [extents[axis] for axis in module.ARGUMENTS[name]["axes"]]
        if name in module.call.contract.inputs and module.call.contract.arguments[name].is_transposed:
            shape[-2:] = reversed(shape[-2:])
        made = torch.zeros(shape, dtype=dtype) if name == "offs" else signs(*shape).to(dtype)
        tensor = made.to(device) if device == "cuda" else made.as_subclass(Cuda)
        found[name] = module.call.contract.arguments[name].stored(tensor)
    return found


def called(module: ModuleType, given: dict[str, Tensor], out: Tensor | None) -> Tensor:
    a, b, *_ = given.values()
    return module.matmul(a, b, **{name: each for name, each in given.items() if name not in "ab"}, out=out)


def assert_c_comes_back(module: ModuleType, *, device: str = "cpu") -> None:
    """Check calls with a K of 0, into a new D, into memory of its own, and into C: D is C times beta."""
    beta = module.BETA.value if hasattr(module, "BETA") else 1
    for target in ("new", "own", "c"):
        given = operands(module, EXTENTS, device=device)
        c = given["c"]
        wanted = beta * c.as_subclass(Tensor).clone()
        out = {"new": None, "own": torch.full_like(c, 7), "c": c}[target]
        d = called(module, given, out)
        assert out is None or d is out
        assert torch.equal(d.as_subclass(Tensor), wanted), target


@pytest.mark.parametrize("stem", STEMS)
def test_without_k_d_is_c_times_beta(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_c_comes_back(simulated(stem, monkeypatch))


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("axis", ["M", "N"])
@pytest.mark.parametrize("k", [0, 16])
def test_an_empty_d_launches_nothing(stem: str, axis: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file(stem))
    driver = on_a_fake_driver(module, monkeypatch)
    given = operands(module, {**EXTENTS, axis: 0, "K": k})
    for out in (None, torch.empty_like(given["c"]), given["c"]):
        d = called(module, given, out)
        assert math.prod(d.shape) == 0
        assert d.shape == given["c"].shape
    assert driver.jit == []


@pytest.mark.parametrize("stem", [BATCHED, GROUPS_OF_K])
def test_a_call_without_groups_is_refused(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file(stem))
    with pytest.raises(ValueError, match=r"^this kernel takes from 1 to \d+ groups, found 0$"):
        called(module, operands(module, {**EXTENTS, "groups": 0, "K": 16}), None)


@pytest.mark.gpu
@pytest.mark.parametrize("stem", STEMS)
def test_without_k_d_is_c_times_beta_on_the_gpu(stem: str) -> None:
    assert_c_comes_back(import_generated(module_file(stem)), device="cuda")
