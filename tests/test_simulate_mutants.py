"""Faults planted in generated modules: the simulator names each by kind, variable and line."""

from __future__ import annotations

import ast

import pytest
from kernels.launch import FIXED, launch
from modules import module_file
from mutants import kinds, rings
from mutants.mutant import Mutant, changed, code_of
from mutants.rings import SHAPES

from gemmgen.module import import_generated

MUTANTS = rings.MUTANTS | kinds.MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_named(name: str) -> None:
    mutant = MUTANTS[name]
    told = mutant.told()
    assert any(map(mutant.symptom.is_named, told)), told
    assert mutant.symptom.is_cause(told[0]) == (name not in CONSEQUENCE_FIRST), told


def test_no_fault_is_planted_twice() -> None:
    planted: dict[tuple[str, tuple[tuple[str, str], ...]], list[Mutant]] = {}
    for mutant in MUTANTS.values():
        planted.setdefault((mutant.stem, mutant.changes), []).append(mutant)
    twice = [mutants for mutants in planted.values() if len(mutants) > 1]
    # Without its wait for an empty stage a producer both arms the stage too often and overwrites it.
    assert [[mutant.kind for mutant in mutants] for mutants in twice] == [
        ["arrival-overflow", "write-after-read"]
    ]
    count = len(rings.MUTANTS) + len(kinds.MUTANTS)
    assert len(MUTANTS) == count  # no name is in both


def test_what_a_fault_replaces_must_be_there_exactly_once() -> None:
    assert changed("one two", (("two", "three"), ("three", "four")), "x") == "one four"
    for text, count in (("one", 0), ("two two", 2)):
        with pytest.raises(ValueError, match=rf"^x must have this once, and has it {count} times:\ntwo$"):
            changed(text, (("two", "three"),), "x")


def test_a_fault_is_planted_in_code_and_not_in_comments() -> None:
    whole = module_file("h100_bf16").read_text(encoding="utf-8")
    code = code_of("h100_bf16")
    assert "  # " in whole
    assert "# " not in code
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(whole))


@pytest.mark.parametrize("stem", SHAPES)
def test_the_unmutated_module_is_clean_and_right(stem: str) -> None:
    module = import_generated(module_file(stem))
    result, found, expected = launch(module, SHAPES[stem], schedules=(*FIXED, *["random"] * 5))
    assert result.findings == ()
    assert result.uncovered == ()
    assert result.deterministic
    assert found.equal(expected)
