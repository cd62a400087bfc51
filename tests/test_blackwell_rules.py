"""Every rule of Blackwell plans, fired by a spec of its own; and what no spec can get wrong, on the text.

No Blackwell GPU was at hand: what Triton refuses, and what it compiles in silence, was found by lowering.
"""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from pathlib import Path

import pytest
from test_rules import beyond, broken, calls, changed, diagnostics, fixes, places, value_at

from gemmgen.errors import Diagnostic, Violation
from gemmgen.plan import plan_spec
from gemmgen.plan.blackwell import Tcgen05Plan
from gemmgen.plan.blackwell.rules import PROBLEM_RULES, RULES, STORE_RULES, Rule
from gemmgen.plan.rules.rule import rule_id
from gemmgen.render import render
from gemmgen.spec import load_spec
from gemmgen.target import SCALE_FORMATS

ROOT = Path(__file__).parent.parent
DIRECTORY = Path("tests/invalid/blackwell")
INVALID = sorted(path.stem for path in (ROOT / DIRECTORY).glob("*.yaml"))
RULE_IDS = {rule_id(rule) for rule in RULES}
OWN_MODULES = {rule.__module__ for rule in RULES if ".blackwell." in rule.__module__}

every_invalid_spec = pytest.mark.parametrize("stem", INVALID)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagnostics name a spec as the user does, so relative to where the test runs."""
    monkeypatch.chdir(ROOT)


@cache
def diagnosed(stem: str) -> tuple[Diagnostic, ...]:
    """What the planner says about an invalid spec."""
    return diagnostics(DIRECTORY / f"{stem}.yaml")


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


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_a_rule_says_what_holds_in_a_sentence(rule: Rule) -> None:
    sentence, _, source = (rule.__doc__ or "").partition("\n\n")
    assert re.fullmatch(r"[A-Z4`][^.\n]*\w\.", sentence)
    assert not source or source.strip().startswith("[")


def test_every_violation_of_every_rule_is_shown_by_a_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[tuple[str, str, str], tuple[str, int]] = {}

    def recorded(*parts: str) -> Violation:
        violation, frame = Violation(*parts), inspect.currentframe()
        caller = frame and frame.f_back
        assert caller
        made[violation.rule, violation.field, str(violation)] = (caller.f_code.co_filename, caller.f_lineno)
        return violation

    for module in OWN_MODULES:
        monkeypatch.setattr(f"{module}.Violation", recorded)
    # Without the cache, for its answers were not recorded.
    found = [
        (found.code, found.field or "", found.message)
        for stem in INVALID
        for found in diagnostics(DIRECTORY / f"{stem}.yaml")
    ]
    shown = {made[text] for text in found if text in made}
    files = [importlib.import_module(module).__file__ or "" for module in OWN_MODULES]
    assert shown == {(file, line) for file in files for line in calls(Path(file))}


@every_invalid_spec
def test_violations_are_reported_in_the_order_of_the_file(stem: str) -> None:
    assert places(diagnosed(stem)) == sorted(places(diagnosed(stem)))


def test_as_many_rules_as_are_broken_are_reported() -> None:
    assert len(diagnosed("several_rules")) == 11
    assert len({found.code for found in diagnosed("several_rules")}) == 11


@every_invalid_spec
def test_a_text_has_what_was_found_then_the_limit_then_the_fix(stem: str) -> None:
    for found in diagnosed(stem):
        assert re.fullmatch(r"[^;]+, [^;]+; (use|leave it out\b).*", found.message)
        assert str(found).isprintable()


BLAMES_AN_EXTENT = {"smem-capacity"}
"""Its text gives what an extent of the tile or the epilogue comes to in memory."""
SEARCHED = {"schedule_kind"}
"""Specs whose mistake is among the values to choose from, where no single one has a place."""


@pytest.mark.parametrize("stem", sorted(set(INVALID) - SEARCHED))
def test_a_text_points_at_the_value_and_quotes_it(stem: str) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    lines = path.read_text().splitlines()
    for found in diagnosed(stem):
        assert found.line is not None
        assert found.column is not None
        here, value = lines[found.line - 1][found.column - 1 :], value_at(path, found.field or "")
        if isinstance(value, dict):
            assert here.startswith("{")
            continue
        assert here.startswith(str(value))
        if str(value).isdecimal() and found.code not in BLAMES_AN_EXTENT:
            assert re.search(rf"\b{int(value):,}\b", found.message)


# --- the fixes


@pytest.mark.parametrize("stem", sorted(set(INVALID) - SEARCHED))
def test_each_fix_that_a_text_names_satisfies_the_rule(stem: str, tmp_path: Path) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    for found in diagnosed(stem):
        assert found.field
        for value in fixes(found):
            still = broken(changed(path, found.field, value, tmp_path))
            assert {code for code, _ in still} <= RULE_IDS, "what the text names is no value of the field"
            assert (found.code, found.field) not in still


HAS_SEVERAL_MISTAKES = {"several_rules", "scale_format", "epilogue_ops_unscaled"}


@pytest.mark.parametrize("stem", sorted(set(INVALID) - HAS_SEVERAL_MISTAKES - SEARCHED))
def test_where_one_value_is_wrong_a_fix_makes_the_spec_legal(stem: str, tmp_path: Path) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    (found,) = diagnosed(stem)
    assert found.field
    assert any(not diagnostics(changed(path, found.field, value, tmp_path)) for value in fixes(found))


@pytest.mark.parametrize("stem", sorted(HAS_SEVERAL_MISTAKES & set(INVALID)))
def test_one_fix_after_the_other_leads_to_a_legal_spec(stem: str, tmp_path: Path) -> None:
    path, seen = DIRECTORY / f"{stem}.yaml", set[str]()
    while found := diagnostics(path):
        assert str(found) not in seen, "the fixes go in a circle"
        seen.add(str(found))
        assert found[0].field
        path = changed(path, found[0].field, fixes(found[0])[0], tmp_path)


@pytest.mark.parametrize("stem", sorted(set(INVALID) - SEARCHED))
def test_no_value_past_the_named_one_is_legal(stem: str, tmp_path: Path) -> None:
    path = DIRECTORY / f"{stem}.yaml"
    for found in diagnosed(stem):
        assert found.field
        for value in beyond(found):
            assert found.code in {code for code, _ in broken(changed(path, found.field, value, tmp_path))}


# --- who is asked when


def test_a_rule_of_the_problem_judges_no_decision() -> None:
    # The planner asks one plan for all: the same problem with other decisions is judged the same.
    for stem in INVALID:
        source = load_spec(DIRECTORY / f"{stem}.yaml")
        judged = {
            tuple(str(found) for rule in PROBLEM_RULES for found in rule(outline))
            for outline in outlines(source.spec)
        }
        assert len(judged) == 1


def test_rules_of_the_store_are_rules() -> None:
    assert STORE_RULES <= RULE_IDS
    assert STORE_RULES.isdisjoint(map(rule_id, PROBLEM_RULES))
