"""The simulator runs Blackwell kernels: tensor memory, tcgen05, pairs of CTAs, cluster launch control."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from kernels import blackwell as kernels_
from kernels.blackwell_launch import FORMATS, Bases, dense, paired, scaled

from gemmgen.errors import GemmgenError
from gemmgen.hardware import BLACKWELL
from gluonsim import POLICIES, run
from gluonsim.operations.scaled import e8m0, elements, ue4m3

pytestmark = pytest.mark.simulator

kernels = cast(Any, kernels_)
EVERY_CODE = torch.arange(256).to(torch.uint8)


def value(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    """Decode by the definition: sign, biased exponent, mantissa with a hidden one unless that is 0."""
    mantissa = code & (1 << mantissa_bits) - 1
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    sign = -1.0 if code >> (mantissa_bits + exponent_bits) & 1 else 1.0
    hidden = 1 if exponent else 0
    return sign * math.ldexp((hidden << mantissa_bits) + mantissa, max(exponent, 1) - bias - mantissa_bits)


def same(found: torch.Tensor, expected: list[float]) -> bool:
    return torch.equal(
        found.double().nan_to_num(12345.0), torch.tensor(expected).double().nan_to_num(12345.0)
    )


def test_every_e4m3_code_has_its_value() -> None:
    expected = [math.nan if code & 0x7F == 0x7F else value(code, 4, 3, 7) for code in range(256)]
    assert same(elements(EVERY_CODE, "e4m3"), expected)


def test_every_e5m2_code_has_its_value() -> None:
    expected = [value(code, 5, 2, 15) for code in range(256)]
    for sign in (0, 0x80):
        expected[sign | 0x7C] = math.copysign(math.inf, 0.5 - sign)
        expected[sign | 0x7D : (sign | 0x7F) + 1] = [math.nan] * 3
    found = elements(EVERY_CODE, "e5m2")
    assert torch.equal(found.isinf(), torch.tensor(expected).isinf())
    assert same(found, expected)


def test_every_pair_of_e2m1_codes_has_its_values_low_half_first() -> None:
    expected = [value(half, 2, 1, 1) for code in range(256) for half in (code & 0xF, code >> 4)]
    assert same(elements(EVERY_CODE.reshape(256, 1), "e2m1").flatten(), expected)


def test_every_e8m0_code_is_a_power_of_two_or_nan() -> None:
    found = e8m0(EVERY_CODE)
    assert found[255].isnan()
    # The definition, and torch where it has the type: fp32 holds all of them.
    assert found[:255].equal(torch.tensor([math.ldexp(1.0, code - 127) for code in range(255)]).double())
    assert found[:255].equal(EVERY_CODE.view(torch.float8_e8m0fnu).double()[:255])


def test_every_ue4m3_code_is_a_nonnegative_e4m3_and_others_are_refused() -> None:
    stored = EVERY_CODE.view(torch.float8_e4m3fn)
    expected = [math.nan if code == 0x7F else value(code, 4, 3, 7) for code in range(128)]
    assert same(ue4m3(stored[:128]), expected)
    for code in range(128, 256):
        with pytest.raises(GemmgenError, match="top bit set"):
            ue4m3(stored[code : code + 1])


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "e4m3", "e5m2", "fp32"])
def test_the_dense_kernel_is_clean_and_right(dtype: str) -> None:
    # Five tiles of 128 x 64 in one program, the last one ragged; 3 stages take 2 * 3 + 2 k-steps.
    depth = 8 * (128 // {"bf16": 2, "fp16": 2, "fp32": 4}.get(dtype, 1))
    schedules = (*POLICIES, *["random"] * 19) if dtype == "bf16" else ("lazy", "random")
    result, found, expected = dense(kernels_, (592, 60, depth), dtype=dtype, schedules=schedules)
    assert result.findings == ()
    assert result.uncovered == ("acc_empty[1]", "acc_ready[1]")
    assert result.deterministic
    assert found.equal(expected)


def test_the_second_accumulator_is_reused_too() -> None:
    result, found, expected = dense(kernels_, (768, 64, 192), schedules=POLICIES)
    assert result.findings == ()
    assert result.uncovered == ()
    assert found.equal(expected)


def test_two_ctas_that_share_b_by_multicast_are_clean_and_right() -> None:
    schedules = (*POLICIES, *["random"] * 6)
    result, found, expected = dense(kernels_, (720, 128, 512), ctas=2, schedules=schedules)
    assert result.findings == ()
    assert result.uncovered == ()
    assert found.equal(expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_scaled_kernel_is_clean_and_right(kind: str) -> None:
    schedules = (*POLICIES, *["random"] * 19) if kind == "mxfp8" else ("eager", "random")
    result, found, expected = scaled(kernels_, (768, 256, 1024), kind=kind, schedules=schedules)
    assert result.findings == ()
    assert result.uncovered == ()
    assert result.deterministic
    assert found.equal(expected)


def test_only_the_last_e8m0_code_is_no_number() -> None:
    assert e8m0(torch.tensor([255, 127], dtype=torch.uint8)).isnan().equal(torch.tensor([True, False]))


@pytest.mark.parametrize("accumulator", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "bases",
    [[], [[1, 0]], [[1, 0], [2, 0]], [[1, 0], [0, 1]]],
    ids=["one CTA", "a pair", "two pairs that share B", "two pairs that share A"],
)
def test_clusters_of_pairs_multiply_into_either_accumulator(bases: Bases, accumulator: str) -> None:
    for rows in (64, 128):
        result, found, expected = paired(
            kernels_, rows, bases, accumulator=accumulator, schedules=(*POLICIES, "random")
        )
        assert result.findings == ()
        assert result.uncovered == ()
        assert found.equal(expected)


@pytest.mark.parametrize("rows", [64, 128])
def test_operands_come_by_way_of_tensor_memory(rows: int) -> None:
    generator = torch.Generator().manual_seed(2)
    a = torch.randint(-3, 4, (rows, 64), generator=generator).half()
    b = torch.randint(-3, 4, (64, 64), generator=generator).half()
    d = torch.zeros(rows, 64)
    result = run(kernels.registers_kernel, (1,), (a, b, d, rows, 64, 64), target=BLACKWELL)
    assert result.findings == ()
    expected = a.float() @ b.float()
    expected[:, 32:] *= 2
    assert d.equal(expected)
