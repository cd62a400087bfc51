"""report: a page about records, opened in a browser.

A browser is there where `.ci/run` runs; elsewhere its tests are skipped with the reason.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import BROWSERS, seen
from contests import contest
from modules import ROOT
from programs import program
from typer.testing import CliRunner

from gemmgen import tune
from gemmgen.bench.record import read_record
from gemmgen.bench.result_log import Result, ResultLog
from gemmgen.bench.suite_figures import BEST, RatioFigures, points_of
from gemmgen.cli import app
from gemmgen.errors import GemmgenError
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.observation import flops
from gemmgen.report.labels import label_of, labels_of
from gemmgen.report.page import report

pytestmark = pytest.mark.quick

SUITE = ROOT / "benchmarks" / "suites" / "h200_inductor.jsonl"
"""Ten shapes, with the planner's first choices."""
TWO_CONTESTS = ROOT / "benchmarks" / "suites" / "h200_few_rows_e4m3.jsonl"
RECORDS = [ROOT / "benchmarks" / f"{name}.json" for name in ("h100_bf16", "h100_bf16_nn", "h100_e4m3")]


class Tables(HTMLParser):
    """The rows of a page's tables, by the name of the table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._table = ""
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._table = dict(attrs).get("class") or ""
        elif tag == "tr" and self._table:
            self.rows.setdefault(self._table, []).append([])
        elif tag in ("td", "th") and self._table:
            self.rows[self._table][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False
        elif tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[self._table][-1][-1] += data


# --- what is on the page


def test_every_measurement_of_a_suite_is_on_the_page() -> None:
    log = ResultLog.opened(SUITE)
    page, labels = report([SUITE]), labels_of(log)
    rows = Tables(page).rows
    timed = {
        (*map(str, line.shape), labels.get(arm.kernel, arm.kernel))
        for line in log.current()
        if isinstance(line, Result)
        for arm in line.kernels
    }
    head, *tried = rows["tried"]
    figures = ["ratio", "lower", "upper", "µs", "baseline µs", "TFLOP/s"]
    assert head == ["M", "N", "K", "place", *figures, "kernel"]
    assert {(*row[:3], row[-1]) for row in tried} == timed
    assert len(tried) == len(timed)
    best = {tuple(map(str, p.shape)): p for p in points_of(log) if p.kernel == BEST}
    (facts,) = log.contests.values()
    ceilings = facts.measured
    assert ceilings
    _, *shapes = rows["shapes"]
    assert len(shapes) == len(best)
    for row in shapes:
        point = best[tuple(row[:3])]
        spread, rate = point.measured_spread, flops(point.shape) / point.seconds / 1e12
        assert row[3:6] == [f"{value:.3f}" for value in (spread.median, *spread.quartiles)]
        assert row[6:9] == [f"{v:.1f}" for v in (point.seconds * 1e6, point.baseline_seconds * 1e6, rate)]
        least = ceilings.seconds(flops(point.shape), facts.dtypes.moved_bytes(point.shape))
        assert row[9] == f"{100 * least / point.seconds:.0f}%"
        assert float(row[10]) > 0  # the planner's first choice
    found = RatioFigures.of(best.values())
    assert found
    assert f"<b>{found.geomean:.3f}</b> geometric mean" in page
    assert f"<b>{found.minimum:.3f}</b> at the worst ({' x '.join(map(str, found.worst))})" in page


def test_records_of_kernels_share_a_section_where_they_compute_the_same() -> None:
    page = report(RECORDS)
    assert re.findall(r"<h2>([^<]*)</h2>", page) == [
        html.escape("bf16 x bf16 -> bf16: h100_bf16, h100_bf16_nn"),
        html.escape("e4m3 x e4m3 -> bf16: h100_e4m3"),
        "Environment and method",
    ]
    rows = [row for name in ("tried",) for row in Tables(page).rows[name] if row[0] != "M"]
    measured = [(record.subject.name, m) for record in map(read_record, RECORDS) for m in record.measurements]
    assert sorted((row[-1], row[4]) for row in rows) == sorted(
        (name, f"{m.observed().ratio:.3f}") for name, m in measured
    )
    assert "in a process of its own, under sustained load" in page


def test_two_contests_are_two_sections_and_each_says_its_baseline() -> None:
    page = report([TWO_CONTESTS])
    contests = ResultLog.opened(TWO_CONTESTS).contests
    assert len(contests) == 2
    for facts in contests.values():
        assert f"<h2>{html.escape(facts.description)}</h2>" in page
        assert html.escape(facts.baseline, quote=True).replace("&#x27;", "&#39;") in page


def test_the_environment_and_the_ceilings_are_told() -> None:
    page = report([SUITE])
    session = ResultLog.opened(SUITE).sessions[-1]
    for value in (session.environment.gpu, session.environment.driver, session.date, SUITE.name):
        assert value in page
    ceilings = session.contests[0].measured
    assert ceilings
    assert ceilings.source in page


def test_what_cannot_be_true_is_at_the_top_and_what_was_not_timed_has_its_reason(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in SUITE.read_text().splitlines()]
    result = next(line for line in lines if line["line"] == "result")
    fast = result["kernels"][0]
    fast["seconds"] = [1e-9] * len(fast["seconds"])
    why = {"kernel": "late", "why": "failed", "message": "it never ended"}
    lines.append({"line": "refused", "shape": result["shape"], "contest": result["contest"], **why})
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report([tmp_path / "x.jsonl"])
    top = page[: page.index('<section id="section-1">')]
    shape = "x".join(map(str, result["shape"]))
    assert "<h2>Do not believe this</h2>" in top
    assert re.search(rf"<li>bf16 {shape}: {re.escape(fast['kernel'])} at \d+\.\d\d of the datasheet", top)
    assert f"<li>bf16 {shape}: late failed: it never ended</li>" in top
    assert Tables(page).rows["refused"] == [["shape", "kernel", "why"], [shape, "late", "it never ended"]]
    assert "Do not believe this" not in report([SUITE])


def test_nothing_of_a_record_is_markup_and_nothing_is_loaded(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    lines = SUITE.read_text().splitlines()
    changed = [json.loads(line) for line in lines]
    text = json.dumps(changed[0]["contests"][0]["baseline"])
    renamed = "\n".join(line.replace(text, json.dumps(hostile)) for line in lines) + "\n"
    assert renamed != SUITE.read_text()
    (tmp_path / "x.jsonl").write_text(renamed)
    page = report([tmp_path / "x.jsonl"])
    assert hostile not in page
    assert html.escape(hostile) in page
    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"|url\(|@import|https?:', page) == []


def test_a_table_of_tuned_kernels_is_a_section_for_each_problem(tmp_path: Path) -> None:
    rows = [
        tune.TunedRow(
            m=m,
            n=4096,
            k=512,
            dtypes=Dtypes("bf16", "bf16", "bf16", b_blocks=2 if stem == "h100_bf16_gated" else None),
            problem=contest(stem),
            description=problem,
            spec=f"specs/tuned_{m}.yaml",
            kernel_sha256="0" * 64,
            tried=31,
            date=f"2026-11-{m:02}T00:00:00Z",
            seconds=10e-6,
            baseline_seconds=12e-6,
            first_seconds=11e-6,
            gpu="NVIDIA H200",
            gemmgen="0.1.0",
            torch="2.13.0",
            triton="3.9.0",
        )
        for m, stem, problem in (
            (16, "h100_bf16", "bf16"),
            (17, "h100_bf16", "bf16"),
            (18, "h100_bf16_split7_cluster2x2", "bf16 + relu"),
            (19, "h100_bf16_gated", "bf16 + gate"),
        )
    ]
    tune.add_to_table(tmp_path / "tuned.jsonl", rows)
    page = report([tmp_path / "tuned.jsonl"])
    assert re.findall(r"<h2>([^<]*)</h2>", page) == [
        "bf16",
        "bf16 + gate",
        "bf16 + relu",
        "Environment and method",
    ]
    shapes = [row for row in Tables(page).rows["shapes"] if row[0] != "M"]
    assert shapes[0] == [
        *("16", "4096", "512", "1.200", "", "", "10.0", "12.0", "6.7", "10%", "1.091", "31", "tuned_16")
    ]
    assert page.count("<li>tuned.jsonl, 2026-11-19T00:00:00Z, NVIDIA H200</li>") == 1
    # 2 * 19 * 4096 * 512 operations in 10 us for each block of B.
    assert shapes[2][:3] + shapes[2][8:9] == ["19", "4096", "512", "15.9"]
    assert page.count("cuBLAS and unfused gate") == 1
    (tmp_path / "tuned.jsonl").write_text('{"table": "gemmgen tune", "format": 3}\n')
    with pytest.raises(GemmgenError, match=r"tuned.jsonl:1: error\[bad-table\] format: is 3"):
        report([tmp_path / "tuned.jsonl"])


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    (tmp_path / "empty.jsonl").write_text(SUITE.read_text().splitlines()[0] + "\n")
    for name, message in (
        ("x.jsonl", "x.jsonl:1: error[bad-record]: no line of a suite's record"),
        ("absent.jsonl", "absent.jsonl: error[bad-record]: there is no such file"),
        ("empty.jsonl", "empty.jsonl: error[empty-record]: there is no measurement in it"),
    ):
        with pytest.raises(GemmgenError) as error:
            report([tmp_path / name])
        assert str(error.value) == f"{tmp_path}/{message}"


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    found = CliRunner().invoke(app, ["report", str(SUITE), "--out", str(out)])
    assert (found.exit_code, found.stdout) == (0, f"wrote {out}\n")
    assert out.read_text(encoding="utf-8") == report([SUITE])


# --- in a browser

LOOK = """
found.width = innerWidth;
found.page = document.documentElement.scrollWidth;
found.outside = [...document.querySelectorAll("body *")].filter((e) => {
  const box = e.getBoundingClientRect();
  return !e.closest(".scroll > *") && (box.right > innerWidth + 1 || box.left < -1);
}).map((e) => e.tagName + "." + e.className);
const scrolled = [...document.querySelectorAll(".scroll")];
found.wide = scrolled.filter((e) => e.scrollWidth > e.clientWidth + 1).length;
found.paper = getComputedStyle(document.body).backgroundColor;
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_in_a_browser_the_page_fits_and_a_wide_one_shows_all_columns(
    width: int, dark: bool, tmp_path: Path
) -> None:
    (found,) = seen([report([SUITE])], LOOK, tmp_path, width, dark=dark)
    assert found["errors"] == []
    assert (found["width"], found["page"]) == (width, width)
    assert found["outside"] == []
    assert found["paper"] == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    if width >= 1280:
        assert found["wide"] == 0


def test_without_a_browser_ci_fails_and_others_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "1")
    message = r"^needs chromium or chromium-browser or google-chrome, and finds none$"
    with pytest.raises(pytest.fail.Exception, match=message):
        program(*BROWSERS)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match=message):
        program(*BROWSERS)


# --- labels


@pytest.mark.parametrize("record", ["h200_long_k", "h200_few_rows"])
def test_a_label_has_the_words_of_today_for_a_kernel_of_an_earlier_record(record: str) -> None:
    log = ResultLog.opened(ROOT / f"benchmarks/suites/{record}.jsonl")
    labels = [label_of(entry) for entry in list(log.kernels.values())[::10] if entry.spec]
    assert any("swap-AB, " in label for label in labels)
    assert not [label for label in labels if "exchanged" in label or "added up" in label]


def test_a_kernel_without_a_spec_is_called_by_its_name() -> None:
    log = ResultLog.opened(ROOT / "benchmarks/suites/h200_long_k.jsonl")
    entry = next(iter(log.kernels.values()))
    assert label_of(replace(entry, spec=None)) == entry.name
    assert label_of(replace(entry, spec="title: no spec\n")) == entry.name
