"""simulate and build on the command line: every fault is told in the module's own names and lines."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import Gemmgen

import gemmgen.build
from gemmgen.build import build
from gemmgen.errors import GemmgenError
from gemmgen.lower import Lowered, Resources
from gemmgen.product import Product, make

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "specs" / "h100_bf16.yaml"


pytest_plugins = ["commands"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands in an empty directory."""
    monkeypatch.chdir(tmp_path)


def mutant(*changes: tuple[str, str]) -> Product:
    """The product of a spec with a fault in its module."""
    product = make(SPEC)
    module = product.module
    for old, new in changes:
        assert old in module, f"{product.source.stem} has no {old!r}"
        module = module.replace(old, new)
    return replace(product, module=module)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Product], None]:
    """Lets every stage find a product in place of the spec's own."""

    def plant(product: Product) -> None:
        def make(*_: object) -> Product:
            return product

        monkeypatch.setattr("gemmgen.cli.prove.make", make)
        monkeypatch.setattr(gemmgen.build, "make_of", make)
        monkeypatch.setattr(gemmgen.build, "make_as_built", make)

    return plant


# --- the command


def test_a_clean_kernel_is_reported_on_stdout(gemmgen_: Gemmgen) -> None:
    ran = gemmgen_("simulate", SPEC, "--schedules", 1)
    assert (ran.code, ran.diagnostics) == (0, [])
    assert ran.stdout.startswith(f"{SPEC}: ")
    (report,) = gemmgen_("simulate", SPEC, "--schedules", 1, "--json").results.values()
    assert (report["module"], report["findings"]) == ("h100_bf16.py", [])
    # 4 stages: 10 steps of 64, and 2 x 2 tiles of 128 x 256, the last third of each left out.
    # Groups are 16 tiles high: 17 x 3 tiles.
    assert [
        (launch["shape"], launch["programs"], len(launch["schedules"])) for launch in report["launches"]
    ] == [([214, 427, 619], 1, 4), ([2134, 683, 43], 2, 1)]
    assert list(Path().iterdir()) == []


def test_a_pinned_shape_that_wraps_no_ring_is_a_note(gemmgen_: Gemmgen) -> None:
    ran = gemmgen_("simulate", SPEC, "--schedules", 0, "--shape", "128x256x256")
    assert (ran.code, ran.diagnostics) == (0, [])
    # Four steps of K fill each of four stages once.
    *_, note = ran.stdout.splitlines()
    assert note.startswith("  note: 128x256x256: ")
    assert note.endswith(": load_ready (1), load_empty (1)")


