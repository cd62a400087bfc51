"""bench --suite: the file of a suite, rounds on a machine with clocks of its own, the record, its figures."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_gpu import FakeMachine
from modules import ROOT
from rich.console import Console
from torch import Tensor

from gemmgen.bench import Book, errors_of, load_suite, report_of, suite_tables, time_suite
from gemmgen.bench.baseline import Baseline
from gemmgen.bench.contest import Prepared, Progress, Task, contest_of
from gemmgen.bench.machine import UnfinishedError
from gemmgen.bench.suite import (
    BASELINE,
    BEST,
    GROUPS,
    Figures,
    Line,
    Refused,
    Result,
    Rounds,
    Suite,
    group_of,
    grouped,
    points_of,
)
from gemmgen.errors import GemmgenError
from gemmgen.numerics.inputs import Inputs
from gemmgen.problem import Shape
from gemmgen.product import make
from gemmgen.spec import Spec

SUITE = ROOT / "benchmarks" / "suites" / "h200.yaml"
SPEC = (ROOT / "specs" / "h100_bf16.yaml").read_text()
PROTOCOL = Rounds(rounds=3, warm_up_seconds=0.01, settle_seconds=0.005)
TWO_SHAPES = "title: t\ndtypes: [bf16]\nfamilies: {x: {shapes: [[8, 16, 32], [64, 16, 32]]}}\n"
CONTEST = "bf16"


class Arms:
    """Kernels by the names of their specs: how long each takes, and what it does besides."""

    def __init__(self, machine: FakeMachine, seconds: dict[str, float]) -> None:
        self.machine, self.seconds = machine, seconds
        self.spoil: dict[str, Callable[[Tensor], object]] = {}
        self.names: dict[str, str] = {}

    def imported(self, path: Path) -> ModuleType:
        module = ModuleType(path.stem)

        def matmul(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
            self.machine.spend(path.stem[-1], self.seconds[path.stem], 3e-6)
            out.copy_(a.double() @ b.double())
            self.spoil.get(path.stem, lambda _: None)(out)
            return out

        module.__dict__["matmul"] = matmul
        return module

    def baseline(self, spec: Spec) -> Baseline:
        def bind(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
            def call() -> Tensor:
                self.machine.spend("x", self.seconds[BASELINE], 7e-6)
                return d.copy_(inputs.a.double() @ inputs.b.double())

            return call

        return Baseline("an invented baseline", bind)


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> Arms:
    made = Arms(FakeMachine(), {BASELINE: 20e-6, "kernel_a": 10e-6, "kernel_b": 25e-6})
    monkeypatch.setattr("gemmgen.bench.contest.import_generated", made.imported)
    monkeypatch.setattr("gemmgen.bench.contest.cublas", made.baseline)
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
    book: Book,
    *names: str,
    suite: str = TWO_SHAPES,
    protocol: Rounds = PROTOCOL,
    progress: Progress = lambda _: None,
    **more: Any,
) -> Book:
    time_suite(
        specs_in(directory, *names),
        suite_in(directory, suite),
        book,
        protocol=protocol,
        machine=arms.machine,
        prepare=more.pop("prepare", prepared),
        progress=progress,
        **more,
    )
    return book


def results(book: Book) -> list[Result]:
    return [line for line in book.lines if isinstance(line, Result)]


def refusals(book: Book) -> list[Refused]:
    return [line for line in book.lines if isinstance(line, Refused)]


# --- the rounds


def test_kernels_take_turns_with_the_baseline(tmp_path: Path, arms: Arms) -> None:
    book = run(tmp_path, arms, Book(), "kernel_a", "kernel_b")
    first, second = results(book)
    assert (first.shape, second.shape) == ((8, 16, 32), (64, 16, 32))
    # 8 * 32 + 16 * 32 operand and 8 * 16 result elements of 2 bytes are 1792 bytes: 2.5 * 4096 of L2 take 6.
    assert first.input_sets == 6
    # A pass of the baseline over 6 sets takes 120 us: 17 passes make 2 ms.
    assert [arm.calls for arm in (first.baseline, *first.kernels)] == [102, 102, 102]
    assert [arm.kernel for arm in first.kernels] == ["kernel_a", "kernel_b"]
    assert first.baseline.seconds == pytest.approx((20e-6,) * 3)
    assert first.kernels[1].seconds == pytest.approx((25e-6,) * 3)
    assert first.ratio(first.kernels[0]).median == pytest.approx(2.0)
    assert first.baseline_kernels == ("nvjet_8",)
    assert first.kernels[0].host_seconds == pytest.approx(3e-6)
    assert first.state is not None
    assert first.families == ("x",)


def test_who_comes_after_the_baseline_changes_and_the_best_is_timed_once_more(
    tmp_path: Path, arms: Arms
) -> None:
    book = run(tmp_path, arms, Book(), "kernel_a", "kernel_b", suite=TWO_SHAPES.replace(", [64, 16, 32]", ""))
    # A sample is one replay of 102 calls; the last ones are 3 rounds of three, and 3 pairs with the best.
    samples = [calls[0] for _, calls in arms.machine.timed if set(calls) <= set("XAB")]
    assert "".join(samples[-15:]) == "XAB" + "XBA" + "XAB" + "XA" * 3
    (result,) = results(book)
    assert result.playoff is not None
    assert result.playoff.kernel == "kernel_a"
    assert result.playoff.seconds == pytest.approx((10e-6,) * 3)
    assert result.playoff.baseline_seconds == pytest.approx((20e-6,) * 3)


def test_a_kernel_that_is_much_slower_gets_shorter_samples(tmp_path: Path, arms: Arms) -> None:
    arms.seconds["kernel_b"] = 400e-6
    book = run(tmp_path, arms, Book(), "kernel_a", "kernel_b")
    # 102 calls of 400 us are 40.8 ms, 17 passes * 2 / 40.8 is one pass.
    assert [arm.calls for arm in results(book)[0].kernels] == [102, 6]
    assert results(book)[0].kernels[1].seconds == pytest.approx((400e-6,) * 3)


def test_the_gpu_settles_before_each_shape_and_longer_before_the_first(tmp_path: Path, arms: Arms) -> None:
    protocol = Rounds(rounds=1, warm_up_seconds=1.0, settle_seconds=0.25)
    begins: list[float] = []
    run(
        tmp_path,
        arms,
        Book(),
        "kernel_a",
        protocol=protocol,
        progress=lambda _: begins.append(arms.machine.now()),
    )
    assert 1.0 < begins[1] - begins[0] < 1.1
    assert 0.25 < arms.machine.now() - begins[1] < 0.35


def test_only_shapes_of_the_range_are_timed(tmp_path: Path, arms: Arms) -> None:
    book = run(tmp_path, arms, Book(), "kernel_a", extents=range(9, 65))
    assert [result.shape for result in results(book)] == [(64, 16, 32)]


# --- what is not timed


def test_a_kernel_that_is_wrong_is_not_timed_and_the_others_are(tmp_path: Path, arms: Arms) -> None:
    arms.spoil["kernel_b"] = lambda d: d.mul_(1.05)
    book = run(tmp_path, arms, Book(), "kernel_a", "kernel_b")
    assert [[arm.kernel for arm in result.kernels] for result in results(book)] == [["kernel_a"]] * 2
    assert [(line.kernel, line.why) for line in refusals(book)] == [("kernel_b", "wrong")] * 2
    assert re.match(r"relative error 0\.0\d+, the limit is 0\.004; a wrong kernel", refusals(book)[0].message)
    assert errors_of(book)[0].startswith("bf16 8x16x32: kernel_b is wrong: relative error 0.0")


def test_a_kernel_that_does_not_take_a_shape_is_no_error(tmp_path: Path, arms: Arms) -> None:
    def refuse(d: Tensor) -> None:
        if d.shape[0] == 8:
            raise ValueError("m must be 64\nor more")

    arms.spoil["kernel_b"] = refuse
    book = run(tmp_path, arms, Book(), "kernel_a", "kernel_b")
    assert refusals(book) == [
        Refused("refused", (8, 16, 32), CONTEST, "kernel_b", "cannot", "ValueError: m must be 64")
    ]
    assert [len(result.kernels) for result in results(book)] == [1, 2]
    assert errors_of(book) == []


def test_a_shape_that_the_baseline_cannot_compute_is_left_out(
    tmp_path: Path, arms: Arms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cublas(spec: Spec) -> Baseline:
        def bind(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
            if d.shape[0] == 8:
                raise RuntimeError("M must be divisible by 16")
            return arms.baseline(spec).bind(inputs, d)

        return Baseline("b", bind)

    monkeypatch.setattr("gemmgen.bench.contest.cublas", cublas)
    book = run(tmp_path, arms, Book(), "kernel_a")
    assert [line.kernel for line in refusals(book)] == [BASELINE]
    assert [result.shape for result in results(book)] == [(64, 16, 32)]
    lines = len(book.lines)
    run(tmp_path, arms, book, "kernel_a")
    assert len(book.lines) == lines  # nor is it tried again


def test_a_kernel_that_cannot_be_compiled_is_an_error_on_each_shape(tmp_path: Path, arms: Arms) -> None:
    def failing(tasks: Sequence[Task], progress: Progress) -> Prepared:
        return Prepared({}, {"kernel_b": "compiling and running it ended its process: signal 6"})

    book = run(tmp_path, arms, Book(), "kernel_a", "kernel_b", prepare=failing)
    assert len(errors_of(book)) == 2
    assert errors_of(book)[0] == (
        "bf16 8x16x32: kernel_b failed: compiling and running it ended its process: signal 6"
    )
    assert [len(result.kernels) for result in results(book)] == [1, 1]


def test_after_a_kernel_that_hangs_the_next_run_goes_on_behind_it(tmp_path: Path, arms: Arms) -> None:
    def hang(d: Tensor) -> None:
        raise UnfinishedError("did not end within 30 seconds")

    arms.spoil["kernel_a"] = hang
    path = tmp_path / "record.jsonl"
    with pytest.raises(
        GemmgenError, match=r"^kernel_a: error\[device-lost\] bf16 8x16x32: UnfinishedError: did"
    ):
        run(tmp_path, arms, Book.opened(path), "kernel_a", "kernel_b")
    with pytest.raises(GemmgenError, match=r"error\[device-lost\] bf16 64x16x32"):
        run(tmp_path, arms, Book.opened(path), "kernel_a", "kernel_b")
    book = run(tmp_path, arms, Book.opened(path), "kernel_a", "kernel_b")
    assert [(result.shape, result.kernels[0].kernel) for result in results(book)] == [
        ((8, 16, 32), "kernel_b"),
        ((64, 16, 32), "kernel_b"),
    ]
    assert [(line.kernel, line.why) for line in refusals(book)] == [("kernel_a", "failed")] * 2


def test_rounds_that_never_end_are_not_begun_again(
    tmp_path: Path, arms: Arms, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = arms.machine.times

    def hang(works: Sequence[Callable[[], None]]) -> list[float]:
        if len(works) > 3:
            raise UnfinishedError("did not end within 30 seconds")
        return times(works)

    monkeypatch.setattr(arms.machine, "times", hang)
    book = Book()
    for _ in range(2):
        with pytest.raises(GemmgenError, match=r"error\[device-lost\]"):
            run(tmp_path, arms, book, "kernel_a", "kernel_b")
    run(tmp_path, arms, book, "kernel_a", "kernel_b")
    assert [line.kernel for line in refusals(book)] == ["kernel_a", "kernel_b"] * 2
    assert results(book) == []


def test_a_spec_that_is_rejected_stops_all_before_the_gpu_is_used(tmp_path: Path, arms: Arms) -> None:
    good, bad = specs_in(tmp_path, "kernel_a", "bad")
    bad.write_text("title: 5\n")
    with pytest.raises(GemmgenError, match=r"bad\.yaml:1:8: error\[wrong-type\] title"):
        time_suite([good, bad], suite_in(tmp_path), Book(), machine=arms.machine, prepare=prepared)
    with pytest.raises(GemmgenError, match=r"error\[module-name\]: another spec of this name takes part"):
        time_suite([good, good], suite_in(tmp_path), Book(), machine=arms.machine, prepare=prepared)
    fp16 = suite_in(tmp_path, TWO_SHAPES.replace("bf16", "fp16"))
    with pytest.raises(GemmgenError, match=r"error\[no-shapes\]: has no shapes for the types of these specs"):
        time_suite([good], fp16, Book(), machine=arms.machine, prepare=prepared)
    assert arms.machine.timed == []


# --- going on


def test_what_is_in_the_record_is_not_timed_again_and_another_kernel_is(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, Book.opened(path), "kernel_a")
    before = path.read_text()
    run(tmp_path, arms, Book.opened(path), "kernel_a")
    assert path.read_text() == before
    book = run(tmp_path, arms, Book.opened(path), "kernel_a", "kernel_b")
    assert [[arm.kernel for arm in result.kernels] for result in results(book)] == [
        ["kernel_a"],
        ["kernel_a"],
        ["kernel_b"],
        ["kernel_b"],
    ]
    best = [point for point in points_of(book) if point.kernel == BEST]
    assert [point.ratio.median for point in best] == pytest.approx([2.0, 2.0])


def test_a_kernel_whose_module_has_changed_is_timed_anew(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, Book.opened(path), "kernel_a", "kernel_b")
    changed = SPEC.replace("stages: 4", "stages: 3")
    specs = [*specs_in(tmp_path, "kernel_a", text=changed), *specs_in(tmp_path, "kernel_b")]
    arms.seconds["kernel_a"] = 40e-6
    book = Book.opened(path)
    time_suite(
        specs,
        suite_in(tmp_path),
        book,
        protocol=PROTOCOL,
        machine=arms.machine,
        prepare=prepared,
    )
    points = {(point.kernel, point.shape): point.ratio.median for point in points_of(book)}
    assert points["kernel_a", (8, 16, 32)] == pytest.approx(0.5)
    assert points["kernel_b", (8, 16, 32)] == pytest.approx(0.8)
    assert points[BEST, (8, 16, 32)] == pytest.approx(0.5)  # what kernel_a won before is no longer true
    assert len(results(book)) == 4


def test_a_record_is_of_one_machine(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, Book.opened(path), "kernel_a")
    path.write_text(path.read_text().replace("Fake H200", "Fake H100"))
    message = "was measured with another gpu, Fake H100, here it is Fake H200: record into another file"
    with pytest.raises(GemmgenError, match=rf"error\[other-machine\]: {message}"):
        run(tmp_path, arms, Book.opened(path), "kernel_b")
    path.write_text(path.read_text().replace("Fake H100", "Fake H200"))
    with pytest.raises(GemmgenError, match="another protocol"):
        run(tmp_path, arms, Book.opened(path), "kernel_b", protocol=Rounds())


KILLED = """
import os, signal, sys
from pathlib import Path
from pytest import MonkeyPatch
from test_bench_suite import *
directory = Path(sys.argv[1])
with MonkeyPatch.context() as patch:
    arms = Arms(FakeMachine(), {BASELINE: 20e-6, "kernel_a": 10e-6, "kernel_b": 25e-6})
    patch.setattr("gemmgen.bench.contest.import_generated", arms.imported)
    patch.setattr("gemmgen.bench.contest.cublas", arms.baseline)
    def progress(step):
        if "64x16x32" in step:
            os.kill(os.getpid(), signal.SIGKILL)
    run(directory, arms, Book.opened(directory / "record.jsonl"), "kernel_a", progress=progress)
