"""What the planner chooses for a spec, what it leaves alone, and whom it blames when nothing is legal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, cast

import pytest
from advice import asked
from hopper import hopper, judge
from hypothesis import given, settings
from hypothesis import strategies as st
from work import calls_of

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.planning import SIDES
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.bounds import most_stages
from gemmgen.plan.wgmma.cost import costs, cycles, excess
from gemmgen.plan.wgmma.tried.candidate_table import DEFAULTS
from gemmgen.plan.wgmma.tried.hopper_space import WgmmaSpace
from gemmgen.planner import applied, attempted, plan_spec
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.model import spec_of, stated

SPACE = WgmmaSpace(SIDES["wgmma"])
"""The decisions that are tried for Hopper kernels."""

LARGE = (8192, 8192, 8192)
COOPERATIVE: dict[str, Any] = {"warp_specialization": {"kind": "cooperative"}}


def source(**sections: object) -> SpecFile:
    """A spec with these sections beside the required ones; each value is on a line of its own."""
    operands = {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}, "d": {"dtype": "bf16"}}
    data: dict[str, object] = {"title": "t", "target": "h100", "operands": operands, **sections}
    fields = dict(leaves(data))
    positions = {field: (line, 1) for line, field in enumerate(fields, start=1)}
    return SpecFile(
        spec=Spec.model_validate(data),
        path="x.yaml",
        stem="x",
        sha256="",
        positions=positions,
        key_positions=positions,
    )


def leaves(value: object, field: str = "") -> Iterator[tuple[str, object]]:
    """Every scalar below a value, with its dotted name."""
    match value:
        case dict():
            steps = list(cast("dict[str, object]", value).items())
        case list():
            steps = [(str(i), item) for i, item in enumerate(cast("list[object]", value))]
        case _:
            yield field, value
            return
    for step, member in steps:
        yield from leaves(member, f"{field}.{step}" if field else step)


def operands(d: str) -> dict[str, object]:
    return {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}, "d": {"dtype": d}}


def planned(**sections: object) -> WgmmaKernel:
    return hopper(plan_spec(source(**sections)))


def rejected(**sections: object) -> tuple[Diagnostic, ...]:
    with pytest.raises(GemmgenError) as caught:
        planned(**sections)
    return caught.value.diagnostics


def tile(plan: WgmmaKernel) -> tuple[int, int, int]:
    return plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k


# --- what is left out


def test_a_spec_that_pins_nothing_gets_the_tile_that_measured_best() -> None:
    plan = planned()
    assert (plan.specialization, tile(plan)) == ("ping_pong", (128, 128, 64))
    assert (plan.stages, plan.consumers, plan.cluster_size) == (6, 2, 1)
    assert (plan.producer_registers, plan.consumer_registers) == (168, 168)  # nobody asks
    assert (plan.outstanding_mmas, plan.subtile_n, plan.epilogue_buffers) == (1, 64, 1)


def test_cooperative_consumers_get_the_tile_that_measured_best_for_them() -> None:
    plan = planned(**COOPERATIVE)
    assert tile(plan) == (128, 256, 64)
    assert (plan.stages, plan.consumers, plan.cluster_size) == (4, 2, 1)
    assert (plan.producer_registers, plan.consumer_registers) == (168, 168)  # nobody asks
    # Two buffers of 64 columns take as much memory as one of 128.
    assert (plan.outstanding_mmas, plan.subtile_n, plan.epilogue_buffers) == (0, 64, 2)


def test_an_fp32_output_keeps_four_stages_and_is_stored_in_narrower_parts() -> None:
    plan = planned(operands=operands("fp32"), **COOPERATIVE)
    assert (tile(plan), plan.stages) == ((128, 256, 64), 4)
    # 128 x 128 x 4 bytes of D would leave room for three stages; 2 x 128 x 32 x 4 leave it for the fourth.
    assert (plan.subtile_n, plan.epilogue_buffers) == (32, 2)
    assert most_stages(replace(plan, subtile_n=128, epilogue_buffers=1)) == 3


def test_a_lone_consumer_gets_an_outstanding_mma_and_all_that_the_producer_leaves() -> None:
    plan = planned(warp_specialization={"consumers": 1, "registers": {"producer": 24}})
    assert (plan.outstanding_mmas, plan.consumer_registers) == (1, 240)


def test_a_tile_narrower_than_any_subtile_that_is_tried_is_stored_whole() -> None:
    assert planned(tile={"n": 16}).subtile_n == 16


def test_decisions_that_no_rule_couples_have_defaults() -> None:
    plan = planned(schedule={"width": 3})
    assert {name: (getattr(plan, name),) for name in DEFAULTS} == DEFAULTS
    assert walked(plan) == ("snake", "m", 3)


def walked(plan: WgmmaKernel) -> tuple[str, str, int]:
    return plan.order, plan.minor, plan.width


def test_one_wave_of_tiles_is_walked_by_columns() -> None:
    # 2 x 56 tiles of 128 x 128 for 132 SMs; twice as many rows make two waves.
    cooperative: dict[str, Any] = {**COOPERATIVE, "tile": {"m": 128, "n": 128, "k": 64}}
    one, two = ({"shapes": [[rows, 7168, 2048]]} for rows in (256, 512))
    assert walked(planned(bench=one, **cooperative)) == ("column", "m", 1)
    assert walked(planned(bench=two, **cooperative)) == ("snake", "m", 16)
    # A spec that states a part of the order has the rest as in several waves.
    assert walked(planned(bench=one, schedule={"width": 4}, **cooperative)) == ("snake", "m", 4)
    assert walked(planned(bench=one, schedule={"order": "column"}, **cooperative)) == ("column", "m", 1)


def test_registers_are_asked_for_only_where_an_equal_share_is_too_few() -> None:
    tile: dict[str, Any] = {**COOPERATIVE, "tile": {"m": 128, "n": 256, "k": 64}}
    plain = planned(**tile)
    assert (plain.consumer_registers, plain.register_pool.handed_over) == (168, False)
    assert plain.register_pool.requests == ()
    heavy = planned(**tile, epilogue={"ops": ["silu"], "subtile_n": 128})
    assert (heavy.producer_registers, heavy.consumer_registers) == (40, 232)
    assert heavy.register_pool.handed_over
    kind = tile["warp_specialization"]
    stated = planned(**{**tile, "warp_specialization": {**kind, "registers": {"consumer": 232}}})
    assert (stated.producer_registers, stated.consumer_registers) == (40, 232)


def test_an_operand_without_an_order_is_k_major() -> None:
    problem = planned().problem
    assert (problem.a.major, problem.b.major) == ("k", "k")


def test_the_first_bench_shape_is_what_a_spec_is_planned_for() -> None:
    few_tiles = [256, 4096, 4096]
    assert planned(bench={"shapes": [few_tiles, list(LARGE)]}, **COOPERATIVE).cta_tile_n < 256
    assert planned(bench={"shapes": [list(LARGE), few_tiles]}, **COOPERATIVE).cta_tile_n == 256


def test_planning_the_same_spec_twice_gives_the_same_plan() -> None:
    assert planned() == planned()
    assert rejected(tile={"m": 96}) == rejected(tile={"m": 96})


@pytest.mark.parametrize(
    "sections",
    [
        {"warp_specialization": {"kind": "none"}},
        {"operands": {name: {"dtype": "bf16"} for name in "abcd"}, "epilogue": {"beta": 1}},
        {"schedule": {"kind": "persistent", "splits": 4}},
        {"schedule": {"kind": "single_tile"}},
        COOPERATIVE,
    ],
)
def test_the_search_knows_the_shared_memory_of_its_kernels_to_the_byte(sections: dict[str, object]) -> None:
    kernels = list(islice(SPACE.kernels(source(**sections)), 0, 4000, 7))
    assert len(kernels) > 10
    assert [each.smem_bytes for each in kernels] == [each.shared_memory.total_bytes for each in kernels]


def test_the_deepest_ring_fills_shared_memory_up_to_eight_stages() -> None:
    plan = planned(tile={"m": 128, "n": 128, "k": 64})
    assert plan.stages == most_stages(plan) == 6
    plan = planned(tile={"m": 128, "n": 32, "k": 64})
    assert plan.stages == 8 < most_stages(plan)


# --- what is pinned

PINS = {
    "cta_tile_m": "tile.m",
    "cta_tile_n": "tile.n",
    "cta_tile_k": "tile.k",
    "mma_n": "mma.n",
    "warps_m": "warps.m",
    "warps_n": "warps.n",
    "cluster_m": "cluster.m",
    "cluster_n": "cluster.n",
    "stages": "buffering.stages",
    "outstanding_mmas": "buffering.outstanding_mmas",
    "epilogue_buffers": "buffering.epilogue",
    "specialization": "warp_specialization.kind",
    "consumers": "warp_specialization.consumers",
    "producer_registers": "warp_specialization.registers.producer",
    "consumer_registers": "warp_specialization.registers.consumer",
    "schedule_kind": "schedule.kind",
    "order": "schedule.order",
    "minor": "schedule.minor",
    "width": "schedule.width",
    "subtile_n": "epilogue.subtile_n",
    "occupancy": "occupancy",
}
"""Every decision of a plan with the field that pins it."""


def pinning(values: dict[str, object]) -> dict[str, Any]:
    """The sections of a spec that pin decisions."""
    sections: dict[str, Any] = {}
    for name, value in values.items():
        *steps, field = PINS[name].split(".")
        section = sections
        for step in steps:
            section = section.setdefault(step, {})
        section[field] = value
    return sections


@cache
def legal_plans(d: str) -> tuple[WgmmaKernel, ...]:
    """Every legal plan that the planner considers for a spec that pins nothing."""
    return tuple(plan for plan in SPACE.kernels(source(operands=operands(d))) if not judge(plan))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(data=st.data(), d=st.sampled_from(("bf16", "fp32")), names=st.sets(st.sampled_from(sorted(PINS))))
def test_what_a_spec_pins_is_never_changed(data: st.DataObject, d: str, names: set[str]) -> None:
    legal = data.draw(st.sampled_from(legal_plans(d)))
    pinned: dict[str, object] = {name: getattr(legal, name) for name in sorted(names)}
    plan = planned(operands=operands(d), **pinning(pinned))
    assert {name: getattr(plan, name) for name in pinned} == pinned
    assert judge(plan) == ()


def test_a_spec_that_pins_everything_is_planned_as_it_says() -> None:
    decisions: dict[str, object] = {name: getattr(planned(), name) for name in PINS}
    unusual = {"stages": 3, "width": 5, "order": "grouped", "consumer_registers": 168, "subtile_n": 8}
    plan = planned(**pinning(decisions | unusual))
    assert {name: getattr(plan, name) for name in PINS} == decisions | unusual


# --- what is illegal


def test_a_fix_counts_on_the_planner_for_what_is_left_open() -> None:
    # Beside a sub-tile of 128 fp32 columns only three stages fit; the planner is free to take fewer.
    (found,) = rejected(
        operands=operands("fp32"), tile={"m": 128, "n": 256, "k": 64}, buffering={"stages": 5}
    )
    assert found.message.endswith("use at most 4")
    # 40 stages of the smallest tile, 64 x 32 x 32, are 245,760 bytes; 37 fit beside its epilogue.
    (found,) = rejected(buffering={"stages": 40})
    assert found.message.endswith("use at most 37")
    (found,) = rejected(buffering={"epilogue": 16})
    assert found.message.endswith("use at most 8")  # 256 columns in parts of 32
    (found,) = rejected(epilogue={"subtile_n": 512})
    assert found.message.endswith("use at most 256")


def test_only_what_the_spec_says_is_blamed_while_there_is_something() -> None:
    found = rejected(cluster={"m": 8}, schedule={"width": 5000}, tile={"k": 8})
    assert [diagnostic.field for diagnostic in found] == ["cluster.m", "schedule.width", "tile.k"]


def test_a_choice_of_the_planner_is_blamed_where_another_one_would_be_legal() -> None:
    # (2,048 + 16) x 32 x 2 bytes and 2,048 x 16 x 4 of D are 263,168; halves of D, which the planner does
    # not try on its own for 16 columns, are 197,632.
    tall: dict[str, Any] = COOPERATIVE | {"operands": operands("fp32"), "tile": {"m": 2048, "n": 16}}
    (found,) = rejected(**tall)
    assert (found.code, found.field) == ("smem-capacity", "epilogue.subtile_n")
    assert found.message.endswith("use at most 8")
    assert planned(**tall, epilogue={"subtile_n": 8}).cta_tile_k == 32


WORDS = {"order", "minor", "specialization", "schedule_kind"}
NUMBERS = sorted(set(PINS) - WORDS - {"outstanding_mmas"})
SIZES = st.sampled_from((1, 2, 3, 4, 6, 8, 15, 16, 24, 32, 64, 128, 240, 256, 512, 2048, 4096, 2**31 - 1))


ANY_NUMBERS = st.dictionaries(st.sampled_from(NUMBERS), SIZES | st.integers(1, 2**31 - 1))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(values=ANY_NUMBERS)
def test_any_numbers_give_a_legal_plan_or_a_reason(values: dict[str, object]) -> None:
    spec = source(**pinning(values))
    found = attempted(spec)
    if isinstance(found, Kernel):
        assert judge(hopper(found)) == ()
        assert excess(hopper(found)) == 0
    else:
        fields = {violation.field for violation in found}
        assert fields
        assert fields <= set(spec.positions) or not fields & set(spec.positions)


def test_the_numbers_that_take_longest_end_in_a_bounded_search() -> None:
    """Of the numbers above, these cost the most calls: 2.4 million."""
    spec = source(**pinning({"epilogue_buffers": 24, "mma_n": 24}))
    assert calls_of(lambda: attempted(spec)) < 3_000_000


@pytest.mark.nightly
@settings(deadline=None, max_examples=8, derandomize=True)
@given(values=ANY_NUMBERS)
def test_what_is_advised_for_any_numbers_is_legal(values: dict[str, object]) -> None:
    spec = source(**pinning(values))
    try:
        plan_spec(spec)
    except GemmgenError as error:
        found = error.diagnostics
    else:
        return
    assert all(diagnostic.advice for diagnostic in found)
    changed = spec_of(applied(stated(spec.spec), asked(found)))
    assert changed is not None
    assert isinstance(attempted(replace(spec, spec=changed)), Kernel)


@pytest.mark.parametrize("target", ["h100", "b200"])
def test_a_spec_is_planned_without_judging_what_cannot_be_best(target: str) -> None:
    assert calls_of(lambda: plan_spec(source(target=target))) < 300_000


# --- what is best


def best(plan: WgmmaKernel, *others: WgmmaKernel, shape: tuple[int, int, int]) -> bool:
    return all(costs(plan, (shape,)) < costs(other, (shape,)) for other in others)


def cooperative(n: int) -> WgmmaKernel:
    """Two consumers of 64 x n elements each."""
    kind = {"kind": "cooperative", "consumers": 2}
    return planned(tile={"m": 128, "n": n, "k": 64}, warp_specialization=kind, cluster={"m": 1})


def test_consumers_that_cooperate_on_a_large_problem_prefer_the_wide_tile() -> None:
    wide, square, narrow = cooperative(256), cooperative(128), cooperative(64)
    assert best(wide, square, narrow, shape=LARGE)
    assert best(square, narrow, shape=LARGE)


@pytest.mark.parametrize("shape", [(256, 4096, 4096), (128, 8192, 4096), (1024, 1024, 8192)])
def test_a_problem_of_few_tiles_gets_smaller_ones_that_keep_the_sms_busy(shape: tuple[int, int, int]) -> None:
    wide, chosen = planned(tile={"m": 128, "n": 256}), planned(bench={"shapes": [list(shape)]})
    assert wide.waves(shape) < 0.5  # 128 x 256 tiles would leave more than half of the SMs idle
    assert chosen.waves(shape) > 1.9 * wide.waves(shape)
    assert cycles(chosen, shape) < cycles(wide, shape)


def test_a_cluster_larger_than_the_gpu_has_no_finite_cost() -> None:
    assert cycles(replace(planned(), cluster_m=256), LARGE) == float("inf")


def test_a_deeper_ring_wins_only_where_nothing_else_differs() -> None:
    plan = cooperative(256)
    assert (plan.stages, plan.outstanding_mmas) == (4, 0)
    assert best(plan, replace(plan, stages=3), shape=LARGE)
    assert best(replace(plan, stages=3), replace(plan, outstanding_mmas=1), shape=LARGE)


def test_the_excess_adds_up_what_is_missing() -> None:
    plan = planned(**COOPERATIVE)
    assert excess(plan) == 0
    # An accumulator of 128 registers and 28 to work with are 156 of 104.
    assert excess(replace(plan, consumer_registers=104)) == pytest.approx(0.5)
    # Five stages of 49,152, 32,768 of D, 148 + 40 + 8 + 40 + 8 of captures, barriers and state, 12 to align.
    assert excess(replace(plan, stages=5)) == pytest.approx(278_784 / 232_448 - 1)


@pytest.mark.parametrize("rows", [1, 8, 13, 64])
@pytest.mark.parametrize(
    ("dtype", "a", "sections"),
    [
        ("bf16", {"major": "mn"}, {}),
        ("fp16", {"major": "mn", "swizzle": 64}, {}),
        ("bf16", {"major": "mn", "swizzle": 128}, {"schedule": {"kind": "tiled"}}),
        ("e4m3", {"major": "mn"}, {}),
        ("bf16", {}, {"mma": {"rows": "n"}, "warps": {"m": 2}}),
    ],
)
def test_few_rows_are_planned_however_a_lies(
    rows: int, dtype: str, a: dict[str, Any], sections: dict[str, Any]
) -> None:
    if a:
        rows = max(8 if dtype != "e4m3" else 16, rows // 16 * 16)  # TMA strides in multiples of 16 bytes
    operands = {"a": {"dtype": dtype, **a}, "b": {"dtype": dtype}, "d": {"dtype": "bf16"}}
    plan = plan_spec(source(operands=operands, bench={"shapes": [[rows, 4096, 4096]]}, **sections))
    assert judge(hopper(plan)) == ()
