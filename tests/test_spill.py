"""Specs that were accepted although the compiler spilled: the kernels that are built now spill nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmgen.build import lowered_of, settle
from gemmgen.product import load

SPILLED = sorted((Path(__file__).parent / "spill").glob("*.yaml"))


def test_there_are_specs() -> None:
    assert len(SPILLED) >= 4


@pytest.mark.parametrize("spec", SPILLED, ids=lambda spec: spec.stem)
def test_an_accepted_spec_compiles_without_a_spill(spec: Path) -> None:
    """The planner passes over kernels that spill, by the verdict of the compiler."""
    (lowered,) = settle(load(spec), lowered_of).results
    resources = lowered.resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)
