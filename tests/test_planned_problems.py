"""The problems that a spec is for: what stands for a range, which kernel it gets, and who else uses it."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hopper import hopper

from gemmgen import cli
from gemmgen.bench import tasks
from gemmgen.bench.single import time_spec
from gemmgen.cli.candidates import candidates_table, explanation
from gemmgen.errors import GemmgenError
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.cost import costs
from gemmgen.planner import Ranking, plan_spec, rank
from gemmgen.planner.ledger import ledger
from gemmgen.problem import Ranges
from gemmgen.spec import Spec, SpecFile, load_spec
from gemmgen.verify import default_shapes

MINIMAL = """\
title: t
target: h200
operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}
"""


def source(**sections: object) -> SpecFile:
    names = {name: {"dtype": "bf16"} for name in "abd"}
    data = {"title": "t", "target": "h200", "operands": names} | sections
    return SpecFile.of(Spec.model_validate(data))


def planned(**sections: object) -> WgmmaKernel:
    return hopper(plan_spec(source(**sections)))


def of(m: object, n: object = 6144, k: object = 4096) -> dict[str, object]:
    return {"m": m, "n": n, "k": k}


def written(directory: Path, rest: str) -> Path:
    path = directory / "matmul.yaml"
    path.write_text(MINIMAL + rest)
    return path


# --- what stands for a range


@pytest.mark.parametrize(
    ("m", "rows"),
    [
        (16, [16]),
        ([1, 1], [1]),
        ([1, 64], [1, 2, 4, 8, 16, 32, 64]),
        ([3, 100], [3, 4, 8, 16, 32, 64, 100]),
        ([5, 7], [5, 7]),
        ([64, 65], [64, 65]),
    ],
)
def test_both_ends_of_m_and_the_powers_of_two_between_stand_for_it(m: object, rows: list[int]) -> None:
    assert source(problem=of(m)).request.planned_shapes == tuple((row, 6144, 4096) for row in rows)


def test_of_n_and_k_the_ends_stand_for_all() -> None:
    shapes = source(problem=of([1, 2], [64, 6144], [512, 4096])).request.planned_shapes
    assert shapes == tuple(itertools.product((1, 2), (64, 6144), (512, 4096)))


def test_the_largest_ranges_are_planned_by_few_problems() -> None:
    everything = [1, 2**31 - 1]
    assert len(source(problem=of(everything, everything, everything)).request.planned_shapes) == 32 * 4


def test_without_a_problem_the_first_shape_under_bench_decides() -> None:
    shapes = [[16, 6144, 4096], [8192, 8192, 8192]]
    assert source(bench={"shapes": shapes}).request.planned_shapes == ((16, 6144, 4096),)
    assert source().request.planned_shapes == ((8192, 8192, 8192),)


def test_a_problem_decides_and_not_what_is_timed() -> None:
    few = planned(problem=of(16), bench={"shapes": [[8192, 8192, 8192]]})
    assert few.swap_ab
    assert few == planned(problem=of([16, 16]), bench={"shapes": [[8192, 8192, 8192]]})


# --- which kernel it gets


@pytest.mark.parametrize("m", [16, 4096])
def test_a_problem_of_one_shape_is_planned_as_that_shape_under_bench(m: int) -> None:
    one, other = rank(source(problem=of(m))), rank(source(bench={"shapes": [[m, 6144, 4096]]}))
    assert [candidate.cost for candidate in one.legal] == [candidate.cost for candidate in other.legal]
    assert candidates_table(one, 5) == candidates_table(other, 5)


@pytest.fixture(scope="module")
def few() -> Ranking:
    return rank(source(problem=of([1, 64])))


def test_candidates_are_ranked_by_the_geometric_mean_of_their_times(few: Ranking) -> None:
    for candidate in few.legal[::40]:
        times = [each[0] for each in costs(hopper(candidate.plan), few.shapes)]
        assert candidate.cost[0] == pytest.approx(math.prod(times) ** (1 / 7))
    assert [candidate.cost for candidate in few.legal] == sorted(candidate.cost for candidate in few.legal)
    assert hopper(few.legal[0].plan) == planned(problem=of([1, 64]))


def test_a_range_of_few_rows_tries_every_tile_of_few_rows(few: Ranking) -> None:
    assert {hopper(candidate.plan).cta_tile_m for candidate in few.legal} == {8, 16, 32, 64}
    # The kernel that is best at one row takes B 8 times at 64, so another one is best of all.
    alone = planned(problem=of(1))
    assert alone.cta_tile_m < hopper(few.legal[0].plan).cta_tile_m <= 64


@pytest.mark.nightly
def test_a_range_of_few_and_many_rows_tries_the_kernels_of_both() -> None:
    found = rank(source(problem=of([1, 8192])))
    assert {hopper(candidate.plan).swap_ab for candidate in found.legal} == {False, True}
    many = rank(source(problem=of([128, 8192])))
    assert not any(hopper(candidate.plan).swap_ab for candidate in many.legal)


def test_no_candidate_is_the_best_everywhere_and_the_table_says_where_one_is_worst(few: Ranking) -> None:
    header, _, first, *_ = candidates_table(few, 3).splitlines()
    assert header.startswith(f"{len(few.legal)} ")
    assert f" {len(few.legal) + few.refusals} " in header
    found = re.search(r" (1\.\d+) +(1\.\d+) +M = (\d+)$", first)
    assert found
    mean, worst, at = found.groups()
    over = few.legal[0].over(few.best)
    assert (float(mean), float(worst)) == pytest.approx((math.prod(over) ** (1 / 7), max(over)), abs=1e-3)
    assert 1 < float(mean) < float(worst)
    assert int(at) == few.shapes[over.index(max(over))][0]
    assert max(map(len, candidates_table(few, 400).splitlines())) <= 110
    assert max(map(len, explanation(few).splitlines())) <= 110


def test_an_explanation_says_at_which_problem_a_candidate_loses_most(few: Ranking) -> None:
    loser = few.legal[-1]
    term, cycles = loser.lost_by(few.legal[0])
    slower = loser.over(few.legal[0].estimates)
    place = slower.index(max(slower))
    own, best = loser.estimates[place].terms, few.legal[0].estimates[place].terms
    assert cycles == pytest.approx(own[term] - best.get(term, 0))
    assert f"at {'x'.join(map(str, few.shapes[place]))}" in explanation(few).replace("\n", " ")


# --- who else uses it


def test_plan_tells_what_decided(tmp_path: Path) -> None:
    source = load_spec(written(tmp_path, "problem: {m: [1, 64], n: 6144, k: 4096}\n"))
    section = ledger(plan_spec(source)).sections[-1]
    assert "1 to 64 x 6144 x 4096" in section.title
    assert [entry.name for entry in section.entries] == [f"{m}x6144x4096" for m in (1, 2, 4, 8, 16, 32, 64)]
    assert [entry.amount for entry in section.entries] == sorted(entry.amount for entry in section.entries)
    pinned = load_spec(written(tmp_path, "bench: {shapes: [[16, 6144, 4096]]}\n"))
    assert "16 x 6144 x 4096" in ledger(plan_spec(pinned)).sections[-1].title


def test_the_list_as_json_has_every_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "problem: {m: [1, 2], n: 6144, k: 4096}\n")
    monkeypatch.setattr("sys.argv", ["gemmgen", "plan", str(path), "--candidates", "2", "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    (found,) = json.loads(capsys.readouterr().out)["results"].values()
    assert found["shapes"] == [[1, 6144, 4096], [2, 6144, 4096]]
    assert "shape" not in found
    first, second = found["candidates"]
    assert len(first["problems"]) == len(second["problems"]) == 2
    assert first["over_best"] <= second["over_best"]
    assert {"l2_bytes", "predicted_seconds", "cycles"} == set(first["problems"][0])


def test_a_spec_without_shapes_is_timed_on_what_it_was_planned_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class TimedError(Exception):
        pass

    def timed(*arguments: Any, **_: Any) -> None:
        seen.extend(arguments[3])
        raise TimedError

    monkeypatch.setattr("gemmgen.bench.single.bench", timed)
    path = written(tmp_path, "problem: {m: [1, 4], n: 6144, k: 4096}\n")
    with pytest.raises(TimedError):
        time_spec(path, None, print)
    assert seen == [(1, 6144, 4096), (2, 6144, 4096), (4, 6144, 4096)]
    seen.clear()
    path = written(tmp_path, "problem: {m: [1, 4], n: 6144, k: 4096}\nbench: {shapes: [[8, 8, 8]]}\n")
    with pytest.raises(TimedError):
        time_spec(path, None, print)
    assert seen == [(8, 8, 8)]


def test_a_suite_ranks_each_shape_for_itself() -> None:
    participant: Any = type("Entrant", (), {})()
    participant.source = source(problem=of([1, 64]))
    participant.entry = type(
        "Entry", (), {"subject": type("S", (), {"spec_path": "x.yaml", "spec_sha256": ""})}
    )
    alone = rank(source(bench={"shapes": [[64, 2112, 7168]]})).legal[0].label
    assert tasks._ranked(participant, (64, 2112, 7168), 1)[0][0] == alone  # pyright: ignore[reportPrivateUsage]


def test_a_spec_without_shapes_to_check_is_tested_on_the_ends_of_its_problem() -> None:
    found = default_shapes(source(problem=of([3, 64])))
    assert found[:2] == ((3, 6144, 4096), (64, 6144, 4096))
    assert default_shapes(source(problem=of(64)))[0] == (64, 6144, 4096)
    stated = default_shapes(source(problem=of([3, 64]), check={"shapes": [[1, 8, 16]]}))
    assert stated[0] == (1, 8, 16)
    assert (3, 6144, 4096) not in stated


def test_ranges_are_said_as_users_write_them() -> None:
    assert str(Ranges((1, 64), (6144, 6144), (512, 4096))) == "1 to 64 x 6144 x 512 to 4096"
    assert Ranges((1, 64), (6144, 6144), (512, 4096)).ends == ((1, 6144, 512), (64, 6144, 4096))
    assert Ranges((64, 64), (6144, 6144), (4096, 4096)).ends == ((64, 6144, 4096),)


# --- deterministic and batch-invariant specs


ATOMIC: dict[str, object] = {
    "search": {"schedule.reduction": ["atomic", "ordered"]},
    "schedule": {"kind": "tiled", "splits": 4},
    "bench": {"shapes": [[16, 2112, 7168]]},
}


@pytest.mark.parametrize("asked", ["deterministic", "batch_invariant"])
def test_an_open_spec_that_asks_for_the_same_bits_never_adds_up_sums_as_they_come(asked: str) -> None:
    sections = ATOMIC | {"tile": {"k": 128}}
    found = rank(source(**sections, **{asked: True}))
    assert {hopper(candidate.plan).reduction for candidate in found.legal} == {"ordered"}
    assert "same-bits" in {group.reason for group in found.refused}
    free = {hopper(candidate.plan).reduction for candidate in rank(source(**sections)).legal}
    assert free == {"ordered", "atomic"}


def test_sums_of_integers_are_the_same_in_any_order() -> None:
    operands = {"a": {"dtype": "int8"}, "b": {"dtype": "int8"}, "d": {"dtype": "int32"}}
    schedule = {"kind": "tiled", "splits": 4, "reduction": "atomic"}
    tile = {"m": 64, "n": 64, "k": 128}
    plan = planned(operands=operands, schedule=schedule, tile=tile, mma={"rows": "n"}, deterministic=True)
    assert (plan.reduction, plan.deterministic) == ("atomic", True)


@pytest.mark.parametrize("m", [1, 16, 64, 300, 4096])
def test_an_open_batch_invariant_spec_never_divides_k(m: int) -> None:
    shape = {"shapes": [[m, 2112, 7168]]}
    found = rank(source(batch_invariant=True, bench=shape))
    assert {hopper(candidate.plan).splits for candidate in found.legal} == {1}
    assert {hopper(candidate.plan).promote_k for candidate in found.legal} == {0}


def test_without_it_k_is_divided_by_m() -> None:
    splits = {planned(bench={"shapes": [[m, 2112, 7168]]}).splits for m in (16, 64, 4096)}
    assert len(splits) > 1


@pytest.mark.parametrize("more", [{}, {"search": {"schedule.splits": [4]}}])
def test_stated_parts_of_k_are_the_same_for_every_m(more: dict[str, object]) -> None:
    schedule: dict[str, object] = {"kind": "tiled"} if more else {"kind": "tiled", "splits": 4}
    for m in (1, 16, 64):
        plan = planned(
            batch_invariant=True,
            schedule=schedule,
            tile={"k": 128},
            bench={"shapes": [[m, 2112, 7168]]},
            **more,
        )
        assert (plan.splits, plan.cta_tile_k) == (4, 128)


def test_one_value_to_search_is_as_good_as_a_stated_one() -> None:
    search = {"schedule.splits": [4], "tile.k": [128]}
    plan = planned(batch_invariant=True, schedule={"kind": "tiled"}, search=search, problem=of([1, 16]))
    assert (plan.splits, plan.cta_tile_k) == (4, 128)


@pytest.mark.parametrize("stem", ["batch_invariance", "batch_invariance_search", "batch_invariance_step"])
def test_without_batch_invariance_the_refused_specs_are_legal(stem: str, tmp_path: Path) -> None:
    text = (Path(__file__).parent / "invalid" / "choices" / f"{stem}.yaml").read_text()
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(GemmgenError, match="batch-invariance"):
        plan_spec(load_spec(path))
    path.write_text(text.replace("batch_invariant: true\n", "batch_invariant: false\n"))
    assert plan_spec(load_spec(path))