RELEASE = "        mbarrier.arrive(args.load_empty.index(ring.stage))\n"
FAULTS = {
    # The consumer waits for the phase before: what the stage holds then is not the tile's.
    "a flipped phase": (
        ("load_ready.index(ring.stage), ring.phase", "load_ready.index(ring.stage), ring.phase ^ 1"),
        r"h100_bf16\.py:(\d+): error\[uninitialised-read\] (a_smem_0|a_smem_1|b_smem): .+",
        "warpgroup_mma(a_tile, ",
    ),
    "a release that is missing": (
        (RELEASE, ""),
        r"h100_bf16\.py:(\d+): error\[deadlock\] load_empty: nothing can go on\. .+ 0 of 2 arrivals .+",
        "mbarrier.wait(args.load_empty.index(ring.stage), ring.phase)",
    ),
    "an MMA that is not awaited": (
        ("warpgroup_mma_wait(0, deps", "warpgroup_mma_wait(1, deps"),
        r"h100_bf16\.py:(\d+): error\[write-after-read\] (a_smem_0|a_smem_1|b_smem): .+",
        "tma.async_load(",
    ),
    "a fence that is missing": (
        ("    fence_async_shared()\n", ""),
        r"h100_bf16\.py:(\d+): warning\[missing-fence\] (d_smem_[01]): .+; Triton 3\.9 inserts it \(.+\)",
        "tma.async_store(",
    ),
    "a column that is wrong": (
        ("row, column, left)", "row, column + SUBTILE_N, left)"),
        r"h100_bf16\.py: error\[wrong-numbers\] d_desc: \S+ [\d,]+ of 91,378 elements of d .+: nan, not .+",
        None,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_with_its_lines_and_exits_with_1(
    gemmgen_: Gemmgen, planted: Callable[[Product], None], fault: str
) -> None:
    change, expected, quoted = FAULTS[fault]
    product = mutant(change)
    planted(product)
    ran = gemmgen_("simulate", SPEC, "--schedules", 1)
    assert ran.code == 1
    matches = [match for line in ran.diagnostics if (match := re.fullmatch(expected, line))]
    assert matches, ran.stderr
    if quoted is not None:
        line = int(matches[0][1])
        assert quoted in product.module.splitlines()[line - 1]
        assert re.search(rf"\(partition \d \(\w+\) of CTA 0; h100_bf16\.py:{line} `", matches[0][0])
        assert quoted in matches[0][0]


def test_faults_are_json_too(gemmgen_: Gemmgen, planted: Callable[[Product], None]) -> None:
    planted(mutant((RELEASE, "")))
    ran = gemmgen_("simulate", SPEC, "--schedules", 0, "--json")
    (report,) = json.loads(ran.stdout)["results"].values()
    finding = report["findings"][0]
    assert ran.code == 1
    assert {"kind": "deadlock", "severity": "error", "cta": 0}.items() <= finding.items()
    assert all(isinstance(line, int) for line in finding["lines"])


def test_what_the_simulator_does_not_know_is_told_by_the_modules_name(
    gemmgen_: Gemmgen, planted: Callable[[Product], None]
) -> None:
    planted(mutant(("    tma.store_wait(0)\n", "    tma.store_wait(nothing)\n")))
    ran = gemmgen_("simulate", SPEC)
    (diagnostic,) = ran.diagnostics
    assert (ran.code, ran.stdout) == (1, "")
    told = r"h100_bf16\.py:\d+: error\[lowering-failed\]: Triton refuses the kernel: NameError.+"
    assert re.fullmatch(rf"{told} \(h100_bf16\.py:\d+ `tma.store_wait\(nothing\)`; .+\)", diagnostic)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [SPEC, "--shape", "128x256"],
        [SPEC, "--shape", "0x1x1"],
        [SPEC, "--shape", "8192x8192x8192"],
        [SPEC, "--schedules", "-1"],
        [SPEC, "--seed", "-1"],
        [SPEC, SPEC, "--trace", "trace.json"],
        [SPEC, "--trace", "."],
        [SPEC, "--trace", "nowhere/trace.json"],
    ],
    ids=lambda arguments: " ".join(map(str, arguments[1:])) or "nothing",
)
def test_wrong_usage_exits_with_2(gemmgen_: Gemmgen, arguments: list[object]) -> None:
    ran = gemmgen_("simulate", *arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert "Error: " in ran.stderr


# --- the timeline


def test_a_timeline_shows_the_pipeline(gemmgen_: Gemmgen) -> None:
    spec = ROOT / "specs" / "h100_bf16_cluster2x1.yaml"
    assert gemmgen_("simulate", spec, "--schedules", 0, "--trace", "trace.json").code == 0
    events: list[dict[str, Any]] = json.loads(Path("trace.json").read_text())["traceEvents"]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert processes == {"CTA 0", "CTA 1"}
    assert {"partition 0 (consumer_partition)", "partition 2 (producer_partition) loads"} <= rows

    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for line in spans.values():
        line.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(line))

    assert {event["cat"] for event in events if event["ph"] == "X"} == {
        *("load", "mma", "store", "wait"),
        "arrive",  # the last one of a phase, where an arrow begins
    }
    # Perfetto binds each end of an arrow to the span that it lies in.
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len(arrows) > 100
    for event in arrows:
        line = spans[event["pid"], event["tid"]]
        assert any(begin < event["ts"] < end for begin, end in line)


# --- build


def nothing_lowered(*arguments: object, **options: object) -> Lowered:
    return Lowered({}, Resources(0, 0, 0, 0, 0, 0, (), {}, False, (), 0, ()))


