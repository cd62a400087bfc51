"""Gates that store their sums for a backward, and both kernels together beside torch.autograd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from drawn import random_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, imported, refusal
from hopper import hopper
from modules import made, spec_file
from simulated import Simulated
from torch import Tensor

from gemmgen.bench.arms import deviation_of
from gemmgen.build import lowered_of
from gemmgen.numerics.reference import reference, saved_deviation
from gemmgen.plan.search.estimates import dram_bytes
from gemmgen.problem.dtypes import Dtypes
from gemmgen.product import make

pytest_plugins = ["fake_calls"]

BLOCKS, IN_TURN = "h100_bf16_gated_saved", "h100_bf16_saved_interleaved"
STEMS = (BLOCKS, IN_TURN)
BF16 = torch.bfloat16
any_torch: Any = torch  # whose functions are partly untyped


# --- the plan


@pytest.mark.parametrize("stem", STEMS)
def test_the_buffers_of_sums_are_twice_as_large_as_those_of_d(stem: str) -> None:
    plan = hopper(made(spec_file(stem)).plan)
    held = {
        tensor: sum(buffer.bytes for buffer in plan.shared_buffers if buffer.tensor == tensor)
        for tensor in ("d", "saved")
    }
    assert held["saved"] == 2 * held["d"] > 0
    assert lowered_of(made(spec_file(stem))).resources.smem_bytes == plan.smem_bytes


def test_bytes_count_the_sums() -> None:
    problem, shape = made(spec_file(BLOCKS)).source.problem, (128, 64, 32)
    least = 2 * (128 * 32 + 2 * 64 * 32 + (1 + 2) * 128 * 64)
    assert dram_bytes(problem, shape) == Dtypes.of(problem).moved_bytes(shape) == least


@pytest.mark.parametrize("stem", STEMS)
def test_d_is_computed_from_the_rounded_sums(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((24, 40, 64), problem, torch.Generator().manual_seed(3))
    exact = inputs.a.double() @ inputs.b.double()
    sums, alike = exact.to(BF16).double(), {}
    for name, each in (("rounded", sums), ("exact", exact)):
        gate, up = (each[:, ::2], each[:, 1::2]) if problem.interleaved else each.chunk(2, 1)
        d = torch.nn.functional.silu(gate) * up
        alike[name] = torch.isclose(reference(inputs, problem), d, rtol=1e-9, atol=0).double().mean()
    assert alike["rounded"] > 0.99 > 0.01 > alike["exact"]
    assert inputs.extras["saved"].shape == (24, 80)
    inputs.extras["saved"].copy_(sums)
    assert saved_deviation(inputs, problem).relative < 2e-3
    inputs.extras["saved"].copy_(sums.roll(1, 1))
    assert saved_deviation(inputs, problem).relative > 1


# --- the forward and the backward together

FORWARD = """title: a small gate that saves its sums
target: h100
operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}
tile: {m: 64, n: 64, k: 32}
ROLES
epilogue: {accumulators: [gate, up], columns: COLUMNS, d: ACT(gate) * up, save: [gate, up]}
"""
BACKWARD = """title: the small backward of a gate
target: h100
operands: {a: {dtype: bf16}, b: {dtype: bf16}, c: {dtype: bf16}, d: {dtype: bf16}}
tile: {m: 64, n: 64, k: 32}
warp_specialization: {kind: cooperative, consumers: 1}
epilogue:
  c: [gate, up]
  columns: COLUMNS
  d: [acc * up * ACT_grad(gate), acc * ACT(gate)]
