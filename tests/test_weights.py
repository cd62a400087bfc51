"""Quantised weights from checkpoints: bytes written by hand from the descriptions of the formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from stored_weights import AWQ_ORDER, in_words
from torch import Tensor

from gemmgen.integrations.weights import (
    QuantizedWeight,
    from_awq,
    from_compressed_tensors,
    from_gptq,
    from_mxfp4,
    from_nvfp4,
    from_unpacked,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
UP = 0x76543210
"""A word whose elements are 0 to 7, from the lowest bits on."""
DOWN = 0x89ABCDEF - (1 << 32)
"""A word whose elements are 15 to 8."""
FOUR = 0xFF818000 - (1 << 32)
"""A word whose elements of eight bits are -128, 0, 1 and 127, stored plus 128: 0, 128, 129 and 255."""


def words(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def halves(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bfloat16)


def listed(tensor: Tensor) -> Any:
    return cast(Any, tensor).tolist()


def assert_numbers(weight: QuantizedWeight, expected: list[list[float]]) -> None:
    """Compare all numbers of a weight: they are exact."""
    assert listed(weight.numbers()) == expected
    assert weight.shape == [len(expected), len(expected[0])]


def test_a_word_of_compressed_tensors_has_eight_k_of_a_row() -> None:
    weight = from_compressed_tensors(words([UP], [DOWN]), halves([1.0], [0.5]))
    assert weight.vector == 8
    assert listed(weight.codes) == [[0x10, 0x32, 0x54, 0x76], [0xEF, 0xCD, 0xAB, 0x89]]
    assert_numbers(weight, [[-8, -7, -6, -5, -4, -3, -2, -1], [3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0]])


def test_a_scale_belongs_to_a_group_of_k() -> None:
    weight = from_compressed_tensors(words([UP, UP]), halves([1.0, 4.0]))
    assert weight.vector == 8
    assert_numbers(weight, [[*range(-8, 0), *range(-32, 0, 4)]])


def test_a_last_group_may_be_shorter() -> None:
    weight = from_compressed_tensors(words([UP, UP, UP]), halves([1.0, 2.0]), group_size=16)
    assert_numbers(weight, [[*range(-8, 0), *range(-8, 0), *range(-16, 0, 2)]])


def test_zero_points_of_compressed_tensors_have_eight_rows_in_a_word() -> None:
    packed, scales = words(*[[UP]] * 10), halves(*[[1.0]] * 10)
    # Rows 0 to 7 have zeros 0 to 7, rows 8 and 9 have 15 and 14: stored, and subtracted, with 8 added.
    weight = from_compressed_tensors(packed, scales, weight_zero_point=words([UP], [DOWN]))
    expected = [[q - z for q in range(8)] for z in (*range(8), 15, 14)]
    assert_numbers(weight, [[float(number) for number in row] for row in expected])


def test_a_word_of_gptq_has_eight_k_of_a_column() -> None:
    weight = from_gptq(words([UP, DOWN] * 4), halves([1.0, 0.5] * 4), qzeros=words([0x77777777]))
    up, down = [float(q) for q in range(-8, 0)], [3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0]
    assert_numbers(weight, [up, down] * 4)


def test_scales_of_gptq_have_a_row_for_each_group() -> None:
    weight = from_gptq(words([UP], [UP]), halves([1.0], [4.0]), group_size=8)
    assert_numbers(weight, [[*range(-8, 0), *range(-32, 0, 4)]])


def test_a_word_of_eight_bits_of_compressed_tensors_has_four_k_of_a_row() -> None:
    weight = from_compressed_tensors(words([FOUR], [0x7F]), halves([1.0], [0.5]), bits=8)
    assert (weight.element, weight.codes.dtype, weight.vector) == ("int8", torch.int8, 4)
    assert listed(weight.codes) == [[-128, 0, 1, 127], [-1, -128, -128, -128]]
    assert_numbers(weight, [[-128, 0, 1, 127], [-0.5, -64, -64, -64]])


def test_zero_points_of_eight_bits_may_say_that_a_layer_is_symmetric() -> None:
    symmetric = words([0x80808080 - (1 << 32)])  # of four rows
    packed, scales = words(*[[FOUR]] * 4), halves(*[[1.0]] * 4)
    weight = from_compressed_tensors(packed, scales, weight_zero_point=symmetric, bits=8)
    assert_numbers(weight, [[-128, 0, 1, 127]] * 4)


@pytest.mark.parametrize("qzeros", [0x7F7F7F7F, 0x80808080 - (1 << 32)])
def test_a_word_of_eight_bits_of_gptq_has_four_k_of_a_column(qzeros: int) -> None:
    g_idx = torch.arange(8, dtype=torch.int32) // 4
    given = words([FOUR, 0x7F] * 2, [FOUR, FOUR] * 2), halves([1.0, 0.5] * 2, [2.0, 4.0] * 2)
    weight = from_gptq(*given, qzeros=words([qzeros], [qzeros]), g_idx=g_idx, group_size=4, bits=8)
    rows = [[-128, 0, 1, 127, -256, 0, 2, 254], [-0.5, -64, -64, -64, -512, 0, 4, 508]]
    assert weight.element == "int8"
    assert_numbers(weight, [[float(number) for number in row] for row in rows * 2])


E4M3_BYTES = [0x00, 0x01, 0x08, 0x38, 0x7E, 0x80, 0xB8, 0xFE]
E4M3 = [0.0, 2.0**-9, 2.0**-6, 1.0, 448.0, -0.0, -1.0, -448.0]
"""[fp8] The least number, the least normal one, 1, the largest one, and negatives of some."""


@pytest.mark.parametrize("scales", [torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5]])])
def test_a_weight_that_is_not_packed_may_have_one_scale(scales: Tensor) -> None:
    stored = torch.tensor([E4M3_BYTES] * 3, dtype=torch.uint8).view(torch.float8_e4m3fn)
    weight = from_unpacked(stored, scales)
    assert (weight.element, weight.vector) == ("e4m3", 8)
    assert weight.codes.data_ptr() == stored.data_ptr()
    assert_numbers(weight, [[number / 2 for number in E4M3]] * 3)


def test_a_weight_that_is_not_packed_may_have_scales_of_rows_and_of_groups() -> None:
    stored = torch.tensor([[-128, 0, 1, 127], [3, 4, 5, 6]], dtype=torch.int8)
    of_rows = from_unpacked(stored, halves([1.0], [2.0]))
    assert (of_rows.element, of_rows.vector) == ("int8", 4)
    assert_numbers(of_rows, [[-128, 0, 1, 127], [6, 8, 10, 12]])
    of_groups = from_unpacked(stored, halves([1.0, 2.0], [4.0, 8.0]), group_size=2)
    assert_numbers(of_groups, [[-128, 0, 2, 254], [12, 16, 40, 48]])
    ragged = from_unpacked(stored[:, :3], halves([1.0, 2.0], [4.0, 8.0]), group_size=2)
    assert_numbers(ragged, [[-128, 0, 2], [12, 16, 40]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
def test_a_scale_of_deepseek_belongs_to_128_rows_and_128_of_k(dtype: torch.dtype) -> None:
    stored = torch.ones(130, 200).to(torch.float8_e4m3fn)
    weight = from_unpacked(stored, torch.tensor([[1.0, 2.0], [4.0, 8.0]]).to(dtype))
    expected = torch.ones(130, 200).double()
    expected[:128, 128:], expected[128:, :128], expected[128:, 128:] = 2, 4, 8
    assert weight.vector == 128
    assert torch.equal(weight.numbers(), expected)


def test_a_scale_of_larger_blocks_is_repeated_for_each_block() -> None:
    stored = torch.arange(-100, 100).to(torch.int8).repeat(2, 3)
    for weight in (
        from_unpacked(stored, torch.tensor(0.5)),
        from_unpacked(stored, halves([1.0], [2.0])),
        from_unpacked(stored, halves([1.0, 2.0, 4.0], [8.0, 16.0, 32.0]), group_size=256),
    ):
        repeated = weight.with_blocks_of(128)
        assert repeated.scales.shape == (2, 5)
        assert repeated.codes is weight.codes
        assert torch.equal(repeated.numbers(), weight.numbers())


def test_a_word_of_awq_has_eight_columns_of_a_row_in_an_order_of_its_own() -> None:
    # From the lowest bits on: columns 0, 2, 4, 6, 1, 3, 5, 7 have 0, 1, 2, 3, 4, 5, 6, 7.
    of_columns = [0, 4, 1, 5, 2, 6, 3, 7]
    weight = from_awq(words([UP], [DOWN]), words([0x11111111]), halves([1.0] * 8))
    assert weight.vector == 2
    assert_numbers(weight, [[float(q - 1), float(15 - q - 1)] for q in of_columns])


def test_zero_points_of_awq_have_the_same_order() -> None:
    weight = from_awq(words([0], [0]), words([UP]), halves([1.0] * 8))
    assert_numbers(weight, [[float(-z)] * 2 for z in (0, 4, 1, 5, 2, 6, 3, 7)])


def test_a_block_of_mxfp4_has_sixteen_bytes_and_a_power_of_two() -> None:
    # [ocp] codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6, and 8 more is their negative.
    pairs = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    expected = ([*positive, *(-number for number in positive)]) * 2
    blocks = torch.tensor([[[pairs, pairs]]], dtype=torch.uint8)
    weight = from_mxfp4(blocks, torch.tensor([[[127, 129]]], dtype=torch.uint8))
    assert weight.shape == [1, 1, 64]
    assert listed(weight.numbers()) == [[[*expected, *(4 * number for number in expected)]]]


def test_blocks_of_gpt_oss_are_as_transformers_dequantizes_them() -> None:
    from transformers.integrations import mxfp4

    draw = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8, generator=draw)
    scales = torch.randint(120, 134, (3, 8, 2), dtype=torch.uint8, generator=draw)
    theirs = cast(Any, mxfp4).convert_moe_packed_tensors(blocks.clone(), scales.clone())  # [E, K, N]
    assert torch.equal(from_mxfp4(blocks, scales).numbers(), theirs.double().mT)


@pytest.mark.parametrize(("name", "stored"), [("factor", 0.25), ("divisor", 4.0)])
def test_nvfp4_has_two_scales(name: str, stored: float) -> None:
    weight = torch.tensor([[0x31] * 16], dtype=torch.uint8)  # 0.5, 1.5
    scales = torch.tensor([[2.0, 8.0]]).to(torch.float8_e4m3fn)
    found = from_nvfp4(weight, scales, **{name: torch.tensor(stored)})
    assert_numbers(found, [[0.25, 0.75] * 8 + [1.0, 3.0] * 8])


# --- all experts, and the memory of a checkpoint


def int4_of_all(draw: torch.Generator, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return elements, zero points and scales of three experts [3, 16, 64] with groups of 32."""
    q = torch.randint(0, 16, (3, 16, 64), generator=draw)
    z = torch.randint(0, 16, (3, 16, 2), generator=draw)
    scales = torch.randn(3, 16, 2, generator=draw).bfloat16()
    return q.to(device), z.to(device), scales.to(device)


