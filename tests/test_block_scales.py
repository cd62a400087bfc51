"""fp8 operands with fp32 scales of blocks on Hopper: the plan, the numbers, the wrapper, and the baseline."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from drawn import random_inputs
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from fake_triton import refusal
from hopper import hopper
from modules import EVERY_SPEC, made, module_file, spec_file
from mutants.mutant import launch_of, simulated
from torch import Tensor

from gemmgen.bench.baseline import cublas
from gemmgen.errors import GemmgenError
from gemmgen.features.block_scales.planning import scale_registers
from gemmgen.features.block_scales.torch_scaled import block_scaled_mm, offered
from gemmgen.features.promotion.planning import partial_registers
from gemmgen.hardware import SCALE_FORMATS
from gemmgen.hardware.elements import APPLIED
from gemmgen.module import import_generated
from gemmgen.numerics.case import row_major
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import reference, tolerance
from gemmgen.plan.search.estimates import dram_bytes
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.planner import plan_spec, rank
from gemmgen.spec import SpecFile, parse_spec
from gemmgen.verify.simulation import simulate_product

STEM = "h100_e4m3_blockwise"
COLUMNS = "h100_e4m3_blockwise_wgrad"
SPLIT = "h100_e4m3_blockwise_split4"
IN_FLIGHT = ("h100_e4m3_blockwise_overlapped", "h100_e4m3_blockwise_early")
STEMS = sorted(path.stem for path in EVERY_SPEC if "blockwise" in path.stem)
M, N, K = 37, 272, 400
FP32, E4M3 = torch.float32, torch.float8_e4m3fn
OPEN = """\
title: open
target: h100
operands:
  a: {dtype: e4m3, scale: {format: fp32_1x128}}
  b: {dtype: e4m3, scale: {format: fp32_128x128}}
  d: {dtype: bf16}
problem: {m: %d, n: %d, k: %d}
"""


def source_of(stem: str) -> SpecFile:
    return made(spec_file(stem)).source


def drawn(stem: str, shape: tuple[int, int, int] = (M, N, K)) -> Inputs:
    return random_inputs(shape, source_of(stem).problem, torch.Generator().manual_seed(0))


# --- the plan


@pytest.mark.parametrize("stem", STEMS)
def test_a_step_is_of_whole_blocks_and_their_sums_are_promoted(stem: str) -> None:
    plan = hopper(made(spec_file(stem)).plan)
    assert (plan.cta_tile_k, plan.promote_k) == (128 * plan.step_blocks, 128)
    assert plan.step_blocks == (2 if stem == SPLIT else 1)
    assert plan.outstanding_mmas == (stem in (*IN_FLIGHT, "h100_e4m3_blockwise_quantized"))
    assert source_of(stem).promote_k is None


@pytest.mark.parametrize(("stem", "sums"), [(SPLIT, 8), (IN_FLIGHT[0], 64), (IN_FLIGHT[1], 32)])
def test_two_blocks_have_partial_sums_each(stem: str, sums: int) -> None:
    plan = hopper(made(spec_file(stem)).plan)
    assert (plan.sum_registers, partial_registers(plan)) == (sums, 2 * sums)


def test_a_stage_has_the_scales_of_two_blocks() -> None:
    (of_a,) = hopper(made(spec_file(SPLIT)).plan).stage.payloads_of("a_scale")
    assert ([extent.size for extent in of_a.box], of_a.bytes) == ([2, 32], 2 * 32 * 4)


def test_a_split_that_ends_past_k_reads_no_scale_of_b_past_it() -> None:
    """Of 10 blocks, the four splits have 16: the scales of the last six would lie behind the tensor."""
    product = simulated(SPLIT)
    within = "gl.minimum(block, self.last)"
    assert within in product.module
    assert not simulate_product(product, (launch_of(product),)).problems
    unguarded = replace(product, module=product.module.replace(within, "block"))
    with pytest.raises(GemmgenError, match="b_scale_ptr is accessed outside of its storage"):
        simulate_product(unguarded, (launch_of(unguarded),))


def first_choices(shape: tuple[int, int, int], count: int) -> list[WgmmaKernel]:
    ranking = rank(parse_spec((OPEN % shape).encode(), "open"))
    return [hopper(each.plan) for each in ranking.to_measure(count)]


def test_k_is_divided_for_few_rows_and_few_columns() -> None:
    (few,), (many,) = (first_choices(shape, 1) for shape in ((16, 2112, 7168), (16, 24576, 1536)))
    assert (few.splits >= 4, few.step_blocks) == (True, 2)
    assert many.splits == 1


@pytest.mark.parametrize("shape", [(128, 4096, 7168), (512, 4096, 7168), (512, 2112, 7168)])
def test_mmas_are_in_flight_where_few_warps_multiply(shape: tuple[int, int, int]) -> None:
    assert first_choices(shape, 1)[0].scales_in_flight


def test_a_bad_tile_is_not_among_the_first() -> None:
    """Ping-pong of 64 x 128 had 0.63 times the speed of torch's kernel at this shape."""
    first = first_choices((512, 4096, 7168), 6)
    assert not any(plan.ping_pong and plan.cta_tile_n == 128 for plan in first)


