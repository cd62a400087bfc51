"""The modules that stand for all others: they have every line of every template."""

from __future__ import annotations

import json
import sys

import pytest
from modules import ROOT, spec_file

from gemmgen.product import make
from tools import cover
from tools.cover import ALSO, COVER, Line, chosen, lines_by_module, noting, templates_of

pytestmark = pytest.mark.quick


def test_modules_are_chosen_until_all_lines_are_there_and_then_by_pairs_of_templates() -> None:
    lines = {
        "all of a": frozenset({("a", 1, ""), ("a", 2, "")}),
        "b": frozenset({("b", 1, "")}),
        "a and b": frozenset({("a", 1, ""), ("b", 1, "")}),
        "a line of a": frozenset({("a", 1, "")}),
    }
    assert set(chosen(lines, 1)) == {"all of a", "a and b"}
    assert set(chosen({**lines, "c": frozenset({("c", 1, "")})}, 1)) == {"all of a", "a and b", "c"}


def test_lines_are_noted_of_the_macros_and_branches_that_a_module_has() -> None:
    shared = "wgmma/k_loop/lanes.py.j2"
    of_shared: list[set[Line]] = []
    for stem in ("h100_e5m2_composed_promoted_e4m3_out", "h100_tf32_composed_cluster2x1_fp32_out"):
        with noting() as lines:
            make(spec_file(stem))
        names = templates_of(lines)
        assert {"shared/module.py.j2", "wgmma/producer.py.j2", shared} <= names
        assert not any(name.startswith("tcgen05/") for name in names)
        assert all((ROOT / "templates" / name).is_file() for name in names)
        of_shared.append({line for line in lines if line[0] == shared})
    promoted, plain = of_shared
    assert promoted - plain


def test_help_is_printed_and_nothing_is_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tools.cover", "--help"])
    monkeypatch.setattr(cover, "lines_by_module", lambda: pytest.fail("modules are chosen"))
    with pytest.raises(SystemExit) as ended:
        cover.main()
    assert ended.value.code == 0
    assert "usage: python -m tools.cover [-h]" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_committed_choice_has_every_line_of_every_template() -> None:
    lines = lines_by_module()
    names = json.loads(COVER.read_text(encoding="utf-8"))
    left = frozenset[Line]().union(*lines.values()) - frozenset[Line]().union(*map(lines.__getitem__, names))
    assert set(names) >= set(ALSO)
    assert not templates_of(left), "run `python -m tools.cover`"
