"""Random specs: what the rules accept compiles as planned, and what they refuse is given a reason.

These are some of every kind of kernel that ``python -m tools.fuzz`` draws. That command runs thousands of
them, and ``tests/records/fuzz.json`` has which ran and what was found. ``GEMMGEN_RANDOM_SPECS=240`` compiles
here that many of Hopper kernels instead of two of each kind, ``GEMMGEN_RANDOM_BLACKWELL_SPECS=160`` that many
of Blackwell ones, ``GEMMGEN_RANDOM_LAYER_SPECS=440`` that many of layers instead of one of each kind; half of
them are simulated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice

import pytest
from test_render import ruff

from gemmgen.build import lowered_of, settle
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.rendering import render
from gemmgen.hardware.gpus import gpu_named
from gemmgen.lower import ShortageError, lower
from gemmgen.plan.choices import CHOICE_RULES
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import altered
from gemmgen.planner import FAMILIES, family_for, family_of, plan_spec
from gemmgen.product import Product
from gemmgen.spec import SpecFile
from gemmgen.verify.simulation import simulate_product
from tools.fuzz import judge, tables
from tools.fuzz.draft import drafts, kind_of, spec_of

TARGETS = tuple(tables.TABLES)
SEED = 4
KINDS = {
    target: tuple(dict.fromkeys(kind for kind, _ in kinds)) for target, (_, kinds) in tables.TABLES.items()
}
VARIABLES = {
    "sm90": "GEMMGEN_RANDOM_SPECS",
    "sm100": "GEMMGEN_RANDOM_BLACKWELL_SPECS",
    "layers": "GEMMGEN_RANDOM_LAYER_SPECS",
}
OF_A_KIND = {"sm90": 2, "sm100": 2, "layers": 1}
COMPILED = {
    target: int(os.environ.get(VARIABLES[target], OF_A_KIND[target] * len(KINDS[target])))
    for target in TARGETS
}
"""Accepted specs that are compiled, one to four seconds each, and one to three more where it is simulated."""
LEGAL = {"sm90": 9, "sm100": 9, "layers": 8}
"""Legal specs of ten, at least: kinds of layers state fields that no kernel has together."""
DRAWN = {"sm90": 60, "sm100": 120, "layers": 66}
"""Specs that are drawn to hear what is said of the refused ones on the way, a fifth of a second each."""


# --- what is refused

CODES = {rule.id for rules in (CHOICE_RULES, *(each.rules for each in FAMILIES.values())) for rule in rules}
"""Of all reasons that a spec is given which is one."""


def rules_in(values: tables.Values, reasons: Sequence[Diagnostic]) -> set[str]:
    """The rules among reasons, each with what was found, the limit and a fix; none is given twice.

    Values that are no spec are told so by the schema.
    """
    blamed = [(found.code, found.field) for found in reasons]
    assert blamed
    assert len(set(blamed)) == len(blamed)
    codes = {found.code for found in reasons}
    if not codes <= CODES:
        with pytest.raises(GemmgenError):
            spec_of(values)
        return set()
    for found in reasons:
        assert found.field
        assert re.fullmatch(r"[^;]+, [^;]+; (use|leave) (at (most|least) )?[0-9a-z[].*", found.message)
    return codes


def assert_told_where(values: tables.Values) -> None:
    """A refused spec's messages, with advice that ends, are at the places of their fields."""
    try:
        source = spec_of(values)
    except GemmgenError:
        return
    with pytest.raises(GemmgenError) as caught:
        plan_spec(source)
    for found in caught.value.diagnostics:
        assert found.field
        assert (found.line, found.column) == source.locate(found.field)
        assert found.advice
    rules_in(values, caught.value.diagnostics)


def gpu_of(target: str) -> str:
    """A GPU that specs of a table are for."""
    return str(tables.TABLES[target][0]["target"][0])


@pytest.mark.nightly
@pytest.mark.parametrize("target", TARGETS)
def test_a_random_spec_is_planned_or_told_why_not(target: str) -> None:
    """Of the family's rules two thirds are tried, and nearly all specs end as legal ones."""
    codes, legal = set[str](), 0
    for number in range(DRAWN[target]):
        *refused, last = drafts(target, SEED, number)
        for draft in refused:
            codes |= rules_in(draft.values, draft.refused)
        if refused:
            assert_told_where(refused[-1].values)
        if not last.refused:
            source = spec_of(last.values)
            assert family_of(source).judge(plan_spec(source)) == ()
            legal += 1
    assert legal >= LEGAL[target] * DRAWN[target] // 10
    if target == "layers":
        return  # the other tables try the rules of tiles and rings
    rules = {rule.id for rule in FAMILIES[gpu_named(gpu_of(target)).architecture.mma].rules}
    assert len(codes & rules) >= 2 * len(rules) // 3


# --- what is accepted


def sample(target: str) -> Iterator[tuple[str, int, int]]:
    """The kinds by turns, the turn, and the number of the spec: a fixed sample of each kind."""
    numbers = {kind: numbers_of(target, kind) for kind in KINDS[target]}
    for place, kind in islice(enumerate(cycle(numbers)), COMPILED[target]):
        yield kind, place // len(numbers), next(numbers[kind])


def numbers_of(target: str, kind: str) -> Iterator[int]:
    """The numbers of the specs of a kind."""
    return (number for number in count() if kind_of(target, SEED, number) == kind)


def accepted(target: str, number: int) -> tuple[SpecFile, Kernel] | None:
    """A spec and the plan that the compiler confirms; None where rules or the compiler refuse the spec."""
    *_, last = drafts(target, SEED, number)
    if last.refused:
        return None
    source = spec_of(last.values)
    try:
        return source, settle(source, lowered_of, gradients=False).product.plan
    except GemmgenError as error:
        if [found.code for found in error.diagnostics] != ["compiler-registers"]:
            raise
        return None


def at_the_border(plan: Kernel) -> Kernel:
    """The plan with the fewest registers that are expected to do, its tiles in the other minor dimension."""
    plan = judge.fewest_registers(plan)
    other = altered(plan, minor="n" if plan.minor == "m" else "m")
    return plan if family_for(plan).judge(other) else other


def assert_clean(module: str) -> None:
    """The formatter and the linter find nothing in a module, were it committed."""
    for command in (("format", "--diff"), ("check",)):
        found = ruff(*command, "--stdin-filename", "generated/random.py", "-", text=module)
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("target", "kind", "turn", "number"), [(target, *each) for target in TARGETS for each in sample(target)]
)
def test_an_accepted_spec_compiles_as_planned_and_is_clean(
    target: str, kind: str, turn: int, number: int
) -> None:
    """Lowering fails where memory, instructions or registers are not the plan's.

    A spec ends at a kernel that does not spill, or the compiler has refused it. Every other one of a kind is
    at the border, where the compiler may refuse it too; every other one is simulated, of half of the kinds
    there.
    """
    found = accepted(target, number)
    if found is None:
        return
    source, plan = found
    if turn % 2:
        plan = at_the_border(plan)
    module = render(plan, spec_name="random.yaml", spec_sha256="0" * 64)
    assert_clean(module)
    try:
        resources = lower(module, plan, path="random.yaml", stem="random").resources
    except ShortageError:
        if turn % 2:
            return
        raise
    assert resources.spilled_bytes == 0
    assert (resources.smem_bytes, resources.tmem_columns) == (plan.smem_bytes, plan.tmem_columns)
    if (turn + KINDS[target].index(kind)) % 2 == 0:
        launches = tuple(judge.launches(plan))
        assert simulate_product(Product(source, plan, module), launches).problems == ()
