"""Fixes as data: the sentences that are made of them, what machines are told, and what rules name in them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from advice import invalid_specs

from gemmgen.errors import Advice, Assignment, GemmgenError
from gemmgen.plan import Kernel
from gemmgen.plan.fix import Fix, at_least, at_most, clause, hint, leave_out, nearest, of_change, use
from gemmgen.planner import applied, attempted, plan_spec
from gemmgen.spec import Spec, load_spec
from gemmgen.spec.model import spec_of, stated

ROOT = Path(__file__).parent.parent
PLAN = ROOT / "gemmgen" / "plan"
HEAD = "title: t\ntarget: h100\noperands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}\n"


# --- a fix as a sentence, and as changes


@pytest.mark.quick
@pytest.mark.parametrize(
    ("fix", "sentence", "changes"),
    [
        (use(64), "use 64", [(("f", 64),)]),
        (use(64, 128), "use 64 or 128", [(("f", 64),), (("f", 128),)]),
        (use(128, 64, 32), "use 128, 64 or 32", [(("f", 128),), (("f", 64),), (("f", 32),)]),
        (use((64,), (128,)), "use [64] or [128]", [(("f", (64,)),), (("f", (128,)),)]),
        (use(True), "use true", [(("f", True),)]),
        (at_most(4), "use at most 4", [(("f", 4),)]),
        (at_least(1), "use at least 1", [(("f", 1),)]),
        (at_least((1,)), "use at least 1", [(("f", (1,)),)]),
        (at_most(4) | use(8), "use at most 4, or 8", [(("f", 4),), (("f", 8),)]),
        (leave_out(), "leave it out", [(("f", None),)]),
        (leave_out("g"), "use no g", [(("g", None),)]),
        (use("k", note="B stored as [N, K]"), "use k (B stored as [N, K])", [(("f", "k"),)]),
        (
            use("shared") | use("m", field="mma.rows"),
            "use shared, or m for mma.rows",
            [(("f", "shared"),), (("mma.rows", "m"),)],
        ),
        (
            use(1) | use(64, 128, field="tile.n") | leave_out("g"),
            "use 1, or 64 or 128 for tile.n, or no g",
            [(("f", 1),), (("tile.n", 64),), (("tile.n", 128),), (("g", None),)],
        ),
        (use("n") | leave_out(), "use n, or leave it out", [(("f", "n"),), (("f", None),)]),
        (leave_out() | use(2, field="g"), "leave it out, or use 2 for g", [(("f", None),), (("g", 2),)]),
        (
            leave_out() | hint("another factor") | leave_out("operands.c"),
            "leave it out, or use another factor, or no operands.c",
            [(("f", None),), (("operands.c", None),)],
        ),
        (use("e4m3") | hint("a scale"), "use e4m3, or a scale", [(("f", "e4m3"),)]),
        (use(1) | clause("state tile.k"), "use 1, or state tile.k", [(("f", 1),)]),
        (clause("smaller clusters leave fewer SMs idle"), "smaller clusters leave fewer SMs idle", []),
        (
            use(1) & leave_out("g") | use("whole", field="h"),
            "use 1 and no g, or whole for h",
            [(("f", 1), ("g", None)), (("h", "whole"),)],
        ),
        (
            leave_out() & use("e4m3", "e5m2", field="g") | hint("an h"),
            "leave it out and use e4m3 or e5m2 for g, or use an h",
            [(("f", None), ("g", "e4m3")), (("f", None), ("g", "e5m2"))],
        ),
        (
            use(1, 2) & use(3, field="g"),
            "use 1 and 3 for g, or 2 and 3 for g",
            [(("f", 1), ("g", 3)), (("f", 2), ("g", 3))],
        ),
        (
            at_least(2, "g") & use("cooperative", field="h"),
            "use at least 2 for g and cooperative for h",
            [(("g", 2), ("h", "cooperative"))],
        ),
    ],
    ids=str,
)
def test_a_fix_is_one_sentence_and_the_changes_that_it_names(
    fix: Fix, sentence: str, changes: list[Advice]
) -> None:
    assert str(fix) == sentence
    assert list(fix.changes("f")) == changes


@pytest.mark.quick
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ((("f", 64),), "use 64"),
        ((("g.h", (64, 128)), ("f", "k")), "use k and [64, 128] for g.h"),
        ((("g", 1), ("h", 2), ("i", None)), "use 1 for g, 2 for h and no i"),
        ((("f", None),), "leave it out"),
        ((("f", None), ("g", 1)), "leave it out and use 1 for g"),
    ],
)
def test_a_change_is_a_fix_that_names_its_own_field_first(change: Advice, sentence: str) -> None:
    fix = of_change(change, "f")
    assert str(fix) == sentence
    assert [dict(named) for named in fix.changes("f")] == [dict(change)]


@pytest.mark.quick
def test_words_are_not_made_together_with_a_value() -> None:
    with pytest.raises(AssertionError):
        _ = use(1) & hint("another factor")
    with pytest.raises(AssertionError):
        _ = hint("another factor") & use(1)


@pytest.mark.quick
def test_the_nearest_values_are_moved_into_their_range_and_named_once() -> None:
    assert nearest(64, 128) == use(64, 128)
    assert nearest(64, 128, high=64) == use(64)
    assert nearest(0, 8, low=16) == use(16)
    assert nearest(8, 64, low=16, high=32) == use(16, 32)


@pytest.mark.quick
def test_a_fix_can_be_limited_to_some_changes_and_keeps_its_words() -> None:
    fix = use(64, 128, 256) | hint("another factor") | leave_out("g")
    assert str(fix.limited_to([(("f", 128),), (("f", 256),)], "f")) == "use 128 or 256, or another factor"
    assert str(fix.limited_to([(("g", None),)], "f")) == "use another factor, or no g"


@pytest.mark.quick
def test_fields_that_a_spec_does_not_state_are_not_left_out_beside_others() -> None:
    fix = leave_out() & leave_out("g") & leave_out("h") | use(1) & leave_out("h") | leave_out("h")
    assert str(fix.for_stated("g".__eq__)) == "leave it out and use no g, or use 1, or no h"
    assert str(fix.for_stated("gh".__contains__)) == str(fix)


@pytest.mark.quick
def test_each_alternative_has_a_note_of_its_own() -> None:
    fix = use(64, 128) | leave_out() | use(2, field="g") | hint("another tile")
    notes: dict[Advice, str] = {
        (("f", 64),): "predicted",
        (("f", None),): "verified by Triton 3.9.0",
        (("g", 2),): "predicted",
    }
    noted = fix.noted(notes, "f")
    assert str(noted) == (
        "use 64 (predicted), or 128, or leave it out (verified by Triton 3.9.0), "
        "or use 2 for g (predicted), or another tile"
    )
    assert noted.changes("f") == fix.changes("f")
    assert str(use("k", note="B stored as [N, K]").noted({(("f", "k"),): "predicted"}, "f")) == (
        "use k (B stored as [N, K], predicted)"
    )


# --- what a machine is told


@pytest.mark.quick
def test_a_diagnostic_has_the_alternatives_of_its_message_as_data(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"{HEAD}check: {{shapes: [[128, 128, 100]]}}\n")
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(path))
    (found,) = caught.value.diagnostics
    assert found.message.endswith("; use 96 or 104, or copy for operands.misaligned")
    plain = {"bound": "exactly", "note": ""}
    assert json.loads(json.dumps(found.as_dict()))["fix"] == [
        [{"field": "check.shapes.0.2", "value": 96, **plain}],
        [{"field": "check.shapes.0.2", "value": 104, **plain}],
        [{"field": "operands.misaligned", "value": "copy", **plain}],
    ]


@pytest.mark.quick
def test_a_diagnostic_has_the_bound_of_a_fix(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"{HEAD}tile: {{m: 128, n: 256, k: 64}}\nbuffering: {{stages: 9}}\n")
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(path))
    (found,) = caught.value.diagnostics
    assert found.message.endswith("; use at most 4")
    assert found.fix == ((Assignment("buffering.stages", 4, "at most"),),)


# --- what rules name


@pytest.mark.sample(150)
@pytest.mark.parametrize("path", invalid_specs(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_change_that_a_rule_names_is_of_fields_of_a_spec_and_of_values_that_they_take(
    path: Path,
) -> None:
    source = load_spec(path)
    found = attempted(source)
    assert not isinstance(found, Kernel)
    for violation in found:
        for change in violation.fix.changes(violation.field):
            assert spec_of(applied(stated(source.spec), change)) is not None, change


@pytest.mark.quick
@pytest.mark.parametrize(
    "rest",
    [
        "check: {shapes: [[128, 128, 2147483647]]}\n",
        "tile: {k: 2147483647}\n",
        "tile: {m: 2147483647}\n",
        "tile: {n: 2147483647}\n",
        "cluster: {m: 2147483647}\n",
        "warp_specialization: {kind: cooperative, registers: {consumer: 2147483647}}\n",
        "epilogue: {subtile_n: 2147483647}\n",
    ],
)
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_no_rule_names_a_value_beyond_those_that_a_spec_can_state(
    rest: str, target: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD.replace("h100", target) + rest)
    source = load_spec(path)
    found = attempted(source)
    assert not isinstance(found, Kernel)
    for violation in found:
        for change in violation.fix.changes(violation.field):
            assert spec_of(applied(stated(source.spec), change)) is not None, change


@pytest.mark.quick
def test_each_field_that_a_fix_names_in_the_code_is_one_of_a_spec() -> None:
    known = set(_paths(Spec.model_json_schema()))
    assert {"tile.n", "operands.a.source", "dependent_launch"} <= known
    named = {path for file in PLAN.rglob("*.py") for path in _named(file)}
    assert len(named) > 10
    assert named - known == set()


def _named(file: Path) -> set[str]:
    """The paths that calls in a file name, as constants, when they build fixes."""
    paths: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        positional = {"leave_out": 0, "at_most": 1, "at_least": 1}.get(node.func.id)
        found = [word.value for word in node.keywords if node.func.id == "use" and word.arg == "field"]
        if positional is not None:
            found += node.args[positional : positional + 1]
        paths |= {each.value for each in found if isinstance(each, ast.Constant) and each.value}  # pyright: ignore[reportUnhashable, reportAssignmentType]
    return paths


def _paths(schema: dict[str, Any]) -> set[str]:
    """The dotted paths of all fields of a JSON Schema."""

    def below(part: Any, prefix: str) -> set[str]:
        if reference := part.get("$ref"):
            return below(schema["$defs"][reference.rpartition("/")[2]], prefix)
        found: set[str] = set()
        for option in (*part.get("anyOf", ()), *part.get("oneOf", ()), *part.get("allOf", ())):
            found |= below(option, prefix)
        for name, member in part.get("properties", {}).items():
            found |= {prefix + name, *below(member, f"{prefix}{name}.")}
        return found

    return below(schema, "")


@pytest.mark.quick
def test_no_file_of_the_planner_has_a_regular_expression() -> None:
    """All text that the planner has is its own, and it reads none of it; names of cards are CUDA's."""
    importing: list[Path] = []
    for file in PLAN.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if {"re", "regex"} & set(names):
                importing.append(file)
    assert importing == [PLAN / "cards.py"]
