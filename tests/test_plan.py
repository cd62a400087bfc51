"""What follows from a plan's decisions, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hopper import computing, judge
from modules import spec_file
from work import calls_of

from gemmgen.features.planning import SIDES
from gemmgen.features.rendering import render
from gemmgen.features.split_k.planning import partial_bytes
from gemmgen.features.split_k.splits_together import splits_at_once
from gemmgen.hardware import GPUS, HOPPER, TRITON
from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.roles import RegisterPool, balanced_consumer_registers, captures
from gemmgen.plan.rule import altered
from gemmgen.plan.shared_rules import misfit_buffers
from gemmgen.plan.storage import SharedBuffer, SharedMemory
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.bounds import (
    most_consumers,
    most_stages,
    threads_of,
)
from gemmgen.planner.ledger import Ledger, LedgerSection, ledger
from gemmgen.problem import Matmul, Operand, Request
from gemmgen.product import Product, make

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
BF16 = DTYPES["bf16"]
PRODUCT = Matmul(
    a=Operand(BF16, "k"),
    b=Operand(BF16, "k"),
    c=None,
    d=BF16,
    accumulator=DTYPES["fp32"],
)
REQUEST = Request(
    PRODUCT, GPUS["h100"], "128 x 256 tiles for two consumers", bench_shapes=((8192, 8192, 8192),)
)
TWO_CONSUMERS = WgmmaKernel(
    request=REQUEST,
    sides=SIDES["wgmma"],
    cta_tile_m=128,
    cta_tile_n=256,
    cta_tile_k=64,
    mma_n=256,
    staggered=False,
    promote_k=0,
    warps_m=4,
    warps_n=1,
    cluster_m=1,
    cluster_n=1,
    a_source="shared",
    a_swizzle_bytes=128,
    b_swizzle_bytes=128,
    stages=4,
    outstanding_mmas=0,
    epilogue_buffers=1,
    subtile_n=128,
    specialization="cooperative",
    consumers=2,
    producer_registers=40,
    swap_ab=False,
    splits=1,
    reduction="ordered",
    early_operand="none",
    trigger="end",
    consumer_registers=232,
    schedule_kind="persistent",
    order="snake",
    minor="m",
    width=16,
    occupancy=1,
)
SQUARE = replace(TWO_CONSUMERS, cta_tile_n=128, mma_n=128)
LONE_CONSUMER = replace(TWO_CONSUMERS, consumers=1, warps_m=8, producer_registers=24, consumer_registers=240)
FOUR_CONSUMERS = replace(SQUARE, cta_tile_m=256, stages=3, consumers=4, consumer_registers=104)
PAIR_OF_CTAS = replace(TWO_CONSUMERS, cluster_m=2)
PAIR_ALONG_N = replace(TWO_CONSUMERS, cluster_n=2, stages=3, subtile_n=256)
FOUR_CTAS = replace(SQUARE, cluster_m=2, cluster_n=2, stages=6)
PING_PONG = replace(SQUARE, specialization="ping_pong", stages=6, outstanding_mmas=1, subtile_n=64)
UNSPECIALIZED = replace(
    TWO_CONSUMERS,
    specialization="none",
    consumers=1,
    warps_m=8,
    producer_registers=0,
    consumer_registers=255,
    outstanding_mmas=1,
    schedule_kind="tiled",
    order="grouped",
)
BLOCKED = replace(
    UNSPECIALIZED,
    cta_tile_n=128,
    cta_tile_k=128,
    mma_n=128,
    stages=1,
    outstanding_mmas=0,
    consumer_registers=128,
    occupancy=2,
)
SINGLE_TILE = replace(
    UNSPECIALIZED,
    cta_tile_m=64,
    cta_tile_n=128,
    mma_n=64,
    warps_m=4,
    stages=1,
    outstanding_mmas=0,
    schedule_kind="single_tile",
)
COMPOSED = replace(TWO_CONSUMERS, cta_tile_n=192, mma_n=128, subtile_n=64)
THIRDS = replace(
    COMPOSED,
    cta_tile_m=192,
    stages=3,
    consumers=3,
    consumer_registers=152,
    epilogue_buffers=3,
    order="grouped",
)
PLANS = (TWO_CONSUMERS, LONE_CONSUMER, FOUR_CONSUMERS, PAIR_OF_CTAS)
KINDS = {
    "two": TWO_CONSUMERS,
    "lone": LONE_CONSUMER,
    "four": FOUR_CONSUMERS,
    "2x1": PAIR_OF_CTAS,
    "1x2": PAIR_ALONG_N,
    "2x2": FOUR_CTAS,
    "ping_pong": PING_PONG,
    "pipelined": UNSPECIALIZED,
    "blocked": BLOCKED,
    "composed": COMPOSED,
    "thirds": THIRDS,
    "single_tile": replace(SINGLE_TILE, request=replace(REQUEST, bench_shapes=())),
}


def of_type(plan: WgmmaKernel, name: str) -> WgmmaKernel:
    """The same decisions for operands of another type."""
    return computing(plan, a=Operand(DTYPES[name], "k"), b=Operand(DTYPES[name], "k"))


every_plan = pytest.mark.parametrize("plan", KINDS.values(), ids=KINDS)


@every_plan
def test_the_plans_of_this_file_are_legal(plan: WgmmaKernel) -> None:
    assert judge(plan) == ()


# --- tiles


def test_consumers_share_a_tile_s_rows_and_a_lone_one_takes_two_warpgroups() -> None:
    assert [plan.cta_consumer_tile_m for plan in PLANS] == [64, 128, 64, 64]
    assert [plan.consumer_warps for plan in PLANS] == [4, 8, 4, 4]


def test_ping_pong_consumers_have_a_tile_each_and_all_of_its_rows() -> None:
    assert (PING_PONG.row_shares, PING_PONG.cta_consumer_tile_m, PING_PONG.consumer_warps) == (1, 128, 4)
    assert [buffer.name for buffer in PING_PONG.resources.a] == ["a_smem"]
    assert [epilogue.d.name for epilogue in PING_PONG.resources.epilogues] == ["d_smem_0", "d_smem_1"]


def test_a_pair_of_ctas_is_one_program_of_twice_the_rows() -> None:
    assert (PAIR_OF_CTAS.program_tile_m, PAIR_OF_CTAS.program_tile_n) == (256, 256)
    assert PAIR_OF_CTAS.consumer_tile_m == 128
    assert (PAIR_ALONG_N.program_tile_m, PAIR_ALONG_N.program_tile_n) == (128, 512)
    assert (FOUR_CTAS.program_tile_m, FOUR_CTAS.program_tile_n) == (256, 256)


def test_ctas_along_m_share_b_and_those_along_n_share_a() -> None:
    plans = (TWO_CONSUMERS, PAIR_OF_CTAS, PAIR_ALONG_N, FOUR_CTAS)
    assert [plan.multicast for plan in plans] == [(), ("b",), ("a",), ("a", "b")]


def test_a_basis_is_zero_where_the_ctas_of_its_bit_hold_the_same() -> None:
    # One basis for each bit of a CTA's rank, those along M first. D is divided both ways; A [M, K] along its
    # rows alone, and B stored [N, K] too.
    d, a, b = (0, 1), (0, None), (None, 0)
    bases = [[plan.bases(*axes) for axes in (d, a, b)] for plan in (PAIR_OF_CTAS, PAIR_ALONG_N, FOUR_CTAS)]
    assert bases == [
        [[[1, 0]], [[1, 0]], [[0, 0]]],
        [[[0, 1]], [[0, 0]], [[1, 0]]],
        [[[1, 0], [0, 1]], [[1, 0], [0, 0]], [[0, 0], [1, 0]]],
    ]
    # Four along M are two bits, of which the second counts two rows of tiles.
    assert replace(TWO_CONSUMERS, cluster_m=4).bases(*d) == [[1, 0], [2, 0]]
    # A column operand [N] of the epilogue has one extent.
    assert FOUR_CTAS.bases(None, 0, rank=1) == [[0], [1]]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        # An instruction takes 32 bytes of K of each row.
        ("bf16", (64, 256, 16)),
        ("fp16", (64, 256, 16)),
        ("tf32", (64, 256, 8)),
        ("e4m3", (64, 256, 32)),
        ("int8", (64, 256, 32)),
    ],
)
def test_an_instruction_is_as_deep_as_32_bytes(dtype: str, shape: tuple[int, int, int]) -> None:
    assert of_type(TWO_CONSUMERS, dtype).mma_shape == shape
    assert of_type(TWO_CONSUMERS, dtype).mma_name == f"m64n256k{shape[2]}"


def test_int8_instructions_are_at_most_half_as_wide_as_others() -> None:
    widths = [of_type(TWO_CONSUMERS, dtype).widest_mma_n for dtype in ("bf16", "tf32", "e5m2", "int8")]
    assert widths == [256, 256, 256, 128]


def test_a_warpgroup_issues_an_instruction_for_every_64_rows_its_columns_and_its_depth() -> None:
    # 64 x 256 x 64: one by one by four.
    assert TWO_CONSUMERS.mmas_per_step == 4
    # A lone consumer's eight warps are two warpgroups of 64 rows each.
    assert LONE_CONSUMER.mmas_per_step == 4
    # 128 rows of one warpgroup: 2 x 1 x 4.
    assert PING_PONG.mmas_per_step == 8
    # Warps side by side have 128 rows and 128 columns per warpgroup: 2 x 1 x 4.
    assert replace(LONE_CONSUMER, warps_m=4, warps_n=2, mma_n=128).mmas_per_step == 8
    # Narrower instructions: 1 x 128 / 64 x 4.
    assert SINGLE_TILE.mmas_per_step == 8


def test_a_narrow_subtile_splits_the_tile_and_a_wide_one_does_not() -> None:
    plans = [replace(TWO_CONSUMERS, subtile_n=n) for n in (8, 64, 128, 256)]
    assert [plan.subtiles for plan in plans] == [32, 4, 2, 1]


def test_the_accumulator_takes_a_register_per_element_of_a_thread() -> None:
    # Rows x columns of a consumer over its threads: 64 x 256 / 128, 128 x 256 / 256, 64 x 128 / 128.
    assert [plan.accumulator_registers for plan in PLANS] == [128, 128, 64, 128]
    assert PING_PONG.accumulator_registers == 128 * 128 // 128


def test_two_16_bit_sums_share_a_register() -> None:
    half = computing(TWO_CONSUMERS, accumulator=DTYPES["fp16"])
    assert half.accumulator_registers == TWO_CONSUMERS.accumulator_registers // 2 == 64
    assert half.ptxas_notes == ("C7511", "C7514", "C7517")
    assert TWO_CONSUMERS.ptxas_notes == ()


def test_a_promoted_sum_needs_as_many_registers_again() -> None:
    # 64 x 128 / 128 hold the accumulator, and as many the sum of a step.
    plain = replace(of_type(SQUARE, "e4m3"), cta_tile_k=128)
    assert plain.accumulator_registers == 64
    assert replace(plain, promote_k=128).accumulator_registers == 128


def test_a_from_registers_takes_those_of_a_k_step() -> None:
    assert TWO_CONSUMERS.operand_registers == 0
    # 64 rows x 64 of K x 2 bytes over 128 threads of 4 bytes a register; a byte each, half as many.
    assert replace(TWO_CONSUMERS, a_source="registers").operand_registers == 16
    assert replace(of_type(TWO_CONSUMERS, "int8"), a_source="registers").operand_registers == 8
    # Of eight warps side by side, both groups of four hold all 128 rows: 128 x 64 x 2 / 4 / 128.
    beside = replace(LONE_CONSUMER, warps_m=4, warps_n=2, a_source="registers")
    assert beside.operand_registers == 32


def test_the_instruction_has_the_type_that_is_multiplied_and_memory_the_one_that_is_stored() -> None:
    stored = Operand(DTYPES["int8"], "k", decoded=DTYPES["bf16"])
    plan = computing(TWO_CONSUMERS, b=stored)
    assert (plan.mma_k, plan.widest_mma_n, plan.mma_types) == (16, 256, ("f32", "bf16", "bf16"))
    # 128 rows of A x 64 of K x 2 bytes, and 256 columns of B x 64 of K x 1 byte.
    assert plan.stage_bytes == 128 * 64 * 2 + 256 * 64
    # Fragments have the type that is multiplied: 64 rows x 64 of K x 2 bytes, as those of bf16.
    of_a = computing(TWO_CONSUMERS, a=stored, b=stored)
    assert replace(of_a, a_source="registers").operand_registers == 16


@pytest.mark.parametrize(
    ("row_elements", "dtype", "swizzle"),
    [
        (256, "bf16", 128),
        (64, "bf16", 128),  # 64 x 2 bytes fill the widest
        (32, "bf16", 64),
        (16, "bf16", 32),  # k of a single wgmma
        (8, "bf16", 0),  # 16 bytes, the shortest row that TMA stores
        (32, "fp32", 128),
        (8, "fp32", 32),
    ],
)
def test_a_swizzle_spans_no_more_than_a_row(row_elements: int, dtype: str, swizzle: int) -> None:
    assert TWO_CONSUMERS.widest_swizzle(row_elements, DTYPES[dtype].bits) == swizzle


# --- shared memory, to the byte

WITH_C = replace(
    computing(SQUARE, c=BF16, ops=("column_bias", "silu", "residual")),
    stages=6,
    epilogue_buffers=2,
    subtile_n=32,
)
BYTES = {
    # A: 4 stages x 128 x 64 x 2 = 65,536; B: 4 x 256 x 64 x 2 = 131,072; D: 2 x 64 x 128 x 2 = 32,768.
    # Captures: 3 descriptors x 8, 4 scalars x 4, 2 barriers x 16, 3 rings of tiles (2 A, B) x 20, the buffer
    # of D 16 = 148, padded to 160. The barriers take 2 x 4 x 8 = 64; eight worker warps 8.
    "two consumers": (TWO_CONSUMERS, 65_536 + 131_072 + 32_768 + 160 + 64 + 8),
    # D: 2 consumers x 64 x 64 x 4.
    "fp32 out": (
        replace(computing(TWO_CONSUMERS, d=DTYPES["fp32"]), subtile_n=64),
        65_536 + 131_072 + 32_768 + 160 + 64 + 8,
    ),
    # A third barrier ring, captured too: 164, padded to 176, and 96.
    "2 x 1 CTAs": (PAIR_OF_CTAS, 65_536 + 131_072 + 32_768 + 176 + 96 + 8),
    # Three stages, and D stored whole, 2 x 64 x 256 x 2, with a descriptor of rank 2: 164 of captures. Two of
    # the three rings of 3 x 8 = 24 bytes are padded to 32.
    "1 x 2 CTAs": (PAIR_ALONG_N, 49_152 + 98_304 + 65_536 + 176 + 32 + 32 + 24 + 8),
    # A and B: 6 x 128 x 64 x 2 = 98,304 each. D is stored whole, 2 x 64 x 128 x 2, so its descriptor is of
    # rank 2. Captures: 24 + 16 + 4 barriers x 16 + 3 x 20 + 16 = 180, padded to 192; four rings of 48.
    "2 x 2 CTAs": (FOUR_CTAS, 98_304 + 98_304 + 32_768 + 192 + 192 + 8),
    # Only two rings: 180 - 2 x 16 = 148, padded to 160, and 96.
    "a deep ring": (replace(SQUARE, stages=6), 98_304 + 98_304 + 32_768 + 160 + 96 + 8),
    # The producer alone captures, 2 descriptors x 8, 2 rings x 20, 2 barriers x 16 and 16 = 104; four warps.
    "a lone consumer": (LONE_CONSUMER, 65_536 + 131_072 + 32_768 + 104 + 8 + 64 + 4),
    # D takes 2 consumers x 128 x 64 x 2. The captures are 24 + 16, 3 barriers x 16, 2 rings of tiles x 20 and
    # 16 for D's buffer: 144. The stages' barriers take 2 x 48 bytes, and the turns' barriers 16.
    "ping-pong": (PING_PONG, 98_304 + 98_304 + 32_768 + 144 + 96 + 16 + 8),
    # C and D: 2 consumers x 2 buffers x 64 x 32 x 2 = 16,384 each; the bias: 2 consumers x 128 x 2 = 512.
    # Captures: 5 descriptors x 8, 12, 3 rings of barriers x 16 and a single one of 12, 5 rings of tiles (2 A,
    # B, C, D) x 20 and the bias's 12 = 224. Barriers: 2 x 48 of the stages, 2 x 16 of C, and two single ones
    # of 8, of which the first is padded to 16; eight worker warps 8.
    "C and a bias": (WITH_C, 98_304 + 98_304 + 16_384 + 16_384 + 512 + 224 + 96 + 32 + 16 + 8 + 8),
    # Nobody captures where nobody specializes. A: 4 x 128 x 64 x 2, B: 4 x 256 x 64 x 2, D: 128 x 128 x 2.
    "pipelined": (UNSPECIALIZED, 65_536 + 131_072 + 32_768 + 4 * 8),
    # One stage of A and of B, 128 x 128 x 2, D of the same size, and a single barrier.
    "blocked": (BLOCKED, 3 * 32_768 + 8),
    # A: 64 x 64 x 2; B: 128 x 64 x 2; C and D: 64 x 128 x 4 each; two single barriers, the first padded.
    "a single tile": (
        computing(SINGLE_TILE, c=DTYPES["fp32"], d=DTYPES["fp32"]),
        8_192 + 16_384 + 32_768 + 32_768 + 16 + 8,
    ),
}


@pytest.mark.parametrize(("plan", "smem_bytes"), BYTES.values(), ids=BYTES)
def test_a_kind_s_shared_memory_is_the_sum_made_by_hand(plan: WgmmaKernel, smem_bytes: int) -> None:
    assert plan.smem_bytes == smem_bytes


def test_memory_with_other_stages_is_added_up_as_in_a_plan_that_has_them(product: Product) -> None:
    plan = product.plan
    for stages in range(2, 13):
        fresh, other = replace(plan, stages=stages), altered(plan, stages=stages)
        assert plan.shared_memory.bytes_with("stages", stages) == fresh.smem_bytes == other.smem_bytes
        assert fresh.register_pool == other.register_pool


def test_how_registers_are_divided_needs_no_buffer(product: Product) -> None:
    plan = replace(product.plan)
    assert plan.register_pool.workers == tuple((each.warps, each.registers) for each in plan.workers)
    fresh = replace(plan)
    assert fresh.register_pool.requests == plan.register_pool.requests
    assert not {"resources", "partitions"} & vars(fresh).keys()


def test_what_consumers_count_lies_over_the_captures_where_it_can() -> None:
    divided = replace(TWO_CONSUMERS, splits=4)
    # The addresses of sums and counters are two captures more, 16 bytes. The first count lies at their start,
    # the second one 128 bytes further, of 164.
    assert divided.shared_memory.capture_bytes == TWO_CONSUMERS.shared_memory.capture_bytes + 16 == 164
    assert divided.smem_bytes == TWO_CONSUMERS.smem_bytes + 16
    # Of four consumers the third count finds barriers where it could lie, and comes behind all else, at a
    # multiple of 128; the fourth is 128 further, and has 4 bytes.
    end = FOUR_CONSUMERS.smem_bytes + 16
    assert replace(FOUR_CONSUMERS, splits=4).smem_bytes == -(-end // 128) * 128 + 128 + 4


def test_what_consumers_count_never_lies_over_a_buffer_that_is_as_large_as_the_captures() -> None:
    # The tiles end at 1,024, the buffer at 1,184, captures of its size and alignment at 1,344, the workers'
    # state at 1,348. The first count lies at 1,280, over captures; the second one at 1,408, and has 4 bytes.
    tiles = SharedBuffer("tiles", "a", (), 1_024, "tiles")
    alike = SharedBuffer("alike", "d", (), 160, "read to the end", alignment=TRITON.capture_alignment_bytes)
    memory = SharedMemory((tiles, alike), (), 160, 12, 4, counting_partitions=2)
    assert memory.total_bytes == 1_408 + 4
    assert replace(memory, counting_partitions=1).total_bytes == 1_348


@pytest.mark.parametrize(
    ("columns", "buffers", "fix"),
    # Sub-tiles of 64: 3, 2 and 6; of 2**30 + 2**29 columns 3 * 2**23, of 2**30 columns 2**24.
    [
        (192, 2, "use 1 or 3"),
        (128, 9, "use 2"),
        (384, 4, "use 3 or 6"),
        (2**30 + 2**29, 5, "use 4 or 6"),
        (2**30, 5, "use 4 or 8"),
    ],
)
def test_of_buffers_that_are_not_used_equally_often_the_nearest_that_are_come_at_once(
    columns: int, buffers: int, fix: str
) -> None:
    loading = computing(TWO_CONSUMERS, c=BF16)
    plan = replace(loading, cta_tile_n=columns, subtile_n=64, epilogue_buffers=buffers)
    (found,) = misfit_buffers(plan)
    assert str(found.fix) == fix
    assert calls_of(lambda: [*misfit_buffers(plan)]) < 200  # not each number up to the sub-tiles is tried


def test_the_ctas_of_a_cluster_meet_where_each_consumer_counts() -> None:
    divided = replace(PAIR_OF_CTAS, splits=4)
    assert divided.smem_bytes == PAIR_OF_CTAS.smem_bytes + 16 + 2 * 32
    assert divided.shared_memory.cluster_barrier_bytes == 2 * 32
    assert PAIR_OF_CTAS.shared_memory.cluster_barrier_bytes == 0


def test_only_sums_of_floats_that_are_added_as_they_come_are_not_deterministic() -> None:
    ordered, atomic = (replace(TWO_CONSUMERS, splits=4, reduction=how) for how in ("ordered", "atomic"))
    assert (TWO_CONSUMERS.deterministic, ordered.deterministic, atomic.deterministic) == (True, True, False)
    integers = computing(atomic, a=Operand(DTYPES["int8"], "k"), b=Operand(DTYPES["int8"], "k"))
    assert computing(integers, accumulator=DTYPES["int32"]).deterministic
    # What a launch must find at 0, and leaves so.
    assert (TWO_CONSUMERS.restored, ordered.restored) == ((), ("counters",))
    assert atomic.restored == ("partials", "counters")
    assert (partial_bytes(ordered), partial_bytes(atomic)) == (4 * 128 * 256 * 4, 128 * 256 * 4)


def test_sums_of_splits_are_read_in_groups_that_registers_hold() -> None:
    # 232 registers less 32 hold 128 of 32 sums each: four at once, of seven as well, the last one alone less.
    plan = replace(SQUARE, cta_tile_n=64)
    assert plan.accumulator_elements == 32
    assert [splits_at_once(replace(plan, splits=splits)) for splits in (2, 4, 6, 7, 8)] == [2, 4, 3, 4, 4]
    # Groups of two are alike, or splits are read one by one.
    wide = replace(SQUARE, cta_tile_n=128)
    assert wide.accumulator_elements == 64
    assert [splits_at_once(replace(wide, splits=splits)) for splits in (2, 4, 5, 6, 7)] == [2, 2, 1, 2, 1]


def test_what_tma_writes_without_a_swizzle_starts_at_a_multiple_of_128_bytes() -> None:
    # A: 64 x 64 x 2 = 8,192; B: 16 x 64 x 2 = 2,048; D: 64 x 16 x 2 = 2,048, together 12,288 = 96 x 128.
    # The 16 scales of 4 bytes end at 12,352; the 16 biases of 2 bytes start at 12,416 and end at 12,448.
    # One barrier ends at 12,456, the next starts at a multiple of 16, 12,464.
    plan = computing(
        replace(SINGLE_TILE, cta_tile_n=16, mma_n=16, subtile_n=16), ops=("column_scale", "column_bias")
    )
    assert plan.smem_bytes == 12_464 + 8
    assert plan.shared_memory.padding_bytes == 64 + 8


def test_a_swizzled_tile_starts_at_a_multiple_of_its_pattern() -> None:
    alignments = {buffer.operand: buffer.alignment_bytes for buffer in WITH_C.shared_buffers}
    # Eight rows of 128, 64 or no bytes.
    assert alignments == {"a": 1024, "b": 1024, "c": 512, "column_bias": 128, "d": 512}


def test_a_bias_is_of_d_s_type_and_a_scale_is_fp32() -> None:
    def bytes_of(d: str, *ops: str) -> dict[str, int]:
        plan = computing(TWO_CONSUMERS, d=DTYPES[d], ops=ops)
        return {b.name: b.bytes for b in plan.shared_buffers if b.operand in ops}

    # 64 rows of each consumer, all 256 columns for both.
    assert bytes_of("bf16", "row_bias") == {"row_bias_smem_0": 128, "row_bias_smem_1": 128}
    assert bytes_of("bf16", "row_scale") == {"row_scale_smem_0": 256, "row_scale_smem_1": 256}
    assert bytes_of("bf16", "column_bias") == {"column_bias_smem_0": 512, "column_bias_smem_1": 512}
    # No bias is of 8 bits.
    assert bytes_of("e4m3", "column_bias") == {"column_bias_smem_0": 1024, "column_bias_smem_1": 1024}


def test_ctas_that_share_an_sm_share_its_memory() -> None:
    # 233,472 bytes, less 1,024 of the system for each CTA: 232,448 for one, 115,712 for each of two.
    assert (TWO_CONSUMERS.smem_limit_bytes, BLOCKED.smem_limit_bytes) == (232_448, 115_712)


def test_an_mn_major_operand_is_stored_as_it_lies() -> None:
    a, b = Operand(BF16, "mn"), Operand(BF16, "mn")
    buffers = computing(PING_PONG, a=a, b=b).shared_buffers
    shapes = {buffer.operand: [extent.measure for extent in buffer.extents] for buffer in buffers}
    assert shapes["a"] == ["stages", "tile_k", "tile_m"]
    assert shapes["b"] == ["stages", "tile_k", "tile_n"]
    # Its rows are as long as the tile is wide: 32 rows of A would leave room for a swizzle of 64.
    assert computing(replace(TWO_CONSUMERS, cta_tile_m=64), a=a).a_row == 32


def test_four_stages_of_48_kib_fit() -> None:
    # 196,608 of A and B, 32,768 of D and 232 of the rest leave 2,840 of 232,448; a stage takes 49,152.
    assert TWO_CONSUMERS.smem_bytes == 229_608
    assert most_stages(TWO_CONSUMERS) == 4


def test_small_stages_fit_until_their_barriers_do_not() -> None:
    # A stage of 128 x 16 + 256 x 16 elements is 12,288 bytes and two barriers of 8. The epilogue is
    # 128 x 128 x 4 = 65,536.
    plan = replace(computing(LONE_CONSUMER, d=DTYPES["fp32"]), cta_tile_k=16, a_swizzle_bytes=32, stages=13)
    plan = replace(plan, b_swizzle_bytes=32)
    # Rings of 13 x 8 = 104 bytes go before the captures, which only need 8-byte alignment behind them:
    # 104, padded to 112; 104 end at 216; 104 of captures end at 320; 4 worker warps at 324.
    assert plan.smem_bytes == 159_744 + 65_536 + 324
    assert most_stages(plan) == 13


def test_the_state_of_many_worker_warps_goes_before_short_rings() -> None:
    plan = replace(FOUR_CONSUMERS, stages=1)
    # Four tiles of A and D each, and B: 256 x 64 x 2 + 128 x 64 x 2 + 256 x 128 x 2 = 114,688 bytes.
    # Captures: 3 x 8 + 4 x 4 + 2 x 16 + 5 tiles of A and B x 20 + 3 of D x 16 = 220, the worker state of
    # 16 warps at 220 to 236; barriers of 8 at 240 and at 256.
    assert plan.shared_memory.capture_bytes == 220
    assert plan.smem_bytes == 114_688 + 264


@every_plan
def test_a_ring_holds_a_tile_per_stage(plan: WgmmaKernel) -> None:
    by_operand = dict.fromkeys("abd", 0)
    for buffer in plan.shared_buffers:
        by_operand[buffer.tensor] += buffer.bytes
    assert by_operand["a"] == plan.stages * plan.stage.bytes_of("a")
    assert by_operand["b"] == plan.stages * plan.stage.bytes_of("b")
    assert by_operand["d"] == plan.consumers * plan.epilogue_buffers * plan.subtile_bytes(BF16)


def captured(plan: WgmmaKernel) -> list[str]:
    return [value.name for value in captures(plan.workers)]


def test_workers_capture_each_value_once_and_the_first_consumer_none() -> None:
    assert captured(TWO_CONSUMERS) == [
        *("d", "a_smem_1", "b_smem", "d_smem_1", "load_ready", "load_empty"),
        *("tiles_m", "tiles_n", "last_row", "k_steps"),
        *("a", "b", "a_smem_0"),
    ]


def test_ping_pong_consumers_capture_the_ring_of_a_that_they_share_and_their_turns() -> None:
    assert captured(PING_PONG) == [
        *("d", "a_smem", "b_smem", "d_smem_1", "load_ready", "load_empty", "mma_turn"),
        *("tiles_m", "tiles_n", "last_row", "k_steps"),
        *("a", "b"),
    ]


def test_a_worker_captures_what_its_epilogue_reads() -> None:
    assert captured(computing(WITH_C, ops=("tensor_scale", "column_bias", "residual")))[6:14] == [
        *("c", "column_bias", "tensor_scale"),
        *("c_smem_1", "column_bias_smem_1", "c_ready_1", "vectors_ready_1"),
        "tiles_m",
    ]


def test_nothing_is_captured_without_workers() -> None:
    assert captured(UNSPECIALIZED) == []
    assert UNSPECIALIZED.shared_memory.worker_state_bytes == 0


# --- handshakes


def test_a_stage_is_ready_by_one_arrival_and_empty_by_each_consumer_s() -> None:
    arrivals = {
        kind: {barrier.name: barrier.arrivals for barrier in plan.barriers} for kind, plan in KINDS.items()
    }
    assert arrivals == {
        "two": {"load_ready": 1, "load_empty": 2},
        "lone": {"load_ready": 1, "load_empty": 1},
        "four": {"load_ready": 1, "load_empty": 4},
        # Two consumers in each of two CTAs.
        "2x1": {"load_ready": 1, "load_empty": 2, "b_multicast_empty": 4},
        "1x2": {"load_ready": 1, "load_empty": 2, "a_multicast_empty": 4},
        # Two of the four CTAs share a tile of A, two a tile of B.
        "2x2": {"load_ready": 1, "load_empty": 2, "a_multicast_empty": 4, "b_multicast_empty": 4},
        # A tile is read by the one consumer that has it.
        "ping_pong": {"load_ready": 1, "load_empty": 1, "mma_turn": 1},
        # A stage has all parts, and is released once.
        "composed": {"load_ready": 1, "load_empty": 2},
        "thirds": {"load_ready": 1, "load_empty": 3},
        "pipelined": {"load_ready": 1},
        "blocked": {"load_ready": 1},
        "single_tile": {"load_ready": 1},
    }


def test_a_group_of_ctas_shares_the_barrier_of_its_first_one() -> None:
    def groups(plan: WgmmaKernel) -> dict[str, tuple[int, tuple[tuple[int, ...], ...]]]:
        return {bar.name: (bar.scope.groups, bar.scope.bases) for bar in plan.barriers if bar.scope.groups}

    assert groups(PAIR_OF_CTAS) == {"b_multicast_empty": (1, ((0,),))}
    assert groups(PAIR_ALONG_N) == {"a_multicast_empty": (1, ((0,),))}
    # The two groups that share A differ in the bit along M, those that share B in the one along N.
    assert groups(FOUR_CTAS) == {
        "a_multicast_empty": (2, ((1,), (0,))),
        "b_multicast_empty": (2, ((0,), (1,))),
    }


def test_each_consumer_awaits_its_own_c_and_vectors() -> None:
    rings = {bar.name: (bar.ring.slots.measure, bar.ring.depth) for bar in WITH_C.barriers}
    assert rings == {
        "load_ready": ("stages", 6),
        "load_empty": ("stages", 6),
        "c_ready_0": ("epilogue_buffers", 2),
        "c_ready_1": ("epilogue_buffers", 2),
        "vectors_ready_0": (None, 1),
        "vectors_ready_1": (None, 1),
    }


def test_a_phase_awaits_the_bytes_of_one_stage() -> None:
    assert TWO_CONSUMERS.stage_bytes == 128 * 64 * 2 + 256 * 64 * 2
    assert PAIR_OF_CTAS.stage_bytes == TWO_CONSUMERS.stage_bytes  # each CTA receives all of B


# --- registers


def pool(default_warps: int, *workers: tuple[int, int]) -> RegisterPool:
    return RegisterPool(HOPPER, default_warps, workers)


@pytest.mark.parametrize(
    ("default_warps", "workers", "warps", "launch"),
    [
        # 65,536 registers over the threads, rounded down to a multiple of 8.
        (4, [(1, 40)], 8, 256),
        (4, [(4, 232), (1, 40)], 12, 168),  # 170.7
        (8, [(1, 24)], 12, 168),
        (4, [(4, 160), (4, 160), (1, 40)], 16, 128),
        (4, [(4, 104), (4, 104), (4, 104), (1, 40)], 20, 96),  # 102.4
        (4, [(4, 56)] * 6 + [(1, 24)], 32, 64),
    ],
)
def test_the_launch_gives_every_thread_an_equal_share(
    default_warps: int, workers: list[tuple[int, int]], warps: int, launch: int
) -> None:
    registers = pool(default_warps, *workers)
    assert (registers.total_warps, registers.launch_registers) == (warps, launch)


@pytest.mark.parametrize(
    ("consumer", "producer", "left"),
    [
        # Twelve warps of 168 are 2,016 registers per lane, of which each group takes four times its request.
        (232, 40, 232),  # 2,016 - 928 - 160 = 928, over 4 warps
        (240, 24, 240),  # 2,016 - 960 - 96 = 960
        (232, 24, 248),  # 2,016 - 928 - 96 = 992
        (240, 40, 224),  # 2,016 - 960 - 160 = 896
        (168, 40, 256),  # 2,016 - 672 - 160 = 1,184, which is 296: no thread can have more than 256
        (256, 256, -8),  # 2,016 - 1,024 - 1,024: the compiler drops the request
    ],
)
def test_the_default_partition_gets_what_the_workers_leave(consumer: int, producer: int, left: int) -> None:
    assert pool(4, (4, consumer), (1, producer)).default_registers == left


def test_small_workers_share_a_group_of_four_warps_at_the_highest_request() -> None:
    assert pool(4, (1, 24), (2, 88), (1, 40)).groups == (88,)
    assert pool(4, (1, 24), (4, 104), (1, 40)).groups == (104, 40)
    assert pool(12, *[(1, 24)] * 14).total_warps == 12 + 16


@pytest.mark.parametrize(
    ("consumers", "warps", "producer", "balance"),
    [
        (2, 4, 40, 232),
        (2, 4, 24, 240),
        (1, 8, 24, 240),  # 2,016 - 96 = 1,920, over 8 warps
        (1, 8, 40, 232),
        (4, 4, 24, 112),  # 20 warps of 96 are 1,920: 3 x 4 x 112 + 96 leave 480, which is 120
        (4, 4, 40, 104),  # 3 x 4 x 112 + 160 would leave 104
        (2, 4, 256, 120),  # 2,016 - 4 x 120 - 1,024 = 512, which is 128
    ],
)
def test_the_balance_is_the_largest_request_that_the_first_consumer_can_match(
    consumers: int, warps: int, producer: int, balance: int
) -> None:
    assert balanced_consumer_registers(HOPPER, consumers, warps, producer) == balance


@pytest.mark.parametrize(
    ("default_warps", "workers", "occupancy", "launch"),
    [
        # 65,536 registers over twice the threads: 512, and 768, of which 85.3 is rounded down.
        (8, [], 2, 128),
        (4, [(1, 40)], 2, 128),
        (4, [(4, 96), (1, 24)], 2, 80),
        # No thread can have more than 255; the launch gives 256.
        (4, [], 1, 256),
    ],
)
def test_ctas_that_share_an_sm_share_its_registers(
    default_warps: int, workers: list[tuple[int, int]], occupancy: int, launch: int
) -> None:
    assert RegisterPool(HOPPER, default_warps, tuple(workers), occupancy).launch_registers == launch


def test_two_ctas_leave_half_of_the_registers_to_each_consumer() -> None:
    # Eight warps of 128 are 1,024 registers per lane; the producer's group takes 160, four warps 216 each.
    assert balanced_consumer_registers(HOPPER, 1, 4, 40, 2) == 216


def test_a_launch_is_limited_where_ctas_share_an_sm() -> None:
    assert (BLOCKED.launch_register_limit, UNSPECIALIZED.launch_register_limit) == (128, None)


def test_a_kernel_without_workers_asks_for_no_registers() -> None:
    assert UNSPECIALIZED.register_pool.requests == ()
    # 2,016 per lane: 232 and 40 as planned; 256 and 120 while no partition runs.
    assert TWO_CONSUMERS.register_pool.requests == (40, 120, 232, 256)


@every_plan
def test_partitions_never_take_more_registers_than_the_kernel_was_launched_with(plan: WgmmaKernel) -> None:
    registers = plan.register_pool
    taken = registers.default_registers * plan.consumer_warps + 4 * sum(registers.groups)
    assert taken <= registers.launch_registers * plan.total_warps


@every_plan
def test_the_threads_of_a_cta_are_the_same_with_and_without_a_partition_for_each(plan: WgmmaKernel) -> None:
    assert threads_of(plan, plan.consumers) == plan.threads


def test_a_cta_has_threads_for_seven_consumers_of_a_warpgroup_or_three_of_two() -> None:
    # 1,024 threads less 128 of the producer's padded warpgroup, over 128 or 256.
    assert most_consumers(TWO_CONSUMERS) == 7
    assert most_consumers(LONE_CONSUMER) == 3


# --- problems


def test_a_problem_s_last_wave_may_be_partial() -> None:
    # 64 x 32 tiles over 132 SMs; in pairs 32 x 32 over 66.
    assert TWO_CONSUMERS.waves((8192, 8192, 8192)) == pytest.approx(2048 / 132)
    assert PAIR_OF_CTAS.waves((8192, 8192, 8192)) == pytest.approx(1024 / 66)
    # 64 x 64 tiles over two CTAs per SM.
    assert BLOCKED.waves((8192, 8192, 8192)) == pytest.approx(4096 / 264)


def test_the_sms_hold_no_more_clusters_of_four_than_their_gpcs_do() -> None:
    # 132 SMs would make 33; some GPCs lack SMs.
    assert FOUR_CTAS.resident_programs == 30


def test_a_problem_smaller_than_a_tile_takes_one() -> None:
    assert TWO_CONSUMERS.tiles((1, 1, 8)) == (1, 1)
    assert TWO_CONSUMERS.tiles((129, 257, 8)) == (2, 2)


def test_a_wider_program_loads_fewer_bytes_per_operation() -> None:
    # 2 x 128 x 256 operations on (128 + 256) x 2 bytes of each K; 2 x 256 x 256 on (256 + 256) x 2.
    assert TWO_CONSUMERS.l2_flops_per_byte == pytest.approx(65_536 / 768)
    assert PAIR_OF_CTAS.l2_flops_per_byte == pytest.approx(128)


# --- the ledger


def section(of: Ledger, title: str) -> LedgerSection:
    return next(section for section in of.sections if section.title.startswith(title))


def test_a_ledger_s_bytes_add_up_to_its_total(product: Product) -> None:
    memory = section(ledger(product.plan), "shared memory")
    assert memory.total
    assert sum(entry.amount for entry in memory.entries) == memory.total.amount == product.plan.smem_bytes


def test_a_ledger_s_partitions_fit_into_the_registers_of_its_total(product: Product) -> None:
    registers = section(ledger(product.plan), "registers")
    assert registers.total
    plan = product.plan
    partitions = plan.partitions if plan.specialized else plan.partitions[:1]
    padded_warps = [-(-partition.warps // 4) * 4 for partition in partitions]
    amounts = (entry.amount for entry in registers.entries)
    taken = sum(32 * warps * amount for warps, amount in zip(padded_warps, amounts, strict=False))
    assert taken <= registers.total.amount
    assert plan.occupancy * registers.total.amount <= plan.architecture.registers_per_sm


KINDS_OF_SPECS = {
    "h100_bf16": "persistent, warp-specialized (cooperative)",
    "h100_bf16_one_consumer": "persistent, warp-specialized (one consumer)",
    "h100_bf16_ping_pong": "persistent, warp-specialized (ping-pong)",
    "h100_bf16_persistent": "persistent, pipelined",
    "h100_bf16_pipelined": "non-persistent, pipelined",
    "h100_bf16_blocked": "non-persistent, not pipelined",
    "h100_bf16_single_tile": "single tile",
    "h100_bf16_split8_parallel": "persistent, warp-specialized (cooperative), split-K by 8 (parallel)",
    "h100_bf16_rows16_split2": "non-persistent, pipelined, swap-AB, split-K by 2 (ordered)",
    "h100_bf16_early": "non-persistent, pipelined, swap-AB, PDL",
    "h100_bf16_grouped": "persistent, warp-specialized (cooperative), grouped (m_offsets)",
    "h100_bf16_batched": "persistent, warp-specialized (cooperative), batched",
    "h100_bf16_gated": "persistent, warp-specialized (cooperative), gated",
    "h100_bf16_dgated": "persistent, warp-specialized (cooperative), backward of a gate",
    "h100_e4m3_blockwise": "persistent, warp-specialized (cooperative), block-scaled",
    "b200_bf16": "static persistent, warp-specialized, 2-CTA MMAs",
    "b200_nvfp4": "dynamic persistent (cluster launch control), warp-specialized, 2-CTA MMAs, block-scaled",
}


@pytest.mark.parametrize(("stem", "kind"), KINDS_OF_SPECS.items(), ids=KINDS_OF_SPECS)
def test_the_first_line_of_a_ledger_has_the_kind_of_the_kernel(stem: str, kind: str) -> None:
    first = ledger(make(spec_file(stem)).plan).as_text().splitlines()[0]
    assert first.partition("): ")[2] == kind


def test_a_ledger_is_data_that_json_can_hold() -> None:
    data = ledger(TWO_CONSUMERS).as_dict()
    assert data == ledger(TWO_CONSUMERS).as_dict()
    assert set(data) == {"sections"}


LEDGER = """\
kernel for H100 SXM (sm_90a): persistent, warp-specialized (cooperative)
  CTA tile m              128 rows       64 for each of 2 consumers
  CTA tile n              256 columns    stored 128 at a time
  CTA tile k               64 elements   per stage: 16,384 bytes of A + 32,768 bytes of B
  cluster                   1 CTAs       1 x 1
  occupancy                 1 CTAs       per SM; its shared memory has room for 1
  stages                    4 tiles      256 of K in flight
  outstanding               0 MMAs       of earlier K steps in flight while one is issued
  instructions              4 wgmma      m64n256k16 per warpgroup and K step
  order                    16 tiles      snake: rows of tiles in a group
  intensity              85.3 FLOP/B     of a program's tile, by bytes read from L2

