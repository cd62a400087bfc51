"""gemmgen tune: what is tried, what is measured next, workers that are lost, winners, and their table."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from commands import Gemmgen
from contests import BF16
from fake_gpu import FakeMachine, NamedMachine
from modules import EVERY_SPEC, ROOT, spec_file
from told import refusal
from torch import Tensor

from gemmgen import pictures
from gemmgen.__main__ import run
from gemmgen.bench.baseline import Baseline
from gemmgen.bench.machine import CudaMachine
from gemmgen.bench.record import Environment
from gemmgen.bench.result_log import Rounds
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.features.rendering import render
from gemmgen.hardware import HOPPER, Architecture
from gemmgen.numerics.inputs import Inputs
from gemmgen.plan.decisions import pinned
from gemmgen.problem import Request, Shape
from gemmgen.problem.dtypes import Dtypes
from gemmgen.processes.forking import LostError, forked, serving
from gemmgen.processes.locks import lock
from gemmgen.processes.workers import printing
from gemmgen.product import make
from gemmgen.spec import SpecFile, load_spec
from gemmgen.spec.model import stated
from gemmgen.spec.writing import spec_text
from gemmgen.tune import TunedRow, add_to_table, read_table, tuning
from gemmgen.tune.candidates import (
    Pins,
    TuningCandidate,
    TuningTarget,
    candidate_of,
    first_candidates,
    kernel_sha256,
    neighbours,
)
from gemmgen.tune.measuring import TuningProgress
from gemmgen.tune.options import TuningMachinery, TuningOptions
from gemmgen.tune.outcome import Outcome
from gemmgen.tune.search import FINAL, LAST_RUNG, ROUNDS, JobBatch, Search, SearchVerdict, gain, remaining
from gemmgen.tune.store import Store, Study
from gemmgen.tune.trials import Job, Trial, TrialSamples
from gemmgen.tune.tuning import alike, tune
from gemmgen.tune.worker import compile_in_children, find_gpus

pytestmark = pytest.mark.quick
pytest_plugins = ["commands"]

SHAPE: Shape = (8, 16, 32)
ENVIRONMENT = Environment("0", "0", "0", "0", "0", "0", "NVIDIA H200", 132, 4096)
OPEN = """\
title: t
target: h200
operands: {a: {dtype: bf16, source: shared}, b: {dtype: bf16}, d: {dtype: bf16}}
tile: {m: 64, k: 64}
cluster: {m: 1, n: 1}
buffering: {epilogue: 1, outstanding_mmas: 1}
warp_specialization: {kind: cooperative, consumers: 1}
schedule: {kind: persistent, splits: 1, order: column}
epilogue: {subtile_n: 32}
occupancy: 1
search: {tile.n: [128, 64, 32]}
"""
"""A spec that leaves little open: the columns of a tile, and the stages."""


# --- what is tried


@pytest.mark.parametrize(
    ("stem", "shape"),
    [
        ("h100_bf16_rows16_split2", (16, 512, 1024)),
        ("h100_e4m3_promoted", (256, 256, 256)),
        ("b200_mxfp8", (256,) * 3),
    ],
)
def test_a_candidate_is_a_spec_that_leaves_nothing_open_and_makes_its_plan(
    tmp_path: Path, stem: str, shape: Shape
) -> None:
    tuned = TuningTarget(load_spec(spec_file(stem)), shape)
    plan = tuned.plan({})
    assert plan is not None
    candidate = candidate_of(tuned, plan)
    path = tmp_path / f"{tuned.stem}.yaml"
    path.write_text(f"# a comment\n{candidate.text}")
    product = make(path)
    assert product.plan == plan
    assert product.source.spec == tuned.spec(candidate.pins)
    assert product.module != candidate.module  # it has the hash of the spec, comment and all
    assert kernel_sha256(product.plan, tuned.stem) == candidate.kernel
    names = {name for name in vars(plan) if name in pinned(product.source.spec)}
    assert {"cta_tile_m", "cta_tile_n", "stages", "order", "subtile_n", "cluster_m"} <= names


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_every_spec_is_written_as_it_is_read(path: Path, tmp_path: Path) -> None:
    spec = load_spec(path).spec
    (tmp_path / "x.yaml").write_text(spec_text(stated(spec), apart=()))
    assert load_spec(tmp_path / "x.yaml").spec == spec


def test_the_hash_of_a_kernel_leaves_out_the_two_lines_that_name_its_spec_and_no_others() -> None:
    product = make(ROOT / "specs" / "h100_bf16.yaml")
    lines = product.module.splitlines(keepends=True)
    place = lines.index(f"sha256 of its spec: {product.source.sha256}\n")
    assert lines[place - 1] == "Its spec: h100_bf16.yaml\n"
    rest = "".join(lines[: place - 1] + lines[place + 1 :])
    assert kernel_sha256(product.plan, "h100_bf16") == hashlib.sha256(rest.encode()).hexdigest()
    other = make(ROOT / "specs" / "h100_bf16_128x128.yaml").plan
    assert kernel_sha256(other, "h100_bf16") != kernel_sha256(product.plan, "h100_bf16")


@pytest.mark.check
def test_seeds_differ_in_kind_from_what_the_planner_ranks_first(tmp_path: Path) -> None:
    operands = "{a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}"
    text = f"title: t\ntarget: h200\noperands: {operands}\ntile: {{m: 128, n: 128, k: 64}}\n"
    (tmp_path / "x.yaml").write_text(text)
    found = first_candidates(TuningTarget(load_spec(tmp_path / "x.yaml"), (1024, 4096, 4096)), 3)
    first, seeds = found[:3], found[3:]
    assert len({each.kernel for each in found}) == len(found)
    assert {each.pins["schedule.kind"] for each in first} == {"persistent", "tiled"}
    assert {each.pins["cluster.n"] for each in first} == {1}
    assert {each.pins["schedule.kind"] for each in seeds} == {"persistent", "tiled"}
    assert {each.pins["cluster.n"] for each in seeds} == {1, 2}
    assert {each.pins["schedule.splits"] for each in seeds} == {1, 2, 4}
    assert {"hilbert", "grouped"} < {each.pins["schedule.order"] for each in seeds}


@pytest.mark.nightly
def test_kernels_of_a_batch_invariant_spec_add_up_alike_at_every_shape(tmp_path: Path) -> None:
    operands = "{a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}"
    text = f"title: t\ntarget: h200\noperands: {operands}\ntile: {{m: 128, n: 128, k: 64}}\n"
    path = tmp_path / "x.yaml"
    for wish, expected in (("", {1, 2, 4}), ("batch_invariant: true\n", {1})):
        path.write_text(text + wish)
        tuned = TuningTarget(load_spec(path), (1024, 1024, 4096))
        found = first_candidates(tuned, 2)
        found += neighbours(tuned, found[0].pins)
        assert {each.pins["schedule.splits"] for each in found} == expected


@pytest.mark.sample(1)
@pytest.mark.check
@pytest.mark.parametrize("shape", [(1, 256, 65536), (192, 256, 65536), (768, 256, 65536)])
def test_candidates_of_a_promise_have_the_order_of_sums_of_the_spec_s_own_kernel(
    shape: tuple[int, int, int], tmp_path: Path
) -> None:
    operands = "{a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}"
    divided = "tile: {k: 64}\nschedule: {splits: 24, reduction: parallel}\n"
    path = tmp_path / "x.yaml"
    path.write_text(f"title: t\ntarget: h200\noperands: {operands}\nbatch_invariant: true\n{divided}")
    tuned = TuningTarget(load_spec(path), shape)
    found = first_candidates(tuned, 3)
    plans = [tuned.plan(each.pins) for each in (*found, *neighbours(tuned, found[0].pins))]
    assert len({plan.cta_tile_n for plan in plans if plan}) > 1
    assert {plan.sum_order if plan else None for plan in plans} == {tuned.promised_order}


def test_a_plan_of_another_order_of_sums_is_no_candidate_of_a_promise(tmp_path: Path) -> None:
    operands = "{a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}"
    text = f"title: t\ntarget: h200\noperands: {operands}\ntile: {{m: 128, n: 128, k: 64}}\n"
    path = tmp_path / "x.yaml"
    path.write_text(text)
    pins: Pins = {"schedule.splits": 4}
    assert TuningTarget(load_spec(path), SHAPE).plan(pins)
    path.write_text(f"{text}batch_invariant: true\n")
    assert TuningTarget(load_spec(path), SHAPE).plan(pins) is None


def test_neighbours_differ_in_what_the_spec_leaves_open_and_in_what_follows(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(OPEN)
    tuned = TuningTarget(load_spec(tmp_path / "x.yaml"), SHAPE)
    plan = tuned.plan({"tile.n": 64, "buffering.stages": 4})
    assert plan is not None
    pins = candidate_of(tuned, plan).pins
    changes = [
        {path: value for path, value in each.pins.items() if pins[path] != value}
        for each in neighbours(tuned, pins)
    ]
    assert changes[:3] == [{"buffering.stages": 3}, {"buffering.stages": 5}, {"buffering.stages": 2}]
    # As `search` has it; the widest instruction and the deepest ring follow.
    assert [change.keys() for change in changes[3:]] == [{"tile.n", "mma.n", "buffering.stages"}] * 2
    assert [change["tile.n"] for change in changes[3:]] == [32, 128]


def test_a_spec_without_a_legal_plan_is_explained_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(OPEN.replace("tile: {m: 64", "tile: {m: 96"))
    with pytest.raises(GemmgenError, match=r"x\.yaml:4:11: error\["):
        first_candidates(TuningTarget(load_spec(path), SHAPE), 3)


def test_tuning_found_what_is_within_two_percent_of_every_kernel_of_the_set() -> None:
    record = json.loads((ROOT / "benchmarks" / "reading" / "tune.json").read_text())
    won, again = record["tuned"], record["again"]
    assert len(record["kernels"]) >= 80
    assert max(kernel["ratio"] for kernel in record["kernels"]) <= 1.02 * won["ratio_to_first"]
    assert min(duel["ratio"] for duel in record["duels"]) >= 1 / 1.02
    assert won["gpu_seconds"] <= 60
    assert again["measured"] == 0
    assert again["kernel_sha256"] == won["kernel_sha256"]


# --- what is measured next


def candidate(name: str) -> TuningCandidate:
    return TuningCandidate(f"kernel {name}", MappingProxyType({"name": name}), "", "", name, 0.0)


def samples(kernel: float, against: float, noise: float = 0.0) -> TrialSamples:
    rounds = (1 - noise, 1.0, 1 + noise)
    return TrialSamples(tuple(kernel * each for each in rounds), (against,) * 3, (30e-6,) * 3, 1e-4)


def trial(found: TrialSamples | None, gpu_seconds: float = 1.0) -> Trial:
    return Trial(gpu_seconds, "", found, None if found else "failed")


class Field:
    """Kernels by their names: what each takes, in microseconds; None of one that fails."""

    def __init__(self, times: Mapping[str, float | None], around: Mapping[str, str] | None = None) -> None:
        self.times, self.around = times, around or {}
        self.trials: dict[Job, Trial | None] = {}
        first = [name for name in times if name not in "".join(self.around.values())]
        self.search = Search([candidate(name) for name in first], self.neighbours)

    def neighbours(self, pins: Pins) -> Sequence[TuningCandidate]:
        return [candidate(name) for name in self.around.get(str(pins["name"]), "")]

    def measure(self, job: Job) -> None:
        own, other = self.times[job.kernel], self.times[job.against]
        self.trials[job] = trial(None if own is None or other is None else samples(own, other))

    def run(self, *, most: float = math.inf) -> SearchVerdict | None:
        """Do what is asked for; after so many trials, of a second each, the budget is spent."""
        self.search.budget = most + 2  # with the reserve for the last trial
        while isinstance(found := self.search.next(self.trials), JobBatch):
            assert found.running == ()
            assert found.gpu_seconds <= len(self.trials)
            self.measure(found.open[0])
        return found

    def rungs(self) -> Counter[int]:
        return Counter(job.rung for job in self.trials)


def test_each_rung_has_a_third_of_the_kernels_and_the_fastest_meets_the_first_once_more() -> None:
    field = Field({"a": 20.0} | {name: 21.0 + number for number, name in enumerate("bcdefghi")} | {"j": 18.0})
    verdict = field.run()
    assert verdict is not None
    assert (verdict.winner.kernel, verdict.first.kernel) == ("j", "a")
    # a against itself; nine others, three of them, one of those.
    assert field.rungs() == {0: 9, 1: 3, LAST_RUNG: 2, FINAL: 1}
    assert verdict.final is verdict.trials[Job("j", FINAL, "a")]
    assert verdict.trials == field.trials
    assert verdict.refused is None
    assert list(ROUNDS) == sorted(ROUNDS)


def test_neighbours_of_the_fastest_are_tried_against_it_until_none_is_faster() -> None:
    field = Field({"a": 20.0, "b": 19.0, "c": 18.0, "d": 25.0, "e": 17.0, "f": 17.5}, {"b": "cd", "c": "ef"})
    verdict = field.run()
    assert verdict is not None
    assert verdict.winner.kernel == "e"
    assert Job("c", 1, "b") in field.trials
    assert Job("e", 1, "c") in field.trials
    assert Job("e", FINAL, "a") in field.trials
    assert Job("d", LAST_RUNG, "b") not in field.trials


def test_a_descent_ends_after_a_few_steps() -> None:
    names = "abcdefg"
    times: dict[str, float | None] = {name: 20.0 - number for number, name in enumerate(names)}
    field = Field(times, dict(pairwise(names)))
    verdict = field.run()
    assert verdict is not None
    assert verdict.winner.kernel == "d"  # three steps from the first


def test_a_lead_within_the_noise_does_not_count() -> None:
    field = Field({"a": 20.0, "b": 19.96})
    verdict = field.run()
    assert verdict is not None
    assert (verdict.winner.kernel, verdict.first.kernel) == ("a", "a")
    assert verdict.final is verdict.trials[Job("a", LAST_RUNG, "a")]
    assert verdict.refused == (candidate("b"), field.trials[Job("b", FINAL, "a")])


@pytest.mark.parametrize(
    ("kernel", "noise", "expected"),
    [
        (19.0, 0.0, 20 / 19 - 1),
        (19.95, 0.0, 0.0),
        (21.0, 0.0, 0.0),
        (19.0, 0.2, 0.0),
        (19.0, 0.05, 20 / 19 - 1),
    ],
)
def test_a_gain_is_more_than_the_rounds_spread(kernel: float, noise: float, expected: float) -> None:
    assert gain(samples(kernel, 20.0, noise)) == pytest.approx(expected)


def test_a_kernel_that_fails_goes_no_further_and_a_first_one_that_fails_is_followed_by_the_next() -> None:
    field = Field({"a": None, "b": 20.0, "c": 15.0, "d": None})
    verdict = field.run()
    assert verdict is not None
    assert (verdict.winner.kernel, verdict.first.kernel) == ("c", "b")
    assert sum(job.kernel == "d" for job in field.trials) == 1


def test_where_no_kernel_works_there_is_no_verdict() -> None:
    assert Field({"a": None, "b": None}).run() is None


def test_a_spent_budget_leaves_what_decides() -> None:
    field = Field({"a": 20.0} | {name: 30.0 - number for number, name in enumerate("bcdefghijklm")})
    field.times = {**field.times, "c": 10.0, "m": 5.0}
    verdict = field.run(most=6)
    assert verdict is not None
    assert verdict.winner.kernel == "c"  # m has not been reached
    assert field.rungs() == {0: 5, LAST_RUNG: 1, FINAL: 1}
    assert field.search.next(field.trials) == verdict
    more = field.run(most=100)
    assert more is not None
    assert more.winner.kernel == "m"
    assert {job for job in verdict.trials if job.rung < FINAL} < {*more.trials}


def test_what_others_are_measuring_is_waited_for_even_with_the_budget_spent() -> None:
    field = Field({"a": 20.0, "b": 10.0, "c": 30.0})
    field.measure(Job("a", LAST_RUNG, "a"))
    job, other = Job("b", 0, "a"), Job("c", 0, "a")
    trials: dict[Job, Trial | None] = {**field.trials, job: None}
    assert field.search.next(trials) == JobBatch("rung 1 of 3", (other,), (job,), 1.0)
    field.search.budget = 1.0
    assert field.search.next(trials) == JobBatch("rung 1 of 3", (), (job,), 1.0)


def test_trials_of_kernels_that_gemmgen_makes_otherwise_now_neither_count_nor_cost() -> None:
    field = Field({"a": 20.0, "b": 10.0})
    old = Job("a as it was", LAST_RUNG, "a as it was")
    field.trials[old] = trial(samples(1.0, 1.0), gpu_seconds=1000.0)
    verdict = field.run(most=50)
    assert verdict is not None
    assert verdict.winner.kernel == "b"
    assert {*verdict.trials} == {*field.trials} - {old}
    assert verdict.gpu_seconds == len(verdict.trials)


def test_the_budget_keeps_what_the_last_trial_takes() -> None:
    assert remaining([], 60) == 60
    assert remaining([trial(samples(1, 1), each) for each in (9.0, 1.0, 1.0)], 60) == 47
    assert remaining([trial(None, 50.0)], 60) == 10


# --- a process that answers


def test_a_process_answers_until_it_ends_or_takes_too_long() -> None:
    def start() -> Callable[[int], int]:
        def answer(number: int) -> int:
            if number == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if number < 0:
                time.sleep(60)
            return os.getpid() + number

        return answer

    with serving(start) as ask:
        assert ask(1, 10.0) + 1 == ask(2, 10.0)
        with pytest.raises(LostError, match=r"^signal 9$"):
            ask(0, 10.0)
    with serving(start) as ask, pytest.raises(LostError, match=r"^no answer within 0\.1 seconds$"):
        ask(-1, 0.1)
    with serving(start) as ask:
        pid = ask(0 + 1, 10.0) - 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- on a GPU that there is not

PROTOCOL = Rounds(graph_seconds=1e-4, warm_up_seconds=1.0, settle_seconds=0.1)


class Kernels:
    """What every kernel takes, by its tile and its stages, and what some do besides."""

    def __init__(self) -> None:
        self.machine = NamedMachine()
        self.spoil: dict[int, Callable[[Tensor], object]] = {}
        """By the columns of a tile."""
        self.stages: dict[int, Callable[[Tensor], object]] = {}
        """By the stages of a tile of 64 columns."""
        self.seconds = 20e-6
        self.differences = 1.0
        """Between kernels, as a factor."""
        self.times: dict[int, float] = {}
        """In seconds, by the columns of a tile, where that is another."""

    def machine_on(self, device: int, architecture: Architecture) -> FakeMachine:
        assert architecture == HOPPER
        return self.machine

    def imported(self, path: Path) -> ModuleType:
        found = re.search(r"CTA tile +64 x (\d+), 64 of K per step, in (\d+) stages?", path.read_text())
        assert found
        columns, stages = map(int, found.groups())
        # 64 columns are best, and so are 5 stages.
        slower = abs(math.log2(columns / 64)) / 10 + abs(stages - 5) / 50
        seconds = self.times.get(columns, self.seconds * (1 + self.differences * slower))
        spoil = self.spoil.get(columns) or (self.stages.get(stages) if columns == 64 else None)

        def matmul(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
            self.machine.spend("k", seconds, 3e-6)
            out.copy_(a.double() @ b.double())
            if spoil:
                spoil(out)
            return out

        module = ModuleType(path.stem)
        module.__dict__["matmul"] = matmul
        return module

    def baseline(self, spec: SpecFile) -> Baseline:
        def bind(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
            def call() -> Tensor:
                self.machine.spend("x", 25e-6, 7e-6)
                return d.copy_(inputs.a.double() @ inputs.b.double())

            return call

        return Baseline("an invented baseline", bind)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    made = Kernels()
    monkeypatch.setattr("gemmgen.tune.measuring.ROUNDS", (2, 2, 3, 3))
    monkeypatch.setattr("gemmgen.tune.worker.import_generated", made.imported)
    monkeypatch.setattr("gemmgen.tune.worker.cublas", made.baseline)
    monkeypatch.setattr("gemmgen.tune.tuning.cublas", made.baseline)
    return made


def prepared(request: Request, shape: Shape, modules: Sequence[Path]) -> Mapping[Path, str]:
    return {}


def tuned(directory: Path, kernels: Kernels, **more: Any) -> Outcome:
    path = directory / "open.yaml"
    path.write_text(more.pop("text", OPEN))
    machinery = TuningMachinery(
        more.pop("machine_on", kernels.machine_on), more.pop("prepare", prepared), PROTOCOL
    )
    progress = more.pop("progress", list[TuningProgress]().append)
    given: dict[str, Any] = {
        "store": str(directory / "tune.db"),
        "table": directory / "table.jsonl",
        "devices": [0],
        "budget": 1e6,
    }
    options = TuningOptions(out=directory / "tuned", **(given | more))
    (outcome,) = tune([path], [SHAPE], options, machinery, progress)
    return outcome


def no_machine(device: int, architecture: Architecture) -> FakeMachine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        require_gpu(architecture)
    raise AssertionError


def test_the_fastest_kernel_is_found_written_and_built_again(tmp_path: Path, kernels: Kernels) -> None:
    ticks: list[TuningProgress] = []
    outcome = tuned(tmp_path, kernels, progress=ticks.append)
    assert outcome.winner.pins["tile.n"] == 64
    assert outcome.winner.pins["buffering.stages"] == 5  # by two steps of the descent, from 8 or more
    assert outcome.verdict.winner != outcome.verdict.first
    assert outcome.row.seconds == pytest.approx(20e-6)
    assert outcome.samples.baseline_spread.median == pytest.approx(1.25)
    assert outcome.path == tmp_path / "tuned" / "open_8x16x32.yaml"
    product = make(outcome.path)
    found = kernel_sha256(product.plan, product.source.stem)
    assert found == outcome.winner.kernel == outcome.row.kernel_sha256
    head, _, rest = outcome.path.read_text().partition("title: t\n")
    ratio = f"{outcome.samples.against_spread.median:.3f}"
    for figure in ("8x16x32", "20.00", "1.250", ratio, f"{outcome.row.tried}", outcome.winner.kernel):
        assert re.search(rf"\b{re.escape(figure)}\b", head)
    assert all(line.startswith("# ") for line in head.splitlines())
    assert "#" not in rest
    assert read_table(tmp_path / "table.jsonl", "NVIDIA H200") == (outcome.row,)
    assert outcome.row.spec == "tuned/open_8x16x32.yaml"
    assert outcome.row.dtypes == Dtypes("bf16", "bf16", "bf16")
    assert ticks[0].text == "ranking kernels"
    assert "rung 1 of 3, 2 trials to go" in [tick.text for tick in ticks]
    assert [tick.spent for tick in ticks] == sorted(tick.spent for tick in ticks)


@pytest.mark.nightly
def test_a_second_run_measures_nothing_with_or_without_a_gpu(tmp_path: Path, kernels: Kernels) -> None:
    first = tuned(tmp_path, kernels)
    files = {path: path.read_bytes() for path in (first.path, tmp_path / "table.jsonl")}

    def never(request: Request, shape: Shape, modules: Sequence[Path]) -> Mapping[Path, str]:
        raise AssertionError

    for more in ({}, {"gpu": "NVIDIA H200", "machine_on": no_machine}):
        again = tuned(tmp_path, kernels, prepare=never, **more)
        assert (first.measured > 10, again.measured) == (True, 0)
        assert again.verdict == first.verdict
        assert {path: path.read_bytes() for path in files} == files


def test_a_store_of_another_gpu_is_not_taken_for_this_one(tmp_path: Path, kernels: Kernels) -> None:
    tuned(tmp_path, kernels, budget=20)
    found = refusal(lambda: tuned(tmp_path, kernels, gpu="NVIDIA H100"))
    assert (found.path, found.code) == (f"{tmp_path}/tune.db", "other-gpu")
    assert found.field == "open 8x16x32"


def test_trials_that_are_not_finished_are_not_written_without_a_gpu(tmp_path: Path, kernels: Kernels) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(OPEN)
    Store(str(tmp_path / "tune.db")).study(TuningTarget(load_spec(path), SHAPE), ENVIRONMENT)
    found = refusal(lambda: tuned(tmp_path, kernels, gpu="NVIDIA H200"))
    assert (found.path, found.code) == (f"{tmp_path}/tune.db", "other-gpu")
    assert refusal(lambda: tuned(tmp_path, kernels, machine_on=no_machine)).code == "no-gpu"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OPEN.replace("kind: persistent", "kind: single_tile"), None),
        (OPEN.replace("tile: {m: 64", "tile: {m: 96"), 4),
    ],
)
def test_specs_that_do_not_take_a_shape_are_refused_before_anything_is_measured(
    tmp_path: Path, kernels: Kernels, text: str, line: int | None
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text.replace("search: {tile.n: [128, 64, 32]}", "").replace("m: 64,", "m: 64, n: 64,"))
    with pytest.raises(GemmgenError) as caught:
        tune(
            [path],
            [(8, 512, 32)],
            TuningOptions(str(tmp_path / "tune.db"), tmp_path),
            TuningMachinery(kernels.machine_on, prepared),
        )
    found = caught.value.diagnostics[0]
    assert (found.path, found.line) == (str(path), line)
    assert line or found.code == "bad-shapes"


def test_specs_for_two_generations_are_not_tuned_together(tmp_path: Path, kernels: Kernels) -> None:
    paths = [spec_file("h100_bf16"), spec_file("b200_bf16")]
    options = TuningOptions(str(tmp_path / "tune.db"), tmp_path)
    found = refusal(lambda: tune(paths, [SHAPE], options, TuningMachinery(kernels.machine_on)))
    assert found.code == "no-gpu"


def test_without_a_gpu_and_without_trials_nothing_is_tuned(tmp_path: Path, kernels: Kernels) -> None:
    assert refusal(lambda: tuned(tmp_path, kernels, machine_on=no_machine)).code == "no-gpu"


def test_the_first_choice_stays_where_nothing_is_faster(tmp_path: Path, kernels: Kernels) -> None:
    text = OPEN.replace("epilogue: 1", "epilogue: 1, stages: 5").replace("[128, 64, 32]", "[64]")
    outcome = tuned(tmp_path, kernels, text=text)
    assert outcome.verdict.winner == outcome.verdict.first
    assert outcome.remark


def test_a_lead_within_the_noise_is_told_and_the_first_choice_stays(tmp_path: Path, kernels: Kernels) -> None:
    kernels.differences = 0.01
    outcome = tuned(tmp_path, kernels)
    assert outcome.verdict.winner == outcome.verdict.first
    assert outcome.verdict.refused is not None
    kernel, refused = outcome.verdict.refused
    assert refused.samples is not None
    ratio = refused.samples.against_spread.median
    assert 1 < ratio < 1.003
    assert f"`{kernel.label}`" in outcome.remark
    assert f"{ratio:.3f}" in outcome.remark


def test_a_kernel_above_the_roofline_is_told_and_not_written(tmp_path: Path, kernels: Kernels) -> None:
    kernels.times[32] = 1e-10
    outcome = tuned(tmp_path, kernels)
    assert outcome.winner.pins["tile.n"] == 64
    assert outcome.remark.startswith(f"{outcome.failures['impossible']} ")


def spoil_all(d: Tensor) -> None:
    d.mul_(1.05)


def abort(d: Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(d: Tensor) -> None:
    time.sleep(60)


def fault(d: Tensor) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")


def refuse(d: Tensor) -> None:
    raise ValueError("m must be 64")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("spoil", "why", "message"),
    [
        (abort, "failed", "signal 9"),
        (hang, "failed", "2 seconds"),
        (fault, "failed", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        (refuse, "cannot", "ValueError: m must be 64"),
        (spoil_all, "wrong", "0.05"),
    ],
)
def test_a_kernel_that_fails_costs_one_trial(
    tmp_path: Path,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Tensor], object],
    why: str,
    message: str,
) -> None:
    monkeypatch.setattr("gemmgen.tune.worker.ANSWER_SECONDS", 2.0 if spoil is hang else 30.0)
    kernels.spoil[32] = spoil
    text = OPEN.replace("epilogue: 1", "epilogue: 1, stages: 4")
    outcome = tuned(tmp_path, kernels, text=text)
    assert outcome.winner.pins["tile.n"] == 64
    failed = [trial for trial in outcome.verdict.trials.values() if trial.samples is None]
    (told,) = {trial.message for trial in failed}
    assert message in told
    assert outcome.failures == {why: len(failed)}
    assert f", {outcome.failures[why]} trial" in outcome.path.read_text()


def test_a_kernel_that_cannot_be_compiled_is_not_measured(tmp_path: Path, kernels: Kernels) -> None:
    def none_of_32(request: Request, shape: Shape, modules: Sequence[Path]) -> Mapping[Path, str]:
        return {path: "it does not compile" for path in modules if "64 x 32," in path.read_text()}

    outcome = tuned(
        tmp_path, kernels, prepare=none_of_32, text=OPEN.replace("epilogue: 1", "epilogue: 1, stages: 4")
    )
    found = [trial for trial in outcome.verdict.trials.values() if trial.samples is None]
    assert {(trial.why, trial.message, trial.gpu_seconds) for trial in found} == {
        ("failed", "it does not compile", 0.0)
    }
    assert outcome.measured == len(outcome.verdict.trials) - len(found)


def test_each_module_is_compiled_and_run_once_in_a_process_of_its_own(
    tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_the_cpu(_: object) -> torch.device:
        return torch.device("cpu")

    def done(_: object) -> None:
        pass

    monkeypatch.setattr("gemmgen.bench.prepare.import_generated", kernels.imported)
    monkeypatch.setattr("gemmgen.bench.prepare.require_gpu", on_the_cpu)
    monkeypatch.setattr("gemmgen.bench.machine.CudaMachine.finish", done)
    paths = {columns: tmp_path / f"kernel_{columns}.py" for columns in (32, 64, 128)}
    for columns, path in paths.items():
        path.write_text(f"    CTA tile         64 x {columns}, 64 of K per step, in 4 stages\n")
    kernels.spoil |= {32: abort, 128: fault}
    (tmp_path / "x.yaml").write_text(OPEN)
    found = compile_in_children(load_spec(tmp_path / "x.yaml").request, SHAPE, [*paths.values()])
    assert {path: why.rpartition(": ")[2] for path, why in found.items()} == {
        paths[32]: "signal 9",
        paths[128]: "an illegal memory access was encountered",
    }


def test_where_no_kernel_works_the_first_reason_is_told(tmp_path: Path, kernels: Kernels) -> None:
    kernels.spoil |= dict.fromkeys((32, 64, 128), refuse)
    text = OPEN.replace("epilogue: 1", "epilogue: 1, stages: 4")
    found = refusal(lambda: tuned(tmp_path, kernels, text=text))
    assert (found.code, found.field) == ("no-kernel", "8x16x32")
    assert found.message.endswith("ValueError: m must be 64")


def run_out(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.\nmore")


def test_a_kernel_that_runs_out_of_memory_takes_no_part(tmp_path: Path, kernels: Kernels) -> None:
    kernels.spoil[32] = run_out
    outcome = tuned(tmp_path, kernels)
    found = [trial for trial in outcome.verdict.trials.values() if trial.why]
    assert {trial.why for trial in found} == {"out-of-memory"}
    assert all("Tried to allocate 16.00 GiB" in trial.message for trial in found)
    assert any(trial.samples for trial in outcome.verdict.trials.values())


def test_a_shape_without_memory_for_its_tensors_ends_the_tuning(
    tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmgen.tune.worker.TimingSession.of", run_out)
    with pytest.raises(GemmgenError) as caught:
        tuned(tmp_path, kernels)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.field) == ("out-of-memory", "8x16x32")
    assert diagnostic.message.endswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB.")
    assert stored(tmp_path).trials() == {}  # no other kernel would have had the memory
    monkeypatch.undo()


@pytest.mark.parametrize("begins", ["finding", "measuring"])
def test_a_gpu_without_memory_for_a_process_ends_the_tuning(
    tmp_path: Path, kernels: Kernels, begins: str
) -> None:
    """The process that looks for GPUs, and the one that measures, tell it; neither dies of it."""

    class Full(NamedMachine):
        @contextmanager
        def quiet(self) -> Generator[None]:
            run_out()
            yield

    def machine_on(device: int, architecture: Architecture) -> FakeMachine:
        if begins == "finding":
            run_out()
        return Full()

    with pytest.raises(GemmgenError) as caught:
        tuned(tmp_path, kernels, machine_on=machine_on)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "out-of-memory"


def test_what_is_above_the_roofline_takes_no_part(tmp_path: Path, kernels: Kernels) -> None:
    # 8 x 32 + 16 x 32 + 8 x 16 elements of 2 bytes at 4.8 TB/s take 0.37 ns.
    kernels.seconds = 1e-10
    with pytest.raises(GemmgenError) as caught:
        tuned(tmp_path, kernels)
    (diagnostic,) = caught.value.diagnostics
    assert re.fullmatch(
        r"none of \d+ kernels works: `.*` is above the roofline: "
        r"it reads \d\.\d\d of the datasheet: do not believe it",
        diagnostic.message,
    )


@pytest.mark.nightly
def test_a_small_budget_is_kept_and_a_larger_one_goes_on(tmp_path: Path, kernels: Kernels) -> None:
    small = tuned(tmp_path, kernels, budget=20)
    more = tuned(tmp_path, kernels)
    assert 0 < small.measured < more.measured
    # What decides is measured in any case.
    *first, _ = small.verdict.trials.values()
    assert sum(trial.gpu_seconds for trial in first) < 20 < more.verdict.gpu_seconds
    kept = {job: found for job, found in small.verdict.trials.items() if job.rung < FINAL}
    assert kept.items() < more.verdict.trials.items()
    assert more.winner.pins["buffering.stages"] == 5


def test_the_time_for_all_goes_first_to_what_the_planner_is_least_sure_of(
    tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, shapes = tmp_path / "open.yaml", [(256, 512, 512), SHAPE, (512, 256, 512)]
    path.write_text(OPEN)
    unsure = {SHAPE: 9, (512, 256, 512): 3, (256, 512, 512): 5}
    targets = [TuningTarget(load_spec(path), shape) for shape in shapes]
    of_kernels = {first_candidates(each, 2)[0].module: unsure[each.shape] for each in targets}

    def ranked(targets: Sequence[TuningTarget], _: int) -> list[list[TuningCandidate]]:
        return [first_candidates(each, 2) for each in targets]

    def number(candidates: Sequence[TuningCandidate]) -> int:
        return of_kernels[candidates[0].module]

    monkeypatch.setattr(tuning, "_ranked", ranked)
    monkeypatch.setattr(tuning, "alike", number)
    now = [0.0]

    def later(_: TuningProgress) -> None:
        now[0] += 0.01  # at each step

    monkeypatch.setattr(tuning, "monotonic", lambda: now[0])
    options = TuningOptions(store=str(tmp_path / "tune.db"), out=tmp_path, devices=[0], minutes=1)
    machinery = TuningMachinery(kernels.machine_on, prepared, PROTOCOL)
    outcomes = tune([path], shapes, options, machinery, later)
    assert [outcome.tuned.shape for outcome in outcomes] == [SHAPE, (256, 512, 512), (512, 256, 512)]

    def slow(_: TuningProgress) -> None:
        now[0] += 40

    options = replace(options, store=str(tmp_path / "other.db"))
    outcomes = tune([path], shapes, options, machinery, slow)
    assert [outcome.tuned.shape for outcome in outcomes] == [SHAPE]


def test_kernels_within_the_error_of_expected_times_are_alike() -> None:
    def of(*times: float) -> list[TuningCandidate]:
        return [TuningCandidate("", MappingProxyType({}), "", "", "", each) for each in times]

    assert alike(of(1.0, 1.07, 1.09, 2.0)) == 2
    assert alike(of(2.0, 1.0)) == 1


def test_a_run_that_is_killed_loses_at_most_the_running_trial(
    tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmgen.tune.measuring.PATIENCE_SECONDS", 0.5)
    kernels.stages[5] = abort_parent

    def run() -> None:
        tuned(tmp_path, kernels)

    with forked(run) as result, suppress(LostError):
        result()
    del kernels.stages[5]
    before = stored(tmp_path).trials()
    (lost,) = [job for job, found in before.items() if found is None]
    done = {job: found for job, found in before.items() if found}
    assert done
    outcome = tuned(tmp_path, kernels)
    assert lost in outcome.verdict.trials
    assert done.items() < outcome.verdict.trials.items()
    assert outcome.measured + len(done) == len(outcome.verdict.trials)
    assert outcome.winner.pins["buffering.stages"] == 5


def stored(directory: Path) -> Study:
    """Return the study of `open.yaml` in the store of a directory."""
    target = TuningTarget(load_spec(directory / "open.yaml"), SHAPE)
    return Store(str(directory / "tune.db")).recorded(target, "NVIDIA H200")


def abort_parent(d: Tensor) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def test_two_processes_that_share_a_store_do_no_trial_twice(tmp_path: Path, kernels: Kernels) -> None:
    def run() -> tuple[int, list[Job], str]:
        outcome = tuned(tmp_path, kernels, table=None)
        return outcome.measured, [*outcome.verdict.trials], outcome.winner.kernel

    with forked(run) as one, forked(run) as two:
        (first, jobs, winner), (second, _, other) = one(), two()
    assert winner == other
    assert first + second == len(jobs) == len(set(jobs))


@pytest.mark.nightly
def test_a_worker_for_each_gpu_shares_the_trials(tmp_path: Path, kernels: Kernels) -> None:
    outcome = tuned(tmp_path, kernels, devices=[0, 1])
    assert outcome.measured == len(outcome.verdict.trials)
    assert outcome.winner.pins["buffering.stages"] == 5


def test_gpus_of_two_kinds_are_not_tuned_on_together(kernels: Kernels) -> None:
    def machine_on(device: int, architecture: Architecture) -> FakeMachine:
        return FakeMachine() if device else NamedMachine()

    found = refusal(lambda: find_gpus(machine_on, [0, 1], HOPPER))
    assert (found.path, found.code) == ("--devices", "other-gpu")


def test_kernels_that_gemmgen_makes_otherwise_now_are_measured_again(
    tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tuned(tmp_path, kernels, budget=20)

    def changed(*arguments: Any, **names: Any) -> str:
        return f"{render(*arguments, **names)}# changed\n"

    monkeypatch.setattr("gemmgen.tune.candidates.render", changed)
    monkeypatch.setattr("gemmgen.product.render", changed)
    again = tuned(tmp_path, kernels, budget=20)
    assert again.measured == len(again.verdict.trials) == first.measured
    assert not again.verdict.trials.keys() & first.verdict.trials.keys()
    assert again.winner.kernel != first.winner.kernel


def test_again_forgets_what_the_store_has(tmp_path: Path, kernels: Kernels) -> None:
    first = tuned(tmp_path, kernels, budget=20)
    again = tuned(tmp_path, kernels, budget=20, again=True)
    assert again.measured == first.measured
    assert len(stored(tmp_path).trials()) == len(again.verdict.trials)


def test_nothing_is_forgotten_where_nothing_can_be_measured(tmp_path: Path, kernels: Kernels) -> None:
    first = tuned(tmp_path, kernels, budget=20)
    with pytest.raises(GemmgenError, match=r"error\[no-gpu\]"):
        tuned(tmp_path, kernels, again=True, machine_on=no_machine)
    assert tuned(tmp_path, kernels, budget=20).verdict.trials == first.verdict.trials


def test_one_process_at_a_time_measures_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(_: object) -> SimpleNamespace:
        return SimpleNamespace(uuid="1234")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    machine = CudaMachine(torch.device("cpu"))
    with machine.alone():
        descriptor = os.open(tmp_path / "gemmgen-gpu-1234.lock", os.O_RDONLY)
        assert lock(descriptor, exclusive=True) is False
    assert lock(descriptor, exclusive=True) is True
    os.close(descriptor)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with machine.alone():
        pass


def test_a_spec_that_somebody_else_wrote_is_not_replaced(tmp_path: Path, kernels: Kernels) -> None:
    path = tmp_path / "tuned" / "open_8x16x32.yaml"
    path.parent.mkdir()
    path.write_text(OPEN)
    found = refusal(lambda: tuned(tmp_path, kernels, budget=20))
    assert (found.path, found.code) == (str(path), "foreign-file")
    assert path.read_text() == OPEN


# --- the table

ROW = TunedRow(
    gpu="NVIDIA H200",
    m=8,
    n=16,
    k=32,
    dtypes=Dtypes("bf16", "bf16", "bf16"),
    problem=BF16,
    description="bf16",
    spec="tuned/open_8x16x32.yaml",
    kernel_sha256="0" * 64,
    seconds=2e-5,
    baseline_seconds=2.5e-5,
    first_seconds=2.1e-5,
    tried=7,
    date="2026-11-22T23:00:00Z",
    gemmgen="0.1.0",
    torch="2.11",
    triton="3.9",
)


@pytest.mark.check
def test_a_table_is_in_the_order_of_shapes_and_a_row_takes_the_place_of_its_spec_s(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.jsonl"
    other = replace(ROW, m=4, spec="tuned/open_4x16x32.yaml")
    add_to_table(path, [ROW])
    add_to_table(path, [other])
    assert read_table(path) == (other, ROW) == read_table(str(path))
    faster = replace(ROW, seconds=1e-5)
    add_to_table(path, [faster])
    assert read_table(path) == (other, faster)
    assert faster.observed.ratio == pytest.approx(2.5)
    assert json.loads(path.read_text().splitlines()[0])["m"] == 4


def test_the_documented_line_is_one_of_a_table(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tuning.md").read_text()
    (line,) = re.findall(r"^\{\"table\".*\}$", page, re.MULTILINE)
    path = tmp_path / "table.jsonl"
    path.write_text(f"{line}\n")
    (row,) = read_table(path, "NVIDIA H200")
    assert row.shape == (1024, 4096, 4096)
    assert all(f"`{name}`" in page for name in json.loads(line))


LINE = ROW.as_line()


@pytest.mark.parametrize(
    ("text", "code", "line", "field"),
    [
        (None, "bad-table", None, None),
        ("", "bad-table", None, None),
        ("x\n", "bad-table", 1, None),
        ('{"line": "session"}\n', "bad-table", 1, None),
        (LINE + LINE.replace('"format": 2', '"format": 1'), "bad-table", 2, "format"),
        (LINE.replace('"tried": 7, ', ""), "bad-table", 1, "tried"),
        (LINE.replace('"tried": 7', '"tried": "7"'), "bad-table", 1, "tried"),
        (LINE.replace('"m": 8', '"m": 0'), "bad-table", 1, "m"),
        (LINE + LINE.replace("H200", "H100"), "bad-table", 2, None),
        (LINE.replace("H200", "H100"), "other-gpu", None, None),
    ],
)
def test_what_is_no_table_of_this_gpu_is_explained(
    tmp_path: Path, text: str | None, code: str, line: int | None, field: str | None
) -> None:
    path = tmp_path / "table.jsonl"
    if text is not None:
        path.write_text(text)
    found = refusal(lambda: read_table(path, "NVIDIA H200"))
    assert (found.path, found.code, found.line, found.field) == (str(path), code, line, field)


def test_a_table_of_another_gpu_is_found_out_before_anything_is_forgotten_or_measured(
    tmp_path: Path, kernels: Kernels
) -> None:
    first = tuned(tmp_path, kernels, budget=20, table=None)
    (tmp_path / "table.jsonl").write_text(LINE.replace("H200", "H100"))
    assert refusal(lambda: tuned(tmp_path, kernels, again=True)).code == "other-gpu"
    assert stored(tmp_path).trials() == first.verdict.trials


# --- the command


def test_the_command_says_what_it_found_and_where_it_is(
    tmp_path: Path, kernels: Kernels, gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = tuned(tmp_path, kernels)
    arguments = ["tune", tmp_path / "open.yaml", "--store", tmp_path / "tune.db", "--out", tmp_path / "tuned"]
    arguments += ["--gpu", "NVIDIA H200"]
    code, out, err = gemmgen_(*arguments, "--shape", "8x16x32")
    assert code == 0
    head, line = out.splitlines()
    assert head.split("  ")[0] == "spec"
    assert line.startswith(f"{outcome.path}  20.00  ")
    assert line.endswith(outcome.winner.label)
    assert err == ""
    (tmp_path / "shapes.json").write_text("[[8, 16, 32]]")
    more = ("--shapes", tmp_path / "shapes.json", "--json", "--pictures", tmp_path / "pictures")
    code, out, _ = gemmgen_(*arguments, *more)
    drawn = (tmp_path / "pictures" / f"{outcome.path.stem}.svg").read_text(encoding="utf-8")
    assert drawn == pictures.svg(make(outcome.path))
    assert json.loads(out)["results"] == json.loads(json.dumps([{**outcome.as_dict(), "measured": 0}]))


def interrupt_parent(d: Tensor) -> None:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)


def test_an_interrupt_gives_the_running_trial_back_and_says_how_to_go_on(
    tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    machinery = TuningMachinery(kernels.machine_on, prepared, PROTOCOL)
    monkeypatch.setattr("gemmgen.tune.tuning.tune", partial(tune, machinery=machinery))
    (tmp_path / "open.yaml").write_text(OPEN)
    arguments = ["tune", "open.yaml", "--shape", "8x16x32", "--out", "tuned", "--budget", "1000000"]
    kernels.stages[5] = interrupt_parent

    def command() -> None:
        os.chdir(tmp_path)
        sys.argv = ["gemmgen", *arguments]
        run()

    printed = (tmp_path / "stdout", tmp_path / "stderr")
    # It ends its process by itself.
    with forked(lambda: printing(command, printed, {})) as result, pytest.raises(LostError) as lost:
        result()
    assert lost.value.returncode == 130
    out, err = (path.read_text() for path in printed)
    assert out == ""
    assert "Traceback" not in err
    before = stored(tmp_path).trials()
    assert before
    assert None not in before.values()  # the running one was given back
    assert not (tmp_path / "tuned").exists()
    del kernels.stages[5]
    with forked(lambda: printing(command, printed, {})) as result, pytest.raises(LostError) as lost:
        result()
    assert lost.value.returncode == 0, printed[1].read_text()
    assert (tmp_path / "tuned" / "open_8x16x32.yaml").exists()
    assert before.items() < stored(tmp_path).trials().items()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ([], "--shapes, --shape or --model"),
        (["--shape", "8x16x32", "--devices", "all"], "--devices"),
        (["--shape", "8x16x32", "--again", "--gpu", "x"], "--again"),
    ],
)
def test_what_is_no_request_is_refused(gemmgen_: Gemmgen, arguments: list[str], option: str) -> None:
    code, _, err = gemmgen_("tune", "x.yaml", *arguments)
    assert code == 2
    assert f" {option}: " in err


def test_an_unknown_triton_is_told_before_anything_else(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gemmgen.triton_api.found_version", lambda: "9.9.0")
    code, out, err = gemmgen_("tune", "x.yaml", "--shape", "8x16x32", "--store", tmp_path / "tune.db")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error\[unknown-triton\]: .+\n", err)
    assert not (tmp_path / "tune.db").exists()


# --- on a GPU


@pytest.mark.gpu
def test_a_shape_is_tuned_and_a_second_run_takes_no_gpu_time(tmp_path: Path) -> None:
    """In a process of its own, for workers are forked before the GPU is used."""
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    (tmp_path / "open.yaml").write_text(OPEN)
    arguments = [str(tmp_path / "open.yaml"), "--shape", "256x512x1024", "--budget", "20", "--json"]
    arguments += ["--store", str(tmp_path / "tune.db"), "--out", str(tmp_path / "tuned")]
    command = [sys.executable, "-m", "gemmgen", "tune", *arguments]
    found: list[dict[str, Any]] = []
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found += json.loads(done.stdout)["results"]
    first, again = found
    assert first["failures"] == {}
    assert 0 < first["gpu_seconds"] < 30
    assert again == {**first, "measured": 0}
    product = make(Path(first["written"]))
    assert kernel_sha256(product.plan, product.source.stem) == first["kernel_sha256"]
