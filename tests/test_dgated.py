"""Backwards of gates: a C and a D of two matrices side by side, in blocks or with columns in turn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from drawn import random_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, assert_refused, imported
from hopper import hopper
from modules import made, spec_file
from simulated import Simulated
from torch import Tensor

from gemmgen.bench.baseline import cublas
from gemmgen.build import lowered_of
from gemmgen.errors import GemmgenError
from gemmgen.library.source_files import refuse_kernel
from gemmgen.numerics.evaluation import activated, columns_of
from gemmgen.numerics.reference import deviation, reference, tolerance
from gemmgen.plan.search.estimates import dram_bytes, l2_bytes
from gemmgen.plan.wgmma.cost import loaded_bytes
from gemmgen.planner import plan_spec
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.operations import (
    ACTIVATIONS,
    DERIVATIVES,
    OPERATIONS,
    derivative_name,
    stated_parameters,
)
from gemmgen.product import make
from gemmgen.spec import parse_spec

pytest_plugins = ["fake_calls"]

BLOCKS, IN_TURN, GEGLU = "h100_bf16_dgated", "h100_bf16_dgated_interleaved", "h100_bf16_dgated_geglu"
STEMS = (BLOCKS, IN_TURN, GEGLU)
BF16 = torch.bfloat16


# --- the plan


@pytest.mark.parametrize("stem", STEMS)
def test_c_and_d_are_twice_as_wide_as_the_sums(stem: str) -> None:
    product = made(spec_file(stem))
    plan, problem = hopper(product.plan), product.source.problem
    assert (problem.d_blocks, problem.b_blocks) == (2, 1)
    assert problem.extents_of_d(16, 24) == (16, 48)
    assert plan.loaded_n == plan.program_tile_n
    for tensor in ("c", "d"):
        held = [buffer.bytes for buffer in plan.shared_buffers if buffer.tensor == tensor]
        one = plan.cta_consumer_tile_m * plan.subtile_n * 2 * 2
        assert held == [plan.epilogue_buffers * one] * plan.consumers


@pytest.mark.parametrize("stem", STEMS)
def test_the_plan_is_the_compilers_and_no_value_leaves_its_thread(stem: str) -> None:
    product = made(spec_file(stem))
    lowered = lowered_of(product)
    assert lowered.resources.smem_bytes == product.plan.smem_bytes
    if not product.source.problem.interleaved:  # where conversions are asserted to move nothing
        assert b"convert_layout" not in lowered.artifacts["ttgir"]


def test_columns_in_turn_move_in_one_box_and_blocks_in_two() -> None:
    for stem, boxes in ((BLOCKS, 2), (IN_TURN, 1)):
        ptx = lowered_of(made(spec_file(stem))).artifacts["ptx"].decode()
        stores = len(re.findall(r"cp\.async\.bulk\.tensor\.\dd\.global", ptx))
        plan = hopper(made(spec_file(stem)).plan)
        assert stores == plan.consumers * plan.subtiles * boxes


def test_bytes_are_of_both_matrices() -> None:
    product, shape = made(spec_file(BLOCKS)), (128, 64, 32)
    problem = product.source.problem
    least = 2 * (128 * 32 + 64 * 32 + 2 * (2 * 128 * 64))
    assert dram_bytes(problem, shape) == Dtypes.of(problem).moved_bytes(shape) == least
    plan = hopper(product.plan)
    whole = (plan.program_tile_m, plan.program_tile_n, plan.cta_tile_k)
    of_c = 2 * 2 * plan.program_tile_m * plan.program_tile_n
    assert l2_bytes(plan, whole, loaded_bytes(plan)) - round(loaded_bytes(plan)) == of_c


def test_blocks_and_columns_in_turn_are_two_problems() -> None:
    first, second = (made(spec_file(stem)).source.problem for stem in (BLOCKS, IN_TURN))
    assert first.key != second.key


OPEN = """title: a problem without a kernel
target: h200
operands: {a: {dtype: bf16}, b: {dtype: bf16}, c: {dtype: bf16}, d: {dtype: bf16}}
epilogue: {c: [gate, up], d: [acc * up * silu_grad(gate), acc * silu(gate)]}
problem: {m: 4096, n: 6144, k: 2048}
"""


@pytest.mark.parametrize("columns", ["", "columns: interleaved, "])
def test_a_problem_without_a_kernel_gets_one(columns: str) -> None:
    source = parse_spec(OPEN.replace("c: [gate", f"{columns}c: [gate").encode(), "open")
    plan = hopper(plan_spec(source))
    assert plan.specialized
    assert not plan.swap_ab
    assert (plan.composed, plan.splits) == (False, 1)


# --- numbers


@pytest.mark.parametrize("stem", STEMS)
def test_the_reference_is_that_of_autograd(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((24, 40, 64), problem, torch.Generator().manual_seed(3))
    assert 0.9 < inputs.extras["c"].double().square().mean().sqrt() < 1.1  # where activations are curved
    c = inputs.extras["c"].double().requires_grad_()
    assert c.shape == (24, 80)
    gate, up = (c[:, ::2], c[:, 1::2]) if problem.interleaved else c.chunk(2, 1)
    gelu = "gelu" in str(problem.epilogue)
    act = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else torch.nn.functional.silu(gate)
    (grad,) = torch.autograd.grad(act * up, c, inputs.a.double() @ inputs.b.double())
    torch.testing.assert_close(reference(inputs, problem), grad)


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_derivative_is_the_slope_of_its_activation(name: str) -> None:
    activation = OPERATIONS[name].derivative_of
    x = torch.linspace(-4, 4, 400, dtype=torch.float64)  # no corner among them
    step = 1e-6
    above, below = (
        activated(activation, x + way * step, tuple(stated_parameters([(activation, {})]))) for way in (1, -1)
    )
    found = activated(name, x, tuple(stated_parameters([(name, {})])))
    torch.testing.assert_close(found, (above - below) / (2 * step), rtol=1e-6, atol=1e-6)


def test_each_activation_has_a_derivative() -> None:
    assert [derivative_name(name) for name in ACTIVATIONS] == [*DERIVATIVES]


TILE = """title: two derivatives
target: h100
operands: {a: {dtype: bf16}, b: {dtype: bf16}, c: {dtype: bf16}, d: {dtype: bf16}}
tile: {m: 64, n: 32, k: 32}
warp_specialization: {kind: none}
schedule: {kind: tiled}
epilogue:
  c: [x, y]
  columns: COLUMNS
  d: [acc * FIRST(x), acc * SECOND(y)]
