"""The folder benchmarks/: each record that a text names is there, and each one that is there is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from modules import ROOT

from benchmarks.fit import strangers
from gemmgen.bench.suite_file import load_suite

FOLDER = ROOT / "benchmarks"
LAST = "7a8a2c58"
"""The commit whose records texts may name that are no longer there."""
NAMED = re.compile(rf"(?<!{LAST}:)\bbenchmarks/[\w/-]+\.(?:jsonl|json|yaml|py|md)\b")
pytestmark = pytest.mark.quick


def texts() -> Iterator[tuple[Path, str]]:
    """Every text that may name a record, with its path."""
    for folder, suffixes in (
        (".", (".md", ".toml")),
        ("docs", (".md",)),
        ("benchmarks", (".md", ".py")),
        ("gemmgen", (".py",)),
        ("tools", (".py",)),
        ("tests", (".py",)),
        ("examples", (".py", ".yaml")),
        ("libraries", (".json",)),
    ):
        paths = (ROOT / folder).glob("*") if folder == "." else (ROOT / folder).rglob("*")
        for path in sorted(paths):
            if path.suffix in suffixes and path != Path(__file__):
                yield path, path.read_text(encoding="utf-8")
    yield ROOT / "Makefile", (ROOT / "Makefile").read_text(encoding="utf-8")


def test_each_file_that_a_text_names_is_there() -> None:
    gone = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts()
        for name in NAMED.findall(text)
        if not (ROOT / name).exists()
    }
    assert gone == set()


def test_each_record_is_named_by_a_page_the_code_or_a_test() -> None:
    """So that none stays for a claim that has left. Those of single kernels go with their specs."""
    corpus = "\n".join(text for _, text in texts())
    records = [
        path
        for path in FOLDER.rglob("*")
        if path.suffix in (".json", ".jsonl", ".yaml")
        and path.parent not in (FOLDER, FOLDER / "suites" / "specs")
    ]
    assert len(records) > 30
    # A table's name is in the code without its folder, as in f"h200_{name}.json".
    unnamed = [
        path.relative_to(ROOT).as_posix()
        for path in records
        if path.name not in corpus and f'"{path.stem.removeprefix("h200_")}"' not in corpus
    ]
    assert unnamed == []


def test_the_strangers_are_drawn_and_new() -> None:
    for half in strangers.HALVES:
        assert (FOLDER / "suites" / f"strangers_{half}.yaml").read_text() == strangers.text(half)
    known = {shape[1:] for family in load_suite(strangers.TUNED).families for shape in family.shapes}
    fitted, measured = map(set, strangers.halves())
    assert (len(fitted), len(measured), len(fitted & measured)) == (60, 60, 0)
    assert known.isdisjoint(shape[1:] for shape in fitted | measured)
