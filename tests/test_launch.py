"""A launch in the simulator is written as for a GPU, and tells what is wrong in the author's own lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernels import copies, refused
from kernels.launch import lines_of
from modules import ROOT
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gluonsim import Kind, Result, execution, simulate
from gluonsim.clocks import Clock, Component, Tick, learn
from gluonsim.findings import Findings

gluon: Any = copies
"""Triton's decorators have no types."""
copy_kernel, scaled_kernel, descriptors = gluon.copy_kernel, gluon.scaled_kernel, gluon.descriptors
COPIES = ROOT / "tests" / "kernels" / "copies.py"
GENERATOR_ONLY = ("jinja2", "matplotlib", "numpy", "pydantic", "rich", "ruamel", "typer")


def tensors() -> tuple[Tensor, Tensor]:
    source = torch.arange(64 * 32, dtype=torch.float32).reshape(64, 32)
    return source, torch.full_like(source, float("nan"))


def copied(**options: Any) -> Result:
    source, target = tensors()
    kernel = simulate(copy_kernel, expect={"out_desc": source}, **options)
    return kernel[1](*descriptors(source, target), 4, True, num_warps=4)


def raced() -> Result:
    source, target = tensors()
    return simulate(copy_kernel)[(1,)](*descriptors(source, target), 4, awaited=False, num_warps=4)


# --- what it needs


def test_the_engine_needs_torch_and_triton_alone() -> None:
    program = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {GENERATOR_ONLY}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import warnings
warnings.simplefilter("ignore")  # torch says that it has no NumPy
sys.path.insert(0, {str(ROOT / "tests")!r})
import torch
from kernels.copies import copy_kernel, descriptors
from gluonsim import simulate
source, target = torch.ones(64, 32), torch.zeros(64, 32)
result = simulate(copy_kernel, expect={{"out_desc": source}})[1](*descriptors(source, target), 4, True, 4)
assert result.findings == (), result
from kernels.atomics import locked_sum_kernel
x, total, lock = (torch.full(size, fill).int() for size, fill in (((6, 128), 1), ((128,), 0), ((1,), 0)))
result = simulate(locked_sum_kernel, expect={{"total_ptr": x.sum(0).int()}})[6](x, total, lock)
assert result.findings == (), result
print(sorted(name for name in sys.modules if name.startswith("gemmgen.")))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    parts = {name.split(".")[1] for name in json.loads(ran.stdout.replace("'", '"'))}
    assert parts == {
        "cache",
        "errors",
        "hardware",
        "literals",
        "module",
        "numerics",
        "processes",
        "python_source",
        "triton_api",
        "triton_errors",
    }


# --- binding


@pytest.mark.parametrize("target", ["h100", "sm90", "sm_90a", "b200", "sm100"])
def test_a_target_is_a_gpu_or_a_compute_capability(target: str) -> None:
    assert copied(target=target, schedules=("lazy",)).findings == ()


