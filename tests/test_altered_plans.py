"""A plan with another decision: nothing that follows from it is taken from the plan that it was made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest
from modules import spec_file

from gemmgen.plan.decisions import FIELDS
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import altered, judge
from gemmgen.planner import family_for
from gemmgen.product import make

OTHERS: dict[type, Callable[[Any], object]] = {
    str: lambda value: f"{value} other",
    bool: lambda value: not value,
    int: lambda value: value + 8,
}
"""Another value of a decision, by its type. No rule has to accept it."""
WORDS: dict[str, tuple[str, ...]] = {
    "reduction": ("ordered", "parallel"),
    "order": ("row", "column"),
    "minor": ("m", "n"),
    "schedule_kind": ("persistent", "tiled"),
    "specialization": ("cooperative", "ping_pong"),
    "a_source": ("shared", "registers"),
    "early_operand": ("none", "a"),
}
"""Words of a decision, of which each stands for another one."""


def other_value(plan: Kernel, name: str) -> object:
    """Return a value that a decision of the plan does not have."""
    value = getattr(plan, name)
    return next((word for word in WORDS.get(name, ()) if word != value), None) or OTHERS[type(value)](value)


def computed(plan: Kernel) -> dict[str, object]:
    """Return all that a plan is asked for, by name: each property, and what rules and costs ask besides."""
    found: dict[str, object] = {}
    for name in dir(type(plan)):
        if isinstance(getattr(type(plan), name), property | cached_property):
            try:
                found[name] = getattr(plan, name)
            except (KeyError, StopIteration, ValueError, ZeroDivisionError) as error:
                found[name] = type(error)  # of a word that no spec can say, or of no registers
    family = family_for(plan)
    found["violations"] = family.judge(plan)
    found["expected"] = judge(plan, family.expectations)
    found["cost"] = family.cost(plan, (4096, 4096, 4096))
    return found


@pytest.mark.quick
@pytest.mark.parametrize("stem", ["h100_bf16", "h100_fp16_rows8_split16", "h100_bf16_128x320", "b200_mxfp8"])
def test_a_plan_with_another_decision_has_nothing_of_the_plan_that_it_was_made_of(stem: str) -> None:
    plan = make(spec_file(stem)).plan
    before = computed(plan)  # and so kept with it
    assert len(before) > 70
    changed = set[str]()
    for name in FIELDS.values():
        if hasattr(plan, name):
            other = altered(plan, **{name: other_value(plan, name)})
            expected = computed(replace(other))  # which makes a plan of the decisions alone
            found = computed(other)
            assert {each for each in found if found[each] != expected[each]} == set(), name
            changed |= {each for each in found if found[each] != before[each]}
    assert {"stage_bytes", "smem_bytes", "resources", "partitions", "register_pool", "cost"} <= changed
