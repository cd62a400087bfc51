"""Weights of four bits that threads decode: how they are packed, what is refused, and their candidates."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from types import ModuleType
from typing import Any

import pytest
import torch
from modules import assert_verified_on_a_gpu, made, module_file, spec_file
from torch import Tensor

from gemmgen.errors import GemmgenError
from gemmgen.features.decoded_weights.stored import in_turn, scales_of, stored_scales, weight_of
from gemmgen.integrations import can_implement
from gemmgen.integrations.weights import QuantizedWeight
from gemmgen.integrations.weights.quantized import Element
from gemmgen.module import import_generated
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.planner import plan_spec
from gemmgen.problem.matmul import Operand
from gemmgen.spec import load_spec

pytestmark = pytest.mark.quick

STEMS = {
    "bf16_1x128": "h100_bf16_int4",
    "bf16_1x64": "h100_bf16_int4_groups64",
    "bf16_1x32": "h100_bf16_int4_groups32",
    "bf16_zero_1x128": "h100_bf16_int4_zeros",
    "bf16_zero_1x64": "h100_bf16_int4_zeros64",
    "fp16_1x128": "h100_fp16_int4",
    "fp16_1x64": "h100_fp16_int4_groups64",
    "fp16_1x32": "h100_fp16_int4_groups32",
    "fp16_zero_1x128": "h100_fp16_int4_zeros",
    "fp16_zero_1x64": "h100_fp16_int4_zeros64",
    "mxfp4": "h100_bf16_mxfp4",
    "mxfp4_e4m3": "h100_e4m3_mxfp4",
    "nvfp4": "h100_bf16_nvfp4",
}
"""A module of each format of scales."""
FORMATS = sorted(STEMS)
GATES = {
    "fp16_zero_1x128": "h100_fp16_int4_gate",
    "mxfp4": "h100_bf16_mxfp4_gate",
    "mxfp4_e4m3": "h100_e4m3_mxfp4_gate",
    "nvfp4": "h100_bf16_nvfp4_gate",
}
"""Modules of gates, which have the columns of both accumulators in turn."""
N, K = 192, 448
"""Three blocks by seven: the last word of scales has only a part of its blocks."""


def module_of(scale_format: str, stems: Mapping[str, str] = STEMS) -> ModuleType:
    return import_generated(module_file(stems[scale_format]))


def operand_of(scale_format: str) -> Operand:
    return made(spec_file(STEMS[scale_format])).plan.problem.b


def float_of(operand: Operand) -> torch.dtype:
    return TORCH_DTYPES[operand.multiplied.name]


def drawn(scale_format: str, *leading: int) -> QuantizedWeight:
    """Return a random weight [*leading, N, K], with all scales that the format's decoder takes."""
    operand, generator = operand_of(scale_format), torch.Generator().manual_seed(1)
    assert operand.scale is not None
    vector, shape = operand.scale.vector, (*leading, N, -(-K // operand.scale.vector))
    codes = torch.randint(0, 256, (*leading, N, K // 2), dtype=torch.uint8, generator=generator)
    element: Element = "int4" if operand.dtype.name == "int4" else "e2m1"
    if element == "int4":
        scales, zeros = (torch.rand(shape, generator=generator) * 0.49).to(float_of(operand)), None
        if operand.scale.format.zeros:
            zeros = torch.randint(0, 16, shape, dtype=torch.uint8, generator=generator)
        return QuantizedWeight(element, codes, scales, vector, zeros)
    if operand.scale.dtype.name == "ue8m0":
        exponents = torch.randint(0, 129, shape, dtype=torch.uint8, generator=generator)
        if operand.multiplied.bits == 8:  # a column has twelve powers of two
            exponents = exponents[..., :1] + exponents % 12
        return QuantizedWeight(element, codes, exponents.view(torch.float8_e8m0fnu), vector)
    numbers = torch.randint(0, 127, shape, dtype=torch.uint8, generator=generator)
    factors = torch.full(leading, 0.5)
    scales = numbers.view(torch.float8_e4m3fn)
    return QuantizedWeight(element, codes, scales, vector, tensor_scale=factors)


def packed(module: ModuleType, weight: QuantizedWeight) -> tuple[Tensor, ...]:
    others = (each for each in (weight.zeros, weight.tensor_scale) if each is not None)
    return module.pack_weight(weight.codes, weight.scales, *others)


@pytest.mark.parametrize("scale_format", FORMATS)
def test_a_packed_weight_has_the_numbers_of_the_checkpoint(scale_format: str) -> None:
    weight = drawn(scale_format)
    b, b_scale, *factor = packed(module_of(scale_format), weight)
    found = weight_of(b, b_scale, operand_of(scale_format)).double()
    for each in factor:
        found *= each.double()[..., None]  # of the weight, or of each column
    exact = weight.numbers().double()
    if weight.zeros is not None:
        # The product of a zero point and a scale is rounded first, of at most 16 * scale.
        half_ulp = operand_of(scale_format).multiplied.half_ulp
        assert half_ulp
        assert ((found - exact).abs() <= half_ulp * (exact.abs() + 16 * 0.49)).all()
        return
    # int4 rounds a product; the others are exact, and a tensor scale is applied to the sums.
    expected = exact.to(float_of(operand_of(scale_format))).double() if weight.element == "int4" else exact
    assert found.equal(expected)


@pytest.mark.parametrize("scale_format", GATES)
def test_a_packed_gate_has_eight_columns_of_each_accumulator(scale_format: str) -> None:
    weight, operand = drawn(scale_format), operand_of(scale_format)
    (b, b_scale, *_), (of_gate, scales_of_gate, *_) = (
        packed(module_of(scale_format, stems), weight) for stems in (STEMS, GATES)
    )
    plain, of_gate = weight_of(b, b_scale, operand), weight_of(of_gate, scales_of_gate, operand)
    rows = [16 * block + 2 * place + odd for block in range(N // 16) for odd in (0, 1) for place in range(8)]
    assert of_gate.equal(plain[rows])
    assert in_turn(of_gate).equal(plain)


@pytest.mark.parametrize("scale_format", ["bf16_1x128", "mxfp4", "mxfp4_e4m3"])
def test_experts_are_packed_together_as_each_alone(scale_format: str) -> None:
    weight, module = drawn(scale_format, 3), module_of(scale_format)
    together = packed(module, weight)
    assert {tensor.shape[0] for tensor in together} == {3}
    for expert in range(3):
        alone = module.pack_weight(weight.codes[expert], weight.scales[expert])
        for one, of_all in zip(alone, together, strict=True):
            assert one.equal(of_all[expert])
            assert one.stride() == of_all[expert].stride()


def test_where_a_code_lies_is_counted_by_hand() -> None:
    codes, scales = torch.zeros(64, 32, dtype=torch.uint8), torch.full((64, 1), 0.25, dtype=torch.bfloat16)
    # Column 41 = 32 + 8 + 1 and k = 27 = 16 + 8 + 2 + 1. Of the number of a row of words, 32 and 16 choose
    # the warp, 8 is 4 of the column, 4 is 1 of it, 2 is 4 of k, and 1 is 2 of the column. Of a word's place
    # in its row, 4 is 2 of k, and 2 and 1 are 32 and 16 of k. In a word the upper half is k + 1, 8 bits on
    # are k + 8, and 4 bits on are column + 8.
    codes[41, 13] = 0xF0
    b, b_scale = module_of("bf16_1x128").pack_weight(codes, scales)
    words = b.mT.contiguous().view(torch.int32)
    row, word, bits = 32 + 4, 4 + 1, 16 + 8 + 4
    expected = torch.zeros_like(words)
    expected[row, word] = torch.tensor(0xF << bits).to(torch.int32)
    assert words.equal(expected)
    assert b_scale.shape == (64, 1)
    assert (b_scale.double() == 0.25 * 2.0**129).all()


@pytest.mark.parametrize("scale_format", FORMATS)
def test_scales_are_read_as_they_were_stored(scale_format: str) -> None:
    operand = operand_of(scale_format)
    assert operand.scale is not None
    blocks = 5 * operand.scale.format.per_word
    least = -5 if operand.multiplied.bits == 8 else -8
    scales = (
        2.0 ** torch.randint(least, -1, (16, blocks), generator=torch.Generator().manual_seed(0)).double()
    )
    stored = stored_scales(scales, operand)
    floats = operand.scale_dtype.bits == 16
    words = stored.to(torch.int16).view(float_of(operand)) if floats else stored.int()
    # Scales of nvfp4 come with the factor that its tensor scale takes back.
    factor = 2.0**-7 if scale_format == "nvfp4" else 1.0
    assert scales_of(words, operand).equal(scales * factor)


def test_where_an_e2m1_beside_e4m3_lies_is_counted_by_hand() -> None:
    codes, scales = torch.zeros(64, 32, dtype=torch.uint8), torch.full((64, 2), 120, dtype=torch.uint8)
    # Column 41 = 32 + 8 + 1 and k = 27 = 16 + 8 + 2 + 1. Of the number of a row of words, 32 and 16 choose
    # the warp, 8 is 4 of the column, 4 is 1 of it, 2 is 8 of k, and 1 is 2 of the column. Of a word's place
    # in its row, 4 is 4 of k, 2 is 32 of k, and 1 is 8 of the column. In a word, three bits of an element lie
    # at four times k modulo 4, and 16 bits on for 16 of k. Its sign lies at eight times k modulo 4, and 7
    # bits on, or 3 for 16 of k.
    codes[41, 13] = 0xF0
    b, b_scale, column_scale = module_of("mxfp4_e4m3").pack_weight(codes, scales)
    words = b.mT.contiguous().view(torch.int32)
    row, word, bits = 32 + 4 + 2, 1, 7 << 16 + 4 * 3 | 1 << 8 * 3 + 3
    expected = torch.zeros_like(words)
    expected[row, word] = torch.tensor(bits).to(torch.int32)
    assert words.equal(expected)
    assert (b_scale & 0xFFFF == 11 << 8 | 11).all()
    assert column_scale[41] == 2.0 ** (120 - 127 - 6)


def test_blocks_far_below_the_largest_of_a_column_are_rounded() -> None:
    scale_format = "mxfp4_e4m3"
    weight = drawn(scale_format)
    exponents = torch.randint(96, 129, weight.scales.shape, generator=torch.Generator().manual_seed(5))
    scales = exponents.to(torch.uint8).view(torch.float8_e8m0fnu)
    weight = QuantizedWeight("e2m1", weight.codes, scales, 32)
    b, b_scale, column_scale = packed(module_of(scale_format), weight)
    found = weight_of(b, b_scale, operand_of(scale_format)).double() * column_scale.double()[:, None]
    exact = weight.numbers().double()
    least = 2.0 ** (exponents.amax(1, keepdim=True) - 127 - 11).double()
    is_exact = (scales.double() >= least).repeat_interleave(32, 1)[:, :K]
    assert 0.2 < is_exact.double().mean() < 0.8
    assert found[is_exact].equal(exact[is_exact])
    # Smaller ones are the nearest multiples of half of the least scale, halves to even ones.
    assert found.equal(torch.where(is_exact, exact, (exact * 2 / least).round() * least / 2))


def test_a_block_of_zeros_leaves_a_column_its_powers() -> None:
    weight = drawn("mxfp4_e4m3")
    weight.codes[:, :16] = 0x80  # 0 and -0
    scales = weight.scales.view(torch.uint8)
    scales[:, 0] = 254
    b, b_scale, column_scale = packed(module_of("mxfp4_e4m3"), weight)
    found = weight_of(b, b_scale, operand_of("mxfp4_e4m3")).double() * column_scale.double()[:, None]
    assert found[:, :32].count_nonzero() == 0
    assert found.equal(weight.numbers().double())


@pytest.mark.parametrize(
    ("d", "is_first"),
    [
        ("acc * tensor_scale + column_bias", True),
        ("relu(acc) * tensor_scale", True),
        ("leaky_relu(acc) * tensor_scale + column_bias", True),  # as of the product, whose factor is positive
        ("silu(acc) * tensor_scale", False),
        ("(acc + column_bias) * tensor_scale", False),
    ],
)
def test_the_factor_of_a_weight_multiplies_the_sums_first(d: str, is_first: bool, tmp_path: Path) -> None:
    operands = "a: {dtype: bf16}, b: {dtype: e2m1, scale: {format: nvfp4}}, d: {dtype: bf16}"
    spec = tmp_path / "factor.yaml"
    spec.write_text(f"title: a factor\ntarget: h100\noperands: {{{operands}}}\nepilogue: {{d: {d}}}\n")
    if is_first:
        plan_spec(load_spec(spec))
        return
    with pytest.raises(GemmgenError) as refused:
        plan_spec(load_spec(spec))
    assert "that does not multiply the sums first" in refused.value.diagnostics[0].message


@pytest.mark.parametrize("scale_format", ["bf16_1x128", "fp16_1x128"])
def test_the_smallest_scales_of_a_type_keep_their_bits(scale_format: str) -> None:
    # Subnormal and odd: any bit that is lost on the way shows.
    operand = operand_of(scale_format)
    smallest = torch.tensor([1, 3, 5, 0x41], dtype=torch.int16).view(float_of(operand))
    scales = smallest.repeat(16)[:, None]
    codes = torch.full((64, 32), 0x99, dtype=torch.uint8)  # 1, less the zero point of 8
    b, b_scale = module_of(scale_format).pack_weight(codes, scales)
    assert weight_of(b, b_scale, operand).equal(scales.expand(64, 64))


def test_blocks_with_a_scale_of_0_are_zeros() -> None:
    weight = drawn("nvfp4")
    weight.scales[:, 3] = 0
    b, b_scale, factor = packed(module_of("nvfp4"), weight)
    found = weight_of(b, b_scale, operand_of("nvfp4")).double() * factor
    assert found[:, 48:64].count_nonzero() == 0
    assert found.equal(weight.numbers().double())


@pytest.mark.parametrize(
    ("codes", "scales"),
    [((64, 48), (64, 1)), ((96, 32), (96, 1)), ((64, 64), (64, 2)), ((64, 32), (1, 64))],
    ids=["K", "N", "scales", "turned"],
)
def test_other_extents_are_refused(codes: tuple[int, ...], scales: tuple[int, ...]) -> None:
    found = f"found torch.uint8 {[*codes]} and {[*scales]}"
    with pytest.raises(ValueError, match=re.escape(found)):
        module_of("bf16_1x128").pack_weight(torch.zeros(codes, dtype=torch.uint8), torch.ones(scales))


@pytest.mark.parametrize(
    ("scale_format", "scales", "words"),
    [
        ("bf16_1x128", torch.full((64, 1), 0.5), "scales must be finite and below 0.5"),
        ("bf16_1x128", torch.full((64, 1), 0.4999), "scales must be finite and below 0.5"),  # rounds to 0.5
        ("fp16_zero_1x128", torch.full((64, 1), torch.nan), "scales must be finite and below 0.5"),
        ("mxfp4", torch.ones(64, 2), "scales must be float8_e8m0fnu or its bytes"),
        (
            "mxfp4",
            torch.full((64, 2), 0.5).to(torch.float8_e4m3fn),
            "scales must be float8_e8m0fnu or its bytes",
        ),
        ("mxfp4_e4m3", torch.full((64, 2), 255, dtype=torch.uint8), "a scale must not be NaN"),
        ("mxfp4_e4m3", torch.ones(64, 2), r"found torch.uint8 \[64, 32\] and torch.float32 \[64, 2\]"),
        ("nvfp4", torch.ones(64, 4), "scales must be float8_e4m3fn"),
        ("mxfp4", torch.full((64, 2), 129, dtype=torch.uint8), "at most 2: divide larger ones"),
        ("nvfp4", torch.full((64, 4), -1.0).to(torch.float8_e4m3fn), "numbers from 0 on"),
        ("nvfp4", torch.full((64, 4), float("nan")).to(torch.float8_e4m3fn), "numbers from 0"),
    ],
)
def test_scales_beyond_the_decoder_are_refused(scale_format: str, scales: Tensor, words: str) -> None:
    factors = (torch.ones(1),) if scale_format == "nvfp4" else ()
    factors = (torch.full(scales.shape, 8, dtype=torch.uint8),) if "zero" in scale_format else factors
    with pytest.raises(ValueError, match=words):
        module_of(scale_format).pack_weight(torch.zeros(64, 32, dtype=torch.uint8), scales, *factors)


@pytest.mark.parametrize(
    ("zeros", "found"),
    [
        (torch.full((64, 1), 16, dtype=torch.uint8), "torch.uint8 [64, 1]"),
        (torch.full((64, 1), 8), "torch.int64 [64, 1]"),
        (torch.tensor(8, dtype=torch.uint8), "torch.uint8 []"),
        (torch.full((64, 8), 8, dtype=torch.uint8), "torch.uint8 [64, 8]"),
    ],
    ids=["beyond 15", "type", "one", "shape"],
)
def test_other_zero_points_are_refused(zeros: Tensor, found: str) -> None:
    codes, scales = torch.zeros(64, 32, dtype=torch.uint8), torch.full((64, 1), 0.25)
    words = f"zeros must be uint8 from 0 to 15, one for each scale; found {found}"
    with pytest.raises(ValueError, match=re.escape(words)):
        module_of("bf16_zero_1x128").pack_weight(codes, scales, zeros)


PACKED = ": pass b and b_scale as pack_weight of this module returns them"
"""The advice for a weight as a checkpoint has it: its transposed view would pass all checks."""


def test_a_call_with_the_codes_or_scales_of_a_checkpoint_is_told_to_pack_them() -> None:
    module, weight = module_of("bf16_1x128"), drawn("bf16_1x128")
    a = torch.empty(16, K, dtype=torch.bfloat16, device="meta")
    b, b_scale = (tensor.to("meta") for tensor in packed(module, weight))
    codes, scales = weight.codes.to("meta"), weight.scales.to("meta").contiguous()
    assert can_implement(module, a, b, b_scale=b_scale) == (True, "")
    words = torch.empty(K // 8, N, dtype=torch.int32, device="meta")  # of GPTQ
    for wrong, wrong_scale, head in (
        (codes, b_scale, "b must lie in memory as [N, K / 2], found strides"),
        (codes.mT.contiguous(), b_scale, "b must lie in memory as [N, K / 2], found strides"),
        (words, b_scale, "b must be a tensor of torch.uint8, found torch.int32"),
        (b, scales, "b_scale must have strides (1, 192)"),
        (b, scales.mT, "b_scale must have shape [192, 4], found [4, 192]"),
        (b, scales.half(), "b_scale must be a tensor of torch.bfloat16, found torch.float16"),
    ):
        can, reason = can_implement(module, a, wrong, b_scale=wrong_scale)
        assert not can
        assert reason.startswith(head)
        assert reason.endswith(PACKED)
        with pytest.raises((TypeError, ValueError), match=f"{PACKED}$"):
            module.matmul(a, wrong, b_scale=wrong_scale)


@pytest.mark.parametrize("n", [N, K], ids=["another N", "an N that is K"])
def test_a_call_with_the_bytes_of_a_checkpoint_is_told_to_pack_them(n: int) -> None:
    module = import_generated(module_file("h100_bf16_int8_weights"))
    a = torch.empty(16, K, dtype=torch.bfloat16, device="meta")
    weight, b_scale = eight_bits(torch.int8, n).to("meta"), torch.empty(4, n, dtype=a.dtype, device="meta").mT
    assert can_implement(module, a, weight.mT, b_scale=b_scale) == (True, "")  # nothing tells packed bytes
    can, reason = can_implement(module, a, weight, b_scale=b_scale)
    assert not can
    assert reason.endswith(PACKED)


def test_a_k_without_whole_blocks_is_refused() -> None:
    module = module_of("bf16_1x128")
    a = torch.empty(16, 416, dtype=torch.bfloat16, device="meta")
    b, b_scale = (tensor.to("meta") for tensor in packed(module, drawn("bf16_1x128")))
    can, reason = can_implement(module, a, b[:208], b_scale=b_scale)
    assert (can, reason) == (False, "a and b must have the same K, a multiple of 64, found 416 and 416")


def planned(tmp_path: Path, text: str) -> WgmmaKernel:
    spec = tmp_path / "weights.yaml"
    spec.write_text(text)
    plan = plan_spec(load_spec(spec))
    assert isinstance(plan, WgmmaKernel)
    return plan


OPEN = """title: weights
target: h200
operands:
  a: {{dtype: bf16}}
  b: {{dtype: int4, scale: {{format: bf16_1x128}}}}
  d: {{dtype: bf16}}
problem: {{m: {m}, n: 8192, k: 8192}}
"""


@pytest.mark.parametrize(("m", "kind"), [(1, "tiled"), (16, "tiled"), (4096, "persistent")])
def test_an_open_spec_of_weights_has_a_kernel(m: int, kind: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, OPEN.format(m=m))
    assert plan.swap_ab
    assert plan.schedule_kind == kind
    assert plan.cta_tile_n == 16 * plan.warps_n
    few = m <= 16
    assert (plan.splits * plan.occupancy > 1) == few


@pytest.mark.parametrize("m", [1, 16, 128])
def test_an_open_batch_invariant_spec_of_weights_never_divides_k(m: int, tmp_path: Path) -> None:
    text = OPEN.format(m=m)
    plan = planned(tmp_path, f"{text}batch_invariant: true\n")
    assert plan.splits == 1
    assert planned(tmp_path, text).splits > 1


ROOT = Path(__file__).parent.parent
LAYERS = json.loads((ROOT / "benchmarks" / "weights" / "h200_split.json").read_text())["layers"]
"""Times of kernels with parts of K, and the planner's choice among them, for each M, N and K."""


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "{M}x{N}x{K}".format(**layer))
def test_weights_of_many_rows_have_the_splits_of_the_record(layer: dict[str, Any], tmp_path: Path) -> None:
    shape = "m: {M}, n: {N}, k: {K}".format(**layer)
    plan = planned(tmp_path, OPEN.format(m=1).replace("m: 1, n: 8192, k: 8192", shape))
    if layer["choice"] == "planned":
        assert plan.splits == 1 or not plan.specialized
    else:
        assert f"m{plan.cta_tile_m}_s{plan.splits}_{plan.reduction[0]}" == layer["choice"]


@pytest.mark.parametrize("m", [128, 256])
def test_the_page_has_the_speed_of_the_choices(m: int) -> None:
    page = (ROOT / "docs" / "spec" / "weights.md").read_text()
    ratios = [
        layer["our_bf16"] / {"planned": layer["planned"], **layer["kernels"]}[layer["choice"]]
        for layer in LAYERS
        if layer["M"] == m
    ]
    assert f"\n| {m} | {geometric_mean(ratios):.2f} | " in page


EIGHT_BITS = {
    "h100_bf16_int8_weights": torch.int8,
    "h100_bf16_e4m3_weights": torch.float8_e4m3fn,
    "h100_fp16_int8_weights_gate": torch.int8,
    "h100_fp16_e4m3_weights_experts": torch.float8_e4m3fn,
}
"""Modules of weights of eight bits, and the types of their elements."""


def eight_bits(dtype: torch.dtype, n: int = N, k: int = K) -> Tensor:
    """Return random elements [N, K], with all codes of a type but NaN."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 256, (n, k), dtype=torch.uint8, generator=generator)
    if dtype == torch.float8_e4m3fn:
        codes[codes & 0x7F == 0x7F] = 0x7E
    return codes.view(dtype)


@pytest.mark.parametrize(("stem", "dtype"), EIGHT_BITS.items(), ids=EIGHT_BITS)
def test_a_packed_weight_of_eight_bits_has_the_numbers_of_the_checkpoint(
    stem: str, dtype: torch.dtype
) -> None:
    module, problem = import_generated(module_file(stem)), made(spec_file(stem)).plan.problem
    weight, float_dtype = eight_bits(dtype), float_of(problem.b)
    scales = (torch.rand(N, 4, generator=torch.Generator().manual_seed(4)) + 0.5) * 2.0**-6
    b, b_scale = module.pack_weight(weight, scales)
    assert (b.dtype, b.shape, b.mT.is_contiguous()) == (dtype, (K, N), True)
    found = weight_of(b, b_scale, problem.b)
    found = in_turn(found) if problem.gated else found
    of_each = scales.to(float_dtype).double().repeat_interleave(128, 1)[:, :K]
    assert found.equal((weight.double() * of_each).to(float_dtype))


def test_where_an_int8_lies_is_counted_by_hand() -> None:
    weight = torch.full((64, 64), -128, dtype=torch.int8)  # a byte of 0
    # Column 41 = 32 + 8 + 1 and k = 27 = 16 + 8 + 2 + 1. Of the number of a row of words, 32 and 16 choose
    # the warp, 8 is 4 of the column, 4 is 1 of it, 2 is 4 of k, and 1 is 2 of the column. Of a word's place
    # in its row, 8 is 8 of the column, 4 is 2 of k, and 2 and 1 are 32 and 16 of k. In a word the upper half
    # is k + 1, and 8 bits on are k + 8.
    weight[41, 27] = -1
    b, _ = import_generated(module_file("h100_bf16_int8_weights")).pack_weight(weight, torch.zeros(64, 1))
    words = b.mT.contiguous().view(torch.int32)
    row, word, bits = 32 + 4, 8 + 4 + 1, 16 + 8
    expected = torch.zeros_like(words)
    expected[row, word] = 127 << bits
    assert words.equal(expected)


@pytest.mark.parametrize(
    ("stem", "weight", "scale", "words"),
    [
        ("h100_bf16_int8_weights", torch.zeros(64, 64, dtype=torch.uint8), 0.01, "a weight is torch.int8"),
        ("h100_bf16_int8_weights", torch.zeros(64, 32, dtype=torch.int8), 0.01, "N and K multiples of 64"),
        ("h100_bf16_int8_weights", torch.zeros(64, 64, dtype=torch.int8), 0.03125, "below 0.03125"),
        ("h100_bf16_e4m3_weights", torch.zeros(64, 64).to(torch.float8_e4m3fn), 256.0, "below 256"),
        ("h100_bf16_e4m3_weights", torch.full((64, 64), torch.nan).to(torch.float8_e4m3fn), 1.0, "no NaN"),
    ],
)
def test_weights_of_eight_bits_that_are_not_decoded_are_refused(
    stem: str, weight: Tensor, scale: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        import_generated(module_file(stem)).pack_weight(weight, torch.full((64, 1), scale))


OTHER_KERNELS = (
    "h100_bf16_int4_one_consumer",
    "h100_bf16_mxfp4_early",
    "h100_bf16_int4_four_parts",
    "h100_bf16_mxfp4_four_parts",
    "h100_bf16_nvfp4_cooperative",
    "h100_e4m3_mxfp4_experts",
    "h100_e4m3_mxfp4_many_rows",
)


@pytest.mark.gpu
@pytest.mark.parametrize("stem", [*STEMS.values(), *GATES.values(), *EIGHT_BITS, *OTHER_KERNELS])
def test_every_check_of_a_module_passes_on_a_gpu(stem: str) -> None:
    assert_verified_on_a_gpu(stem, m=1, n=64, k=64)
