"""The runner of rules: what silences what, in which order is judged and told, and who may ask about whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import told

from gemmgen.errors import Assignment
from gemmgen.plan.choices import CHOICE_RULES
from gemmgen.plan.fix import at_most, use
from gemmgen.plan.not_together import CODE
from gemmgen.plan.rule import Consulted, Finding, Part, Rule, Violation, judge, keeps, rule
from gemmgen.planner import FAMILIES
from gemmgen.spec import load_spec

ROOT = Path(__file__).parent.parent
FILES = sorted((*ROOT.glob("gemmgen/plan/**/*_rules.py"), *ROOT.glob("gemmgen/features/*/*rules.py")))


@dataclass(frozen=True)
class Numbers:
    """Something to judge."""

    first: int = 0
    second: int = 0
    third: int = 0


@rule("even")
def even(numbers: Numbers) -> Iterator[Finding]:
    """All are even."""
    for field in ("first", "second", "third"):
        if getattr(numbers, field) % 2:
            yield Finding(field, "odd", "only even ones", use(0))


@rule("rising", after=[even.at("first", "second")])
def rising(numbers: Numbers) -> Iterator[Finding]:
    """The second is no less than the first."""
    if numbers.second < numbers.first:
        yield Finding("second", "less", "no less than the first", use(numbers.first))


@rule("rising-further", after=[rising])
def rising_further(numbers: Numbers) -> Iterator[Finding]:
    """The third is no less than the second."""
    if numbers.third < numbers.second:
        yield Finding("third", "less", "no less than the second", use(numbers.second))


@rule("small", consults=[even.at("third"), rising])
def small(numbers: Numbers, consulted: Consulted) -> Iterator[Finding]:
    """The third is small, and less so where it is not even."""
    if numbers.third > 10:
        yield Finding("third", "large", "at most 10", use(9 if consulted.broken(even.at("third")) else 10))


RULES = (small, rising_further, rising, even)


def found(numbers: Numbers) -> list[str]:
    """What is wrong with numbers, in order, each with its field and fix."""
    return [f"{told.rule} {told.field}: {told.fix}" for told in judge(numbers, RULES)]


def test_what_breaks_no_rule_has_no_violation() -> None:
    assert judge(Numbers(2, 4, 6), RULES) == ()
    assert keeps(Numbers(2, 4, 6), RULES)


def test_violations_are_told_in_the_order_of_the_list_and_not_of_the_judgement() -> None:
    assert found(Numbers(4, 2, 12)) == ["small third: use 10", "rising second: use 4"]
    assert found(Numbers(0, 2, 0)) == ["rising-further third: use 2"]


def test_a_rule_is_silent_where_one_is_broken_that_it_comes_after() -> None:
    # 2 is less than 3, and 0 than 2, but that 3 is odd is all that is told of the first two.
    assert found(Numbers(3, 2, 2)) == ["even first: use 0"]
    assert found(Numbers(4, 2, 0)) == ["rising second: use 4"]


def test_a_rule_that_was_silent_silences_no_other() -> None:
    assert found(Numbers(3, 2, 0)) == ["rising-further third: use 2", "even first: use 0"]


def test_a_rule_relies_on_the_fields_of_another_that_it_names() -> None:
    assert found(Numbers(4, 2, 1)) == ["rising second: use 4", "even third: use 0"]


def test_a_rule_speaks_where_one_is_broken_that_it_consults_but_says_something_else() -> None:
    assert found(Numbers(2, 4, 13)) == ["small third: use 9", "even third: use 0"]


def test_a_few_rules_bring_those_along_that_they_come_after() -> None:
    assert not keeps(Numbers(4, 2, 2), (rising,))
    assert keeps(Numbers(5, 2, 2), (rising,))
    assert not keeps(Numbers(5, 2, 2), (even.at("first"),))
    assert keeps(Numbers(5, 2, 2), (even.at("second", "third"),))


def test_a_rule_that_asks_about_one_that_it_does_not_consult_is_stopped() -> None:
    @rule("curious", consults=[even])
    def curious(_: Numbers, consulted: Consulted) -> Iterator[Finding]:
        """Nothing holds."""
        if consulted.broken(even, rising):
            yield Finding("first", "found", "limit", use(0))

    with pytest.raises(KeyError):
        judge(Numbers(1), (curious,))


def test_each_rule_is_evaluated_once() -> None:
    evaluated: list[str] = []

    @rule("base")
    def base(_: Numbers) -> Iterator[Finding]:
        """Nothing is wrong."""
        evaluated.append("base")
        yield from ()

    @rule("next", after=[base], consults=[base])
    def following(_: Numbers, consulted: Consulted) -> Iterator[Finding]:
        """Nothing is wrong."""
        assert not consulted.broken(base)
        evaluated.append("next")
        yield from ()

    assert judge(Numbers(), (following, base, following)) == ()
    assert evaluated == ["base", "next"]


def test_a_violation_is_shown_at_the_line_that_has_to_change(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    operands = "{a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}"
    path.write_text(f"title: t\ntarget: h100\noperands: {operands}\nbuffering: {{stages: 5}}\n")
    found, limit = "5 stages need 278,752 bytes", "the limit is 232,448"
    violation = Violation("smem-capacity", "buffering.stages", found, limit, at_most(4))
    told = violation.diagnosed(load_spec(path))
    assert str(told) == (
        f"{path.as_posix()}:4:21: error[smem-capacity] buffering.stages:"
        " 5 stages need 278,752 bytes, the limit is 232,448; use at most 4"
    )
    assert told.fix == ((Assignment("buffering.stages", 4, "at most"),),)


# --- the rules of the families

EVERY_FAMILY = pytest.mark.parametrize("rules", [family.rules for family in FAMILIES.values()], ids=FAMILIES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_rule_evaluates_another(path: Path) -> None:
    # Nor can it: a rule is no function, and only the runner reads what it finds.
    tree = ast.parse(path.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    declared = {rule.id.replace("-", "_") for family in FAMILIES.values() for rule in family.rules}
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & declared
    assert "judge" not in names
    assert "findings" not in attributes
    assert not any(callable(rule) for family in FAMILIES.values() for rule in family.rules)


@EVERY_FAMILY
def test_what_a_rule_relies_on_is_judged_too(rules: tuple[Rule[Any], ...]) -> None:
    for own in rules:
        for part in (*own.after, *own.consults):
            assert (part.rule if isinstance(part, Part) else part) in rules
    alone = [own.id for own in rules if own.id != CODE]
    assert len({*alone}) == len(alone)


@EVERY_FAMILY
def test_a_rule_relies_on_fields_that_the_other_blames(rules: tuple[Rule[Any], ...]) -> None:
    folders = [path.name for path in told.INVALID.iterdir()]
    every = [each for folder in folders for found in told.committed(folder).values() for each in found]
    shown = {(each["code"], each["field"]) for each in every}
    parts = {part for own in rules for part in (*own.after, *own.consults) if isinstance(part, Part)}
    assert parts
    for part in parts:
        for field in part.fields:
            assert (part.rule.id, field) in shown


@EVERY_FAMILY
def test_a_rule_of_the_problem_relies_on_no_other_kind(rules: tuple[Rule[Any], ...]) -> None:
    for own in rules:
        if own.subject == "problem":
            assert all(isinstance(part, Rule) and part.subject == "problem" for part in own.after)


def test_the_rules_of_choices_say_what_holds() -> None:
    ids = [
        "target-choice",
        "search-values",
        "batch-invariance",
        "misaligned-copy",
        "epilogue-form",
        "backward",
    ]
    assert [own.id for own in CHOICE_RULES] == ids
    assert all(own.says.endswith(".") for own in CHOICE_RULES)
