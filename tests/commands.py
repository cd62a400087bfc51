"""The command line in this process: what it prints and how it ends.

Test files import names of this one, and have it as a plugin for its fixtures: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gemmgen.cli import main

SPEC = """\
title: a matmul
target: h100
operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}
tile: {m: 128, n: 256, k: 64}
"""
DIAGNOSTIC = re.compile(r"(?:.+: )?(?:error|warning)\[(?P<code>[a-z-]+)\].*: .+")
EXCERPT = re.compile(r" *\d+ \| .*| + \| +\^")


class Ran(NamedTuple):
    """What a command has done."""

    code: int
    stdout: str
    stderr: str

    @property
    def diagnostics(self) -> list[str]:
        """The lines on stderr that show no line of a file."""
        return [line for line in self.stderr.splitlines() if not EXCERPT.fullmatch(line)]

    @property
    def results(self) -> Any:
        """What stdout has of the results, as JSON, whose diagnostics are those on stderr."""
        told = json.loads(self.stdout)
        assert list(told) == ["diagnostics", "results"]
        assert [found["code"] for found in told["diagnostics"]] == self.codes
        return told["results"]

    @property
    def codes(self) -> list[str]:
        """The code of each diagnostic; every line must be one, or a note."""
        lines = [line for line in self.diagnostics if ": note: " not in line]
        found = [DIAGNOSTIC.fullmatch(line) for line in lines]
        assert all(found), self.stderr
        return [match["code"] for match in found if match]


Gemmgen = Callable[..., Ran]


@pytest.fixture
def gemmgen_(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gemmgen:
    """Run a command in this process."""
    return program("gemmgen", main, capsys, monkeypatch)


def program(
    name: str,
    main: Callable[[], object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Gemmgen:
    """Return what runs a program in this process; `main` is the function of its command line."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        written = capsys.readouterr()
        assert "Traceback" not in written.err
        return Ran(int(caught.value.code or 0), written.out, written.err)

    return run


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A legal spec in a current directory that is otherwise empty."""
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(SPEC)
    return Path("good.yaml")
