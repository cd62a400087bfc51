"""Any number of groups of each kind: their sizes, plans, simulations, and the time that many groups take."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from drawn import bounds_of, integer_inputs
from made_library import made_library

from gemmgen.errors import GemmgenError
from gemmgen.features.groups.divided_rows import drawn_rows
from gemmgen.numerics.reference import reference
from gemmgen.plan.group_forecast import tries_swap_ab
from gemmgen.planner import plan_spec
from gemmgen.planner.ledger import ledger
from gemmgen.problem.groups import MOST_SAMPLED, GroupKind, Groups
from gemmgen.product import make_of
from gemmgen.spec import SpecFile, parse_spec
from gemmgen.spec.values import MOST_PLANNED_GROUPS
from gemmgen.verify.launches import FEW_GROUPS, order_launch, ring_launch
from gemmgen.verify.simulation import simulate_product

KINDS: tuple[GroupKind, ...] = ("m_offsets", "m_masked", "batched", "k_offsets")
COUNTS = range(1, 41)
every_kind = pytest.mark.parametrize("kind", KINDS)


def spec_text(kind: GroupKind, count: int, sizes: str = "", m: object = 512) -> str:
    """A spec of groups that leaves the kernel open; `sizes` is what it says of the sizes of groups."""
    major = "mn" if kind == "k_offsets" else "k"
    operand = f"{{dtype: bf16, major: {major}}}"
    return (
        f"title: groups\ntarget: h200\noperands: {{a: {operand}, b: {operand}, d: {{dtype: bf16}}}}\n"
        f"groups: {{kind: {kind}, count: {count}{sizes}}}\nproblem: {{m: {m}, n: 4096, k: 4096}}\n"
    )


def spec(kind: GroupKind, count: int, sizes: str = "", m: object = 512) -> SpecFile:
    return parse_spec(spec_text(kind, count, sizes, m).encode(), "groups")


# --- sizes


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["m_offsets", "m_masked"])
@pytest.mark.parametrize("skew", [None, 0.0, 1.0, 4.0])
def test_each_problem_of_one_row_has_a_row(kind: GroupKind, skew: float | None) -> None:
    for count, m in itertools.product(COUNTS, (1, 2, 3, 50, 4097)):
        rows = Groups(kind, count, skew=skew).rows_of_each(m)
        assert len(rows) == count
        assert min(rows) >= 0
        assert (max(rows) if kind == "m_masked" else sum(rows)) == m


@pytest.mark.quick
def test_sums_over_groups_are_what_the_sizes_of_all_give() -> None:
    for kind, count in itertools.product(KINDS, COUNTS):
        groups = Groups(kind, count)
        rows, depths = groups.rows_of_each(1000), groups.depths_of_each(1000)
        assert groups.filled(1000) == (sum(map(bool, rows)), sum(rows))
        assert groups.row_tiles(1000, 64) == sum(-(-each // 64) for each in rows)
        assert groups.mean_k_steps(1000, 64) == sum(max(1, -(-each // 64)) for each in depths) / count


@pytest.mark.quick
@every_kind
@pytest.mark.parametrize("shares", [(), (3, 1), (0, 1)])
def test_the_sums_of_many_groups_are_read_off_a_sample(kind: GroupKind, shares: tuple[int, ...]) -> None:
    count = 11 * MOST_SAMPLED
    groups = Groups(kind, count, shares=shares * (count // 2))
    rows, depths = groups.rows_of_each(count * 99), groups.depths_of_each(count * 99)
    tiles = sum(-(-each // 64) for each in rows)
    steps = sum(max(1, -(-each // 64)) for each in depths) / count
    assert groups.filled(count * 99)[1] == pytest.approx(sum(rows), rel=0.15)
    assert groups.row_tiles(count * 99, 64) == pytest.approx(tiles, rel=0.25)
    assert groups.mean_k_steps(count * 99, 64) == pytest.approx(steps, rel=0.25)
    assert not tries_swap_ab(groups, count * 999)


# --- plans


PINNED = """\
tile: {m: 128, n: 128, k: 64}
cluster: {m: 1, n: 1}
warp_specialization: {kind: cooperative, consumers: 2}
buffering: {stages: 4, outstanding_mmas: 0}
"""
"""Decisions that leave a planner little to choose, so that many specs are planned in seconds."""


def sizes_of(kind: GroupKind, count: int) -> list[str]:
    """What a spec can say of the sizes of groups: nothing, skews, and a share of one group alone."""
    shares = ", ".join("1" if group == count - 1 else "0" for group in range(count))
    return [""] if kind == "batched" else ["", ", skew: 0", ", skew: 4", f", shares: [{shares}]"]


@pytest.mark.sample(2)
@every_kind
def test_each_number_of_groups_has_a_plan(kind: GroupKind) -> None:
    for count in COUNTS:
        for sizes in sizes_of(kind, count):
            text = spec_text(kind, count, sizes, 8 if kind == "k_offsets" else 1) + PINNED
            assert plan_spec(parse_spec(text.encode(), "groups")).problem.groups is not None


@pytest.mark.sample(6)
@every_kind
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_an_open_spec_of_few_groups_has_a_plan(kind: GroupKind, count: int) -> None:
    for sizes in sizes_of(kind, count):
        plan = plan_spec(spec(kind, count, sizes, 512 if kind == "k_offsets" else "[1, 64]"))
        assert plan.problem.groups is not None


@pytest.mark.parametrize("kind", ["batched", "k_offsets"])
def test_the_plan_of_the_most_groups_reads_a_sample_for_each_kernel(
    kind: GroupKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the ledger, which names the least and the most of all groups, has the sizes of each."""
    asked: list[int] = []
    read = Groups._sizes  # pyright: ignore[reportPrivateUsage]

    def counted(self: Groups, extent: int, shares: tuple[float, ...]) -> tuple[int, ...]:
        asked.append(len(shares))
        return read(self, extent, shares)

    monkeypatch.setattr(Groups, "_sizes", counted)
    plan = plan_spec(spec(kind, MOST_PLANNED_GROUPS))
    assert max(asked, default=0) <= MOST_SAMPLED
    titles = [section.title for section in ledger(plan).sections]
    assert f"{MOST_PLANNED_GROUPS:,} groups ({kind})" in titles


