"""What follows from a plan's decisions, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemmgen.plan import Plan
from gemmgen.plan.bounds import most_consumers, most_stages, threads_of
from gemmgen.plan.dtype import DTYPES
from gemmgen.plan.ledger import Ledger, Section, ledger
from gemmgen.plan.registers import RegisterPool, balanced_consumer_registers
from gemmgen.plan.rules import judge
from gemmgen.product import Product, make
from gemmgen.target import GPUS, HOPPER

ROOT = Path(__file__).parent.parent
TWO_CONSUMERS = Plan(
    title="128 x 256 tiles for two consumers",
    gpu=GPUS["h100"],
    a_dtype=DTYPES["bf16"],
    b_dtype=DTYPES["bf16"],
    d_dtype=DTYPES["bf16"],
    a_major="k",
    b_major="k",
    cta_tile_m=128,
    cta_tile_n=256,
    cta_tile_k=64,
    cluster_m=1,
    cluster_n=1,
    stages=4,
    outstanding_mmas=0,
    epilogue_buffers=1,
    consumers=2,
    producer_registers=40,
    consumer_registers=232,
    order="snake",
    width=16,
    subtile_n=128,
    check_shapes=(),
    bench_shapes=((8192, 8192, 8192),),
)
LONE_CONSUMER = replace(TWO_CONSUMERS, consumers=1, producer_registers=24, consumer_registers=240)
FOUR_CONSUMERS = replace(
    TWO_CONSUMERS, cta_tile_m=256, cta_tile_n=128, stages=3, consumers=4, consumer_registers=104
)
PAIR_OF_CTAS = replace(TWO_CONSUMERS, cluster_m=2)
PLANS = (TWO_CONSUMERS, LONE_CONSUMER, FOUR_CONSUMERS, PAIR_OF_CTAS)

every_plan = pytest.mark.parametrize("plan", PLANS, ids=("two", "lone", "four", "pair"))


@every_plan
def test_the_plans_of_this_file_are_legal(plan: Plan) -> None:
    assert judge(plan) == ()


# --- tiles


def test_consumers_share_a_tile_s_rows_and_a_lone_one_takes_two_warpgroups() -> None:
    assert [plan.cta_consumer_tile_m for plan in PLANS] == [64, 128, 64, 64]
    assert [plan.consumer_warps for plan in PLANS] == [4, 8, 4, 4]


def test_a_pair_of_ctas_is_one_program_of_twice_the_rows() -> None:
    assert (PAIR_OF_CTAS.program_tile_m, PAIR_OF_CTAS.program_tile_n) == (256, 256)
    assert PAIR_OF_CTAS.consumer_tile_m == 128
    assert PAIR_OF_CTAS.multicast
    assert not TWO_CONSUMERS.multicast


def test_the_instruction_is_as_wide_as_the_tile_up_to_256() -> None:
    names = [replace(TWO_CONSUMERS, cta_tile_n=n).mma_name for n in (8, 64, 256, 512)]
    assert names == ["m64n8k16", "m64n64k16", "m64n256k16", "m64n256k16"]


def test_a_narrow_subtile_splits_the_tile_and_a_wide_one_does_not() -> None:
    subtiles = [replace(TWO_CONSUMERS, subtile_n=n).subtiles for n in (8, 64, 128, 256)]
    assert subtiles == [32, 4, 2, 1]


def test_the_accumulator_takes_a_register_per_element_of_a_thread() -> None:
    # Rows x columns of a consumer over its threads: 64 x 256 / 128, 128 x 256 / 256, 64 x 128 / 128.
    assert [plan.accumulator_registers for plan in PLANS] == [128, 128, 64, 128]


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
    assert TWO_CONSUMERS.swizzle_bytes(row_elements, DTYPES[dtype]) == swizzle


# --- shared memory, to the byte

COMMITTED_BYTES = {
    # A: 4 stages x 128 x 64 x 2 = 65,536; B: 4 x 256 x 64 x 2 = 131,072; D: 2 x 64 x 128 x 2 = 32,768.
    # Captures: 3 descriptors x 8, 3 scalars x 4, 2 barriers x 16, 4 rings of tiles (2 A, B, D) x 20 = 148.
    # They are padded to 160; the barriers take 2 x 4 x 8 = 64; eight worker warps 8.
    "h100_bf16": 65_536 + 131_072 + 32_768 + 148 + 12 + 64 + 8,
    "h100_fp16": 65_536 + 131_072 + 32_768 + 148 + 12 + 64 + 8,  # D: 2 consumers x 2 buffers x 64 x 64 x 2
    "h100_bf16_fp32out": 65_536 + 131_072 + 32_768 + 148 + 12 + 64 + 8,  # D: 2 consumers x 64 x 64 x 4
    # A third barrier ring, captured too: 164 padded to 176, and 96.
    "h100_bf16_cluster2": 65_536 + 131_072 + 32_768 + 164 + 12 + 96 + 8,
    # A: 6 x 128 x 64 x 2 = 98,304 and B the same. D is stored whole, so its descriptor is of rank 2: 144.
    "h100_bf16_128x128": 98_304 + 98_304 + 32_768 + 144 + 0 + 96 + 8,
    # The producer alone captures, 2 descriptors x 8, 2 rings x 20, 2 barriers x 16 and 12 = 100; four warps.
    "h100_bf16_one_consumer": 65_536 + 131_072 + 32_768 + 100 + 12 + 64 + 4,
}


@pytest.mark.parametrize(("stem", "smem_bytes"), COMMITTED_BYTES.items())
def test_a_committed_spec_s_shared_memory_is_the_sum_made_by_hand(stem: str, smem_bytes: int) -> None:
    assert make(ROOT / "specs" / f"{stem}.yaml").plan.smem_bytes == smem_bytes


def test_four_stages_of_48_kib_fit() -> None:
    # 196,608 of A and B, 32,768 of D and 232 of the rest leave 2,840 of 232,448; a stage takes 49,152.
    assert TWO_CONSUMERS.smem_bytes == 229_608
    assert most_stages(TWO_CONSUMERS) == 4


def test_small_stages_fit_until_their_barriers_do_not() -> None:
    # A stage of 128 x 16 + 256 x 16 elements is 12,288 bytes and two barriers of 8. The epilogue is
    # 128 x 128 x 4 = 65,536. 13 stages: 159,744 + 65,536 + 224 of captures, barriers and state = 225,504.
    plan = replace(LONE_CONSUMER, cta_tile_k=16, d_dtype=DTYPES["fp32"], stages=13)
    # Rings of 13 x 8 = 104 bytes go before the captures, which only need 8-byte alignment behind them:
    # 104, padded to 112; 104 end at 216; 100 of captures end at 316; 4 worker warps at 320.
    assert plan.smem_bytes == 159_744 + 65_536 + 320
    assert most_stages(plan) == 13


def test_the_state_of_many_worker_warps_goes_before_short_rings() -> None:
    plan = replace(FOUR_CONSUMERS, stages=1)
    # Four tiles of A and D each, and B: 256 x 64 x 2 + 128 x 64 x 2 + 256 x 128 x 2 = 114,688 bytes.
    # Captures: 3 x 8 + 3 x 4 + 2 x 16 + 5 tiles of A and B x 20 + 3 of D x 16 = 216, the worker state of
    # 16 warps at 216 to 232; barriers of 8 at 240 and at 256.
    assert plan.shared_memory.capture_bytes == 216
    assert plan.smem_bytes == 114_688 + 264


@every_plan
def test_a_ring_holds_a_tile_per_stage(plan: Plan) -> None:
    by_operand = dict.fromkeys("abd", 0)
    for buffer in plan.shared_buffers:
        by_operand[buffer.operand] += buffer.bytes
    assert by_operand["a"] == plan.stages * plan.a_tile_bytes
    assert by_operand["b"] == plan.stages * plan.b_tile_bytes
    assert by_operand["d"] == plan.consumers * plan.d_subtile_bytes


def test_workers_capture_each_value_once_and_the_first_consumer_none() -> None:
    assert [capture.name for capture in TWO_CONSUMERS.captures] == [
        *("d_desc", "a_smem_1", "b_smem", "d_smem_1", "load_ready", "load_empty"),
        *("tiles_m", "tiles_n", "k_steps"),
        *("a_desc", "b_desc", "a_smem_0"),
    ]


# --- handshakes


def test_a_stage_is_ready_by_one_arrival_and_empty_by_each_consumer_s() -> None:
    arrivals = [{barrier.name: barrier.arrivals for barrier in plan.barriers} for plan in PLANS]
    assert arrivals == [
        {"load_ready": 1, "load_empty": 2},
        {"load_ready": 1, "load_empty": 1},
        {"load_ready": 1, "load_empty": 4},
        {"load_ready": 1, "load_empty": 2, "multicast_empty": 4},  # two consumers in each of two CTAs
    ]


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


@every_plan
def test_partitions_never_take_more_registers_than_the_kernel_was_launched_with(plan: Plan) -> None:
    registers = plan.register_pool
    taken = registers.default_registers * plan.consumer_warps + 4 * sum(registers.groups)
    assert taken <= registers.launch_registers * plan.total_warps


@every_plan
def test_the_threads_of_a_cta_are_the_same_with_and_without_a_partition_for_each(plan: Plan) -> None:
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


def test_a_problem_smaller_than_a_tile_takes_one() -> None:
    assert TWO_CONSUMERS.tiles((1, 1, 8)) == (1, 1)
    assert TWO_CONSUMERS.tiles((129, 257, 8)) == (2, 2)


def test_a_wider_program_loads_fewer_bytes_per_operation() -> None:
    # 2 x 128 x 256 operations on (128 + 256) x 2 bytes of each K; 2 x 256 x 256 on (256 + 256) x 2.
    assert TWO_CONSUMERS.l2_flops_per_byte == pytest.approx(65_536 / 768)
    assert PAIR_OF_CTAS.l2_flops_per_byte == pytest.approx(128)


# --- the ledger


def section(of: Ledger, title: str) -> Section:
    return next(section for section in of.sections if section.title.startswith(title))


def test_a_ledger_s_bytes_add_up_to_its_total(product: Product) -> None:
    memory = section(ledger(product.plan), "shared memory")
    assert memory.total
    assert sum(entry.amount for entry in memory.entries) == memory.total.amount == product.plan.smem_bytes


def test_a_ledger_s_partitions_fit_into_the_registers_of_its_total(product: Product) -> None:
    registers = section(ledger(product.plan), "registers")
    assert registers.total
    padded_warps = [-(-partition.warps // 4) * 4 for partition in product.plan.partitions]
    amounts = (entry.amount for entry in registers.entries)
    taken = sum(32 * warps * amount for warps, amount in zip(padded_warps, amounts, strict=False))
    assert taken <= registers.total.amount <= product.plan.gpu.architecture.registers_per_sm


def test_a_ledger_is_data_that_json_can_hold() -> None:
    data = ledger(TWO_CONSUMERS).as_dict()
    assert data == ledger(TWO_CONSUMERS).as_dict()
    assert set(data) == {"sections"}


LEDGER = """\
kernel for H100 SXM (sm_90a)
  CTA tile m              128 rows       2 x 64 by consumer
  CTA tile n              256 columns    stored as 2 x 128
  CTA tile k               64 elements   16,384 of A + 32,768 of B bytes per stage
  cluster                   1 CTAs       1 x 1
  stages                    4 tiles      256 of K in flight
  outstanding               0 MMAs       older MMAs that run while a step is issued
  instructions              4 wgmma      m64n256k16 per warpgroup and K step
  order                    16 tiles      snake: rows of tiles walked together
  intensity              85.3 FLOP/B     of a program's tile towards L2

shared memory per CTA
  a_smem_0             32,768 bytes      4 x 64 x 64 bf16, swizzle 128
  a_smem_1             32,768 bytes      4 x 64 x 64 bf16, swizzle 128
  b_smem              131,072 bytes      4 x 256 x 64 bf16, swizzle 128
  d_smem_0             16,384 bytes      1 x 64 x 128 bf16, swizzle 128
  d_smem_1             16,384 bytes      1 x 64 x 128 bf16, swizzle 128
  load_ready               32 bytes      4 mbarriers
  load_empty               32 bytes      4 mbarriers
  captures                148 bytes      12 values handed to the workers
  worker state              8 bytes      of 8 worker warps
  padding                  12 bytes      alignment to 16 bytes
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
  intensity           2,730.7 FLOP/B     towards DRAM: bound by tensor cores"""


def test_a_ledger_s_text_is_aligned_amounts_with_their_derivation() -> None:
    assert ledger(TWO_CONSUMERS).as_text() == LEDGER