def test_a_build_simulates_before_it_writes(gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemmgen.build, "lower", nothing_lowered)
    ran = gemmgen_("build", SPEC)
    assert ran.code == 0
    assert ran.stdout.endswith("\nwrote generated/h100_bf16.py\n")
    (report,) = json.loads(gemmgen_("build", SPEC, "--json").stdout)["results"]
    assert report["simulation"]["launches"][0]["schedules"] == ["lazy", "eager", "random"]


def test_a_fault_that_the_simulation_finds_keeps_the_module_from_being_written(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch, planted: Callable[[Product], None]
) -> None:
    monkeypatch.setattr(gemmgen.build, "lower", nothing_lowered)
    planted(mutant((RELEASE, "")))
    ran = gemmgen_("build", SPEC)
    assert (ran.code, ran.stdout) == (1, "")
    assert "error[deadlock] load_empty: nothing can go on." in ran.stderr
    assert not Path("generated").exists()


@pytest.mark.parametrize("option", ["--no-simulate", "--no-lower"])
def test_a_build_can_do_without_the_simulation(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch, planted: Callable[[Product], None], option: str
) -> None:
    monkeypatch.setattr(gemmgen.build, "lower", nothing_lowered)
    planted(mutant((RELEASE, "")))
    ran = gemmgen_("build", SPEC, option)
    assert (ran.code, ran.diagnostics) == (0, [])
    assert "simulated" not in ran.stdout
    assert Path("generated/h100_bf16.py").exists()


def test_what_the_compiler_refuses_is_told_in_its_words_not_the_simulators(
    tmp_path: Path, planted: Callable[[Product], None]
) -> None:
    planted(mutant(("    tma.store_wait(0)\n", "    tma.store_wait(nothing)\n")))
    with pytest.raises(GemmgenError) as caught:
        build(SPEC, tmp_path)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.path == str(SPEC)
    assert list(tmp_path.iterdir()) == []


# --- programs

COPIES = ROOT / "tests" / "kernels" / "copies.py"
PROGRAM = """
import torch
from copies import copy_kernel, descriptors


def copy(awaited=True):
    source = torch.randn(64, 32, device="cuda")
    target = torch.empty_like(source)
    copy_kernel[(1,)](*descriptors(source, target), 4, awaited, num_warps=4)
    torch.cuda.synchronize()
    torch.testing.assert_close(source, target)
    print("compared")


def race():
    copy(awaited=False)


def fails():
    raise ValueError("its own reason")


def takes(size):
    pass


if __name__ == "__main__":
    copy()
"""


