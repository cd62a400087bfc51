"""A C of groups: kinds of groups add to it, in place too, and read the rows of a tile's group alone."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from drawn import integer_inputs, random_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, assert_refused
from modules import assert_verified_on_a_gpu, made, module_file, spec_file
from simulated import Simulated

from gemmgen.features.c_operand.checking import in_place
from gemmgen.features.checking import sides_of
from gemmgen.features.groups.divided_rows import bounds
from gemmgen.features.groups.divisions import other_divisions
from gemmgen.module import import_generated
from gemmgen.numerics.case import Case
from gemmgen.numerics.reference import reference
from gemmgen.plan.search.estimates import dram_bytes
from gemmgen.planner import plan_spec
from gemmgen.product import make_of
from gemmgen.spec.load import parse_spec
from gemmgen.verify.launches import all_launches
from gemmgen.verify.simulation import simulate_product

pytest_plugins = ["fake_calls"]

WGRAD, BATCHED = "h100_bf16_wgrad_accumulated", "h100_bf16_batched_accumulated"
CALLED = WGRAD
STEMS = (WGRAD, BATCHED)
every_spec = pytest.mark.parametrize("stem", STEMS)
BF16, FP32, INT = torch.bfloat16, torch.float32, torch.int32


# --- the problem


def test_c_and_d_of_each_group_of_k_are_moved() -> None:
    problem = made(spec_file(WGRAD)).source.problem
    m, n, k = shape = 640, 512, 1024
    assert dram_bytes(problem, shape) == 2 * (m * k + k * n) + 2 * 4 * 8 * m * n


@pytest.mark.parametrize("stem", STEMS)
def test_the_reference_adds_the_c_of_each_group(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((40, 24, 64), problem, torch.Generator().manual_seed(3))
    a, b, c = inputs.a.double(), inputs.b.double(), inputs.extras["c"].double()
    assert c.shape == (problem.groups.count if problem.groups else 0, 40, 24)
    if stem == BATCHED:
        expected = 0.5 * (a @ b) + 2 * c
    else:
        ends = bounds(problem, 64, inputs.extras["offs"], 8)
        expected = torch.stack([a[:, first:end] @ b[first:end] for first, end in ends]) + c
    assert torch.equal(reference(inputs, problem), expected.flatten(0, 1))


OPEN = """\
title: open
target: h100
operands:
  a: {{dtype: bf16, major: mn}}
  b: {{dtype: bf16, major: mn}}
  c: {{dtype: fp32}}
  d: {{dtype: fp32}}
groups: {{kind: {kind}, count: 32}}
problem: {{m: 2048, n: 768, k: 8192}}
"""


@pytest.mark.parametrize("kind", ["k_offsets", "batched"])
def test_an_open_spec_with_a_c_is_planned(kind: str) -> None:
    plan = plan_spec(parse_spec(OPEN.format(kind=kind).encode(), "open"))
    assert plan.problem.c == plan.problem.d


# --- the simulator


def case_of(stem: str, shape: tuple[int, int, int] = (72, 136, 200)) -> Case:
    simulated = Simulated.of(stem)
    return Case(
        simulated,
        shape,
        simulated.problem,
        torch.Generator().manual_seed(1),
        1,
        promote_k=None,
        sides=sides_of(simulated.problem),
    )


@every_spec
def test_d_may_be_written_over_c(stem: str) -> None:
    checks = list(in_place(case_of(stem)))
    assert [str(check) for check in checks if not check.passed] == []
    assert len(checks) >= 2


def test_other_divisions_of_k_add_to_c() -> None:
    checks = list(other_divisions(case_of(WGRAD)))
    assert [str(check) for check in checks if not check.passed] == []
    assert len(checks) >= 16


@every_spec
def test_two_calls_add_two_products(stem: str) -> None:
    simulated = Simulated.of(stem)
    first = integer_inputs((72, 136, 200), simulated.problem, torch.Generator().manual_seed(4))
    second = integer_inputs((72, 136, 200), simulated.problem, torch.Generator().manual_seed(5))
    sums = first.extras["c"].zero_()
    alone = [reference(each, simulated.problem) for each in (first,)]
    second.extras["c"].zero_()
    alone.append(reference(second, simulated.problem))
    for each in (first, second):
        simulated(each.a, each.b, **{**each.extras, "c": sums}, out=sums)
    factor = 2 if stem == BATCHED else 1
    expected = (factor * alone[0] + alone[1]).view(sums.shape)
    assert torch.allclose(sums.double(), expected, atol=0, rtol=1e-2 if stem == BATCHED else 0)


ROWS = """\
title: {kind} with a C
target: h200
operands:
  a: {{dtype: bf16, major: {a}}}
  b: {{dtype: bf16, major: {b}}}
  c: {{dtype: {c}}}
  d: {{dtype: {d}}}