def enough(meta: Mapping[str, Any]) -> tuple[int]:
    return (-(-meta["count"] // meta["block"]),)


@pytest.mark.parametrize("grid", [3, (3,), [3, 1, 1], enough])
def test_a_grid_is_a_number_or_several_or_a_function_of_the_arguments(grid: Any) -> None:
    source, target = torch.arange(300.0), torch.zeros(300)
    result = simulate(scaled_kernel, expect={"out_ptr": source * 3})[grid](
        source, target, 300, factor=3.0, block=128
    )
    assert result.findings == ()
    assert result.grid == (3, 1, 1)


def test_a_parameter_may_have_the_name_of_an_option_of_the_simulator() -> None:
    source, target = torch.arange(128.0), torch.zeros(128)
    result = simulate(scaled_kernel)[1](source, target, 128, 2.0, block=128, seed=7, num_warps=4)
    assert result.findings == ()
    assert torch.equal(target, source * 2)


def test_warps_that_are_a_parameter_too_are_those_of_the_launch() -> None:
    source, target = tensors()
    four = simulate(copy_kernel)[1](*descriptors(source, target), 4, True, num_warps=4)
    assert four.findings == ()
    positional = simulate(copy_kernel)[1](*descriptors(source, target), 4, True, 4)
    assert positional.findings == ()


def eight() -> Tensor:
    return torch.zeros(8)


REFUSED: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], str]] = {
    "missing": (1, (eight(),), {}, "missing 4 required positional arguments"),
    "unknown": (1, (eight(), eight(), 8, 1.0, 128), {"blok": 3}, "blok was specified but unrecognised"),
    "no grid": ("many", (eight(), eight(), 8, 1.0, 128), {}, "the grid is 'many'"),
    "four axes": ((1, 1, 1, 1), (eight(), eight(), 8, 1.0, 128), {}, "one to three numbers"),
    "no type": (1, (object(), eight(), 8, 1.0, 128), {}, "object"),
    "elsewhere": (
        1,
        (torch.zeros(8, device="meta"), eight(), 8, 1.0, 128),
        {},
        "in_ptr is on meta: tensors must be on the CPU",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_kernel_does_not_take_is_refused_in_one_line(case: str) -> None:
    grid, args, keywords, told = REFUSED[case]
    with pytest.raises(GemmgenError) as caught:
        simulate(scaled_kernel)[grid](*args, **keywords)
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_gluon_kernel_is_refused() -> None:
    for kernel in (print, gluon.not_gluon, 3):
        with pytest.raises(GemmgenError, match=r"simulate what `@gluon\.jit` decorates"):
            simulate(kernel)[1]()


UNCOMPILED = ROOT / "tests" / "kernels" / "refused.py"


@pytest.mark.parametrize(
    ("kernel", "told", "quoted"),
    [
        (
            "in_a_function",
            "Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 32",
            ("# in a function", "# the call"),
        ),
        ("a_name", "NameError('nothing is not defined')", ("# a name",)),
        ("an_assertion", "CompileTimeAssertionFailure: eight warps are needed", ("# an assertion",)),
        (
            "a_layout",  # that a later stage refuses
            (
                "Result has an invalid layout: #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [16], "
                "warpsPerCTA = [4], order = [0]}>. Layout has 16 threads per warp, but the module specifies "
                "32 threads per warp."
            ),
            ("# a layout",),
        ),
    ],
)
def test_what_triton_refuses_is_told_as_a_finding_is(kernel: str, told: str, quoted: tuple[str, ...]) -> None:
    lines = [(min(lines_of(UNCOMPILED, mark)), mark) for mark in quoted]
    source = UNCOMPILED.read_text(encoding="utf-8").splitlines()
    places = "; ".join(f"{UNCOMPILED}:{line} `{source[line - 1].strip()}`" for line, _ in lines)
    with pytest.raises(GemmgenError) as error:
        simulate(vars(refused)[kernel])[1,](torch.zeros(64))
    head = f"{UNCOMPILED}:{lines[0][0]}: error[lowering-failed]: Triton refuses the kernel: "
    assert str(error.value) == f"{head}{told} ({places})"


def test_an_unknown_target_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(GemmgenError, match="there are h100, h200, b200; sm90 and sm100 name the first GPU"):
        simulate(scaled_kernel, "sm80")


def test_schedules_are_names() -> None:
    with pytest.raises(GemmgenError, match="schedules is 'lazy': it must be a sequence of names"):
        copied(schedules="lazy")


# --- numbers


def test_a_wrong_number_is_a_finding_with_its_place_and_both_values() -> None:
    source, target = torch.arange(128.0), torch.zeros(128)
    expected = source.clone()
    expected[5] = 7
    result = simulate(scaled_kernel, expect={"out_ptr": expected})[1](source, target, 128, 1.0, 128)
    (finding,) = result.findings
    assert finding.kind is Kind.WRONG_NUMBERS
    assert finding.text == "1 of 128 elements are wrong, the first at [5]: 5, not 7"
    assert finding.snippet.startswith("gl.store(")
    assert (
        simulate(scaled_kernel, expect={"out_ptr": expected}, atol=2.0)[1](
            source, target, 128, 1.0, 128
        ).findings
        == ()
    )


def test_bits_are_compared_and_not_numbers() -> None:
    source, target = torch.zeros(128), torch.ones(128)
    result = simulate(scaled_kernel, expect={"out_ptr": -source})[1](source, target, 128, 1.0, 128)
    assert "128 of 128 elements are wrong" in result.findings[0].text


def test_a_reference_gets_the_arguments_that_it_names() -> None:
    source, target = tensors()

    def reference(in_desc: Tensor, tiles: int) -> dict[str, Tensor]:
        return {"out_desc": in_desc * (tiles - 3)}

    result = simulate(copy_kernel, reference=reference)[1](*descriptors(source, target), 4, True, 4)
    assert result.findings == ()

    def deeper(depth: int) -> dict[str, Tensor]:
        raise AssertionError(depth)

    with pytest.raises(GemmgenError, match="no parameter depth, which the reference takes"):
        simulate(copy_kernel, reference=deeper)[1](*descriptors(source, target), 4, True, 4)


@pytest.mark.parametrize(
    ("name", "wanted", "told"),
    [
        ("out", torch.zeros(128), "no run-time parameter out, which is expected"),
        ("count", torch.zeros(128), "count is no tensor"),
        ("out_ptr", torch.zeros(64), r"has the shape \[128\], and what is expected \[64\]"),
        ("out_ptr", torch.zeros(128).half(), "give a tolerance, or convert it"),
    ],
)
def test_an_expectation_that_does_not_fit_is_refused(name: str, wanted: Tensor, told: str) -> None:
    with pytest.raises(GemmgenError, match=told):
        simulate(scaled_kernel, expect={name: wanted})[1](torch.zeros(128), torch.zeros(128), 128, 1.0, 128)


# --- what it returns


def test_a_finding_has_file_line_and_snippet() -> None:
    finding = raced().findings[0]
    assert finding.kind is Kind.WRITE_AFTER_READ
    assert finding.file == str(COPIES)
    assert finding.line in lines_of(COPIES, "tma.async_load(in_desc, [row, 0]")
    assert finding.snippet == "tma.async_load(in_desc, [row, 0], ready, buffer)"
    assert str(finding).startswith(f"{COPIES}:{finding.line}: error[write-after-read] buffer: ")


def test_a_finding_says_who_does_it_where_there_are_others() -> None:
    found = Findings()
    text = "x[0]: TMA load overwrites it while the wgmma at line 3 ({}) may still read it"
    for other in ("partition 0 of CTA 0", "partition 1 (load) of CTA 0", "partition 1 (load) of CTA 1"):
        for partition, cta in (("partition 0", 0), ("partition 1 (load)", 1)):
            found.add(Kind.WRITE_AFTER_READ, f"{other} {cta}", (), partition, cta, text.format(other))
    told = [finding.diagnostic.message for finding in found.all()]
    begin, end = "x[0]: TMA load overwrites it while the wgmma at line 3", " may still read it"
    assert told == [
        f"{begin}{end}",
        f"{begin} (partition 0 of CTA 0){end} (partition 1 (load) of CTA 1)",
        f"{begin} (partition 1 (load) of CTA 0){end}",
        f"{begin} (partition 1 (load) of CTA 0){end} (partition 1 (load) of CTA 1)",
        f"{begin} (partition 1 (load) of CTA 1){end}",
        f"{begin}{end} (partition 1 (load) of CTA 1)",
    ]


def test_a_race_names_its_remedy() -> None:
    (finding,) = raced().findings
    store, load = (min(lines_of(COPIES, text)) for text in ("tma.async_store(", "tma.async_load("))
    told = f"TMA load overwrites it while the TMA store at line {store} may still read it: tma.store_wait"
    lines = COPIES.read_text(encoding="utf-8").splitlines()
    places = "; ".join(f"{COPIES}:{line} `{lines[line - 1].strip()}`" for line in (load, store))
    assert str(finding) == (
        f"{COPIES}:{load}: error[write-after-read] buffer: {told} must come first ({places})"
    )


def test_findings_are_raised_when_asked_for() -> None:
    copied().raise_on_findings()
    with pytest.raises(GemmgenError, match=r"copies\.py:\d+: error\[write-after-read\]"):
        raced().raise_on_findings()


def test_a_result_says_what_was_run() -> None:
    assert str(copied(schedules=("lazy", "random"))) == "copy_kernel, grid 1 x 1 x 1: 2 schedules, 0 findings"
    assert "1 finding\n" in str(raced())


def test_a_result_has_notes() -> None:
    source, target = tensors()
    short = simulate(copy_kernel)[1,](*descriptors(source, target), 2, True, num_warps=4)
    assert short.notes == ("faults may hide in barriers with fewer than 3 phases: ready",)
    assert str(short).endswith(f"0 findings\nnote: {short.notes[0]}")
    assert copied().notes == ()
    race = raced()
    assert (race.deterministic, race.notes) == (False, ())  # which the finding says


def test_json_holds_findings_and_coverage() -> None:
    found = json.loads(raced().json())
    assert found["kernel"] == "copy_kernel"
    assert found["findings"][0]["file"] == str(COPIES)
    assert found["phases"] == {"ready": 4}


def test_sarif_has_what_version_2_1_0_requires() -> None:
    result = raced()
    log = json.loads(result.sarif())
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(run["results"]) == len(result.findings)
    for found, finding in zip(run["results"], result.findings, strict=True):
        assert found["message"]["text"]
        assert found["level"] in ("none", "note", "warning", "error")
        assert rules[found["ruleIndex"]] == found["ruleId"] == finding.kind
        place = found["locations"][0]["physicalLocation"]
        assert place["region"] == {"startLine": finding.line, "snippet": {"text": finding.snippet}}
        assert place["artifactLocation"]["uri"].endswith("tests/kernels/copies.py")
    assert json.loads(copied().sarif())["runs"][0]["results"] == []


def test_wrong_numbers_are_told_after_what_may_be_their_cause() -> None:
    found = Findings()
    for kind in (Kind.WRONG_NUMBERS, Kind.DEADLOCK, Kind.GLOBAL_RACE, Kind.BYTE_COUNT):
        found.add(kind, "x", (), "", 0, "")
    assert [finding.kind for finding in found.all()] == [
        Kind.BYTE_COUNT,
        Kind.GLOBAL_RACE,
        Kind.DEADLOCK,
        Kind.WRONG_NUMBERS,
    ]


def test_what_comes_after_a_fault_of_its_run_is_told_after_it() -> None:
    producer, consumer = Component(0, 0), Component(0, 1)

    def told() -> list[str]:
        return [finding.name for finding in found.all()]

    def clock(component: Component, number: int) -> Clock:
        known: Clock = {}
        learn(known, component, number)
        return known

    found = Findings()
    found.begin_run()
    assert not found.faulty
    assert not found.follows(clock(producer, 9))
    found.add(Kind.WRITE_AFTER_WRITE, "cause", (), "", 0, "", moment=Tick(producer, 2))
    assert found.faulty
    assert [found.follows(clock(producer, now)) for now in (1, 2, 3)] == [False, True, True]
    found.add(Kind.READ_AFTER_WRITE, "effect", (), "", 0, "", follows=found.follows(clock(producer, 3)))
    found.add(Kind.READ_AFTER_WRITE, "apart", (), "", 0, "", follows=found.follows(clock(consumer, 3)))
    found.add(Kind.DEADLOCK, "end", (), "", 0, "")
    assert told() == ["apart", "cause", "effect", "end"]
    # A run of another schedule that shows the effect alone shows that it is none.
    found.begin_run()
    found.add(Kind.READ_AFTER_WRITE, "effect", (), "", 0, "", follows=found.follows(clock(producer, 3)))
    assert told() == ["effect", "apart", "cause", "end"]


SCHEDULES = ("lazy", "eager", "lifo", "random", "random", "random", "random")


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Divide the shortest schedules too; the processes that were forked for them."""
    shares: list[int] = []
    beside = execution._beside  # pyright: ignore[reportPrivateUsage]

    def counted(schedules: Any, policies: Any, processes: int) -> Any:
        shares.append(processes)
        return beside(schedules, policies, processes)

    monkeypatch.setattr(execution, "SECONDS_WORTH_A_PROCESS", 0.0)
    monkeypatch.setattr(execution, "_beside", counted)
    return shares


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("processes", [2, 3, 64])
def test_schedules_in_processes_show_what_they_show_in_one(
    divided: list[int], processes: int, awaited: bool
) -> None:
    def ran(processes: int) -> tuple[Result, Tensor]:
        source, target = tensors()
        arguments = (*descriptors(source, target), 4, awaited)
        kernel = simulate(copy_kernel, schedules=SCHEDULES, processes=processes, expect={"out_desc": source})
        return kernel[1](*arguments, num_warps=4), target

    (alone, left), (together, left_together) = ran(1), ran(processes)
    assert divided == [min(processes, len(SCHEDULES) - 1)]
    assert replace(together, trace=alone.trace) == alone
    assert together.trace.spans == alone.trace.spans
    assert bool(together.findings) is not awaited
    assert left_together.equal(left)


def test_what_another_process_refuses_is_refused(divided: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    run_one, here = execution._Schedules.run, os.getpid()  # pyright: ignore[reportPrivateUsage]

    def refuses(schedules: Any, position: int) -> Any:
        if os.getpid() != here:
            raise GemmgenError([Diagnostic("kernel.py", "unknown-operation", "of a random schedule", line=3)])
        return run_one(schedules, position)

    monkeypatch.setattr(execution._Schedules, "run", refuses)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(GemmgenError, match=r"kernel\.py:3: error\[unknown-operation\]: of a random"):
        copied(schedules=SCHEDULES, processes=2)
    assert divided == [2]


def test_a_process_that_is_lost_is_told(divided: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    run_one, here = execution._Schedules.run, os.getpid()  # pyright: ignore[reportPrivateUsage]

    def dies(schedules: Any, position: int) -> Any:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_one(schedules, position)

    monkeypatch.setattr(execution._Schedules, "run", dies)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(GemmgenError, match=r"ended without a result \(signal 9\): processes=1 needs none"):
        copied(schedules=SCHEDULES, processes=2)
    assert divided == [2]


def test_processes_are_a_positive_number() -> None:
    with pytest.raises(GemmgenError, match="processes is 0: it must be positive"):
        copied(processes=0)


def test_a_launch_says_how_many_programs_are_resident() -> None:
    with pytest.raises(GemmgenError, match="resident_programs is 0: it must be positive"):
        copied(resident_programs=0)
