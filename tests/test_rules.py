"""Every rule, fired by a spec of its own: the text, its place, and that the fix which it names is one."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import advice
import pytest
import told
from ruamel.yaml import YAML

from gemmgen.errors import Advice, Diagnostic, GemmgenError
from gemmgen.plan import Kernel
from gemmgen.plan.fix import Fix
from gemmgen.plan.rule import Finding
from gemmgen.planner import FAMILIES, attempted
from gemmgen.spec import parse_spec

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
PLAN, FEATURES = ROOT / "gemmgen" / "plan", ROOT / "gemmgen" / "features"
HOPPER, BLACKWELL = Path("tests/invalid/rules"), Path("tests/invalid/blackwell")
RULES = {
    HOPPER: [rule.id for rule in FAMILIES["wgmma"].rules],
    BLACKWELL: [rule.id for rule in FAMILIES["tcgen05"].rules],
}
FILES = {
    HOPPER: [
        *PLAN.glob("*_rules.py"),
        *PLAN.glob("wgmma/**/*_rules.py"),
        *FEATURES.glob("*/rules.py"),
        *FEATURES.glob("*/backward_rules.py"),
    ],
    BLACKWELL: [*PLAN.glob("tcgen05/*_rules.py"), *FEATURES.glob("*/blackwell_rules.py")],
}
FILE_COUNTS = {HOPPER: 17, BLACKWELL: 4}
INVALID = [
    path.relative_to(ROOT) for directory in RULES for path in sorted((ROOT / directory).glob("*.yaml"))
]


def named(path: Path) -> str:
    """The family and the name of an invalid spec."""
    return f"{path.parent.name}/{path.stem}"


every_invalid_spec = pytest.mark.parametrize("path", INVALID, ids=named)
every_family = pytest.mark.parametrize("directory", RULES, ids=lambda path: path.name)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagnostics name a spec as the user does, so relative to where the test runs."""
    monkeypatch.chdir(ROOT)


def diagnosed(path: Path) -> tuple[Diagnostic, ...]:
    """What the planner says about an invalid spec."""
    return judged(path)[0]


@cache
def judged(path: Path) -> tuple[tuple[Diagnostic, ...], frozenset[tuple[str, int]]]:
    """What the planner says about an invalid spec, and the lines of rules that made the findings in it."""
    made: dict[tuple[str, str], tuple[str, int]] = {}

    def recorded(field: str, found: str, limit: str, fix: Fix) -> Finding:
        finding, frame = Finding(field, found, limit, fix), inspect.currentframe()
        caller = frame and frame.f_back
        assert caller
        made[finding.field, f"{finding.found}, {finding.limit}; "] = (
            caller.f_code.co_filename,
            caller.f_lineno,
        )
        return finding

    with pytest.MonkeyPatch.context() as patch:
        for file in (path for paths in FILES.values() for path in paths):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            patch.setattr(f"{module}.Finding", recorded)
        found = told.diagnostics(path)
    # The planner, and not a rule, says what it knows of advice to a spec that the compiler refuses.
    # It leaves fields that the spec does not state out of a rule's advice: text before it stays.
    told_of = [
        (diagnostic.field or "", diagnostic.message.replace(" (predicted)", "")) for diagnostic in found
    ]
    shown = {
        place
        for (field, text), place in made.items()
        if any(field == named and message.startswith(text) for named, message in told_of)
    }
    return found, frozenset(shown)


def broken(path: Path) -> frozenset[tuple[str, str | None]]:
    """The rules that a spec breaks, each with the field that it blames; no advice is looked for."""
    return _broken(path.read_bytes(), path.stem)


@cache  # two tests follow the same advice, and to plan what comes of it is most of their time
def _broken(data: bytes, stem: str) -> frozenset[tuple[str, str | None]]:
    try:
        found = attempted(parse_spec(data, stem))
    except GemmgenError as error:
        return frozenset((each.code, each.field) for each in error.diagnostics)
    return frozenset() if isinstance(found, Kernel) else frozenset((each.rule, each.field) for each in found)


# --- the texts


@every_invalid_spec
def test_a_spec_that_breaks_a_rule_gets_the_diagnostics_of_the_file(path: Path) -> None:
    assert told.data_of(diagnosed(path)) == told.committed(path.parent.name)[path.stem]


@pytest.mark.parametrize("path", [path for path in INVALID if path.with_suffix(".txt").exists()], ids=named)
def test_a_diagnostic_reads_as_the_style_sheet_has_it(path: Path) -> None:
    text = "".join(f"{found}\n" for found in diagnosed(path))
    assert text == path.with_suffix(".txt").read_text()


@every_family
def test_every_diagnostic_has_its_spec(directory: Path) -> None:
    assert sorted(told.committed(directory.name)) == sorted(path.stem for path in directory.glob("*.yaml"))


