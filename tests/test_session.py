"""From a spec to its record, and back from a file; and the two commands that need a GPU, without one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from commands import Gemmgen
from told import refusal

from gemmgen.bench import Ceilings, Protocol, Record, Subject, from_json, plain_table, to_json
from gemmgen.bench.baseline import Baseline
from gemmgen.bench.record import read_record, write_record
from gemmgen.bench.single import time_spec
from gemmgen.errors import Diagnostic, GemmgenError, Severity
from gemmgen.numerics.reference import Check
from gemmgen.problem import Shape
from gemmgen.product import make
from gemmgen.spec import Spec
from gemmgen.verify import Verification
from gemmgen.verify.memory import Unfit

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "specs" / "h100_bf16.yaml"
RECORD = Path(__file__).parent / "records" / "synthetic_bf16.json"
# Nothing runs at 1 FLOP/s: every figure is above this roofline.
IMPOSSIBLE = Ceilings(flops_per_second=1.0, bytes_per_second=1e15, source="invented")

pytest_plugins = ["commands"]


def silent(step: str) -> None:
    """Report no progress."""


@pytest.fixture
def record() -> Record:
    return from_json(RECORD.read_text(), "r.json")


def specs_in(directory: Path, *names: str, text: str = SPEC.read_text()) -> list[Path]:
    """Write a spec under each name."""
    paths = [directory / name for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return paths


# --- records as files


def test_a_record_that_was_written_is_read_back(tmp_path: Path, record: Record) -> None:
    path = tmp_path / "r.json"
    write_record(record, path)
    assert path.read_bytes() == RECORD.read_bytes()
    assert read_record(path) == record


def test_a_record_is_overwritten(tmp_path: Path, record: Record) -> None:
    path = tmp_path / "r.json"
    path.write_text("an older one, and longer" * 1000)
    write_record(record, path)
    assert read_record(path) == record


@pytest.mark.parametrize(
    ("content", "field"), [(None, None), (b"\xff", None), (b"{", None), (b"{}", "schema")]
)
def test_a_file_without_a_record_is_one_diagnostic(
    tmp_path: Path, content: bytes | None, field: str | None
) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_bytes(content)
    found = refusal(lambda: read_record(path))
    assert (found.path, found.code, found.field) == (path.as_posix(), "bad-record", field)


@pytest.mark.parametrize("name", ["missing/r.json", "."])
def test_a_record_that_cannot_be_written_is_one_diagnostic(tmp_path: Path, record: Record, name: str) -> None:
    path = tmp_path / name
    found = refusal(lambda: write_record(record, path))
    assert (found.path, found.code) == (path.as_posix(), "cannot-write")


# --- from a spec to its record


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, record: Record) -> list[tuple[ModuleType, Subject, Spec, Any]]:
    """Every call of a benchmark that needs no time, and has a record ready."""
    calls: list[tuple[ModuleType, Subject, Spec, Any]] = []

    def bench(
        module: ModuleType,
        subject: Subject,
        spec: Spec,
        shapes: Sequence[Shape],
        *,
        protocol: Protocol | None,
        baseline: Baseline | None,
        progress: Callable[[str], None],
    ) -> Record:
        assert protocol is None
        assert baseline is None  # cuBLAS has one
        assert Path(str(module.__file__)).read_text() == make(SPEC).module  # Triton reads it again
        progress("timing")
        calls.append((module, subject, spec, shapes))
        return replace(record, subject=subject)

    monkeypatch.setattr("gemmgen.bench.single.bench", bench)
    return calls


def test_a_spec_is_timed_on_its_own_shapes(timed: list[tuple[Any, ...]]) -> None:
    told: list[str] = []
    found = time_spec(SPEC, None, told.append)
    ((module, subject, source, shapes),) = timed
    assert found.subject == subject == Subject.of(SPEC, ROOT / "generated" / "h100_bf16.py")
    assert source == make(SPEC).source
    assert tuple(shapes) == ((8192, 8192, 8192), (4096, 4096, 4096))
    assert told == ["timing"]
    assert module.__name__ == "h100_bf16"
    assert not Path(module.__file__).exists()


def test_shapes_that_are_given_come_before_those_of_the_spec(timed: list[tuple[Any, ...]]) -> None:
    time_spec(SPEC, [(1, 8, 16)], silent)
    assert timed[0][-1] == [(1, 8, 16)]


@pytest.fixture
def opposed(monkeypatch: pytest.MonkeyPatch, record: Record) -> list[tuple[str, Protocol, Baseline]]:
    """The spec, the protocol and the baseline of every benchmark against a module, which needs no time."""
    calls: list[tuple[str, Protocol, Baseline]] = []

    def bench(
        module: ModuleType,
        subject: Subject,
        spec: Spec,
        shapes: Sequence[Shape],
        *,
        protocol: Protocol,
        baseline: Baseline,
        progress: Callable[[str], None],
    ) -> Record:
        calls.append((subject.name, protocol, baseline))
        return replace(record, subject=subject, baseline=baseline.text, protocol=protocol)

    monkeypatch.setattr("gemmgen.bench.single.bench", bench)
    return calls


OLDER = "def matmul(a, b, *, out=None):\n    return out\n"


def test_a_spec_is_timed_against_another_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opposed: list[tuple[str, Protocol, Baseline]]
) -> None:
    older = tmp_path / "old" / "h100_bf16.py"
    older.parent.mkdir()
    older.write_text(OLDER)
    digest = hashlib.sha256(older.read_bytes()).hexdigest()
    time_spec(SPEC, None, silent, older)
    monkeypatch.chdir(tmp_path)
    time_spec(SPEC, None, silent, older)
    for path, (_, _, baseline) in zip(("h100_bf16.py", "old/h100_bf16.py"), opposed, strict=True):
        assert f" {path}, " in baseline.text
        assert baseline.text.endswith(digest)
    for _, protocol, _ in opposed:  # graphs throughout, and twice as many pairs as against cuBLAS
        assert (protocol.graph_below_seconds, protocol.pairs) == (1.0, 30)


def test_a_module_is_the_baseline_of_operands_that_torch_does_not_multiply(
    tmp_path: Path, opposed: list[tuple[str, Protocol, Baseline]]
) -> None:
    older = tmp_path / "b200_mxfp4.py"
    older.write_text(OLDER)
    time_spec(ROOT / "specs" / "b200_mxfp4.yaml", None, silent, older)
    assert opposed[0][2].text.startswith("gemmgen's module b200_mxfp4.py, sha256 ")


def test_what_is_no_module_is_not_compared_with(
    tmp_path: Path, opposed: list[tuple[str, Protocol, Baseline]]
) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("")
    for path, code in ((empty, "bad-module"), (tmp_path / "missing.py", "no-module")):
        with pytest.raises(GemmgenError, match=rf"^{re.escape(path.as_posix())}: error\[{code}\]"):
            time_spec(SPEC, None, silent, path)
    assert opposed == []


def test_a_spec_without_shapes_is_not_timed(tmp_path: Path, timed: list[tuple[Any, ...]]) -> None:
    text = re.sub(r"(?m)^bench: .*\n?", "", SPEC.read_text())
    (path,) = specs_in(tmp_path, "h100_bf16.yaml", text=text)
    found = refusal(lambda: time_spec(path, None, silent))
    assert (found.path, found.code) == (make(path).source.path, "no-shapes")
    assert timed == []


def test_a_spec_that_is_rejected_is_not_timed(tmp_path: Path, timed: list[tuple[Any, ...]]) -> None:
    (path,) = specs_in(tmp_path, "bad.yaml", text="title: 5\n")
    with pytest.raises(GemmgenError, match=r"bad\.yaml:1:8: error\["):
        time_spec(path, [(1, 8, 16)], silent)
    assert timed == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed() -> None:
    assert refusal(lambda: time_spec(SPEC, None, silent)).code == "no-gpu"


# --- gemmgen bench


def test_records_become_a_table_and_a_plot(tmp_path: Path, gemmgen_: Gemmgen, record: Record) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "x.svg"
    code, out, err = gemmgen_("bench", RECORD, "--plot", picture)
    assert (code, out, err) == (0, plain_table([record]), "")
    assert picture.read_text().startswith("<?xml")


def test_records_are_told_as_json(gemmgen_: Gemmgen) -> None:
    code, out, _ = gemmgen_("bench", RECORD, RECORD, "--json")
    assert code == 0
    assert json.loads(out)["results"] == [json.loads(RECORD.read_text())] * 2


def test_a_record_that_cannot_be_read_costs_the_others_nothing(
    tmp_path: Path, gemmgen_: Gemmgen, record: Record
) -> None:
    code, out, err = gemmgen_("bench", tmp_path / "missing.json", RECORD)
    assert (code, out) == (1, plain_table([record]))
    assert err.count("error[") == err.count("missing.json: error[bad-record]") == 1


def test_a_plot_that_cannot_be_drawn_costs_no_figures(
    tmp_path: Path, gemmgen_: Gemmgen, record: Record
) -> None:
    code, out, err = gemmgen_("bench", RECORD, "--plot", tmp_path / "x.jpg")
    assert (code, out) == (1, plain_table([record]))
    assert "x.jpg: error[bad-plot]" in err


def test_figures_that_cannot_be_true_are_a_failure(tmp_path: Path, gemmgen_: Gemmgen, record: Record) -> None:
    path = tmp_path / "r.json"
    write_record(replace(record, ceilings=IMPOSSIBLE), path)
    assert gemmgen_("bench", path).code == 1


@pytest.mark.parametrize(
    ("subjects", "record"),
    [(("a.yaml", "b.yaml"), "r.json"), (("a.yaml",), "missing/r.json"), ((RECORD,), "r.json")],
)
def test_records_without_a_place_are_wrong_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gemmgen_: Gemmgen,
    timed: list[tuple[Any, ...]],
    subjects: tuple[Path | str, ...],
    record: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = gemmgen_("bench", *subjects, "--record", record)
    assert (code, out, timed) == (2, "", [])
    assert "--record: " in err
    assert list(tmp_path.iterdir()) == []


def test_two_specs_of_one_name_are_not_recorded_into_one_file(
    tmp_path: Path, gemmgen_: Gemmgen, timed: list[tuple[Any, ...]]
) -> None:
    specs = specs_in(tmp_path, "one/h100_bf16.yaml", "two/h100_bf16.yaml")
    code, _, err = gemmgen_("bench", *specs, "--record", tmp_path)
    assert (code, timed) == (1, [])
    assert "two/h100_bf16.yaml: error[module-name]: " in err


def test_each_spec_has_its_record(tmp_path: Path, gemmgen_: Gemmgen, timed: list[tuple[Any, ...]]) -> None:
    file, directory = tmp_path / "r.json", tmp_path / "records"
    directory.mkdir()
    code, out, err = gemmgen_("bench", SPEC, "--record", file, "--shapes", "1x8x16")
    assert code == 0
    assert timed[0][-1] == ((1, 8, 16),)
    assert err == ""
    found = read_record(file)
    assert found.subject == timed[0][1]
    assert out == plain_table([found])
    assert gemmgen_("bench", SPEC, RECORD, "--record", directory)[0] == 0
    assert [path.name for path in directory.iterdir()] == ["h100_bf16.json"]
    assert (directory / "h100_bf16.json").read_text() == to_json(found)


def test_a_module_to_compare_with_is_given_or_found_by_name(
    tmp_path: Path, gemmgen_: Gemmgen, opposed: list[tuple[str, Protocol, Baseline]]
) -> None:
    specs = specs_in(tmp_path, "one.yaml", "two.yaml")
    for name in ("one", "two", "other"):
        (tmp_path / f"{name}.py").write_text(OLDER + f"# {name}\n")
    file = tmp_path / "r.json"
    code, _, err = gemmgen_("bench", specs[0], "--against", tmp_path / "other.py", "--record", file)
    assert (code, err) == (0, "")
    assert read_record(file).baseline == opposed[0][2].text
    assert gemmgen_("bench", *specs, "--against", tmp_path)[0] == 0
    names = [(name, baseline.text.split()[2]) for name, _, baseline in opposed]
    assert names == [("one", "other.py,"), ("one", "one.py,"), ("two", "two.py,")]


@pytest.mark.parametrize("subjects", [("a.yaml", "b.yaml"), (RECORD,)])
def test_a_module_is_compared_with_one_spec(
    gemmgen_: Gemmgen,
    opposed: list[tuple[str, Protocol, Baseline]],
    subjects: tuple[Path | str, ...],
) -> None:
    code, out, err = gemmgen_("bench", *subjects, "--against", ROOT / "generated" / "h100_bf16.py")
    assert (code, out, opposed) == (2, "", [])
    assert "--against: " in err


def test_a_shape_that_is_none_is_one_diagnostic(gemmgen_: Gemmgen, timed: list[tuple[Any, ...]]) -> None:
    code, out, err = gemmgen_("bench", SPEC, "--shapes", "8x8")
    assert (code, out, timed) == (1, "", [])
    assert err.startswith("--shapes: error[bad-shapes]: ")


# --- gemmgen test


@pytest.mark.parametrize("command", ["test", "bench"])
def test_without_a_gpu_a_command_fails_with_one_diagnostic(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from gemmgen.cli import main; main()", command, "specs/h100_bf16.yaml"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error\[no-gpu\]: .+\n", done.stderr)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every list of shapes to verify on, and whether to the bit. Of two checks one fails on an odd N."""
    calls: list[object] = []

    def verify(
        module: ModuleType,
        spec: Spec,
        shapes: Sequence[Shape] | None,
        *,
        deterministic: bool,
        progress: Callable[[str], None],
    ) -> Verification:
        progress("checking")
        calls.append((shapes, deterministic))
        shape = shapes[0] if shapes else (8, 8, 8)
        checks = (Check(shape, "out=: relative error", 0.0, 1.0), Check(shape, "odd", shape[1] % 2, 0))
        return Verification("an invented GPU", checks)

    monkeypatch.setattr("gemmgen.verify.verify", verify)
    return calls


