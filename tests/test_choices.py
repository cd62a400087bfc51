"""Choices that a target does not have, and values to search that are none, where they stand.

tests/invalid/choices has more of them, with exact texts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from told import diagnostics

from gemmgen.planner import plan_spec
from gemmgen.spec import load_spec

pytestmark = pytest.mark.quick

BF16 = "  a: {dtype: bf16}\n  b: {dtype: bf16}\n  d: {dtype: bf16}\n"


Told = tuple[str, str | None, int | None, int | None]


def diagnosed(directory: Path, target: str, rest: str = "", operands: str = BF16) -> list[Told]:
    """Code, field and place of what is said of a spec; line 4 is A, line 7 the first of the rest."""
    path = directory / "x.yaml"
    path.write_text(f"title: x\ntarget: {target}\noperands:\n{operands}{rest}")
    return [(each.code, each.field, each.line, each.column) for each in diagnostics(path)]


@pytest.mark.parametrize(
    ("target", "rest", "expected"),
    [
        ("b200", "mma: {n: 128}\n", ("target-choice", "mma.n", 7, 10)),
        ("h100", "buffering: {accumulators: 2}\n", ("target-choice", "buffering.accumulators", 7, 27)),
        ("h100", "schedule: {kind: launch_control}\n", ("target-choice", "schedule.kind", 7, 18)),
        ("b200", "search: {tile.n: [128, wide]}\n", ("search-values", "search.tile.n", 7, 18)),
        ("b200", "search: {schedule.kind: [1]}\n", ("search-values", "search.schedule.kind", 7, 25)),
    ],
)
def test_a_choice_that_the_target_has_not_is_refused_where_it_stands(
    target: str, rest: str, expected: Told, tmp_path: Path
) -> None:
    assert diagnosed(tmp_path, target, rest) == [expected]


FP4 = "  a: {dtype: e2m1, scale: {format: nvfp4}}\n  b: {dtype: bf16, packing: packed}\n  d: {dtype: bf16}\n"


def test_hopper_has_no_4_bit_elements_and_no_scales_of_blocks(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, "h200", operands=FP4) == [
        ("target-choice", "operands.a.dtype", 4, 14),
        ("target-choice", "operands.a.scale.format", 4, 36),
        ("target-choice", "operands.b.packing", 5, 29),
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