@pytest.mark.parametrize(
    ("directory", "rule"), [(directory, rule) for directory, rules in RULES.items() for rule in sorted(rules)]
)
def test_every_rule_is_fired_by_a_spec_named_after_it(directory: Path, rule: str) -> None:
    stem, committed = rule.replace("-", "_"), told.committed(directory.name)
    of_rule = [found for name, found in committed.items() if name == stem or name.startswith(f"{stem}_")]
    assert of_rule
    assert all(rule in {each["code"] for each in found} for found in of_rule)


def calls(path: Path) -> set[int]:
    """The lines of a file on which a finding is made."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    }


@pytest.mark.check
@every_family
def test_every_finding_of_every_rule_is_shown_by_a_spec(directory: Path) -> None:
    """Each line of the files on which a finding is made makes one that a spec's diagnostics show."""
    files = FILES[directory]
    assert len(files) == FILE_COUNTS[directory]
    names = {str(path) for path in files}
    shown = {place for path in directory.glob("*.yaml") for place in judged(path)[1] if place[0] in names}
    assert shown == {(str(path), line) for path in files for line in calls(path)}


def places(found: Sequence[Diagnostic]) -> list[tuple[int, int]]:
    """Line and column of each diagnostic."""
    return [(diagnostic.line or 0, diagnostic.column or 0) for diagnostic in found]


@every_invalid_spec
def test_violations_are_reported_in_the_order_of_the_file(path: Path) -> None:
    assert places(diagnosed(path)) == sorted(places(diagnosed(path)))


@pytest.mark.parametrize(("directory", "count"), [(HOPPER, 13), (BLACKWELL, 11)])
def test_as_many_rules_as_are_broken_are_reported(directory: Path, count: int) -> None:
    found = diagnosed(directory / "several_rules.yaml")
    assert len(found) == len({each.code for each in found}) == count


SOUND = {
    "title": "sound, until a mistake is made",
    "target": "h100",
    "operands": {name: {"dtype": "bf16"} for name in "abcd"},
    "tile": {"m": 128, "n": 128, "k": 64},
    "warps": {"m": 4, "n": 1},
    "warp_specialization": {"kind": "cooperative", "consumers": 2},
    "occupancy": 1,
}
MISTAKES: dict[str, dict[str, Any]] = {
    "accumulator-dtype": {"accumulator": "fp16"},
    "operand-dtypes": {"operands": {"b": {"dtype": "fp16"}}},
    "operand-swizzle": {"operands": {"a": {"swizzle": 16}}},
    "output-dtype": {"operands": {"d": {"dtype": "int32"}}},
    "mma-n": {"mma": {"n": 96}},
    "promotion": {"mma": {"promote_k": 128}},
    "cluster-shape": {"cluster": {"m": 3}},
    "occupancy": {"occupancy": 5},
    "epilogue-buffers": {"buffering": {"epilogue": 3}, "epilogue": {"subtile_n": 32}},
    "register-granularity": {"warp_specialization": {"registers": {"producer": 36}}},
    "group-width": {"schedule": {"order": "row", "width": 8}},
    "minor-dimension": {"schedule": {"order": "row", "minor": "m"}},
    "epilogue-ops": {"epilogue": {"ops": ["relu", "relu"]}},
    "epilogue-factors": {"epilogue": {"alpha": 0}},
    "shape-alignment": {"check": {"shapes": [[128, 128, 100]]}},
    "schedule-kind": {"schedule": {"kind": "tiled"}},
}
"""Parts of specs that each break one rule, whatever else is wrong."""


