"""The sizes of groups, as `gemmgen plan` and `gemmgen simulate` show them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hopper import hopper
from modules import ROOT, made

from gemmgen.cli.texts import simulation_text
from gemmgen.numerics.inputs import Inputs
from gemmgen.plan.decisions import gradient_specs
from gemmgen.planner import plan_spec
from gemmgen.planner.ledger import ledger
from gemmgen.problem import Groups, Shape
from gemmgen.problem.group_sizes import GroupSizes
from gemmgen.spec import load_spec, parse_spec
from gemmgen.verify.launches import Launch
from gemmgen.verify.simulation import division_of, simulate_product

SPECS = ROOT / "specs"


@pytest.mark.parametrize(
    ("groups", "shape", "text"),
    [
        (
            Groups("m_offsets", 4),
            (64, 8, 8),
            "4 groups (m_offsets): 16 rows in the mean, from 3 to 34, 0 empty",
        ),
        (Groups("m_offsets", 4), (0, 8, 8), "4 groups (m_offsets): 0 rows in each group"),
        (
            Groups("m_masked", 3),
            (10, 8, 8),
            "3 groups (m_masked): 6.67 rows in the mean, from 3 to 10, 0 empty",
        ),
        (Groups("batched", 5), (1024, 8, 8), "5 groups (batched): 1,024 rows in each group"),
        (
            Groups("k_offsets", 2),
            (8, 8, 100),
            "2 groups (k_offsets): 50 of K in the mean, from 25 to 75, 0 empty",
        ),
    ],
)
def test_the_sizes_of_groups_in_words(groups: Groups, shape: Shape, text: str) -> None:
    found = GroupSizes.planned(groups, shape)
    assert str(found).partition(":")[0] == text.partition(":")[0]
    sizes = groups.depths_of_each(shape[2]) if groups.divides_k else groups.rows_of_each(shape[0])
    assert (found.least, found.most, found.empty) == (min(sizes), max(sizes), sizes.count(0))
    assert found.mean == pytest.approx(sum(sizes) / groups.count, abs=0.005)
    assert groups.divides_k or str(found) == text


@pytest.mark.parametrize(
    ("groups", "rows"),
    [
        (Groups("m_offsets", 4, skew=0), (16, 16, 16, 16)),
        (Groups("m_offsets", 4, shares=(8, 4, 4, 0)), (32, 16, 16, 0)),
        (Groups("m_masked", 3, skew=0), (64, 64, 64)),
        (Groups("m_masked", 3, shares=(1, 0, 2)), (32, 0, 64)),
        (Groups("k_offsets", 2, shares=(3, 1)), (48, 16)),
    ],
)
def test_a_spec_states_the_sizes_that_it_expects(groups: Groups, rows: tuple[int, ...]) -> None:
    assert (groups.depths_of_each(64) if groups.divides_k else groups.rows_of_each(64)) == rows


def test_more_skew_has_larger_groups_and_1_is_that_of_routed_tokens() -> None:
    largest = [max(Groups("m_offsets", 64, skew=skew).rows_of_each(6400)) for skew in (0, 0.5, 1, 2)]
    assert largest[0] == 100
    assert sorted(set(largest)) == largest
    assert Groups("m_offsets", 64).rows_of_each(6400) == Groups("m_offsets", 64, skew=1).rows_of_each(6400)


BALANCED = """\
title: balanced experts
target: h200
operands:
  a: {dtype: e4m3, scale: {format: fp32_1x128}}
  b: {dtype: e4m3, scale: {format: fp32_128x128}}
  d: {dtype: bf16}
groups: {kind: m_offsets, count: 32%s}
problem: {m: 16384, n: 4096, k: 7168}
"""


def test_the_planner_ranks_by_the_sizes_that_are_expected() -> None:
    """Of 512 rows each, tiles of 256 leave no row unused; of skewed groups they leave a quarter."""
    equal, skewed = (
        hopper(plan_spec(parse_spec((BALANCED % sizes).encode(), "t"))) for sizes in (", skew: 0", "")
    )
    assert (equal.cta_tile_m, skewed.cta_tile_m) == (256, 128)


def test_the_gradient_of_b_expects_the_same_sizes(tmp_path: Path) -> None:
    path = tmp_path / "h100_experts.yaml"
    path.write_text(
        "title: t\ntarget: h100\nbackward: true\n"
        "operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}\n"
        "groups: {kind: m_offsets, count: 4, shares: [4, 2, 1, 0]}\n"
        "tile: {m: 128, n: 128, k: 64}\nproblem: {m: 4096, n: 1024, k: 1024}\n"
    )
    texts = gradient_specs(load_spec(path))
    assert len(texts) == 2
    assert all("shares: [4, 2, 1, 0]" in text for text in texts.values())


def test_the_ledger_has_the_groups_of_each_planned_number_of_rows() -> None:
    plan = made(SPECS / "h100_bf16_grouped_rows8.yaml").plan
    groups = plan.problem.groups
    assert groups is not None
    (section,) = (each for each in ledger(plan).sections if "groups" in each.title)
    assert section.title == f"{groups.count} groups (m_offsets)"
    rows = {shape[0] for shape in (*plan.request.planned_shapes, *plan.request.bench_shapes)}
    assert {entry.name for entry in section.entries} == {f"M = {m}" for m in rows}
    for entry in section.entries:
        m = int(entry.name.removeprefix("M = "))
        assert entry.amount == pytest.approx(m / groups.count, abs=0.005)
        assert entry.derivation.endswith(f"{groups.rows_of_each(m).count(0)} empty")


def test_a_kernel_without_groups_has_no_such_section() -> None:
    plan = made(SPECS / "h100_bf16.yaml").plan
    assert [each.title for each in ledger(plan).sections if "groups" in each.title] == []


def test_the_groups_of_a_call_are_counted_as_the_kernel_reads_them() -> None:
    """Ends behind the last row, and ends before the first one of their group, have no rows."""
    problem = made(SPECS / "h100_bf16_grouped.yaml").plan.problem
    assert problem.groups is not None
    ends = torch.full((problem.groups.count,), 99, dtype=torch.int32)
    ends[:3] = torch.tensor([4, 3, 9])
    inputs = Inputs(torch.zeros(20, 8), torch.zeros(problem.groups.count, 8, 8), {"offs": ends}, sides=())
    found = division_of(inputs, problem)
    # Four rows, none, six, eleven, and none in all other groups.
    assert found == GroupSizes("m_offsets", 32, 0, round(21 / 32, 2), 11, 29)


def test_a_simulation_names_the_groups_of_each_launch() -> None:
    launch = Launch((40, 32, 64), 1, "normal", ("random",))
    found = simulate_product(made(SPECS / "h100_bf16_grouped.yaml"), (launch,))
    (sizes,) = found.divisions
    assert sizes is not None
    assert sizes.groups == 32
    assert simulation_text(found).splitlines()[1] == f"  40x32x64, normal, 1 program, 1 schedule; {sizes}"
    assert found.as_dict()["groups"] == [asdict(sizes)]