@pytest.fixture
def program(gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program and its kernels in the current directory."""
    monkeypatch.delitem(sys.modules, "copies", raising=False)  # that another test's program imported
    Path("copies.py").write_text(COPIES.read_text(encoding="utf-8"))
    path = Path("program.py")
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("subject", ["program.py", "program.py::copy"])
def test_a_program_runs_as_on_a_gpu(gemmgen_: Gemmgen, program: Path, subject: str) -> None:
    ran = gemmgen_("simulate", subject, "--schedules", "1", "--trace", "trace.json")
    assert ran.code == 0
    assert ran.stdout == f"{subject}: copy_kernel, grid 1 x 1 x 1: 4 schedules, 0 findings\n"
    assert "compared" in ran.stderr
    assert json.loads(Path("trace.json").read_text())["traceEvents"]


DESCRIBED = "*descriptors(torch.ones(64, 32), torch.zeros(64, 32)), 4"


def test_a_kernel_of_a_file_is_launched_as_the_shell_says(gemmgen_: Gemmgen, program: Path) -> None:
    subject = "copies.py::copy_kernel"
    given = ("--grid", "1,", "--schedules", "0", "--args")
    ran = gemmgen_("simulate", subject, *given, f"{DESCRIBED}, True, num_warps=8")
    assert ran.code == 0
    assert ran.stdout == f"{subject}: copy_kernel, grid 1 x 1 x 1: 3 schedules, 0 findings\n"
    raced = gemmgen_("simulate", subject, *given, f"{DESCRIBED}, awaited=False, num_warps=4")
    assert raced.code == 1
    assert "error[write-after-read] buffer" in raced.diagnostics[0]


def test_a_function_of_a_file_is_called_as_the_shell_says(gemmgen_: Gemmgen, program: Path) -> None:
    ran = gemmgen_("simulate", "program.py::copy", "--args", "awaited=False", "--schedules", "0")
    assert "error[write-after-read] buffer" in ran.diagnostics[0]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("copies.py::copy_kernel",), "no-grid"),
        (
            ("copies.py::copy_kernel", "--grid", "-1", "--args", f"{DESCRIBED}, True, num_warps=4"),
            "bad-launch",
        ),
        (("program.py::copy", "--grid", "1"), "no-kernel"),
        (("copies.py::copy_kernel", "--grid", "1", "--args", "unknown"), "bad-arguments"),
        (("copies.py::copy_kernel", "--grid", "1 +", "--args", "1"), "bad-arguments"),
        (("copies.py::copy_kernel", "--grid", "1", "--args", "1"), "bad-launch"),
    ],
)
def test_what_cannot_be_called_is_wrong_usage_in_one_line(
    gemmgen_: Gemmgen, program: Path, arguments: tuple[str, ...], code: str
) -> None:
    ran = gemmgen_("simulate", *arguments)
    assert (ran.code, ran.codes) == (2, [code])


def test_a_race_of_a_program_is_told_with_its_line(gemmgen_: Gemmgen, program: Path) -> None:
    ran = gemmgen_("simulate", "program.py::race", "--schedules", "0", "--sarif", "found.sarif", "--json")
    assert ran.code == 1
    (line,) = (
        i for i, text in enumerate(COPIES.read_text().splitlines(), 1) if "async_load(in_desc, [row" in text
    )
    assert any(re.search(rf"copies\.py:{line}: error\[write-after-read\] buffer", d) for d in ran.diagnostics)
    (result,) = json.loads(ran.stdout)["results"]["program.py::race"]
    assert result["findings"][0]["line"] == line
    assert json.loads(Path("found.sarif").read_text())["runs"][0]["results"]


def test_the_timeline_is_of_the_launch_with_an_error(gemmgen_: Gemmgen, program: Path) -> None:
    Path("both.py").write_text("from program import copy, race\ncopy()\nrace()\n")
    gemmgen_("simulate", "both.py", "--schedules", "0", "--trace", "trace.json")
    events: list[dict[str, Any]] = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert [event["cat"] for event in events if event["ph"] == "i"] == ["error"]


def test_a_wait_that_is_missing_at_the_end_is_named(gemmgen_: Gemmgen, program: Path) -> None:
    end = "    tma.store_wait(0)\n    mbarrier.invalidate"
    copies = Path("copies.py").read_text()
    assert end in copies
    Path("copies.py").write_text(copies.replace(end, "    mbarrier.invalidate"))
    ran = gemmgen_("simulate", "program.py::race", "--schedules", "0")
    told = "error[work-in-flight] buffer: partition 0 "
    assert [line for line in ran.diagnostics if told in line and "tma.store_wait(0)" in line]


def test_what_a_program_says_of_wrong_numbers_comes_after_their_cause(
    gemmgen_: Gemmgen, program: Path
) -> None:
    Path("program.py").write_text(PROGRAM.replace("assert_close(source, target)", "assert_close(0, 1)"))
    ran = gemmgen_("simulate", "program.py::race", "--schedules", "0")
    assert [re.findall(r"\[([\w-]+)\]", line)[0] for line in ran.diagnostics] == [
        "write-after-read",
        "program-failed",
    ]


def test_notes_of_a_program_are_told(gemmgen_: Gemmgen, program: Path) -> None:
    Path("program.py").write_text(
        PROGRAM.replace("4, awaited", "2, awaited").replace("close(source, target)", "close(0, 0)")
    )
    ran = gemmgen_("simulate", "program.py::copy", "--schedules", "0")
    _, note = ran.stdout.splitlines()
    assert note.startswith("  note: copy_kernel: ")
    assert note.endswith(": ready")


@pytest.mark.parametrize(
    ("subject", "code", "told"),
    [
        ("program.py::fails", 1, "program.py:20: error[program-failed]: ValueError: its own reason"),
        ("program.py::takes", 2, "program.py: error[no-function]: "),
        ("program.py::none", 2, "program.py: error[no-function]: "),
        ("none.py", 2, "none.py: error[no-file]: "),
    ],
)
def test_a_program_that_does_not_run_is_an_error_in_one_line(
    gemmgen_: Gemmgen, program: Path, subject: str, code: int, told: str
) -> None:
    ran = gemmgen_("simulate", subject)
    assert ran.code == code
    (diagnostic,) = ran.diagnostics
    assert diagnostic.startswith(told)


@pytest.mark.parametrize(
    "arguments",
    [
        ("program.py", SPEC),
        ("program.py", "--shape", "1x1x1"),
        (SPEC, "--programs", "2"),
        (SPEC, "--grid", "1"),
        ("program.py", "--args", "1"),
        ("program.py", "--target", "sm75"),
        (SPEC, "--target", "sm90"),
        (SPEC, "--target", "sm999"),
        ("program.py", "--programs", "0"),
        ("program.py", "--no-such-option"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    gemmgen_: Gemmgen, program: Path, arguments: tuple[object, ...]
) -> None:
    assert gemmgen_("simulate", *arguments).code == 2


def test_a_persistent_kernel_runs_with_the_programs_that_are_asked_for(gemmgen_: Gemmgen) -> None:
    ran = gemmgen_(
        "simulate", SPEC, "--shape", "256x512x128", "--programs", "3", "--schedules", "0", "--json"
    )
    assert ran.code == 0
    (found,) = json.loads(ran.stdout)["results"].values()
    assert [launch["programs"] for launch in found["launches"]] == [3, 3]


MANY = """
import torch
from copies import scaled_kernel


def scale():
    x = torch.ones(20 * 128, device="cuda")
    scaled_kernel[(20,)](x, torch.empty_like(x), 20 * 128, 2.0, 128, num_warps=4)
"""


def test_a_sample_of_the_programs_can_run(gemmgen_: Gemmgen, program: Path) -> None:
    Path("many.py").write_text(MANY)
    ran = gemmgen_("simulate", "many.py::scale", "--programs", "3", "--schedules", "0")
    assert ran.code == 0
    assert " 3 of its 20 programs" in ran.stdout
    (found,) = json.loads(gemmgen_("simulate", "many.py::scale", "--programs", "3", "--json").stdout)[
        "results"
    ]["many.py::scale"]
    assert (found["programs"], found["sample"]) == (3, True)


def test_a_sample_of_programs_that_wait_for_each_other_is_wrong_usage(gemmgen_: Gemmgen) -> None:
    Path("atomics.py").write_text((ROOT / "tests" / "kernels" / "atomics.py").read_text(encoding="utf-8"))
    arguments = "torch.zeros(512), torch.zeros(4, dtype=torch.int32), num_warps=4"
    ran = gemmgen_(
        "simulate", "atomics.py::announce_kernel", "--grid", "4", "--args", arguments, "--programs", "2"
    )
    assert (ran.code, ran.codes) == (2, ["no-sample"])


def test_a_program_that_launches_nothing_is_no_success(gemmgen_: Gemmgen) -> None:
    Path("nothing.py").write_text("x = 1\n")
    ran = gemmgen_("simulate", "nothing.py")
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["no-launch"])


def test_a_lint_of_a_program_is_told_and_fails_nothing(gemmgen_: Gemmgen, program: Path) -> None:
    copies = Path("copies.py").read_text().replace("buffer, ready, tile & 1)", "buffer, ready, tile)")
    Path("copies.py").write_text(copies)  # parities up to 3, of which the hardware takes the lowest bit
    ran = gemmgen_("simulate", "program.py::copy", "--schedules", "0")
    assert ran.code == 0
    (told,) = (line for line in ran.diagnostics if line != "compared")  # which the program prints
    assert re.match(r".*copies\.py:\d+: warning\[wait-parity\] ready: ", told)
