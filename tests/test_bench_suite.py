"""bench --suite: the file of a suite, rounds on a machine with clocks of its own, the record, its figures."""

from __future__ import annotations

import faulthandler
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from commands import Gemmgen
from contests import BF16, E4M3
from fake_gpu import FakeMachine
from modules import ROOT
from rich.console import Console
from told import refusal
from torch import Tensor

from gemmgen.bench import (
    ResultLog,
    SuiteMachinery,
    SuiteSelection,
    errors_of,
    load_suite,
    ratio_picture,
    report_of,
    roofline_picture,
    suite_tables,
    time_suite,
)
from gemmgen.bench.arms import Progress
from gemmgen.bench.baseline import Baseline
from gemmgen.bench.figures.style import IN_THE_DARK
from gemmgen.bench.figures.suite_plots import ratio_limits
from gemmgen.bench.figures.suite_tables import short_name
from gemmgen.bench.machine import CudaMachine, UnfinishedError
from gemmgen.bench.prepare import Prepared, prepare_in_children, primed
from gemmgen.bench.record import GpuState
from gemmgen.bench.result_log import BASELINE, Line, PlannerRanking, Refused, Result, Rounds
from gemmgen.bench.suite_figures import BEST, FIRST, GROUPS, RatioFigures, group_of, grouped, points_of
from gemmgen.bench.suite_file import Suite
from gemmgen.bench.tasks import Task
from gemmgen.cli.options import range_of
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware.gpus import HOPPER
from gemmgen.numerics.inputs import Inputs
from gemmgen.planner import Candidate, rank
from gemmgen.problem import Shape
from gemmgen.product import make
from gemmgen.spec import SpecFile, load_spec
from gemmgen.spec.model import Runs
from tools.quotations.pages import STUDIES, refreshed
from tools.quotations.suite_blocks import suite_records

SUITE = ROOT / "benchmarks" / "suites" / "h200.yaml"
SPEC = (ROOT / "specs" / "h100_bf16.yaml").read_text()
PROTOCOL = Rounds(rounds=3, warm_up_seconds=0.01, settle_seconds=0.005)
TWO_SHAPES = "title: t\ndtypes: [bf16]\nfamilies: {x: {shapes: [[8, 16, 32], [64, 16, 32]]}}\n"
CONTEST = BF16

pytest_plugins = ["commands"]