def test_two_slabs_of_rows_share_their_partial_sums() -> None:
    plan = hopper(made(spec_file(STEM)).plan)
    assert (plan.row_slabs, plan.sum_registers, partial_registers(plan)) == (2, 128, 64)
    assert plan.accumulator_registers == 192


@pytest.mark.parametrize("stem", ["h100_e4m3_blockwise_expert", "h100_e4m3_blockwise_experts"])
def test_two_slabs_of_columns_share_their_partial_sums(stem: str) -> None:
    plan = hopper(made(spec_file(stem)).plan)
    assert (plan.column_slabs, plan.row_slabs, plan.mma_n) == (2, 1, 128)
    assert (plan.sum_registers, partial_registers(plan)) == (128, 64)


def test_gates_of_narrower_tiles_have_no_slabs() -> None:
    plan = hopper(made(spec_file("h100_e4m3_blockwise_gated")).plan)
    assert (plan.column_slabs, plan.sum_registers, partial_registers(plan)) == (1, 64, 64)


def test_a_stage_has_the_scales_of_each_consumer_s_rows() -> None:
    plan = hopper(made(spec_file(STEM)).plan)
    (of_a,) = plan.stage.payloads_of("a_scale")
    assert (of_a.count, of_a.tile_bytes, of_a.bytes) == (2, 128 * 4, 1024)
    assert not plan.stage.payloads_of("b_scale")
    (of_b,) = hopper(made(spec_file(COLUMNS)).plan).stage.payloads_of("b_scale")
    assert (of_b.count, of_b.bytes) == (1, 128 * 4)


def test_a_stage_of_few_rows_has_scales_of_32() -> None:
    plan = hopper(made(spec_file("h100_e4m3_blockwise_rows16")).plan)
    (of_a,) = plan.stage.payloads_of("a_scale")
    assert of_a.bytes == 128
    assert plan.row_slabs == 1


@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (128, 4096, 7168), (16, 4096, 7168), (1, 2112, 7168)])
def test_an_open_spec_gets_a_legal_kernel(shape: tuple[int, int, int]) -> None:
    ranking = rank(parse_spec((OPEN % shape).encode(), "open"))
    found = [hopper(each.plan) for each in ranking.to_measure(5)]
    assert len(found) == 5
    assert {plan.promote_k for plan in found} == {128}
    assert found[0].swap_ab == (shape[0] <= 16)


def test_scales_of_columns_take_registers() -> None:
    assert scale_registers(hopper(made(spec_file(COLUMNS)).plan)) == 32
    assert scale_registers(hopper(made(spec_file(STEM)).plan)) == 0


def test_dram_moves_scales_of_four_bytes() -> None:
    problem = source_of(STEM).problem
    elements = M * K + N * K + 2 * M * N
    assert dram_bytes(problem, (M, N, K)) == elements + 4 * (M * 4 + 3 * 4)


# --- the numbers


def written_out(inputs: Inputs, block_rows: int) -> Tensor:
    """Return the product in float64, block by block of K."""
    a, b = inputs.a.double(), inputs.b.T.double()
    of_a, of_b = (inputs.extras[name].double() for name in ("a_scale", "b_scale"))
    columns = torch.arange(b.shape[0]) // block_rows
    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
    for block in range(of_a.shape[1]):
        k = slice(128 * block, 128 * block + 128)
        total += (a[:, k] @ b[:, k].T) * of_a[:, block, None] * of_b[columns, block]
    return total


