"""The benchmark of groups and batches: problems, rendered kernels, correctness, records and their figures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fake_gpu import on_a_fake_gpu
from fake_triton import on_a_fake_driver
from modules import ROOT, made, module_file, spec_file
from simulated import Simulated
from torch import Tensor

from benchmarks.grouped import compiling, run, two_tiles
from benchmarks.grouped.last_wave import last_waves
from benchmarks.grouped.prepare import Modules, dense_twin, emptied, prepared, problems, read_suite, source_of
from benchmarks.grouped.problems import Index, Prepared, Problem
from benchmarks.grouped.run import Point, measured, points, recorded
from benchmarks.grouped.summary import Measured, summary
from benchmarks.grouped.workload import MOST_INPUTS, Call, Workload, inputs_beyond_l2, rows_of_groups
from gemmgen.module import import_generated
from gemmgen.plan import plan_spec

CPU = torch.device("cpu")
SMALL = Problem("small up", "m_offsets", 4, 24, 32, 64, tokens=12)
BATCHES = Problem("bmm", "batched", 3, 5, 32, 64)
LARGE = Problem("large up", "m_offsets", 8, 8192, 4096, 2048, tokens=4096)


# --- problems


def test_every_problem_of_the_suite_fits_and_is_named_once() -> None:
    found = list(problems(read_suite()))
    assert len(found) == len({(each.name, each.rows) for each in found}) == 10 * 2 * 6 + 8
    assert Problem("qwen3_next down", "m_offsets", 512, 160, 2048, 512, tokens=16) not in found
    assert Problem("qwen3_next down", "m_offsets", 512, 80, 2048, 512, tokens=8) in found


def test_a_problem_that_does_not_fit_is_left_out() -> None:
    layer = {"experts": 256, "top_k": 1, "up": [16384, 16384], "down": [64, 64]}
    found = problems({"batched": [], "experts": {"huge": layer}, "tokens": [1]})
    assert [each.name for each in found] == ["huge down"]


@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize("problem", [SMALL, LARGE])
def test_all_rows_are_drawn_and_the_draw_is_the_same_each_time(problem: Problem, skew: float) -> None:
    rows = rows_of_groups(problem, skew)
    assert (int(rows.sum()), len(rows)) == (problem.rows, problem.groups)
    assert torch.equal(rows, rows_of_groups(problem, skew))


def test_skewed_groups_differ_more_than_balanced_ones() -> None:
    assert rows_of_groups(LARGE, 1.0).max() > 1.5 * rows_of_groups(LARGE, 0.0).max()


def test_successive_calls_read_other_weights_unless_all_weights_exceed_l2() -> None:
    assert inputs_beyond_l2(LARGE, 8) == 2
    assert inputs_beyond_l2(LARGE, 1) == MOST_INPUTS
    assert inputs_beyond_l2(Problem("up", "m_offsets", 8, 8, 28672, 4096), 8) == 1


# --- kernels


def test_a_problem_has_the_planners_first_kernels_and_the_index_names_them(tmp_path: Path) -> None:
    modules = Modules(emptied(tmp_path / "new"))
    found = prepared(LARGE, modules, first=3)
    assert len(found.modules) == 3
    assert found.modules[0] == modules.stem_of(plan_spec(source_of(LARGE)))
    assert found.dense.keys() <= set(found.modules)
    assert found.dense
    for stem in (*found.modules, *found.dense.values()):
        assert callable(import_generated(tmp_path / "new" / f"{stem}.py").matmul)
    Index((found,), (0.0, 1.0), modules.labels).write(tmp_path / "new")
    assert Index.read(tmp_path / "new") == Index((found,), (0.0, 1.0), modules.labels)
    again = prepared(Problem("other", "m_offsets", 8, 8192, 4096, 2048), modules, first=3)
    assert again.modules == found.modules


def test_a_dense_twin_has_the_decisions_of_the_kernel_of_groups() -> None:
    plan = plan_spec(source_of(LARGE))
    twin = dense_twin(plan, LARGE)
    assert twin
    assert twin.problem.groups is None
    for name in ("cta_tile_m", "cta_tile_n", "cta_tile_k", "stages", "order", "width", "subtile_n"):
        assert getattr(twin, name) == getattr(plan, name)


def test_only_a_folder_of_modules_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("kept", encoding="utf-8")
    with pytest.raises(SystemExit, match="has other files"):
        emptied(tmp_path)
    assert (tmp_path / "notes.txt").exists()
    made = emptied(tmp_path / "made")
    (made / "old.py").write_text("", encoding="utf-8")
    assert [path.name for path in emptied(made).iterdir()] == ["gemmgen_launch.py"]


def returned(module: ModuleType, folder: Path, stem: str) -> ModuleType:
    return module


@pytest.mark.parametrize("problem", [LARGE, Problem("bmm", "batched", 16, 1024, 1024, 1024)])
def test_a_module_is_compiled_by_a_small_call_that_its_wrapper_accepts(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prepared(problem, Modules(emptied(tmp_path / "new")), first=1)
    on_a_fake_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for stem in (*found.modules, *found.dense.values()):
        module = import_generated(tmp_path / "new" / f"{stem}.py")
        driver = on_a_fake_driver(module, monkeypatch)
        driver.set_current_device(0)
        monkeypatch.setitem(sys.modules, stem, module)
        monkeypatch.setattr(compiling, "imported", partial(returned, module))
        assert compiling.compiled(tmp_path, stem) == ""
        assert len(driver.jit) == 1


def test_a_module_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    assert compiling.compiled(tmp_path, "m_offsets_0").startswith("GemmgenError")


# --- a run without a GPU


def ends(offs: Tensor) -> list[int]:
    return [int(end) for end in offs]


def matmul(a: Tensor, b: Tensor, *, offs: Tensor | None = None, out: Tensor) -> Tensor:
    if offs is None:
        return out.copy_(a @ b)
    for group, (first, end) in enumerate(pairwise([0, *ends(offs)])):
        out[first:end] = a[first:end] @ b[group]
    return out


def doubled(a: Tensor, b: Tensor, *, offs: Tensor | None = None, out: Tensor) -> Tensor:
    return matmul(a, b, offs=offs, out=out).mul_(2)


def beyond_the_end(a: Tensor, b: Tensor, *, offs: Tensor | None = None, out: Tensor) -> Tensor:
    memory = out.as_strided((len(out) + 1, out.shape[1]), out.stride())
    memory[len(out)] = 0
    return matmul(a, b, offs=offs, out=out)


def module_of(stem: str) -> ModuleType:
    made = ModuleType(stem)
    made.__dict__["matmul"] = {"doubled": doubled, "beyond": beyond_the_end}.get(stem, matmul)
    return made


def called(times: Mapping[str, float]) -> Callable[[Mapping[str, Sequence[Call]]], Mapping[str, float]]:
    def timed(arms: Mapping[str, Sequence[Call]]) -> Mapping[str, float]:
        for calls in arms.values():
            for call in calls:
                call()
        return {name: times[name] for name in arms}

    return timed


def routed(problem: Problem = SMALL) -> Workload:
    weight = torch.randn(problem.groups, problem.n, problem.k).bfloat16()
    return Workload.routed(problem, weight, 1.0)


def test_a_point_has_the_times_of_kernels_that_are_right() -> None:
    stems = ("right", "doubled", "beyond", "other", "uncompiled")
    point = Point(Prepared(SMALL, stems, {"right": "dense", "doubled": "dense"}), 1.0)
    times = {"torch": 30.0, "right": 20.0, "other": 15.0, "dense": 10.0}
    line = measured(point, routed(), module_of, called(times), {"uncompiled"})
    assert line["wrong"] == ["doubled", "beyond", "uncompiled"]
    assert line["us"] == {"right": 20.0, "other": 15.0}
    assert line["dense_us"] == {"right": 10.0}
    assert (line["first"], line["torch_us"], line["key"]) == ("right", 30.0, ["small up", 24, 1.0])


def test_batches_are_compared_with_bmm() -> None:
    point = Point(Prepared(BATCHES, ("right", "doubled"), {}), None)
    work = Workload.batched(BATCHES, CPU)
    assert len(work.a) == len({each.data_ptr() for each in work.b}) == MOST_INPUTS
    line = measured(point, work, module_of, called({"torch": 3.0, "right": 2.0}))
    assert (line["us"], line["wrong"]) == ({"right": 2.0}, ["doubled"])


def test_successive_calls_of_a_layer_have_the_same_rows_for_other_experts() -> None:
    work = routed()
    rows = [[b - a for a, b in pairwise([0, *ends(cast(Tensor, offs))])] for offs in work.offs]
    assert len(rows) == 4
    assert len({tuple(each) for each in rows}) > 1
    assert len({tuple(sorted(each)) for each in rows}) == 1


def test_a_run_appends_a_line_for_each_point_and_a_second_one_leaves_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = Index((Prepared(SMALL, ("right",), {}), Prepared(BATCHES, ("right",), {})), (0.0, 1.0), {})
    index.write(tmp_path)
    record = tmp_path / "record.jsonl"
    compiled: list[list[str]] = []

    def compile_all(folder: Path, stems: Sequence[str], processes: int) -> dict[str, str]:
        compiled.append(list(stems))
        return {}

    def imported(folder: Path, stem: str) -> ModuleType:
        return module_of(stem)

    def on_the_cpu(kind: str) -> torch.device:
        return CPU

    def header(*_: object) -> dict[str, Any]:
        return HEADER

    for name, value in {
        "compile_all": compile_all,
        "imported": imported,
        "times_us": called({"torch": 3.0, "right": 2.0}),
        "header": header,
    }.items():
        monkeypatch.setattr(run, name, value)
    monkeypatch.setattr(torch, "device", on_the_cpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    command = ["run", str(tmp_path), str(record)]
    monkeypatch.setattr("sys.argv", [*command, "--budget-s=-1"])
    run.main()
    assert recorded(record)[1] == []
    assert "the time is up before small up" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*command, "--only=small"])
    killed = tmp_path / "record.begun"
    killed.write_text('["small up", 24, 0.0]', encoding="utf-8")
    run.main()
    assert recorded(record)[1] == [["small up", 24, 0.0], ["small up", 24, 1.0]]
    assert recorded(record)[0][1] == {"key": ["small up", 24, 0.0], "skipped": "the run was killed"}
    assert not killed.exists()
    monkeypatch.setattr("sys.argv", command)
    run.main()
    lines, keys = recorded(record)
    assert keys == [point.key for point in points(index)]
    assert len(lines) == 4
    assert compiled == [["right"]] * 3
    assert "first 1.500, best 1.500" in summary(lines)


# --- figures

HEADER = {"card": "X", "torch": "2", "triton": "3", "read_bytes_per_second": 4e12, "labels": {"b": "wide"}}


def line_of(name: str, rows: int, us: dict[str, float], **changed: Any) -> dict[str, Any]:
    line = {
        "key": [name, rows, 1.0], "name": name, "kind": "m_offsets", "groups": 8, "rows": rows, "n": 1000,
        "k": 1000, "tokens": rows, "skew": 1.0, "active": 4, "flops": 10**9, "first": "a", "torch_us": 40.0,
        "us": us, "wrong": [], "dense_us": {},
    }  # fmt: skip
    return {**line, **changed}


def test_figures_follow_from_the_times() -> None:
    point = Measured(line_of("m up", 8, {"a": 20.0, "b": 10.0}, dense_us={"a": 10.0}))
    assert (point.first_speed, point.best_speed, point.regret, point.best) == (2.0, 4.0, 2.0, "b")
    assert point.mean_rows == 2
    assert math.isclose(point.floor_us(4e12), 4 * 1000 * 1000 * 2 / 4e12 * 1e6 + 3)
    assert math.isclose(point.over_floor(4e12), 4.0)
    assert point.dense_ratios() == {"a": 0.5}


def test_the_summary_has_means_least_and_lost_times() -> None:
    lines = [
        HEADER,
        line_of("m up", 8, {"a": 20.0, "b": 10.0}),
        line_of("m down", 8192, {"a": 10.0, "b": 20.0}, dense_us={"a": 9.0}, wrong=["b"]),
        line_of("n up", 8, {"b": 10.0}),  # the first choice is wrong
        line_of("bmm", 8, {"a": 20.0}, kind="batched", key=["bmm", 8, None], tokens=None, skew=None),
        {"key": ["n down", 8, 1.0], "skipped": "out of memory"},
    ]
    text = summary(cast("list[dict[str, Any]]", lines))
    all_points = next(line for line in text.splitlines() if line.startswith("all of m_offsets"))
    assert all_points.split()[3:] == ["2", "2.828", "2.000", "4.000", "4.000", "1.414", "2.000"]
    assert "4 points, 1 without times, 1 kernels that are wrong somewhere" in text
    assert "first choice 4.000, from 4.000 to 4.000; best 2.000" in text
    assert "first 100 TFLOP/s, 0.900 of dense" in text
    assert "bmm, 8 rows: first 2.000, best 2.000" in text
    assert json.dumps(lines[-1]["key"]).replace('"', "'") in text


# --- rows by an index


def test_an_index_gives_the_bits_of_a_product_and_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(ROOT / "benchmarks" / "grouped")
    monkeypatch.syspath_prepend(folder)  # pyright: ignore[reportUnknownMemberType]
    for name in ("measure", "indices"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    indices: Any = import_module("indices")
    assert len(indices.PAIRS) == 5
    for pair in indices.PAIRS:
        small = replace(pair, groups=4, n=136, k=256)
        plain, indexed = (
            SimpleNamespace(matmul=Simulated(made(spec_file(stem)), module_file(stem)))
            for stem in (pair.plain, pair.indexed)
        )
        calls = indices.arms(small, plain, indexed, 50, CPU)
        assert list(calls) == ["product", "product and copy", "index"]
        assert torch.equal(calls["product and copy"](), calls["index"]())


# --- ideas for skewed groups


def test_the_last_wave_of_large_groups_is_counted_in_tiles_of_the_planners_first_kernel() -> None:
    (found,) = last_waves([LARGE, SMALL, BATCHES], [0.0])
    plan = plan_spec(source_of(LARGE))
    rows = rows_of_groups(LARGE, 0.0)
    tiles = sum(math.ceil(int(each) / plan.program_tile_m) for each in rows) * 4096 / plan.program_tile_n
    assert found.waves == pytest.approx(tiles * plan.cluster_size / 132)
    assert found.unused == pytest.approx(1 - found.waves / math.ceil(found.waves))


def test_two_tiles_are_estimated_from_their_parts_and_a_launch_without_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One kernel is faster on small groups, the other one on large groups."""
    work = routed()
    rows = [
        int(each)
        for each in torch.diff(cast(Tensor, work.offs[0]), prepend=torch.zeros(1, dtype=torch.int32))
    ]
    limit = sorted(rows)[len(rows) // 2]
    cost = {"small": (1.0, 3.0), "large": (2.0, 1.0)}

    def time_of(stem: str, offs: Tensor) -> float:
        counts = torch.diff(offs, prepend=torch.zeros(1, dtype=torch.int32))
        few, many = cost[stem]
        return 2 + sum(int(each) * (few if each <= limit else many) for each in counts)

    def times_us(arms: Mapping[str, Sequence[Call]]) -> dict[str, float]:
        return {stem: time_of(stem, cast(Any, calls[0]).keywords["offs"]) for stem, calls in arms.items()}

    monkeypatch.setattr(two_tiles, "LIMITS", (limit,))
    monkeypatch.setattr(two_tiles, "times_us", times_us)
    line = two_tiles.line_of(SMALL, work, {stem: module_of(stem) for stem in cost})
    assert line["rows"] == rows
    (estimate,) = line["two_tiles"]
    assert (estimate["small"], estimate["large"]) == ("small", "large")
    assert estimate["us"] == 2 + sum(rows)
    assert line["gain"] == pytest.approx(line["best_us"] / (2 + sum(rows)), abs=1e-3)
    assert line["gain"] > 1