def test_a_right_kernel_is_told_in_one_line(gemmgen_: Gemmgen, verified: list[object]) -> None:
    code, out, err = gemmgen_("test", SPEC)
    assert (code, verified) == (0, [(None, True)])
    assert out.startswith(f"{make(SPEC).source.path}: 2 of 2 ")
    assert err == ""


def test_a_wrong_kernel_is_a_diagnostic_of_its_check(gemmgen_: Gemmgen, verified: list[object]) -> None:
    code, out, err = gemmgen_("test", SPEC, "--shapes", "8x9x16")
    assert (code, verified) == (1, [(((8, 9, 16),), True)])
    assert out.startswith(f"{make(SPEC).source.path}: 1 of 2 ")
    assert err.startswith(f"{make(SPEC).source.path}: error[wrong-kernel]: 8x9x16 odd: ")


@pytest.mark.parametrize("checked", [True, False])
def test_a_shape_that_is_left_out_is_a_warning_and_an_error_if_nothing_is_left(
    checked: bool, gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = Unfit((8192, 8192, 8192), 20 << 30, 3 << 30)
    fewer = Unfit((4096, 4096, 4096), 20 << 30, 16 << 30, 128, 24, by_choice=True)
    checks = (Check((8, 8, 16), "odd", 0, 0),) if checked else ()
    found = Verification("an invented GPU", checks, (left_out, fewer))

    def verify(*_: object, **__: object) -> Verification:
        return found

    monkeypatch.setattr("gemmgen.verify.verify", verify)
    code, out, err = gemmgen_("test", SPEC)
    path = make(SPEC).source.path
    severity: Severity = "warning" if checked else "error"
    assert err == f"{Diagnostic(path, 'out-of-memory', str(left_out), severity=severity)}\n"
    assert code == (not checked)
    assert out.startswith(f"{path}: {'1 of 1' if checked else '0 of 0'} ")


def test_memory_that_does_not_suffice_is_no_wrong_kernel(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Check((8, 9, 16), "odd", None, 0, "the memory of the GPU does not suffice", "out-of-memory")
    found = Verification("an invented GPU", (check,))

    def verify(*_: object, **__: object) -> Verification:
        return found

    monkeypatch.setattr("gemmgen.verify.verify", verify)
    code, _, err = gemmgen_("test", SPEC)
    failure = Diagnostic(make(SPEC).source.path, "out-of-memory", str(check))
    assert (code, err) == (1, f"{failure}\n")


@pytest.mark.parametrize(("splits", "deterministic"), [(2, True), (8, False)])
def test_runs_have_to_agree_to_the_bit_if_the_plan_says_so_whatever_else_the_spec_allows(
    splits: int, deterministic: bool, gemmgen_: Gemmgen, verified: list[object], tmp_path: Path
) -> None:
    # Of two parts of K the sums are soonest added up by the last program, of eight as they come.
    text = (ROOT / "specs" / "h100_bf16_split8_atomic.yaml").read_text()
    text = text.replace("splits: 8, reduction: atomic", f"splits: {splits}")
    text += "search: {schedule.reduction: [ordered, atomic]}\n"
    (spec,) = specs_in(tmp_path, "either.yaml", text=text)
    assert gemmgen_("test", spec)[0] == 0
    assert verified == [(None, deterministic)]


def test_checks_are_told_as_json(gemmgen_: Gemmgen, verified: list[object]) -> None:
    code, out, err = gemmgen_("test", SPEC, "--shapes", "8x9x16", "--json")
    assert code == 1
    (told,) = json.loads(out)["results"].values()
    assert told["passed"] is False
    assert [check["passed"] for check in told["checks"]] == [True, False]
    assert "error[wrong-kernel]" in err
