"""Findings in the picture of a pipeline: where they lie, which accesses they name, and how they are told."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.copies import copy_kernel, descriptors
from kernels.launch import launch
from modules import module_file
from test_picture import Picture, ring, span, trace_of

from gemmgen.module import import_generated
from gluonsim import Finding, Kind, Result, Severity, simulate
from gluonsim.findings import Frame
from gluonsim.timeline.picture import MOST_COLUMNS, drawn
from gluonsim.timeline.trace import Trace


@pytest.fixture(scope="module")
def raced() -> Result:
    """What four tiles of a copy show whose stores are not awaited."""
    source = torch.zeros(64, 32)
    launch = simulate(copy_kernel, schedules=("lazy", "eager"))[1,]
    return launch(*descriptors(source, torch.empty_like(source)), 4, False, num_warps=4)


def box(element: Any) -> tuple[str, ...]:
    """The place and the size of a rectangle."""
    return tuple(element.attrib[name] for name in ("x", "y", "width", "height"))


def finding(kind: Kind, lines: Sequence[int], severity: Severity = Severity.ERROR) -> Finding:
    places = tuple(Frame("kernel.py", line) for line in lines)
    return Finding(kind, severity, "buffer", places, "partition 1 (loader)", 0, "told")


def test_the_accesses_of_a_race_are_outlined_and_no_others(raced: Result) -> None:
    (found,) = raced.findings
    picture = Picture(raced.svg())
    loads = [box(bar) for bar in picture.of("rect", "load") if len(bar)]
    stores = [box(bar) for bar in picture.of("rect", "store") if len(bar)]
    assert (len(loads), len(stores)) == (4, 4)
    # The second load overwrites the buffer that the first store reads.
    assert [box(bar) for bar in picture.of("rect", "error")] == [loads[1], stores[0]]
    assert picture.told("error") == [found.title] * 2
    assert found.title.startswith(
        "error[write-after-read] buffer: TMA load overwrites it while the TMA store"
    )


def test_a_line_stands_at_the_step_that_shows_the_fault(raced: Result) -> None:
    picture = Picture(raced.svg())
    (line,) = picture.of("line", "error")
    load = next(bar for bar in picture.of("rect", "error"))
    assert float(line.attrib["x1"]) == float(line.attrib["x2"]) == float(load.attrib["x"]) - 0.5
    (panel, _) = picture.of("rect", "panel")
    top, height = float(panel.attrib["y"]), float(panel.attrib["height"])
    assert top < float(line.attrib["y1"]) < float(line.attrib["y2"]) < top + height
    assert line[0].text == raced.findings[0].title


def test_a_number_joins_the_marks_with_the_text_of_the_finding(raced: Result) -> None:
    picture = Picture(raced.svg())
    assert picture.texts("number") == ["1"] * 4  # at the line, at two bars and in the list
    assert len([*picture.of("rect", "error-number")]) == 4
    (first, *_) = [text for text in picture.texts("note") if "copies.py:" in text]
    assert first.startswith(f"copies.py:{raced.findings[0].line}: error[write-after-read] buffer: ")


def test_every_partition_that_waits_without_end_is_marked(tmp_path: Path) -> None:
    text = module_file("h100_bf16").read_text(encoding="utf-8")
    release = "        mbarrier.arrive(args.load_empty.index(ring.stage))\n"
    assert release in text
    altered = tmp_path / "altered.py"
    altered.write_text(text.replace(release, ""))
    result, _, _ = launch(import_generated(altered), (128, 256, 384), schedules=("lazy",))
    picture = Picture(result.svg())
    (line,) = picture.of("line", "error")
    assert line[0].text.startswith("error[deadlock] load_empty: nothing can go on.")
    assert len(list(picture.of("rect", "error"))) == 3  # the producer and two consumers
    waits = [box(bar) for bar in picture.of("rect", "wait") if len(bar)]
    assert all(box(bar) in waits for bar in picture.of("rect", "error"))


def test_a_clean_picture_has_no_trace_of_marks() -> None:
    source = torch.zeros(64, 32)
    launch = simulate(copy_kernel, schedules=("lazy",))[1,]
    svg = launch(*descriptors(source, torch.empty_like(source)), 4, True, num_warps=4).svg()
    assert not any(word in svg for word in ("error", "lint", "number"))


def test_faults_of_a_step_share_their_numbers_and_neighbours_do_not_overlap() -> None:
    trace = ring(2)
    for line, step in ((7, 1), (8, 1), (9, 2)):
        trace.mark(finding(Kind.READ_AFTER_WRITE, [line]), step, ())
    picture = Picture(drawn(trace, "k", "grid 1"))
    assert sorted(picture.texts("number")) == [
        "1",
        "1",
        "1,2",
        "2",
        "3",
        "3",
    ]  # in the list, at a bar, at lines
    tops = [ground for ground in picture.of("rect", "error-number") if ground.attrib["y"] == "64"]
    ends = [(float(g.attrib["x"]), float(g.attrib["x"]) + float(g.attrib["width"])) for g in tops]
    assert len(ends) == 2
    assert ends[0][1] < ends[1][0]


def test_a_fault_without_accesses_marks_the_newest_work_of_its_lines_and_partition() -> None:
    spans = [
        span("buffer", "load", 0, 5),
        span("buffer", "load", 6, 9),
        span("buffer", "load", 20, 25),
        span("buffer", "load", 7, 9, "partition 2 (other) loads"),
    ]
    trace = trace_of(spans)
    trace.mark(finding(Kind.ACCUMULATOR_IN_FLIGHT, [7]), 10, ())
    picture = Picture(drawn(trace, "k", "grid 1"))
    loads = [box(bar) for bar in picture.of("rect", "load") if len(bar)]
    (marked,) = picture.of("rect", "error")
    assert box(marked) == loads[1]


def test_a_lint_is_marked_in_another_colour() -> None:
    trace = ring(1)
    trace.mark(finding(Kind.MISSING_FENCE, [7], Severity.LINT), 5, ())
    picture = Picture(drawn(trace, "k", "grid 1"))
    assert list(picture.of("rect", "lint"))
    assert not list(picture.of("rect", "error"))


def test_each_finding_is_marked_once_at_its_first_time() -> None:
    trace = Trace()
    for step in (3, 9):
        trace.mark(finding(Kind.READ_AFTER_WRITE, [7]), step, ())
    assert [mark.step for mark in trace.marks] == [3]


def test_a_long_run_is_shown_around_its_first_error() -> None:
    trace = ring(40)
    trace.mark(finding(Kind.MISSING_FENCE, [7], Severity.LINT), 300, ())  # which moves nothing
    assert Picture(drawn(trace, "k", "grid 1")).texts("slot") == list("0101")
    trace.mark(finding(Kind.READ_AFTER_WRITE, [7]), 501, ())
    picture = Picture(drawn(trace, "k", "grid 1"))
    (told,) = [text for text in picture.texts("note") if "are shown" in text]
    assert told == "Columns 141 to 153 of 240 are shown, because a finding is there."
    assert len(list(picture.of("path", "cut"))) == 2
    (marked,) = picture.of("rect", "error")
    assert 192 < float(marked.attrib["x"]) < picture.width - 60
    for bars in picture.bars().values():
        assert all(0 < begin < end <= picture.width - 16 for begin, end in bars)


def test_a_window_reaches_back_to_the_access_that_is_overwritten() -> None:
    spans = [span(f"s{i}", "load", 10 * i, 10 * i + 5) for i in range(400)]
    early = spans[250]._replace(works=((0, 32, 1),))
    spans[250] = early
    trace = trace_of(spans)
    trace.mark(finding(Kind.WRITE_AFTER_READ, [7]), 2800, early.works)
    picture = Picture(drawn(trace, "k", "grid 1"))
    (marked,) = picture.of("rect", "error")
    assert float(marked.attrib["x"]) > 180
    assert "load s250, line 7" in picture.told("load")
    assert len(picture.told("load")) <= MOST_COLUMNS


@pytest.mark.parametrize("processes", [1, 2])
def test_the_schedule_that_shows_an_error_is_drawn(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = Trace.mark

    def not_at_first(trace: Trace, *arguments: Any) -> None:
        if trace.position:  # as if the first schedule showed nothing
            mark(trace, *arguments)

    monkeypatch.setattr(Trace, "mark", not_at_first)
    monkeypatch.setattr("gluonsim.execution.SECONDS_WORTH_A_PROCESS", 0.0)
    source = torch.zeros(64, 32)
    launch = simulate(copy_kernel, schedules=("lazy", "eager", "lifo"), processes=processes)[1,]
    result = launch(*descriptors(source, torch.empty_like(source)), 4, False, num_warps=4)
    picture = Picture(result.svg())
    assert picture.texts("title") == ["copy_kernel: grid 1 x 1 x 1, schedule eager, CTA 0"]
    assert len(list(picture.of("rect", "error"))) == 2


def test_a_clean_launch_is_drawn_under_its_first_schedule() -> None:
    source = torch.zeros(64, 32)
    launch = simulate(copy_kernel, schedules=("eager", "lazy"))[1,]
    result = launch(*descriptors(source, torch.empty_like(source)), 4, True, num_warps=4)
    assert result.trace.position == 0
    assert Picture(result.svg()).texts("title") == ["copy_kernel: grid 1 x 1 x 1, schedule eager, CTA 0"]


def test_findings_of_other_schedules_are_listed_without_a_number() -> None:
    others = [finding(Kind.READ_AFTER_WRITE, [line]) for line in range(1, 8)]
    picture = Picture(drawn(ring(1), "k", "grid 1", findings=others))
    listed = [text for text in picture.texts("note") if "not in this timeline" in text]
    assert listed == [
        *(
            f"not in this timeline: kernel.py:{line}: error[read-after-write] buffer: told"
            for line in range(1, 5)
        ),
        "3 more findings are not in this timeline.",
    ]
    assert picture.texts("number") == []


def test_texts_of_findings_stay_within_the_picture() -> None:
    trace = ring(1)
    long = replace(finding(Kind.DEADLOCK, [7]), text="wait " * 90)
    trace.mark(long, 5, ())
    picture = Picture(drawn(trace, "k", "grid 1", findings=[replace(long, name="other")]))
    for text in picture.of("text", "note"):
        assert float(text.attrib["x"]) + len(text.text) * 11 * 0.62 <= picture.width
        assert float(text.attrib["y"]) <= picture.height - 4
