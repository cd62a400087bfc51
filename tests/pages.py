"""The blocks of code of a page, and how to run them in a folder of their own.

A comment before a block says how it is run:

* ``<!-- gpu -->``: it needs a GPU and is not run.
* ``<!-- exits 1 -->``: each of its commands ends with this exit code.
* ``<!-- elsewhere: tests/test_x.py -->``: this test runs what it has.

A block with ``title="NAME"`` is written to that file. The lines after a command are lines of its output, in
their order; ``…`` stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from modules import ROOT

FENCE = re.compile(
    r"(?P<marks>(?:^<!-- [^\n]* -->\n)*)^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!-- (gpu|exits|elsewhere)(?::? (\S+))? -->")


@dataclass(frozen=True)
class Command:
    """A line of a shell, and lines of its output."""

    line: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with its marks."""

    language: str
    title: str
    text: str
    gpu: bool
    exits: int
    elsewhere: str
    """The test that runs the block, or nothing."""

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands of a console block."""
        if self.language != "console":
            return ()
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            elif line.strip():
                found[-1][1].append(line)
        return tuple(Command(line, tuple(output)) for line, output in found)


def pages() -> list[Path]:
    """Return README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    found: list[Block] = []
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        marks = dict(MARK.findall(match["marks"]))
        found.append(
            Block(
                match["language"],
                match["title"] or "",
                match["text"],
                "gpu" in marks,
                int(marks.get("exits", 0)),
                marks.get("elsewhere", ""),
            )
        )
    return found


def run(page: Path, folder: Path) -> list[str]:
    """Run the blocks of a page in a folder, in order; return the commands that ran.

    Raises:
        AssertionError: A command has another exit code or another output than the page says.
    """
    shims(folder / ".bin")
    ran: list[str] = []
    for block in blocks(page):
        if block.title:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.gpu or block.elsewhere:
            continue
        for command in block.commands:
            execute(command, block.exits, folder)
            ran.append(command.line)
    return ran


def shims(folder: Path) -> None:
    """Write the programs that pages call: gemmgen, pytest and python, of the interpreter of this test."""
    folder.mkdir()
    for name, module in (("gemmgen", " -m gemmgen"), ("pytest", " -m pytest"), ("python", "")):
        shim = folder / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n')
        shim.chmod(0o755)


def execute(command: Command, exits: int, folder: Path) -> None:
    """Run a command as a reader would; raise AssertionError unless it does what the page says."""
    environment = {
        **os.environ,
        "PATH": f"{folder / '.bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        ["bash", "-c", command.line],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert ended.returncode == exits, f"$ {command.line}\n{ended.stdout}"
    lines = iter(ended.stdout.splitlines())
    for expected in command.output:
        pattern = re.compile(".*".join(map(re.escape, expected.split("…"))))
        assert any(pattern.fullmatch(line) for line in lines), (
            f"$ {command.line}\nhas no line {expected!r}:\n{ended.stdout}"
        )
