"""Faults planted in hand-written kernels: the simulator names the cause first; the right twin is clean."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants import accumulators, descriptors, one_of_each, pages, registers, workspaces
from mutants.handwritten import KERNELS, function_of, imported
from mutants.mutant import SCHEDULES

pytestmark = pytest.mark.simulator

FAMILIES = {
    "accumulators": accumulators,
    "descriptors": descriptors,
    "pages": pages,
    "registers": registers,
    "workspaces": workspaces,
}
"""Faults and launches, by the file of their kernels."""
FAULTS = {name: fault for family in FAMILIES.values() for name, fault in family.FAULTS.items()}
FILE = {name: stem for stem, family in FAMILIES.items() for name in family.FAULTS}
LAUNCHES = [(stem, name) for stem, family in FAMILIES.items() for name in family.LAUNCHES]
HARMLESS = accumulators.HARMLESS | workspaces.HARMLESS
POLICIES = ("lazy", "eager", "lifo", *["random"] * 8)
CONSEQUENCE_FIRST = {
    # The load into the wrong slot ends before the slot is read: the reader seems to be too early.
    "multicast_to_a_slot_of_the_barrier_before",
    # The second CTA's load does not wait for the group: its reader releases before the first CTA has waited.
    "multicast_that_each_cta_issues",
}
"""Faults of which a consequence is told before the cause: a mend of the simulator takes them from here."""
MOST_CONSEQUENCES = 0.05
FEWEST_FAULTS = 120


@pytest.fixture(autouse=True)
def _forget_modules() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    for name in [name for name in sys.modules if name.startswith("planted_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name", one_of_each(FAULTS, lambda name, fault: (FILE[name], fault.symptom.kind), lambda _: "")
)
def test_a_planted_fault_is_named_first(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    told = fault.told(tmp_path / f"{name}.py", SCHEDULES)
    assert any(map(fault.symptom.is_named, told)), told
    assert fault.symptom.is_cause(told[0]) == (name not in CONSEQUENCE_FIRST), told


def test_the_cause_comes_first_of_nearly_all() -> None:
    assert set(FAULTS) >= CONSEQUENCE_FIRST
    assert len(CONSEQUENCE_FIRST) <= MOST_CONSEQUENCES * len(FAULTS)
    assert len(FAULTS) >= FEWEST_FAULTS


@pytest.mark.parametrize("name", HARMLESS)
def test_an_edit_that_does_no_harm_is_no_finding(name: str, tmp_path: Path) -> None:
    assert HARMLESS[name].told(tmp_path / f"{name}.py", SCHEDULES) == []


@pytest.mark.parametrize(("stem", "name"), LAUNCHES)
def test_the_right_twin_is_clean_and_exact_under_many_schedules(stem: str, name: str) -> None:
    module = imported(KERNELS / f"{stem}.py")
    assert FAMILIES[stem].LAUNCHES[name](module, POLICIES).findings == ()


def test_no_fault_is_planted_twice() -> None:
    planted = {(fault.stem, fault.function, fault.changes) for fault in FAULTS.values()}
    assert len(planted) == len(FAULTS) == sum(len(family.FAULTS) for family in FAMILIES.values())


def test_a_fault_is_planted_in_one_function() -> None:
    text = "def f():\n    return 1\n\n\n@g\ndef h():\n    return 1\n"
    assert function_of(text, "f") == "def f():\n    return 1\n"
    with pytest.raises(ValueError, match=r"one function x, found 0"):
        function_of(text, "x")
