"""bench: the timing protocol on a machine with clocks of its own, records, tables, plots and shapes."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import FakeMachine
from modules import SPECS, module_file
from told import refusal
from torch import Tensor

from gemmgen.bench import (
    Ceilings,
    Protocol,
    Record,
    Subject,
    bench,
    from_json,
    markdown_table,
    parse_shapes,
    plain_table,
    plot,
    to_json,
)
from gemmgen.bench.baseline import Baseline, cublas
from gemmgen.bench.figures.record_plot import axis_limits, figures_text, label_of
from gemmgen.bench.figures.style import IN_THE_DARK
from gemmgen.bench.module_arm import other_module
from gemmgen.bench.nvidia_smi import query_gpu, state_of
from gemmgen.bench.record import (
    H200,
    H200_FP8,
    GpuState,
    Spread,
    ceilings_of,
)
from gemmgen.bench.single import AGAINST_A_MODULE
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError, install_advice
from gemmgen.module import import_generated
from gemmgen.numerics.inputs import Inputs
from gemmgen.problem import Shape
from gemmgen.problem.dtypes import Dtypes, moved_bytes
from gemmgen.problem.observation import flops
from gemmgen.product import make
from gemmgen.spec import Spec, SpecFile
from gemmgen.verify.shapes import single_tile

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "records" / "synthetic_bf16.json"
SHAPE = (8, 16, 32)
NO_OUT = (8, 21, 32)
"""Rows of D of 42 bytes, no multiple of 16."""
SUBJECT = Subject("specs/fake.yaml", "0" * 64, "1" * 64)


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    return out.copy_(a.double() @ b.double())


def own_or_given_d(a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
    """D as the generated wrapper has it: its own rows are padded to 16 bytes, an ``out`` needs no padding."""
    m, n = a.shape[0], b.shape[1]
    if out is None:
        return torch.empty(m, -(-n // 8) * 8, dtype=torch.bfloat16)[:, :n]
    if n % 8:
        raise ValueError("out must have rows of whole 16-byte units")
    return out


def spec_of(d: str = "bf16") -> SpecFile:
    operand = {"dtype": "bf16", "major": "k"}
    operands = {"a": operand, "b": operand, "d": {"dtype": d}}
    return SpecFile.of(Spec.model_validate({"title": "t", "target": "h200", "operands": operands}))


def run(
    machine: FakeMachine,
    ours: float,
    theirs: float,
    *,
    shape: Shape = SHAPE,
    spoil: Callable[[Tensor], object] = lambda d: None,
    protocol: Protocol | None = None,
    ceilings: Ceilings | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Record:
    """Benchmark a kernel of ``ours`` device seconds and 3 us of the host against ``theirs`` and 7 us."""

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        d = product(a, b, own_or_given_d(a, b, out))
        spoil(d)
        machine.spend("o", ours, 3e-6)
        return d

    def baseline(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
        def call() -> Tensor:
            machine.spend("b", theirs, 7e-6)
            return product(inputs.a, inputs.b, d)

        return call

    module = ModuleType("fake")
    module.__dict__["matmul"] = matmul
    return bench(
        module,
        SUBJECT,
        spec_of(),
        [shape],
        protocol=protocol or Protocol(warm_up_seconds=0.1),
        ceilings=ceilings,
        machine=machine,
        baseline=Baseline("an invented baseline", baseline),
        progress=tell,
    )


def test_long_kernels_are_timed_in_batches_that_alternate() -> None:
    machine = FakeMachine()
    (measurement,) = run(machine, ours=1e-3, theirs=1.1e-3).measurements
    # 8 * 32 + 16 * 32 operand and 8 * 16 result elements of 2 bytes are 1792 bytes: 2.5 * 4096 of L2 take 6.
    assert measurement.input_sets == 6
    # A call takes 1 ms, a pass over the sets 6 ms, so 10 ms take 2 passes.
    assert measurement.timing.method == "events"
    assert measurement.timing.calls_per_sample == 12
    assert [calls for _, calls in machine.timed[-90:]] == ["b" * 12, "o" * 12] * 45
    assert [len(samples) for samples in measurement.timing.ours_seconds] == [15, 15, 15]
    assert measurement.observed().seconds == pytest.approx(1e-3)
    assert measurement.observed().ratio == pytest.approx(1.1)
    assert measurement.observed().measured_spread.repetitions == pytest.approx((1.1, 1.1, 1.1))


def test_short_kernels_are_timed_through_a_graph() -> None:
    machine = FakeMachine()
    (measurement,) = run(machine, ours=20e-6, theirs=10e-6).measurements
    # The faster arm takes 60 us for the 6 sets: 17 rounds make a graph of 1 ms, 10 replays a sample of 10 ms.
    assert measurement.timing.method == "graph"
    assert measurement.timing.calls_per_sample == 17 * 6 * 10
    assert [calls for _, calls in machine.timed[-2:]] == ["B" * 1020, "O" * 1020]
    assert measurement.observed().ratio == pytest.approx(0.5)


@pytest.mark.parametrize(("ours", "method"), [(1e-3, "events"), (20e-6, "graph")])
def test_an_n_that_tma_cannot_write_is_timed_into_memory_of_the_wrapper(ours: float, method: str) -> None:
    machine, addresses = FakeMachine(), list[int]()
    record = run(
        machine,
        ours=ours,
        theirs=2 * ours,
        shape=NO_OUT,
        spoil=lambda d: addresses.append(d.data_ptr()),
    )
    (measurement,) = record.measurements
    assert measurement.shape == NO_OUT
    assert measurement.timing.method == method
    assert measurement.observed().ratio == pytest.approx(2.0)
    assert measurement.relative_error == measurement.baseline_relative_error < 4e-3
    # 8 * 32 + 32 * 21 + 8 * 21 elements of 2 bytes are 2192 bytes: 2.5 * 4096 of L2 take 5 sets. A result
    # lives until its set is used again, so that those of successive calls share no memory.
    assert measurement.input_sets == 5
    timed = addresses[1:]
    assert len(timed) > 500
    assert all(len(set(timed[i : i + 5])) == 5 for i in range(len(timed) - 4))


def test_an_n_that_tma_can_write_is_timed_into_the_tensors_of_both_arms() -> None:
    machine, addresses = FakeMachine(), list[int]()
    run(machine, ours=1e-3, theirs=1e-3, spoil=lambda d: addresses.append(d.data_ptr()))
    assert len(set(addresses)) == 6


def test_a_wrong_result_of_the_wrapper_s_own_is_not_timed() -> None:
    machine = FakeMachine()
    with pytest.raises(GemmgenError, match=r"\[wrong-result\] 8x21x32: relative error nan"):
        run(machine, ours=1e-3, theirs=1e-3, shape=NO_OUT, spoil=leave_one_out)
    assert machine.timed == []


def test_two_modules_are_compared_through_graphs_on_the_same_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, results = FakeMachine(), dict[str, list[int]]()

    def module(name: str, seconds: float) -> Path:
        """Write a module whose calls take so long, and note where they write."""

        def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
            machine.spend(name, seconds, 3e-6)
            d = product(a, b, own_or_given_d(a, b, out))
            results.setdefault(name, []).append(d.data_ptr())
            return d

        implementation = ModuleType(f"implementation_{name}")
        implementation.__dict__["matmul"] = matmul
        monkeypatch.setitem(sys.modules, implementation.__name__, implementation)
        path = tmp_path / name / "fake.py"
        path.parent.mkdir()
        path.write_text(f"from {implementation.__name__} import matmul\n")
        return path

    new, old = module("n", 1e-3), module("o", 1.005e-3)
    record = bench(
        import_generated(new),
        SUBJECT,
        spec_of(),
        [SHAPE],
        protocol=AGAINST_A_MODULE,
        machine=machine,
        baseline=other_module(old),
    )
    (measurement,) = record.measurements
    # A call takes 1 ms, which is timed by events against cuBLAS; a graph is of one pass over 6 sets.
    assert (measurement.timing.method, measurement.timing.calls_per_sample) == ("graph", 12)
    assert [calls for _, calls in machine.timed[-180:]] == ["O" * 12, "N" * 12] * 90
    assert measurement.observed().ratio == pytest.approx(1.005)
    assert measurement.relative_error == measurement.baseline_relative_error
    assert len(set(results["n"])) == 6
    assert set(results["n"]) == set(results["o"])
    assert from_json(to_json(record), "r.json") == record
    assert "| gemmgen TFLOP/s | baseline TFLOP/s |" in markdown_table([record])


def test_the_host_cost_is_a_figure_of_its_own() -> None:
    (measurement,) = run(FakeMachine(), ours=20e-6, theirs=10e-6).measurements
    assert measurement.timing.ours_host_seconds == pytest.approx(3e-6)
    assert measurement.timing.baseline_host_seconds == pytest.approx(7e-6)


def test_nothing_is_sampled_before_the_machine_is_warm() -> None:
    machine = FakeMachine()
    protocol = Protocol(warm_up_seconds=2.0, repetitions=1, pairs=1)
    run(machine, ours=1e-3, theirs=1e-3, protocol=protocol)
    first_sample_ends, _ = machine.timed[-2]
    assert first_sample_ends > 2.0


def test_the_sets_of_a_small_problem_are_bounded() -> None:
    protocol = Protocol(warm_up_seconds=0.1, max_input_sets=2)
    (measurement,) = run(FakeMachine(), ours=1e-3, theirs=1e-3, protocol=protocol).measurements
    assert measurement.input_sets == 2


def test_a_long_run_says_what_it_does() -> None:
    told: list[str] = []
    run(FakeMachine(), ours=1e-3, theirs=1e-3, tell=told.append)
    steps = ["checking the numbers", "warming up", *(f"repetition {i} of 3" for i in (1, 2, 3))]
    assert told == [f"8x16x32: {step}" for step in steps]


def scale(d: Tensor) -> None:
    d.mul_(1.05)


def leave_one_out(d: Tensor) -> None:
    d[0, 0] = torch.nan


def fail(d: Tensor) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure\nmore")


def run_out(d: Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.\nmore")


@pytest.mark.parametrize(
    ("spoil", "code", "shown"),
    [
        (run_out, "out-of-memory", "OutOfMemoryError: CUDA"),
        (scale, "wrong-result", "0.004"),
        (leave_one_out, "wrong-result", "nan"),
        (fail, "kernel-failed", "RuntimeError: CUDA error: unspecified launch failure"),
    ],
)
def test_a_wrong_kernel_is_not_timed(spoil: Callable[[Tensor], object], code: str, shown: str) -> None:
    machine = FakeMachine()
    found = refusal(lambda: run(machine, ours=1e-3, theirs=1e-3, spoil=spoil))
    assert (found.code, found.field) == (code, "8x16x32")
    assert shown in found.message
    assert machine.timed == []


def test_faster_than_the_roofline_is_an_error() -> None:
    # 2 * 8 * 16 * 32 = 8192 operations at 4096 a second take 2 s; the kernels claim 1 ms and 1 s.
    ceilings = Ceilings(flops_per_second=4096, bytes_per_second=1e12, source="invented")
    protocol = Protocol(repetitions=1, pairs=1)
    record = run(FakeMachine(), ours=1e-3, theirs=1.0, protocol=protocol, ceilings=ceilings)
    assert record.roofline_fraction(record.measurements[0]) == pytest.approx(2000)
    ours, theirs = record.errors
    assert "2000.00" in ours
    assert "2.00" in theirs
    assert ours in plain_table([record])
    assert ours in markdown_table([record])


def test_the_roofline_is_the_larger_of_two_times() -> None:
    assert flops((2, 3, 5)) == 60
    assert moved_bytes(2, 3, a_row_bytes=10, b_row_bytes=10, d_bytes=4) == (10 + 15) * 2 + 6 * 4
    # 8192**3: 1.0995e12 operations / 873e12 = 1.259 ms; 402.7 MB / 4.3e12 = 0.094 ms.
    large = (8192, 8192, 8192)
    assert H200.seconds(flops(large), moved_bytes(8192, 8192, 16384, 16384, 2)) == pytest.approx(
        1.2594e-3, rel=1e-4
    )
    # 1x8192x8192: 134 MFLOP in 0.15 us; 134.2 MB / 4.3e12 = 31.2 us.
    row = (1, 8192, 8192)
    assert H200.seconds(flops(row), moved_bytes(1, 8192, 16384, 16384, 2)) == pytest.approx(
        31.22e-6, rel=1e-3
    )
    assert ceilings_of("NVIDIA H200") is H200
    assert ceilings_of("NVIDIA H100 80GB HBM3") is None


def test_every_type_has_its_bytes_and_its_roofline() -> None:
    # 2 x 3 of C and D, 2 x 5 of A, 5 x 3 of B.
    assert Dtypes("e4m3", "e5m2", "bf16").moved_bytes((2, 3, 5)) == 25 + 6 * 2
    assert Dtypes("int8", "int8", "int32").moved_bytes((2, 3, 5)) == 25 + 6 * 4
    assert Dtypes("tf32", "tf32", "fp32", "fp16").moved_bytes((2, 3, 5)) == 25 * 4 + 6 * (4 + 2)
    assert ceilings_of("NVIDIA H200", "fp16") is H200
    for operand in ("e4m3", "e5m2"):
        assert ceilings_of("NVIDIA H200", operand) is H200_FP8
    for operand in ("tf32", "int8"):
        assert ceilings_of("NVIDIA H200", operand) is None
    # 8192**3: 1.0995e12 operations / 1693e12 = 0.649 ms.
    large = (8192, 8192, 8192)
    assert H200_FP8.seconds(flops(large), moved_bytes(8192, 8192, 8192, 8192, 2)) == pytest.approx(
        0.6494e-3, rel=1e-4
    )


def test_without_a_ceiling_there_is_no_roofline_and_progress_says_so() -> None:
    operand = {"dtype": "int8", "major": "k"}
    operands = {"a": operand, "b": operand, "d": {"dtype": "int32"}}
    spec = SpecFile.of(Spec.model_validate({"title": "t", "target": "h200", "operands": operands}))
    told: list[str] = []

    def matmul(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        machine.spend("o", 1e-3, 3e-6)
        return out.copy_(a.double() @ b.double())

    def baseline(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
        return lambda: matmul(inputs.a, inputs.b, out=d)

    module, machine = ModuleType("fake"), FakeMachine()
    module.__dict__["matmul"] = matmul
    record = bench(
        module,
        SUBJECT,
        spec,
        [SHAPE],
        protocol=Protocol(warm_up_seconds=0.1),
        machine=machine,
        baseline=Baseline("an invented baseline", baseline),
        progress=told.append,
    )
    assert told[0] == "no ceiling was measured for int8 on Fake H200: there is no roofline"
    assert record.ceilings is None
    assert record.roofline_fraction(record.measurements[0]) is None
    assert record.measurements[0].relative_error == 0
    assert from_json(to_json(record), "r.json") == record


def test_only_a_record_with_a_c_mentions_it() -> None:
    record = from_json(RECORD.read_text(), "r.json")
    assert "c" not in json.loads(to_json(record))["dtypes"]
    with_c = replace(record, dtypes=replace(record.dtypes, c="fp32"))
    assert json.loads(to_json(with_c))["dtypes"]["c"] == "fp32"
    assert from_json(to_json(with_c), "r.json") == with_c


def test_a_spread_is_the_median_the_quartiles_and_the_extremes() -> None:
    spread = Spread.of(((1.0, 2.0, 3.0), (4.0, 5.0)))
    assert spread == Spread(3.0, (2.0, 4.0), (1.0, 5.0), (2.0, 4.5))
    assert Spread.of(((1.5,),)) == Spread(1.5, (1.5, 1.5), (1.5, 1.5), (1.5,))


def test_the_baseline_is_stated_exactly() -> None:
    assert cublas(spec_of()).text == (
        "cuBLAS's default choice: torch.matmul(a, b, out=d), bf16, reduced-precision reduction True"
    )
    assert cublas(spec_of("fp32")).text == (
        "cuBLAS's default choice: torch.mm(a, b, out_dtype=torch.float32, out=d), bf16"
    )
    with pytest.raises(
        GemmgenError, match=r"error\[no-baseline\]: torch has no cuBLAS matmul of bf16 and bf16"
    ):
        cublas(spec_of("fp16"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_clear_error() -> None:
    module = ModuleType("fake")
    with pytest.raises(GemmgenError, match=r"^error\[no-gpu\]"):
        bench(module, SUBJECT, spec_of(), [SHAPE])


def test_a_gpu_that_does_not_tell_its_state_is_tolerated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert query_gpu("0", "power.draw") == []
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '1395, [N/A], 61'\n")
    smi.chmod(0o755)
    assert state_of(query_gpu("0", "clocks.sm,power.draw,temperature.gpu")) == GpuState(1395.0, None, 61.0)
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert state_of(query_gpu("0", "power.draw")) is None


def test_a_subject_names_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "specs" / "x.yaml"
    spec.parent.mkdir()
    spec.write_bytes(b"abc")
    monkeypatch.chdir(tmp_path)
    subject = Subject.of(Path("specs/x.yaml"), spec)
    assert subject == Subject.of(spec, spec)
    assert subject.spec_path == "specs/x.yaml"
    assert subject.spec_sha256.startswith("ba7816bf8f01cfea")  # FIPS 180-2, example for "abc"
    monkeypatch.chdir(spec.parent)
    assert Subject.of(spec, spec).spec_path == "x.yaml"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert Subject.of(spec, spec).spec_path == "x.yaml"


def test_a_record_survives_the_round_trip() -> None:
    text = RECORD.read_text()
    record = from_json(text, "r.json")
    assert to_json(record) == text
    made = run(FakeMachine(), ours=1e-3, theirs=1.1e-3, ceilings=H200)
    assert from_json(to_json(made), "r.json") == made
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made.date)


def put(document: Any, path: str, value: object) -> None:
    """Set ``a.b.0.c`` of a document; a value of ... removes it."""
    *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in way:
        document = document[part]
    if value is ...:
        del document[last]
    else:
        document[last] = value


TIMING = "measurements.0.timing"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("schema", 2, "schema"),
        ("schema", True, "schema"),
        ("date", "yesterday", None),
        ("host", "somewhere", "host"),
        ("environment.torch", ..., "environment.torch"),
        ("protocol.pairs", 0, "protocol.pairs"),
        ("protocol.seed", 1.0, "protocol.seed"),
        ("subject", [], "subject"),
        ("subject.spec_sha256", "abc", "subject.spec_sha256"),
        ("environment.gpu", None, "environment.gpu"),
        ("dtypes.a", "fp8", "dtypes.a"),
        ("ceilings.flops_per_second", 0, "ceilings.flops_per_second"),
        ("measurements", {}, "measurements"),
        ("measurements.0.shape", [1, 2], "measurements.0.shape.2"),
        ("measurements.1.shape.2", "x" * 50, "measurements.1.shape.2"),
        ("measurements.0.input_sets", 0, "measurements.0.input_sets"),
        ("measurements.0.relative_error", "0", "measurements.0.relative_error"),
        ("measurements.0.relative_error", 10**400, "measurements.0.relative_error"),
        (f"{TIMING}.ours_seconds.0.1", -1e-3, f"{TIMING}.ours_seconds.0.1"),
        (f"{TIMING}.ours_seconds.0", [], TIMING),
        (f"{TIMING}.ours_seconds", [], TIMING),
    ],
)
def test_a_malformed_record_is_refused_with_its_field(path: str, value: object, field: str | None) -> None:
    document = copy.deepcopy(json.loads(RECORD.read_text()))
    put(document, path, value)
    found = refusal(lambda: from_json(json.dumps(document), "r.json"))
    assert (found.path, found.code, found.field) == ("r.json", "bad-record", field)
    assert len(found.message) < 200


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", None),
        ("", None),
        ('{"schema": NaN}', "schema"),
        ("[]", None),
        ("1" * 5000, None),
        ("[" * 100_000, None),
    ],
)
def test_what_is_no_record_at_all_is_refused(text: str, field: str | None) -> None:
    found = refusal(lambda: from_json(text, "r.json"))
    assert (found.path, found.code, found.field) == ("r.json", "bad-record", field)


def test_a_number_that_overflows_is_refused() -> None:
    text = RECORD.read_text().replace("0.0017", "1e999", 1)
    field = refusal(lambda: from_json(text, "r.json")).field
    assert field == "measurements.0.relative_error"


def test_a_record_reads_as_a_markdown_table() -> None:
    # 2 * 8192**3 / 1.6 ms = 687.2 TFLOP/s. Ratios 1.05, 1, 1.05, 1.05, 1.1, 1.1: median 1.05, upper quartile
    # 1.05 + 0.75 * 0.05. 2 * 16 * 16 * 16384 / 10 us = 0.839 TFLOP/s.
    assert markdown_table([from_json(RECORD.read_text(), "r.json")]) == (
        "| spec | M x N x K | gemmgen TFLOP/s | cuBLAS TFLOP/s | ratio [quartiles] |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| synthetic_bf16 | 8192x8192x8192 | 687.2 | 654.5 | 1.050 [1.050, 1.087] |\n"
        "| synthetic_bf16 | 16x16x16384 | 0.839 | 1.05 | 0.800 [0.800, 0.800] |\n"
    )


def test_a_record_reads_as_plain_text() -> None:
    assert plain_table([from_json(RECORD.read_text(), "r.json")]) == (
        "spec            M x N x K       gemmgen TFLOP/s  cuBLAS TFLOP/s     ratio [quartiles]\n"
        "synthetic_bf16  8192x8192x8192            687.2           654.5  1.050 [1.050, 1.087]\n"
        "synthetic_bf16  16x16x16384               0.839            1.05  0.800 [0.800, 0.800]\n"
    )


def test_a_column_of_several_baselines_marks_the_rows_of_each() -> None:
    record = from_json(RECORD.read_text(), "r.json")
    gated = replace(record, dtypes=replace(record.dtypes, b_blocks=2))
    own = replace(record, baseline="gemmgen's module other.py")
    assert "| cuBLAS and unfused gate TFLOP/s |" in markdown_table([gated, gated])
    assert "marked" not in markdown_table([gated, gated])
    # A gated matmul has twice the operations: 1374.4 TFLOP/s against 687.2.
    table = markdown_table([own, record, gated])
    assert table.startswith("| spec | M x N x K | gemmgen TFLOP/s | baseline TFLOP/s | ratio")
    assert [row.split(" | ")[2:4] for row in table.splitlines()[2::2][:3]] == [
        ["687.2", r"654.5\*"],
        ["687.2", "654.5"],
        ["1374.4", r"1308.9\*\*"],
    ]
    said = "The baseline is cuBLAS; in rows marked * it is a kernel of gemmgen's; in rows marked ** it is"
    assert f"\n{said} cuBLAS and unfused gate.\n" in plain_table([own, record, gated])


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_has_the_same_bytes_each_time(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    record = from_json(RECORD.read_text(), "r.json")
    other = replace(record, subject=replace(record.subject, spec_path="specs/other.yaml"))
    first, second = tmp_path / f"first.{suffix}", tmp_path / f"second.{suffix}"
    plot([record, other], first)
    plot([record, other], second)
    assert first.read_bytes() == second.read_bytes()
    assert str(tmp_path).encode() not in first.read_bytes()


def test_a_plot_shows_each_row_and_follows_a_dark_scheme(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = from_json(RECORD.read_text(), "r.json")
    other = replace(record, subject=replace(record.subject, spec_path="specs/other.yaml"))
    path = tmp_path / "p.svg"
    plot([record, other], path)
    picture = path.read_text()
    texts = [" ".join(text.split()) for text in re.findall(r"<text [^>]*>([^<]*)</text>", picture)]
    for each in (record, other):
        for measurement in each.measurements:
            assert " ".join(label_of(each, measurement).split()) in texts
            assert " ".join(figures_text(measurement).split()) in texts
    assert "@media (prefers-color-scheme: dark)" in picture
    drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})(?![0-9a-f ]*!)", picture))
    assert drawn - set(IN_THE_DARK.values()) == set(IN_THE_DARK)  # no colour is left as it is by day


def test_an_outlier_does_not_flatten_the_rest() -> None:
    assert axis_limits([0.95, 1.1]) == pytest.approx((0.94, 1.11))
    assert axis_limits([1.02, 1.1]) == pytest.approx((0.99, 1.11))
    assert axis_limits([0.95, 1.1, 4.0]) == pytest.approx((0.94, 1.26))
    assert axis_limits([0.1, 1.1]) == pytest.approx((0.79, 1.11))


def test_a_plot_without_matplotlib_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = refusal(lambda: plot([from_json(RECORD.read_text(), "r.json")], tmp_path / "p.svg"))
    assert found.code == "missing-package"
    assert install_advice("plot") in found.message


def test_a_plot_that_cannot_be_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = from_json(RECORD.read_text(), "r.json")
    for records, path in (
        ([record], Path("p.jpg")),
        ([], Path("p.svg")),
        ([record], tmp_path / "missing" / "p.svg"),
    ):
        found = refusal(partial(plot, records, path))
        assert (found.path, found.code) == (path.as_posix(), "bad-plot")


def test_shapes_are_read_from_text() -> None:
    assert parse_shapes("8192x8192x512, 1x8x16,8192x8192x512") == ((8192, 8192, 512), (1, 8, 16))


def test_shapes_are_read_from_a_list(tmp_path: Path) -> None:
    for name in ("s.yaml", "s.json"):
        (tmp_path / name).write_text("[[1, 2, 3], [4, 5, 6]]")
        assert parse_shapes(str(tmp_path / name)) == ((1, 2, 3), (4, 5, 6))


def test_shapes_are_read_from_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        "squares: [[512, 512, 512]]\n"
        "llm_m: [1, 16]\n"
        "llm_nk:\n"
        "  small: [[6144, 4096]]\n"
        "  large: [[8192, 8192], [512, 512]]\n"
        "last: [[512, 512, 512], [7, 8, 9]]\n"
    )
    layers = ((6144, 4096), (8192, 8192), (512, 512))
    crossed = tuple((m, n, k) for n, k in layers for m in (1, 16))
    assert parse_shapes(str(path)) == ((512, 512, 512), *crossed, (7, 8, 9))


@pytest.mark.parametrize(
    "text",
    ["", "1x2", "1x2x3,", "0x1x1", "-1x2x3", "1x2x3x4", "1X2X3", "axbxc", "shapes.toml", "1x1x" + "9" * 5000],
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    found = refusal(lambda: parse_shapes(text))
    assert (found.path, found.code) == ("--shapes", "bad-shapes")


@pytest.mark.parametrize(
    ("text", "field", "line"),
    [
        (None, None, None),
        ("[[1, 2, 3]", None, 1),
        ("a: [[1, 2, 3]]\na: [[1, 2, 3]]\n", None, 2),
        ("", None, None),
        ("[]", None, None),
        ("{}", None, None),
        ("[1, 2, 3]", "0", None),
        ("[[1, 2]]", "0", None),
        ("a: [[1, 2, 3], [1, 2, 0]]", "a.1", None),
        ("a: [[1, 2, true]]", "a.0", None),
        ("a: 5", "a", None),
        ("llm_m: [1]", None, None),
        ("{llm_m: [1], llm_nk: [[1, 2]]}", "llm_nk", None),
        ("{llm_m: [0], llm_nk: {x: [[1, 2]]}}", "llm_m", None),
        ("{llm_m: [1], llm_nk: {x: [[1]]}}", "llm_nk.x.0", None),
    ],
)
def test_a_bad_shape_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, field: str | None, line: int | None
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("s.yaml").write_text(text)
    found = refusal(lambda: parse_shapes("s.yaml"))
    assert (found.path, found.code, found.field, found.line) == ("s.yaml", "bad-shapes", field, line)


def shapes_to_time(spec: SpecFile) -> dict[Shape, str]:
    """Problems that the spec's kernel and its baseline can both compute, and how each is to be timed.

    One is long enough for events and one is not; then the same with an N for which ``out`` is refused, if
    torch can do that: in 8 bits, N and K must be whole units of 16. No B200 can do 8192**3 in less than
    122 us: 1.0995e12 operations / 9e15.
    """
    if spec.spec.target == "b200":
        return {(8192, 8192, 8192): "events", (1024, 1024, 1024): "graph"}
    if tile := single_tile(spec):
        return {tile: "graph"}
    if spec.problem.a.dtype.name in ("e4m3", "e5m2", "int8"):
        return {(4096, 4096, 16384): "events", (1000, 1008, 992): "graph"}
    return {
        (4096, 4096, 4096): "events",
        (1024, 1024, 1024): "graph",
        (4096, 4097, 4096): "events",
        (1000, 1001, 1000): "graph",
    }


def no_baseline(spec: SpecFile) -> str:
    """Why torch has nothing to compare a spec's kernel with, empty where it has."""
    try:
        cublas(spec)
    except GemmgenError as error:
        return str(error)
    return ""


@pytest.mark.gpu
@pytest.mark.parametrize("spec_path", SPECS, ids=lambda path: path.stem)
def test_a_generated_module_can_be_timed(spec_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = module_file(spec_path.stem)
    committed = make(spec_path)
    spec = committed.source
    try:
        require_gpu(committed.plan.architecture)  # a B200 for b200_*, an H100 or H200 for h100_*
    except GemmgenError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # left unset, Triton 3.9 warns
    shapes = shapes_to_time(spec)
    if missing := no_baseline(spec):
        with pytest.raises(GemmgenError, match=re.escape(missing)):
            bench(import_generated(path), Subject.of(spec_path, path), spec, shapes)
        return
    record = bench(
        import_generated(path),
        Subject.of(spec_path, path),
        spec,
        shapes,
        protocol=Protocol(repetitions=1, pairs=5, warm_up_seconds=0.3),
    )
    assert record.errors == ()
    methods = {measurement.shape: measurement.timing.method for measurement in record.measurements}
    assert methods == shapes
    assert from_json(to_json(record), "r.json") == record
