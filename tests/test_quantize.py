"""quantize: every code of 4 and 8 bits by its definition, every rounding between two codes, and blocks."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from torch import Tensor

from gemmgen.hardware import SCALE_FORMATS
from gemmgen.numerics.encoding import (
    TORCH_DTYPES,
    DType,
    block_quantized,
    decoded,
    dequantized,
    elements_per_byte,
    encoded,
)

pytestmark = pytest.mark.quick

EVERY_BYTE = torch.arange(256).to(torch.uint8)
FORMATS: dict[DType, tuple[int, int, int]] = {"e2m1": (2, 1, 1), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}
"""Bits of the exponent and the mantissa, and the bias."""
LARGEST: dict[DType, float] = {"e2m1": 6.0, "e4m3": 448.0, "e5m2": 57344.0}
BLOCKS: list[tuple[str, DType]] = [
    ("mxfp8", "e4m3"),
    ("mxfp8", "e5m2"),
    ("mxfp4", "e2m1"),
    ("nvfp4", "e2m1"),
]


def by_definition(dtype: DType, code: int) -> float:
    """Sign, biased exponent, mantissa with a hidden one unless the exponent is 0."""
    exponent_bits, mantissa_bits, bias = FORMATS[dtype]
    mantissa = code & (1 << mantissa_bits) - 1
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    sign = -1.0 if code >> (mantissa_bits + exponent_bits) else 1.0
    if dtype == "e4m3" and code & 0x7F == 0x7F:
        return math.nan
    if dtype == "e5m2" and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    hidden = (1 << mantissa_bits) if exponent else 0
    return sign * math.ldexp(hidden + mantissa, max(exponent, 1) - bias - mantissa_bits)


def numbers_of(dtype: DType) -> Tensor:
    """By code: 16 of e2m1, 256 of the others."""
    codes = range(16 if dtype == "e2m1" else 256)
    return torch.tensor([by_definition(dtype, code) for code in codes], dtype=torch.float64)


def same_bits(found: Tensor, expected: Tensor) -> bool:
    """Whether the numbers are the same, with the same signs of zeros; all NaN are one."""
    signs = torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())
    return signs and torch.equal(found.nan_to_num(1e300), expected.nan_to_num(1e300))


def listed(stored: Tensor) -> list[float]:
    """All elements, as numbers or bytes."""
    return cast("list[float]", stored.float().flatten().tolist())  # pyright: ignore[reportUnknownMemberType]


def codes_of(numbers: Tensor, dtype: DType) -> Tensor:
    """The codes that numbers of one dimension get, one each."""
    if dtype == "e2m1":
        return encoded(torch.stack((numbers, numbers), dim=1), dtype).flatten() & 0xF
    return encoded(numbers, dtype).view(torch.uint8)


# --- codes


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_every_code_of_8_bits_is_its_definition(dtype: DType) -> None:
    assert same_bits(decoded(EVERY_BYTE.view(TORCH_DTYPES[dtype]), dtype), numbers_of(dtype))


def test_every_byte_is_two_numbers_of_e2m1_low_half_first() -> None:
    expected = numbers_of("e2m1")[[half for code in range(256) for half in (code & 0xF, code >> 4)]]
    assert same_bits(decoded(EVERY_BYTE, "e2m1"), expected)
    # Along the last dimension, and back.
    table = EVERY_BYTE.reshape(32, 8)
    assert same_bits(decoded(table.T, "e2m1"), expected.reshape(32, 8, 2).transpose(0, 1).reshape(8, 64))
    assert torch.equal(encoded(decoded(table, "e2m1"), "e2m1"), table)


def test_every_ue8m0_code_is_a_power_of_two_or_nan() -> None:
    expected = torch.tensor([math.ldexp(1.0, code - 127) for code in range(255)] + [math.nan]).double()
    assert same_bits(decoded(EVERY_BYTE, "ue8m0"), expected)
    assert same_bits(decoded(EVERY_BYTE.view(torch.float8_e8m0fnu), "ue8m0"), expected)
    assert torch.equal(encoded(expected, "ue8m0").view(torch.uint8), EVERY_BYTE)


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_number_gets_its_code(dtype: DType) -> None:
    numbers = numbers_of(dtype)
    finite = numbers.isfinite()
    codes = torch.arange(len(numbers)).to(torch.uint8)
    assert torch.equal(codes_of(numbers[finite], dtype), codes[finite])


@pytest.mark.parametrize("dtype", FORMATS)
def test_between_any_two_numbers_the_nearest_is_taken_and_the_even_one_of_two(dtype: DType) -> None:
    numbers = numbers_of(dtype)
    magnitudes = numbers[: len(numbers) // 2]
    low = magnitudes[magnitudes.isfinite()][:-1]
    high = magnitudes[magnitudes.isfinite()][1:]
    below = torch.arange(len(low))
    middle = (low + high) / 2
    # The next fp32 number or the one after it, on either side.
    less, more = middle * (1 - 2**-23), middle * (1 + 2**-23)
    for sign, first in ((1.0, 0), (-1.0, len(numbers) // 2)):
        assert torch.equal(codes_of(sign * less, dtype).long(), first + below)
        assert torch.equal(codes_of(sign * more, dtype).long(), first + below + 1)
        assert torch.equal(codes_of(sign * middle, dtype).long(), first + below + below % 2)


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_too_large_saturates(dtype: DType) -> None:
    given = torch.tensor([1.01, -1.3, 2.0, math.inf], dtype=torch.float64) * LARGEST[dtype]
    found = decoded(encoded(given, dtype), dtype)
    assert torch.equal(found, torch.tensor([1.0, -1.0, 1.0, 1.0]) * LARGEST[dtype])


def test_e2m1_has_no_nan_and_no_odd_number_of_elements() -> None:
    with pytest.raises(ValueError, match="e2m1 has no NaN"):
        encoded(torch.tensor([math.nan, 1.0]), "e2m1")
    with pytest.raises(ValueError, match="share a byte, and 3 is odd"):
        encoded(torch.ones(2, 3), "e2m1")


def test_ue8m0_rounds_down_to_a_power_of_two() -> None:
    given = torch.tensor([1.0, 1.99, 2.0, 3.0, -0.3, 0.0, 2.0**-140, math.inf, math.nan])
    # The code is the exponent and 127; 0.3 is 1.2 * 2**-2.
    expected = torch.tensor([127, 127, 128, 128, 125, 0, 0, 255, 255], dtype=torch.uint8)
    assert torch.equal(encoded(given, "ue8m0").view(torch.uint8), expected)
    assert encoded(torch.tensor([1e300], dtype=torch.float64), "ue8m0").view(torch.uint8).item() == 254


def test_bytes_hold_two_elements_of_four_bits_only() -> None:
    assert {dtype: elements_per_byte(element) for dtype, element in TORCH_DTYPES.items()} == {
        dtype: 2 if dtype in ("e2m1", "int4") else 1 for dtype in TORCH_DTYPES
    }


# --- blocks


@pytest.mark.parametrize(("name", "dtype"), BLOCKS)
@pytest.mark.parametrize("k", [128, 72])
def test_a_quantized_matrix_is_near_the_one_it_was(name: str, dtype: DType, k: int) -> None:
    scale_format = SCALE_FORMATS[name]
    matrix = torch.randn(24, k, generator=torch.Generator().manual_seed(0))
    elements, scales = block_quantized(matrix, scale_format, dtype)
    assert elements.shape == (24, k // elements_per_byte(elements.dtype))
    assert scales.shape == (24, math.ceil(k / scale_format.vector))
    scale_dtype: DType = "e4m3" if name == "nvfp4" else "ue8m0"
    assert scales.dtype == TORCH_DTYPES[scale_dtype]
    values = decoded(elements, dtype)
    found = dequantized(values, decoded(scales, scale_dtype), scale_format.vector)
    # Rounding to p bits of N(0, 1) costs 0.43 * 2**-p (p = 4, 3, 2); e2m1 is coarser below 1, and
    # saturation of what is up to 1.14, 1.14 and 1.33 times too large adds to it.
    limit = {"e4m3": 0.04, "e5m2": 0.08, "e2m1": 0.16}[dtype]
    error = ((found - matrix).square().sum() / matrix.square().sum()).sqrt()
    assert limit / 3 < error < limit
    # Every block uses the upper binade, or its last one.
    assert (values.abs().amax(dim=1) >= LARGEST[dtype] / 2).all()


def test_a_block_of_mxfp4_by_hand() -> None:
    # amax 7 is 1.75 * 2**2 and 2**2 / 2**2 = 1: 7 saturates at 6, 2.5 is a tie of 2 and 3, codes 4 and 5.
    matrix = torch.zeros(1, 64)
    matrix[0, :4] = torch.tensor([7.0, 2.5, -0.2, -5.0])
    # amax 0.1 is 1.6 * 2**-4, the scale 2**-6; 0.1 * 2**6 = 6.4 saturates, and 0.03 * 2**6 = 1.92 is near 2.
    matrix[0, 32:34] = torch.tensor([0.1, 0.03])
    elements, scales = block_quantized(matrix, SCALE_FORMATS["mxfp4"], "e2m1")
    # 6, 2, -0.0 and -4 are 0x7, 0x4, 0x8 and 0xE: -5 is a tie of -4 (0xE) and -6 (0xF).
    assert listed(elements[0, :2]) == [0x47, 0xE8]
    assert elements[0, 16] == 0x47
    assert listed(scales.view(torch.uint8)) == [127, 121]


def test_a_block_of_nvfp4_by_hand() -> None:
    # 10 / 6 = 1.667 is nearest to 1.625 of e4m3 (steps of 1/8); 10 / 1.625 = 6.15 becomes 6, 4 / 1.625 = 2.46
    # becomes 2.
    matrix = torch.zeros(1, 32)
    matrix[0, :2] = torch.tensor([10.0, -4.0])
    elements, scales = block_quantized(matrix, SCALE_FORMATS["nvfp4"], "e2m1")
    assert elements[0, 0] == 0xC7
    assert listed(scales) == [1.625, 0.0]
    assert not elements[0, 1:].any()


@pytest.mark.parametrize(("name", "dtype"), BLOCKS)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_a_block_that_is_not_finite_has_a_scale_of_nan(name: str, dtype: DType, special: float) -> None:
    matrix = torch.ones(2, 64)
    matrix[1, 40] = special
    _, scales = block_quantized(matrix, SCALE_FORMATS[name], dtype)
    block = 40 // SCALE_FORMATS[name].vector
    assert listed(scales.float().isnan().nonzero()) == [1, block]


@pytest.mark.parametrize(("name", "dtype"), BLOCKS)
def test_what_a_format_holds_comes_back(name: str, dtype: DType) -> None:
    """Dequantised and quantised again: exact where the largest element of each block is the type's."""
    scale_format, scale_dtype = SCALE_FORMATS[name], "e4m3" if name == "nvfp4" else "ue8m0"
    generator = torch.Generator().manual_seed(0)
    numbers = numbers_of(dtype)
    finite = numbers[numbers.isfinite()]
    values = finite[torch.randint(len(finite), (16, 256), generator=generator)]
    values[:, :: scale_format.vector] = LARGEST[dtype]
    exponents = torch.randint(-5, 5, (16, 256 // scale_format.vector), generator=generator)
    matrix = dequantized(values, torch.exp2(exponents.double()), scale_format.vector)
    elements, scales = block_quantized(matrix, scale_format, dtype)
    assert same_bits(decoded(elements, dtype), values)
    assert torch.equal(decoded(scales, scale_dtype), torch.exp2(exponents.double()))
