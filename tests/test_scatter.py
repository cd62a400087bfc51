"""Rows of D that a kernel of groups stores by an index: their places, the checks of a call, and the code."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from drawn import integer_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, assert_refused
from modules import made, module_file, spec_file
from simulated import Simulated

from gemmgen.lower import lower
from gemmgen.module import import_generated
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Matrix, touched
from gemmgen.numerics.reference import reference
from gemmgen.product import make_of
from gemmgen.spec.load import parse_spec
from gemmgen.verify.launches import all_launches
from gemmgen.verify.simulation import simulate_product

pytest_plugins = ["fake_calls"]

PLAIN, ROWS16, WEIGHTED = (f"h100_bf16_scatter{name}" for name in ("", "_rows16", "_weighted"))
CALLED = PLAIN
STEMS = [PLAIN, ROWS16, WEIGHTED]
BF16, INT = torch.bfloat16, torch.int32
every_spec = pytest.mark.parametrize("stem", STEMS)


# --- the kernel


@every_spec
def test_threads_store_sixteen_bytes_of_a_row_and_tma_stores_none(stem: str) -> None:
    product = made(spec_file(stem))
    ptx = lower(product.module, product.plan, path=stem, stem=stem).artifacts["ptx"].decode()
    stores = [line for line in ptx.splitlines() if "st.global" in line]
    assert stores
    assert all("st.global.v4.b32" in line for line in stores)
    assert "global.shared::cta" not in ptx.replace("shared::cta.global", "")
    assert "fence.proxy.async" not in ptx


def scattered(stem: str, d_rows: list[int], height: int, offs: list[int]) -> tuple[Inputs, Matrix]:
    """Run a kernel of 32 groups on rows with an index; return its inputs, and the memory of D."""
    simulated = Simulated.of(stem)
    problem = simulated.problem
    inputs = integer_inputs((len(d_rows), 136, 200), problem, torch.Generator().manual_seed(1))
    inputs.extras["offs"].copy_(torch.tensor(offs + offs[-1:] * (32 - len(offs)), dtype=INT))
    inputs.extras["d_rows"].copy_(torch.tensor(d_rows, dtype=INT))
    out = Matrix.poisoned(height, 136, "bf16", torch.device("cpu"), guarded=True)
    simulated(inputs.a, inputs.b, out=out.view, **inputs.extras)
    return inputs, out


@pytest.mark.parametrize("stem", [PLAIN, ROWS16])
def test_d_has_rows_of_its_own_and_those_without_an_index_stay_as_they_are(stem: str) -> None:
    d_rows = [3 * row % 101 for row in range(70)]
    inputs, out = scattered(stem, d_rows, 101, [5, 5, 40, 65])
    problem = made(spec_file(stem)).source.problem
    assert torch.equal(out.view[d_rows[:65]].double(), reference(inputs, problem))
    assert out.written == 65 * 136  # the last five rows are of no group


@pytest.mark.parametrize("stem", [PLAIN, ROWS16])
def test_rows_with_an_index_outside_of_d_are_dropped(stem: str) -> None:
    d_rows = [-1, 9, 10, 1 << 30, -(1 << 31), *range(5)]
    inputs, out = scattered(stem, d_rows, 10, [4, 10])
    problem = made(spec_file(stem)).source.problem
    kept = [row for row, place in enumerate(d_rows) if 0 <= place < 10]
    found = out.view[[d_rows[row] for row in kept]]
    assert torch.equal(found.double(), reference(inputs, problem)[kept])
    assert out.written_outside == 0
    assert touched(out.view) == len(kept) * 136


OPEN = """\
title: open
target: h100
operands:
  a: {{dtype: bf16}}
  b: {{dtype: bf16, major: {major}}}
  d: {{dtype: {dtype}}}
