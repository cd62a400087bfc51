"""gluonsim without the wheel of gemmgen: its own is whole, and its exit code says how a command ended."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from modules import ROOT
from packaging.requirements import Requirement

from gluonsim.__main__ import main

COPIES = ROOT / "tests" / "kernels" / "copies.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DESCRIBED = "*descriptors(torch.ones(64, 32), torch.zeros(64, 32)), 4"
LAUNCH = ("copies.py::copy_kernel", "--grid", "1,", "--schedules", "0", "--args")

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of gluonsim, built without asking the package index."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder))
    command = [*PIP, "wheel", *options, str(ROOT / "wheels" / "gluonsim")]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the wheel's content."""
    folder = tmp_path_factory.mktemp("installed")
    command = [
        *PIP,
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(folder),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return folder


ALONE = """
import sys
import gemmgen, gluonsim
for package in (gemmgen, gluonsim):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
del sys.argv[1]
"""


def packages() -> list[str]:
    """The folders of torch, Triton and pytest."""
    specs = [find_spec(name) for name in ("torch", "triton", "pytest")]
    return list(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin))


Alone = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def alone(installed: Path, tmp_path: Path) -> Alone:
    """Runs a program in an empty folder with a file of kernels, torch, Triton and the wheel alone."""
    shutil.copy(COPIES, tmp_path)

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *packages()])}
        # Without `site`, so that no .pth file of an installation for development adds this checkout.
        command = [sys.executable, "-S", "-c", ALONE + program, str(installed), *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    return run


COMMAND = "from gluonsim.__main__ import run\nrun()\n"


def test_the_wheel_has_the_modules_of_gemmgen_that_it_imports_and_no_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert folders == {"gemmgen", "gluonsim", f"gluonsim-{PROJECT['version']}.dist-info"}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gluonsim").rglob("*.py")}
    assert modules < sources.keys()
    statement = re.compile(r"^\s*(?:from|import) (gemmgen\b[\w.]*)", re.MULTILINE)
    imported = {
        module.replace(".", "/") for source in sources.values() for module in statement.findall(source)
    }
    assert {name for name in imported if not {f"{name}.py", f"{name}/__init__.py"} & sources.keys()} == set()
    assert "gemmgen/errors.py" in sources
    assert [name for name in sources if name.startswith(("gemmgen/spec/", "gemmgen/plan/"))] == []


def test_the_wheel_has_the_version_and_the_dependencies_of_the_project(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    told = [Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: ")]
    compiling = [Requirement(line) for line in PROJECT["optional-dependencies"]["compile"]]
    assert {found.name: found.specifier for found in told} == {f.name: f.specifier for f in compiling}
    assert {str(found.marker) for found in told} == {'extra == "compile"'}
    assert f"Version: {PROJECT['version']}" in lines
    assert f"Requires-Python: {PROJECT['requires-python']}" in lines


@pytest.mark.nightly
def test_the_wheel_simulates_a_kernel_of_a_file(alone: Alone) -> None:
    clean = alone(COMMAND, *LAUNCH, f"{DESCRIBED}, True, num_warps=4")
    assert (clean.returncode, clean.stderr) == (0, "")
    assert clean.stdout == f"{LAUNCH[0]}: copy_kernel, grid 1 x 1 x 1: 3 schedules, 0 findings\n"
    raced = alone(COMMAND, *LAUNCH, f"{DESCRIBED}, False, num_warps=4")
    assert raced.returncode == 1
    assert re.match(r".*copies\.py:\d+: error\[write-after-read\] buffer: TMA load", raced.stderr)
    missing = alone(COMMAND, "missing.py")
    assert (missing.returncode, missing.stdout) == (2, "")


@pytest.mark.nightly
def test_the_wheel_is_a_library(alone: Alone) -> None:
    program = """
import torch
from copies import copy_kernel, descriptors
from gluonsim import GemmgenError, simulate
x = torch.ones(64, 32)
launch = simulate(copy_kernel, schedules=("lazy", "eager", "random"), processes=2)[1,]
result = launch(*descriptors(x, torch.zeros(64, 32)), 4, False, num_warps=4)
assert "traceEvents" in result.chrome_trace()
try:
    result.raise_on_findings()
except GemmgenError as error:
    print(error.diagnostics[0].code)
"""
    ran = alone(program)
    assert (ran.returncode, ran.stdout) == (0, "write-after-read\n"), ran.stderr


@pytest.mark.nightly
def test_the_wheel_has_the_plugin(alone: Alone, tmp_path: Path) -> None:
    (tmp_path / "test_copy.py").write_text("""
import torch
from copies import copy_kernel, descriptors
def test_copy():
    x = torch.ones(64, 32, device="cuda")
    copy_kernel[(1,)](*descriptors(x, torch.zeros_like(x)), 4, False, num_warps=4)
""")
    program = """
import os
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
import pytest
sys.exit(pytest.main(["-q", "-p", "gluonsim.pytest_plugin", "--gluon-simulate=sm90"]))
"""
    ran = alone(program)
    assert ran.returncode == 1, ran.stderr
    assert "error[write-after-read] buffer" in ran.stdout


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "wheels/hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nfrom json import loads\n", []),
        ("from gemmgen.a import b\n", ["gemmgen.a", "gemmgen.a.b"]),
        ("def f():\n    from gemmgen import c\n", ["gemmgen", "gemmgen.c"]),
        ("import os, gemmgen.d as d\n", ["gemmgen.d"]),
        ("'from gemmgen.a import b'\nfrom . import e\n", []),
    ],
)
def test_each_form_of_an_import_is_seen(builder: ModuleType, source: str, found: list[str]) -> None:
    assert list(builder.imports(source)) == found


