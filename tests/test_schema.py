"""The JSON Schema of a spec: what editors are told, held by another validator against every spec there is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import told
from modules import ROOT

from gemmgen import api
from gemmgen.spec.model import SCHEMA_ID, json_schema

RIGHT = sorted(
    [*ROOT.glob("specs/*.yaml"), *ROOT.glob("tests/pairs/specs/*.yaml"), *ROOT.glob("generated/*.yaml")]
)
RULES = sorted(path for path in ROOT.glob("tests/invalid/*/*.yaml") if path.parent.name != "load")
"""What only rules of the hardware refuse: each field is of its type."""
LOADING = sorted(ROOT.glob("tests/invalid/load/*.yaml"))

UNSAID = {"yaml-feature", "yaml-depth", "duplicate-key", "expression", "file-empty", "file-encoding"}
"""What a file is refused for that is no matter of its fields, or of what a regular expression can say."""


UNSAYABLE = {
    "outstanding_mmas_is_not_a_float.yaml",  # in JSON 1.0 is the integer 1
    "title_with_a_bidi_mark.yaml",  # its regular expressions know no printable characters
}


def checked(schema: Path, *files: Path) -> tuple[set[str], set[str]]:
    """The files that check-jsonschema refuses for their fields, and those that it cannot read."""
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(schema), "-o", "json"]
    ran = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    told = json.loads(ran.stdout)
    assert ran.returncode == (told["status"] != "ok"), ran.stderr
    return (
        {Path(found["filename"]).name for found in told.get("errors", ())},
        {Path(found["filename"]).name for found in told.get("parse_errors", ())},
    )


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema") / "gemmgen.schema.json"
    path.write_text(json.dumps(json_schema()))
    return path


def test_the_schema_is_one() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--check-metaschema", "-"]
    text = json.dumps(json_schema())
    subprocess.run(command, input=text, capture_output=True, text=True, check=True)


def test_every_right_spec_and_every_one_that_only_rules_refuse_is_of_the_schema(schema: Path) -> None:
    assert len(RIGHT) > 100
    assert len(RULES) > 100
    assert checked(schema, *RIGHT, *RULES) == (set(), set())


def codes_of(path: Path) -> set[str]:
    """What is wrong with a spec, less what concerns its name."""
    return {each["code"] for each in told.committed(path.parent.name)[path.stem]} - {"module-name"}


def test_a_file_whose_fields_are_wrong_is_not(schema: Path) -> None:
    files = [path for path in LOADING if "yaml-syntax" not in codes_of(path)]
    wrong = {path.name for path in files if not codes_of(path) <= UNSAID}
    assert len(wrong) > 25
    refused, unreadable = checked(schema, *files)
    assert wrong - refused - unreadable == UNSAYABLE


def test_the_spec_that_init_writes_names_the_schema(
    schema: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = api.init("mine")
    assert path.read_text().splitlines()[0] == f"# yaml-language-server: $schema={schema.name}"
    assert checked(schema, path) == (set(), set())


def properties(part: object, place: str = "") -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every property below a part of the schema, by its place."""
    if isinstance(part, dict):
        members = cast("dict[str, Any]", part)
        for name, found in members.get("properties", {}).items():
            yield f"{place}.{name}", found
        for name, found in members.items():
            yield from properties(found, f"{place}.{name}")
    elif isinstance(part, list):
        for found in cast("list[object]", part):
            yield from properties(found, place)


@pytest.mark.quick
def test_every_field_has_a_description() -> None:
    found = dict(properties(json_schema()))
    assert len(found) > 60
    assert [place for place, field in found.items() if not field.get("description")] == []


@pytest.mark.quick
def test_the_schema_has_a_dialect_and_a_name_that_is_no_address() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == SCHEMA_ID == "urn:gemmgen:spec"
