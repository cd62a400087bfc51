"""How configurations are ranked: by what was measured on an H200, and by sums made by hand."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hopper import hopper, judge
from modules import spec_file
from work import calls_of

from benchmarks.fit.model import MODULES
from gemmgen import cli
from gemmgen.cli.candidates import candidates_table, explanation
from gemmgen.features.planning import SIDES
from gemmgen.plan.search import Estimate
from gemmgen.plan.timing import STEP_CAUSES, Tiles, step
from gemmgen.plan.wgmma import WgmmaKernel, cost
from gemmgen.plan.wgmma.cost import estimate, row_of, smem_cycles
from gemmgen.plan.wgmma.cost_constants import POWER_CYCLES_PER_NS
from gemmgen.plan.wgmma.tried.candidate_table import EVERY
from gemmgen.plan.wgmma.tried.hopper_space import WgmmaSpace
from gemmgen.plan.wgmma.tried.row import PartialSpec
from gemmgen.planner import Ranking, plan_spec, rank
from gemmgen.spec import Spec, SpecFile, load_spec

SPACE = WgmmaSpace(SIDES["wgmma"])
"""The decisions that are tried for Hopper kernels."""

ROOT = Path(__file__).parent.parent
Shape = tuple[int, int, int]
SQUARE, SMALLER, SHORT = (8192, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 1024)
OUTPUTS = {"bf16": "bf16", "fp16": "fp16", "e4m3": "bf16", "int8": "int32", "tf32": "fp32"}


def step_ns(plan: WgmmaKernel, ctas: int = 1, rate: float = POWER_CYCLES_PER_NS) -> dict[str, float]:
    """What a K step cannot be shorter than, by cause, where all SMs work."""
    row = row_of(plan)
    assert isinstance(row, Tiles)
    return dict(zip(STEP_CAUSES, step(row, ctas, rate, 1.0), strict=True))


def source(dtype: str = "bf16", shape: Shape = SQUARE, **sections: object) -> SpecFile:
    names = {"a": {"dtype": dtype}, "b": {"dtype": dtype}, "d": {"dtype": OUTPUTS[dtype]}}
    data: dict[str, object] = {"title": "t", "target": "h200", "operands": names}
    return SpecFile.of(Spec.model_validate(data | {"bench": {"shapes": [list(shape)]}} | sections))


def planned(dtype: str = "bf16", shape: Shape = SQUARE, **sections: object) -> WgmmaKernel:
    return hopper(plan_spec(source(dtype, shape, **sections)))


def tile(plan: WgmmaKernel) -> tuple[int, int, int]:
    return plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k


def config(plan: WgmmaKernel) -> tuple[int, int, int, int]:
    """A configuration as the tutorial prints it, but for the instruction: block M, N and K, and warps."""
    return (*tile(plan), plan.consumer_warps)


# --- the configuration search of Triton's Gluon tutorial 05 (WGMMA): blocked matmul of fp16


@cache
def tutorial(stages: int, occupancy: int) -> Ranking:
    """All blocked kernels of so many buffers of A and B, for so many CTAs on an SM.

    As the tutorial's, they await an MMA before they issue the next one, and load while one runs.
    """
    return rank(
        source(
            "fp16",
            (8192, 8192, 16384),
            schedule={"kind": "tiled"},
            buffering={"stages": stages, "outstanding_mmas": 0},
            occupancy=occupancy,
        )
    )


def legal(stages: int, occupancy: int) -> list[tuple[int, int, int, int]]:
    return list(
        dict.fromkeys(config(hopper(candidate.plan)) for candidate in tutorial(stages, occupancy).legal)
    )


def best(stages: int, occupancy: int) -> WgmmaKernel:
    return hopper(tutorial(stages, occupancy).legal[0].plan)


@pytest.mark.parametrize(
    ("stages", "occupancy", "found"),
    [
        # Two CTAs have 233,472 / 2 - 1,024 = 115,712 bytes each. With D of 64 x 256 and of 128 x 128:
        # (64 + 256) x 128 x 2 + 32,768 = 114,688; (64 + 128) x 256 x 2 + 16,384 = 114,688;
        # (128 + 128) x 128 x 2 + 32,768 = 98,304, each with a barrier more.
        (1, 2, {(64, 256, 128, 4), (64, 128, 256, 4), (128, 128, 128, 4), (128, 128, 128, 8)}),
        # One CTA has 232,448: (128 + 256) x 256 x 2 = 196,608, and a part of D of 128 x 128 x 2 = 32,768.
        (1, 1, {(128, 256, 256, 8), (256, 128, 256, 8)}),
        # Twice the buffers, half the K: the same bytes of A and B.
        (2, 2, {(64, 256, 64, 4), (64, 128, 128, 4), (128, 128, 64, 4), (128, 128, 64, 8)}),
        (2, 1, {(128, 256, 128, 8), (256, 128, 128, 8)}),
    ],
)
def test_the_configurations_that_the_tutorial_benchmarks_are_legal(
    stages: int, occupancy: int, found: set[tuple[int, int, int, int]]
) -> None:
    assert found <= set(legal(stages, occupancy))


@pytest.mark.parametrize(
    ("stages", "occupancy", "refused", "rule"),
    [
        # 128 x 256 over 256 threads are 128 registers and 28 to work with; two CTAs have 128 a thread.
        (1, 2, (128, 256, 64, 8), "accumulator-registers"),
        # 128 x 256 over 128 threads are 256 registers, all that a thread can have.
        (1, 1, (128, 256, 64, 4), "accumulator-registers"),
        # (128 + 128) x 256 x 2 = 131,072 of 115,712 bytes.
        (1, 2, (128, 128, 256, 8), "smem-capacity"),
        # The best one of a single buffer: 2 x 81,920 = 163,840 of 115,712 bytes.
        (2, 2, (64, 256, 128, 4), "smem-capacity"),
    ],
)
def test_what_the_tutorial_s_limits_exclude_is_refused_by_a_rule(
    stages: int, occupancy: int, refused: tuple[int, int, int, int], rule: str
) -> None:
    assert refused not in legal(stages, occupancy)
    plans = itertools.chain.from_iterable(
        configuration.kernels()
        for configuration in SPACE.configurations(
            source("fp16", schedule={"kind": "tiled"}, buffering={"stages": stages}, occupancy=occupancy)
        )
    )
    found = [{violation.rule for violation in judge(plan)} for plan in plans if config(plan) == refused]
    assert all(found)
    assert {rule} in found  # others break rules of how D is stored besides


def test_with_one_buffer_a_second_cta_multiplies_while_the_first_one_loads() -> None:
    pair, lone = best(1, 2), best(1, 1)
    assert (tile(pair), tile(lone)) == ((128, 128, 128), (128, 256, 256))
    # 128^3 / 2,048 = 1,024 cycles of MMA, and 155 ns of drain; 690 ns and 2 x 65,536 bytes at 285 to load.
    both = (1_024 / 1.316 + 155) + 690 + 131_072 / 285
    assert max(step_ns(pair, ctas=2).values()) == pytest.approx(both)
    # The lone one multiplies four times as long, as much as both of the pair do in two steps.
    # Alone on its SM it shares a tile of two warpgroups, 30 ns for each 128 bytes of K.
    four = (4_096 / 1.316 + 155 + 4 * 30) + 690 + 196_608 / 285
    assert max(step_ns(lone).values()) == pytest.approx(four)
    assert four > 2 * both
    assert tutorial(1, 2).legal[0].cost < tutorial(1, 1).legal[0].cost


def test_with_two_buffers_the_square_tile_for_two_ctas_is_best_of_all() -> None:
    assert tile(best(2, 2)) == (128, 128, 64)
    # 512 cycles of MMA, 155 ns of drain, 182 to ask for the next stage; a lap is that, 690 ns, and the bytes.
    busy = 512 / 1.316 + 155 + 182
    lap = busy + 690 + 65_536 / 285
    assert max(step_ns(best(2, 2), ctas=2).values()) == pytest.approx(lap / 2)
    plans = (hopper(candidate.plan) for candidate in tutorial(2, 2).legal)
    wide = next(plan for plan in plans if tile(plan) == (64, 256, 64))
    # 64 x 256 tiles load (64 + 256) x 64 x 2 = 40,960 bytes for the same products.
    assert max(step_ns(wide, ctas=2).values()) == pytest.approx((lap + 2 * 8_192 / 285) / 2)
    assert tutorial(2, 2).legal[0].cost < tutorial(2, 1).legal[0].cost


def test_a_second_buffer_is_worth_more_than_a_longer_step() -> None:
    for occupancy in (1, 2):
        assert tutorial(2, occupancy).legal[0].cost < tutorial(1, occupancy).legal[0].cost


# --- what was measured: ratios to cuBLAS at SQUARE, SMALLER and SHORT, one session on an H200

COOPERATIVE: dict[str, Any] = {"warp_specialization": {"kind": "cooperative", "consumers": 2}}
LONE: dict[str, Any] = {"warp_specialization": {"kind": "cooperative", "consumers": 1}}
PING_PONG: dict[str, Any] = {"warp_specialization": {"kind": "ping_pong"}}
NONE: dict[str, Any] = {"warp_specialization": {"kind": "none"}, "schedule": {"kind": "persistent"}}
TILED: dict[str, Any] = {"schedule": {"kind": "tiled"}}
ONE_CTA: dict[str, Any] = {"cluster": {"m": 1, "n": 1}, "occupancy": 1}


def measured(
    m: int, n: int, k: int, queue: int, kind: dict[str, Any], dtype: str = "bf16", **more: object
) -> Callable[[Shape], WgmmaKernel]:
    buffering: dict[str, object] = {"outstanding_mmas": queue}
    if stages := more.pop("stages", None):
        buffering["stages"] = stages
    sections = ONE_CTA | kind | {"tile": {"m": m, "n": n, "k": k}, "buffering": buffering} | more
    return lambda shape: planned(dtype, shape, **sections)


MEASURED: dict[str, list[tuple[Callable[[Shape], WgmmaKernel], tuple[float | None, ...]]]] = {
    "bf16": [
        (measured(128, 256, 64, 0, COOPERATIVE), (1.027, 1.005, 1.066)),
        (measured(128, 256, 64, 1, COOPERATIVE, cluster={"m": 2}), (1.021, 0.987, 1.000)),
        (measured(128, 256, 64, 0, COOPERATIVE, cluster={"n": 2}), (1.024, 0.989, 1.045)),
        (measured(128, 128, 64, 1, PING_PONG), (1.031, 1.016, 1.113)),
        (measured(64, 256, 64, 1, PING_PONG, cluster={"m": 2}), (1.027, 1.00, 1.111)),
        (measured(128, 128, 64, 0, PING_PONG), (0.78, None, None)),
        (measured(128, 128, 64, 1, PING_PONG, cluster={"m": 2}), (1.025, 0.980, 1.106)),
        (measured(128, 256, 64, 1, NONE), (0.976, 0.952, 0.957)),
        (measured(128, 256, 64, 0, NONE), (0.571, None, None)),
        (measured(128, 256, 64, 1, TILED), (1.004, 0.967, 0.890)),
        (measured(128, 256, 64, 0, TILED), (0.748, None, None)),
        (measured(128, 128, 64, 1, TILED, occupancy=2), (1.006, 0.980, 0.949)),
        (measured(128, 128, 64, 0, TILED, occupancy=2), (0.997, 0.972, 0.935)),
        (measured(128, 128, 128, 0, TILED, occupancy=2, stages=1), (0.742, 0.698, 0.769)),
        (measured(128, 256, 64, 0, TILED, stages=1), (0.44, None, None)),
        (measured(128, 256, 64, 1, LONE), (1.02, None, None)),
        (measured(128, 256, 64, 0, LONE), (0.91, None, None)),
    ],
    "e4m3": [
        (measured(128, 128, 128, 1, PING_PONG, "e4m3"), (1.050, 1.042, 1.164)),
        (measured(128, 256, 128, 0, COOPERATIVE, "e4m3"), (1.040, 1.026, 1.083)),
        (measured(128, 256, 128, 1, COOPERATIVE, "e4m3"), (1.024, 1.00, 0.99)),
    ],
    "tf32": [
        (measured(128, 128, 32, 1, PING_PONG, "tf32"), (1.012, 1.034, 0.990)),
        (measured(128, 256, 32, 0, COOPERATIVE, "tf32"), (1.004, 1.011, 0.903)),
    ],
    "promoted": [
        (measured(128, 128, 256, 0, COOPERATIVE, "e4m3", mma={"promote_k": 256}), (1.010, 1.045, None)),
        (measured(128, 128, 128, 0, COOPERATIVE, "e4m3", mma={"promote_k": 128}), (0.893, 0.955, None)),
        (measured(64, 128, 128, 0, PING_PONG, "e4m3", mma={"promote_k": 128}), (0.53, None, None)),
    ],
}
SHAPES = (SQUARE, SMALLER, SHORT)


@pytest.mark.parametrize("dtype", MEASURED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_measured_more_than_3_percent_faster_is_ranked_first(dtype: str, shape: Shape) -> None:
    place = SHAPES.index(shape)
    plans = [(make(shape), ratios[place]) for make, ratios in MEASURED[dtype]]
    for (one, fast), (other, slow) in itertools.permutations(plans, 2):
        if fast is not None and slow is not None and fast > 1.03 * slow:
            assert cost.costs(one, (shape,)) < cost.costs(other, (shape,)), (config(one), config(other))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_predicted_ratio_is_within_8_percent_of_a_measured_one(shape: Shape) -> None:
    place = SHAPES.index(shape)
    plans = [(make(shape), ratios[place]) for make, ratios in MEASURED["bf16"]]
    reference, unit = plans[0]
    assert unit is not None
    for plan, ratio in plans:
        if ratio is not None:
            predicted = estimate(reference, shape).seconds / estimate(plan, shape).seconds * unit
            assert predicted == pytest.approx(ratio, rel=0.08), config(plan)


# --- the terms of a time


def test_a_cooperative_tile_s_time_is_the_sum_made_by_hand() -> None:
    plan = planned(
        tile={"m": 128, "n": 256, "k": 64}, buffering={"outstanding_mmas": 0}, **ONE_CTA, **COOPERATIVE
    )
    found = estimate(plan, SQUARE)
    # 2,048 tiles on 132 SMs are 16 rounds, in which 97 % of the SMs work; 128 steps of 1,024 cycles each.
    ideal, waiting = 8192**3 / 2048 / 132, 30 * 2_048 / (16 * 132)
    # 65,536 bytes of D at 5.05 a nanosecond for each of 8 warps, two thirds of it, and what goes before.
    epilogue = 68 + 65_536 / (5.05 * 8) * 2 / 3

    def seconds(rate: float) -> tuple[float, float]:
        """The busiest SM's time where tensor cores do so many cycles a nanosecond, and with L2 and DRAM."""
        busiest = 16 * (128 * (1_024 / rate + waiting) + epilogue)
        # 2,048 x 128 stages of 49,152 bytes at 15,000 a nanosecond; three matrices at 0.812 of 4.8 TB/s.
        l2, dram = 2_048 * 128 * 49_152 / 15_000, 3 * 2 * 8192**2 / (0.812 * 4_800)
        return busiest, ((busiest**8 + l2**8) ** (4 / 8) + dram**4) ** (1 / 4)

    used = ideal / 1.74 / seconds(1.74)[1]
    rate = 1.316 * used**-0.211
    busiest, together = seconds(rate)
    terms = {
        "tensor cores": ideal / 1.74,
        "power": ideal / rate - ideal / 1.74,
        "idle SMs": 16 * 128 * 1_024 / rate - ideal / rate,
        "drained MMAs": 16 * 128 * waiting,
        "epilogue": 16 * epilogue,
        "L2": together - busiest,
        "start": 1_926,
    }
    assert found.terms == pytest.approx({cause: 1.35 * time for cause, time in terms.items()})
    assert found.seconds == pytest.approx((together + 1_926) / 1e9)
    # 2,048 tiles x 128 steps x (128 + 256) x 64 x 2 bytes.
    assert found.l2_bytes == 2_048 * 128 * 49_152


