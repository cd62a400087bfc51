"""Rows of A that a kernel of groups copies by an index: their places, the checks of a call, and the code."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from drawn import integer_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, assert_refused
from hopper import hopper
from modules import made, module_file, spec_file
from simulated import Simulated
from torch import Tensor

from gemmgen.lower import lower
from gemmgen.module import import_generated
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import reference
from gemmgen.product import make_of
from gemmgen.spec.load import parse_spec
from gemmgen.verify.launches import all_launches
from gemmgen.verify.simulation import simulate_product

pytest_plugins = ["fake_calls"]

PLAIN, ROWS16, GATED = (f"h100_bf16_gather{name}" for name in ("", "_rows16", "_gated"))
CALLED = PLAIN
STEMS = [PLAIN, ROWS16, GATED]
BF16, INT = torch.bfloat16, torch.int32
every_spec = pytest.mark.parametrize("stem", STEMS)


# --- the kernel


@pytest.mark.sample(1)
@every_spec
def test_threads_copy_sixteen_bytes_at_a_time_and_all_arrive(stem: str) -> None:
    product = made(spec_file(stem))
    ptx = lower(product.module, product.plan, path=stem, stem=stem).artifacts["ptx"].decode()
    copies = [line for line in ptx.splitlines() if "cp.async.c" in line]
    assert copies
    assert all("cp.async.cg.shared.global" in line and " 0x10," in line for line in copies)
    (arrival,) = (line for line in ptx.splitlines() if "cp.async.mbarrier.arrive.noinc" in line)
    assert "@" not in arrival  # of each thread
    plan = product.plan
    assert [barrier.arrivals for barrier in plan.barriers if barrier.name == "load_ready"] == [129]
    assert [worker.warps for worker in plan.workers][-1] == 4


def gathered(stem: str, a_rows: list[int], height: int, offs: list[int]) -> tuple[Tensor, Inputs]:
    """Run a kernel of 32 groups on some rows of A; return D, in which other rows are NaN, and the inputs."""
    simulated = Simulated.of(stem)
    problem = simulated.problem
    drawn = integer_inputs((max(height, len(a_rows)), 136, 200), problem, torch.Generator().manual_seed(1))
    index = torch.tensor(a_rows, dtype=INT)
    ends = torch.tensor(offs + offs[-1:] * (32 - len(offs)), dtype=INT)
    inputs = Inputs(drawn.a[:height], drawn.b, {"offs": ends, "a_rows": index}, sides=drawn.sides)
    out = torch.full((len(a_rows), 136), float("nan"), dtype=BF16)
    return simulated(inputs.a, inputs.b, out=out, **inputs.extras), inputs


@pytest.mark.parametrize("stem", [PLAIN, ROWS16])
def test_a_row_is_read_several_times_or_never(stem: str) -> None:
    d, inputs = gathered(stem, [row * row % 11 for row in range(90)], 11, [5, 5, 40, 85])
    assert torch.equal(d[:85].double(), reference(inputs, made(spec_file(stem)).source.problem))
    assert bool(d[85:].isnan().all())  # rows of no group


@pytest.mark.parametrize("stem", [PLAIN, ROWS16])
def test_rows_with_an_index_outside_of_a_are_zeros(stem: str) -> None:
    index = [-1, 9, 10, 1 << 30, -(1 << 31), *range(5)]
    d, inputs = gathered(stem, index, 10, [4, 10])
    inside = [0 <= each < 10 for each in index]
    inputs.extras["a_rows"].clamp_(0, 9)
    expected = reference(inputs, made(spec_file(stem)).source.problem) * torch.tensor(inside)[:, None]
    assert torch.equal(d.double(), expected)


OPEN = """\
title: open
target: h100
operands:
  a: {{dtype: {dtype}}}
  b: {{dtype: {dtype}, major: {major}}}
  d: {{dtype: bf16}}
groups: {{kind: m_offsets, count: 8, a_rows: true}}
problem: {{m: {m}, n: 256, k: 512}}
{more}
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("more", "major", "dtype", "m"),
    [
        ("epilogue: {accumulators: [gate, up], d: silu(gate) * up, columns: interleaved}", "k", "bf16", 2048),
        ("epilogue: {ops: [column_bias, row_scale]}", "mn", "bf16", 2048),
        ("epilogue: {ops: [row_scale, column_scale]}", "k", "e4m3", 64),
        ("warp_specialization: {kind: ping_pong}", "k", "bf16", 2048),
        ("tile: {m: 128, n: 192, k: 64}", "k", "bf16", 2048),
        ("tile: {m: 192, n: 128, k: 64}\nwarp_specialization: {consumers: 3}", "k", "bf16", 2048),
        ("dependent_launch: {early: nothing}", "k", "bf16", 2048),
    ],
)
def test_other_specs_are_planned_and_clean_in_the_simulator(
    more: str, major: str, dtype: str, m: int
) -> None:
    text = OPEN.format(more=more, major=major, dtype=dtype, m=m)
    product = make_of(parse_spec(text.encode(), "open"))
    assert simulate_product(product, all_launches(product.plan, 1)).problems == ()