def stored_by_compressed_tensors(q: Tensor, z: Tensor, scales: Tensor) -> QuantizedWeight:
    return from_compressed_tensors(in_words(q), scales, weight_zero_point=in_words(z.mT).mT)


def stored_by_awq(q: Tensor, z: Tensor, scales: Tensor) -> QuantizedWeight:
    return from_awq(in_words(q.mT, AWQ_ORDER), in_words(z.mT, AWQ_ORDER), scales.mT)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stored", [stored_by_compressed_tensors, stored_by_awq])
def test_all_experts_come_back(stored: Callable[..., QuantizedWeight], device: str) -> None:
    q, z, scales = int4_of_all(torch.Generator().manual_seed(2), device)
    expected = (q - z.repeat_interleave(32, 2)).double() * scales.double().repeat_interleave(32, 2)
    weight = stored(q, z, scales)
    assert weight.codes.device.type == device
    assert torch.equal(weight.numbers(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_all_experts_of_gptq_come_back(device: str) -> None:
    q, _, scales = int4_of_all(torch.Generator().manual_seed(3), device)
    weight = from_gptq(
        in_words(q).mT,
        scales.mT,
        qzeros=torch.full((3, 2, 2), 0x77777777, dtype=torch.int32, device=device),
        g_idx=torch.arange(64, device=device, dtype=torch.int32) // 32,
    )
    expected = (q - 8).double() * scales.double().repeat_interleave(32, 2)
    assert torch.equal(weight.numbers(), expected)


def of_words(q: Tensor, scales: Tensor) -> QuantizedWeight:
    return from_compressed_tensors(in_words(q + 128, tuple(range(4))), scales, bits=8)


def of_columns(q: Tensor, scales: Tensor) -> QuantizedWeight:
    zeros = torch.full((3, 2, 4), 0x7F7F7F7F, dtype=torch.int32, device=q.device)
    return from_gptq(in_words(q + 128, tuple(range(4))).mT, scales.mT, qzeros=zeros, bits=8)


def of_numbers(q: Tensor, scales: Tensor) -> QuantizedWeight:
    return from_unpacked(q.to(torch.int8), scales)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stored", [of_words, of_columns, of_numbers])
def test_all_experts_of_int8_come_back(stored: Callable[..., QuantizedWeight], device: str) -> None:
    draw = torch.Generator().manual_seed(4)
    q = torch.randint(-128, 128, (3, 16, 64), generator=draw).to(device)
    scales = torch.randn(3, 16, 2, generator=draw).bfloat16().to(device)
    weight = stored(q.mT.contiguous().mT if stored is of_columns else q, scales)
    assert (weight.element, weight.codes.device.type) == ("int8", device)
    assert torch.equal(weight.codes, q.to(torch.int8))
    assert torch.equal(weight.numbers(), q.double() * scales.double().repeat_interleave(32, 2))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 1), (3, 256, 1), (3, 2, 2)])