def test_tensor_cores_are_slower_the_more_of_them_work() -> None:
    plan = planned(tile={"m": 128, "n": 128, "k": 64}, **PING_PONG, **ONE_CTA)

    def cycles_of_a_step(shape: Shape) -> float:
        terms = estimate(plan, shape).terms
        steps = -(-math.prod(plan.tiles(shape)) // 132) * shape[2] / 64
        return (terms["tensor cores"] + terms.get("power", 0) + terms["idle SMs"]) / steps / 1.35

    one, half, all_of_them = (cycles_of_a_step((m, 1024, 16384)) for m in (128, 1024, 2048))
    assert one == pytest.approx(512 / 1.74)  # 8 SMs: nothing limits the clock
    assert one < half < all_of_them < 512 / 1.316


def test_shared_memory_is_written_by_tma_as_well_as_read() -> None:
    plan = planned("tf32", tile={"m": 64, "n": 32, "k": 32}, **LONE, **ONE_CTA)
    # 64 rows of A and 32 of B, 128 bytes each, are 96 cycles to read; to write them takes 0.373 of that.
    assert step_ns(plan)["shared memory"] == pytest.approx(96 * 1.373 / 1.316)


def test_ping_pong_pays_turns_and_one_epilogue_where_cooperation_pays_one_per_tile() -> None:
    plan = planned(
        tile={"m": 128, "n": 128, "k": 64}, buffering={"outstanding_mmas": 1}, **PING_PONG, **ONE_CTA
    )
    terms = estimate(plan, SHORT).terms
    assert terms["turns"] == pytest.approx(1.35 * 31 * 270)  # 4,096 tiles on 132 SMs: 32 rounds
    assert terms["epilogue"] == pytest.approx(1.35 * 32_768 / 20.2)  # of four warps, once
    # A main loop of 512 cycles and the turn hide some of those 1,622 ns; the other consumer waits for half.
    beyond = (32_768 / 20.2 - 512 / 1.74 - 270) / 2
    brief = estimate(plan, (8192, 8192, 64)).terms
    assert brief["epilogue"] == pytest.approx(1.35 * (32 * beyond + 32_768 / 20.2))
    assert "turns" not in estimate(plan, (1024, 1024, 1024)).terms  # one tile on an SM has nobody to wait for


def test_an_mma_in_flight_hides_what_a_drained_queue_exposes() -> None:
    def step(queue: int) -> dict[str, float]:
        return step_ns(
            planned(tile={"m": 128, "n": 256, "k": 64}, buffering={"outstanding_mmas": queue}, **TILED)
        )

    # Alone on its SM, two warpgroups share a tile: 30 ns, and an MMA in flight hides as long as it takes.
    mma = 1_024 / 1.316
    assert step(0)["drained MMAs"] == pytest.approx(mma + 30 + 155 + 182)
    assert step(1)["drained MMAs"] == pytest.approx(mma + 30)


def exposed(plan: WgmmaKernel) -> float:
    """The time of a K step in which neither tensor cores nor shared memory work."""
    found = step_ns(plan)
    return found["drained MMAs"] - max(found["tensor cores"], found["shared memory"])


def test_beside_another_cta_an_mma_in_flight_hides_less() -> None:
    def drained(n: int, occupancy: int) -> float:
        plan = planned(
            tile={"m": 64, "n": n, "k": 64}, buffering={"outstanding_mmas": 1}, occupancy=occupancy, **TILED
        )
        return exposed(plan)

    for n in (128, 64):
        mma = 256 * n / 128 / 1.316
        assert drained(n, 1) == pytest.approx(max(0, 182 - mma))
        assert drained(n, 2) == pytest.approx(182 - 0.195 * mma)


def test_a_stage_comes_in_more_slowly_where_all_sms_ask_for_it_at_the_same_time() -> None:
    def lap(k: int, occupancy: int) -> tuple[float, int]:
        plan = planned(
            tile={"m": 64, "n": 128, "k": k},
            buffering={"stages": 3, "outstanding_mmas": 1},
            occupancy=occupancy,
            **TILED,
        )
        return 2 * step_ns(plan)["short ring"], plan.stage_bytes

    # One of the three stages is that of the MMA in flight.
    assert lap(64, 2) == pytest.approx((690 + 24_576 / 285, 24_576))
    assert lap(64, 1) == pytest.approx((690 + 24_576 / 70, 24_576))
    assert lap(128, 1) == pytest.approx((690 + 49_152 / 70, 49_152))


def test_two_ctas_share_what_an_sm_does_in_a_cycle() -> None:
    plan = planned(tile={"m": 128, "n": 128, "k": 64}, occupancy=2, **TILED)
    one, two = step_ns(plan), step_ns(plan, ctas=2)
    assert [two[name] / one[name] for name in ("tensor cores", "shared memory")] == [2, 2]
    assert two["drained MMAs"] == one["drained MMAs"]
    assert two["short ring"] - one["short ring"] == pytest.approx(
        32_768 / 285 / (plan.stages - plan.outstanding_mmas)
    )


def test_few_tiles_leave_an_sm_to_one_cta() -> None:
    plan = planned(tile={"m": 128, "n": 128, "k": 64}, occupancy=2, **TILED)
    few, more = (estimate(plan, (1024, n, 4096)).terms for n in (1024, 4096))
    # 64 tiles for 132 SMs: one round, and nobody to share with.
    assert "shared SM" not in few
    assert "shared SM" in more
    assert few["start"] == more["start"] == pytest.approx(1.35 * (1_926 - 400))


def test_a_program_for_each_tile_starts_again_in_every_round() -> None:
    plan = planned(tile={"m": 128, "n": 256, "k": 64}, **TILED)
    # 256 tiles on 132 SMs.
    # Without roles a kernel starts 400 ns sooner.
    assert estimate(plan, (2048, 4096, 4096)).terms["start"] == pytest.approx(1.35 * (1_926 - 400 + 1_740))


def test_a_kernel_of_clusters_starts_later_and_its_ring_turns_more_slowly() -> None:
    alone, together = (
        planned(
            tile={"m": 64, "n": 64, "k": 128}, warp_specialization={"kind": "ping_pong"}, cluster={"m": m}
        )
        for m in (1, 2)
    )
    shape = (128, 4096, 4096)
    later = estimate(together, shape).terms["start"] - estimate(alone, shape).terms["start"]
    assert later == pytest.approx(1.35 * 900)
    # Both wait 690 ns for 64 x 128 x 2 bytes of A; of B each loads half. Six stages, one MMA in flight.
    assert step_ns(alone)["short ring"] == pytest.approx((690 + 32_768 / 285) / 5)
    assert step_ns(together)["short ring"] == pytest.approx((690 + 500 + 24_576 / 285) / 5)


def test_consumers_cover_for_an_a_in_registers_only_where_their_mmas_are_long() -> None:
    types: dict[str, Any] = {"a": {"dtype": "bf16", "source": "registers"}}
    types |= {name: {"dtype": "bf16"} for name in ("b", "d")}
    cooperative: dict[str, Any] = {
        "operands": types,
        "warp_specialization": {"kind": "cooperative", "consumers": 2},
        "buffering": {"outstanding_mmas": 0},
        "cluster": {"m": 1, "n": 1},
    }

    def drained(n: int) -> tuple[float, float]:
        plan = planned(tile={"m": 128, "n": n, "k": 64}, **cooperative)
        assert (plan.a_source, plan.outstanding_mmas, plan.row_shares) == ("registers", 0, 2)
        found = step_ns(plan, rate=1.0)
        return found["drained MMAs"], found["tensor cores"]

    # Three parts of 112 columns, 56 cycles for each 16 of K and 64 rows: 224, and 120 for each part.
    assert drained(112) == pytest.approx((224 + 3 * 120, 448))
    step, mma = drained(160)
    assert 320 + 2 * 120 < mma <= step < mma + 60


def test_where_k_is_divided_more_sms_work_and_the_sums_are_added_up() -> None:
    sections: dict[str, Any] = {"tile": {"m": 128, "n": 64, "k": 64}, "mma": {"rows": "m"}}
    whole, parts = (
        estimate(
            planned(**sections, schedule={"kind": "tiled", "splits": splits}, occupancy=1), (128, 2048, 16384)
        )
        for splits in (1, 4)
    )
    assert "splits" not in whole.terms
    # Four sums of 128 x 64 in fp32 at 23 bytes a nanosecond.
    assert parts.terms["splits"] == pytest.approx(1.35 * (740 + 4 * 128 * 64 * 4 / 23))
    # 128 of 132 SMs work and not 32: DRAM is what takes longest then, and a fifth of the time are the sums.
    assert parts.seconds / whole.seconds == pytest.approx(0.508, abs=1e-3)


def test_promotion_costs_two_cycles_for_each_register_of_partial_sums() -> None:
    tiles: dict[str, Any] = {"tile": {"m": 128, "n": 128, "k": 128}, "mma": {"promote_k": 128}}
    plan = planned("e4m3", **tiles)
    # 64 x 128 / 128 threads = 64 registers; the other consumer multiplies during the drain.
    assert step_ns(plan)["drained MMAs"] == pytest.approx((128**3 / 4_096 + 128) / 1.316 + 30)


# --- launched before the kernel ahead has ended


def early(
    shape: Shape, tile: dict[str, int], splits: int = 1, occupancy: int = 1, **more: object
) -> WgmmaKernel:
    sections: dict[str, Any] = {"mma": {"rows": "n"}, "tile": tile, "occupancy": occupancy, **more}
    return planned(shape=shape, schedule={"kind": "tiled", "splits": splits}, **sections)


def gained(shape: Shape, tile: dict[str, int], splits: int = 1, occupancy: int = 1) -> float:
    """The time in ns that a kernel takes less where it is launched early."""
    alone = estimate(early(shape, tile, splits, occupancy), shape)
    launched = early(shape, tile, splits, occupancy, dependent_launch={"early": "b"})
    return (alone.seconds - estimate(launched, shape).seconds) * 1e9


def test_a_kernel_that_leaves_the_next_one_its_places_gains_nothing() -> None:
    assert gained((16, 4096, 4096), {"m": 16, "n": 64, "k": 256}) == 0  # 64 programs for 132 places


def test_a_kernel_that_fills_the_places_gains_its_start() -> None:
    assert gained((16, 8192, 8192), {"m": 16, "n": 64, "k": 256}) == pytest.approx(900)  # 128 for 132
    assert gained((16, 57344, 8192), {"m": 16, "n": 64, "k": 256}) == pytest.approx(900)


def test_a_kernel_that_leaves_less_than_half_of_the_places_loses() -> None:
    shape, tile = (16, 5120, 8192), {"m": 16, "n": 64, "k": 256}
    plan = early(shape, tile)
    # 80 programs for 132 places; a ring of some of the 32 steps is loaded before the kernel ahead has ended.
    lost = 1.02 * (0.95 - 80 / 132) * (1 - 2.5 * plan.stages / 32) * estimate(plan, shape).seconds * 1e9
    assert gained(shape, tile) == pytest.approx(900 - lost)
    assert gained(shape, tile) < -2_000
    # K divided by three: 240 programs for 264 places.
    assert gained(shape, tile, splits=3, occupancy=2) > 0


def test_a_program_of_a_cluster_takes_a_place_for_each_of_its_ctas() -> None:
    shape = (16, 4096, 4096)
    plan = replace(early(shape, {"m": 16, "n": 64, "k": 256}), cluster_n=2)
    launched = replace(plan, early_operand="b")
    # 32 programs of two CTAs for 132 places leave the next kernel its own, as 64 of one do; 64 of two do not.
    assert estimate(launched, shape).terms["start"] == estimate(plan, shape).terms["start"]
    wider = (16, 8192, 4096)
    sooner = estimate(plan, wider).terms["start"] - estimate(launched, wider).terms["start"]
    assert sooner == pytest.approx(1.35 * 900)


def test_bytes_that_dram_cannot_deliver_in_time_set_the_time() -> None:
    plan, shape = planned(shape=(64, 8192, 8192)), (64, 8192, 8192)
    found = estimate(plan, shape)
    # A, B and D: (64 + 8,192) x 8,192 + 64 x 8,192 elements of 2 bytes at 4.8 TB/s are 28.4 us.
    assert found.dram_bytes == 2 * ((64 + 8192) * 8192 + 64 * 8192)
    assert found.seconds >= found.dram_seconds == pytest.approx(28.4e-6, rel=0.01)
    slow = replace(found, peak_seconds=1.0)
    assert slow.seconds == 1.0
    starved = Estimate({"tensor cores": 1.0}, 0, found.dram_bytes, found.dram_seconds, 1e9)
    assert starved.seconds == found.dram_seconds


# --- what an open spec gets


@pytest.mark.parametrize(
    ("dtype", "k"), [("bf16", 64), ("fp16", 64), ("e4m3", 128), ("int8", 128), ("tf32", 32)]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_large_problem_gets_the_tile_that_measured_best_in_every_type(
    dtype: str, k: int, shape: Shape
) -> None:
    plan = planned(dtype, shape)
    assert (tile(plan), plan.specialization) == ((128, 128, k), "ping_pong")
    assert (plan.cluster_size, plan.outstanding_mmas, plan.stages) == (1, 1, 6)


@pytest.mark.parametrize(
    ("shape", "tile", "splits"),
    [((16, 4096, 4096), (16, 64), 1), ((1, 6144, 4096), (8, 64), 1), ((16, 2112, 7168), (16, 64), 4)],
)
def test_a_problem_of_few_rows_exchanges_its_operands(
    shape: Shape, tile: tuple[int, int], splits: int
) -> None:
    plan = planned(shape=shape)
    assert (plan.swap_ab, plan.cta_tile_m, plan.cta_tile_n) == (True, *tile)
    assert (plan.schedule_kind, plan.splits) == ("tiled", splits)


@pytest.mark.parametrize(
    ("shape", "reduction", "tile", "cluster", "splits"),
    [
        ((256, 256, 32768), "ordered", (64, 64), (2, 2), 7),
        ((256, 256, 32768), "atomic", (128, 64), (1, 2), 16),
        ((256, 256, 32768), None, (64, 128), (2, 2), 15),
        ((512, 512, 16384), "ordered", (128, 64), (1, 2), 4),
        ((512, 512, 16384), "atomic", (128, 64), (1, 2), 4),
        ((512, 512, 16384), None, (64, 128), (2, 1), 4),
    ],
)
def test_a_long_k_of_few_tiles_is_divided_among_clusters(
    shape: Shape, reduction: str | None, tile: tuple[int, int], cluster: tuple[int, int], splits: int
) -> None:
    # Measured over cuBLAS: 0.81, 0.80 (0.84 the best); with K steps of 128 for 64 0.80, 0.83 (0.84). The
    # kernels with `parallel` were timed only when their programs were sorted by GPC.
    plan = planned(shape=shape, schedule={"reduction": reduction} if reduction else {})
    assert (plan.cta_tile_m, plan.cta_tile_n, plan.cluster_m, plan.cluster_n) == (*tile, *cluster)
    assert (plan.specialization, plan.splits) == ("cooperative", splits)
    assert plan.reduction == (reduction or "parallel")
    assert plan.deterministic == (reduction != "atomic")


@pytest.mark.parametrize(("reduction", "splits"), [("ordered", 8), (None, 16)])
def test_a_long_k_of_fewer_tiles_yet_is_divided_among_programs_without_roles(
    reduction: str | None, splits: int
) -> None:
    plan = planned(shape=(128, 128, 16384), schedule={"reduction": reduction} if reduction else {})
    assert (plan.swap_ab, plan.schedule_kind, plan.splits) == (True, "tiled", splits)
    assert plan.reduces_apart == (not reduction)


@pytest.mark.parametrize("shape", [(65, 4096, 4096), (512, 512, 4096)])
def test_a_problem_of_more_rows_does_not(shape: Shape) -> None:
    assert not planned(shape=shape).swap_ab


@pytest.mark.parametrize("shape", [(256, 4096, 4096), (1024, 1024, 1024), (512, 512, 512)])
def test_a_problem_of_few_tiles_gets_smaller_ones(shape: Shape) -> None:
    plan = planned(shape=shape)
    assert plan.cta_tile_m * plan.cta_tile_n < 128 * 128
    assert 0.9 < plan.waves(shape) <= 1


# --- columns that are fitted to a problem


def composed(shape: Shape, **sections: Any) -> set[tuple[object, object]]:
    """The rows and columns of the tiles that are tried for a problem and are no power of two in both."""
    tried = (found.decisions for found in SPACE.configurations(source(shape=shape, **sections)))
    tiles = {(decisions["cta_tile_m"], decisions["cta_tile_n"]) for decisions in tried}
    return {(m, n) for m, n in tiles if m == 192 or n not in (32, 64, 128, 256)}


@pytest.mark.parametrize(("shape", "order"), [((2000, 1000, 2000), "row"), ((128, 8192, 2048), "column")])
def test_a_wave_of_tiles_is_walked_along_its_shorter_way(shape: Shape, order: str) -> None:
    for kind in ("cooperative", "none"):
        plan = planned(
            shape=shape,
            tile={"m": 128, "n": 128, "k": 64},
            warp_specialization={"kind": kind},
            schedule={"kind": "tiled" if kind == "none" else "persistent"},
        )
        assert (plan.order, plan.width) == (order, 1)


@pytest.mark.parametrize("shape", [(512, 512, 512), (2000, 1000, 2000)])
def test_a_wave_of_tiles_gets_no_roles_where_a_start_counts(shape: Shape) -> None:
    plan = planned(shape=shape)
    assert (plan.schedule_kind, plan.specialization, plan.outstanding_mmas) == ("tiled", "none", 1)


@pytest.mark.parametrize("section", [{"warp_specialization": {"kind": "cooperative"}}, {"cluster": {"m": 2}}])
def test_a_spec_that_decides_something_of_roles_has_them(section: dict[str, Any]) -> None:
    assert {
        hopper(each.plan).specialized for each in rank(source(shape=(512, 512, 512), **section)).legal
    } == {True}


def test_no_kernel_without_roles_is_tried_for_more_tiles_than_a_wave_holds() -> None:
    kinds = {hopper(each.plan).specialized for each in rank(source(shape=(4096, 4096, 4096))).legal}
    assert kinds == {True}


def test_of_composed_tiles_two_get_no_roles() -> None:
    def alone(shape: Shape) -> set[tuple[int, int]]:
        plans = [hopper(each.plan) for each in rank(source(shape=shape)).legal]
        return {tile(plan)[:2] for plan in plans if plan.composed and not plan.specialized}

    assert alone((128, 6144, 4096)) == {(64, 96)}
    assert alone((256, 6144, 4096)) == {(64, 96), (64, 192)}
    # 64 x 160 and 128 x 80 were slower without roles.
    assert not alone((256, 5120, 25600))
    first = planned(shape=(256, 6144, 4096))
    assert (tile(first), first.specialization, first.stages) == ((64, 192, 64), "none", 6)


def test_longer_steps_are_tried_for_narrow_composed_tiles() -> None:
    narrow, wide = (
        {
            hopper(each.plan).cta_tile_k
            for each in rank(source(shape=shape)).legal
            if tile(hopper(each.plan))[:2] == wanted
        }
        for shape, wanted in (((128, 5120, 8192), (64, 80)), ((256, 7168, 2048), (64, 224)))
    )
    assert (narrow, wide) == ({64, 128}, {64})


def test_the_fewest_columns_that_leave_few_waves_are_tried() -> None:
    # 6,144 columns for 132 SMs. Four tiles of 128 rows: 33 across make a wave, of 187 columns or more, so
    # 192; 66 make two, of 94, so 96; 99 three, of 63, which 64 are for. Three of 192 rows: 44, 88 and 132
    # across, of 140, 70 and 47. Eight of 64 rows: 16, 33 and 49, of 384, 187 and 126, which 128 are for. Two
    # of 256 rows: 66, 132 and 198, of 94, 47 and 32.
    wanted = {
        (128, 192),
        (128, 96),
        (192, 144),
        (192, 80),
        (192, 48),
        (64, 384),
        (64, 192),
        (256, 96),
        (256, 48),
    }
    assert composed((512, 6144, 4096)) == wanted


def test_no_columns_are_fitted_to_many_waves() -> None:
    assert composed((8192, 8192, 8192)) == set()


def test_columns_are_fitted_to_the_rows_and_consumers_that_a_spec_states() -> None:
    shape = (512, 6144, 4096)
    assert composed(shape, tile={"m": 128}) == {(128, 192), (128, 96)}
    three = {"kind": "cooperative", "consumers": 3}
    assert {m for m, _ in composed(shape, warp_specialization=three)} == {192}


@pytest.mark.parametrize(
    "sections",
    [
        {"tile": {"n": 128}},
        {"cluster": {"n": 2}},
        {"schedule": {"kind": "tiled"}},
        {"mma": {"rows": "n"}},
    ],
    ids=str,
)
def test_no_columns_are_fitted_where_a_tile_has_one_part(sections: dict[str, object]) -> None:
    assert composed((512, 6144, 4096), **sections) == set()


def test_stated_rows_that_three_consumers_share_are_shared_by_three() -> None:
    plan = planned(shape=(2048, 2112, 7168), tile={"m": 192, "n": 192})
    assert (plan.consumers, plan.specialization) == (3, "cooperative")
    assert plan.consumer_registers == 128  # an equal share, of which 96 hold sums


def test_parts_read_a_from_registers_that_hold_it() -> None:
    cooperative = {"kind": "cooperative", "consumers": 2}
    buffering = {"outstanding_mmas": 0}
    narrow = planned(tile={"m": 128, "n": 160}, warp_specialization=cooperative, buffering=buffering)
    assert (narrow.a_source, narrow.fragments) == ("registers", 2)
    # 160 sums, two steps of A of 16 registers each and 48 to work with are more than 232.
    wide = planned(tile={"m": 128, "n": 320, "k": 64}, warp_specialization=cooperative, buffering=buffering)
    assert (wide.a_source, wide.fragments) == ("shared", 1)


def test_parts_of_narrow_tiles_and_of_a_lone_consumer_read_a_from_shared_memory() -> None:
    buffering = {"outstanding_mmas": 0}
    for rows, consumers, source in ((128, 2, "shared"), (64, 1, "shared"), (192, 3, "registers")):
        kind = {"kind": "cooperative", "consumers": consumers}
        plan = planned(tile={"m": rows, "n": 96}, warp_specialization=kind, buffering=buffering)
        assert plan.a_source == source


def test_parts_read_a_once_unless_they_are_narrow_or_rows_come_between() -> None:
    def cycles(m: int, n: int, kind: str, consumers: int) -> float:
        types = {"a": {"dtype": "bf16", "source": "shared"}, "b": {"dtype": "bf16"}, "d": {"dtype": "bf16"}}
        roles = {"kind": kind, "consumers": consumers}
        plan = planned(operands=types, tile={"m": m, "n": n, "k": 64}, warp_specialization=roles)
        return smem_cycles(plan)

    # 64 of K are 128 bytes, which take a cycle: 128 rows of A, and B's columns for each 64 of them.
    assert cycles(128, 96, "cooperative", 2) == 128 + 2 * 96
    assert cycles(128, 112, "cooperative", 2) == 2 * 128 + 2 * 112  # 32 and 16 columns are narrow
    assert cycles(128, 160, "ping_pong", 2) == 2 * 128 + 2 * 160  # a consumer has 128 rows
    assert cycles(64, 224, "cooperative", 1) == 64 + 224


def test_promotion_is_planned_where_it_is_asked_for_only() -> None:
    assert planned("e4m3").promote_k == 0
    plan = planned("e4m3", mma={"promote_k": 256})
    assert (plan.cta_tile_k, plan.outstanding_mmas, plan.specialization) == (256, 0, "cooperative")


@pytest.mark.parametrize("dtype", OUTPUTS)
def test_an_open_spec_is_planned_without_judging_what_cannot_be_best(dtype: str) -> None:
    assert calls_of(lambda: planned(dtype, SHORT)) < 300_000


# --- the list


@cache
def ranking() -> Ranking:
    return rank(source())


def test_the_first_of_the_list_is_what_is_planned() -> None:
    assert ranking().legal[0].plan == planned()
    for path in ("h100_bf16_fp32_out", "h100_bf16_row_bias_relu", "h100_int8_a_registers"):
        source = load_spec(spec_file(path))
        assert rank(source).legal[0].plan == plan_spec(source)


def test_every_configuration_is_listed_as_legal_or_as_refused() -> None:
    # Cooperative with two consumers or one, and ping-pong.
    choices = 1
    for name, values in EVERY.values(PartialSpec(source().request, {}, {})).items():
        choices *= 3 if name == "consumers" else len(values)
    found = ranking()
    assert len(found.legal) + found.refusals == choices == 576
    assert all(judge(hopper(candidate.plan)) == () for candidate in found.legal[:50])
    assert sum(group.count for group in found.lost) == len(found.legal) - 1
    assert sum(group.count for group in found.refused) >= found.refusals


def test_candidates_are_in_the_order_of_their_cost_and_say_what_decided() -> None:
    found = ranking().legal
    assert [candidate.cost for candidate in found] == sorted(candidate.cost for candidate in found)
    cooperative = next(c for c in found if hopper(c.plan).specialization == "cooperative")
    assert cooperative.lost_by(found[0])[0] == "drained MMAs"
    turns = (c for c in found if hopper(c.plan).ping_pong)
    drained = next(c for c in turns if not hopper(c.plan).outstanding_mmas)
    assert drained.lost_by(found[0])[0] in ("drained MMAs", "short ring")
    short = next(c for c in found if tile(hopper(c.plan)) == (128, 128, 32))
    assert short.lost_by(found[0])[0] == "drained MMAs"
    equal = next(c for c in found[1:] if c.cost[0] == found[0].cost[0])
    assert equal.lost_by(found[0]) == ("listed later", 0.0)  # three of 128 hold as much as six of 64


def test_an_explanation_and_a_table_with_named_columns_fit_110_columns() -> None:
    assert max(map(len, explanation(ranking()).splitlines())) <= 110
    table = candidates_table(ranking(), 400).splitlines()
    assert max(map(len, table)) <= 110
    assert len(candidates_table(ranking(), 7).splitlines()) == 2 + 7 + 4
    assert table[1].split("  ")[0] == ""
    header, first = (line.split() for line in table[1:3])
    assert header[:6] == ["kernel", "tile", "cluster", "warps", "stages", "MMAs"]
    assert first[:5] == ["1", "ping-pong", "128x128x64", "1x1", "12"]


def searching(**search: object) -> Ranking:
    return rank(source(search={path.replace("__", "."): values for path, values in search.items()}))


def test_a_searched_field_has_a_column_and_a_value_in_json() -> None:
    found = searching(schedule__width=[16, 1])
    lines = candidates_table(found, 4).splitlines()
    end = lines[1].index("schedule.width") + len("schedule.width")
    rows = [line[:end].split() for line in lines[2:6]]
    assert [row[-1] for row in rows] == [str(candidate.plan.width) for candidate in found.legal[:4]]
    assert len({tuple(row[1:]) for row in rows}) == 4
    data: Any = found.as_dict(4, explained=False)["candidates"]
    assert {each["fields"]["schedule.width"] for each in data} == {1, 16}
    assert {"tile.m", "schedule.order", "schedule.minor", "occupancy"} < set(data[0]["fields"])


def test_rows_that_would_be_alike_get_the_columns_in_which_they_differ() -> None:
    """Without the paths under `search`, of which the ranking tells the table."""
    found = replace(searching(schedule__width=[16, 1]), searched=())
    assert "schedule.width" in candidates_table(found, 4)
    assert "schedule.width" not in candidates_table(found, 1)


def test_an_explanation_names_rules_with_an_example_and_terms_with_a_margin() -> None:
    text = " ".join(explanation(ranking()).split())
    assert re.search(r"accumulator-registers \d+ ping-pong, 128 x 256 x 64, .*? takes 256 registers", text)
    margin = r"\d\.\d% slower, with [\d,]+ cycles more of it"
    assert re.search(rf"drained MMAs \d+ cooperative, .*?: {margin}", text)


# --- the command

SPEC = str(ROOT / "specs" / "h100_bf16_fp32_out.yaml")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["gemmgen", "plan", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((SPEC, "--candidates"), 10),
        (("--candidates", SPEC), 10),
        (("--candidates", "3", SPEC), 3),
        ((SPEC, "--candidates=12"), 12),
    ],
)
def test_candidates_may_stand_without_their_number(
    command: Callable[..., str], arguments: tuple[str, ...], count: int
) -> None:
    lines = command(*arguments).splitlines()
    assert len(lines) == 2 + count + 4
    assert lines[1 + count].split()[0] == str(count)


def test_both_are_given_as_json(command: Callable[..., str]) -> None:
    (found,) = json.loads(command(SPEC, "--candidates", "2", "--explain", "--json"))["results"].values()
    assert found["shape"] == list(SQUARE)
    assert len(found["candidates"]) == 2
    assert found["candidates"][0]["lost_by"] is None
    assert found["candidates"][1]["predicted_seconds"] > 0
    assert {"reason", "count", "example", "detail"} == set(found["refused_by"][0]) == set(found["lost_by"][0])


# --- the document


def test_the_document_has_the_constants_of_the_code() -> None:
    text = (ROOT / "benchmarks" / "studies" / "cost_model.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z0-9_]+)` \| ([\d.,]+) \|", text, re.MULTILINE))
    constants = {
        name: value
        for module in MODULES
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, (int, float)) and not name.startswith("_")
    }
    assert set(rows) == set(constants)
    for name, value in constants.items():
        assert float(rows[name].replace(",", "")) == pytest.approx(value, rel=1e-2), name
