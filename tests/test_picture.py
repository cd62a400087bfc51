"""The pipeline as a picture: what it shows, that it can be read, and that the one in docs/ is true."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from kernels.copies import copy_kernel, descriptors
from modules import ROOT

from gemmgen.drawing import LETTER_WIDTH
from gluonsim import Result, simulate
from gluonsim.timeline.picture import MOST_COLUMNS, drawn
from gluonsim.timeline.trace import Phase, Span, Trace
from tools.quotations.drawings import PIPELINE, pipeline

NAMESPACE = "{http://www.w3.org/2000/svg}"
TSPAN = f"{NAMESPACE}tspan"
SIZES = {"title": 16, "role": 13, "lane": 11, "note": 11, "slot": 10, "inside": 10}
"""Of each kind of text, in pixels."""
KINDS = ("load", "mma", "store", "wait")


class Picture:
    """An SVG, parsed."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        _, _, self.width, self.height = map(float, self.root.attrib["viewBox"].split())

    def of(self, tag: str, kind: str) -> Iterator[Any]:
        """The elements of a class."""
        return (found for found in self.root.iter(NAMESPACE + tag) if found.attrib.get("class") == kind)

    def texts(self, kind: str) -> list[str]:
        """The texts of a class, from top to bottom."""
        found = (element for element in self.root.iter() if element.tag in (f"{NAMESPACE}text", TSPAN))
        return [element.text or "" for element in found if element.attrib.get("class") == kind]

    def told(self, kind: str) -> list[str]:
        """What each bar or tick says when it is pointed at."""
        found = (*self.of("rect", kind), *self.of("path", kind))
        return [element[0].text for element in found if len(element)]

    def bars(self) -> dict[float, list[tuple[float, float]]]:
        """The ends of the bars of each lane, by its height."""
        lanes: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for kind in KINDS:
            for bar in self.of("rect", kind):
                x, y, width = (float(bar.attrib[name]) for name in ("x", "y", "width"))
                lanes[y].append((x, x + width))
        return {y: sorted(bars) for y, bars in sorted(lanes.items())}


def trace_of(spans: Iterable[Span], phases: Iterable[tuple[int, str, int]] = ()) -> Trace:
    """A timeline; a phase is its step, its barrier and its number."""
    trace = Trace()
    trace.spans += spans
    last = Span("", "arrive", "", 0, 0, 0, None)
    trace.phases += [Phase(step, 0, barrier, number, last) for step, barrier, number in phases]
    return trace


def span(name: str, kind: str, begin: int, end: int, row: str = "partition 1 (loader) loads") -> Span:
    return Span(name, kind, row, 0, begin, end, 7)