groups: {{kind: m_offsets, count: 8, d_rows: true}}
problem: {{m: 2048, n: 256, k: 512}}
{more}
"""


@pytest.mark.parametrize(
    ("more", "major", "dtype"),
    [
        ("epilogue: {accumulators: [gate, up], d: silu(gate) * up}", "k", "bf16"),
        ("epilogue: {ops: [column_bias]}", "mn", "bf16"),
        ("", "k", "fp32"),
        ("tile: {m: 128, n: 192, k: 64}", "k", "fp16"),
        ("tile: {m: 192, n: 128, k: 64}\nwarp_specialization: {consumers: 3}", "k", "bf16"),
    ],
)
def test_other_specs_are_planned_and_clean_in_the_simulator(more: str, major: str, dtype: str) -> None:
    operand = "fp16" if dtype == "fp16" else "bf16"
    text = OPEN.format(more=more, major=major, dtype=dtype).replace("bf16}\n", f"{operand}}}\n", 1)
    product = make_of(parse_spec(text.replace("b: {dtype: bf16", f"b: {{dtype: {operand}").encode(), "open"))
    assert product.plan.epilogue_buffers == 1
    assert simulate_product(product, all_launches(product.plan, 1)).problems == ()


# --- the function


def call(**changed: Any) -> dict[str, Any]:
    """Return the tensors of a call by name: 16 rows of A, five groups, an N of 32."""
    b, offs, d_rows = cuda(5, 32, 64).mT, cuda(5, dtype=INT), cuda(16, dtype=INT)
    return {"a": cuda(16, 64), "b": b, "offs": offs, "d_rows": d_rows, **changed}


def test_d_is_described_by_its_extents_and_passed_by_its_address(
    module: ModuleType, driver: FakeDriver
) -> None:
    out = cuda(50, 40)[:, :32]
    assert module.matmul(**call(), out=out) is out
    ((programs, _, arguments),) = driver.jit
    assert programs == (5, 1, 1)  # 16 rows are in at most five tiles, one for each group
    assert arguments[3] is not None
    assert ([*arguments[4].shape], arguments[4].strides) == ([50, 32], (40, 1))
    assert arguments[5].data_ptr() == out.data_ptr()


def test_without_an_out_d_has_the_rows_of_a(module: ModuleType, driver: FakeDriver) -> None:
    assert module.matmul(**call()).shape == (16, 32)
    d = module.matmul(**call(b=cuda(5, 30, 64).mT))
    assert (d.shape, d.stride()) == ((16, 30), (32, 1))
    assert len(driver.jit) == 2


def test_a_known_call_with_another_height_of_d_is_checked_again(
    module: ModuleType, driver: FakeDriver
) -> None:
    given, memory = call(), cuda(50, 32)
    for out in (memory, memory, memory[:20]):
        module.matmul(**given, out=out)
    assert [[*arguments[4].shape] for _, _, arguments in driver.jit] == [[50, 32], [20, 32]]


@pytest.mark.parametrize(("m", "height"), [(0, 16), (16, 0)])
def test_nothing_is_launched_or_written_if_no_row_is_stored(
    module: ModuleType, driver: FakeDriver, m: int, height: int
) -> None:
    out = cuda(height, 32)
    out.fill_(7)
    assert module.matmul(**call(a=cuda(m, 64), d_rows=cuda(m, dtype=INT)), out=out) is out
    assert bool((out == 7).all())
    assert driver.jit == []


WRONG = {
    "an index of int64": (call(d_rows=cuda(16, dtype=torch.int64)), "d_rows", "torch.int64"),
    "an index on the CPU": (call(d_rows=torch.zeros(16, dtype=INT)), "d_rows", "cpu"),
    "an index of other rows": (call(d_rows=cuda(15, dtype=INT)), "d_rows", "[15]"),
    "an index with gaps": (call(d_rows=cuda(32, dtype=INT)[::2]), "d_rows", "strides (2,)"),
    "an A of three dimensions": (call(a=cuda(2, 8, 64)), "a", "shape [2, 8, 64]"),
    "a D of other columns": (call(out=cuda(50, 40)), "out", "[50, 40]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor_is_named_before_anything_is_launched(
    case: str, module: ModuleType, driver: FakeDriver
) -> None:
    assert_refused(module, driver, *WRONG[case])


# --- a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("stem", [PLAIN, ROWS16])
def test_rows_of_d_have_the_bits_of_a_product_and_a_copy(stem: str) -> None:
    grouped = {PLAIN: "h100_bf16_grouped", ROWS16: "h100_bf16_grouped_rows16"}[stem]
    scattering, plain = import_generated(module_file(stem)), import_generated(module_file(grouped))
    m, height = 1000, 1500
    a = torch.randn(m, 512, device="cuda").to(BF16)
    b = torch.randn(32, 384, 512, device="cuda").to(BF16).mT
    offs = torch.randint(0, m, (32,), device="cuda").sort().values.to(INT)
    d_rows = torch.randperm(height, device="cuda")[:m].to(INT)
    out, wanted = (torch.full((height, 384), 7.0, device="cuda", dtype=BF16) for _ in range(2))
    kept = int(offs[-1])
    wanted[d_rows[:kept].long()] = plain.matmul(a, b, offs=offs)[:kept]
    for _ in range(3):
        assert scattering.matmul(a, b, offs=offs, d_rows=d_rows, out=out) is out
        assert torch.equal(out, wanted)
