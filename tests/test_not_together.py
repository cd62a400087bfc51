"""Each pair of capabilities that no kernel has together: its invalid spec, its field, and random specs."""

from __future__ import annotations

from functools import cache

import pytest
import told

from gemmgen.errors import Diagnostic
from gemmgen.features.not_together import NOT_TOGETHER
from gemmgen.plan.not_together import CODE, NotTogether, Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.spec.vocabulary import fields
from tools.fuzz.crossed import CROSSED_TABLES, stated_by

TRAITS = [*{trait: None for row in NOT_TOGETHER for trait in (row.one, row.other)}]


def name_of(row: NotTogether[WgmmaKernel]) -> str:
    return f"{row.one.name} with {row.other.name}"


@cache
def shown() -> tuple[Diagnostic, ...]:
    """The messages about pairs that the committed specs get."""
    specs = sorted(told.INVALID.glob(f"rules/{CODE.replace('-', '_')}_*.yaml"))
    return tuple(found for path in specs for found in told.diagnostics(path) if found.code == CODE)


@pytest.mark.parametrize("row", NOT_TOGETHER, ids=name_of)
def test_every_pair_has_a_spec_that_states_it(row: NotTogether[WgmmaKernel]) -> None:
    other = row.other.words if isinstance(row.other.words, str) else ""
    end = f"{other}, {row.limit}; "
    assert [each for each in shown() if each.field == row.one.field and end in each.message]


def test_no_pair_is_there_twice() -> None:
    pairs = [frozenset((row.one, row.other)) for row in NOT_TOGETHER]
    assert len({*pairs}) == len(pairs)


@pytest.mark.quick
@pytest.mark.parametrize("trait", TRAITS, ids=lambda trait: trait.name)
def test_a_trait_names_a_field_of_specs_and_can_be_drawn(trait: Trait[WgmmaKernel]) -> None:
    assert trait.field in fields()
    assert stated_by(trait)


@pytest.mark.quick
def test_random_specs_state_every_pair() -> None:
    assert [name for name, _ in CROSSED_TABLES["pairs"][1]] == [name_of(row) for row in NOT_TOGETHER]
