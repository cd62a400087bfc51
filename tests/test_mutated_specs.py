"""Spec files that were spoilt at random: words, never a traceback, and nothing outside the chosen folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mutated_specs
import pytest
from modules import ROOT
from mutated_specs import MOST_BYTES, Watch, build, build_all, mutant

RECORD = Path(__file__).parent / "records" / "mutated_specs.json"
FILES = 2000


@pytest.mark.nightly
def test_two_thousand_spoilt_files_end_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a new environment, Python writes bytecode of what is imported first, which is no file of a spec.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    tally = build_all(FILES, seed=1, processes=1)
    assert tally.faults == []
    assert tally.files == FILES
    assert len(tally.codes) > 40  # of loading, and of many rules
    assert tally.accepted > FILES // 20


def test_many_more_were_built_once_as_the_page_says() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record["faults"] == []
    assert record["files"] > 10 * FILES
    assert f"of {record['files']:,} specs that were spoilt" in (ROOT / "docs/spec.md").read_text(
        encoding="utf-8"
    )
    assert record["accepted"] + record["refused"] == record["files"]
    assert record["most_bytes"] <= MOST_BYTES


@pytest.mark.check
def test_a_seed_makes_the_same_files() -> None:
    files = [mutant(7, number) for number in range(50)]
    assert files == [mutant(7, number) for number in range(50)]
    assert len(set(files)) == 50


# --- the watch


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are built in this process, which has had the memory of all tests before."""
    monkeypatch.setattr(mutated_specs, "_most_bytes", lambda: 0)


@pytest.mark.quick
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        ("raise RuntimeError('planted')", "RuntimeError: planted"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import sys; print('oops', file=sys.stderr); raise SystemExit(1)", "not a diagnostic: oops"),
        ("raise SystemExit(1)", "exit code 1 with 0 diagnostics"),
        ("raise SystemExit(0)", "exit code 0, and stdout is ''"),
        ("open('elsewhere', 'w').close(); print('wrote '); raise SystemExit(0)", "open "),
        ("import os; os.mkdir('elsewhere'); print('wrote '); raise SystemExit(0)", "os.mkdir "),
    ],
)
def test_what_must_not_be_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str, fault: str
) -> None:
    def main() -> None:
        exec(harm, {})
        sys.stdout.write("wrote it")
        raise SystemExit(0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gemmgen.cli.main", main)
    (told,) = build(range(1), 0, tmp_path, Watch()).faults
    assert fault in told


@pytest.mark.quick
def test_too_much_memory_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutated_specs, "_most_bytes", lambda: MOST_BYTES + 1)
    assert build(range(1), 0, tmp_path, Watch()).faults == [f"files 0 to 0: {MOST_BYTES + 1:,} bytes"]
