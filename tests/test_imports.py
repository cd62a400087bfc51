"""What a command line imports: imports take most of the time of a short command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from modules import ROOT

PROGRAM = """
import os, sys
end = os._exit
def told(code):
    print(*sys.modules, file=sys.stderr, flush=True)
    end(code)
os._exit = told
sys.argv[0] = "gemmgen"
from {package}.__main__ import run
run()
"""
HEAVY = {"torch", "triton", "numpy", "pydantic", "ruamel", "jinja2", "rich", "optuna", "matplotlib"}
"""Packages of others that take long to import."""
LEAST = {
    *("gemmgen.__main__", "gemmgen.errors", "gemmgen.literals", "gemmgen.processes"),
    *("gemmgen.cli.app", "gemmgen.cli.commands", "gemmgen.cli.ending", "gemmgen.cli.excerpt"),
    *("gemmgen.cli.options", "gemmgen.cli.reporting"),
}
"""Parts of each command: the command line, its diagnostics, and the end of a process."""
TYPER = {"rich", "pydantic"}
"""Packages that Typer imports to complete words and to show an error."""
SPEC = {
    *("gemmgen.files", "gemmgen.hardware", "gemmgen.kinds", "gemmgen.problem", "gemmgen.spec"),
    *("pydantic", "ruamel"),
}
"""Parts that read a spec."""
PLAN = {
    *("gemmgen.device", "gemmgen.features", "gemmgen.json_files", "gemmgen.launch_facts"),
    *("gemmgen.launcher_file", "gemmgen.module", "gemmgen.plan", "gemmgen.planner"),
    *("gemmgen.product", "gemmgen.render", "gemmgen.triton_api", "jinja2"),
}
"""Parts that plan a spec and render its module."""
RULES = {"gemmgen.features", "gemmgen.json_files", "gemmgen.plan", "gemmgen.planner"}
"""Parts that have the rules."""
EXPLAIN = {"gemmgen.cli.explain", "gemmgen.cli.explanations", "gemmgen.cli.running", "gemmgen.cli.texts"}
MAKE = {
    *("gemmgen.cli.candidates", "gemmgen.cli.make", "gemmgen.cli.running", "gemmgen.cli.texts"),
}
MOST: dict[str, set[str]] = {
    "": LEAST,
    "--help": LEAST,
    "--version": LEAST,
    "nonsense": LEAST | TYPER,
    "schema": LEAST | SPEC | {"gemmgen.api", "gemmgen.cli.start"},
    "explain": LEAST | SPEC | EXPLAIN,
    "explain smem-capacity": LEAST | SPEC | EXPLAIN | RULES,
    "plan specs/h100_bf16.yaml": LEAST | SPEC | PLAN | MAKE,
    "plan specs/h100_bf16.yaml --candidates": LEAST | SPEC | PLAN | MAKE,
    "check specs/h100_bf16.yaml": LEAST | SPEC | PLAN | MAKE,
}
"""The parts that a command line may import, and no other."""


def imported(line: str, package: str = "gemmgen", **variables: str) -> set[str]:
    """Return the parts of gemmgen and gluonsim, and the heavy packages, that a command line imports."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(package=package), *line.split()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    names = ran.stderr.splitlines()[-1].split()
    assert f"{package}.__main__" in names
    return {part for name in names if (part := part_of(name))}


def part_of(name: str) -> str:
    """Return the part of a module: a heavy package, a file of gemmgen.cli, another file or folder."""
    root, *below = name.split(".")
    if root in HEAVY:
        return root
    if root not in ("gemmgen", "gluonsim") or not below or name == "gemmgen.cli":
        return ""
    return ".".join([root, *below[: 2 if below[0] == "cli" else 1]])


@pytest.mark.parametrize(("line", "most"), MOST.items(), ids=MOST)
def test_a_command_imports_no_more_than_it_uses(line: str, most: set[str]) -> None:
    assert imported(line) - most == set()


@pytest.mark.parametrize("words", ["gemmgen ", "gemmgen si"])
def test_a_shell_that_completes_commands_imports_none_of_them(words: str) -> None:
    found = imported("", _GEMMGEN_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=words)
    assert found - LEAST - TYPER == set()


def test_the_help_of_the_simulator_imports_no_simulator() -> None:
    most = {"gluonsim.__main__", "gemmgen.errors", "gemmgen.literals", "gemmgen.processes"}
    assert imported("--help", "gluonsim") - most == set()
