"""Batches that share A or B: the coordinate of groups is 0 there, and torch's broadcast tensors are taken."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from drawn import random_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, imported
from hopper import hopper
from modules import assert_verified_on_a_gpu, made, module_file, spec_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gemmgen.module import import_generated
from gemmgen.numerics.reference import reference
from gemmgen.plan.search.estimates import dram_bytes
from gemmgen.planner import plan_spec
from gemmgen.problem import Groups
from gemmgen.product import make_of
from gemmgen.spec.load import parse_spec
from gemmgen.verify.launches import all_launches
from gemmgen.verify.simulation import simulate_product

pytest_plugins = ["fake_calls"]

ONE_A, ONE_B = "h100_bf16_broadcast_a", "h100_bf16_broadcast_b"
STEMS = (ONE_A, ONE_B)
every_spec = pytest.mark.parametrize("stem", STEMS)
BF16 = torch.bfloat16


# --- the problem


def test_the_shared_matrix_has_a_first_axis_of_1() -> None:
    groups = Groups("batched", 4, "a")
    assert [groups.first_axis(matrix) for matrix in ("a", "b", "d")] == ["1", "G", "G"]
    assert [groups.stacks(matrix) for matrix in ("a", "b", "d")] == [False, True, True]
    assert [groups.first_extent(matrix) for matrix in ("a", "b", "d")] == [1, 4, 4]
    assert Groups("m_offsets", 4).first_extent("a") is None
    assert groups.apart
    assert groups.all_rows(9) == 36
    assert [Groups("k_offsets", 4).first_axis(matrix) for matrix in ("a", "b", "d")] == ["", "", "G"]


@every_spec
def test_the_shared_matrix_is_moved_once(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    m, n, k = shape = 64, 128, 256
    count_a, count_b = (1, 16) if stem == ONE_A else (16, 1)
    assert dram_bytes(problem, shape) == 2 * (count_a * m * k + count_b * k * n + 16 * m * n)


@every_spec
def test_the_reference_is_torchs_broadcast_matmul(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((40, 24, 64), problem, torch.Generator().manual_seed(3))
    assert inputs.shape == (40, 24, 64)
    assert (len(inputs.a), len(inputs.b)) == ((1, 16) if stem == ONE_A else (16, 1))
    expected = torch.matmul(inputs.a.double(), inputs.b.double())
    assert torch.equal(reference(inputs, problem), expected.flatten(0, 1))


# --- the planner and the simulator

SPEC = """\
title: batches that share a matrix
target: h200
operands:
  a: {{dtype: bf16, major: {a}}}
  b: {{dtype: bf16, major: {b}}}
  d: {{dtype: bf16}}