@pytest.mark.parametrize(("stem", "rows"), [(STEM, 128), (COLUMNS, 1)])
def test_the_reference_scales_each_block(stem: str, rows: int) -> None:
    inputs = drawn(stem)
    found = reference(inputs, source_of(stem).problem)
    assert torch.allclose(found, written_out(inputs, rows), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stem", [STEM, COLUMNS])
def test_scales_lie_as_the_kernel_reads_them(stem: str) -> None:
    inputs = drawn(stem)
    assert inputs.extras["a_scale"].shape == (M, 4)
    assert inputs.extras["a_scale"].stride() == (1, 40)
    shape, stride = ((3, 4), (4, 1)) if stem == STEM else ((N, 4), (1, N))
    assert (inputs.extras["b_scale"].shape, inputs.extras["b_scale"].stride()) == (shape, stride)
    stored = row_major(source_of(stem).problem, inputs, torch.empty(M, N))
    assert stored["a_scale"].shape == (4, M)


def test_the_tolerance_is_that_of_one_block() -> None:
    problem = source_of(STEM).problem
    assert tolerance(problem, (512, 512, 8192), None) == tolerance(problem, (512, 512, 128), None)


# --- the wrapper


class Wrapper:
    """A module of scaled sums that is launched on no GPU: it keeps the tensors of its last launch."""

    def __init__(self, stem: str) -> None:
        self.module = import_generated(module_file(stem))
        self.launched: list[Any] = []
        launch_into(self.module, lambda _, arguments: self.launched.append(arguments))

    def call(self, **changed: Tensor) -> Tensor:
        a = torch.zeros(M, 400, dtype=E4M3).as_subclass(Cuda)
        b = torch.zeros(N, 400, dtype=E4M3).as_subclass(Cuda).T
        scales = {"a_scale": torch.ones(4, 40)[:, :M].T, "b_scale": torch.ones(3, 4)}
        return self.module.matmul(a, b, **{k: v.as_subclass(Cuda) for k, v in (scales | changed).items()})

    def scales(self) -> tuple[Any, Tensor]:
        """Return the descriptor of A's scales and B's scales of the last launch."""
        _, _, a_scale, b_scale, _ = self.launched[-1]
        return a_scale, b_scale


@pytest.fixture
def wrapper(monkeypatch: pytest.MonkeyPatch) -> Wrapper:
    on_a_fake_gpu(monkeypatch)
    return Wrapper(STEM)


def test_scales_that_lie_right_are_passed_as_they_are(wrapper: Wrapper) -> None:
    a_scale, b_scale = torch.ones(4, 40)[:, :M].T, torch.ones(3, 4)
    wrapper.call(a_scale=a_scale, b_scale=b_scale)
    of_a, of_b = wrapper.scales()
    assert of_a.base.data_ptr() == a_scale.data_ptr()
    assert ([*of_a.shape], [*of_a.strides]) == ([4, M], [40, 1])
    assert of_b.data_ptr() == b_scale.data_ptr()


LAYOUTS = {
    "plain rows": torch.rand(M, 4),
    "torch, if M is no multiple of 4": torch.rand(4, M).T,
    "steps": torch.rand(4, 2 * M).T[::2],
    "address": torch.rand(164)[1:149].view(4, M).T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scales_of_rows_with_other_strides_are_refused_and_arranged(wrapper: Wrapper, layout: str) -> None:
    a_scale = LAYOUTS[layout]
    with pytest.raises(
        ValueError, match=r'a_scale must have strides \(1, 40\) .*: pass arrange_scales\("a_sc'
    ):
        wrapper.call(a_scale=a_scale)
    arranged = wrapper.module.arrange_scales("a_scale", a_scale)
    wrapper.call(a_scale=arranged)
    of_a, _ = wrapper.scales()
    assert of_a.base.data_ptr() == arranged.data_ptr() != a_scale.data_ptr()
    assert ([*of_a.shape], [*of_a.strides]) == ([4, M], [40, 1])
    assert torch.equal(of_a.base.as_subclass(Tensor), a_scale.T)
    assert wrapper.module.arrange_scales("a_scale", arranged) is arranged
    with pytest.raises(ValueError, match="scales are a_scale and b_scale, found 'scale_a'"):
        wrapper.module.arrange_scales("scale_a", a_scale)


def test_the_error_of_an_address_says_how_far_it_is(wrapper: Wrapper) -> None:
    with pytest.raises(
        ValueError, match=r"at a multiple of 16 bytes, found strides \(1, 40\), \d+ bytes past"
    ):
        wrapper.call(a_scale=torch.rand(165)[1:161].view(4, 40)[:, :M].T)


@pytest.mark.parametrize(
    "b_scale", [torch.rand(5, 3).T, torch.rand(3, 8)[:, :5], torch.rand(16)[1:].view(3, 5)]
)
def test_scales_of_tiles_with_other_strides_are_refused_and_arranged(
    wrapper: Wrapper, b_scale: Tensor
) -> None:
    b_scale = b_scale[:, :4]
    with pytest.raises(
        ValueError, match=r'b_scale must have strides \(4, 1\) .*: pass arrange_scales\("b_sc'
    ):
        wrapper.call(b_scale=b_scale)
    arranged = wrapper.module.arrange_scales("b_scale", b_scale)
    wrapper.call(b_scale=arranged)
    _, of_b = wrapper.scales()
    assert of_b.stride() == (4, 1)
    assert torch.equal(of_b.as_subclass(Tensor), b_scale)


@pytest.mark.parametrize("rows", [1, 2, 4, 37])
@pytest.mark.parametrize("columns", [1, 3, 4])
def test_arranged_scales_stay_as_they_are(wrapper: Wrapper, rows: int, columns: int) -> None:
    for name in ("a_scale", "b_scale"):
        arranged = wrapper.module.arrange_scales(name, scales := torch.rand(rows, columns))
        assert torch.equal(arranged, scales)
        assert wrapper.module.arrange_scales(name, arranged) is arranged


def test_an_a_of_more_dimensions_has_scales_of_as_many(wrapper: Wrapper) -> None:
    a_scale = torch.rand(2, M, 4)
    arranged = wrapper.module.arrange_scales("a_scale", a_scale)
    assert arranged.stride() == (M, 1, 76)
    assert torch.equal(arranged, a_scale)


def test_a_square_scale_b_of_torch_is_not_taken_for_the_scales_of_rows(wrapper: Wrapper) -> None:
    scale_b = torch.rand(4, 4).T  # of K, then of N, as torch has it
    b = torch.zeros(512, 400, dtype=E4M3).as_subclass(Cuda).T
    a_scale = torch.ones(4, 40)[:, :M].T.as_subclass(Cuda)
    a = torch.zeros(M, 400, dtype=E4M3).as_subclass(Cuda)
    with pytest.raises(ValueError, match=r"pass b_scale\.mT if K comes first; else pass arrange_scales"):
        wrapper.module.matmul(a, b, a_scale=a_scale, b_scale=scale_b.as_subclass(Cuda))
    wrapper.module.matmul(a, b, a_scale=a_scale, b_scale=scale_b.mT.as_subclass(Cuda))
    assert wrapper.scales()[1].data_ptr() == scale_b.data_ptr()


def test_the_scales_of_deepgemm_are_passed_without_a_copy(wrapper: Wrapper) -> None:
    """`get_mn_major_tma_aligned_tensor` has M contiguous, and blocks of K 16-byte units of M apart."""
    aligned = torch.empty_strided((M, 4), (1, -(-M * 4 // 16) * 4)).uniform_()
    wrapper.call(a_scale=aligned)
    assert wrapper.scales()[0].base.data_ptr() == aligned.data_ptr()


def test_the_scales_of_torch_are_passed_without_a_copy(wrapper: Wrapper) -> None:
    scale_b = torch.rand(3, 4).T  # [round_up(blocks of K, 4), blocks of N]
    wrapper.call(b_scale=scale_b.T[:, :4])
    assert wrapper.scales()[1].data_ptr() == scale_b.data_ptr()


@pytest.mark.parametrize(
    ("name", "scales", "found"),
    [
        ("a_scale", torch.ones(M, 3), "[37, 3]"),
        ("a_scale", torch.ones(M + 1, 4), "[38, 4]"),
        ("a_scale", torch.ones(M), "shape [37]"),
        ("b_scale", torch.ones(N, 4), "[272, 4]"),
        ("b_scale", torch.ones(4, 3), "[4, 3]: pass b_scale.mT["),
    ],
)
def test_scales_of_a_wrong_shape_are_refused(wrapper: Wrapper, name: str, scales: Tensor, found: str) -> None:
    with pytest.raises(ValueError, match=refusal(name, found)):
        wrapper.call(**{name: scales})


def test_scales_of_a_wrong_type_are_refused(wrapper: Wrapper) -> None:
    with pytest.raises(TypeError, match=r"a_scale must be a tensor of torch\.float32, found torch\.bfloat16"):
        wrapper.call(a_scale=torch.ones(M, 4, dtype=torch.bfloat16))


# --- what is beside it


@pytest.mark.parametrize("stem", [STEM, COLUMNS])
def test_torch_multiplies_the_same_scales(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, called = source_of(stem), dict[str, Any]()

    def scaled_mm(a: Tensor, b: Tensor, **keywords: Any) -> None:
        called.update(keywords, a=a, b=b)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    assert offered(source.problem)
    inputs = drawn(stem)
    call: Any = block_scaled_mm(source.problem).bind(inputs, torch.empty(M, N, dtype=torch.bfloat16))
    call()
    assert called["scale_a"].shape == (M, 4)
    assert called["scale_a"].stride() == (1, M)
    assert called["scale_b"].shape == ((4, 3) if stem == STEM else (4, N))
    assert torch.equal(called["scale_b"].T, inputs.extras["b_scale"])
    assert "torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale.T, " in cublas(source).text


GATE = """\
title: t
target: h100
operands:
  a: {dtype: e4m3, scale: {format: fp32_1x128}}
  b: {dtype: e4m3, scale: {format: fp32_128x128}}
  d: {dtype: e4m3, scale: {format: fp32_1x128}}
tile: {m: 128, n: 512, k: 128}
epilogue: {accumulators: [gate, up], d: silu(gate) * up}
"""


def test_the_columns_of_a_gate_are_counted_as_they_are_stated() -> None:
    with pytest.raises(GemmgenError) as refused:
        plan_spec(parse_spec(GATE.encode(), "t"))
    texts = [found.message for found in refused.value.diagnostics]
    assert any("512 columns (256 of each accumulator)" in text for text in texts)
    assert all("use at most 256" in text for text in texts if "512" in text)


def test_an_open_tile_hides_nothing_that_is_wrong_with_the_operands() -> None:
    """One kernel of the search has too few rows for its consumers, and no rule after that one is judged."""
    text = GATE.replace("tile: {m: 128, n: 512, k: 128}\n", "").replace("fp32_128x128", "fp32_1x128")
    text += "groups: {kind: m_masked, count: 64}\nproblem: {m: 256, n: 2048, k: 7168}\n"
    with pytest.raises(GemmgenError) as refused:
        plan_spec(parse_spec(text.encode(), "t"))
    found = {(each.code, each.field) for each in refused.value.diagnostics}
    assert found == {("scale-format", "operands.b.scale.format"), ("not-together", "epilogue.d")}


def test_each_format_says_where_scales_are_applied_and_its_block() -> None:
    applied = {*chain.from_iterable(each.applied for each in SCALE_FORMATS.values())}
    assert applied == {*chain.from_iterable(APPLIED.values())}
    blocks = {name: (each.applied, each.rows, each.vector) for name, each in SCALE_FORMATS.items()}
    assert blocks == {
        "mxfp8": (("mma",), 1, 32),
        "mxfp4": (("mma", "decode"), 1, 32),
        "mxfp4_e4m3": (("decode",), 1, 32),
        "nvfp4": (("mma", "decode"), 1, 16),
        "fp32_1x128": (("sums",), 1, 128),
        "fp32_128x128": (("sums",), 128, 128),
        "ue8m0_1x128": (("sums",), 1, 128),
        "ue8m0_128x128": (("sums",), 128, 128),
        "ue8m0_1x32": (("sums",), 1, 32),
        "bf16_1x128": (("decode",), 1, 128),
        "bf16_1x64": (("decode",), 1, 64),
        "bf16_1x32": (("decode",), 1, 32),
        "bf16_zero_1x128": (("decode",), 1, 128),
        "bf16_zero_1x64": (("decode",), 1, 64),
        "fp16_1x128": (("decode",), 1, 128),
        "fp16_1x64": (("decode",), 1, 64),
        "fp16_1x32": (("decode",), 1, 32),
        "fp16_zero_1x128": (("decode",), 1, 128),
        "fp16_zero_1x64": (("decode",), 1, 64),
    }