groups: {{kind: {kind}, count: 16}}
problem: {{m: 256, n: 512, k: 1024}}
check: {{shapes: [[72, 136, 128], [200, 200, 264]]}}
{decisions}
"""


def spec(kind: str, decisions: str, *, majors: str = "k k", dtypes: str = "bf16 bf16") -> bytes:
    """Return the text of a spec; `majors` has A's and B's, `dtypes` C's and D's."""
    (a, b), (c, d) = majors.split(), dtypes.split()
    return ROWS.format(kind=kind, a=a, b=b, c=c, d=d, decisions=decisions).encode()


VARIANTS = {
    "a residual among vectors of groups": spec(
        "m_masked",
        "tile: {m: 128, n: 128, k: 64}\nepilogue: {ops: [column_bias, silu, row_scale, residual]}",
    ),
    "a ring of buffers and a bias": spec(
        "m_masked",
        "tile: {m: 128, n: 256, k: 64}\nbuffering: {epilogue: 2}\nepilogue: {ops: [column_bias, residual]}",
        majors="k mn",
    ),
    "swap-AB": spec(
        "m_masked", "mma: {swap_ab: true}\ntile: {m: 16, n: 128, k: 128}\nepilogue: {ops: [residual]}"
    ),
    "a gate of masked rows": spec(
        "m_masked",
        "tile: {m: 128, n: 64, k: 64}\n"
        "epilogue: {accumulators: [gate, up], d: silu(gate) * up + c, columns: interleaved}",
        majors="mn mn",
    ),
    "one tile a program, another type": spec(
        "batched",
        "tile: {m: 64, n: 64, k: 64}\nschedule: {kind: tiled}",
        majors="mn mn",
        dtypes="bf16 fp32",
    ),
    "one step at a time": spec(
        "batched", "tile: {m: 64, n: 64, k: 64}\nschedule: {kind: tiled}\nbuffering: {stages: 1}"
    ),
    "several tiles without roles": spec(
        "batched", "tile: {m: 64, n: 64, k: 64}\nwarp_specialization: {kind: none}", majors="k mn"
    ),
    "composed tiles of groups of K": spec(
        "k_offsets", "tile: {m: 128, n: 192, k: 64}", majors="mn mn", dtypes="fp32 fp32"
    ),
    "a cluster of groups of K": spec(
        "k_offsets",
        "tile: {m: 128, n: 128, k: 64}\ncluster: {m: 2}\nwarp_specialization: {kind: ping_pong}",
        majors="mn mn",
        dtypes="fp32 fp32",
    ),
    "a cluster of batches with a bias": spec(
        "batched",
        "tile: {m: 128, n: 128, k: 64}\ncluster: {m: 2}\nepilogue: {ops: [column_bias, residual]}",
    ),
    "ping-pong of groups of K": spec(
        "k_offsets",
        "tile: {m: 128, n: 128, k: 64}\nwarp_specialization: {kind: ping_pong}\nepilogue: {beta: 0.5}",
        majors="mn mn",
    ),
}
"""Specs of kernels that no committed module has."""


@pytest.mark.nightly
@pytest.mark.parametrize("text", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_is_clean_in_the_simulator(text: bytes) -> None:
    product = make_of(parse_spec(text, "rows"))
    assert simulate_product(product, all_launches(product.plan, 2)).problems == ()


def test_d_over_c_changes_no_row_of_no_group(tmp_path: Path) -> None:
    product = make_of(parse_spec(VARIANTS["swap-AB"], "rows"))
    (tmp_path / "rows.py").write_text(product.module, encoding="utf-8")
    simulated = Simulated(product, tmp_path / "rows.py")
    problem = product.source.problem
    inputs = integer_inputs((72, 136, 128), problem, torch.Generator().manual_seed(1))
    c, expected = inputs.extras["c"], reference(inputs, problem)
    claimed = torch.zeros(16 * 72, dtype=torch.bool)
    for first, end in bounds(problem, 72, inputs.extras["rows"], 16):
        claimed[first:end] = True
    assert 0 < claimed.sum() < 16 * 72
    rows = c.flatten(0, 1)
    rows[~claimed] = float("nan")
    simulated(inputs.a, inputs.b, **inputs.extras, out=c)
    assert torch.equal(rows[claimed], expected.to(c.dtype))
    assert rows[~claimed].isnan().all()


# --- the function


def test_c_has_a_dimension_for_groups(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(500, 304).T, cuda(500, 640), cuda(5, dtype=INT)
    sums = cuda(5, 304, 640, dtype=FP32)
    assert module.matmul(a, b, c=sums, offs=offs, out=sums) is sums
    ((_, _, arguments),) = driver.jit
    c, d = arguments[2], arguments[4]
    assert ([*c.shape], [*d.shape]) == ([5, 304, 640], [5 * 304 + 1, 128, 640])
    assert c.block_shape == d.block_shape == [1, 128, 32]
    # TMA reads at the base of a descriptor for loads: only one for stores may lie ahead of its tensor.
    assert c.base.data_ptr() == sums.data_ptr() == d.base.data_ptr() + 128 * 640 * 4


def test_a_c_of_padded_rows_is_taken(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(64, 40).T, cuda(64, 56)[:, :50], cuda(3, dtype=INT)
    sums = module.matmul(a, b, c=cuda(3, 40, 52, dtype=FP32)[..., :50], offs=offs)
    assert sums.stride() == (40 * 52, 52, 1)
    assert module.matmul(a, b, c=sums, offs=offs).shape == (3, 40, 50)
    assert (len(driver.jit), len(driver.direct)) == (1, 1)


WRONG = {
    "a C of one group": (cuda(40, 56, dtype=FP32), "c", "shape [40, 56]"),
    "a C of other groups": (cuda(4, 40, 56, dtype=FP32), "offs", "[3]"),
    "another type": (cuda(3, 40, 56), "c", "torch.bfloat16"),
    "gaps between groups": (cuda(3, 48, 56, dtype=FP32)[:, :40], "c", "2688"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_c_is_refused(case: str, module: ModuleType, driver: FakeDriver) -> None:
    c, name, found = WRONG[case]
    given = {"a": cuda(64, 40).T, "b": cuda(64, 56), "c": c, "offs": cuda(3, dtype=INT)}
    assert_refused(module, driver, given, name, found)


def test_an_out_that_overlaps_c_elsewhere_is_refused(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(64, 40).T, cuda(64, 56), cuda(3, dtype=INT)
    memory = cuda(4, 40, 56, dtype=FP32)
    with pytest.raises(ValueError, match=r"^out must share no memory with c"):
        module.matmul(a, b, c=memory[:3], offs=offs, out=memory[1:])
    assert driver.jit == []


def test_without_k_the_kernel_copies_c(module: ModuleType, driver: FakeDriver) -> None:
    module.matmul(cuda(0, 40).T, cuda(0, 56), c=cuda(3, 40, 56, dtype=FP32), offs=cuda(3, dtype=INT))
    assert len(driver.jit) == 1


# --- a GPU


@pytest.mark.gpu
@every_spec
def test_every_check_of_a_module_passes_on_a_gpu(stem: str) -> None:
    assert_verified_on_a_gpu(stem)


@pytest.mark.gpu
def test_gradients_are_accumulated_over_micro_batches_on_a_gpu() -> None:
    module = import_generated(module_file(WGRAD))
    sums = torch.zeros(8, 264, 328, device="cuda")
    expected = torch.zeros(8, 264, 328, device="cuda", dtype=torch.float64)
    for seed in range(4):
        drawn = torch.Generator("cuda").manual_seed(seed)
        dy = torch.randn(400, 264, device="cuda", dtype=BF16, generator=drawn)
        x = torch.randn(400, 328, device="cuda", dtype=BF16, generator=drawn)
        offs = torch.randint(0, 401, (8,), device="cuda", generator=drawn).sort().values.to(INT)
        assert module.matmul(dy.T, x, c=sums, offs=offs, out=sums) is sums
        problem = made(spec_file(WGRAD)).source.problem
        for group, (first, end) in enumerate(bounds(problem, 400, offs, 8)):
            expected[group] += dy[first:end].T.double() @ x[first:end].double()
    assert torch.allclose(sums.double(), expected, atol=1e-2, rtol=1e-4)


@pytest.mark.gpu
def test_the_numbers_are_those_of_torchs_baddbmm() -> None:
    module = import_generated(module_file(BATCHED))
    a = torch.randn(16, 200, 256, device="cuda", dtype=BF16)
    b = torch.randn(16, 256, 384, device="cuda", dtype=BF16)
    c = torch.randn(16, 200, 384, device="cuda", dtype=BF16)
    theirs = torch.baddbmm(c, a, b, beta=2.0, alpha=0.5)
    assert torch.allclose(module.matmul(a, b, c=c).float(), theirs.float(), atol=0.25, rtol=0.02)
