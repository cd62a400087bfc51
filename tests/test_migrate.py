"""Records, tables and libraries of an earlier gemmgen, brought into today's form."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from contests import BF16, E4M3_TENSOR, contest
from modules import ROOT

from gemmgen.bench.result_log import ResultLog
from gemmgen.errors import GemmgenError
from gemmgen.library.manifest import read_manifest
from gemmgen.migrate import Migration, main
from gemmgen.tune import read_table

SUITES = ROOT / "benchmarks" / "suites"
E4M3_RECORD = SUITES / "h200_few_rows_e4m3.jsonl"
ROW_SCALED = contest("h100_e4m3_scaled")
Json = Any


def former(line: Json, words: dict[str, str]) -> Json:
    """Return a line of today's record as the schema before had it: a sentence in place of a contest."""

    def sentence(members: Json) -> Json:
        return {**members, "contest": words[members["contest"]["matmul"]]}

    if line["line"] != "session":
        return sentence(line)
    contests = [{"name": each.pop("description"), **each} for each in line["contests"]]
    for each in contests:
        del each["contest"]
    return {**line, "schema": 2, "contests": contests, "kernels": list(map(sentence, line["kernels"]))}


def former_record(record: Path, path: Path) -> Path:
    """Write a committed record as the schema before had it, its specs beside it."""
    lines = [json.loads(text) for text in record.read_text().splitlines()]
    words = {each["contest"]["matmul"]: each["description"] for each in lines[0]["contests"]}
    path.write_text("".join(json.dumps(former(line, words)) + "\n" for line in lines))
    shutil.copytree(record.parent / "specs", path.parent / "specs", dirs_exist_ok=True)
    return path


@pytest.mark.parametrize("record", [SUITES / "h200_long_k.jsonl", E4M3_RECORD])
def test_a_record_of_the_schema_before_becomes_the_committed_one(tmp_path: Path, record: Path) -> None:
    path = former_record(record, tmp_path / record.name)
    with pytest.raises(GemmgenError, match=r"schema is 2; this gemmgen reads 3: `python -m gemmgen.migrate`"):
        ResultLog.opened(path)
    assert Migration().run([path]) == (path,)
    assert path.read_bytes() == record.read_bytes()
    assert Migration().run([path]) == ()  # it stays as it is
    assert path.read_bytes() == record.read_bytes()


def test_the_contests_of_a_migrated_record_are_those_of_its_specs(tmp_path: Path) -> None:
    path = former_record(E4M3_RECORD, tmp_path / "x.jsonl")
    Migration().run([path])
    found = {contest: facts.description for contest, facts in ResultLog.opened(path).contests.items()}
    assert found == {E4M3_TENSOR: "e4m3 + tensor_scale", ROW_SCALED: "e4m3 + row_scale + column_scale"}


def test_a_line_that_is_not_whole_stays_at_the_end(tmp_path: Path) -> None:
    path = former_record(SUITES / "h200_long_k.jsonl", tmp_path / "x.jsonl")
    path.write_bytes(path.read_bytes() + b'{"line": "res')
    Migration().run([path])
    assert path.read_bytes() == (SUITES / "h200_long_k.jsonl").read_bytes() + b'{"line": "res'


def test_a_record_without_its_specs_needs_a_folder_that_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = former_record(SUITES / "h200_long_k.jsonl", tmp_path / "x.jsonl")
    shutil.rmtree(tmp_path / "specs")
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for entry in lines[0]["kernels"]:
        entry.pop("spec", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = path.read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SystemExit, match=r'the specs of "bf16" are not there: name their folder with --specs'
    ):
        main(["x.jsonl"])
    assert path.read_bytes() == before
    main(["x.jsonl", "--specs", str(SUITES / "specs")])
    assert [*ResultLog.opened(path).contests] == [BF16]


def test_a_table_of_the_format_before_names_the_contest_of_its_specs(tmp_path: Path) -> None:
    shutil.copy(ROOT / "specs" / "h100_e4m3_promoted.yaml", tmp_path / "tuned.yaml")
    row = {
        "table": "gemmgen tune",
        "format": 1,
        "gpu": "NVIDIA H200",
        "m": 8,
        "n": 16,
        "k": 32,
        "dtypes": {"a": "e4m3", "b": "e4m3", "d": "bf16"},
        "problem": "e4m3 promoted",
        "spec": "tuned.yaml",
        "kernel_sha256": "0" * 64,
        "seconds": 1e-5,
        "baseline_seconds": 1e-5,
        "first_seconds": 1e-5,
        "tried": 1,
        "date": "2026-01-01",
        "gemmgen": "0",
        "torch": "2",
        "triton": "3.9",
    }
    path = tmp_path / "table.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(GemmgenError, match=r"format is 1; this gemmgen reads 2: `python -m gemmgen.migrate`"):
        read_table(path)
    Migration().run([path])
    (found,) = read_table(path)
    assert (found.problem, found.description) == (contest("h100_e4m3_promoted"), "e4m3 promoted")
    assert found.problem.promoted
    assert found.as_line() == path.read_text()
    assert Migration().run([path]) == ()


def test_a_library_of_the_format_before_names_the_records_that_were_migrated_with_it(tmp_path: Path) -> None:
    package = tmp_path / "h200_bf16"
    shutil.copytree(ROOT / "libraries" / "h200_bf16", package)
    manifest = json.loads((package / "library.json").read_text())
    record = former_record(SUITES / "h200_long_k.jsonl", tmp_path / "h200_long_k.jsonl")
    sources = dict(manifest["sources"])
    today = sources["h200_long_k.jsonl"]
    sources["h200_long_k.jsonl"] = hashlib.sha256(record.read_bytes()).hexdigest()
    assert sources["h200_long_k.jsonl"] != today
    del manifest["description"]
    manifest |= {"gemmgen": {"library_format": 2}, "problem": "bf16", "sources": list(sources.items())}
    (package / "library.json").write_text(json.dumps(manifest))
    migrated = Migration().run([package, record])
    assert migrated == (record, package / "library.json")
    found = read_manifest(package)
    assert found == read_manifest(ROOT / "libraries" / "h200_bf16")
    assert (found.problem, dict(found.sources)["h200_long_k.jsonl"]) == (BF16, today)
    assert Migration().run([package, record]) == ()


@pytest.mark.parametrize(
    "text",
    ["[]\n", "x\n", '{"line": "session"}\n', '{"table": "gemmgen tune", "format": 0}\n', '{"line": 3}\n'],
)
def test_what_no_earlier_gemmgen_wrote_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(
        GemmgenError, match=r"x.jsonl: error\[cannot-migrate\]: is no record, table or library"
    ):
        Migration().run([path])
    assert path.read_text() == text