"""


@pytest.mark.parametrize(
    ("first", "second", "columns"),
    [
        ("relu_grad", "leaky_relu_grad", "blocks"),
        ("gelu_tanh_grad", "gelu_erf_grad", "interleaved"),
        ("silu_grad", "quick_gelu_grad", "blocks"),
        ("clamp_grad", "clamp_max_grad", "interleaved"),
    ],
)
def test_kernels_compute_each_derivative(first: str, second: str, columns: str, tmp_path: Path) -> None:
    text = TILE.replace("FIRST", first).replace("SECOND", second).replace("COLUMNS", columns)
    file = tmp_path / "two_derivatives.yaml"
    file.write_text(text, encoding="utf-8")
    product = make(file)
    (tmp_path / "two_derivatives.py").write_text(product.module, encoding="utf-8")
    kernel = Simulated(product, tmp_path / "two_derivatives.py")
    a, b = torch.eye(64, dtype=BF16), torch.ones(32, 64, dtype=BF16).T
    values = torch.linspace(-6, 6, 64 * 64).reshape(64, 64).to(BF16)
    values[0, :6] = torch.tensor([0.0, -0.0, 1.0, 1.0, -1.0, math.nan])
    d = kernel(a, b, c=values)
    names = ("x", "y")
    in_turn = columns == "interleaved"
    pairs = zip(
        columns_of(d, names, interleaved=in_turn).values(),
        columns_of(values.double(), names, interleaved=in_turn).values(),
        (first, second),
        strict=True,
    )
    for found, x, name in pairs:
        expected = activated(name, x, tuple(stated_parameters([(name, {})])))
        torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=2e-3, equal_nan=True)


@pytest.mark.parametrize("stem", STEMS)
def test_swapped_gradients_are_found(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((64, 64, 64), problem, torch.Generator().manual_seed(3))
    limit = tolerance(problem, inputs.shape, None).relative
    exact = reference(inputs, problem)
    first, second = columns_of(exact, ("gate", "up"), interleaved=problem.interleaved).values()
    join: Callable[..., Tensor] = (
        (lambda *pair: torch.stack(pair, -1).flatten(-2))
        if problem.interleaved
        else lambda *pair: torch.cat(pair, -1)
    )
    for pair, is_right in (((first, second), True), ((second, first), False)):
        assert (deviation(join(*pair).to(BF16), inputs, problem).relative <= limit) == is_right


@pytest.mark.parametrize("stem", [BLOCKS, IN_TURN])
def test_the_baseline_computes_both_gradients_by_kernels_of_its_own(stem: str) -> None:
    source = made(spec_file(stem)).source
    inputs = random_inputs((24, 40, 64), source.problem, torch.Generator().manual_seed(3))
    baseline = cublas(source)
    part = "c[:, 0::2]" if source.problem.interleaved else "c.chunk(2, 1)[0]"
    assert f"d * torch.nn.functional.silu({part})" in baseline.text
    found = baseline.bind(inputs, torch.empty(24, 80, dtype=BF16))()
    assert deviation(found, inputs, source.problem).relative < 1e-2


# --- the function


@pytest.fixture(params=[BLOCKS, IN_TURN])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(request.param, monkeypatch)


def test_d_is_as_wide_as_c(module: ModuleType, driver: FakeDriver) -> None:
    a, weight, c = cuda(256, 64), cuda(296, 64), cuda(256, 592)
    assert module.matmul(a, weight.T, c=c).shape == (256, 592)
    assert module.matmul(a, weight.T, c=c, out=c) is c
    for programs, _, arguments in driver.jit:
        assert programs == (2 * 3, 1, 1)
        in_turn = "interleaved" in module.__name__
        extents = [256, 592] if in_turn else [2, 256, 296]
        assert [[*each.shape] for each in arguments] == [[256, 64], [296, 64], extents, extents]
        assert in_turn or [*arguments[2].strides] == [296, 592, 1]


def test_a_replayed_call_makes_the_same_d(module: ModuleType, driver: FakeDriver) -> None:
    a, weight, c = cuda(256, 64), cuda(296, 64), cuda(256, 592)
    first, second = (module.matmul(a, weight.T, c=c) for _ in range(2))
    assert first.shape == second.shape == (256, 592)
    assert first.stride() == second.stride()


WRONG: dict[str, tuple[tuple[int, int], tuple[int, int] | None, str, str]] = {
    "c of N columns": ((16, 64), None, "c", "64"),
    "out of N columns": ((16, 128), (16, 64), "out", "[16, 64]"),
    "other rows": ((32, 128), None, "c", "[32, 128]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_c_or_out_is_named_before_anything_is_launched(
    case: str, module: ModuleType, driver: FakeDriver
) -> None:
    extents, out, name, found = WRONG[case]
    given = {"a": cuda(16, 64), "b": cuda(64, 64).T, "c": cuda(*extents)}
    assert_refused(module, driver, given | ({"out": cuda(*out)} if out else {}), name, found)


def test_torch_traces_a_d_of_both_matrices(module: ModuleType) -> None:
    a, b, c = (torch.empty(*each, dtype=BF16, device="meta") for each in ((16, 64), (72, 64), (16, 144)))
    operator = module.call.traced
    assert operator.shape(a, b.T, c).shape == (16, 144)
    with pytest.raises(ValueError, match="c must have 2 N = 144 columns, found 72"):
        operator.shape(a, b.T, c[:, :72].contiguous())


def test_no_library_takes_the_kernel(module: ModuleType) -> None:
    product = made(spec_file(module.__name__))
    with pytest.raises(GemmgenError, match="two matrices side by side"):
        refuse_kernel(Path("x.yaml"), product.plan)
