"""The command line: what goes to stdout and stderr, exit codes, and no traceback for what a user can do."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import SPEC, Gemmgen, Ran
from modules import SPECS, WANTED
from ruamel.yaml import YAML

import gemmgen.device
from gemmgen import __version__, triton_api
from gemmgen.cli.app import COMMANDS as LISTED
from gemmgen.cli.commands import ListedCommand
from gemmgen.errors import install_advice
from gemmgen.hardware import TRITON
from gemmgen.product import Product
from gemmgen.spec.model import json_schema

ROOT = Path(__file__).parent.parent

pytest_plugins = ["commands"]


def subprocess_of(
    *arguments: object,
    environment: dict[str, str] | None = None,
    stderr: int = subprocess.PIPE,
    program: str = "-c",
    ignores_hangups: bool = False,
    **options: Any,
) -> subprocess.Popen[str]:
    """Start the command line in a process of its own, which can be interrupted, and whose terminal can end.

    The background jobs of a shell ignore interrupts, those of ``nohup`` hangups, and so does what they start:
    this test run, perhaps.
    """
    hangup = "signal.SIG_IGN" if ignores_hangups else "signal.SIG_DFL"
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"signal.signal(signal.SIGHUP, {hangup}); "
        f"sys.argv[0] = {program!r}; from gemmgen.__main__ import run; run()"
    )
    command = [sys.executable, "-c", start, *map(str, arguments)]
    # It compiles afresh: what interrupts it, or measures it, must find it at work.
    variables = os.environ | {"PYTHONPATH": str(ROOT), "GEMMGEN_CACHE_DIR": ""} | (environment or {})
    return subprocess.Popen(command, env=variables, text=True, stderr=stderr, **options)


# --- help and usage

COMMANDS = [str(command.name) for command in LISTED]


def test_no_summary_of_a_command_is_cut_at_80_columns(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = gemmgen_("--help").stdout
    listed = text[text.index("Commands:") :].splitlines()[1:]
    assert [line.split()[0] for line in listed if line] == COMMANDS
    assert [line for line in listed if "..." in line] == []
    assert max(map(len, listed)) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(gemmgen_: Gemmgen, command: str) -> None:
    ran = gemmgen_(command, "--help")
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"Usage: gemmgen {command} [OPTIONS]")
    assert re.search(r"^  [A-Z].+\.?$", ran.stdout, re.MULTILINE)
    assert gemmgen_(command, "-h") == ran
    of_typer = r"\.\.\.|[{}]|\[\[|<[a-z]"  # its brackets, ellipses and types
    assert not re.search(of_typer, ran.stdout)


def test_the_version_is_an_option(gemmgen_: Gemmgen) -> None:
    assert gemmgen_("--version") == Ran(0, f"gemmgen {__version__}\n", "")


def test_options_whose_placeholders_are_their_names_in_capitals_state_their_names() -> None:
    """Typer 0.27 takes such a placeholder for the name, so that --minutes MINUTES would be --MINUTES."""
    stated = set[str]()
    for path in sorted((ROOT / "gemmgen" / "cli").glob("*.py")):
        for parameter in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(parameter, ast.arg) and parameter.annotation):
                continue
            for call in ast.walk(parameter.annotation):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "typer.Option":
                    words = {word.arg: ast.unparse(word.value) for word in call.keywords}
                    if words.get("metavar") == repr(parameter.arg.upper()):
                        assert call.args, f"{path.name}: {parameter.arg}"
                        stated.add(parameter.arg)
    assert stated == {"args", "grid", "minutes", "name"}


def test_shells_can_complete_commands() -> None:
    variables = {"_GEMMGEN_COMPLETE": "complete_bash", "COMP_WORDS": "gemmgen si", "COMP_CWORD": "1"}
    process = subprocess_of(stdout=subprocess.PIPE, environment=variables, program="gemmgen")
    assert process.communicate() == ("simulate\n", "")


def test_shells_can_complete_the_options_of_a_command() -> None:
    words = {"COMP_WORDS": "gemmgen plan --cand", "COMP_CWORD": "2"}
    variables = {"_GEMMGEN_COMPLETE": "complete_bash", **words}
    process = subprocess_of(stdout=subprocess.PIPE, environment=variables, program="gemmgen")
    assert process.communicate() == ("--candidates\n", "")


@pytest.mark.parametrize("listed", LISTED, ids=COMMANDS)
def test_the_listed_line_of_a_command_is_the_first_of_its_help(listed: ListedCommand) -> None:
    help_of_command = listed.loaded().help
    assert help_of_command
    assert help_of_command.partition("\n")[0] == listed.help


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["plan"],
        ["build"],
        ["lower"],
        ["simulate"],
        ["plan", "--out", "x", "good.yaml"],
        ["build", "good.yaml", "--emit", "ptx,nonsense"],
        ["build", "good.yaml", "--emit", "ptx", "--no-lower"],
        ["build", "good.yaml", "--out"],
        ["doctor", "good.yaml"],
    ],
)
def test_wrong_usage_is_told_on_stderr_and_exits_with_2(
    gemmgen_: Gemmgen, good: Path, arguments: list[str]
) -> None:
    ran = gemmgen_(*arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert re.search(r"^Error: .+\.?$", ran.stderr, re.MULTILINE)
    assert "Traceback" not in ran.stderr
    assert list(Path().iterdir()) == [good]


# --- what a user can get wrong


def too_many_stages() -> str:
    return SPEC + "buffering: {stages: 9}\n"


BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a file that is not there": ("absent.yaml", lambda path: None, "file-missing"),
    "a directory": ("folder.yaml", lambda path: path.mkdir(), "file-type"),
    "a device": ("device.yaml", lambda path: path.symlink_to("/dev/null"), "file-type"),
    "a link to nowhere": ("link.yaml", lambda path: path.symlink_to("nowhere"), "file-missing"),
    "an empty file": ("empty.yaml", lambda path: path.touch(), "file-empty"),
    "another type": ("spec.json", lambda path: path.write_text("{}"), "file-type"),
    "bytes that are no text": ("bytes.yaml", lambda path: path.write_bytes(b"\xff\x00"), "file-encoding"),
    "a huge file": ("huge.yaml", lambda path: path.write_text("#" * 100_000), "file-size"),
    "no YAML": ("text.yaml", lambda path: path.write_text("title: [\n"), "yaml-syntax"),
    "a list": ("list.yaml", lambda path: path.write_text("- 1\n"), "wrong-type"),
    "a key that there is not": ("key.yaml", lambda path: path.write_text(SPEC + "tiles: 1\n"), "unknown-key"),
    "a kernel that does not fit": (
        "deep.yaml",
        lambda path: path.write_text(too_many_stages()),
        "smem-capacity",
    ),
    "another generation": (
        "b200.yaml",
        lambda path: path.write_text(SPEC.replace("h100", "b200") + "warps: {m: 8}\n"),
        "target-choice",
    ),
}


def code_of(command: list[str], diagnosed: str) -> int:
    """The exit code for bad input: a file that is missing is wrong usage of the simulator."""
    return 2 if (command, diagnosed) == (["simulate"], "file-missing") else 1


@pytest.mark.parametrize(
    "command", [["plan"], ["build", "--no-lower"], ["check"], ["lower"], ["simulate"]], ids=" ".join
)
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_diagnosed_on_stderr_and_fails(
    gemmgen_: Gemmgen, good: Path, command: list[str], bad: str
) -> None:
    name, write, code = BAD[bad]
    write(Path(name))
    ran = gemmgen_(*command, name)
    assert ran.code == code_of(command, code)
    assert code in ran.codes
    assert all(line.startswith(name) for line in ran.diagnostics)
    assert ran.stdout.strip() == ""
    assert not Path("generated").exists()


@pytest.mark.parametrize(
    "command", [["build", "--no-lower"], ["check"], ["lower"], ["simulate"]], ids=" ".join
)
def test_a_name_that_is_no_module_s_is_refused(gemmgen_: Gemmgen, good: Path, command: list[str]) -> None:
    Path("a-b.yaml").write_text(SPEC)
    ran = gemmgen_(*command, "a-b.yaml")
    assert (ran.code, ran.codes, ran.stdout.strip()) == (1, ["module-name"], "")


@pytest.mark.parametrize("command", ["plan", "lower", "simulate"])
def test_nothing_is_printed_where_nothing_is_accepted(gemmgen_: Gemmgen, good: Path, command: str) -> None:
    assert gemmgen_(command, "absent.yaml").stdout == ""


@pytest.mark.parametrize("command", ["plan", "lower", "simulate", "check"])
def test_bad_input_leaves_valid_json(gemmgen_: Gemmgen, good: Path, command: str) -> None:
    ran = gemmgen_(command, "absent.yaml", "--json")
    assert ran.code == code_of([command], "file-missing")
    assert ran.results == {}
    assert ran.codes == ["file-missing"]


@pytest.mark.parametrize("command", [["plan"], ["build", "--no-lower"]], ids=" ".join)
def test_one_bad_spec_among_several_does_not_stop_the_others(
    gemmgen_: Gemmgen, good: Path, command: list[str]
) -> None:
    Path("last.yaml").write_text(SPEC)
    Path("deep.yaml").write_text(too_many_stages())
    ran = gemmgen_(*command, good, "deep.yaml", "absent.yaml", "last.yaml", "--json")
    assert ran.code == 1
    assert ran.codes == ["smem-capacity", "file-missing"]
    reports = ran.results
    assert [report if isinstance(report, str) else report["spec"] for report in reports] == [
        "good.yaml",
        "last.yaml",
    ]
    if "build" in command:
        assert sorted(path.name for path in Path("generated").iterdir()) == [
            "gemmgen_driver.py",
            "gemmgen_launch.py",
            "good.json",
            "good.py",
            "last.json",
            "last.py",
        ]


MISTAKES = SPEC.replace("m: 128", "m: 100") + "foo: 3\n"
"""An unknown key, and a value that a rule refuses."""


@pytest.mark.parametrize(
    "command", [["plan"], ["build", "--no-lower"], ["check"], ["lower"], ["simulate"]], ids=" ".join
)
def test_an_unknown_key_does_not_hide_what_rules_refuse(
    gemmgen_: Gemmgen, good: Path, command: list[str]
) -> None:
    Path("two.yaml").write_text(MISTAKES)
    ran = gemmgen_(*command, "two.yaml")
    assert (ran.code, ran.codes) == (1, ["tile-power-of-two", "unknown-key"])


def test_a_file_s_name_hides_neither_keys_nor_rules(gemmgen_: Gemmgen, good: Path) -> None:
    Path("my-gemm.yaml").write_text(MISTAKES)
    ran = gemmgen_("build", "--no-lower", "my-gemm.yaml")
    assert (ran.code, ran.codes) == (1, ["module-name", "tile-power-of-two", "unknown-key"])


def test_a_spec_of_any_file_name_is_planned_with_a_warning(gemmgen_: Gemmgen, good: Path) -> None:
    Path("my-gemm.yaml").write_text(SPEC)
    ran = gemmgen_("plan", "my-gemm.yaml")
    assert (ran.code, ran.codes) == (0, ["module-name"])
    assert gemmgen_("diff", "my-gemm.yaml", good).code == 0


def test_two_specs_of_one_name_are_refused_before_anything_is_built(gemmgen_: Gemmgen, good: Path) -> None:
    Path("other").mkdir()
    Path("other/good.yaml").write_text(SPEC)
    ran = gemmgen_("build", "--no-lower", good, "other/good.yaml")
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["module-name"])
    assert not Path("generated").exists()


def test_a_spec_named_as_the_gradient_of_another_is_refused_before_anything_is_built(
    gemmgen_: Gemmgen, good: Path
) -> None:
    Path("good_grad_b.yaml").write_text(SPEC)
    assert gemmgen_("build", "--no-lower", good, "good_grad_b.yaml").code == 0
    good.write_text(SPEC + "backward: true\n")
    ran = gemmgen_("build", "--no-lower", good, "good_grad_b.yaml", "--out", "other")
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["module-name"])
    assert not Path("other").exists()


def test_a_build_tells_of_the_modules_of_gradients(gemmgen_: Gemmgen, good: Path) -> None:
    good.write_text(SPEC + "backward: true\n")
    ran = gemmgen_("build", "--no-lower", good)
    modules = ["good", "good_grad_a", "good_grad_b"]
    assert re.findall(r"^wrote generated/(\w+)\.py$", ran.stdout, re.MULTILINE) == modules
    assert re.findall(r"^(\w+)\.yaml$", ran.stdout, re.MULTILINE) == modules
    (report,) = gemmgen_("build", "--no-lower", good, "--json").results
    found = [report, *report["gradients"]]
    assert [each["module"] for each in found] == [f"generated/{module}.py" for module in modules]


def test_the_same_spec_twice_is_built_twice(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("build", "--no-lower", good, f"./{good}")
    assert (ran.code, ran.diagnostics) == (0, [])


def test_a_place_that_cannot_be_written_is_one_diagnostic(gemmgen_: Gemmgen, good: Path) -> None:
    Path("file").touch()
    ran = gemmgen_("build", "--no-lower", good, "--out", "file")
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["cannot-write"])


# --- plan, build, lower


def test_plan_prints_the_ledger_and_writes_nothing(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("plan", good)
    assert (ran.code, ran.stderr) == (0, "")
    kind = "persistent, warp-specialized (cooperative)"
    assert ran.stdout.startswith(f"good.yaml: a matmul\n\nkernel for H100 SXM (sm_90a): {kind}\n")
    for section in gemmgen_("plan", good, "--json").results["good.yaml"]["sections"]:
        assert section["title"] in ran.stdout
    assert list(Path().iterdir()) == [good]


def test_build_without_the_compiler_writes_the_module(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("build", "--no-lower", good, "--out", "some/place")
    assert ran.code == 0
    assert ran.stderr == ""
    assert ran.stdout.endswith("\nwrote some/place/good.py\n")
    assert sorted(path.name for path in Path("some/place").iterdir()) == [
        "gemmgen_driver.py",
        "gemmgen_launch.py",
        "good.json",
        "good.py",
    ]


def test_build_compiles_confirms_and_emits(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("build", good, "--emit", "ttgir,llir,ptx,cubin,sass", "--json")
    assert (ran.code, ran.stderr) == (0, "")
    (report,) = ran.results
    stages = ["ttgir", "llir", "ptx", "cubin", "sass"]
    assert report["module"] == "generated/good.py"
    assert report["artifacts"] == [f"generated/good.{stage}" for stage in stages]
    assert all(Path(path).stat().st_size > 1000 for path in report["artifacts"])
    assert Path("generated/good.cubin").read_bytes().startswith(b"\x7fELF")
    assert report["resources"]["spill_store_bytes"] == 0
    assert gemmgen_("check", good).code == 0


def test_lower_reports_and_writes_nothing(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("lower", good)
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout.startswith("good.yaml\n")
    assert list(Path().iterdir()) == [good]


# --- check and list


def test_check_without_arguments_is_about_all_of_specs(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ran = gemmgen_("check")
    assert (ran.code, ran.stderr) == (0, "")
    # Of the two specs with a backward there are three modules each.
    assert [*map(int, re.findall(r"\d+", ran.stdout))] == [len(WANTED), len(WANTED) + 4]


def test_check_shows_what_differs(gemmgen_: Gemmgen, good: Path) -> None:
    gemmgen_("build", "--no-lower", good)
    module = Path("generated/good.py")
    module.write_text(module.read_text().replace("constexpr(64)", "constexpr(32)"))
    ran = gemmgen_("check", good)
    assert (ran.code, ran.codes) == (1, ["hand-edited"])
    assert ran.stdout.startswith("--- generated/good.py\n+++ generated/good.py (generated)\n")
    report = gemmgen_("check", good, "--json").results
    assert report == {"generated/good.py": {"state": "hand-edited", "diff": ran.stdout}}


def test_check_of_what_is_up_to_date_is_empty_json(gemmgen_: Gemmgen, good: Path) -> None:
    gemmgen_("build", "--no-lower", good)
    assert gemmgen_("check", good, "--json").results == {}


def test_check_finds_orphans_only_when_it_knows_all_specs(gemmgen_: Gemmgen, good: Path) -> None:
    gemmgen_("build", "--no-lower", good)
    Path("specs").mkdir()
    Path("specs/other.yaml").write_text(SPEC)
    gemmgen_("build", "--no-lower", "specs/other.yaml")
    assert gemmgen_("check", "specs/other.yaml").code == 0
    assert gemmgen_("check").codes == ["orphaned", "orphaned"]
    Path("specs/bad.yaml").write_text("")
    assert gemmgen_("check").codes == ["file-empty"]


def test_check_without_specs_says_so(gemmgen_: Gemmgen, good: Path) -> None:
    good.unlink()
    ran = gemmgen_("check")
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["no-specs"])


def test_specs_of_either_suffix_are_found(gemmgen_: Gemmgen, good: Path) -> None:
    Path("specs").mkdir()
    good.rename("specs/good.yml")
    gemmgen_("build", "--no-lower", "specs/good.yml")
    assert gemmgen_("check").code == 0
    assert [row["spec"] for row in gemmgen_("list", "--json").results] == ["good"]


def test_a_spec_with_a_backward_is_one_row_whose_state_is_that_of_all_its_modules(
    gemmgen_: Gemmgen, good: Path
) -> None:
    Path("specs").mkdir()
    Path("specs/learns.yml").write_text(SPEC + "backward: true\n")
    gemmgen_("build", "--no-lower", "specs/learns.yml")
    assert "from learns.yml:" in Path("generated/learns_grad_a.yaml").read_text()
    assert gemmgen_("check").code == 0
    assert [row["module"] for row in gemmgen_("list", "--json").results] == ["up to date"]
    Path("generated/learns_grad_b.py").unlink()
    assert [(row["spec"], row["module"]) for row in gemmgen_("list", "--json").results] == [
        ("learns", "missing")
    ]
    assert gemmgen_("check").codes == ["missing"]


def test_list_shows_every_spec_and_the_state_of_its_module(gemmgen_: Gemmgen, good: Path) -> None:
    Path("specs").mkdir()
    for name in ("built", "missing"):
        Path(f"specs/{name}.yaml").write_text(SPEC)
    gemmgen_("build", "--no-lower", "specs/built.yaml")
    ran = gemmgen_("list")
    assert (ran.code, ran.stderr) == (0, "")
    header, *shown = ran.stdout.splitlines()
    rows = gemmgen_("list", "--json").results
    assert [(row["spec"], row["module"]) for row in rows] == [("built", "up to date"), ("missing", "missing")]
    assert header.split() == list(rows[0])
    for line, row in zip(shown, rows, strict=True):
        assert all(str(value) in line for value in row.values())


def test_list_of_nothing_is_no_error(gemmgen_: Gemmgen, good: Path) -> None:
    good.unlink()
    ran = gemmgen_("list")
    assert (ran.code, ran.stderr) == (0, "")
    assert gemmgen_("list", "--json").results == []


# --- schema


def test_schema_prints_the_one_that_editors_are_given(gemmgen_: Gemmgen) -> None:
    """tests/test_schema.py holds it against every spec."""
    ran = gemmgen_("schema")
    assert (ran.code, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == json_schema()


# --- doctor


def test_doctor_says_what_runs_without_a_gpu(gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = gemmgen_("doctor")
    assert (ran.code, ran.stderr) == (0, "")
    assert re.match(rf"gemmgen +{re.escape(__version__)}\n", ran.stdout)
    report = gemmgen_("doctor", "--json").results
    assert report["gpu"] == "no GPU"
    assert report["versions"]["torch"] == torch.__version__
    assert answers(report) == ["yes", "yes", "no"]


def answers(report: Mapping[str, Any]) -> list[str]:
    """If the stages of a report can run: those that plan, those that compile, and those on a GPU."""
    assert list(report["stages"]) == ["plan, check, schema, list", "build, lower, simulate", "test, bench"]
    return [re.split("[:,]", answer)[0] for answer in report["stages"].values()]


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((9, 0), "yes, of specs for h100 and h200"),
        ((10, 0), "yes, of specs for b200"),
        ((12, 0), "no: "),
    ],
)
def test_doctor_knows_the_gpus_that_specs_are_for(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")
    assert gemmgen_("doctor", "--json").results["stages"]["test, bench"].startswith(expected)


@pytest.mark.parametrize(("capability", "measures"), [((9, 0), True), ((10, 0), False)])
def test_the_demo_measures_where_doctor_finds_a_hopper_gpu(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], measures: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")
    wanted = re.search(r"doctor --json \| grep -q '(.+)'; then", (ROOT / "Makefile").read_text())
    assert wanted
    assert bool(re.search(wanted[1], gemmgen_("doctor", "--json").stdout)) == measures


def test_doctor_shows_the_torch_that_is_imported_its_cuda_and_the_driver(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "version"
    driver.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    monkeypatch.setattr(gemmgen.device, "DRIVER", driver)
    monkeypatch.setattr(torch, "__version__", "2.15.0+cu132")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    versions = gemmgen_("doctor", "--json").results["versions"]
    assert versions["torch"] == "2.15.0+cu132"
    assert versions["CUDA of torch"] == "13.2"
    assert versions["NVIDIA driver"] == "580.159.04"


def test_doctor_says_what_a_cpu_build_and_a_machine_without_a_driver_lack(
    gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemmgen.device, "DRIVER", Path("absent"))
    monkeypatch.setattr(torch.version, "cuda", None)
    versions = gemmgen_("doctor", "--json").results["versions"]
    assert (versions["CUDA of torch"], versions["NVIDIA driver"]) == ("none: a CPU build", "none")


INSTALL = install_advice("compile")


def test_doctor_refuses_another_triton(gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_api, "TRITON", replace(TRITON, number=(2, 1)))
    report = gemmgen_("doctor", "--json").results
    assert answers(report) == ["yes", "no", "no"]
    assert report["stages"]["build, lower, simulate"].endswith(INSTALL)


COMPILING = [["build"], ["lower"], ["simulate"], ["test"], ["bench"]]


@pytest.mark.parametrize("command", COMPILING, ids=" ".join)
def test_what_needs_triton_says_so_under_another_one(
    gemmgen_: Gemmgen, good: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(triton_api, "TRITON", replace(TRITON, number=(2, 1)))
    ran = gemmgen_(*command, good, good)
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["unknown-triton"])
    assert INSTALL in ran.stderr
    assert list(Path().iterdir()) == [good]


@pytest.mark.parametrize("package", ["torch", "triton"])
@pytest.mark.parametrize("command", COMPILING, ids=" ".join)
def test_what_needs_torch_and_triton_says_how_to_get_them(
    gemmgen_: Gemmgen, good: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ran = gemmgen_(*command, good)
    assert (ran.code, ran.stdout, ran.codes) == (1, "", [f"no-{package}"])
    assert ran.stderr.endswith(f": {INSTALL}\n")


def test_doctor_runs_without_torch_and_triton(gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch", "triton"):
        monkeypatch.setitem(sys.modules, package, None)
    ran = gemmgen_("doctor", "--json")
    report = ran.results
    assert (ran.code, report["gpu"]) == (0, "unknown (torch: not installed)")
    assert (report["versions"]["torch"], report["versions"]["triton"]) == ("not installed", "not installed")
    assert answers(report) == ["yes", "no", "no"]
    assert report["stages"]["build, lower, simulate"].endswith(INSTALL)


# --- init


def test_init_writes_a_spec_that_can_be_built(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("init")
    assert (ran.code, ran.stderr) == (0, "")
    assert gemmgen_("init", "theirs", "--json").results == {"wrote": ["theirs.yaml", "gemmgen.schema.json"]}
    assert gemmgen_("init", "some where/mine").code == 0
    for path in ("matmul.yaml", "some where/mine.yaml"):
        assert gemmgen_("build", "--no-lower", path).code == 0


def test_every_field_that_the_example_leaves_out_can_be_uncommented(gemmgen_: Gemmgen, good: Path) -> None:
    gemmgen_("init", "matmul")
    text, count = re.subn(r"(?m)^# ([a-z_]+: )", r"\1", Path("matmul.yaml").read_text())
    Path("pinned.yaml").write_text(text)
    assert count == 7
    assert gemmgen_("plan", "matmul.yaml", "pinned.yaml").code == 0


def test_init_build_check_and_list_fit_together(
    gemmgen_: Gemmgen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty directory, where other tools have YAML files of their own."""
    monkeypatch.chdir(tmp_path)
    Path("mkdocs.yml").write_text("site_name: mine\n")
    Path("bytes.yaml").write_bytes(b"\xff")
    gemmgen_("init", "mine")
    assert json.loads(Path("gemmgen.schema.json").read_text()) == json_schema()
    assert [row["module"] for row in gemmgen_("list", "--json").results] == ["missing"]
    assert gemmgen_("build", "--no-lower", "mine.yaml").code == 0
    assert gemmgen_("check").code == 0
    assert [row["spec"] for row in gemmgen_("list", "--json").results] == ["mine"]