"""


def test_a_run_that_was_killed_goes_on_where_it_stopped(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    whole = path.read_bytes()
    assert [result.shape for result in results(Book.opened(path))] == [(8, 16, 32)]
    path.write_bytes(whole + whole.splitlines()[1][:100])  # killed while it wrote
    told: list[str] = []
    book = run(tmp_path, arms, Book.opened(path), "kernel_a", progress=told.append)
    assert told == ["bf16 64x16x32, 1 of 1"]
    assert [result.shape for result in results(book)] == [(8, 16, 32), (64, 16, 32)]
    assert path.read_bytes().startswith(whole)
    assert Book.opened(path).lines == book.lines
    assert len(book.sessions) == 2


def put(lines: list[str], number: int, **members: Any) -> bytes:
    document = json.loads(lines[number]) | members
    return "\n".join([*lines[:number], json.dumps(document), *lines[number + 1 :], ""]).encode()


def test_a_record_that_was_tampered_with_is_refused_with_its_line(tmp_path: Path, arms: Arms) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, arms, Book.opened(path), "kernel_a")
    lines = path.read_text().splitlines()
    for content, message in (
        (b"{}\n", ":1: error[bad-record]: no line of a suite's record"),
        (b"[\n", ":1: error[bad-record]: no line of a suite's record"),
        ("\n".join([*lines[1:], ""]).encode(), ":1: error[bad-record]: a record begins with its session"),
        (put(lines, 0, schema=2), ":1: error[bad-record]: schema is 2; this gemmgen reads version 1"),
        (put(lines, 1, shape=[1, 2]), ":2: error[bad-record] shape: must have 3 elements, not 2"),
        (put(lines, 2, host="x"), ":3: error[bad-record] host: is not known"),
        (put(lines, 2, kernels=[{}]), ":3: error[bad-record] kernels.0.kernel: is missing"),
    ):
        path.write_bytes(content)
        with pytest.raises(GemmgenError, match=f"^{re.escape(path.as_posix() + message)}"):
            Book.opened(path)
    with pytest.raises(GemmgenError, match=r"error\[bad-record\]: cannot read the record: Is a directory"):
        Book.opened(tmp_path)
    with pytest.raises(GemmgenError, match=r"error\[cannot-write\]: cannot write the record: No such file"):
        Book(tmp_path / "missing" / "r.jsonl").write(refused((1, 1, 1), "cannot"))


def refused(shape: Shape, why: Any) -> Refused:
    return Refused("refused", shape, CONTEST, "kernel_a", why, "m")


# --- figures


def test_groups_are_by_m() -> None:
    pairs = {1: "1-16", 16: "1-16", 17: "17-32", 64: "33-64", 65: "65-128", 2048: "1025-2048", 2049: "2049-"}
    assert {m: group_of(m) for m in pairs} == pairs
    assert GROUPS[-3:] == ("2049-", "split K", "all")


def hand_made(arms: Arms, tmp_path: Path) -> Book:
    """Ratios 2, 0.5, 0.5, 1 of one kernel, 0.8 of the other, at M of 1, 16, 16 and 4096; K is split twice."""
    book = run(tmp_path, arms, Book(), "kernel_a", "kernel_b")
    first = results(book)[0]
    session = book.sessions[0]
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
    return Book(None, lines)


def test_figures_are_those_computed_by_hand(tmp_path: Path, arms: Arms) -> None:
    figures = grouped(points_of(hand_made(arms, tmp_path)), CONTEST)
    assert list(figures) == [BEST, "kernel_a", "kernel_b"]
    best = figures[BEST]
    assert list(best) == ["1-16", "2049-", "split K", "all"]
    assert best["1-16"].count == 3
    assert best["1-16"].geomean == pytest.approx((2 * 0.5 * 0.5) ** (1 / 3))
    assert (best["1-16"].minimum, best["1-16"].worst) == (pytest.approx(0.5), (16, 8, 8))
    assert best["1-16"].share == pytest.approx(1 / 3)
    assert best["split K"] == Figures(2, best["split K"].geomean, 0.5, (16, 8, 8), 0.5)
    assert best["split K"].geomean == pytest.approx(1.0)
    assert best["all"].geomean == pytest.approx(math.sqrt(math.sqrt(0.5)))
    assert best["all"].share == 0.5  # 2 and 1 of four
    assert figures["kernel_b"]["all"].geomean == pytest.approx(0.8)
    assert figures["kernel_b"]["all"].share == 0


def test_figures_are_told_as_tables_and_as_json(tmp_path: Path, arms: Arms) -> None:
    book = hand_made(arms, tmp_path)
    shown = text_of(book)
    assert "bf16: the best of 2 kernels, over an invented baseline" in shown
    assert re.search(r"1-16 +3 +0\.794 +0\.500 +16x8x8 +33%", shown)
    assert re.search(r"split K +2 +1\.000 +0\.500 +16x8x8 +50%", shown)
    assert re.search(r"kernel_a +4 +4 +0\.794 +1\.000 +1\.000 +0\.841 +0\.500 +50%", shown)
    assert re.search(r"kernel_b +4 +0 +0\.800 +0\.800 +0\.800 +0\.800 +0\.800 +0%", shown)
    report: Any = json.loads(json.dumps(report_of(book)))
    contest = report["contests"]["bf16"]
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


def text_of(book: Book) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        for table in suite_tables(book):
            console.print(table)
    return captured.get()


def test_faster_than_the_datasheet_is_an_error(tmp_path: Path, arms: Arms) -> None:
    book = hand_made(arms, tmp_path)
    result = results(book)[0]
    # 2 * 4096**3 operations at 989.4 TFLOP/s take 138.9 us; the kernel claims 10 us, and the baseline 20.
    book.lines.append(replace(result, shape=(4096, 4096, 4096)))
    assert errors_of(book)[:2] == [
        "bf16 4096x4096x4096: best at 13.89 of the datasheet: do not believe it",
        "bf16 4096x4096x4096: the baseline at 6.95 of the datasheet: do not believe it",
    ]


# --- contests


def test_kernels_that_compute_the_same_meet_in_one_contest() -> None:
    names = {
        "h100_bf16": "bf16",
        "h100_bf16_128x128": "bf16",
        "h100_bf16_nn": "bf16 B mn-major",
        "h100_bf16_fp32out": "bf16 to fp32",
        "h100_e4m3": "e4m3",
        "h100_e4m3_promoted": "e4m3 promoted",
        "h100_e4m3_scaled": "e4m3 + row_scale + column_scale",
        "h100_e5m2_e4m3": "e5m2 x e4m3 to e4m3 + tensor_scale",
        "h100_bf16_bias_gelu": "bf16 + column_bias + gelu_tanh",
        "h100_fp16_axpby": "fp16 + -1 alpha + 0.5 c",
        "h100_int8": "int8",
    }
    found = {stem: contest_of(make(ROOT / "specs" / f"{stem}.yaml").source.spec) for stem in names}
    assert found == names


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
    peers = suite.peer_shapes("bf16", range(1, 65))
    assert peers[:3] == ((1, 4096, 4096), (16, 6144, 4096), (64, 4096, 14336))
    assert len(set(peers)) == 15
    assert set(peers) <= suite.shapes("bf16", range(1, 65)).keys()
    assert suite.peer_shapes("bf16", range(1, 65)) == peers
    assert suite.peer_shapes("fp16", every) == ()


X = "title: t\nfamilies: {x: {dtypes: [bf16], shapes: [[1, 2, 3]]}}"
"""A suite that nothing is wrong with."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, ": error[file-missing]: there is no such file"),
        ("", ": error[file-empty]: the file is empty; a suite has `families`"),
        ("# a\n", ": error[file-empty]: the file holds only comments; a suite has `families`"),
        (
            X.replace("t\n", "&x t\n"),
            ":1:8: error[yaml-feature]: an anchor is not part of a suite; remove it",
        ),
        (X.replace("title: t\n", ""), ":1:1: error[missing-field]: has no `title`"),
        ("title: t\nfamilies: {}", ":2:11: error[wrong-length] families: there is no family in it"),
        (
            X.replace("t\n", "5\n"),
            ":1:8: error[wrong-type] title: expected text, found the whole number 5",
        ),
        (
            f"{X}\npeer: {{}}",
            (
                ':3:1: error[unknown-key]: unknown key "peer", the keys here are title, source, dtypes, m,'
                " families and peers; did you mean peers?"
            ),
        ),
        (
            X.replace("shapes", "shape"),
            (
                ':2:32: error[unknown-key] families.x: unknown key "shape", the keys here are dtypes, m, nk'
                " and shapes; did you mean shapes?"
            ),
        ),
        (
            X.replace("bf16", "bf17"),
            (
                ":2:25: error[not-a-choice] families.x.dtypes.0: expected bf16, fp16, tf32, fp32, e4m3, e5m2,"
                ' int8, int32, e2m1 or ue8m0, found the text "bf17"'
            ),
        ),
        (
            X.replace(", 3]", "]"),
            ":2:41: error[wrong-length] families.x.shapes.0: expected [M, N, K], found a list of 2",
        ),
        (
            X.replace("shapes: [[1, 2, 3]]", "m: [1], nk: [[1, 0]]"),
            (
                ":2:49: error[out-of-range] families.x.nk.0.1: expected 1 to 2,147,483,647, found the whole"
                " number 0"
            ),
        ),
        (
            X.replace("shapes: [[1, 2, 3]]", "nk: [[1, 2]]"),
            (
                ":2:32: error[missing-field] families.x.nk: needs `m`, a list of M, here or at the top of the"
                " file"
            ),
        ),
        (
            X.replace("dtypes: [bf16], ", ""),
            (
                ":2:12: error[missing-field] families.x: needs `dtypes`, a list of types of A and B, here or"
                " at the top of the file"
            ),
        ),
        (
            X.replace(", shapes: [[1, 2, 3]]", ""),
            ":2:12: error[missing-field] families.x: has neither `shapes` nor `nk`",
        ),
        (
            "title: t\nfamilies: {x: 3}",
            (
                ":2:15: error[wrong-type] families.x: expected a mapping with the keys dtypes, m, nk and"
                " shapes, found the whole number 3"
            ),
        ),
        (
            f"{X}\npeers: {{draw: -1}}",
            ":3:15: error[out-of-range] peers.draw: expected at least 0, found the whole number -1",
        ),
        (
            X.replace("3]", "true]"),
            ":2:48: error[wrong-type] families.x.shapes.0.2: expected a whole number, found the boolean true",
        ),
    ],
)
def test_a_broken_suite_is_explained_at_its_line(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "suite.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(GemmgenError) as caught:
        load_suite(path)
    assert str(caught.value) == f"{path.as_posix()}{message}"


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
