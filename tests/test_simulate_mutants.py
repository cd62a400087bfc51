"""Faults planted in generated modules: the simulator names each by kind, variable and line."""

from __future__ import annotations

import ast
import os
from dataclasses import fields, replace

import pytest
from kernels.launch import FIXED, launch
from modules import module_file
from mutants import (
    c_blocks,
    committed,
    early,
    epilogues,
    expert_backward,
    exponents,
    gates,
    grouped_scales,
    groups,
    hostile,
    k_groups,
    kinds,
    one_of_each,
    parallel,
    promotion,
    quantized,
    rings,
    rows,
    scales,
    splits,
    weights,
)
from mutants.mutant import SMALL, changed, code_of, launch_of, product_of, simulated
from mutants.rings import SHAPES

from gemmgen.errors import GemmgenError
from gemmgen.module import import_generated
from gemmgen.verify.launches import all_launches, pinned_launches, takes_parts
from gemmgen.verify.simulation import simulate_product
from gluonsim import POLICIES, Severity

FAMILIES = (
    *(rings, kinds, splits, parallel, early, gates, c_blocks, groups, k_groups, rows, scales, weights),
    *(grouped_scales, promotion, quantized, expert_backward, exponents, hostile),
    committed,
    epilogues,
)
MUTANTS = {name: mutant for family in FAMILIES for name, mutant in family.MUTANTS.items()}
FAMILY = {name: family.__name__ for family in FAMILIES for name in family.MUTANTS}
CONSEQUENCE_FIRST = {
    # The load into the wrong stage ends before anyone reads it: it is the reader who seems to be too early.
    "twin_b_in_the_stage_before",
    # A reader of one CTA releases the stage before the other CTA has waited for the round before.
    "promoted_group_awaited_after_the_load",
    "pair_a_barrier_for_each_cta",
}
"""Mutants of which something else is told before the root cause."""
MOST_CONSEQUENCES = 0.05


@pytest.mark.parametrize(
    "name",
    one_of_each(MUTANTS, lambda name, mutant: (FAMILY[name], mutant.kind), lambda mutant: mutant.stem),
)
def test_a_planted_fault_is_named(name: str) -> None:
    mutant = MUTANTS[name]
    told = mutant.told()
    assert any(map(mutant.symptom.is_named, told)), told
    if mutant.symptom.severity is Severity.LINT:
        # Errors are told before lints: what the fault does to the numbers comes before the lint of an earlier
        # launch. No other error may.
        told = [one for one in told if one.kind != committed.WRONG_NUMBERS]
    assert mutant.symptom.is_cause(told[0]) == (name not in CONSEQUENCE_FIRST), told


@pytest.mark.parametrize("name", hostile.REFUSED)
def test_an_access_outside_of_a_tensors_memory_ends_the_simulation(name: str) -> None:
    mutant = hostile.REFUSED[name]
    with pytest.raises(GemmgenError) as refused:
        mutant.problems(("random",))
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == mutant.kind
    assert diagnostic.message.startswith(mutant.name)
    assert diagnostic.line is not None
    assert mutant.line in mutant.source.splitlines()[diagnostic.line - 1]


def test_the_root_cause_comes_first_of_nearly_all() -> None:
    """What a root cause is: `mutants.symptom`."""
    assert len(CONSEQUENCE_FIRST & set(committed.MUTANTS)) <= MOST_CONSEQUENCES * len(committed.MUTANTS)
    assert set(MUTANTS) >= CONSEQUENCE_FIRST
    assert len(committed.MUTANTS) >= 60
    assert len(STEMS) >= 16


RANDOM_SCHEDULES = int(os.environ.get("GEMMGEN_CLEAN_SCHEDULES", "2"))
"""Under which the unmutated modules run; a hundred take minutes of a core."""
STEMS = sorted({mutant.stem for mutant in (committed.MUTANTS | epilogues.MUTANTS).values()})


@pytest.mark.parametrize("stem", STEMS)
def test_the_unmutated_module_is_clean_under_many_schedules(stem: str) -> None:
    product = simulated(stem)
    launch = replace(launch_of(product), schedules=("random",) * RANDOM_SCHEDULES)
    assert simulate_product(product, (launch,)).problems == ()


DIVIDING = splits.MUTANTS | parallel.MUTANTS | early.MUTANTS
DIVIDED = sorted({mutant.stem for mutant in DIVIDING.values()})


@pytest.mark.sample(6)
@pytest.mark.parametrize("stem", DIVIDED)
def test_a_module_that_divides_k_or_starts_early_is_clean_under_all_policies(stem: str) -> None:
    product = product_of(stem)
    launches = all_launches(product.plan, RANDOM_SCHEDULES)
    many = len(POLICIES) - 1 + RANDOM_SCHEDULES
    shared = takes_parts(product.plan)
    assert [len(launch.schedules) for launch in launches] == [many, 1, *([many] if shared else [])]
    assert simulate_product(product, launches).problems == ()
    assert simulate_product(product, pinned_launches((37, 120, 72), RANDOM_SCHEDULES)).problems == ()


SIZES = {"cta_tile_n", "cta_tile_k", "mma_n", "a_swizzle_bytes", "b_swizzle_bytes", "stages", "subtile_n"}


@pytest.mark.parametrize("stem", SMALL)
def test_a_small_module_differs_in_sizes_alone(stem: str) -> None:
    small, large = simulated(stem).plan, product_of(stem).plan
    values = {field.name for field in fields(small)} - {"request"}  # its title is another one
    assert {name for name in values if getattr(small, name) != getattr(large, name)} <= SIZES
    assert small.problem == large.problem
    assert small.subtiles == large.subtiles


PAST_THE_END = parallel.PAST_THE_END | splits.PAST_THE_END


@pytest.mark.parametrize("name", PAST_THE_END)
def test_an_access_past_the_end_of_a_tensor_ends_the_run(name: str) -> None:
    mutant = PAST_THE_END[name]
    place = r"outside of its storage, at element -?[\d,]+ of [\d,]+"
    text = rf"error\[{mutant.kind}\]: {mutant.name} is accessed {place}"
    with pytest.raises(GemmgenError, match=text):
        mutant.problems()


def test_no_fault_is_planted_twice() -> None:
    planted = {(mutant.stem, mutant.changes) for mutant in MUTANTS.values()}
    assert len(planted) == len(MUTANTS)
    count = sum(len(family.MUTANTS) for family in FAMILIES)
    assert len(MUTANTS) == count  # no name is in two of them


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