shared memory per CTA
  a_smem_0             32,768 bytes      4 x 64 x 64 bf16, swizzle 128
  a_smem_1             32,768 bytes      4 x 64 x 64 bf16, swizzle 128
  b_smem              131,072 bytes      4 x 256 x 64 bf16, swizzle 128
  d_smem_0             16,384 bytes      1 x 64 x 128 bf16, swizzle 128
  d_smem_1             16,384 bytes      1 x 64 x 128 bf16, swizzle 128
  load_ready               32 bytes      4 mbarriers
  load_empty               32 bytes      4 mbarriers
  captures                148 bytes      13 values passed to the workers
  worker state              8 bytes      of 8 worker warps
  padding                  12 bytes      alignment
  total               229,608 bytes      98.8% of 232,448: one CTA per SM

registers
  consumer_0              232 registers  per thread, 4 warps
  consumer_1              232 registers  per thread, 4 warps
  producer                 40 registers  per thread, 1 warp
  accumulator             128 registers  55% of a consumer thread's
  total                64,512 registers  384 threads x 168, 65,536 per SM

barriers
  load_ready                1 arrivals   producer to consumers: the stage holds its tiles
  load_empty                2 arrivals   consumers to their CTA's producer: the stage has been read

problem 8192 x 8192 x 8192
  tiles                 2,048 tiles      64 x 32 for 132 programs
  waves                 15.52 waves      97.0% of the SM time is used
  intensity           2,730.7 FLOP/B     by bytes of DRAM: bound by tensor cores, the ridge is at 295.3
  from L2               12.88 GB         32.0 times the least traffic of DRAM
  time                1,642.7 us         predicted, to rank kernels only: 71% tensor cores, 21% power, \
