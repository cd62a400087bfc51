"""Pages keep their word: tutorials run, and each command of a page has a test or needs a GPU."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from modules import ROOT
from pages import Block, Command, blocks, execute, pages, run, shims

from gemmgen.cli.app import commands

TUTORIALS = [ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
OTHERS = [page for page in pages() if page not in TUTORIALS]
PROJECT_PAGES = [*pages(), ROOT / "CONTRIBUTING.md"]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ON_A_GPU = re.compile(
    r"^(?:gemmgen (?:test|bench|tune|library|build specs/tuned)|python examples/moe/layer\.py"
    r"|python -m examples\.deepseek\.check)\b"
)
"""Commands that may be marked as needing a GPU, or what such a command writes."""


def label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def runs(block: Block) -> bool:
    return bool(block.commands) and not block.gpu and not block.elsewhere


@pytest.mark.nightly
@pytest.mark.parametrize("page", TUTORIALS, ids=label)
def test_a_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    assert run(page, tmp_path)


@pytest.mark.parametrize("page", pages(), ids=label)
def test_a_block_with_the_name_of_an_example_is_that_file(page: Path) -> None:
    for block in blocks(page):
        if block.title.startswith("examples/"):
            assert block.text == (ROOT / block.title).read_text(encoding="utf-8")


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", [page for page in OTHERS if any(map(runs, blocks(page)))], ids=label)
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "specs", tmp_path / "specs")
    for name in ("benchmarks", "tests", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert run(page, tmp_path)


@pytest.mark.parametrize("page", pages(), ids=label)
def test_what_needs_a_gpu_is_listed_and_what_runs_elsewhere_has_a_test(page: Path) -> None:
    listed = re.findall(
        r"^\* `([^`\n]+)`", page.read_text(encoding="utf-8").partition("that need a GPU\n")[2], re.M
    )
    for block in blocks(page):
        assert not block.elsewhere or (ROOT / block.elsewhere).is_file()
        if block.gpu:
            assert [c.line for c in block.commands if not ON_A_GPU.match(c.line)] == []
            assert page not in TUTORIALS or {c.line for c in block.commands} <= set(listed)


def said(page: Path) -> list[str]:
    """Each command of gemmgen that a page names, in a block or within a sentence."""
    text = page.read_text(encoding="utf-8")
    inline = re.findall(r"`(gemmgen [^`\n]+)`", FENCED.sub("", text))
    return inline + [command.line for block in blocks(page) for command in block.commands]


@pytest.mark.parametrize("page", PROJECT_PAGES, ids=label)
def test_a_command_has_the_options_that_a_page_gives_it(page: Path) -> None:
    known = commands()
    for line in said(page):
        for part in re.findall(r"\bgemmgen ([a-z]+[^;&|]*)", line):
            name, *words = part.split()
            assert name in known, f"{label(page)}: {line}"
            options = {option for each in known[name].params for option in each.opts + each.secondary_opts}
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert given - {"--help"} <= options, f"{label(page)}: {line}"


MADE = ("specs/NAME.yaml", "specs/tuned", "libraries/llama_qkv")
"""Paths of pages that a reader makes."""


@pytest.mark.parametrize("page", PROJECT_PAGES, ids=label)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    folders = "gemmgen|gluonsim|templates|tests|tools|benchmarks|docs|specs|libraries|plan|render"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", FENCED.sub("", page.read_text(encoding="utf-8")))
    roots = (ROOT, ROOT / "gemmgen")
    missing = [path for path in named if not any((root / path).exists() for root in roots)]
    assert [path for path in missing if path.rstrip("/") not in MADE] == []


# --- the runner itself


@pytest.mark.parametrize(
    ("command", "exits", "holds"),
    [
        (Command("echo one; echo two", ("one", "two")), 0, True),
        (Command("echo one; echo two", ("o…", "two")), 0, True),
        (Command("echo one; echo two", ("two", "one")), 0, False),
        (Command("echo one", ("on",)), 0, False),
        (Command("false", ()), 0, False),
        (Command("false", ()), 1, True),
    ],
)
def test_a_page_that_says_something_else_would_be_seen(
    command: Command, exits: int, holds: bool, tmp_path: Path
) -> None:
    shims(tmp_path / ".bin")
    if holds:
        execute(command, exits, tmp_path)
    else:
        with pytest.raises(AssertionError):
            execute(command, exits, tmp_path)