def ring(laps: int, slots: int = 2) -> Trace:
    """A timeline of a ring that is filled again and again."""
    spans: list[Span] = []
    phases: list[tuple[int, str, int]] = []
    for step in range(0, 10 * laps * slots, 10):
        lap, slot = divmod(step // 10, slots)
        spans.append(span(f"empty[{slot}]", "wait", step, step + 1, "partition 1 (loader)"))
        spans += [span(f"{name}[{slot}]", "load", step + 1, step + 9) for name in ("a", "b")]
        phases.append((step + 9, f"ready[{slot}]", lap))
    return trace_of(spans, phases)


@pytest.fixture(scope="module")
def picture() -> Picture:
    """The picture in docs/."""
    return Picture(PIPELINE.read_text(encoding="utf-8"))


# --- the one in docs/


def test_the_picture_in_docs_is_what_a_simulation_draws() -> None:
    """`make docs` draws it anew."""
    assert PIPELINE.read_text(encoding="utf-8") == pipeline()


def test_each_role_has_a_panel_and_then_come_the_barriers(picture: Picture) -> None:
    assert picture.texts("role") == [
        *("producer_partition", "consumer_partition", "consumer_partition", "barriers"),
    ]
    assert picture.texts("lane") == [
        *("waits", "loads [0]", "loads [1]", "loads [2]", "loads [3]"),
        *("waits", "MMA", "stores") * 2,
        *("load_ready", "load_empty"),
    ]
    assert len(list(picture.of("rect", "panel"))) == 4


def test_the_slots_of_each_ring_come_round_twice(picture: Picture) -> None:
    assert picture.texts("slot") == list("0123" * 2) * 2
    assert picture.told("phase")[0] == "load_ready[0]: phase 0 completes"
    assert picture.told("phase")[-1] == "load_empty[3]: phase 1 completes"


def test_the_tiles_of_a_k_step_are_one_bar(picture: Picture) -> None:
    module = (ROOT / "generated" / "h100_bf16.py").read_text().splitlines()
    loads = [number for number, line in enumerate(module, 1) if "tma.async_load(" in line]
    assert len(loads) == 2
    first = picture.told("load")[0]
    lines = " and ".join(map(str, loads))
    assert first == f"load a_smem_0[0], a_smem_1[0], b_smem[0], line {lines}"
    assert "a_smem_0, a_smem_1, b_smem" in picture.texts("inside")


# --- any picture


@pytest.mark.parametrize(
    "svg",
    [
        PIPELINE.read_text(encoding="utf-8"),
        drawn(ring(40), "k" * 300, "grid 1"),
        drawn(trace_of([span("x" * 90, "load", 0, 5, f"partition 12 ({'f' * 200}) loads")]), "k", "grid 1"),
        drawn(trace_of([span("s", "load", i, 40 - i) for i in range(9)]), "k", "grid 1"),
        drawn(Trace(), "kernel", "grid 1"),
    ],
    ids=["docs", "long", "long names", "all at a time", "empty"],
)
def test_nothing_overlaps_and_all_text_is_within_the_picture(svg: str) -> None:
    picture = Picture(svg)
    for lane in picture.bars().values():
        assert all(end < begin for (_, end), (begin, _) in pairwise(lane))
        assert all(begin < end <= picture.width - 16 for begin, end in lane)
    for kind, size in SIZES.items():
        ends: dict[str, float] = {}  # of the last text on each line
        for text in picture.of("text", kind):
            x, y = float(text.attrib["x"]), text.attrib["y"]
            assert ends.get(y, 0) <= x, (kind, text.text)
            ends[y] = x + len("".join(text.itertext())) * size * LETTER_WIDTH
            assert ends[y] <= picture.width
            assert size <= float(y) <= picture.height - 4


def test_the_panels_lie_one_under_the_other(picture: Picture) -> None:
    places = [(float(p.attrib["y"]), float(p.attrib["height"])) for p in picture.of("rect", "panel")]
    assert all(top + height < below for (top, height), (below, _) in pairwise(places))
    heights = list(picture.bars())
    inside = [y for y in heights if any(top < y < top + height - 16 for top, height in places)]
    assert inside == heights[:-1]  # the last ones are the legend's


def test_the_reader_chooses_light_or_dark(picture: Picture) -> None:
    style = picture.root.findtext(f"{NAMESPACE}style", "")
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    for kind in ("text", *(f".{kind}" for kind in KINDS[:3]), ".phase"):
        assert f"{kind} {{" in light
        assert f"{kind} {{" in dark
    assert all(found.attrib.get("width") != "100%" for found in picture.root.iter(NAMESPACE + "rect"))


def test_the_title_says_what_ran(picture: Picture) -> None:
    (title,) = picture.texts("title")
    assert title == "h100_bf16.py: 256x512x384, schedule lazy, CTA 0"
    roles = "producer_partition, consumer_partition, consumer_partition"
    assert picture.root.findtext(f"{NAMESPACE}title") == f"The pipeline of {title}. Roles: {roles}"


def test_a_long_run_is_cut_after_two_laps_and_says_so() -> None:
    long, short = Picture(drawn(ring(9), "k", "grid 1")), Picture(drawn(ring(2), "k", "grid 1"))
    assert short.texts("slot") == long.texts("slot") == list("0101")
    assert not list(short.of("path", "cut"))
    assert len(list(long.of("path", "cut"))) == 1
    assert [text for text in long.texts("note") if "columns are shown" in text] == [
        # Of each turn the wait, the loads and their end; and one more.
        f"The first {3 * 4 + 1} of {3 * 18} columns are shown."
    ]
    assert not [text for text in short.texts("note") if "columns are shown" in text]


def test_without_a_ring_the_columns_are_limited() -> None:
    spans = [span("buffer", "load", 10 * i, 10 * i + 5) for i in range(500)]
    picture = Picture(drawn(trace_of(spans), "k", "grid 1"))
    assert f"The first {MOST_COLUMNS} of 1000 columns are shown." in picture.texts("note")
    assert len(picture.told("load")) == MOST_COLUMNS / 2


def test_work_in_flight_at_a_time_has_lanes_of_its_own() -> None:
    row = "partition 0 (multiply) mma"
    spans = [span("accumulator", "mma", begin, begin + 5, row) for begin in (0, 3, 6)]
    picture = Picture(drawn(trace_of(spans), "k", "grid 1"))
    *lanes, _ = picture.bars().values()
    assert [len(lane) for lane in lanes] == [2, 1]
    assert picture.texts("lane") == ["MMA"]  # of both


def test_a_partition_has_one_panel_before_and_after_its_role_begins() -> None:
    row = "partition 0 (consume)"
    spans = [
        span("early", "wait", 0, 3, "partition 0"),
        span("late", "wait", 3, 9, row),
        span("d", "store", 4, 8, f"{row} stores"),
    ]
    picture = Picture(drawn(trace_of(spans), "k", "grid 1"))
    assert picture.texts("role") == ["consume"]
    assert picture.texts("lane") == ["waits", "stores"]


def test_a_role_that_begins_after_the_cut_is_named_all_the_same() -> None:
    trace = ring(9)
    trace.spans.append(span("d", "store", 171, 172, "partition 2 (epilogue) stores"))
    picture = Picture(drawn(trace, "k", "grid 1"))
    assert picture.texts("role") == ["loader", "epilogue", "barriers"]
    assert "partition 2, idle so far" in picture.texts("note")


def test_an_empty_timeline_says_that_there_is_nothing() -> None:
    picture = Picture(drawn(Trace(), "kernel", "grid 1"))
    assert picture.texts("lane") == ["CTA 0 loads, multiplies and stores nothing, nor waits."]
    assert picture.texts("role") == []


def test_names_are_escaped() -> None:
    spans = [span("<unnamed buffer>[0]", "load", 0, 50, "partition 1 (<lambda> & co) loads")]
    picture = Picture(drawn(trace_of(spans), "<kernel> & co", "grid 1"))
    assert picture.texts("title") == ["<kernel> & co: grid 1, CTA 0"]
    assert picture.texts("role") == ["<lambda> & co"]
    assert picture.texts("inside") == ["<unnamed buffer>"]


def copied() -> Result:
    """What four tiles of a copy show."""
    source = torch.zeros(64, 32)
    launch = simulate(copy_kernel, schedules=("lazy", "eager"))[1,]
    return launch(*descriptors(source, torch.empty_like(source)), 4, True, num_warps=4)


def test_a_launch_is_drawn_with_its_kernel_and_grid() -> None:
    result = copied()
    picture = Picture(result.svg())
    assert picture.texts("title") == ["copy_kernel: grid 1 x 1 x 1, schedule lazy, CTA 0"]
    assert picture.texts("lane") == ["waits", "loads", "stores", "ready"]
    (other,) = Picture(result.svg(cta=1)).texts("lane")
    assert other == "CTA 1 loads, multiplies and stores nothing, nor waits."
    assert result.svg() == copied().svg()