groups: {{kind: batched, count: 16, broadcast: {shared}}}
problem: {{m: 256, n: 512, k: 1024}}
check: {{shapes: [[72, 136, 128], [200, 200, 264]]}}
{decisions}
"""


def spec(shared: str, majors: str, decisions: str = "") -> bytes:
    """Return the text of a spec; `majors` are those of A and of B."""
    a, b = majors.split()
    return SPEC.format(a=a, b=b, shared=shared, decisions=decisions).encode()


@pytest.mark.parametrize("shared", ["a", "b"])
@pytest.mark.parametrize("majors", ["k k", "k mn", "mn k", "mn mn"])
def test_an_open_spec_is_planned_as_batches_are(shared: str, majors: str) -> None:
    plan = hopper(plan_spec(parse_spec(spec(shared, majors), "open")))
    assert plan.problem.groups == Groups("batched", 16, "a" if shared == "a" else "b")
    assert plan.group_slots == 0


VARIANTS = {
    "one A along M": spec("a", "mn k", "tile: {m: 128, n: 128, k: 64}"),
    "one B along N in composed tiles": spec("b", "mn mn", "tile: {m: 128, n: 192, k: 64}"),
    "one tile a program": spec("a", "k k", "tile: {m: 64, n: 64, k: 64}\nschedule: {kind: tiled}"),
    "one step at a time": spec(
        "b", "k k", "tile: {m: 64, n: 64, k: 64}\nschedule: {kind: tiled}\nbuffering: {stages: 1}"
    ),
    "one A, loaded early in a cluster": spec(
        "a", "k k", "tile: {m: 128, n: 128, k: 64}\ncluster: {m: 2, n: 2}\ndependent_launch: {early: a}"
    ),
    "swap-AB": spec("b", "k k", "mma: {swap_ab: true}\ntile: {m: 16, n: 128, k: 128}"),
    "a bias of each batch": spec(
        "a",
        "k mn",
        "tile: {m: 128, n: 128, k: 64}\ncluster: {n: 2}\nepilogue: {ops: [column_bias, row_scale]}",
    ),
    "a gate in blocks of one B": spec(
        "b",
        "k k",
        "tile: {m: 128, n: 128, k: 64}\nepilogue: {accumulators: [gate, up], d: silu(gate) * up}",
    ),
    "an A in registers": spec("b", "k k", "tile: {m: 128, n: 128, k: 64}").replace(
        b"a: {dtype: bf16, major: k}", b"a: {dtype: bf16, major: k, source: registers}"
    ),
}
"""Specs of kernels that no committed module has."""


@pytest.mark.nightly
@pytest.mark.parametrize("text", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_is_clean_in_the_simulator(text: bytes) -> None:
    product = make_of(parse_spec(text, "batches"))
    assert simulate_product(product, all_launches(product.plan, 2)).problems == ()


# --- the function


@pytest.fixture(params=STEMS)
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(request.param, monkeypatch)


def passed(module: ModuleType, shared: Tensor) -> tuple[Tensor, Tensor]:
    """Return A and B with a shared matrix that lies in memory as [32, 64], and five matrices of batches."""
    if module.__name__ == ONE_A:
        return shared, shared.new_zeros(5, 64, 32)
    return shared.new_zeros(5, 32, 64), shared.mT


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "a matrix": lambda matrix: matrix,
    "a first extent of 1": lambda matrix: matrix[None],
    "expanded": lambda matrix: matrix.expand(5, -1, -1),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_matrix_is_described_for_all_batches(form: str, module: ModuleType, driver: FakeDriver) -> None:
    matrix = cuda(32, 64)
    a, b = passed(module, FORMS[form](matrix))
    index = 0 if module.__name__ == ONE_A else 1
    for d in (module.matmul(a, b), module.matmul(a, b)):
        assert d.shape == (5, 32, 32)
    for _, _, arguments in driver.jit:
        shapes = [[*arguments[i].shape] for i in (0, 1)]
        assert shapes[index] == [1, 32, 64]
        assert shapes[1 - index][0] == 5
        assert arguments[index].base.data_ptr() == matrix.data_ptr()


def test_a_matrix_for_each_batch_is_refused(module: ModuleType, driver: FakeDriver) -> None:
    a, b = passed(module, cuda(5, 32, 64))
    name, shape = ("a", "[1, 32, 64]") if module.__name__ == ONE_A else ("b", "[1, 64, 32]")
    with pytest.raises(ValueError, match=f"^{name} must have shape") as refused:
        module.matmul(a, b)
    assert shape in str(refused.value)
    assert driver.jit == []


def test_an_expansion_to_other_groups_is_refused(module: ModuleType, driver: FakeDriver) -> None:
    a, b = passed(module, cuda(32, 64).expand(4, -1, -1))
    with pytest.raises(ValueError, match=r"have shape \[4, 64, 32\], found|the same groups, found 5 and 4$"):
        module.matmul(a, b)
    assert driver.jit == []


def test_operations_are_counted_and_d_has_a_shape_without_memory(module: ModuleType) -> None:
    with torch.device("meta"):
        a, b = passed(module, torch.empty(32, 64, dtype=BF16))
    with FlopCounterMode(display=False) as counter:
        d = module.matmul(a, b)
    assert d.shape == (5, 32, 32)
    assert counter.get_total_flops() == 2 * 5 * 32 * 64 * 32


@pytest.mark.parametrize("form", FORMS)
def test_a_compiler_of_torch_sees_the_batches(form: str, module: ModuleType) -> None:
    is_of_a, matmul = module.__name__ == ONE_A, module.matmul

    def shared(x: Tensor, y: Tensor) -> Tensor:
        one = FORMS[form](x)
        return matmul(one, y) if is_of_a else matmul(y, one.mT)

    with torch.device("meta"):
        x = torch.empty(32, 64, dtype=BF16)
        y = torch.empty(5, 64, 32, dtype=BF16) if is_of_a else torch.empty(5, 32, 64, dtype=BF16)
    compiler: Any = torch
    compiler._dynamo.reset()
    compiled = compiler.compile(shared, fullgraph=True, backend="eager")
    assert compiled(x, y).shape == (5, 32, 32)


def test_an_a_of_four_dimensions_is_refused(module: ModuleType, driver: FakeDriver) -> None:
    _, b = passed(module, cuda(32, 64))
    with pytest.raises(ValueError, match=r"^a must have 3 dimensions"):
        module.matmul(cuda(2, 5, 32, 64), b)
    assert driver.jit == []


# --- a GPU


@pytest.mark.gpu
@every_spec
def test_every_check_of_a_module_passes_on_a_gpu(stem: str) -> None:
    assert_verified_on_a_gpu(stem)


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_the_numbers_are_those_of_torchs_matmul(form: str) -> None:
    module = import_generated(module_file(ONE_A))
    drawn = torch.Generator("cuda").manual_seed(1)
    a = torch.randn(200, 256, device="cuda", dtype=BF16, generator=drawn)
    b = torch.randn(5, 256, 384, device="cuda", dtype=BF16, generator=drawn)
    for _ in range(2):
        found = module.matmul(FORMS[form](a), b)
        assert torch.allclose(found.float(), torch.matmul(a, b).float(), atol=0.25, rtol=0.02)
