"""The README quotes modules, records and diagnostics: each quotation is what it quotes."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from modules import EVERY_SPEC, WANTED, made

from gemmgen.bench.figures.record_plot import figures_text, label_of
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.product import make
from tools.quotations.kernel_records import records, shown
from tools.quotations.pages import PAGES, refreshed
from tools.quotations.peer_blocks import CHOICES, FIRST_CHOICE, RECORD, speed

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PICTURE = (ROOT / "docs" / "speed.svg").read_text()
MOST_WANTED = 90
"""Specs that a user would start from: more would be no help to choose by."""
SUITES = (ROOT / "benchmarks" / "studies" / "suites.md").read_text()


@pytest.mark.check
def test_the_pages_quote_the_modules_and_the_records_as_they_are() -> None:
    for page in PAGES:
        text = page.read_text()
        assert refreshed(text) == text, f"{page.name}: run make docs"


@pytest.mark.check
def test_a_changed_record_or_module_would_be_seen() -> None:
    assert refreshed(README.replace("warpgroup_mma_wait(0", "warpgroup_mma_wait(1")) == README
    for page in (README, SUITES):
        changed = page.replace("| h100_bf16 | 8192", "| h100_bf16 | 9192")
        assert refreshed(changed) == page != changed


def rows(page: str) -> list[str]:
    """The rows of a page's table of figures."""
    return re.findall(r"^\| [hb][12]00_.*$", page, flags=re.MULTILINE)


def test_the_readme_has_ten_rows_of_the_full_table_and_one_that_is_lost() -> None:
    assert len(rows(README)) == 10
    assert set(rows(README)) < set(rows(SUITES))
    assert len(rows(SUITES)) == sum(len(record.measurements) for record in records())
    ratios = [record.measurements[0].observed().ratio for record in shown()]
    assert min(ratios) < 0.99  # lost by more than what two runs differ in


def test_each_peer_on_record_is_in_the_table_of_the_readme_with_its_losses() -> None:
    contests = json.loads(RECORD.read_text(encoding="utf-8"))
    assert {contest["peer"] for contest in contests} == {name for choice in CHOICES for name in choice.peers}
    table = README.partition("<!-- choices -->")[2].partition("<!-- end -->")[0].replace("&nbsp;", " ")
    for contest in contests:
        assert contest["gpu"]
        assert contest["how"]
        lowest = min(map(speed, contest["rows"]))
        chosen = "" if contest["gemmgen"] == FIRST_CHOICE else f", gemmgen's {contest['gemmgen']}"
        assert f"{contest['work']}{chosen}: " in table
        assert f"[{lowest:.2f}, " in table
    assert min(speed(row) for contest in contests for row in contest["rows"]) < 0.8


def test_the_picture_shows_the_rows_of_the_readme() -> None:
    rows_shown = [(record, record.measurements[0]) for record in shown()]
    texts = [unescape(text) for text in re.findall(r"<text [^>]*>([^<]*)</text>", PICTURE)]
    labels = [label_of(record, measurement) for record, measurement in rows_shown]
    figures = [figures_text(measurement) for _, measurement in rows_shown]
    for expected in (labels, figures):
        assert [text for text in texts if text in expected] == expected
    assert len([text for text in texts if "TFLOP/s" in text]) == len(rows_shown)


def test_every_spec_with_shapes_to_time_has_a_record_above_no_roofline() -> None:
    found = records()
    specs = map(made, EVERY_SPEC)
    # No Blackwell GPU was at hand: its specs name shapes for whoever has one, and there is no record.
    hopper = (spec for spec in specs if spec.plan.architecture == HOPPER)
    timed = {spec.source.stem for spec in hopper if spec.plan.request.bench_shapes}
    assert {record.subject.name for record in found} == timed
    assert [error for record in found for error in record.errors] == []


def test_the_readme_shows_the_first_spec_as_it_is() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    assert (ROOT / "specs" / "h100_bf16.yaml").read_text() in blocks


def test_the_readme_shows_the_diagnostic_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "specs" / "h100_bf16.yaml").read_text()
    Path("x.yaml").write_text(text.replace("stages: 4", "stages: 5"))
    with pytest.raises(GemmgenError) as error:
        make(Path("x.yaml"))
    assert str(error.value) in README.splitlines()


@pytest.mark.parametrize(
    "page",
    [
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "specs/README")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "benchmarks").glob("*.md")),
        *sorted((ROOT / "benchmarks" / "studies").glob("*.md")),
    ],
    ids=lambda p: p.name,
)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)  # a launch looks like a link
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_index_of_specs_has_each_spec_once() -> None:
    index = (ROOT / "specs" / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.yaml\) \| .+ \|$", index, flags=re.MULTILINE)
    assert [name for name, file in rows if name != file] == []
    assert sorted(name for name, _ in rows) == [spec.stem for spec in WANTED]
    assert len(WANTED) <= MOST_WANTED
