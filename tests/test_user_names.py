"""Names of sums and of matrices in C that a module has for something else."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gemmgen.features.rendering import render
from gemmgen.plan.kernel import Kernel
from gemmgen.render import templates_folder
from gemmgen.render.user_names import PLACEHOLDER, free_names
from gemmgen.spec.values import RESERVED
from tests.modules import GROUPED_SPECS, SPECS, made, spec_file

MOST = 20
"""The characters that a name may have."""
TRIES = 8
"""Pairs of names that each module is rendered with."""


def plans() -> Iterator[str]:
    """Yield the specs whose modules have variables of a user's names."""
    for path in (*SPECS, *GROUPED_SPECS):
        plan = made(path).plan
        if plan.problem.gated or plan.problem.epilogue.c_blocks:
            yield path.stem


def plan_of(stem: str) -> Kernel:
    """Return the plan of a committed spec."""
    return made(spec_file(stem)).plan


def names_of(plan: Kernel) -> tuple[str, ...]:
    """Return the two names that the spec gives."""
    epilogue = plan.problem.epilogue
    return epilogue.accumulators if plan.problem.gated else epilogue.c_blocks


def source(plan: Kernel, first: str, second: str) -> str:
    """Return the module of a plan whose spec has these names."""
    names = dict(zip(names_of(plan), (first, second), strict=True))
    matmul = replace(plan.problem, epilogue=plan.problem.epilogue.renamed(names))
    named = replace(plan, request=replace(plan.request, matmul=matmul))
    return render(named, spec_name="named.yaml", spec_sha256="0" * 64)


def identifiers(text: str) -> tuple[list[str], str]:
    """Return the identifiers of a module in order, and the module without them and without its texts."""
    tree, found = ast.parse(text), list[str]()
    for node in ast.walk(tree):
        for field in ("id", "arg", "attr", "name", "asname"):
            if isinstance(value := getattr(node, field, None), str):
                found.append(value)
                setattr(node, field, "_")
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return found, ast.dump(tree)


@pytest.mark.parametrize("stem", list(plans()))
def test_a_name_of_the_module_changes_no_meaning(stem: str) -> None:
    plan = plan_of(stem)
    expected, shape = identifiers(source(plan, "qqqq", "zzzz"))
    own = sorted({each for each in expected if each.islower() and len(each) <= MOST and each.isidentifier()})
    draw = random.Random(stem)
    for _ in range(TRIES):
        first, second = draw.sample([each for each in own if each not in RESERVED], 2)
        found, shape_of_named = identifiers(source(plan, first, second))
        assert shape_of_named == shape
        pairs = set(zip(expected, found, strict=True))
        # One to one: no two identifiers of the one module are a single one in the other.
        assert len(pairs) == len(set(expected)) == len(set(found)), (first, second)


def test_a_name_that_is_free_stays() -> None:
    plan = plan_of("h100_bf16_gated")
    assert "def epilogue(gate, up):" in source(plan, "gate", "up")
    assert "def epilogue(tile_origin_, up):" in source(plan, "tile_origin", "up")


def test_variables_of_two_names_do_not_meet() -> None:
    found, _ = identifiers(source(plan_of("h100_bf16_gptoss_gated"), "x", "x_column_bias"))
    expected, _ = identifiers(source(plan_of("h100_bf16_gptoss_gated"), "qqqq", "zzzz"))
    assert len(set(found)) == len(set(expected))


def test_each_name_gets_the_fewest_underscores() -> None:
    patterns = {"a": {("", ""), ("", "_bias")}, "a_bias": {("", "")}, "b": {("in_", "")}}
    assert free_names(patterns, {"a_", "in_b", "in_b_"}) == {"a": "a", "a_bias": "a_bias_", "b": "b__"}


def test_no_template_has_a_placeholder() -> None:
    assert not [path for path in Path(templates_folder()).rglob("*.j2") if PLACEHOLDER in path.read_text()]
