"""Weights of four bits from checkpoints: bytes written by hand from the descriptions of the formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from gemmgen.integrations.weights import (
    QuantizedWeight,
    from_awq,
    from_compressed_tensors,
    from_gptq,
    from_mxfp4,
    from_nvfp4,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
UP = 0x76543210
"""A word whose elements are 0 to 7, from the lowest bits on."""
DOWN = 0x89ABCDEF - (1 << 32)
"""A word whose elements are 15 to 8."""


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


def packed(elements: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Return elements [..., 8 * words] as words by arithmetic: four bits for each place in `order`."""
    found = sum(elements[..., column::8] << 4 * place for place, column in enumerate(order))
    assert isinstance(found, Tensor)
    return torch.where(found < 1 << 31, found, found - (1 << 32)).int()


def stored_by_compressed_tensors(q: Tensor, z: Tensor, scales: Tensor) -> QuantizedWeight:
    return from_compressed_tensors(packed(q), scales, weight_zero_point=packed(z.mT).mT)


def stored_by_awq(q: Tensor, z: Tensor, scales: Tensor) -> QuantizedWeight:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return from_awq(packed(q.mT, order), packed(z.mT, order), scales.mT)


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
        packed(q).mT,
        scales.mT,
        qzeros=torch.full((3, 2, 2), 0x77777777, dtype=torch.int32, device=device),
        g_idx=torch.arange(64, device=device, dtype=torch.int32) // 32,
    )
    expected = (q - 8).double() * scales.double().repeat_interleave(32, 2)
    assert torch.equal(weight.numbers(), expected)


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
    "bytes for words": (
        lambda: from_awq(words([UP]).view(torch.uint8), words([UP]), halves([1.0] * 8)),
        "qweight must be int32 words of eight elements in a matrix, found torch.uint8 [1, 4]",
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
