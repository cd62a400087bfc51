"""Faults planted in generated modules for Blackwell: the simulator names each by kind, variable and line.

No Blackwell GPU has run the modules: what a change does on the device is read from the PTX manual.
"""

from __future__ import annotations

import blackwell_launch_mutants
import blackwell_mutants
import pytest
from blackwell_launch_mutants import IN_NUMBERS_ONLY, TRANSPOSED
from blackwell_mutants import (
    COMMIT,
    COPY_B_SCALES,
    TO_ALL,
    TO_BARRIER,
    one,
    pair,
    scaled_pair,
    share_a,
    share_b,
    within,
)
from simulate_mutants import Mutant, launch_of, product_of

from gemmgen.errors import GemmgenError
from gemmgen.simulate import Kind
from gemmgen.simulate.launches import Launch
from gemmgen.simulate.specs import simulate

MUTANTS = blackwell_mutants.MUTANTS | blackwell_launch_mutants.MUTANTS
FAMILIES = sorted({mutant.stem for mutant in MUTANTS.values()})


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_named(name: str) -> None:
    mutant = MUTANTS[name]
    problems = mutant.problems()
    assert any(map(mutant.is_named_by, problems)), list(map(str, problems))
    if name in IN_NUMBERS_ONLY:
        assert {problem.kind for problem in problems} == {mutant.kind}


@pytest.mark.parametrize("stem", FAMILIES)
def test_the_unmutated_module_is_clean_and_right(stem: str) -> None:
    product = product_of(stem)
    assert simulate(product, (launch_of(product),)).problems == ()


def test_no_fault_is_planted_twice() -> None:
    planted = {(mutant.stem, mutant.changes) for mutant in MUTANTS.values()}
    assert len(planted) == len(MUTANTS)
    count = len(blackwell_mutants.MUTANTS) + len(blackwell_launch_mutants.MUTANTS)
    assert len(MUTANTS) == count  # no name is in both


SAME_NUMBERS = {
    # Each CTA loads for itself what one could have loaded for all that share it.
    "a_loaded_by_each_pair": share_a, 
}