"""


def kernel(folder: Path, name: str, text: str) -> Simulated:
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    product = make(file)
    (folder / f"{name}.py").write_text(product.module, encoding="utf-8")
    return Simulated(product, folder / f"{name}.py")


@pytest.mark.parametrize("columns", ["blocks", "interleaved"])
@pytest.mark.parametrize("act", ["silu", "gelu_erf"])
@pytest.mark.parametrize("tiled", [False, True])
def test_forward_and_backward_are_those_of_autograd(
    columns: str, act: str, tiled: bool, tmp_path: Path
) -> None:
    """The MLP y = (act(x W1) * (x W2)) W3: its hidden gradients by two kernels, and by autograd in fp64."""
    roles = "warp_specialization: {kind: cooperative, consumers: 1}"
    rows, hidden, width = 104, 88, 96  # edges along every dimension
    if tiled:  # one tile, as the simulator has no program for another one
        roles, rows, hidden = "warp_specialization: {kind: none}\nschedule: {kind: tiled}", 56, 24
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(rows, width, generator=draw).to(BF16)
    weight = (torch.randn(2 * hidden, width, generator=draw) * width**-0.5).to(BF16)
    down = (torch.randn(width, hidden, generator=draw) * hidden**-0.5).to(BF16)
    grad_y = torch.randn(rows, width, generator=draw).to(BF16)

    words = {"COLUMNS": columns, "ACT": act, "ROLES": roles}
    texts = [FORWARD, BACKWARD]
    for word, meant in words.items():
        texts = [text.replace(word, meant) for text in texts]
    forward, backward = (kernel(tmp_path, f"mlp_{i}", text) for i, text in enumerate(texts))
    saved = torch.full((rows, 2 * hidden), float("nan"), dtype=BF16)
    h = forward(x, weight.T, saved=saved)
    grad = backward(grad_y, down.T.contiguous().T, c=saved)  # dH = dY @ W3, in rows of N = hidden

    exact = (x.double() @ weight.double().T).requires_grad_()
    gate, up = (exact[:, ::2], exact[:, 1::2]) if columns == "interleaved" else exact.chunk(2, 1)
    activated = torch.nn.functional.silu(gate) if act == "silu" else torch.nn.functional.gelu(gate)
    ((activated * up) @ down.double().T).backward(grad_y.double())
    assert 0.8 < exact.detach().square().mean().sqrt() < 1.2
    for found, wanted in ((saved, exact), (h, activated * up), (grad, exact.grad)):
        assert wanted is not None
        wanted = wanted.detach()
        assert found.shape == wanted.shape
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < 8e-3
        assert ((found.double() - wanted).abs() <= 2**-5 * wanted.abs() + 0.03).all()


@pytest.mark.parametrize("stem", STEMS)
def test_d_is_compared_with_the_d_of_the_sums_that_were_saved(stem: str) -> None:
    """A sum near the middle between two numbers may be saved as either, and D follows from the saved one."""
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((40, 64, 96), problem, torch.Generator().manual_seed(5))
    exact = inputs.a.double() @ inputs.b.double()
    saved = exact.to(BF16)
    saved.view(torch.int16)[::3] += 1  # the next number
    gate, up = (saved[:, ::2], saved[:, 1::2]) if problem.interleaved else saved.chunk(2, 1)
    d = (torch.nn.functional.silu(gate.double()) * up.double()).to(BF16)
    assert deviation_of((d, saved), inputs, problem).worst_element <= 1e-9
    assert deviation_of(d, inputs, problem).worst_element > 1e-3
    d[7, 3] += 1
    assert deviation_of((d, saved), inputs, problem).worst_element > 0.1
    saved[7, 3] += 1
    own = {**inputs.extras, "saved": saved}
    assert saved_deviation(replace(inputs, extras=own), problem).worst_element > 0.01


# --- the function


@pytest.fixture(params=STEMS)
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(request.param, monkeypatch)


def test_a_call_returns_d_and_the_sums(module: ModuleType, driver: FakeDriver) -> None:
    a, weight = cuda(256, 64), cuda(592, 64)
    out, saved = cuda(256, 296), cuda(256, 592)
    found = module.matmul(a, weight.T)
    assert [each.shape for each in found] == [(256, 296), (256, 592)]
    given = module.matmul(a, weight.T, out=out, saved=saved)
    assert given[0] is out
    assert given[1] is saved
    half = module.matmul(a, weight.T, saved=saved)
    assert half[1] is saved
    assert half[0].shape == (256, 296)
    extents = [256, 592] if "interleaved" in module.__name__ else [2, 256, 296]
    for _, _, arguments in driver.jit:
        assert [[*each.shape] for each in arguments] == [[256, 64], [592, 64], [256, 296], extents]


def test_further_dimensions_of_a_are_of_both_results(module: ModuleType, driver: FakeDriver) -> None:
    a, weight, saved = cuda(2, 3, 64), cuda(592, 64), cuda(2, 3, 592)
    d, sums = module.matmul(a, weight.T)
    assert (d.shape, sums.shape) == ((2, 3, 296), (2, 3, 592))
    assert module.matmul(a, weight.T, saved=saved)[1] is saved
    assert (len(driver.jit), len(driver.direct)) == (1, 1)


def test_a_replayed_call_returns_new_sums(module: ModuleType, driver: FakeDriver) -> None:
    a, weight = cuda(256, 64), cuda(592, 64)
    first, second = (module.matmul(a, weight.T) for _ in range(2))
    assert [each.shape for each in first] == [each.shape for each in second]
    assert first[1].data_ptr() != second[1].data_ptr()


def test_memory_that_is_read_cannot_take_the_sums(module: ModuleType, driver: FakeDriver) -> None:
    a, weight = cuda(64, 144), cuda(144, 144)
    with pytest.raises(ValueError, match=r"^saved must share no memory with a\b"):
        module.matmul(a, weight.T, saved=a)
    both = cuda(64, 216)
    with pytest.raises(ValueError, match=r"^out must share no memory with saved\b"):
        module.matmul(a, weight.T, out=both[:, :72], saved=both[:, 64:208])
    assert driver.jit == []


WRONG = {
    "sums of N columns": (16, 72),
    "other rows": (32, 144),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_memory_for_sums_is_named(case: str, module: ModuleType, driver: FakeDriver) -> None:
    extents = WRONG[case]
    a, weight, saved = cuda(16, 64), cuda(144, 64), cuda(*extents)
    with pytest.raises(ValueError, match=refusal("saved", str([*extents]))):
        module.matmul(a, weight.T, saved=saved)
    with pytest.raises(TypeError, match=r"saved must be a tensor of torch\.bfloat16"):
        module.matmul(a, weight.T, saved=cuda(16, 144, dtype=torch.float32))
    assert driver.jit == []


def test_wrong_operands_are_named_as_by_other_modules(module: ModuleType, driver: FakeDriver) -> None:
    with pytest.raises(TypeError, match="a must be a tensor of"):
        module.matmul(None, cuda(144, 64).T)
    with pytest.raises(ValueError, match="b must have 2 dimensions"):
        module.matmul(cuda(16, 64), cuda(144))
    with pytest.raises(ValueError, match="N must be a multiple of 8, found 68"):
        module.matmul(cuda(16, 64), cuda(136, 64).T)
    assert driver.jit == []


def test_torch_sees_an_operator_that_writes_the_sums(module: ModuleType) -> None:
    a, weight = (torch.empty(*each, dtype=BF16, device="meta") for each in ((16, 64), (144, 64)))
    d, sums = module.matmul(a, weight.T)
    assert (d.shape, sums.shape) == ((16, 72), (16, 144))
    name = module.__name__
    schema = str(getattr(torch.ops.gemmgen, name).default._schema)
    assert schema == f"gemmgen::{name}(Tensor a, Tensor b, Tensor(b!) saved) -> Tensor"
    schema = str(getattr(torch.ops.gemmgen, name).out._schema)
    assert schema == f"gemmgen::{name}.out(Tensor a, Tensor b, Tensor(b!) saved, *, Tensor(a!) out) -> ()"


def test_torch_compile_traces_both_results(module: ModuleType) -> None:
    a, weight = (torch.empty(*each, dtype=BF16, device="meta") for each in ((16, 64), (144, 64)))

    def layer(x: Tensor, w: Tensor) -> Tensor:
        d, sums = module.matmul(x, w.T)
        return d.sum() + sums.sum()

    compiled = any_torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert compiled(a, weight).shape == ()
    sums = torch.empty(16, 144, dtype=BF16, device="meta")
    checks = ("test_schema", "test_faketensor")
    any_torch.library.opcheck(
        getattr(torch.ops.gemmgen, module.__name__).default, (a, weight.T, sums), test_utils=checks
    )
