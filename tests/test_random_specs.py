"""Random specs: what the rules accept compiles as planned, and what they reject is given a reason.

``GEMMGEN_RANDOM_SPECS=1000`` compiles that many of the accepted ones instead of a few.
"""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path

import pytest
from random_specs import at_the_border, spec_text

from gemmgen.errors import GemmgenError
from gemmgen.lower import lower
from gemmgen.plan import Plan, plan_spec
from gemmgen.plan.rules import RULES, judge, rule_id
from gemmgen.render import render
from gemmgen.spec import SpecFile, load_spec

RULE_IDS = {rule_id(rule) for rule in RULES}
LOWERED = int(os.environ.get("GEMMGEN_RANDOM_SPECS", "60"))
"""Accepted specs that are compiled, two to three seconds each."""
SEEDS_APART = 1_000
"""Between the first seeds tried for two of them: far more than are tried."""


def load(seed: int, directory: Path) -> SpecFile:
    path = directory / f"random_{seed}.yaml"
    path.write_text(spec_text(seed))
    return load_spec(path)


def assert_reasons(source: SpecFile, error: GemmgenError) -> None:
    """Each reason is a rule's, at a place, with what was found, the limit and a fix; none is given twice."""
    blamed = [(found.code, found.field) for found in error.diagnostics]
    assert blamed
    assert len(set(blamed)) == len(blamed)
    for found in error.diagnostics:
        assert found.code in RULE_IDS
        assert found.field
        assert (found.line, found.column) == source.locate(found.field)
        assert re.fullmatch(r"[^;]+, [^;]+; (use|leave) (at (most|least) )?[0-9a-z].*", found.message)


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_a_random_spec_is_planned_or_told_why_not(first_seed: int, tmp_path: Path) -> None:
    legal, codes = 0, set[str]()
    for seed in range(first_seed, first_seed + 50):
        source = load(seed, tmp_path)
        try:
            plan = plan_spec(source)
        except GemmgenError as error:
            assert_reasons(source, error)
            codes |= {found.code for found in error.diagnostics}
        else:
            legal += 1
            assert judge(plan) == ()
    # The choice is neither so tame that no rule is tried nor so wild that nothing passes.
    assert legal >= 10
    assert len(codes) >= len(RULES) // 2


def accepted(index: int, directory: Path) -> Plan:
    """The first legal spec with a tile of its own, of those of an index; at the border if that is odd."""
    for seed in count(SEEDS_APART * (index + 1)):
        source = load(seed, directory)
        if source.spec.tile.n and source.spec.tile.k:
            try:
                plan = plan_spec(source)
            except GemmgenError:
                continue
            return at_the_border(plan) if index % 2 else plan
    raise AssertionError


@pytest.mark.parametrize("index", range(LOWERED))
def test_an_accepted_spec_compiles_as_planned(index: int, tmp_path: Path) -> None:
    """Lowering fails if memory, registers or instruction differ from the plan's, and if a register spills."""
    plan = accepted(index, tmp_path)
    module = render(plan, spec_name="random.yaml", spec_sha256="0" * 64)
    lowered = lower(module, plan, path="random.yaml", stem="random")
    assert lowered.resources.smem_bytes == plan.smem_bytes
