"""Progress is for a terminal: one line that is rewritten, and nothing of it in a file."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from modules import ROOT

from gemmgen.cli import main
from gemmgen.cli.running import progressing
from gemmgen.literals import visible
from gemmgen.tune.measuring import TuningProgress
from gluonsim.__main__ import main as gluonsim_main
from tools.fuzz.__main__ import main as fuzz_main

SPEC = """\
title: a matmul
target: h100
operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}
tile: {m: 128, n: 256, k: 64}
"""
SCALED = """
import torch
from copies import scaled_kernel


def scale():
    x = torch.ones(20 * 128, device="cuda")
    scaled_kernel[(20,)](x, torch.empty_like(x), 20 * 128, 2.0, 128, num_warps=4)
"""
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
COMMANDS = {
    r"planning good\.yaml: \d+ of 12 combinations": "gemmgen plan good.yaml",
    r"ranking good\.yaml: \d+ of 12 combinations": "gemmgen plan good.yaml --candidates",
    "building good.yaml": "gemmgen build good.yaml --no-lower",
    "lowering good.yaml": "gemmgen lower good.yaml",
    "simulating good": "gemmgen simulate good.yaml --shape 64x64x64 --schedules 0",
    "fuzzing 1 of 1, 0 findings": "fuzz --specs 1 --compiled 0 --simulated 0",
    r"simulating scaled_kernel: \d+ of 20 programs": "gluonsim scaled.py::scale --schedules 0",
    r"simulating scaled_kernel: \d+ of 20": "gemmgen simulate scaled.py::scale --schedules 0",
}
"""Patterns of the last step that each command shows; which others a terminal draws depends on the time."""


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Runs a command line in this process, in a folder with a spec and a program; launches take long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("gluonsim.progress.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("gluonsim.progress.MOST_SECONDS", 0.0)
    monkeypatch.delitem(sys.modules, "copies", raising=False)
    Path("good.yaml").write_text(SPEC)
    Path("scaled.py").write_text(SCALED)
    Path("copies.py").write_text((ROOT / "tests" / "kernels" / "copies.py").read_text(encoding="utf-8"))

    def run(line: str) -> None:
        program, *arguments = line.split()
        if program == "gluonsim":
            assert gluonsim_main(arguments) == 0
            return
        monkeypatch.setattr("sys.argv", [program, *arguments])
        with pytest.raises(SystemExit) as ended:
            {"gemmgen": main, "fuzz": fuzz_main}[program]()
        assert not ended.value.code

    return run


@pytest.mark.parametrize(("step", "line"), COMMANDS.items(), ids=COMMANDS.values())
def test_a_command_shows_its_progress_on_a_terminal_alone(
    step: str,
    line: str,
    run: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(line)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run(line)
    assert re.search(step, CONTROLS.sub("", terminal.getvalue()))


def test_no_variable_makes_a_file_a_terminal(
    run: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.setenv(name, "1")
    run("gemmgen build good.yaml --no-lower")
    assert capsys.readouterr().err == ""


def test_a_terminal_that_cannot_rewrite_a_line_shows_no_progress(
    run: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run("gemmgen build good.yaml --no-lower")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("step", ["\x1b[31m[red]x[/red]", "[link=https://example.org]x[/link]"])
def test_a_step_shows_a_path_as_it_is(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progressing("planning") as progress:
        progress(step)
    assert visible(f"planning {step}") in terminal.getvalue()


def test_a_line_that_is_told_meanwhile_stands_above_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progressing("planning") as progress:
        progress("one.yaml")
        sys.stderr.write("two.yaml: error[syntax]: it is cut off\n")
    assert "two.yaml: error[syntax]: it is cut off\n" in CONTROLS.sub("", terminal.getvalue())


def test_a_step_of_tuning_says_how_much_of_the_budget_is_spent() -> None:
    step = TuningProgress("open 8x16x32", 2, 4, 15.0, 60.0, "rung 1 of 3, 7 trials to go")
    assert str(step) == "open 8x16x32, 2 of 4: rung 1 of 3, 7 trials to go, 15 of 60 s"


def test_a_quiet_build_prints_errors_alone(
    run: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("gemmgen build good.yaml --no-lower --quiet")
    assert capsys.readouterr() == ("", "")
    assert Path("generated/good.py").exists()
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    run("gemmgen build good.yaml --no-lower --quiet")
    assert terminal.getvalue() == ""
    Path("good.yaml").write_text(f"{SPEC}tiles: 1\n")
    monkeypatch.setattr("sys.argv", ["gemmgen", "build", "good.yaml", "--quiet"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "good.yaml:5:1" in terminal.getvalue()
    assert capsys.readouterr().out == ""