def test_all_experts_of_fp8_come_back(shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(5)
    stored = torch.randn(3, 256, 200, generator=draw).to(torch.float8_e4m3fn)
    scales = torch.rand(shape, generator=draw)
    wide = scales.double().reshape(3, *shape[1:], *(1,) * (3 - len(shape)))
    if shape == (3, 2, 2):
        wide = wide.repeat_interleave(128, 1).repeat_interleave(128, 2)[..., :200]
    assert torch.equal(from_unpacked(stored, scales).numbers(), stored.double() * wide)


def test_a_weight_in_order_is_not_copied() -> None:
    stored = words([UP, DOWN], [DOWN, UP])
    weight = from_compressed_tensors(stored, halves([1.0], [1.0]))
    assert weight.codes.data_ptr() == stored.data_ptr()


# --- what is refused, and why


SHUFFLED = torch.tensor([0, 1] * 8, dtype=torch.int32)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "act-order of GPTQ": (
        lambda: from_gptq(words([UP], [UP]), halves([1.0], [1.0]), g_idx=SHUFFLED),
        "g_idx assigns scales to K in another order than K's own",
    ),
    "act-order of compressed-tensors": (
        lambda: from_compressed_tensors(words([UP, UP]), halves([1.0, 1.0]), weight_g_idx=SHUFFLED),
        "Quantize the model without desc_act",
    ),
    "zero points of GPTQ": (
        lambda: from_gptq(words([UP] * 8), halves([1.0] * 8), qzeros=words([UP])),
        "qzeros has numbers from 0 to 7; a symmetric layer has 7 everywhere",
    ),
    "a number of scales that divides no K": (
        lambda: from_compressed_tensors(words([UP, UP, UP]), halves([1.0] * 5)),
        "K = 24 has 5 scales, which do not divide it: pass the group_size",
    ),
    "a group_size of other scales": (
        lambda: from_compressed_tensors(words([UP, UP]), halves([1.0, 1.0]), group_size=16),
        "K = 16 has scales of 2 blocks, and a group_size of 16 gives 1",
    ),
    "a group_size that is no power of two": (
        lambda: from_compressed_tensors(words([UP, UP]), halves([1.0, 1.0]), group_size=12),
        "group_size must be a power of two, K, or -1 for K, found 12",
    ),
    "groups of another size in order": (
        lambda: from_gptq(
            words([UP], [UP], [UP]), halves([1.0], [1.0]), group_size=16,
            g_idx=torch.arange(24, dtype=torch.int32) // 8,
        ),
        "g_idx has a scale for each 8 elements of K, and group_size says 16",
    ),
    "weights of eight bits": (
        lambda: from_gptq(words([UP], [UP]), halves([1.0], [1.0]), g_idx=torch.zeros(8, dtype=torch.int32)),
        "g_idx has 8 elements, and K is 16: are these weights of 4 bits?",
    ),
    "zero points of eight bits": (
        lambda: from_gptq(words([UP] * 8), halves([1.0] * 8), qzeros=words([0x77777777] * 2)),
        "qzeros must be int32 [1, 1], found [1, 2]: are these 4 bits?",
    ),
    "an order of K of another length, of eight bits": (
        lambda: from_gptq(
            words([UP], [UP]), halves([1.0], [1.0]), g_idx=torch.zeros(16, dtype=torch.int32), bits=8
        ),
        "g_idx has 16 elements, and K is 8: are these weights of 8 bits?",
    ),
    "act-order of GPTQ of eight bits": (
        lambda: from_gptq(words([FOUR], [FOUR]), halves([1.0], [1.0]), g_idx=SHUFFLED[:8], bits=8),
        "g_idx assigns scales to K in another order than K's own",
    ),
    "zero points of GPTQ of eight bits": (
        lambda: from_gptq(words([FOUR] * 4), halves([1.0] * 4), qzeros=words([FOUR]), bits=8),
        "qzeros has numbers from 0 to 255; a symmetric layer has 127 everywhere (gptq) or 128 (gptq_v2)",
    ),
    "zero points of compressed-tensors of eight bits": (
        lambda: from_compressed_tensors(
            words([FOUR]), halves([1.0]), weight_zero_point=words([FOUR]), bits=8
        ),
        "weight_zero_point has numbers from 0 to 0 (asymmetric), and a symmetric layer has 128 everywhere",
    ),
    "a weight of another type": (
        lambda: from_unpacked(torch.zeros(2, 2, dtype=torch.uint8), torch.ones(2, 1)),
        "a weight that is not packed must be int8 or float8_e4m3fn [N, K], found torch.uint8 [2, 2]",
    ),
    "scales of blocks of another size": (
        lambda: from_unpacked(torch.zeros(256, 256, dtype=torch.int8), torch.ones(4, 4)),
        "[1] of its matrix, [256, 1] of rows, [256, groups], or [2, 2] of blocks of 128 x 128, found [4, 4]",
    ),
    "zero points of a weight of int8": (
        lambda: QuantizedWeight(
            "int8", torch.zeros(1, 4, dtype=torch.int8), torch.ones(1, 1), 4, torch.zeros(1, 1).byte()
        ),
        "int8 has no zero points",
    ),
    "bytes for words": (
        lambda: from_awq(words([UP]).view(torch.uint8), words([UP]), halves([1.0] * 8)),
        "qweight must be int32 words in a matrix, found torch.uint8 [1, 4]",
    ),
    "scales of integers": (
        lambda: from_compressed_tensors(words([UP]), words([1])),
        "scales of int4 must be torch.bfloat16 or torch.float16 or torch.float32, found torch.int32",
    ),
    "both factors of nvfp4": (
        lambda: from_nvfp4(
            torch.zeros(1, 8, dtype=torch.uint8), torch.ones(1, 1).to(torch.float8_e4m3fn),
            factor=torch.ones(1), divisor=torch.ones(1),
        ),
        "nvfp4 needs one of factor (modelopt's weight_scale_2) and divisor (compressed-tensors)",
    ),
    "a factor for each of three experts of two": (
        lambda: from_nvfp4(
            torch.zeros(2, 1, 8, dtype=torch.uint8), torch.ones(2, 1, 1).to(torch.float8_e4m3fn),
            factor=torch.ones(3),
        ),
        "nvfp4 has one factor for each matrix of [2], found [3]",
    ),
    "scales of another number of rows": (
        lambda: from_mxfp4(torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(3, 1, dtype=torch.uint8)),
        "scales of a weight [4, 32] must be uint8 or float8_e8m0fnu [4, 1], found torch.uint8 [3, 1]",
    ),
    "scales of mxfp4 as numbers": (
        lambda: from_mxfp4(torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 1)),
        "scales of a weight [4, 32] must be uint8 or float8_e8m0fnu [4, 1], found torch.float32 [4, 1]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_tensors_are_refused_with_the_reason(name: str) -> None:
    call, reason = REFUSED[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is compared
        call()
    assert reason in str(caught.value)
