"""Faults of templates and of the planner: what the operators make, what a record of them adds up to."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from modules import ROOT, spec_file

from gemmgen.product import make
from tools.cover import noting, templates_of
from tools.planted.child import Modules, judged
from tools.planted.faults import Fault, drawn, of_planner, of_template
from tools.planted.judge import base_of
from tools.planted.table import COUNTED, EVERYTHING, NIGHTLY, NOT_MADE, outcome_of, rows, totals

pytestmark = pytest.mark.quick

RECORD: dict[str, Any] = json.loads((ROOT / "tests" / "records" / "planted.json").read_text(encoding="utf-8"))
FEWEST_FAULTS = 120
FEWEST_OF_PLANNER = 30


def changes(faults: list[Fault], text: str) -> set[tuple[str, str, str]]:
    return {(fault.operator, *fault.lines(text)) for fault in faults}


@pytest.mark.parametrize(
    ("line", "operator", "changed"),
    [
        ("    mbarrier.wait(ready, ring.phase)", "delete", ""),
        ("    mbarrier.wait(ready, ring.phase)", "phase", "mbarrier.wait(ready, ring.phase ^ 1)"),
        ("    mbarrier.wait(ready, ring.phase)", "argument", "mbarrier.wait(ready)"),
        ("    mbarrier.wait(ready, ring.phase)", "argument", "mbarrier.wait(ring.phase, ready)"),
        ("    ready = args.load_ready.index(stage)", "index", "ready = args.load_ready.index(0)"),
        ("    ready = args.load_ready.index(stage)", "name", "ready = args.load_empty.index(stage)"),
        ("    x = x + 1  # of 2", "constant", "x = x + 2  # of 2"),
        ("    x = x + 1  # of 2", "constant", "x = x + 0  # of 2"),
        ("    x = x + 1  # of 2", "sign", "x = x - 1  # of 2"),
        ("    copy(desc, ready, smem, multicast=True)", "multicast", "copy(desc, ready, smem)"),
        ("    x = gl.load(p + i, mask=i < n)", "predicate", "x = gl.load(p + i)"),
        ("{% if view.parts < 2 %}", "comparison", "{% if view.parts <= 2 %}"),
        ("    y = x // TILE_M", "product", "y = x * TILE_M"),
    ],
)
def test_an_operator_changes_one_place_of_a_template(line: str, operator: str, changed: str) -> None:
    text = f"def f():\n{line}\n    return x\n"
    assert (operator, line.strip(), changed) in changes(of_template("t", text), text)


def test_comments_and_docstrings_of_templates_have_no_faults() -> None:
    text = '{# 1 < 2 #}\n"""Return 1 + 1."""\n"""Return\n\n1 + 1.\n"""\n# wait(1)\n@gluon.jit(1)\n'
    assert of_template("t", text) == []


@pytest.mark.parametrize(
    ("expression", "operator", "changed"),
    [
        ("a.rows + 1", "sign", "(a.rows - 1)"),
        ("a.rows + 1", "constant", "a.rows + 2"),
        ("a.rows + 1", "name", "a.columns + 1"),
        ("a.cta_tile_m * n", "product", "(a.cta_tile_m // n)"),
        ("a.cta_tile_m * n", "name", "a.cta_tile_n * n"),
        ("x if y else z", "condition", "(z if y else x)"),
        ("x and y", "condition", "(x or y)"),
        ("not x", "condition", "bool(x)"),
        ("f(x, y)", "argument", "f(y, x)"),
        ("f(x, y)", "argument", "f(x)"),
        ("x < y", "comparison", "(x <= y)"),
        ("(x, y)", "element", "(x, )"),
        ("True", "constant", "False"),
    ],
)
def test_an_operator_changes_one_expression_of_the_planner(
    expression: str, operator: str, changed: str
) -> None:
    text = f'def f(a: int = 0) -> int:\n    """Return 1 + 1."""\n    return {expression}\n'
    faults = of_planner("p.py", text)
    assert (operator, f"return {expression}", f"return {changed}") in changes(faults, text)
    for fault in faults:
        compile(fault.planted(text), "p.py", "exec")
        assert fault.line(text) != 2


def test_faults_follow_from_the_seed_and_are_of_templates_and_of_the_planner() -> None:
    first, again, other = (list(islice(drawn(seed), 50)) for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) == 50
    assert sum(not fault.in_template for fault in first) == 20


MADE = {"part": "cover", "of": 3, "changed": 2}
FOUND = {"module": "x", "kind": "simulator: deadlock", "text": "t"}


@pytest.mark.parametrize(
    ("told", "died", "outcome"),
    [
        ([MADE, {"part": "cover", "found": FOUND}], "", "check"),
        ([MADE, {"part": "others", "found": FOUND}], "", "nightly"),
        # Every run plans and renders all modules.
        ([MADE, {"part": "others", "found": {**FOUND, "kind": NOT_MADE}}], "", "check"),
        ([MADE, {"part": "cover", "step": "all schedules", "module": "x"}], "does not end", "check"),
        ([MADE, {"part": "cover", "judged": "x"}], "", "neither"),
        ([{**MADE, "changed": 0}], "", "same"),
        ([{"everything": FOUND}], "", "everything"),
    ],
)
def test_a_fault_has_an_outcome_by_what_is_told_of_it(
    told: list[dict[str, Any]], died: str, outcome: str
) -> None:
    assert outcome_of(told, died)["outcome"] == outcome


def test_the_record_adds_up_and_has_faults_enough() -> None:
    faults = RECORD["faults"]
    assert totals(faults) == RECORD["totals"]
    assert RECORD["totals"]["all"]["counted"] == sum(each["outcome"] in COUNTED for each in faults)
    assert RECORD["totals"]["all"]["counted"] >= FEWEST_FAULTS
    assert RECORD["totals"]["planner"]["counted"] >= FEWEST_OF_PLANNER
    for each in faults:
        assert (each["evidence"] is None) == (each["outcome"] in ("neither", "same"))
        assert each["before"] != each["after"]


def test_the_table_of_the_record_is_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "\n".join(rows(RECORD["totals"])) in text


def test_no_recorded_fault_is_found_by_the_nightly_alone() -> None:
    assert [each for each in RECORD["faults"] if each["outcome"] == NIGHTLY] == []
    assert EVERYTHING not in COUNTED


@pytest.mark.check
@pytest.mark.parametrize(
    ("file", "before", "after", "outcome"),
    [
        (
            "templates/wgmma/kernel_tiled.py.j2",
            "num_programs(0) // SPLITS",
            "num_programs(1) // SPLITS",
            "check",
        ),
        (
            "templates/wgmma/kernel_tiled.py.j2",
            "num_programs(0) // SPLITS",
            "num_programs(0) // SPLITS",
            "same",
        ),
        ("templates/wgmma/kernel_tiled.py.j2", "num_programs(0) // SPLITS", "{{ none.x }}", "everything"),
        ("gemmgen/plan/wgmma/buffers.py", "tuple(chain.from_iterable(tiles))", "()", "everything"),
        (
            "gemmgen/plan/wgmma/buffers.py",
            '"load_ready", stages, meaning)',
            '"load_ready", stages, "", 2)',
            "check",
        ),
    ],
)
def test_a_planted_fault_is_judged_in_a_process_of_its_own(
    file: str, before: str, after: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path))
    stem = "h100_e4m3_split3_parallel"
    with noting() as lines:
        product = make(spec_file(stem))
    base = base_of(spec_file(stem), product)
    modules = Modules({stem: product}, {stem: base}, {stem: templates_of(lines)}, frozenset({stem}))
    start = (ROOT / file).read_text(encoding="utf-8").index(before)
    found = outcome_of(*judged(Fault(file, "one", start, start + len(before), after), modules, 0))
    assert found["outcome"] == outcome, found
    assert make(spec_file(stem)).module == product.module