# --- the command line


def ran(arguments: Sequence[str]) -> int:
    """The exit code of the command line."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(str(ended.code))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "copies", raising=False)
    shutil.copy(COPIES, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--no-such-option", "copies.py"],
        ["missing.py"],
        ["copies.py::missing"],
        ["copies.py", "--target", "sm75"],
        ["copies.py", "--grid", "1"],
        ["copies.py", "--seed", "-1"],
        ["copies.py", "--programs", "none"],
        ["copies.py", "copies.py", "--trace", "both.json"],
        ["copies.py", "--trace", "nowhere/timeline.json"],
        ["copies.py::copy_kernel"],
        ["copies.py::copy_kernel", "--grid", "1 +"],
        ["copies.py::copy_kernel", "--grid", "-1", "--args", f"{DESCRIBED}, True, num_warps=4"],
        ["copies.py::copy_kernel", "--grid", "1", "--args", "1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(
    here: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "error" in told.err


def test_a_program_that_fails_ends_with_1(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "fails.py").write_text("raise ValueError('its own reason')\n")
    assert ran(["fails.py"]) == 1
    assert capsys.readouterr().err == ("fails.py:1: error[program-failed]: ValueError: its own reason\n")


def test_findings_and_timelines_are_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--trace", "t.json", "--sarif", "s.sarif", "--json")
    assert ran([*LAUNCH, f"{DESCRIBED}, False, num_warps=4", *files]) == 1
    told = json.loads(capsys.readouterr().out)
    (result,) = told["results"]["copies.py::copy_kernel"]
    assert [found["kind"] for found in result["findings"]] == ["write-after-read"]
    assert [found["code"] for found in told["diagnostics"]] == ["write-after-read"]
    events = json.loads((here / "t.json").read_text())["traceEvents"]
    assert [event["cat"] for event in events if event["ph"] == "i"] == ["error"]
    assert json.loads((here / "s.sarif").read_text())["runs"][0]["results"]


def test_without_torch_the_command_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr("gluonsim.__main__.find_spec", nothing)
    assert ran(["copies.py"]) == 1
    assert capsys.readouterr().err.startswith("error[no-torch]: torch is not installed: ")
