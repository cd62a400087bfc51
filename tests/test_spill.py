"""Specs that were accepted although the compiler refused their kernels: what is built now spills nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmgen.build import lowered_of, settle
from gemmgen.plan.verdicts import standing_of
from gemmgen.product import load, make

SPILLED = sorted((Path(__file__).parent / "spill").glob("*.yaml"))
MOST_REFUSED = 5
"""Kernels that the compiler refuses ahead of the one that is built: pinned registers that do not suffice."""


def test_there_are_specs() -> None:
    assert len(SPILLED) >= 4


@pytest.mark.nightly
@pytest.mark.parametrize("spec", SPILLED, ids=lambda spec: spec.stem)
def test_an_accepted_spec_compiles_without_a_spill(spec: Path) -> None:
    """The planner passes over kernels that spill, by the verdict of the compiler, after few compilations."""
    settled = settle(load(spec), lowered_of)
    (lowered,) = settled.results
    assert len(settled.product.passed_over) <= MOST_REFUSED
    resources = lowered.resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)


@pytest.mark.quick
@pytest.mark.parametrize("spec", SPILLED, ids=lambda spec: spec.stem)
def test_a_plan_that_nobody_has_compiled_says_so(spec: Path) -> None:
    standing = standing_of(make(spec).plan)
    assert (standing.state, standing.as_dict()["confirmed"]) == ("predicted", False)
    assert "not confirmed by the compiler: gemmgen build compiles this kernel" in standing.consequence
    assert standing.consequence.endswith(", it compiles the next plan that the spec allows")