class Arms:
    """Kernels by the names of their specs: how long each takes, and what it does besides."""

    def __init__(self, machine: FakeMachine, seconds: dict[str, float]) -> None:
        self.machine, self.seconds = machine, seconds
        self.spoil: dict[str, Callable[[Tensor], object]] = {}
        self.names: dict[str, str] = {}

    def imported(self, path: Path) -> ModuleType:
        module = ModuleType(path.stem)

        def matmul(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
            self.machine.spend(path.stem[-1], self.seconds.get(path.stem, 30e-6), 3e-6)
            out.copy_(a.double() @ b.double())
            self.spoil.get(path.stem, lambda _: None)(out)
            return out

        module.__dict__["matmul"] = matmul
        return module

    def baseline(self, spec: SpecFile) -> Baseline:
        def bind(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
            def call() -> Tensor:
                self.machine.spend("x", self.seconds[BASELINE], 7e-6)
                return d.copy_(inputs.a.double() @ inputs.b.double())

            return call

        return Baseline("an invented baseline", bind)


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> Arms:
    made = Arms(FakeMachine(), {BASELINE: 20e-6, "kernel_a": 10e-6, "kernel_b": 25e-6})
    monkeypatch.setattr("gemmgen.bench.suite_run.import_generated", made.imported)
    monkeypatch.setattr("gemmgen.bench.prepare.import_generated", made.imported)
    monkeypatch.setattr("gemmgen.bench.tasks.cublas", made.baseline)
    return made


def prepared(tasks: Sequence[Task], progress: Progress) -> Prepared:
    return Prepared({(task.contest, task.shape): (f"nvjet_{task.shape[0]}",) for task in tasks}, {})


def specs_in(directory: Path, *names: str, text: str = SPEC) -> list[Path]:
    paths = [directory / f"{name}.yaml" for name in names]
    for path in paths:
        path.write_text(text)
    return paths


def suite_in(directory: Path, text: str = TWO_SHAPES) -> Suite:
    path = directory / "suite.yaml"
    path.write_text(text)
    return load_suite(path)


def run(
    directory: Path,
    arms: Arms,
    log: ResultLog,
    *names: str,
    suite: str = TWO_SHAPES,
    protocol: Rounds = PROTOCOL,
    progress: Progress = lambda _: None,
    **more: Any,
) -> ResultLog:
    time_suite(
        specs_in(directory, *names),
        suite_in(directory, suite),
        log,
        machinery=SuiteMachinery(protocol, arms.machine, more.pop("prepare", prepared)),
        progress=progress,
        selection=SuiteSelection(**more),
    )
    return log


def results(log: ResultLog) -> list[Result]:
    return [line for line in log.lines if isinstance(line, Result)]


def refusals(log: ResultLog) -> list[Refused]:
    return [line for line in log.lines if isinstance(line, Refused)]


# --- the rounds


def test_kernels_take_turns_with_the_baseline(tmp_path: Path, arms: Arms) -> None:
    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b")
    first, second = results(log)
    assert (first.shape, second.shape) == ((8, 16, 32), (64, 16, 32))
    # 8 * 32 + 16 * 32 operand and 8 * 16 result elements of 2 bytes are 1792 bytes: 2.5 * 4096 of L2 take 6.
    assert first.input_sets == 6
    # A pass of the baseline over 6 sets takes 120 us: 17 passes make 2 ms.
    assert [arm.calls for arm in (first.baseline, *first.kernels)] == [102, 102, 102]
    assert [arm.kernel for arm in first.kernels] == ["kernel_a", "kernel_b"]
    assert first.baseline.seconds == pytest.approx((20e-6,) * 3)
    assert first.kernels[1].seconds == pytest.approx((25e-6,) * 3)
    assert first.observed(first.kernels[0]).ratio == pytest.approx(2.0)
    assert first.baseline_kernels == ("nvjet_8",)
    assert first.kernels[0].host_seconds == pytest.approx(3e-6)
    assert first.state is not None
    assert first.families == ("x",)


def test_who_comes_after_whom_changes_and_the_best_is_timed_once_more(tmp_path: Path, arms: Arms) -> None:
    one_shape = TWO_SHAPES.replace(", [64, 16, 32]", "")
    protocol = replace(PROTOCOL, rounds=7)
    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b", suite=one_shape, protocol=protocol)
    # A sample is one replay of 102 calls; the last ones are 7 rounds of three, and 7 pairs with the best.
    samples = "".join(calls[0] for _, calls in arms.machine.timed if set(calls) <= set("XAB"))
    rounds = [samples[-35:-14][first : first + 3] for first in range(0, 21, 3)]
    assert {"".join(sorted(each)) for each in rounds} == {"ABX"}
    assert len({*rounds}) > 3
    assert samples[-14:] == "XA" * 7
    (result,) = results(log)
    assert result.playoff is not None
    assert result.playoff.kernel == "kernel_a"
    assert result.playoff.seconds == pytest.approx((10e-6,) * 7)
    assert result.playoff.baseline_seconds == pytest.approx((20e-6,) * 7)


def test_the_best_is_timed_once_more_for_as_long_as_the_clock_swings(tmp_path: Path, arms: Arms) -> None:
    protocol = replace(PROTOCOL, playoff_seconds=0.1)
    (result, _) = results(run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b", protocol=protocol))
    # A sample is 102 calls: 2.04 ms of the baseline, and half as much of the best. 33 pairs take 0.1 s.
    assert result.playoff is not None
    assert len(result.playoff.seconds) == len(result.playoff.baseline_seconds) == 33


def test_a_kernel_that_is_much_slower_gets_shorter_samples(tmp_path: Path, arms: Arms) -> None:
    arms.seconds["kernel_b"] = 400e-6
    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b")
    # 102 calls of 400 us are 40.8 ms, 17 passes * 2 / 40.8 is one pass.
    assert [arm.calls for arm in results(log)[0].kernels] == [102, 6]
    assert results(log)[0].kernels[1].seconds == pytest.approx((400e-6,) * 3)


def test_the_gpu_settles_before_each_shape_and_longer_before_the_first(tmp_path: Path, arms: Arms) -> None:
    protocol = Rounds(rounds=1, warm_up_seconds=1.0, settle_seconds=0.25)
    begins: list[float] = []
    run(
        tmp_path,
        arms,
        ResultLog(),
        "kernel_a",
        protocol=protocol,
        progress=lambda _: begins.append(arms.machine.now()),
    )
    assert 1.0 < begins[1] - begins[0] < 1.1
    assert 0.25 < arms.machine.now() - begins[1] < 0.35


def test_only_shapes_of_the_range_are_timed(tmp_path: Path, arms: Arms) -> None:
    log = run(tmp_path, arms, ResultLog(), "kernel_a", extents=range(9, 65))
    assert [result.shape for result in results(log)] == [(64, 16, 32)]


# --- the GPU's own clocks


class Event:
    """An event of a GPU whose clock the works advance; one of ``late`` never comes."""

    clock = 0.0
    late = False

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = Event.clock

    def query(self) -> bool:
        return not Event.late

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def work(milliseconds: float, log: list[float]) -> Callable[[], None]:
    def spend() -> None:
        Event.clock += milliseconds
        log.append(milliseconds)

    return spend


def test_works_are_timed_one_behind_the_other_after_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[float] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    machine = CudaMachine(torch.device("cpu"))
    assert machine.times([work(2, log), work(3, log)]) == pytest.approx([2e-3, 3e-3])
    assert log == [3, 2, 3]


def test_a_gpu_that_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "late", True)
    monkeypatch.setattr("gemmgen.bench.machine.UNFINISHED_SECONDS", 0.05)
    machine = CudaMachine(torch.device("cpu"))
    with pytest.raises(UnfinishedError, match=r"did not end within 0\.05 seconds"):
        machine.finish()
    with pytest.raises(UnfinishedError):
        machine.times([work(1, [])])


def test_the_state_is_the_mean_of_what_the_tool_says_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '1000, 100, 50'\nsleep 0.3\necho '1400, [N/A], 61'\necho x\nsleep 60\n")
    smi.chmod(0o755)
    machine = CudaMachine(torch.device("cpu"))

    def properties(_: object) -> SimpleNamespace:
        return SimpleNamespace(uuid="0")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    start = machine.now()
    with machine.watched() as since:
        while since(start) is None or since(start) == GpuState(1000.0, 100.0, 50.0):
            assert machine.now() - start < 10
        assert since(start) == GpuState(1200.0, 100.0, 55.5)
        assert since(machine.now()) == GpuState(1400.0, None, 61.0)  # the latest, where none came since
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with machine.watched() as since:
        assert since(start) is None


# --- before anything is timed


def end(d: Tensor) -> None:
    faulthandler.disable()  # else the log of the tests has a stack that looks like a crash
    os.kill(os.getpid(), signal.SIGABRT)


def never_end(d: Tensor) -> None:
    time.sleep(60)


def refuse(d: Tensor) -> None:
    raise ValueError("m must be 64")


def fault(d: Tensor) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")


def test_each_kernel_runs_once_in_a_process_of_its_own_before_any_is_timed(
    tmp_path: Path, arms: Arms, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("kernel_a", "kernel_b", "kernel_c", "kernel_d", "kernel_e")
    arms.spoil |= {"kernel_b": end, "kernel_c": fault, "kernel_d": refuse, "kernel_e": never_end}
    monkeypatch.setattr("gemmgen.bench.prepare.PRIMING_SECONDS", 1)

    def on_the_cpu(_: object) -> torch.device:
        return torch.device("cpu")

    def done(_: object) -> None:
        pass

    monkeypatch.setattr("gemmgen.bench.prepare.require_gpu", on_the_cpu)
    monkeypatch.setattr(CudaMachine, "finish", done)
    seen: list[tuple[Sequence[Task], Prepared]] = []
    told: list[str] = []

    def watched(tasks: Sequence[Task], progress: Progress) -> Prepared:
        found = prepare_in_children(tasks, told.append)
        seen.append((tasks, found))
        return replace(found, failures=dict.fromkeys(names[1:], "left out"))

    run(tmp_path, arms, ResultLog(), *names, prepare=watched)
    ((tasks, found),) = seen
    assert [(task.shape, len(task.participants)) for task in tasks] == [((8, 16, 32), 5), ((64, 16, 32), 5)]
    assert {name: why.rpartition(": ")[2] for name, why in found.failures.items()} == {
        "kernel_b": "signal 6",
        "kernel_c": "an illegal memory access was encountered",
        "kernel_e": "signal 14",
    }
    assert len(told) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed_and_nothing_recorded(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    with pytest.raises(GemmgenError, match=r"^error\[no-gpu\]: torch finds no CUDA GPU"):
        run(tmp_path, arms, ResultLog.opened(path), "kernel_a", prepare=prepare_in_children)
    assert not path.exists()


# --- what the planner chooses

OPEN = """\
title: t
target: h200
operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}
tile: {m: 64, k: 64}
cluster: {m: 1, n: 1}
warp_specialization: {kind: cooperative, consumers: 1}
schedule: {kind: persistent}
"""


def test_a_spec_takes_part_with_what_its_planner_ranks_first_for_each_shape(
    tmp_path: Path, arms: Arms
) -> None:
    path = tmp_path / "record.jsonl"
    open_, pinned = specs_in(tmp_path, "open", text=OPEN) + specs_in(tmp_path, "kernel_a")
    suite = suite_in(tmp_path, TWO_SHAPES.replace("[64, 16, 32]", "[4096, 4096, 64]"))
    small, large = (8, 16, 32), (4096, 4096, 64)
    labels = {shape: [candidate.label for candidate in ranked(open_, shape)[:2]] for shape in (small, large)}
    assert labels[small] != labels[large]
    log = ResultLog.opened(path)

    def chosen(shapes: range) -> None:
        time_suite(
            [open_, pinned],
            suite,
            log,
            SuiteSelection(shapes, candidates=2),
            SuiteMachinery(PROTOCOL, arms.machine, prepared),
        )

    chosen(range(1, 9))  # of the large one the ranking is enough
    choices = {line.spec: line for line in log.lines if isinstance(line, PlannerRanking)}
    assert choices["kernel_a"].kernels == ("kernel_a",)  # it leaves nothing open
    names = choices["open"].kernels
    assert [re.sub(r" \([0-9a-f]{8}\)$", "", name) for name in names] == [
        f"open: {label}" for label in labels[small]
    ]
    (result,) = results(log)
    assert [arm.kernel for arm in result.kernels] == [*names, "kernel_a"]
    modules = {entry.name: entry.subject.module_sha256 for entry in log.sessions[0].kernels}
    assert all(modules[name].startswith(name[-9:-1]) for name in names)
    points = {point.kernel: point for point in points_of(log)}
    assert points[f"open{FIRST}"].ratio == points[names[0]].ratio
    assert points[BEST].ratio == pytest.approx(2.0)  # kernel_a's
    assert f"open{FIRST}" in text_of(log)
    before = path.read_text()
    chosen(range(1, 9))
    assert path.read_text() == before


def ranked(path: Path, shape: Shape) -> Sequence[Candidate]:
    spec = make(path).source.spec
    return rank(SpecFile.of(spec.model_copy(update={"bench": Runs(shapes=(shape,))}))).legal


# --- what is not timed


def test_a_kernel_that_is_wrong_is_not_timed_and_the_others_are(tmp_path: Path, arms: Arms) -> None:
    arms.spoil["kernel_b"] = lambda d: d.mul_(1.05)
    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b")
    assert [[arm.kernel for arm in result.kernels] for result in results(log)] == [["kernel_a"]] * 2
    assert [(line.kernel, line.why) for line in refusals(log)] == [("kernel_b", "wrong")] * 2
    assert "0.004" in refusals(log)[0].message
    assert errors_of(log)[0].startswith("bf16 8x16x32: kernel_b ")


def test_a_kernel_that_leaves_something_behind_is_seen_after_the_rounds(tmp_path: Path, arms: Arms) -> None:
    calls: list[int] = []

    def spoil_later(d: Tensor) -> None:
        calls.append(1)
        if len(calls) > 500:  # a counter that is not reset, say
            d[0, 0] += 1

    arms.spoil["kernel_a"] = spoil_later
    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b")
    first, _ = results(log)
    assert [arm.kernel for arm in first.kernels] == ["kernel_b"]
    assert first.playoff is not None
    assert first.playoff.kernel == "kernel_b"
    assert (refusals(log)[0].kernel, refusals(log)[0].why) == ("kernel_a", "wrong")


def test_a_kernel_that_does_not_take_a_shape_is_no_error(tmp_path: Path, arms: Arms) -> None:
    def refuse_few(d: Tensor) -> None:
        if d.shape[0] == 8:
            raise ValueError("m must be 64\nor more")

    arms.spoil["kernel_b"] = refuse_few
    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b")
    assert refusals(log) == [
        Refused("refused", (8, 16, 32), CONTEST, "kernel_b", "cannot", "ValueError: m must be 64")
    ]
    assert [len(result.kernels) for result in results(log)] == [1, 2]
    assert errors_of(log) == []
    assert re.search(r"bf16 +kernel_b +1 +8x16x32 +ValueError: m must be 64", text_of(log))


def test_a_shape_that_the_baseline_cannot_compute_is_left_out(
    tmp_path: Path, arms: Arms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cublas(spec: SpecFile) -> Baseline:
        def bind(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
            if d.shape[0] == 8:
                raise RuntimeError("M must be divisible by 16")
            return arms.baseline(spec).bind(inputs, d)

        return Baseline("b", bind)

    monkeypatch.setattr("gemmgen.bench.tasks.cublas", cublas)
    log = run(tmp_path, arms, ResultLog(), "kernel_a")
    assert [line.kernel for line in refusals(log)] == [BASELINE]
    assert [result.shape for result in results(log)] == [(64, 16, 32)]
    lines = len(log.lines)
    run(tmp_path, arms, log, "kernel_a")
    assert len(log.lines) == lines  # nor is it tried again


def test_a_kernel_that_cannot_be_compiled_is_an_error_on_each_shape(tmp_path: Path, arms: Arms) -> None:
    def failing(tasks: Sequence[Task], progress: Progress) -> Prepared:
        return Prepared({}, {"kernel_b": "it ended: signal 6"})

    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b", prepare=failing)
    assert len(errors_of(log)) == 2
    assert errors_of(log)[0].endswith(": signal 6")
    assert [len(result.kernels) for result in results(log)] == [1, 1]


def test_after_a_kernel_that_hangs_the_next_run_goes_on_behind_it(tmp_path: Path, arms: Arms) -> None:
    def hang(d: Tensor) -> None:
        raise UnfinishedError("did not end within 30 seconds")

    arms.spoil["kernel_a"] = hang
    path = tmp_path / "record.jsonl"
    with pytest.raises(
        GemmgenError, match=r"^kernel_a: error\[device-lost\] bf16 8x16x32: UnfinishedError: did"
    ):
        run(tmp_path, arms, ResultLog.opened(path), "kernel_a", "kernel_b")
    with pytest.raises(GemmgenError, match=r"error\[device-lost\] bf16 64x16x32"):
        run(tmp_path, arms, ResultLog.opened(path), "kernel_a", "kernel_b")
    log = run(tmp_path, arms, ResultLog.opened(path), "kernel_a", "kernel_b")
    assert [(result.shape, result.kernels[0].kernel) for result in results(log)] == [
        ((8, 16, 32), "kernel_b"),
        ((64, 16, 32), "kernel_b"),
    ]
    assert [(line.kernel, line.why) for line in refusals(log)] == [("kernel_a", "failed")] * 2


def test_memory_that_does_not_suffice_is_an_error_of_its_own_and_the_rest_is_timed(
    tmp_path: Path, arms: Arms
) -> None:
    def run_out(d: Tensor) -> None:
        if len(d) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.\nmore")

    arms.spoil["kernel_a"] = run_out
    log = ResultLog()
    with pytest.raises(GemmgenError) as caught:
        run(tmp_path, arms, log, "kernel_a", "kernel_b")
    (found,) = caught.value.diagnostics
    assert (found.path, found.code, found.field) == ("kernel_a", "out-of-memory", "bf16 8x16x32")
    assert found.message.endswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB.")
    timed = {result.shape: [each.kernel for each in result.kernels] for result in results(log)}
    assert timed == {(8, 16, 32): ["kernel_b"], (64, 16, 32): ["kernel_a", "kernel_b"]}
    assert refusals(log) == []
    arms.spoil.clear()
    run(tmp_path, arms, log, "kernel_a", "kernel_b")  # which has the memory now
    assert results(log)[-1].kernels[0].kernel == "kernel_a"


def test_a_kernel_that_has_no_memory_beside_others_is_timed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are compiled in several processes, which share the memory of the GPU."""
    request = load_spec(ROOT / "specs" / "h100_bf16.yaml").request

    def fail(error: Exception) -> Callable[[object], object]:
        def require(_: object) -> object:
            raise error

        return require

    for error, expected in (
        (torch.OutOfMemoryError("CUDA out of memory."), None),
        (RuntimeError("CUDA error: out of memory"), None),
        (RuntimeError("CUDA error: misaligned"), "RuntimeError: CUDA error: misaligned"),
    ):
        monkeypatch.setattr("gemmgen.bench.prepare.require_gpu", fail(error))
        assert primed(request, (8, 16, 32), tmp_path / "kernel.py") == expected


def test_a_baseline_without_memory_is_no_refusal(
    tmp_path: Path, arms: Arms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(works: Sequence[Callable[[], None]]) -> list[float]:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(arms.machine, "times", run_out)
    log = ResultLog()
    with pytest.raises(GemmgenError) as caught:
        run(tmp_path, arms, log, "kernel_a", "kernel_b")
    assert {found.code for found in caught.value.diagnostics} == {"out-of-memory"}
    assert {found.field for found in caught.value.diagnostics} == {"bf16 8x16x32", "bf16 64x16x32"}
    assert (results(log), refusals(log)) == ([], [])


@pytest.mark.parametrize("error", [UnfinishedError("did not end"), RuntimeError("CUDA error: misaligned")])
def test_rounds_that_fail_are_not_begun_again(
    tmp_path: Path, arms: Arms, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    times = arms.machine.times

    def fail(works: Sequence[Callable[[], None]]) -> list[float]:
        if len(works) > 3:
            raise error
        return times(works)

    monkeypatch.setattr(arms.machine, "times", fail)
    monkeypatch.setattr(arms.machine, "lost", lambda: True)
    log = ResultLog()
    for _ in range(2):
        with pytest.raises(GemmgenError, match=r"error\[device-lost\]"):
            run(tmp_path, arms, log, "kernel_a", "kernel_b")
    run(tmp_path, arms, log, "kernel_a", "kernel_b")
    first_line = f"{type(error).__name__}: {error}"
    assert [(line.kernel, line.message) for line in refusals(log)] == [
        ("kernel_a", f"rounds with it: {first_line}"),
        ("kernel_b", first_line),
    ] * 2
    assert results(log) == []


def test_a_spec_that_is_rejected_stops_all_before_the_gpu_is_used(tmp_path: Path, arms: Arms) -> None:
    good, bad = specs_in(tmp_path, "kernel_a", "bad")
    bad.write_text("title: 5\n")
    machinery = SuiteMachinery(machine=arms.machine, prepare=prepared)
    with pytest.raises(GemmgenError, match=r"bad\.yaml:1:8: error\[wrong-type\] title"):
        time_suite([good, bad], suite_in(tmp_path), ResultLog(), machinery=machinery)
    other, fp16 = ROOT / "specs" / "b200_bf16.yaml", TWO_SHAPES.replace("bf16", "fp16")
    for specs, suite, code in (
        ([good, good], TWO_SHAPES, "module-name"),
        ([good, other], TWO_SHAPES, "no-gpu"),
        ([good], fp16, "no-shapes"),
    ):
        with pytest.raises(GemmgenError, match=rf"error\[{code}\]"):
            time_suite(specs, suite_in(tmp_path, suite), ResultLog(), machinery=machinery)
    assert arms.machine.timed == []


# --- going on


def test_what_is_in_the_record_is_not_timed_again_and_another_kernel_is(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, ResultLog.opened(path), "kernel_a")
    before = path.read_text()
    run(tmp_path, arms, ResultLog.opened(path), "kernel_a")
    assert path.read_text() == before
    log = run(tmp_path, arms, ResultLog.opened(path), "kernel_a", "kernel_b")
    assert [[arm.kernel for arm in result.kernels] for result in results(log)] == [
        ["kernel_a"],
        ["kernel_a"],
        ["kernel_b"],
        ["kernel_b"],
    ]
    best = [point for point in points_of(log) if point.kernel == BEST]
    assert [point.ratio for point in best] == pytest.approx([2.0, 2.0])


def test_of_a_library_only_the_kernel_that_it_takes_is_timed_on_a_shape(tmp_path: Path, arms: Arms) -> None:
    def chosen(shape: Shape) -> str:
        return "kernel_a" if shape[0] == 8 else "kernel_b"

    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b", chosen=chosen)
    timed = {line.shape: [arm.kernel for arm in line.kernels] for line in results(log)}
    assert timed == {(8, 16, 32): ["kernel_a"], (64, 16, 32): ["kernel_b"]}


def test_a_kernel_whose_module_has_changed_is_timed_anew(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, ResultLog.opened(path), "kernel_a", "kernel_b")
    changed = SPEC.replace("stages: 4", "stages: 3")
    specs = [*specs_in(tmp_path, "kernel_a", text=changed), *specs_in(tmp_path, "kernel_b")]
    arms.seconds["kernel_a"] = 40e-6
    log = ResultLog.opened(path)
    time_suite(
        specs,
        suite_in(tmp_path),
        log,
        machinery=SuiteMachinery(PROTOCOL, arms.machine, prepared),
    )
    points = {(point.kernel, point.shape): point.ratio for point in points_of(log)}
    assert points["kernel_a", (8, 16, 32)] == pytest.approx(0.5)
    assert points["kernel_b", (8, 16, 32)] == pytest.approx(0.8)
    assert points[BEST, (8, 16, 32)] == pytest.approx(0.5)  # what kernel_a won before is no longer true
    assert len(results(log)) == 4


def test_a_record_is_of_one_machine(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, ResultLog.opened(path), "kernel_a")
    path.write_text(path.read_text().replace("Fake H200", "Fake H100"))
    assert refusal(lambda: run(tmp_path, arms, ResultLog.opened(path), "kernel_b")).code == "other-machine"
    path.write_text(path.read_text().replace("Fake H100", "Fake H200"))
    with pytest.raises(GemmgenError, match="another protocol"):
        run(tmp_path, arms, ResultLog.opened(path), "kernel_b", protocol=Rounds())


KILLED = """
import os, signal, sys
from pathlib import Path
from pytest import MonkeyPatch
from test_bench_suite import *
directory = Path(sys.argv[1])
with MonkeyPatch.context() as patch:
    arms = Arms(FakeMachine(), {BASELINE: 20e-6, "kernel_a": 10e-6, "kernel_b": 25e-6})
    patch.setattr("gemmgen.bench.suite_run.import_generated", arms.imported)
    patch.setattr("gemmgen.bench.tasks.cublas", arms.baseline)
    def progress(step):
        if "64x16x32" in step:
            os.kill(os.getpid(), signal.SIGKILL)
    run(directory, arms, ResultLog.opened(directory / "record.jsonl"), "kernel_a", progress=progress)
"""


def test_a_run_that_was_killed_goes_on_where_it_stopped(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    whole = path.read_bytes()
    assert [result.shape for result in results(ResultLog.opened(path))] == [(8, 16, 32)]
    path.write_bytes(whole + whole.splitlines()[1][:100])  # killed while it wrote
    halved = path.read_bytes()
    assert [result.shape for result in results(ResultLog.opened(path))] == [(8, 16, 32)]
    assert path.read_bytes() == halved  # who only reads changes nothing
    told: list[str] = []
    log = run(tmp_path, arms, ResultLog.opened(path), "kernel_a", progress=told.append)
    assert told == ["bf16 64x16x32, 1 of 1"]
    assert [result.shape for result in results(log)] == [(8, 16, 32), (64, 16, 32)]
    assert path.read_bytes().startswith(whole)
    assert ResultLog.opened(path).lines == log.lines
    assert len(log.sessions) == 2


def put(lines: list[str], number: int, **members: Any) -> bytes:
    document = json.loads(lines[number]) | members
    return "\n".join([*lines[:number], json.dumps(document), *lines[number + 1 :], ""]).encode()


def test_a_record_that_was_tampered_with_is_refused_with_its_line(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, ResultLog.opened(path), "kernel_a")
    lines = path.read_text().splitlines()
    for content, line, field in (
        (b"{}\n", 1, None),
        (b"[\n", 1, None),
        ("\n".join([*lines[1:], ""]).encode(), 1, None),
        (put(lines, 0, schema=1), 1, "schema"),
        (put(lines, 1, shape=[1, 2]), 2, "shape.2"),
        (put(lines, 2, host="x"), 3, "host"),
        (put(lines, 2, kernels=[{}]), 3, "kernels.0.kernel"),
    ):
        path.write_bytes(content)
        with pytest.raises(GemmgenError) as caught:
            ResultLog.opened(path)
        found = caught.value.diagnostics[0]
        assert (found.path, found.code) == (path.as_posix(), "bad-record")
        assert (found.line, found.field) == (line, field)
    assert refusal(lambda: ResultLog.opened(tmp_path)).code == "bad-record"
    missing = ResultLog(tmp_path / "missing" / "r.jsonl")
    assert refusal(lambda: missing.write(refused((1, 1, 1), "cannot"))).code == "cannot-write"


def refused(shape: Shape, why: Any) -> Refused:
    return Refused("refused", shape, CONTEST, "kernel_a", why, "m")


# --- figures


def test_groups_are_by_m() -> None:
    pairs = {1: "1-16", 16: "1-16", 17: "17-32", 64: "33-64", 65: "65-128", 2048: "1025-2048", 2049: "2049-"}
    assert {m: group_of(m) for m in pairs} == pairs
    assert GROUPS[-3:] == ("2049-", "split K", "all")


def hand_made(arms: Arms, tmp_path: Path) -> ResultLog:
    """Ratios 2, 0.5, 0.5, 1 of one kernel, 0.8 of the other, at M of 1, 16, 16 and 4096; K is split twice."""
    log = run(tmp_path, arms, ResultLog(), "kernel_a", "kernel_b")
    first = results(log)[0]
    session = log.sessions[0]
    a, b = first.kernels
    base = first.baseline

    def result(shape: Shape, seconds: float, *names: str) -> Result:
        timed = replace(a, seconds=(seconds,) * 3)
        playoff = replace(first.playoff, seconds=timed.seconds) if first.playoff else None
        return replace(first, shape=shape, kernels=(timed, b), playoff=playoff, baseline_kernels=names)

    assert base.seconds == pytest.approx((20e-6,) * 3)
    lines: list[Line] = [
        session,
        result((1, 8, 8), 10e-6, "nvjet_splitK_TNT"),
        result((16, 8, 8), 40e-6, "nvjet_TNT", "splitKreduce_kernel"),
        result((16, 8, 16), 40e-6, "nvjet_TNT"),
        result((4096, 8, 8), 20e-6),
    ]
    return ResultLog(None, lines)


def test_figures_are_those_computed_by_hand(tmp_path: Path, arms: Arms) -> None:
    figures = grouped(points_of(hand_made(arms, tmp_path)), CONTEST)
    assert list(figures) == [BEST, "kernel_a", "kernel_b"]
    best = figures[BEST]
    assert list(best) == ["1-16", "2049-", "split K", "all"]
    assert best["1-16"].count == 3
    assert best["1-16"].geomean == pytest.approx((2 * 0.5 * 0.5) ** (1 / 3))
    assert (best["1-16"].minimum, best["1-16"].worst) == (pytest.approx(0.5), (16, 8, 8))
    assert best["1-16"].share == pytest.approx(1 / 3)
    assert best["split K"] == RatioFigures(2, best["split K"].geomean, 0.5, (16, 8, 8), 0.5)
    assert best["split K"].geomean == pytest.approx(1.0)
    assert best["all"].geomean == pytest.approx(math.sqrt(math.sqrt(0.5)))
    assert best["all"].share == 0.5  # 2 and 1 of four
    assert figures["kernel_b"]["all"].geomean == pytest.approx(0.8)
    assert figures["kernel_b"]["all"].share == 0


def test_figures_are_told_as_tables_and_as_json(tmp_path: Path, arms: Arms) -> None:
    log = hand_made(arms, tmp_path)
    shown = text_of(log)
    assert re.search(r"1-16 +3 +0\.794 +0\.500 +16x8x8 +33%", shown)
    assert re.search(r"split K +2 +1\.000 +0\.500 +16x8x8 +50%", shown)
    assert re.search(r"kernel_a +4 +4 +0\.794 +1\.000 +1\.000 +0\.841 +0\.500 +50%", shown)
    assert re.search(r"kernel_b +4 +0 +0\.800 +0\.800 +0\.800 +0\.800 +0\.800 +0%", shown)
    assert re.search(
        r"16x8x8 +0\.500 \[0\.500, 0\.500\] +40\.0 +20\.0 +kernel_a +TNT, splitKreduce_kernel", shown
    )
    report: Any = json.loads(json.dumps(report_of(log)))
    (contest,) = report["contests"]
    assert (contest["contest"], contest["description"]) == (asdict(BF16), "bf16")
    assert contest["groups"]["best"]["split K"] == {
        "count": 2,
        "geomean": pytest.approx(1.0),
        "minimum": pytest.approx(0.5),
        "worst": [16, 8, 8],
        "share": 0.5,
    }
    assert contest["shapes"][0]["kernel"] == "kernel_a"
    assert contest["shapes"][0]["baseline_kernels"] == ["nvjet_splitK_TNT"]
    assert report["errors"] == []


def test_the_names_of_cublas_kernels_are_shortened() -> None:
    assert (
        short_name("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT")
        == "sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
    )
    reduction = (
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, (cublasLt::x)2>(cublasSplitKParams<float>)"
    )
    assert short_name(reduction) == "splitKreduce_kernel"
    assert short_name("triton_tem_fused_mm_0") == "triton_tem_fused_mm_0"


def text_of(log: ResultLog) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        for table in suite_tables(log):
            console.print(table)
    return captured.get()


def test_faster_than_the_datasheet_is_an_error(tmp_path: Path, arms: Arms) -> None:
    log = hand_made(arms, tmp_path)
    result = results(log)[0]
    # 2 * 4096**3 operations at 989.4 TFLOP/s take 138.9 us; the kernel claims 10 us, and the baseline 20.
    log.lines.append(replace(result, shape=(4096, 4096, 4096)))
    ours, theirs = errors_of(log)[:2]
    assert "13.89" in ours
    assert "6.95" in theirs


# --- pictures


def pictured(tmp_path: Path, arms: Arms) -> ResultLog:
    """Two contests; of one three shapes of an M, one of them far off, and one that splits K."""
    log = hand_made(arms, tmp_path)
    session = log.sessions[0]
    other = replace(session.contests[0], contest=E4M3, description="e4m3")
    results_ = results(log)
    more = [replace(results_[0], shape=(16, 8, 24)), replace(results_[1], contest=E4M3)]
    timed = replace(more[0].kernels[0], seconds=(100e-6,) * 3)
    assert more[0].playoff is not None
    far = replace(more[0].playoff, seconds=(100e-6,) * 3)
    more[0] = replace(more[0], kernels=(timed,), playoff=far)
    contests = (*session.contests, other)
    return ResultLog(None, [replace(session, contests=contests), *log.lines[1:], *more])


def texts_of(path: Path) -> list[str]:
    return [" ".join(text.split()) for text in re.findall(r"<text [^>]*>([^<]*)</text>", path.read_text())]


def test_ratios_are_drawn_over_m_in_a_panel_for_each_contest(tmp_path: Path, arms: Arms) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "ratio.svg"
    ratio_picture(pictured(tmp_path, arms), path)
    texts = texts_of(path)
    # 2, 0.5, 0.5, 1 and 0.2: the fifth root of 0.1.
    for name, *figures in (("bf16", "0.631", "40%", "5"), ("e4m3", "0.500", "0%", "1")):
        (title,) = [text for text in texts if text.startswith(f"{name}: ")]
        assert {*figures} <= {*re.split("[ ,]+", title)}
    assert {"0.20", "16", "4096"} <= {*texts}  # the first is the arrow's
    assert {text for text in texts if re.fullmatch(r"[012]\.\d+", text)} >= {"0.5", "0.9", "1.25"}
    assert "4" not in texts  # nothing flattens the axis
    assert_follows_a_dark_scheme(path)


def test_rates_are_drawn_under_the_ceilings(tmp_path: Path, arms: Arms) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "roofline.svg"
    log = pictured(tmp_path, arms)
    roofline_picture(log, path)
    texts = texts_of(path)
    assert any(re.fullmatch("bf16: 5 .+", text) for text in texts)
    contest = log.sessions[0].contests[0]
    for ceilings in filter(None, (contest.peak, contest.measured)):
        assert ceilings.source in " ".join(texts)
    assert_follows_a_dark_scheme(path)


def assert_follows_a_dark_scheme(path: Path) -> None:
    picture = path.read_text()
    assert "@media (prefers-color-scheme: dark)" in picture
    drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})(?![0-9a-f ]*!)", picture))
    assert drawn - set(IN_THE_DARK.values()) <= set(IN_THE_DARK)


@pytest.mark.parametrize("draw", [ratio_picture, roofline_picture])
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_has_the_same_bytes_each_time(
    tmp_path: Path, arms: Arms, draw: Callable[[ResultLog, Path], None], suffix: str
) -> None:
    pytest.importorskip("matplotlib")
    log = pictured(tmp_path, arms)
    paths = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
    for path in paths:
        draw(log, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    for of, path in ((log, tmp_path / "x.jpg"), (ResultLog(None, log.lines[:1]), paths[0])):
        with pytest.raises(GemmgenError, match=r"error\[bad-plot\]"):
            draw(of, path)


def test_the_axis_of_ratios_ends_at_ticks() -> None:
    assert ratio_limits([1.0]) == (0.8, 1.25)
    assert ratio_limits([0.75, 1.3]) == (0.7, 1.5)
    assert ratio_limits([0.1, 4.0]) == (0.5, 2.0)


# --- what the pages quote


def test_a_page_quotes_the_record_of_a_suite(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    for line in hand_made(arms, tmp_path).lines:
        ResultLog(path).write(line)
    block = f"a\n<!-- suite: {path} -->\nold\n<!-- end -->\nb\n"
    page = refreshed(block)
    assert page == (
        f"a\n<!-- suite: {path} -->\n"
        "On Fake H200 with torch 0, Triton 0:\n\n"
        "bf16: the best of 2 kernels, over an invented baseline:\n\n"
        "| M | shapes | geomean | minimum | at | share >= 1 |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| 1-16 | 3 | 0.794 | 0.500 | 16x8x8 | 33% |\n"
        "| 2049- | 1 | 1.000 | 1.000 | 4096x8x8 | 100% |\n"
        "| split K | 2 | 1.000 | 0.500 | 16x8x8 | 50% |\n"
        "| all | 4 | 0.841 | 0.500 | 16x8x8 | 50% |\n"
        "<!-- end -->\nb\n"
    )
    assert refreshed(page) == page


def test_every_committed_record_of_a_suite_is_quoted_and_can_be_drawn(tmp_path: Path) -> None:
    page = (STUDIES / "suites.md").read_text()
    ratio, roofline = tmp_path / "ratio.svg", tmp_path / "roofline.svg"
    for record in suite_records():
        assert f"<!-- suite: {record.relative_to(ROOT).as_posix()} -->" in page
        log = ResultLog.opened(record)
        assert errors_of(log) == []
        ratio_picture(log, ratio)
        roofline_picture(log, roofline)
        for contest, facts in log.contests.items():
            best = RatioFigures.of(p for p in points_of(log) if p.contest == contest and p.kernel == BEST)
            assert best
            name = facts.description
            assert any(f"{name}: geometric mean {best.geomean:.3f}" in text for text in texts_of(ratio))
            assert f"{name}: {best.count} shapes" in texts_of(roofline)


def test_lines_of_other_generators_in_a_record_of_an_earlier_version_are_left_out(tmp_path: Path) -> None:
    """The committed record of few rows has 15 of them, which ``--peers`` wrote."""
    text = (SUITE.parent / "h200_few_rows.jsonl").read_text()
    assert text.count('{"line": "peer"') == 15
    path = tmp_path / "record.jsonl"
    path.write_text("".join(line for line in text.splitlines(keepends=True) if '"line": "peer"' not in line))
    assert ResultLog.opened(SUITE.parent / "h200_few_rows.jsonl").lines == ResultLog.opened(path).lines


# --- the file of a suite


def test_the_committed_suite_has_the_shapes_that_its_families_say() -> None:
    suite = load_suite(SUITE)
    every = range(1, 1 << 31)
    # 17 layers by 12 M are 204; with 5 of split K, 7 squares, 5 + 3 of long and short K and 5 ragged ones
    # 229; of the layers 8192x8192x8192, 4096x4096x4096 and 4096x24576x1536 are among them already.
    assert len(suite.shapes("bf16", every)) == 229 - 3
    assert suite.shapes("bf16", every)[8192, 8192, 8192] == ("llama3_70b", "squares")
    # 4 + 4 + 5 layers by 12 and 7 squares, of which two are layers.
    assert len(suite.shapes("e4m3", every)) == 13 * 12 + 7 - 2
    assert len(suite.shapes("bf16", range(1, 65))) == 17 * 5 + 2
    assert suite.shapes("fp16", every) == {}


X = "title: t\nfamilies: {x: {dtypes: [bf16], shapes: [[1, 2, 3]]}}"
"""A suite that nothing is wrong with."""


@pytest.mark.parametrize(
    ("text", "code", "field", "place"),
    [
        (None, "file-missing", None, (None, None)),
        ("", "file-empty", None, (None, None)),
        ("# a\n", "file-empty", None, (None, None)),
        (X.replace("t\n", "&x t\n"), "yaml-feature", None, (1, 8)),
        (X.replace("title: t\n", ""), "missing-field", None, (1, 1)),
        ("title: t\nfamilies: {}", "wrong-length", "families", (2, 11)),
        (X.replace("t\n", "5\n"), "wrong-type", "title", (1, 8)),
        (f"{X}\nsources: x", "unknown-key", None, (3, 1)),
        (X.replace("shapes", "shape"), "unknown-key", "families.x", (2, 32)),
        (X.replace("bf16", "bf17"), "not-a-choice", "families.x.dtypes.0", (2, 25)),
        (X.replace(", 3]", "]"), "wrong-length", "families.x.shapes.0", (2, 41)),
        (
            X.replace("shapes: [[1, 2, 3]]", "m: [1], nk: [[1, 0]]"),
            *("out-of-range", "families.x.nk.0.1", (2, 49)),
        ),
        (X.replace("shapes: [[1, 2, 3]]", "nk: [[1, 2]]"), "missing-field", "families.x.nk", (2, 32)),
        (X.replace("dtypes: [bf16], ", ""), "missing-field", "families.x", (2, 12)),
        (X.replace(", shapes: [[1, 2, 3]]", ""), "missing-field", "families.x", (2, 12)),
        ("title: t\nfamilies: {x: 3}", "wrong-type", "families.x", (2, 15)),
        (X.replace("3]", "true]"), "wrong-type", "families.x.shapes.0.2", (2, 48)),
    ],
)
def test_a_broken_suite_is_explained_at_its_line(
    tmp_path: Path,
    text: str | None,
    code: str,
    field: str | None,
    place: tuple[int | None, int | None],
) -> None:
    path = tmp_path / "suite.yaml"
    if text is not None:
        path.write_text(text)
    found = refusal(lambda: load_suite(path))
    assert (found.path, found.code, found.field) == (path.as_posix(), code, field)
    assert (found.line, found.column) == place


def test_all_that_is_wrong_with_a_suite_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text("title: 5\nfamilies:\n  x: {nk: [[1, 2, 3], [0, 4]], foo: 1}\n")
    with pytest.raises(GemmgenError) as caught:
        load_suite(path)
    assert [(found.code, found.line) for found in caught.value.diagnostics] == [
        ("wrong-type", 1),
        ("missing-field", 3),
        ("missing-field", 3),
        ("wrong-length", 3),
        ("out-of-range", 3),
        ("unknown-key", 3),
    ]


# --- the command


def test_the_command_times_specs_tells_figures_and_draws_pictures(
    tmp_path: Path, arms: Arms, gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    specs = specs_in(tmp_path, "kernel_a", "kernel_b")
    suite = Path(suite_in(tmp_path).path)
    calls: list[tuple[range, int | None]] = []

    def timed(
        paths: Sequence[Path],
        suite: Suite,
        log: ResultLog,
        selection: SuiteSelection,
        *,
        progress: Progress,
    ) -> None:
        calls.append((selection.extents, selection.candidates))
        assert list(paths) == specs
        assert selection.chosen is None
        progress("timing")
        run(tmp_path, arms, log, "kernel_a", "kernel_b", extents=selection.extents)

    monkeypatch.setattr("gemmgen.bench.time_suite", timed)
    out = tmp_path / "new" / "out"
    code, shown, told = gemmgen_("bench", *specs, "--suite", suite, "--m", "1-64", "--out", out)
    assert (code, told) == (0, "")
    assert calls == [(range(1, 65), None)]
    gemmgen_("bench", *specs, "--suite", suite, "--candidates")
    gemmgen_("bench", *specs, "--candidates", 3, "--suite", suite)
    assert [asked for _, asked in calls] == [None, 10, 3]
    assert "an invented baseline" in shown
    assert sorted(path.name for path in out.iterdir()) == ["ratio.svg", "record.jsonl", "roofline.svg"]
    code, again, told = gemmgen_("bench", out / "record.jsonl")
    assert (code, again, told) == (0, shown, "")
    code, report, _ = gemmgen_("bench", out / "record.jsonl", "--json")
    told = json.loads(json.dumps(report_of(ResultLog.opened(out / "record.jsonl"))))
    assert json.loads(report) == {"diagnostics": [], "results": told}


def test_without_matplotlib_there_are_figures_and_a_warning(
    tmp_path: Path, arms: Arms, gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, ResultLog.opened(path), "kernel_a")
    ran = gemmgen_("bench", path, "--out", tmp_path)
    assert (ran.code, ran.codes) == (0, ["missing-package"])
    assert "an invented baseline" in ran.stdout


def test_a_record_with_errors_is_a_failure(tmp_path: Path, arms: Arms, gemmgen_: Gemmgen) -> None:
    arms.spoil["kernel_b"] = lambda d: d.mul_(1.05)
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, ResultLog.opened(path), "kernel_a", "kernel_b")
    code, _, err = gemmgen_("bench", path)
    assert code == 1
    assert err.startswith("bf16 8x16x32: kernel_b ")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["s.yaml", "--m", "1-64"], "--m"),
        (["s.yaml", "--candidates"], "--candidates"),
        (["s.yaml", "--suite", "x.yaml", "--shapes", "1x8x8"], "--shapes"),
        (["r.jsonl", "--plot", "x.svg"], "--plot"),
        (["r.jsonl", "q.jsonl"], "RECORD…"),
        (["s.yaml", "--suite", str(SUITE), "--m", "0-64"], "--m"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    gemmgen_: Gemmgen, arguments: list[str], option: str
) -> None:
    code, _, err = gemmgen_("bench", *arguments)
    assert code == 2
    assert f" {option}: " in err


@pytest.mark.parametrize(
    ("text", "low", "high"), [("1-64", 1, 64), ("16", 16, 16), ("4096-", 4096, 1 << 31), ("", 1, 1 << 31)]
)
def test_a_range_of_m_is_one_number_or_two(text: str, low: int, high: int) -> None:
    assert range_of(text) == range(low, high + 1)


# --- on a GPU


@pytest.mark.gpu
def test_a_suite_can_be_timed(tmp_path: Path) -> None:
    """In a process of its own, for the kernels are compiled in forked ones before the GPU is used."""
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    suite = "title: t\ndtypes: [bf16]\nfamilies: {x: {m: [8, 256], nk: [[4096, 4096]]}}\n"
    (tmp_path / "suite.yaml").write_text(suite)
    specs = [ROOT / "specs" / f"{name}.yaml" for name in ("h100_bf16", "h100_bf16_128x128")]
    command = [sys.executable, "-m", "gemmgen", "bench", *map(str, specs)]
    command += ["--suite", str(tmp_path / "suite.yaml"), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    log = ResultLog.opened(tmp_path / "record.jsonl")
    first, second = results(log)
    assert [arm.kernel for arm in first.kernels] == ["h100_bf16", "h100_bf16_128x128"]
    for result in (first, second):
        assert any("nvjet" in name for name in result.baseline_kernels)
        assert result.state is not None
        # The samples last about 2 ms, and those of an arm are within a fifth of each other.
        for arm in (result.baseline, *result.kernels):
            assert 1e-3 < arm.seconds[0] * arm.calls < 10e-3
            assert max(arm.seconds) < 1.2 * min(arm.seconds)
