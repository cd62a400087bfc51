"""Gated matmuls: two sums for each element of D, from a B of two blocks of columns, or of columns in turn."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from drawn import random_inputs
from fake_gpu import cuda, on_a_fake_gpu
from fake_triton import FakeDriver, assert_refused, on_a_fake_driver
from hopper import hopper
from modules import EVERY_SPEC, GROUPED_SPECS, made, module_file, spec_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gemmgen.bench.baseline import cublas
from gemmgen.build import lowered_of
from gemmgen.errors import GemmgenError
from gemmgen.module import import_generated
from gemmgen.numerics.evaluation import sums_of
from gemmgen.numerics.reference import deviation, reference, tolerance
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.search.estimates import dram_bytes
from gemmgen.plan.wgmma.cost import estimate
from gemmgen.planner import plan_spec, rank
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.observation import Observation
from gemmgen.spec import SpecFile, parse_spec
from gemmgen.verify.shapes import acceptance_shapes, refuse_extents

pytest_plugins = ["fake_calls"]

STEM = "h100_bf16_gated"
CALLED = STEM
INTERLEAVED = "h100_bf16_gated_interleaved"
CHANNELS = "h100_e4m3_gated_channels"
GPT_OSS = "h100_bf16_gptoss_gated"
BY_COLUMNS = "h100_bf16_gated_nn"
STEMS = sorted(path.stem for path in EVERY_SPEC if "_gated" in path.stem and path not in GROUPED_SPECS)
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


# --- the plan


@pytest.mark.parametrize("stem", STEMS)
def test_a_tile_of_d_is_half_as_wide_as_its_tile_of_b(stem: str) -> None:
    plan = hopper(made(spec_file(stem)).plan)
    assert plan.loaded_n == 2 * plan.program_tile_n == plan.cta_tile_n * plan.cluster_n
    assert plan.accumulator_elements * plan.consumer_warps * 32 == plan.cta_consumer_tile_m * plan.cta_tile_n
    assert plan.subtiles * plan.subtile_n * plan.cluster_n == plan.program_tile_n
    m, n, _ = 1000, 1000, 64
    assert plan.tiles((m, n, 64)) == (-(-m // plan.program_tile_m), -(-n // (plan.loaded_n // 2)))


def test_a_stage_has_the_bytes_of_the_plain_kernel_and_loads_b_twice() -> None:
    gated, plain = (hopper(made(spec_file(stem)).plan) for stem in (STEM, "h100_bf16"))
    assert gated.stage_bytes == plain.stage_bytes
    assert gated.stage.awaited_bytes == plain.stage.awaited_bytes
    assert (gated.loads("b"), plain.loads("b")) == (2, 1)
    # One number more reaches the producer, N; the tile of D is as wide as a sub-tile of the plain kernel's.
    assert 0 < gated.shared_memory.capture_bytes - plain.shared_memory.capture_bytes <= 16


def test_a_plan_tells_columns_of_b_from_columns_of_d() -> None:
    tile = {entry.name: entry for entry in hopper(made(spec_file(STEM)).plan).summary}["CTA tile n"]
    assert (tile.amount, tile.unit) == (256, "columns")
    assert tile.derivation == "of B for 128 of D, stored 128 at a time"


def test_bytes_and_operations_are_of_both_blocks() -> None:
    problem, shape = made(spec_file(STEM)).source.problem, (128, 64, 32)
    least = 2 * (128 * 32 + 2 * 64 * 32 + 128 * 64)
    assert dram_bytes(problem, shape) == Dtypes.of(problem).moved_bytes(shape) == least
    assert Dtypes.of(problem).flops(shape) == 2 * 128 * 128 * 32
    assert Observation(shape, STEM, 1.0, 2.0, operations=problem.flops(shape)).flops == 2 * 128 * 128 * 32


def test_interleaved_columns_are_loaded_by_one_box() -> None:
    in_turn, blocks = (hopper(made(spec_file(stem)).plan) for stem in (INTERLEAVED, STEM))
    assert in_turn.stage_bytes == blocks.stage_bytes
    assert (in_turn.loads("b"), blocks.loads("b")) == (1, 2)
    # The producer needs no N, which is where the second block begins: one captured value less.
    assert blocks.shared_memory.capture_bytes - in_turn.shared_memory.capture_bytes == 4


@pytest.mark.parametrize("stem", STEMS)
def test_no_sum_leaves_its_thread(stem: str) -> None:
    """A conversion of layouts takes shared memory that no plan has, or values of any thread of the warp."""
    product = made(spec_file(stem))
    lowered = lowered_of(product)
    assert lowered.resources.smem_bytes == product.plan.smem_bytes
    text, plan = lowered.artifacts["ptx"].decode(), hopper(product.plan)
    uniform = re.findall(r"shfl\.sync\.idx\.b32 \t%r\d+, %r\d+, 0, 31, -1;", text)
    # The four lanes that have a row of a scaled D find its largest number in two exchanges.
    rows = plan.consumers * plan.cta_consumer_tile_m // (8 * plan.default_warps)
    exchanges = 2 * rows * plan.subtiles * (product.source.problem.d_scale is not None)
    assert text.count("shfl.sync.bfly") == exchanges
    assert text.count("shfl.sync") == len(uniform) + exchanges
    if product.source.problem.parted_vectors and product.source.problem.interleaved:
        return  # the conversions of a vector's elements are asserted to move nothing
    assert b"convert_layout" not in lowered.artifacts["ttgir"]


OPEN = """title: a problem without a kernel
target: h200
operands: {{a: {{dtype: bf16}}, b: {{dtype: bf16}}, d: {{dtype: bf16}}}}
{epilogue}problem: {{m: {m}, n: {n}, k: 4096}}
"""
GATE = "epilogue: {accumulators: [gate, up], d: silu(gate) * up}\n"


def opened(m: int, n: int, epilogue: str = "") -> SpecFile:
    return parse_spec(OPEN.format(m=m, n=n, epilogue=epilogue).encode(), "open")


@pytest.mark.parametrize(("m", "n"), [(8192, 6144), (2048, 14336), (8192, 1536)])
def test_a_gate_gets_the_tile_of_twice_the_columns_and_stores_half_of_them(m: int, n: int) -> None:
    gated, plain = (hopper(plan_spec(found)) for found in (opened(m, n, GATE), opened(m, 2 * n)))
    for name in (
        "cta_tile_m",
        "cta_tile_n",
        "cta_tile_k",
        "stages",
        "specialization",
        "cluster_size",
        "outstanding_mmas",
    ):
        assert getattr(gated, name) == getattr(plain, name)
    ours, others = estimate(gated, (m, n, 4096)), estimate(plain, (m, 2 * n, 4096))
    assert others.dram_bytes - ours.dram_bytes == 2 * m * n
    assert ours.l2_bytes == others.l2_bytes
    assert ours.terms["tensor cores"] == others.terms["tensor cores"]
    assert 0.98 * others.seconds < ours.seconds < others.seconds


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("m", "n", "tried"), [(16, 6144, True), (64, 14336, True), (512, 4096, True), (512, 8192, False)]
)
def test_a_gate_of_few_rows_is_tried_without_roles_as_swap_ab_is_excluded(
    m: int, n: int, tried: bool
) -> None:
    plans = [hopper(found.plan) for found in rank(opened(m, n, GATE)).to_measure(400)]
    assert any(not plan.specialized for plan in plans) == tried
    assert not any(plan.swap_ab for plan in plans)
    # A wave of the plain problem of twice the columns has as many sums.
    others = [hopper(found.plan) for found in rank(opened(m, 2 * n)).to_measure(400)]
    assert m <= 64 or any(not plan.specialized for plan in others) == tried


def test_few_rows_are_told_the_fewest_that_a_kernel_takes() -> None:
    """Of kernels without roles, the ones with eight warps would take 128."""
    source = opened(16, 6144, "tile: {m: 32}\n" + GATE)
    with pytest.raises(GemmgenError) as refused:
        plan_spec(source)
    (found,) = refused.value.diagnostics
    assert (found.code, found.field, found.advice) == ("consumer-rows", "tile.m", (("tile.m", 64),))


# --- numbers


def test_the_reference_splits_the_columns_of_b() -> None:
    problem = made(spec_file(STEM)).source.problem
    inputs = random_inputs((24, 40, 64), problem, torch.Generator().manual_seed(3))
    assert inputs.shape == (24, 40, 64)
    assert inputs.b.shape == (64, 80)
    gate, up = (inputs.a.double() @ inputs.b.double()).chunk(2, 1)
    assert torch.equal(reference(inputs, problem), torch.nn.functional.silu(gate) * up)


def test_the_reference_takes_interleaved_columns_in_turn() -> None:
    problem = made(spec_file(INTERLEAVED)).source.problem
    inputs = random_inputs((24, 40, 64), problem, torch.Generator().manual_seed(3))
    product = inputs.a.double() @ inputs.b.double()
    expected = torch.nn.functional.silu(product[:, ::2]) * product[:, 1::2]
    assert torch.equal(reference(inputs, problem), expected)


def test_blocks_and_interleaved_columns_are_two_problems() -> None:
    first, second = (made(spec_file(stem)).source.problem for stem in (STEM, INTERLEAVED))
    assert first.key != second.key
    assert replace(second, epilogue=first.epilogue) == first


@pytest.mark.parametrize("stem", [STEM, INTERLEAVED])
def test_swapped_accumulators_are_found(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((64, 64, 64), problem, torch.Generator().manual_seed(3))
    gate, up = sums_of(inputs.a.double() @ inputs.b.double(), problem.epilogue).values()
    limit = tolerance(problem, inputs.shape, None).relative
    for first, second, is_right in ((gate, up, True), (up, gate, False)):
        d = (torch.nn.functional.silu(first) * second).bfloat16()
        assert (deviation(d, inputs, problem).relative <= limit) == is_right


def test_the_baseline_computes_the_gate_by_kernels_of_its_own() -> None:
    source = made(spec_file(STEM)).source
    inputs = random_inputs((24, 40, 64), source.problem, torch.Generator().manual_seed(3))
    baseline = cublas(source)
    assert "unfused" in baseline.text
    found = baseline.bind(inputs, torch.empty(24, 40, dtype=BF16))()
    gate, up = (inputs.a @ inputs.b).chunk(2, 1)
    assert torch.equal(found, torch.nn.functional.silu(gate) * up)


def test_the_baseline_takes_interleaved_columns_in_turn() -> None:
    source = made(spec_file(INTERLEAVED)).source
    inputs = random_inputs((24, 40, 64), source.problem, torch.Generator().manual_seed(3))
    baseline = cublas(source)
    assert "unfused: gate, up = d[:, 0::2], d[:, 1::2]; d = torch" in baseline.text
    found = baseline.bind(inputs, torch.empty(24, 40, dtype=BF16))()
    product = inputs.a @ inputs.b
    assert torch.equal(found, torch.nn.functional.silu(product[:, ::2]) * product[:, 1::2])


# --- C


def test_c_is_added_to_the_product_of_both_sums() -> None:
    product = made(spec_file("h100_bf16_gated_residual"))
    problem = product.source.problem
    inputs = random_inputs((24, 40, 64), problem, torch.Generator().manual_seed(3))
    assert inputs.extras["c"].shape == (24, 40)
    gate, up = (inputs.a.double() @ inputs.b.double()).chunk(2, 1)
    expected = torch.nn.functional.silu(gate) * up + inputs.extras["c"].double()
    assert torch.equal(reference(inputs, problem), expected)
    plan = hopper(product.plan)
    held = [buffer.bytes for buffer in plan.shared_buffers if buffer.tensor == "c"]
    assert held == [plan.cta_consumer_tile_m * plan.cta_columns * 2] * plan.consumers


# --- a B that is contiguous along N


@pytest.mark.parametrize("tile_n", [32, 64, 128, 256])
def test_blocks_of_an_n_contiguous_b_are_swizzled_by_their_own_rows(tile_n: int) -> None:
    text = spec_file(BY_COLUMNS).read_text().replace("n: 256", f"n: {tile_n}")
    plan = hopper(plan_spec(parse_spec(text.encode(), "narrow")))
    assert plan.b_swizzle_bytes == min(128, tile_n // 2 * 2)


def test_a_b_by_columns_is_taken_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_generated(module_file(BY_COLUMNS))
    monkeypatch.setitem(sys.modules, BY_COLUMNS, module)
    on_a_fake_gpu(monkeypatch)
    driver = on_a_fake_driver(module, monkeypatch)
    driver.make_context(0)
    assert module.matmul(cuda(256, 64), cuda(64, 592)).shape == (256, 296)
    ((_, _, arguments),) = driver.jit
    assert ([*arguments[1].shape], arguments[1].block_shape) == ([64, 592], [64, 128])
    with pytest.raises(ValueError, match=r"^N must be a multiple of 8, found 300$"):
        module.matmul(cuda(256, 64), cuda(64, 600))
    with pytest.raises(ValueError, match="pass"):
        module.matmul(cuda(256, 64), cuda(592, 64).T)
    assert len(driver.jit) == 1


# --- column operands


@pytest.mark.parametrize(
    ("stem", "vector", "size", "count"),
    [(CHANNELS, "column_scale", 2 * 128 * 4, 2), (GPT_OSS, "column_bias", 2 * 128 * 2, 1)],
)
def test_a_column_operand_has_an_element_for_each_column_of_b(
    stem: str, vector: str, size: int, count: int
) -> None:
    product = made(spec_file(stem))
    problem, buffers = product.source.problem, product.plan.shared_buffers
    assert problem.parted_vectors == (vector,)
    assert {buffer.bytes for buffer in buffers if buffer.tensor == vector} == {size}
    assert (
        product.module.count(f"tma.async_load(args.{vector}_desc,")
        + product.module.count(f"tma.async_load(\n        args.{vector}_desc,")
        == count
    )
    inputs = random_inputs((24, 40, 64), problem, torch.Generator().manual_seed(3))
    assert inputs.extras[vector].shape == (80,)


def test_each_accumulator_has_its_own_elements() -> None:
    problem = made(spec_file(CHANNELS)).source.problem
    inputs = random_inputs((24, 40, 64), problem, torch.Generator().manual_seed(3))
    rows, columns = (inputs.extras[name].double() for name in ("row_scale", "column_scale"))
    gate, up = (inputs.a.double() @ inputs.b.double() * rows[:, None] * columns).chunk(2, 1)
    torch.testing.assert_close(reference(inputs, problem), torch.nn.functional.silu(gate) * up)


def test_the_gate_of_gpt_oss_is_that_of_its_model() -> None:
    problem = made(spec_file(GPT_OSS)).source.problem
    inputs = random_inputs((64, 64, 64), problem, torch.Generator().manual_seed(3))
    sums = inputs.a.double() @ inputs.b.double() + inputs.extras["column_bias"].double()
    gate, up = sums[:, ::2], sums[:, 1::2]
    for limited in (gate > 7, up > 7, up < -7):  # inputs that no limit changes would show nothing
        assert limited.double().mean() > 0.02
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    expected = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    torch.testing.assert_close(reference(inputs, problem), expected)


def test_the_baseline_names_the_elements_of_each_accumulator() -> None:
    in_turn, blocks = (cublas(made(spec_file(stem)).source).text for stem in (GPT_OSS, CHANNELS))
    assert "gate + column_bias[0::2]" in in_turn
    assert "up + column_bias[1::2]" in in_turn
    assert "gate * row_scale[:, None] * column_scale.chunk(2)[0]" in blocks
    assert "up * row_scale[:, None] * column_scale.chunk(2)[1]" in blocks


def test_the_second_block_of_a_vector_begins_where_tma_can_read() -> None:
    wanted = {STEM: 1, CHANNELS: 4, GPT_OSS: 1, BY_COLUMNS: 8}
    assert {stem: TensorAccess(made(spec_file(stem)).source.problem).n_multiple for stem in wanted} == wanted
    source = made(spec_file(CHANNELS)).source
    assert all(n % 4 == 0 for _, n, _ in acceptance_shapes(source))
    with pytest.raises(GemmgenError, match="N must be a multiple of 4 with these operands, found 16x18x64"):
        refuse_extents(source.problem, [(16, 20, 64), (16, 18, 64)])


def test_columns_that_share_a_scale_are_of_one_accumulator_whose_sums_are_saved() -> None:
    text = spec_file("h100_e4m3_blockwise_gated").read_text(encoding="utf-8")
    saved = text.replace("d: silu(gate) * up}", "d: silu(gate) * up, save: [gate, up]}")
    access = TensorAccess(parse_spec(saved.encode(), "t").problem)
    assert (saved != text, access.n_multiple, access.n_unit) == (True, 128, "scales of B")


def test_an_n_between_places_of_tma_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_generated(module_file(CHANNELS))
    monkeypatch.setitem(sys.modules, CHANNELS, module)
    on_a_fake_gpu(monkeypatch)
    driver = on_a_fake_driver(module, monkeypatch)
    driver.make_context(0)
    for n in (20, 18):
        a, b = cuda(16, 64, dtype=E4M3), cuda(2 * n, 64, dtype=E4M3).T
        scales = {
            "row_scale": cuda(16, dtype=torch.float32),
            "column_scale": cuda(2 * n, dtype=torch.float32),
        }
        if n % 4 == 0:
            assert module.matmul(a, b, **scales).shape == (16, n)
            continue
        with pytest.raises(ValueError, match=r"^N must be a multiple of 4, found 18$"):
            module.matmul(a, b, **scales)
    assert len(driver.jit) == 1


# --- the function


def test_b_is_described_by_rows_of_both_blocks_in_boxes_of_one(
    module: ModuleType, driver: FakeDriver
) -> None:
    a, weight = cuda(256, 64), cuda(600, 64)
    d = module.matmul(a, weight.T)
    assert d.shape == (256, 300)
    ((programs, _, arguments),) = driver.jit
    assert programs == (2 * 3, 1, 1)
    assert [([*each.shape], each.block_shape) for each in arguments] == [
        ([256, 64], [64, 64]),
        ([600, 64], [128, 64]),
        ([256, 300], [64, 128]),
    ]


WRONG: dict[str, tuple[tuple[int, int], tuple[int, int] | None, str, str]] = {
    "odd columns": ((65, 64), None, "b", "65"),
    "out as wide as b": ((64, 64), (16, 64), "out", "[16, 64]"),
    "another k": ((64, 72), None, "b", "[72, 64]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_b_or_out_is_named_before_anything_is_launched(
    case: str, module: ModuleType, driver: FakeDriver
) -> None:
    weight, out, name, found = WRONG[case]
    given = {"a": cuda(16, 64), "b": cuda(*weight).T}
    assert_refused(module, driver, given | ({"out": cuda(*out)} if out else {}), name, found)


def test_a_b_by_columns_is_named(module: ModuleType, driver: FakeDriver) -> None:
    with pytest.raises(ValueError, match=r"pass weight\.T of a weight \[2N, K\]"):
        module.matmul(cuda(16, 64), cuda(64, 128))
    assert driver.jit == []


def test_a_merged_weight_is_taken(module: ModuleType, driver: FakeDriver) -> None:
    a, weight, out = cuda(16, 64), cuda(64, 64), cuda(16, 32)
    assert module.matmul(a, weight.T, out=out) is out
    assert len(driver.jit) == 1


def test_operations_are_counted_for_both_blocks(module: ModuleType) -> None:
    a = torch.empty(4, 64, dtype=BF16, device="meta")
    b = torch.empty(64, 64, dtype=BF16, device="meta").T
    with FlopCounterMode(display=False) as counter:
        assert module.matmul(a, b).shape == (4, 32)
    assert counter.get_total_flops() == 2 * 4 * 64 * 64


def test_a_model_is_compiled_for_any_rows(module: ModuleType) -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(128, 64, dtype=BF16), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return module.matmul(x, self.weight.T)

    with torch.device("meta"):
        model, x = Gated(), torch.empty(100, 64, dtype=BF16)
    dynamo: Any = cast(Any, torch)._dynamo
    dynamo.reset()
    dynamo.mark_dynamic(x, 0)
    compiled = cast(Any, torch).compile(model, fullgraph=True, backend="eager")
    for rows in (100, 3):
        assert compiled(x[:rows]).shape == (rows, 64)