4% drained MMAs"""


def test_a_ledger_s_text_is_aligned_amounts_with_their_derivation() -> None:
    assert ledger(TWO_CONSUMERS).as_text() == LEDGER


# --- composed tiles


@pytest.mark.parametrize(
    ("columns", "parts"),
    [(256, (256,)), (192, (128, 64)), (320, (256, 64)), (112, (64, 32, 16)), (144, (128, 16))],
)
def test_a_tile_s_columns_are_the_powers_of_two_that_they_are_the_sum_of(
    columns: int, parts: tuple[int, ...]
) -> None:
    plan = replace(TWO_CONSUMERS, cta_tile_n=columns)
    assert plan.column_parts == parts
    assert plan.composed == (len(parts) > 1)


def test_each_part_has_the_instruction_of_its_columns() -> None:
    assert COMPOSED.mma_names == ("m64n128k16", "m64n64k16")
    # Four of k = 16 in a step of 64, for each part.
    assert COMPOSED.mmas_per_step == 8
    narrow = replace(COMPOSED, mma_n=64)
    assert narrow.mma_names == ("m64n64k16",)
    assert narrow.mmas_per_step == 12  # three of 64 columns


def test_each_part_of_b_has_a_ring_an_argument_and_a_box_of_its_own() -> None:
    resources = COMPOSED.resources
    assert [buffer.name for buffer in resources.b] == ["b_smem_0", "b_smem_1"]
    # 4 stages of 128 and of 64 columns x 64 x 2 bytes.
    assert [buffer.bytes for buffer in resources.b] == [65_536, 32_768]
    assert [argument.name for argument in COMPOSED.arguments] == ["a", "b", "b_1", "d"]
    # A K-contiguous part is a box of 128 bytes and up to 256 rows.
    assert COMPOSED.loads("b") == 2


def test_the_shared_memory_of_three_consumers_is_the_sum_of_its_parts() -> None:
    # A and B of 3 stages, 192 x 64 x 2 bytes each; three buffers of 64 x 64 x 2 for each of three consumers.
    tiles = 2 * 3 * 192 * 64 * 2 + 3 * 3 * 64 * 64 * 2
    assert sum(buffer.bytes for buffer in THIRDS.shared_buffers) == tiles == 221_184
    # Captured: four descriptors; rings of A of three consumers, two of B, D's of two workers; two rings of
    # barriers; three counts.
    captured = 4 * 8 + (3 + 2 + 2) * (8 + 4 * 3) + 2 * (8 + 4 * 2) + 3 * 4
    # Barriers of three stages, each ring at a multiple of 16; a byte for each worker warp.
    assert THIRDS.smem_bytes == tiles + captured + 2 * (3 * 8 + 8) + 12


def test_three_consumers_have_152_registers_each() -> None:
    # 16 warps with 128 each: 2,048 shares of 32 threads, less 4 x 40 of the producer's group, over 12 warps.
    assert THIRDS.register_pool.launch_registers == 128
    assert balanced_consumer_registers(HOPPER, 3, 4, 40) == 152 <= (2_048 - 4 * 40) / 12
    assert THIRDS.accumulator_registers == 96


def test_an_n_contiguous_part_is_swizzled_as_widely_as_its_rows_are() -> None:
    plan = replace(computing(COMPOSED, b=Operand(BF16, "mn")), cta_tile_n=144, subtile_n=16)
    # Rows of 128 columns span 256 bytes, of 16 columns 32.
    assert [buffer.swizzle_bytes for buffer in plan.resources.b] == [128, 32]
    # 128 columns are two boxes of 64, 64 rows each; 16 columns are one.
    assert plan.loads("b") == 3


def test_a_column_operand_is_loaded_in_a_block_that_holds_the_tile() -> None:
    plan = computing(COMPOSED, ops=("column_bias",))
    (bias,) = plan.resources.epilogues[0].vectors
    assert (bias.shape[0].size, bias.bytes) == (256, 512)


def test_c_has_an_odd_number_of_phases_in_a_tile_of_an_odd_number_of_subtiles() -> None:
    text = render(computing(COMPOSED, c=BF16), spec_name="x.yaml", spec_sha256="0" * 64)
    assert "mbarrier.wait(buffers.c_ready, (phase + subtile) & 1)" in text
    # Of four sub-tiles in one buffer there is an even number, and no phase to keep.
    plain = replace(computing(TWO_CONSUMERS, c=BF16), subtile_n=64, stages=3)
    text = render(plain, spec_name="x.yaml", spec_sha256="0" * 64)
    assert "mbarrier.wait(buffers.c_ready, subtile & 1)" in text
