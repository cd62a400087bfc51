"""Choices that a target does not have, and values to search that are none: exact texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmgen.errors import GemmgenError
from gemmgen.plan import plan_spec
from gemmgen.spec import load_spec

pytestmark = pytest.mark.quick

BF16 = "  a: {dtype: bf16}\n  b: {dtype: bf16}\n  d: {dtype: bf16}\n"


def told(directory: Path, target: str, rest: str = "", operands: str = BF16) -> list[str]:
    """What is said of a spec, without its path; line 4 is A, line 7 the first of the rest."""
    path = directory / "x.yaml"
    path.write_text(f"title: x\ntarget: {target}\noperands:\n{operands}{rest}")
    try:
        plan_spec(load_spec(path))
    except GemmgenError as error:
        return [str(found).removeprefix(f"{path}:") for found in error.diagnostics]
    return []


@pytest.mark.parametrize(
    ("target", "rest", "text"),
    [
        (
            "b200",
            "mma: {n: 128}\n",
            (
                "7:10: error[target-choice] mma.n: stated for B200 (sm_100a), tcgen05 kernels do not have "
                "this field; leave it out"
            ),
        ),
        (
            "h100",
            "buffering: {accumulators: 2}\n",
            (
                "7:27: error[target-choice] buffering.accumulators: stated for H100 SXM (sm_90a), wgmma "
                "kernels do not have this field; leave it out"
            ),
        ),
        (
            "h100",
            "schedule: {kind: launch_control}\n",
            (
                "7:18: error[target-choice] schedule.kind: launch_control for H100 SXM (sm_90a), its "
                "kernels are single_tile, tiled or persistent; use single_tile, tiled or persistent"
            ),
        ),
        (
            "b200",
            "schedule: {kind: tiled}\n",
            (
                "7:18: error[target-choice] schedule.kind: tiled for B200 (sm_100a), its kernels are "
                "persistent or launch_control; use persistent or launch_control"
            ),
        ),
        (
            "b200",
            "search: {tile.n: [128, wide]}\n",
            (
                "7:18: error[search-values] search.tile.n: 'wide' among the values, those of tile.n are "
                "whole numbers from 1 to 2,147,483,647; use [256]"
            ),
        ),
        (
            "b200",
            "search: {schedule.kind: [1]}\n",
            (
                "7:25: error[search-values] search.schedule.kind: 1 among the values, those of "
                "schedule.kind are persistent or launch_control; use [persistent] or [launch_control]"
            ),
        ),
        (
            "b200",
            "tile: {n: 128}\nsearch: {tile.n: [128, 256]}\n",
            (
                "8:18: error[search-values] search.tile.n: searched and stated, tile.n has a value already;"
                " leave it out, or use no tile.n"
            ),
        ),
    ],
)
def test_a_choice_that_the_target_has_not_is_refused_where_it_stands(
    target: str, rest: str, text: str, tmp_path: Path
) -> None:
    assert told(tmp_path, target, rest) == [text]


def test_a_field_that_cannot_be_searched_is_refused_with_those_that_can(tmp_path: Path) -> None:
    (text,) = told(tmp_path, "b200", "search: {mma.n: [64]}\n")
    assert text.startswith("7:17: error[search-values] search.mma.n: no field that can be searched, on B200")
    assert "tile.n, tile.k, " in text
    assert "mma.n," not in text.partition("searched, ")[2]


FP4 = "  a: {dtype: e2m1, scale: {format: nvfp4}}\n  b: {dtype: bf16, packing: packed}\n  d: {dtype: bf16}\n"


def test_hopper_has_no_4_bit_elements_and_no_scales_of_blocks(tmp_path: Path) -> None:
    assert told(tmp_path, "h200", operands=FP4) == [
        (
            "4:14: error[target-choice] operands.a.dtype: A is e2m1 for H200 (sm_90a), wgmma multiplies"
            " no 4-bit elements, only tcgen05 does, which B200 has; use e4m3 and e4m3 for"
            " operands.b.dtype"
        ),
        (
            "4:36: error[target-choice] operands.a.scale.format: nvfp4 for H200 (sm_90a), its scales need"
            " tcgen05, which B200 has, and on Hopper threads multiply sums by fp32_1x128, ue8m0_1x128 or"
            " ue8m0_1x32; use no operands.a.scale"
        ),
        (
            "5:29: error[target-choice] operands.b.packing: packed for bf16, it is a choice for 4-bit "
            "elements; leave it out"
        ),
    ]


def test_values_to_search_narrow_what_the_planner_chooses_from(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    head = f"title: x\ntarget: b200\noperands:\n{BF16}"
    path.write_text(
        f"{head}search: {{tile.n: [64], buffering.stages: [3], schedule.kind: [launch_control]}}\n"
    )
    plan = plan_spec(load_spec(path))
    assert (plan.cta_tile_n, plan.stages, plan.schedule_kind) == (64, 3, "launch_control")


def test_hopper_searches_too(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    head = f"title: x\ntarget: h100\noperands:\n{BF16}"
    path.write_text(f"{head}search: {{tile.n: [64], tile.m: [128], schedule.width: [4]}}\n")
    plan = plan_spec(load_spec(path))
    assert (plan.cta_tile_n, plan.cta_tile_m, plan.width) == (64, 128, 4)