def test_init_renews_its_own_schema_and_leaves_another_file_of_that_name(
    gemmgen_: Gemmgen, good: Path
) -> None:
    schema = Path("gemmgen.schema.json")
    schema.write_text('{"$id": "urn:gemmgen:spec"}')
    gemmgen_("init", "first")
    assert json.loads(schema.read_text()) == json_schema()
    schema.write_text("{}")
    assert gemmgen_("init", "second").code == 0
    assert schema.read_text() == "{}"


def test_a_link_to_nowhere_is_not_offered_for_itself(gemmgen_: Gemmgen, good: Path) -> None:
    Path("dangling.yaml").symlink_to("nowhere")
    ran = gemmgen_("plan", "dangling.yaml")
    assert ran.codes == ["file-missing"]
    assert ran.stderr.count("dangling.yaml") == 1


@pytest.mark.parametrize("command", ["check", "list"])
def test_two_specs_of_one_stem_are_told_and_none_is_called_stale(
    gemmgen_: Gemmgen, good: Path, command: str
) -> None:
    Path("good.yml").write_text(SPEC)
    ran = gemmgen_(command)
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["module-name"])


def test_a_record_that_is_not_there_is_told_without_an_errno(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("bench", "nope.json")
    assert ran.codes == ["bad-record"]
    assert "Errno" not in ran.stderr


def test_a_temporary_file_is_never_named(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("plan", good, "--svg", "/proc/picture.svg")
    assert (ran.code, ran.codes) == (1, ["cannot-write"])
    assert ran.stderr.startswith("/proc/picture.svg: error[cannot-write]")


@pytest.mark.parametrize("command", ["plan", "build", "check", "list", "diff", "lower", "simulate", "test"])
def test_every_command_with_specs_writes_annotations_for_github(
    gemmgen_: Gemmgen, good: Path, command: str
) -> None:
    good.write_text(SPEC.replace("bf16", "bf99", 1))
    Path("specs").mkdir()
    good.rename("specs/good.yaml")
    specs = {"list": [], "diff": ["specs/good.yaml"] * 2}.get(command, ["specs/good.yaml"])
    ran = gemmgen_(command, *specs, "--format", "github", "--sarif", "log.sarif")
    assert ran.code == 1
    assert "::error file=specs/good.yaml,line=3,col=" in ran.stderr
    (run,) = json.loads(Path("log.sarif").read_text())["runs"]
    assert {found["ruleId"] for found in run["results"]} == {"not-a-choice"}


@pytest.mark.parametrize("command", ["bench", "tune", "export", "library", "report"])
def test_every_other_command_that_can_fail_has_the_option_too(command: str) -> None:
    (listed,) = (each for each in LISTED if each.name == command)
    assert "--format" in {option for parameter in listed.loaded().params for option in parameter.opts}


def test_a_diagnostic_about_this_machine_names_no_file(
    gemmgen_: Gemmgen, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert gemmgen_("lower", good).stderr.startswith("error[no-torch]: ")
    ran = gemmgen_("lower", good, "--format", "github", "--sarif", "log.sarif")
    assert ran.stderr.startswith("::error title=no-torch::")
    (run,) = json.loads(Path("log.sarif").read_text())["runs"]
    assert "locations" not in run["results"][0]


def test_sarif_says_what_the_states_of_modules_mean(gemmgen_: Gemmgen, good: Path) -> None:
    gemmgen_("check", "--sarif", "log.sarif")
    (run,) = json.loads(Path("log.sarif").read_text())["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    assert rule["id"] == "missing"
    assert rule["shortDescription"]["text"] != "missing"


# --- repositories of users


def yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text())  # pyright: ignore[reportUnknownMemberType]


def test_the_hooks_for_other_repositories_run_commands_that_exist() -> None:
    hooks = yaml(ROOT / ".pre-commit-hooks.yaml")
    assert {hook["id"] for hook in hooks} == {"gemmgen-check", "gemmgen-plan"}
    for hook in hooks:
        program, command = hook["entry"].split()
        assert (program, hook["language"]) == ("gemmgen", "python")
        assert command in COMMANDS
    assert [hook["pass_filenames"] for hook in hooks if hook["id"] == "gemmgen-check"] == [False]


def test_the_ci_recipe_passes_in_a_fresh_repository_and_finds_an_edited_module(
    gemmgen_: Gemmgen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = yaml(ROOT / "examples/ci/kernels.yml")
    steps = [step["run"] for job in recipe["jobs"].values() for step in job["steps"] if "run" in step]
    commands = [shlex.split(step) for step in steps if step.startswith("gemmgen ")]
    assert [command[1] for command in commands] == ["check", "lower", "simulate"]
    monkeypatch.chdir(tmp_path)
    Path("specs").mkdir()
    Path("specs/mine.yaml").write_text(SPEC)
    gemmgen_("build", "--no-lower", "specs/mine.yaml")
    assert gemmgen_(*commands[0][1:]).code == 0
    for _, command, *arguments in commands[1:]:
        Path("specs/mine.yaml").write_text(SPEC.replace("bf16", "bf99", 1))
        files = [path for each in arguments for path in ([*Path().glob(each)] if "*" in each else [each])]
        assert "::error file=specs/mine.yaml" in gemmgen_(command, *files).stderr
    Path("specs/mine.yaml").write_text(SPEC)
    Path("generated/mine.py").write_text("")
    edited = gemmgen_(*commands[0][1:])
    assert edited.code == 1
    assert "::error file=generated/mine.py,title=hand-edited::" in edited.stderr


def test_init_overwrites_nothing(gemmgen_: Gemmgen, good: Path) -> None:
    before = good.read_text()
    for name in ("good", "good.yaml"):
        ran = gemmgen_("init", name)
        assert (ran.code, ran.stdout, ran.codes) == (1, "", ["file-exists"])
    assert good.read_text() == before


@pytest.mark.parametrize(
    ("name", "code"), [("a-b", "module-name"), ("torch", "module-name"), ("good.yaml/x.yaml", "cannot-write")]
)
def test_init_refuses_a_name_that_no_module_can_have(
    gemmgen_: Gemmgen, good: Path, name: str, code: str
) -> None:
    ran = gemmgen_("init", name)
    assert (ran.code, ran.stdout, ran.codes) == (1, "", [code])
    assert list(Path().iterdir()) == [good]


# --- unfriendly places


def test_paths_may_have_spaces_and_advice_can_be_pasted(gemmgen_: Gemmgen, good: Path) -> None:
    Path("my specs").mkdir()
    good.rename("my specs/good.yaml")
    ran = gemmgen_("check", "my specs/good.yaml", "--out", "my out")
    (advice, *_) = re.findall(r"`(gemmgen .+)` makes it", ran.stderr)
    assert advice == "gemmgen build 'my specs/good.yaml' --out 'my out'"
    assert gemmgen_(*shlex.split(advice)[1:], "--emit", "ptx").code == 0
    assert gemmgen_("check", "my specs/good.yaml", "--out", "my out").code == 0


def test_nothing_is_asked_of_a_home(good: Path) -> None:
    process = subprocess_of(
        "build",
        good,
        stdout=subprocess.PIPE,
        environment={"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "", "TRITON_CACHE_DIR": ""},
    )
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")


def test_a_machine_without_a_place_for_temporary_files_says_so(
    gemmgen_: Gemmgen, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    ran = gemmgen_("lower", good)
    assert (ran.code, ran.codes) == (1, ["no-scratch"])


def test_what_the_machine_refuses_is_told_in_words(
    gemmgen_: Gemmgen, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object, **__: object) -> Product:
        raise OSError(28, "No space left on device", "/some/file")

    monkeypatch.setattr("gemmgen.cli.make.make", full)
    ran = gemmgen_("plan", good)
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["machine"])
    assert ran.stderr.startswith("/some/file: ")


# --- as a process

HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


@pytest.mark.parametrize(
    "arguments", [["schema"], ["plan", *SPECS], ["plan", SPECS[0]]], ids=["long", "all", "one"]
)
def test_a_reader_that_leaves_is_not_an_error_to_tell(arguments: list[object]) -> None:
    reader, pipe = os.pipe()
    os.close(reader)
    process = subprocess_of(*arguments, stdout=pipe)
    os.close(pipe)
    told = process.communicate()[1]
    assert not re.search("Traceback|error", told)  # a plan may be warned of
    assert process.returncode == 1


def test_the_first_line_can_be_had_alone() -> None:
    process = subprocess_of("schema", stdout=subprocess.PIPE)
    first = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, text=True, check=True)
    assert process.stdout
    process.stdout.close()
    assert first.stdout == "{\n"
    assert process.stderr
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait()


ENDINGS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def compilers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that were started by a command or by what it started, whoever is their parent now."""
    assert isinstance(process.args, list)
    arguments = "\0".join(str(argument) for argument in process.args[1:])
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(
            OSError
        ):  # a forked process has the words of the one that it was forked from
            number, words = int(path.parent.name), path.read_bytes().decode()
            if words.endswith(f"\0{arguments}\0") and number != process.pid:
                found.append(number)
    return found


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


TEMPORARY = Path("temporary")


def place_of_its_own() -> dict[str, str]:
    """The environment of a process whose temporary files are apart from those of other tests."""
    TEMPORARY.mkdir(exist_ok=True)
    return {"TMPDIR": str(TEMPORARY.absolute())}


def scratch_of(process: subprocess.Popen[str]) -> list[Path]:
    return list(TEMPORARY.glob(f"gemmgen-{process.pid}-*"))


def compiling(spec: Path) -> subprocess.Popen[str]:
    """A build that is being compiled."""
    process = subprocess_of(
        "build",
        spec,
        stdout=subprocess.PIPE,
        start_new_session=True,
        environment={"GEMMGEN_CACHE_DIR": "", **place_of_its_own()},
    )
    until(lambda: compilers_of(process))
    return process


@pytest.mark.sample(2)
@pytest.mark.parametrize("whom", ["its process", "its terminal"])
@pytest.mark.parametrize("number", ENDINGS)
def test_a_signal_ends_a_build_without_a_traceback(good: Path, number: signal.Signals, whom: str) -> None:
    process = compiling(good)
    (os.kill if whom == "its process" else os.killpg)(process.pid, number)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (128 + number, "")
    assert "Traceback" not in stderr
    # It does not end the compilation and the simulation first, and leaves nothing behind.
    assert [path.name for path in Path().rglob("*.*")] == ["good.yaml"]
    assert not scratch_of(process)
    until(lambda: not compilers_of(process), seconds=5)


def test_a_second_signal_does_not_cut_the_end_off(good: Path) -> None:
    process = compiling(good)
    for _ in range(20):
        for number in ENDINGS:
            process.send_signal(number)
        time.sleep(0.002)
    process.communicate(timeout=30)
    assert process.returncode in {128 + number for number in ENDINGS}  # the first that was looked at
    assert not scratch_of(process)


def test_a_build_that_ignores_hangups_goes_on(good: Path) -> None:
    terminal, theirs = pty.openpty()
    process = subprocess_of(
        "build",
        "--no-lower",
        good,
        environment={"TERM": "xterm"},
        stderr=theirs,
        ignores_hangups=True,  # as nohup makes it
    )
    os.close(theirs)
    assert os.read(terminal, 1000).startswith(HIDE_CURSOR)  # it is building
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    os.close(terminal)
    assert process.returncode == 0


def test_the_compiler_of_a_killed_build_ends(good: Path) -> None:
    process = compiling(good)
    process.kill()
    process.communicate()
    until(lambda: not compilers_of(process), seconds=15)
    assert [path.name for path in Path().glob("*")] == ["good.yaml", TEMPORARY.name]


@pytest.mark.parametrize("number", ENDINGS)
def test_a_signal_in_a_terminal_gives_the_cursor_back(good: Path, number: signal.Signals) -> None:
    terminal, theirs = pty.openpty()
    process = subprocess_of(
        "simulate", good, environment={"TERM": "xterm"}, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = os.read(terminal, 1000)
    assert shown.startswith(HIDE_CURSOR)
    os.killpg(process.pid, number)
    assert process.wait(timeout=30) == 128 + number
    shown += os.read(terminal, 10_000)
    os.close(terminal)
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)


def test_a_terminal_that_hangs_up_is_not_an_error_to_tell(good: Path) -> None:
    terminal, theirs = pty.openpty()
    environment = {"TERM": "xterm", **place_of_its_own()}
    process = subprocess_of("simulate", good, environment=environment, stderr=theirs, start_new_session=True)
    os.close(theirs)
    os.read(terminal, 1000)
    os.close(terminal)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(timeout=30) == 129
    assert not scratch_of(process)


def test_a_simulation_of_a_blackwell_kernel_leaves_stderr_to_gemmgen() -> None:
    # Importing such a module makes Triton's binding library report leaks at Python's own end.
    process = subprocess_of(
        "simulate", ROOT / "specs" / "b200_bf16_n64.yaml", "--shape", "128x64x128", stdout=subprocess.DEVNULL
    )
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")


def test_a_title_can_be_printed_where_stdout_is_ascii(good: Path) -> None:
    good.write_text(SPEC.replace("a matmul", "naïve 矩阵"), encoding="utf-8")
    process = subprocess_of(
        "plan", good, stdout=subprocess.PIPE, environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")
    assert stdout.startswith("good.yaml: na")
