"""Random Blackwell specs: what the rules accept compiles as planned, and what they reject is given a reason.

No Blackwell GPU was at hand: the kernels are lowered and none of them is run.
``GEMMGEN_RANDOM_BLACKWELL_SPECS=500`` compiles that many of the accepted ones instead of a few.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from random_specs.blackwell import BORDER, spec_text
from test_random_specs import accepted, assert_clean, assert_neither_tame_nor_wild

from gemmgen.lower import lower
from gemmgen.plan.planner import FAMILIES
from gemmgen.render import render

BLACKWELL = FAMILIES["tcgen05"]
LOWERED = int(os.environ.get("GEMMGEN_RANDOM_BLACKWELL_SPECS", "30"))
"""Accepted specs that are compiled, two to five seconds each."""


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_a_random_spec_is_planned_or_told_why_not(first_seed: int, tmp_path: Path) -> None:
    assert_neither_tame_nor_wild(map(spec_text, range(first_seed, first_seed + 100)), BLACKWELL, tmp_path)


@pytest.mark.parametrize("index", range(LOWERED))
def test_an_accepted_spec_is_lint_clean_and_compiles_as_planned(index: int, tmp_path: Path) -> None:
    """Lowering fails where memory, instructions or registers are not the plan's, and on spills and traps."""
    _, plan = accepted(index, spec_text, BLACKWELL, BORDER, tmp_path)
    module = render(plan, spec_name="random.yaml", spec_sha256="0" * 64)
    assert_clean(module)
    lowered = lower(module, plan, path="random.yaml", stem="random")
    assert lowered.resources.smem_bytes == plan.smem_bytes
    assert lowered.resources.tmem_columns == plan.tmem_columns
