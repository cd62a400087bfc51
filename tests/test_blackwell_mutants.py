"""Faults planted in generated modules for Blackwell: the simulator names each by kind, variable and line.

No Blackwell GPU has run the modules: that a change is a fault, or none, follows from what PTX says of it.
"""

from __future__ import annotations

import pytest
from mutants import blackwell, blackwell_launch, one_of_each
from mutants.blackwell import (
    COPY_B_SCALES,
    TO_ALL,
    TO_BARRIER,
    one,
    pair,
    scaled_pair,
    share_a,
    within,
)
from mutants.blackwell_launch import IN_NUMBERS_ONLY, TRANSPOSED
from mutants.mutant import launch_of, product_of

from gemmgen.errors import GemmgenError
from gemmgen.verify.simulation import simulate_product

MUTANTS = blackwell.MUTANTS | blackwell_launch.MUTANTS
FAMILIES = sorted({mutant.stem for mutant in MUTANTS.values()})


@pytest.mark.parametrize(
    "name", one_of_each(MUTANTS, lambda _, mutant: (mutant.stem, mutant.kind), lambda mutant: mutant.stem)
)
def test_a_planted_fault_is_named(name: str) -> None:
    mutant = MUTANTS[name]
    told = mutant.told()
    assert any(map(mutant.symptom.is_named, told)), told
    assert mutant.symptom.is_cause(told[0]), told
    if name in IN_NUMBERS_ONLY:
        assert {each.kind for each in told} == {mutant.kind}


@pytest.mark.parametrize("stem", FAMILIES)
def test_the_unmutated_module_is_clean_and_right(stem: str) -> None:
    product = product_of(stem)
    assert simulate_product(product, (launch_of(product),)).problems == ()


def test_no_fault_is_planted_twice() -> None:
    planted = {(mutant.stem, mutant.changes) for mutant in MUTANTS.values()}
    assert len(planted) == len(MUTANTS)
    count = len(blackwell.MUTANTS) + len(blackwell_launch.MUTANTS)
    assert len(MUTANTS) == count  # no name is in both


EXPECT_BOTH = "mbarrier.expect(ready, args.a_desc.nbytes_per_cta + args.b_desc.nbytes_per_cta)"
END_OF_LOADS = "        ring = ring.next()\n    return ring\n\n\n@gluon.jit\ndef load_partition("
MULTICAST = ", multicast=True"
HARMLESS = {
    # Each pair, or each CTA, loads what one could have loaded for all that share it.
    "a_loaded_by_each_pair": share_a("", "", "", within(f"ready, a_tile{MULTICAST})", MULTICAST)),
    "b_scales_loaded_by_each_cta": scaled_pair(
        "",
        "",
        "",
        within(f"b_scale_tile{MULTICAST})", MULTICAST),
    ),
    # No CTA shares B: its group is the CTA alone.
    "b_multicast_that_nobody_shares": pair("", "", "", within("ready, b_tile)", ")", f"{MULTICAST})")),
    # A commit for two CTAs arrives in both of the pair without it; only other pairs need it.
    "commit_of_a_lone_pair_without_multicast": pair("", "", "", (TO_ALL, TO_BARRIER)),
    # A phase needs the arrival too, and bytes may come in before it.
    "bytes_expected_after_the_loads": pair(
        "",
        "",
        "",
        (f"        {EXPECT_BOTH}\n", ""),
        (END_OF_LOADS, f"        {EXPECT_BOTH}\n{END_OF_LOADS}"),
    ),
    "one_slot_for_responses": one("", "", "", within("CLC_RESPONSES = gl.constexpr(2)", "2", "1")),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_costs_time_at_most_is_no_finding(name: str) -> None:
    assert HARMLESS[name].problems() == ()


LOAD_EMPTY = "load_empty = mbarrier.allocate_mbarrier(batch=STAGES)"
REFUSED = {
    "stage_released_to_one_cta": pair("", "", "", within(LOAD_EMPTY, "STAGES", "STAGES, two_ctas=True")),
    "b_not_transposed_in_the_pair": pair("", "", "", within(TRANSPOSED, ".permute((1, 0))")),
    "b_scales_of_the_pair_copied_over_those_of_a": scaled_pair(
        "", "", "", within(COPY_B_SCALES, "b_scale_tmem", "a_scale_tmem")
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_compiler_refuses_what_fits_no_pair(name: str) -> None:
    with pytest.raises(GemmgenError) as error:
        REFUSED[name].problems()
    assert [diagnostic.code for diagnostic in error.value.diagnostics] == ["lowering-failed"]
