"""fp8 operands with scales of blocks as UE8M0 on Hopper: codes, numbers beside float64, and sources."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path
from typing import cast

import pytest
import torch
from fake_gpu import Cuda
from hopper import hopper
from modules import EVERY_SPEC, made, spec_file
from simulated import simulated
from torch import Tensor

from gemmgen.numerics.quantized import quantized
from gemmgen.planner import rank
from gemmgen.product import make
from gemmgen.spec import load_spec, parse_spec
from gemmgen.verify.launches import Launch
from gemmgen.verify.simulation import simulate_product

STEM = "h100_e4m3_ue8m0"
MIXED = "h100_e4m3_ue8m0_split4"
QUANTIZED = "h100_e4m3_ue8m0_quantized"
GROUPED, MASKED, GATED, EXPERT = (
    f"h100_e4m3_ue8m0_{kind}" for kind in ("grouped", "masked", "gated", "expert")
)
FEW_ROWS = ("h100_e4m3_ue8m0_rows16", "h100_e4m3_ue8m0_mx16", MIXED)
STEMS = sorted(path.stem for path in EVERY_SPEC if "ue8m0" in path.stem)
DENSE = [stem for stem in STEMS if stem not in (GROUPED, MASKED, GATED, EXPERT, QUANTIZED)]
"""Modules that return one D of one product."""
E4M3, UE8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
LARGEST = 448


def cuda(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Cuda)


def plain(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Tensor)


def listed(tensor: Tensor) -> list[float]:
    return cast("list[float]", tensor.flatten().tolist())  # pyright: ignore[reportUnknownMemberType]


def codes(*extents: int, low: int = 107, high: int = 148, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, extents, generator=generator, dtype=torch.uint8).view(UE8M0)


def drawn(rows: int, k: int, seed: int) -> Tensor:
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(seed)).to(E4M3)


def numbers_of(scales: Tensor) -> Tensor:
    """The scales in float64: 2 ** (code - 127) of UE8M0."""
    if scales.dtype != UE8M0:
        return scales.double()
    return 2.0 ** (scales.view(torch.uint8).double() - 127)


def written_out(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, vector: int) -> Tensor:
    """The product in float64 of A [M, K] and B [N, K] of e4m3, each element times the scale of its block.

    A scale is for `vector` elements of K.
    """
    scaled = list[Tensor]()
    for matrix, scales in ((a, numbers_of(of_a)), (b, numbers_of(of_b))):
        rows = scales if len(scales) == len(matrix) else scales.repeat_interleave(128, 0)[: len(matrix)]
        scaled.append(matrix.double() * rows.repeat_interleave(vector, 1)[:, : matrix.shape[1]])
    return scaled[0] @ scaled[1].T


def with_one_in_each_row(rows: int) -> Tensor:
    """An e4m3 matrix of one block of K, whose only element other than 0 in a row is a 1."""
    found = torch.zeros(rows, 128)
    found[:, 0] = 1
    return found.to(E4M3)


# --- the numbers


def test_each_code_of_a_is_its_power_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    module, every = simulated(STEM, monkeypatch), torch.arange(256, dtype=torch.uint8).view(UE8M0)[:, None]
    ones = torch.full((1, 1), 127, dtype=torch.uint8).view(UE8M0)
    scales = {
        name: cuda(module.arrange_scales(name, each))
        for name, each in (("a_scale", every), ("b_scale", ones))
    }
    a, b = with_one_in_each_row(256), with_one_in_each_row(128)
    d = plain(module.matmul(cuda(a), cuda(b).T, **scales)).float()
    assert listed(d[:255, 0]) == [2.0 ** (code - 127) for code in range(255)]
    assert d[255].isnan().all()
    assert torch.equal(d[:255], d[:255, :1].expand(255, 128))


@pytest.mark.parametrize("first", [0, 1, 126, 253])
def test_each_code_of_b_is_its_power_of_two(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = simulated(STEM, monkeypatch)
    of_b = torch.arange(first, first + 3, dtype=torch.int32).to(torch.uint8)[:, None].view(UE8M0)
    ones = torch.full((16, 1), 127, dtype=torch.uint8).view(UE8M0)
    scales = {
        name: cuda(module.arrange_scales(name, each)) for name, each in (("a_scale", ones), ("b_scale", of_b))
    }
    a, b = with_one_in_each_row(16), with_one_in_each_row(384)
    d = plain(module.matmul(cuda(a), cuda(b).T, **scales)).float()
    for block, code in enumerate(range(first, first + 3)):
        columns = d[:, 128 * block : 128 * block + 128]
        assert columns.isnan().all() if code == 255 else (columns == 2.0 ** (code - 127)).all()


@pytest.mark.parametrize("stem", DENSE)
def test_a_call_has_the_numbers_of_float64(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, problem = simulated(stem, monkeypatch), made(spec_file(stem)).source.problem
    (m, n, k), scales = (7 if stem in FEW_ROWS else 37, 272, 400), (problem.a.scale, problem.b.scale)
    a, b = drawn(m, k, 1), drawn(n, k, 2)
    given = list[Tensor]()
    assert problem.a.scale is not None
    for seed, (rows, scale) in enumerate(zip((m, n), scales, strict=True)):
        assert scale is not None
        drawn_codes = codes(-(-rows // scale.format.rows), -(-k // scale.vector), seed=seed)
        given.append(drawn_codes if scale.dtype.name == "ue8m0" else drawn_codes.float() * 1.5)
    arranged = {
        name: cuda(module.arrange_scales(name, each))
        for name, each in zip(("a_scale", "b_scale"), given, strict=True)
    }
    d = plain(module.matmul(cuda(a), cuda(b).T, **arranged)).double()
    of_a, of_b = given
    exact = written_out(a, b, of_a, of_b, problem.a.scale.vector)
    of_magnitudes = [each.float().abs().to(E4M3) for each in (a, b)]
    magnitudes = written_out(of_magnitudes[0], of_magnitudes[1], of_a, of_b, problem.a.scale.vector)
    # One rounding to bf16, and sums in fp32 of products of both operands.
    assert ((d - exact).abs() <= exact.abs() * 2.0**-8 + magnitudes * 2.0**-20).all()


@pytest.mark.parametrize("stem", [*DENSE, "h100_e4m3_blockwise_wgrad"])
def test_scales_are_multiplied_before_the_sums_of_a_block(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's sum times one of both scales may be infinite where the product of all three is not."""
    module, problem = simulated(stem, monkeypatch), made(spec_file(stem)).source.problem
    m, n, k = 5, 128, 128
    ones, exponents = torch.ones(max(m, n), k).to(E4M3), {"a_scale": 126, "b_scale": -126}
    scales = dict[str, Tensor]()
    for name, rows, operand in (("a_scale", m, problem.a), ("b_scale", n, problem.b)):
        assert operand.scale is not None
        extents = -(-rows // operand.scale.format.rows), -(-k // operand.scale.vector)
        of_a_byte = operand.scale.dtype.name == "ue8m0"
        number = torch.full(extents, 2.0 ** exponents[name]).to(UE8M0 if of_a_byte else torch.float32)
        scales[name] = cuda(module.arrange_scales(name, number))
    d = plain(module.matmul(cuda(ones[:m]), cuda(ones[:n]).T, **scales))
    assert (d == k).all()


def test_scales_of_another_type_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module, a, b = simulated(MIXED, monkeypatch), cuda(drawn(7, 400, 0)), cuda(drawn(272, 400, 1)).T
    of_a, of_b = cuda(torch.ones(4, 8)[:, :7].T), cuda(codes(3, 16)[:, :4])
    with pytest.raises(
        TypeError, match=r"a_scale must be a tensor of torch\.float32, found torch\.float8_e8"
    ):
        module.matmul(a, b, a_scale=of_b, b_scale=of_b)
    with pytest.raises(
        TypeError, match=r"b_scale must be a tensor of torch\.float8_e8m0fnu, found torch\.fl"
    ):
        module.matmul(a, b, a_scale=of_a, b_scale=of_a)


# --- every kernel with scales in fp32, with scales of a byte instead

IN_FP32 = sorted(
    path.stem
    for path in EVERY_SPEC
    if "fp32_1x128" in path.read_text(encoding="utf-8") and load_spec(path).problem.scales_sums
)


@pytest.mark.sample(4)
@pytest.mark.parametrize("stem", IN_FP32)
def test_a_kernel_of_any_kind_is_right_with_scales_of_a_byte(stem: str, tmp_path: Path) -> None:
    text, path = spec_file(stem).read_text(encoding="utf-8"), tmp_path / f"{stem}.yaml"
    path.write_text(re.sub(r"fp32_(1x128|128x128)", r"ue8m0_\1", text), encoding="utf-8")
    product = make(path)
    assert product.source.problem.a.scale is not None
    assert product.source.problem.a.scale.dtype.coded
    launch = Launch(product.source.request.check_shapes[0], 2, "integers", ("random",), most_groups=40)
    assert simulate_product(product, (launch,), seed=1).problems == ()


# --- where scales come from


def test_the_packed_scales_of_deepgemm_are_bytes_of_k(monkeypatch: pytest.MonkeyPatch) -> None:
    """`get_mn_major_tma_aligned_packed_ue8m0_tensor` packs four codes along K in an int32, M contiguous."""
    module, m, blocks = simulated(STEM, monkeypatch), 37, 6
    of_a = codes(m, blocks)
    words = torch.zeros(m, 2, dtype=torch.int64)
    for block in range(blocks):
        words[:, block // 4] += of_a.view(torch.uint8)[:, block].long() << 8 * (block % 4)
    packed = torch.empty_strided((m, 2), (1, 40), dtype=torch.int32).copy_(words)
    found = module.arrange_scales("a_scale", packed.contiguous().view(UE8M0)[:, :blocks])
    assert torch.equal(found.view(torch.uint8), of_a.view(torch.uint8))
    assert found.stride() == (1, 48)


def test_scales_of_checkpoints_become_ue8m0(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSeek-V3.1 has powers of two in fp32 (``scale_fmt: ue8m0``), other checkpoints bytes."""
    module, of_b = simulated(STEM, monkeypatch), codes(3, 5, low=1, high=255)
    for stored in (of_b.float().to(UE8M0), of_b.view(torch.uint8).clone().view(UE8M0)):
        found = module.arrange_scales("b_scale", stored)
        assert torch.equal(found.view(torch.uint8), of_b.view(torch.uint8))
        assert found.stride() == (16, 1)
        assert module.arrange_scales("b_scale", found) is found


def test_other_strides_and_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module, a, b = simulated(STEM, monkeypatch), cuda(drawn(37, 400, 0)), cuda(drawn(272, 400, 1)).T
    of_a, of_b = cuda(module.arrange_scales("a_scale", codes(37, 4))), cuda(codes(3, 4))
    message = r'b_scale must have strides \(16, 1\) .*: pass arrange_scales\("b_scale", b_scale\)'
    with pytest.raises(ValueError, match=message):
        module.matmul(a, b, a_scale=of_a, b_scale=of_b)
    with pytest.raises(TypeError, match=r"must be a tensor of torch\.float8_e8m0fnu, found torch\.uint8"):
        module.matmul(a, b, a_scale=of_a.view(torch.uint8), b_scale=of_b)


# --- scales of D


def code_of(largest: float) -> int:
    """The code of the least power of two that is at least `largest` / 448, in exact numbers."""
    quotient, exponent = Fraction(largest) / LARGEST, -127
    while Fraction(2) ** exponent < quotient:
        exponent += 1
    return exponent + 127


EDGES = [
    sign * math.ldexp(mantissa, exponent)
    for exponent in (-30, -9, -8, -1, 0, 8, 20)
    for mantissa in (1.0, 1.5, 1.75, 1.75 + 2.0**-23, 2 - 2.0**-23)
    for sign in (1, -1)
]


def test_a_scale_of_d_is_the_least_power_of_two_that_holds_its_block() -> None:
    values = torch.zeros(len(EDGES), 128)
    values[:, 5] = torch.tensor(EDGES)
    d, scales = quantized(values, 128, E4M3, UE8M0)
    assert listed(scales.view(torch.uint8)[:, 0]) == [code_of(abs(each)) for each in EDGES]
    largest = d.float().abs().amax(1)
    assert (largest <= LARGEST).all()
    assert (largest * 2 > LARGEST * 0.99).all()  # half the range is used at least


def test_the_kernel_computes_the_scales_of_d(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row m of the product has the magnitude of m, through all mantissas of e4m3 and their sums."""
    module, m = simulated(QUANTIZED, monkeypatch), 130
    a = (torch.randint(-8, 9, (m, 128), generator=torch.Generator().manual_seed(1))).float().to(E4M3)
    b = torch.randint(-8, 9, (256, 128), generator=torch.Generator().manual_seed(2)).float().to(E4M3)
    of_a = torch.exp2(torch.randint(-20, 20, (m, 1)).float())
    a[7] = torch.zeros(128).to(E4M3)
    scales = {
        name: cuda(module.arrange_scales(name, each))
        for name, each in (("a_scale", of_a), ("b_scale", torch.ones(2, 1)))
    }
    d, of_d = map(plain, module.matmul(cuda(a), cuda(b).T, **scales))
    exact = (a.double() * of_a.double()) @ b.double().T
    largest = exact.abs().view(m, 2, 128).amax(2).clamp(2.0**-100)
    assert listed(of_d.view(torch.uint8)) == [code_of(each) for each in listed(largest)]
    power = of_d.float().double().repeat_interleave(128, 1)
    assert torch.equal(d.float(), (exact / power).float().to(E4M3).float())


def test_infinities_and_zeros_have_finite_scales() -> None:
    values = torch.zeros(2, 128)
    values[1, 0] = math.inf
    d, scales = quantized(values, 128, E4M3, UE8M0)
    assert listed(scales.float()[:, 0]) == [2.0**-108, 2.0**119]
    assert d.float()[1, 0] == LARGEST
    assert code_of(2.0**-100) == 127 - 108


# --- the plan


@pytest.mark.parametrize("stem", STEMS)
def test_a_stage_has_bytes_of_scales(stem: str) -> None:
    plan = made(spec_file(stem)).plan
    for payload in plan.stage.payloads:
        if payload.kind == "block_scales":
            assert payload.bits == payload.dtype.bits
            assert payload.elements * payload.dtype.bytes >= 128


OPEN = """\
title: open
target: h100
operands:
  a: {dtype: e4m3, scale: {format: ue8m0_1x128}}
  b: {dtype: e4m3, scale: {format: ue8m0_128x128}}
  d: {dtype: bf16}
problem: {m: %d, n: 2048, k: 7168}
"""


@pytest.mark.parametrize("m", [8, 64, 4096])
def test_an_open_spec_gets_kernels_with_scales_of_32_of_k(m: int) -> None:
    text = OPEN.replace("ue8m0_1x128", "ue8m0_1x32").replace("ue8m0_128x128", "ue8m0_1x32") % m
    for each in rank(parse_spec(text.encode(), "open")).to_measure(3):
        plan = hopper(each.plan)
        assert plan.promote_k == 32
        assert plan.step_blocks == plan.cta_tile_k // 32
        assert plan.step_blocks == 1 or max(plan.a_swizzle_bytes, plan.b_swizzle_bytes) == 32


@pytest.mark.parametrize("m", [8, 64, 4096])
def test_an_open_spec_gets_kernels(m: int) -> None:
    plans = [hopper(each.plan) for each in rank(parse_spec((OPEN % m).encode(), "open")).to_measure(3)]
    assert len(plans) == 3
    assert all(plan.cta_tile_m // plan.row_shares % 16 == 0 for plan in plans)
