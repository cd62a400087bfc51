"""Random specs: what the rules accept compiles as planned, and what they reject is given a reason.

``GEMMGEN_RANDOM_SPECS=1000`` compiles that many of the accepted ones instead of a few.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from random_fields import furthest
from random_specs import BORDER, spec_text

from gemmgen.errors import GemmgenError
from gemmgen.lower import lower
from gemmgen.plan import plan_spec
from gemmgen.plan.families import FAMILIES, family_of
from gemmgen.plan.kernel import KernelPlan
from gemmgen.plan.rules import rule_id
from gemmgen.render import render
from gemmgen.spec import SpecFile, load_spec

LOWERED = int(os.environ.get("GEMMGEN_RANDOM_SPECS", "60"))
"""Accepted specs that are compiled, two to three seconds each."""
SEEDS_APART = 1_000
"""Between the first seeds tried for two of them: far more than are tried."""

SpecText = Callable[[int], str]
"""Makes the text of a spec of a seed."""


def load(text: str, directory: Path) -> SpecFile:
    path = directory / "random.yaml"
    path.write_text(text)
    return load_spec(path)


def rule_ids(mma: str) -> set[str]:
    return {rule_id(rule) for rule in FAMILIES[mma].rules}


def assert_reasons(source: SpecFile, error: GemmgenError, codes: set[str]) -> None:
    """Each reason is a rule's, at a place, with what was found, the limit and a fix; none is given twice."""
    blamed = [(found.code, found.field) for found in error.diagnostics]
    assert blamed
    assert len(set(blamed)) == len(blamed)
    for found in error.diagnostics:
        assert found.code in codes
        assert found.field
        assert (found.line, found.column) == source.locate(found.field)
        assert re.fullmatch(r"[^;]+, [^;]+; (use|leave) (at (most|least) )?[0-9a-z].*", found.message)


def assert_neither_tame_nor_wild(sources: Sequence[SpecFile], mma: str, other_codes: set[str]) -> None:
    """Each is planned or told why not; some pass, and of the rules at least half are tried."""
    legal, codes = 0, set[str]()
    for source in sources:
        try:
            plan = plan_spec(source)
        except GemmgenError as error:
            assert_reasons(source, error, rule_ids(mma) | other_codes)
            codes |= {found.code for found in error.diagnostics}
        else:
            legal += 1
            assert family_of(source.spec).judge(plan) == ()
    assert legal >= len(sources) // 5
    assert len(codes) >= len(rule_ids(mma)) // 2


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_a_random_spec_is_planned_or_told_why_not(first_seed: int, tmp_path: Path) -> None:
    sources = [load(spec_text(seed), tmp_path) for seed in range(first_seed, first_seed + 50)]
    assert_neither_tame_nor_wild(sources, "wgmma", set())


def accepted(
    index: int, text_of: SpecText, border: Sequence[tuple[str, int]], directory: Path
) -> KernelPlan:
    """The first legal spec with a tile of its own, of those of an index; at the border if that is odd."""
    for seed in count(SEEDS_APART * (index + 1)):
        source = load(text_of(seed), directory)
        if source.spec.tile.n and source.spec.tile.k:
            try:
                plan = plan_spec(source)
            except GemmgenError:
                continue
            return furthest(plan, border, family_of(source.spec)) if index % 2 else plan
    raise AssertionError


@pytest.mark.parametrize("index", range(LOWERED))
def test_an_accepted_spec_compiles_as_planned(index: int, tmp_path: Path) -> None:
    """Lowering fails if memory, registers or instruction differ from the plan's, and if a register spills."""
    plan = accepted(index, spec_text, BORDER, tmp_path)
    module = render(plan, spec_name="random.yaml", spec_sha256="0" * 64)
    lowered = lower(module, plan, path="random.yaml", stem="random")
    assert lowered.resources.smem_bytes == plan.smem_bytes