def merged(spec: Mapping[str, Any], *parts: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with the fields of all parts."""
    whole = dict(spec)
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, Mapping) and isinstance(whole.get(key), Mapping)
            whole[key] = merged(whole[key], value) if both else value  # pyright: ignore[reportUnknownArgumentType]
    return whole


@pytest.mark.parametrize("pair", list(itertools.combinations(MISTAKES, 2)), ids="+".join)
def test_two_mistakes_are_reported_together_and_in_the_order_of_the_file(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    path = written(merged(SOUND, *(MISTAKES[mistake] for mistake in pair)), tmp_path / "pair.yaml")
    found = told.diagnostics(path)
    assert {diagnostic.code for diagnostic in found} == set(pair)
    assert places(found) == sorted(places(found))


def test_without_a_mistake_nothing_is_reported(tmp_path: Path) -> None:
    assert not told.diagnostics(written(SOUND, tmp_path / "sound.yaml"))


@every_invalid_spec
def test_a_text_has_what_was_found_then_the_limit_then_the_fix(path: Path) -> None:
    for found in diagnosed(path):
        assert re.fullmatch(r"[^;]+, [^;]+; (use|leave it out\b).*", found.message)
        assert str(found).isprintable()


@every_invalid_spec
def test_a_text_points_at_the_value_and_quotes_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    for found in diagnosed(path):
        assert found.line is not None
        assert found.column is not None
        named = value_at(path, found.field or "")
        said = json.dumps(named) if isinstance(named, bool) else str(named)
        # A mapping and a list are not quoted in full.
        begins = r"\{" if isinstance(named, dict) else r"\[" if isinstance(named, list) else ""
        stands = begins or rf"{re.escape(said)}(?![\w.+-])"
        value = re.match(stands, lines[found.line - 1][found.column - 1 :])
        assert value, "the place is not that of the value"
        if value[0].isdecimal() and found.code not in SPEAKS_OF_SOMETHING_ELSE:
            assert re.search(rf"\b{int(value[0]):,}\b", found.message)


SPEAKS_OF_SOMETHING_ELSE = {"smem-capacity", "accumulator-registers"}
"""These may blame an extent of the tile or the epilogue; the text gives what it comes to in memory."""


# --- the fixes


def value_at(path: Path, field: str) -> Any:
    """The value of a field in a file."""
    value: Any = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
    for step in field.split("."):
        value = value[int(step) if step.isdecimal() else step]
    return value


def fixes(found: Diagnostic) -> list[Advice]:
    """The alternatives of a diagnostic's fix that change its own field, each with all that it changes."""
    own = [change for change in changes(found) if found.field in dict(change)]
    assert own or len(found.advice) > 1, "a violation that is alone names what its own field can be"
    return own


def fixes_elsewhere(found: Diagnostic) -> list[Advice]:
    """The alternatives of a diagnostic's fix that change only other fields than its own."""
    return [change for change in changes(found) if found.field not in dict(change)]


def changes(found: Diagnostic) -> list[Advice]:
    """All alternatives of a diagnostic's fix."""
    return [tuple((each.field, each.value) for each in together) for together in found.fix]


def written(spec: Mapping[str, Any], path: Path) -> Path:
    """The file of a spec, one line for each section."""
    path.write_text("".join(f"{key}: {json.dumps(member)}\n" for key, member in spec.items()))
    return path


def changed(path: Path, change: Advice, directory: Path) -> Path:
    """A copy of a spec in which some fields have other values, or are left out."""
    spec: Any = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
    return written(advice.changed(spec, change), directory / path.name)


@pytest.mark.sample(120)
@pytest.mark.check
@every_invalid_spec
def test_each_fix_that_a_text_names_satisfies_the_rule(path: Path, tmp_path: Path) -> None:
    for found in diagnosed(path):
        assert found.field
        for change in fixes(found):
            still = broken(changed(path, change, tmp_path))
            assert {code for code, _ in still} <= {*RULES[path.parent]}, "not a value of the field"
            assert (found.code, found.field) not in still


HAS_SEVERAL_MISTAKES = {
    *("rules/several_rules", "rules/warp_layout_row", "rules/scale_format", "rules/scale_format_vector"),
    *("blackwell/several_rules", "blackwell/scale_format", "blackwell/scale_format_alone_packed"),
}
"""Specs whose advice is followed in ``test_advice.py``."""
with_one_mistake = pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=named(path), marks=[pytest.mark.check] if path.parent == BLACKWELL else [])
        for path in INVALID
        if named(path) not in HAS_SEVERAL_MISTAKES
    ],
)
"""To follow the advice to Blackwell specs takes longer."""


@with_one_mistake
def test_where_one_value_is_wrong_each_fix_makes_the_spec_legal(path: Path, tmp_path: Path) -> None:
    (found,) = diagnosed(path)
    if path.parent == BLACKWELL:
        assert any(not told.diagnostics(changed(path, change, tmp_path)) for change in fixes(found))
        return
    for change in fixes(found):
        assert not broken(changed(path, change, tmp_path)), change


@with_one_mistake
def test_each_fix_of_another_field_makes_the_spec_legal(path: Path, tmp_path: Path) -> None:
    for found in diagnosed(path):
        for change in fixes_elsewhere(found):
            assert not told.diagnostics(changed(path, change, tmp_path)), change


def beyond(found: Diagnostic) -> Sequence[Advice]:
    """The change to the next value past a bound, on its field's scale, where a fix is one bound alone."""
    alone = [together[0] for together in found.fix if len(found.fix) == len(together) == 1]
    if not alone or alone[0].bound == "exactly" or not isinstance(alone[0].value, int):
        return ()
    field, value, more = alone[0].field, alone[0].value, alone[0].bound == "at most"
    if field.endswith((".stages", ".width")):
        return (((field, value + 1 if more else value - 1),),)
    if ".registers." in field:
        return (((field, value + 8 if more else value - 8),),)
    return (((field, value * 2 if more else value // 2),),)


@pytest.mark.check
@every_invalid_spec
def test_no_value_past_the_named_one_is_legal(path: Path, tmp_path: Path) -> None:
    for found in diagnosed(path):
        assert found.field
        for change in beyond(found):
            assert found.code in {code for code, _ in broken(changed(path, change, tmp_path))}
