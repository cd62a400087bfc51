"""The simulator's verdicts and numbers against those of a GPU: measured by hand, recorded, tabulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from consan.agreement import (
    H100_RECORD,
    H200,
    RECORD,
    RECORDED,
    Entry,
    Numbers,
    entry,
    main,
    numbers_of,
    read,
    record,
    simulated,
    written,
)
from consan.atomics import PROGRAMS_THAT_WAIT
from consan.case import CLEAN, NO_VERDICT, Device, Simulated
from consan.device import LIMITS_S, PRIORITIES, measured
from consan.document import DOCUMENT, document
from consan.foreign_files import FOREIGN, FOREIGN_FAULTS
from consan.generated import AS_GENERATED, MODULE_CASES, UNMUTATED
from consan.reasons import BY_DESIGN, DIFFERENCES, MESSAGES
from drawn import random_inputs
from modules import GROUPED_SPECS, spec_file

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.numerics.drawing import is_exact
from gemmgen.numerics.reference import HALF_ULP, reference, tolerance
from gemmgen.spec import load_spec

TESTS = Path(__file__).parent
GPU_SECONDS = 1500

NAMED = {
    # The producer no longer waits for a stage to be empty.
    "no_empty_wait_overflows": "Buffer being accessed has outstanding",
    # A consumer no longer waits for a sub-tile to be stored before it overwrites it.
    "no_store_wait": "Accessing buffer with pending access. Pending access type: async_copy_shared_to_global",
    "missing_arrive": "Deadlock detected while waiting on an mbarrier",
    "barrier_not_initialised": "Barrier used before initialization",
}


def test_what_is_recorded_is_still_a_case() -> None:
    record = read()  # a newer module or mutant may wait for a GPU: the document names it
    ours = [row.name for row in record.entries if row.group not in (FOREIGN, FOREIGN_FAULTS)]
    assert ours == [name for name in RECORDED if name in ours]
    assert {row.group for row in record.entries} <= set(PRIORITIES)
    assert [numbers.module for numbers in record.numbers] == [name for name in ours if name in UNMUTATED]
    assert RECORD.read_text(encoding="utf-8") == written(record)


def test_the_recorded_simulator_named_what_it_names_now() -> None:
    for row in read().entries:
        if row.name in RECORDED:
            planted = RECORDED[row.name].planted  # other tests assert that it is found
            assert set(row.findings[:1]) <= planted
            assert bool(row.findings) == bool(planted)
            if row.name in MODULE_CASES:
                lint = patterns(BY_DESIGN, row.name)
                assert row.fault == (bool(planted) and not lint)


def patterns(reasons: Mapping[str, str], name: str) -> list[str]:
    return [pattern for pattern in reasons if fnmatchcase(name, pattern)]


def test_every_recorded_difference_has_one_reason_and_every_reason_a_case() -> None:
    rows = [row for row in read().entries if row.measured]
    lints = [row.name for row in rows if row.kind and not row.fault]
    silent = [row.name for row in rows if row.silent]
    for reasons, names in ((DIFFERENCES, silent), (BY_DESIGN, lints)):
        found = {name: patterns(reasons, name) for name in names}
        assert all(len(of) == 1 for of in found.values()), found
        assert {pattern for of in found.values() for pattern in of} == reasons.keys()
    outcomes = {outcome for row in rows for outcome in (row.consan, row.gsan, row.bare)}
    assert MESSAGES.keys() <= outcomes


@pytest.mark.parametrize("path", [RECORD, H100_RECORD], ids=["h200", "h100"])
def test_the_gpu_shows_nothing_that_the_simulator_misses(path: Path) -> None:
    assert [row.name for row in read(path).entries if row.shown and not row.fault] == []


def test_the_record_of_another_gpu_has_verdicts_alone() -> None:
    entries = read(H100_RECORD).entries
    assert len(entries) >= 20
    assert [row.name for row in entries if not (row.measured and row.agrees)] == []
    assert {row.name for row in entries} & {row.name for row in read().entries} == set()


def test_what_nothing_on_the_gpu_shows_is_explained() -> None:
    differing = [row for row in read().entries if not row.agrees]
    assert differing
    for row in differing:
        assert H200 in row.silent
        assert patterns(DIFFERENCES, row.name)


def test_nothing_that_is_right_is_recorded_as_wrong() -> None:
    for row in read().entries:
        if row.group in (AS_GENERATED, PROGRAMS_THAT_WAIT):
            assert (row.fault, row.shown) == (False, False), row


def test_the_verdicts_of_twelve_mutants_agree() -> None:
    agreeing = [row.name for row in read().entries if row.agrees and row.measured]
    mutants = [name for name in agreeing if name in RECORDED and name not in UNMUTATED]
    assert len(mutants) >= 12


def test_the_recorded_numbers_are_the_simulators() -> None:
    for numbers in (*read().numbers, *read(H100_RECORD).numbers):
        check(numbers)


def test_the_document_is_what_the_record_says() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(read(), read(H100_RECORD))


# --- the program that measures, without a GPU


def observed_by_device(
    names: Sequence[str], file: Path, *options: str, groups: Sequence[str] = PRIORITIES
) -> dict[str, Any]:
    """Run `consan.device` in a process of its own, and return what it wrote."""
    command = [sys.executable, "-m", "consan.device", str(file), f"--groups={','.join(groups)}", *options]
    ran = subprocess.run([*command, *names], cwd=TESTS, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(file.read_text(encoding="utf-8"))


def test_a_dry_run_observes_a_case_of_each_kind_and_becomes_a_record(tmp_path: Path) -> None:
    names = ["h100_bf16", "no_ready_wait", "locked_sum as it is"]
    found = observed_by_device(
        names, tmp_path / "found.json", "--dry-run", "--seconds=200", "--at-a-time=2", "--launches=2"
    )
    outcomes = {
        name: {stage: one["outcome"] for stage, one in stages.items()}
        for name, stages in found["found"].items()
    }
    assert outcomes["h100_bf16"] == {"consan": CLEAN, "bare": CLEAN, "numbers": "numbers"}
    assert outcomes["no_ready_wait"] == {"consan": "86528 wrong elements"}
    assert outcomes["locked_sum as it is"]["consan"] == CLEAN
    assert outcomes["locked_sum as it is"]["gsan"].startswith(NO_VERDICT)  # its allocator needs a driver
    made = record(found)
    assert [row.name for row in made.entries] == names
    assert [row.agrees for row in made.entries] == [True, True, True]
    assert made.entries[1].findings
    (numbers,) = made.numbers
    assert (numbers.different_bits, numbers.worst_element) == (0, 0)
    assert "no_ready_wait" in document(made, read(H100_RECORD))


def test_a_dry_run_compares_the_rows_of_groups(tmp_path: Path) -> None:
    assert {path.stem for path in GROUPED_SPECS} <= RECORDED.keys()
    names = [
        "h100_bf16_batched_rows8",
        "h100_bf16_grouped_gated",
        "h100_bf16_grouped_rows8",
        "h100_bf16_masked",
    ]
    found = observed_by_device(names, tmp_path / "found.json", "--dry-run", "--seconds=170", "--at-a-time=2")
    made = record(found)
    assert [(row.name, row.group, row.consan, row.bare, row.fault) for row in made.entries] == [
        (name, AS_GENERATED, CLEAN, CLEAN, False) for name in RECORDED if name in names
    ]
    assert [numbers.different_bits for numbers in made.numbers] == [0] * len(names)


def test_what_is_observed_later_replaces_what_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"gpu": "one", "driver": "1", "torch": "2", "triton": "3"}
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for file, outcome in zip(files, (f"{NO_VERDICT}: out of time", CLEAN), strict=True):
        found = {"locked_sum as it is": {"consan": {"outcome": outcome}}}
        file.write_text(json.dumps({"machine": machine, "found": found}), encoding="utf-8")
    monkeypatch.setattr("consan.agreement.RECORD", tmp_path / "record.json")
    main(*map(str, files))
    (row,) = read(tmp_path / "record.json").entries
    assert (row.consan, row.bare) == (CLEAN, f"{NO_VERDICT}: out of time")
    files[1].write_text(json.dumps({"machine": machine, "found": {"no case": {}}}), encoding="utf-8")
    with pytest.raises(ValueError, match="no cases: no case"):
        main(*map(str, files))
    files[1].write_text(json.dumps({"machine": {**machine, "gpu": "other"}, "found": {}}), encoding="utf-8")
    with pytest.raises(ValueError, match="not of one machine"):
        main(*map(str, files))


@dataclass(frozen=True)
class Silent:
    """A case that launches, or does not get so far, and is not heard of again."""

    name: str
    launches: bool
    group: str = AS_GENERATED
    subject: str = ""
    shape: tuple[int, ...] = ()
    planted: frozenset[str] = frozenset()
    stages: tuple[str, ...] = ("bare",)
    weight: int = 1

    def simulate(self, folder: Path) -> Simulated:
        return Simulated(fault=False, findings=())

    def observe(self, stage: str, folder: Path, device: Device) -> str:
        if self.launches:
            device.alive()
        time.sleep(600)
        return CLEAN

    def source(self, file: str, line: int, folder: Path) -> str:
        return ""


def test_what_launches_and_does_not_end_hangs_and_what_does_not_launch_has_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LIMITS_S, "bare", 1)
    cases = [
        Silent("hangs", launches=True),
        Silent("compiles", launches=False),
        Silent("waits", launches=True),
    ]
    found = measured(cases, 4, at_a_time=1, dry_run=True)
    outcomes = {name: stages["bare"].outcome for name, stages in found.items()}
    assert outcomes == {"hangs": "hangs", "compiles": f"{NO_VERDICT}: out of time"}
    row = entry(cases[2], Simulated(fault=False, findings=()), {})
    assert row.bare == f"{NO_VERDICT}: out of time"


# --- on a GPU


def check(numbers: Numbers) -> None:
    """Compare bits on integers, unless the epilogue leaves them; on normals, hold the rest to `tolerance`.

    For one element to eight times that: both results are rounded to D's type, and it may be a large one. An
    element of a gate is a product of two sums. Its limit is the one that `tolerance` derives for sums before
    they are rounded, and one unit in the last place of the largest element, as both results are rounded.
    """
    path = spec_file(numbers.module)
    spec = load_spec(path)
    m, n, k = numbers.shape
    allowed = tolerance(spec.problem, (m, n, k), spec.promote_k)
    assert numbers.different_bits == 0 or not is_exact(spec.problem)
    assert numbers.relative <= allowed.relative
    worst = 8 * allowed.relative
    if spec.problem.gated:
        worst = allowed.worst_element + 2 * HALF_ULP[spec.problem.d.name] * largest_element(numbers)
    assert numbers.worst_element <= worst


def largest_element(numbers: Numbers) -> float:
    """Return the largest magnitude of the exact D of recorded numbers, over its root mean square."""
    problem = MODULE_CASES[numbers.module].problem
    exact = reference(random_inputs(numbers.shape, problem, torch.Generator().manual_seed(0)), problem)
    return (exact.abs().max() / exact.square().mean().sqrt()).item()


@pytest.fixture(scope="module")
def observed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Mapping[str, Any]]:
    """Observe each case once: together what this session asks for, or, in a worker of pytest, by itself."""
    skip_without_hopper()
    found: dict[str, Any] = {}
    asked: set[str] = set()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for item in cast(list[Any], request.session.items):
            if "observed" in getattr(item, "fixturenames", ()):
                asked.add(item.callspec.params["name"])

    def observe(name: str) -> Mapping[str, Any]:
        if name not in found:
            file = tmp_path_factory.mktemp("observed") / "found.json"
            names = sorted(asked | {name})
            found.update(observed_by_device(names, file, f"--seconds={GPU_SECONDS}")["found"])
        return found

    return observe


def skip_without_hopper() -> None:
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))


def seen(observed: Callable[[str], Mapping[str, Any]], name: str) -> Entry:
    return entry(RECORDED[name], simulated(RECORDED[name]), observed(name)[name])


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECORDED)
def test_the_gpu_agrees_with_the_simulator(observed: Callable[[str], Mapping[str, Any]], name: str) -> None:
    row = seen(observed, name)
    assert row.measured, row
    assert not row.silent or row.by_gsan or patterns(DIFFERENCES, name), row
    if row.group in (AS_GENERATED, PROGRAMS_THAT_WAIT):
        assert (row.consan, row.bare) == (CLEAN, CLEAN), row


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMED)
def test_consan_names_a_planted_fault(observed: Callable[[str], Mapping[str, Any]], name: str) -> None:
    assert NAMED[name] in seen(observed, name).consan


@pytest.mark.gpu
@pytest.mark.parametrize("name", UNMUTATED)
def test_the_simulators_numbers_are_the_hardwares(
    observed: Callable[[str], Mapping[str, Any]], name: str
) -> None:
    (numbers,) = numbers_of({name: observed(name)[name]})
    check(numbers)