@pytest.mark.parametrize("kind", ["m_offsets", "m_masked"])
def test_more_groups_than_warps_hold_are_refused(kind: GroupKind) -> None:
    with pytest.raises(GemmgenError) as caught:
        plan_spec(spec(kind, MOST_PLANNED_GROUPS))
    assert [(found.code, found.field) for found in caught.value.diagnostics] == [("groups", "groups.count")]


@pytest.mark.quick
def test_more_groups_than_any_plan_has_are_refused_with_the_reason() -> None:
    with pytest.raises(GemmgenError) as caught:
        spec("batched", MOST_PLANNED_GROUPS + 1)
    (found,) = caught.value.diagnostics
    assert found.code == "out-of-range"
    assert "a call of batched or k_offsets may have more" in found.message


# --- libraries


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_library_of_few_masked_groups_chooses_for_one_row(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"h200_masked_{m}.yaml" for m in (64, 1024)]
    for path, m in zip(paths, (64, 1024), strict=True):
        path.write_text(spec_text("m_masked", count, m=m))
    package = made_library(f"few_{count}", paths, tmp_path / "out", monkeypatch)
    assert package.choose(1, 4096, 4096).kernel == "h200_masked_64"


# --- the inputs of checks, and the simulator


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["m_offsets", "m_masked", "k_offsets"])
def test_random_divisions_have_most_rows_in_groups(kind: GroupKind) -> None:
    for count, most, seed in itertools.product(COUNTS, (1, 14, 214), range(4)):
        generator = torch.Generator().manual_seed(seed)
        drawn = drawn_rows(Groups(kind, count), (most, 8, most), generator)
        assert 3 * int(drawn.max()) >= 2 * most
        assert int(drawn.max()) <= most


@every_kind
def test_a_call_of_which_no_group_has_a_row_has_an_empty_reference(kind: GroupKind) -> None:
    problem = spec(kind, 2).problem
    assert problem.groups is not None
    inputs = integer_inputs((16, 24, 32), problem, torch.Generator().manual_seed(0))
    if problem.groups.counts:
        inputs.extras[problem.groups.counts].zero_()
    rows = sum(end - first for first, end in bounds_of(problem, inputs))
    if kind in ("m_offsets", "m_masked"):
        assert reference(inputs, problem).shape == (rows, 24) == (0, 24)
    else:
        assert reference(inputs, problem).shape == (32, 24)


@pytest.mark.sample(6)
@every_kind
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("m", [16, 512])
def test_kernels_of_few_groups_are_clean_in_the_simulator(kind: GroupKind, count: int, m: int) -> None:
    """Their rings wrap in the launch that must wrap them, whatever rows the random groups have."""
    product = make_of(spec(kind, count, m=m))
    found = simulate_product(product, (ring_launch(product.plan), order_launch(product.plan)))
    assert found.problems == ()


@pytest.mark.quick
@every_kind
def test_a_simulation_has_all_groups_only_if_a_kernel_searches_them(kind: GroupKind) -> None:
    plan = plan_spec(spec(kind, 128))
    most = order_launch(plan).most_groups
    assert most == (None if kind in ("m_offsets", "m_masked") else FEW_GROUPS)


def test_a_sample_has_the_sizes_that_shares_state_however_they_are_ordered() -> None:
    for shares in ((0, 1) * 512, (1, 0) * 512, (0,) * 512 + (1,) * 512):
        groups = Groups("k_offsets", 1024, shares=shares)
        assert groups.mean_k_steps(1024 * 256, 128) == pytest.approx(2.5)