def test_a_producer_has_registers_for_the_copies_of_a_tall_tile() -> None:
    text = OPEN.format(more="tile: {m: 256, n: 128, k: 64}", major="k", dtype="bf16", m=65536)
    product = make_of(parse_spec(text.encode(), "open"))
    assert hopper(product.plan).producer_registers == 64  # of 56 the compiler spills some
    assert lower(product.module, product.plan, path="open", stem="open").resources.spilled_bytes == 0


# --- the function


def call(**changed: Any) -> dict[str, Any]:
    """Return the tensors of a call by name: 16 rows of D of seven of A, five groups, an N of 32."""
    b, offs, a_rows = cuda(5, 32, 64).mT, cuda(5, dtype=INT), cuda(16, dtype=INT)
    return {"a": cuda(7, 64), "b": b, "offs": offs, "a_rows": a_rows, **changed}


def test_a_is_described_by_its_extents_and_passed_by_its_address(
    module: ModuleType, driver: FakeDriver
) -> None:
    given, out = call(a=cuda(7, 80)[:, :64]), cuda(16, 32)
    assert module.matmul(**given, out=out) is out
    assert module.matmul(**given).shape == (16, 32)
    assert len(driver.jit) == 2
    for programs, _, arguments in driver.jit:
        assert programs == (5, 1, 1)  # 16 rows are in at most five tiles, one for each group
        assert ([*arguments[0].shape], arguments[0].strides) == ([7, 64], (80, 1))
        assert arguments[2].data_ptr() == given["a"].data_ptr()
        assert arguments[4].data_ptr() == given["a_rows"].data_ptr()
        assert [*arguments[5].shape] == [17, 16 // 16 * 64, 32]


def test_no_rows_are_no_launch(module: ModuleType, driver: FakeDriver) -> None:
    assert module.matmul(**call(a_rows=cuda(0, dtype=INT))).shape == (0, 32)
    assert module.matmul(**call(a=cuda(0, 64), a_rows=cuda(0, dtype=INT))).shape == (0, 32)
    assert driver.jit == []


WRONG = {
    "an index of int64": (call(a_rows=cuda(16, dtype=torch.int64)), "a_rows", "torch.int64"),
    "an index on the CPU": (call(a_rows=torch.zeros(16, dtype=INT)), "a_rows", "cpu"),
    "an index of two dimensions": (call(a_rows=cuda(4, 4, dtype=INT)), "a_rows", "shape [4, 4]"),
    "an A without rows": (call(a=cuda(0, 64)), "a", "none"),
    "an A of three dimensions": (call(a=cuda(1, 7, 64)), "a", "shape [1, 7, 64]"),
    "a K of half a unit": (
        call(a=cuda(7, 64)[:, :60], b=cuda(5, 32, 64)[..., :60].mT),
        "a and b",
        "60 and 60",
    ),
    "a D of the rows of A": (call(out=cuda(7, 32)), "out", "[7, 32]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor_is_named_before_anything_is_launched(
    case: str, module: ModuleType, driver: FakeDriver
) -> None:
    assert_refused(module, driver, *WRONG[case])


# --- a GPU


@pytest.mark.gpu
@every_spec
def test_d_has_the_bits_of_a_copy_and_a_product(stem: str) -> None:
    gathering = import_generated(module_file(stem))
    plain = import_generated(module_file(stem.replace("gather", "grouped")))
    m, height, n = 3000, 700, 384
    blocks = 2 if stem == GATED else 1
    a = torch.randn(height, 512, device="cuda").to(BF16)
    b = torch.randn(32, blocks * n, 512, device="cuda").to(BF16).mT
    offs = torch.randint(0, m, (32,), device="cuda").sort().values.to(INT)
    a_rows = torch.randint(0, height, (m,), device="cuda").to(INT)
    kept = int(offs[-1])
    wanted = plain.matmul(a[a_rows.long()], b, offs=offs)[:kept]
    for _ in range(20):
        assert torch.equal(gathering.matmul(a, b, offs=offs, a_rows=a_rows)[:kept], wanted)
