"""Every rule, fired by a spec of its own: the text, its place, and that the fix which it names is one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan import plan_spec
from gemmgen.plan.rules import RULES, rule_id
from gemmgen.spec import load_spec

ROOT = Path(__file__).parent.parent
DIRECTORY = Path("tests/invalid/rules")
INVALID = sorted(path.stem for path in (ROOT / DIRECTORY).glob("*.yaml"))
RULE_IDS = {rule_id(rule) for rule in RULES}

every_invalid_spec = pytest.mark.parametrize("stem", INVALID)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagnostics name a spec as the user does, so relative to where the test runs."""
    monkeypatch.chdir(ROOT)


@cache
def diagnosed(stem: str) -> tuple[Diagnostic, ...]:
    """What the planner says about an invalid spec."""
    return diagnostics(DIRECTORY / f"{stem}.yaml")


def diagnostics(path: Path) -> tuple[Diagnostic, ...]:
    """What the planner says about a spec; nothing if it is legal."""
    try:
        plan_spec(load_spec(path))
    except GemmgenError as error:
        return error.diagnostics
    return ()


def broken(path: Path) -> set[tuple[str, str | None]]:
    """The rules that a spec breaks, each with the field that it blames."""
    return {(found.code, found.field) for found in diagnostics(path)}


# --- the texts


@every_invalid_spec
def test_a_spec_that_breaks_a_rule_gets_the_text_beside_it(stem: str) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    text = "".join(f"{found}\n" for found in diagnosed(stem))
    assert text == path.with_suffix(".txt").read_text()


def test_every_text_has_its_spec() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*.txt")) == INVALID


@pytest.mark.parametrize("rule", sorted(RULE_IDS))
def test_every_rule_is_fired_by_a_spec_named_after_it(rule: str) -> None:
    stem = rule.replace("-", "_")
    texts = [path.read_text() for path in (DIRECTORY / f"{stem}.txt", *DIRECTORY.glob(f"{stem}_*.txt"))]
    assert all(f"error[{rule}]" in text for text in texts)


def test_all_violations_are_reported_in_the_order_of_the_file() -> None:
    found = diagnosed("several_rules")
    places = [(diagnostic.line or 0, diagnostic.column or 0) for diagnostic in found]
    assert len(found) == 7
    assert places == sorted(places)


@every_invalid_spec
def test_a_text_has_what_was_found_then_the_limit_then_the_fix(stem: str) -> None:
    for found in diagnosed(stem):
        assert re.fullmatch(r"[^;]+, [^;]+; use \S.*", found.message)
        assert str(found).isprintable()


@every_invalid_spec
def test_a_text_points_at_the_value_and_quotes_it(stem: str) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    lines = path.read_text().splitlines()
    for found in diagnosed(stem):
        assert found.line is not None
        assert found.column is not None
        value = re.match(r"\w+", lines[found.line - 1][found.column - 1 :])
        assert value, "the place is not a scalar's"
        assert value[0] == str(value_at(path, found.field or ""))
        if value[0].isdecimal() and found.code not in SPEAKS_OF_SOMETHING_ELSE:
            assert re.search(rf"\b{int(value[0]):,}\b", found.message)


SPEAKS_OF_SOMETHING_ELSE = {"smem-capacity", "accumulator-registers"}
"""These may blame an extent of the tile or the epilogue; the text gives what it comes to in memory."""


# --- the fixes


def value_at(path: Path, field: str) -> Any:
    """The value of a field in a file."""
    value: Any = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
    for step in field.split("."):
        value = value[int(step) if step.isdecimal() else step]
    return value


def fixes(found: Diagnostic) -> list[str | int]:
    """The values that a text names behind its semicolon: one, or two between which the user chooses."""
    fix = re.search(r"; use (?:at (?:most|least) )?(\w+)(?: or (\w+))?", found.message)
    assert fix, found.message
    return [int(value) if value.isdecimal() else value for value in fix.groups() if value]


def changed(path: Path, field: str, value: str | int, directory: Path) -> Path:
    """A copy of a spec in which one field has another value."""
    spec: Any = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
    *sections, name = (int(step) if step.isdecimal() else step for step in field.split("."))
    section = spec
    for step in sections:
        section = section[step]
    section[name] = value
    copy = directory / path.name
    copy.write_text("".join(f"{key}: {json.dumps(member)}\n" for key, member in spec.items()))
    return copy


@every_invalid_spec
def test_each_fix_that_a_text_names_satisfies_the_rule(stem: str, tmp_path: Path) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    for found in diagnosed(stem):
        assert found.field
        for value in fixes(found):
            fixed = changed(path, found.field, value, tmp_path)
            assert (found.code, found.field) not in broken(fixed)


NEEDS_A_SECOND_FIX = {"accumulator_registers_rows", "smem_capacity_all"}
"""Specs in which no single value is legal; the fix of one field leads to the next."""


@pytest.mark.parametrize("stem", sorted(set(INVALID) - NEEDS_A_SECOND_FIX - {"several_rules"}))
def test_where_one_value_is_wrong_a_fix_makes_the_spec_legal(stem: str, tmp_path: Path) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    (found,) = diagnosed(stem)
    assert found.field
    fixed = [changed(path, found.field, value, tmp_path) for value in fixes(found)]
    assert any(not diagnostics(spec) for spec in fixed)


@pytest.mark.parametrize("stem", ["several_rules", *sorted(NEEDS_A_SECOND_FIX)])
def test_one_fix_after_the_other_leads_to_a_legal_spec(stem: str, tmp_path: Path) -> None:
    path, seen = DIRECTORY / f"{stem}.yaml", set[str]()
    while found := diagnostics(path):
        assert str(found) not in seen, "the fixes go in a circle"
        seen.add(str(found))
        assert found[0].field
        path = changed(path, found[0].field, fixes(found[0])[0], tmp_path)


def beyond(found: Diagnostic) -> Sequence[int]:
    """The next value past one that a text calls the most or the least, on the scale of its field."""
    bound = re.search(r"use at (most|least) (\d+)$", found.message)
    if not bound or not found.field:
        return ()
    limit, more = int(bound[2]), bound[1] == "most"
    if found.field.endswith((".stages", ".width")):
        return (limit + 1 if more else limit - 1,)
    if ".registers." in found.field:
        return (limit + 8 if more else limit - 8,)
    return (limit * 2 if more else limit // 2,)


@every_invalid_spec
def test_no_value_past_the_named_one_is_legal(stem: str, tmp_path: Path) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    for found in diagnosed(stem):
        assert found.field
        for value in beyond(found):
            assert found.code in {code for code, _ in broken(changed(path, found.field, value, tmp_path))}
