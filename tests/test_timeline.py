"""The timeline of a launch: the schedule that it is of, and the findings in it."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.copies import copy_kernel, descriptors
from kernels.launch import launch
from modules import module_file

from gemmgen.module import import_generated
from gluonsim import Finding, Kind, Result, Severity, simulate
from gluonsim.findings import Frame
from gluonsim.timeline import Span, Trace

Event = Mapping[str, Any]


def copied(*, awaited: bool, **options: Any) -> Result:
    """Copy four tiles; without awaited stores, a load overwrites the buffer that a store reads."""
    source = torch.zeros(64, 32)
    launch = simulate(copy_kernel, **options)[1,]
    return launch(*descriptors(source, torch.empty_like(source)), 4, awaited, num_warps=4)


def events_of(result: Result) -> list[Event]:
    return json.loads(result.chrome_trace())["traceEvents"]


def instants(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "i"]


def named(events: Sequence[Event]) -> list[Event]:
    """The accesses that a finding names."""
    return [event for event in events if event.get("args", {}).get("findings")]


def span(name: str, kind: str, begin: int, end: int, row: str = "partition 1 (loader) loads") -> Span:
    return Span(name, kind, row, 0, begin, end, 7)


def finding(kind: Kind, severity: Severity = Severity.ERROR, partition: str = "partition 1") -> Finding:
    return Finding(kind, severity, "buffer", (Frame("kernel.py", 7),), partition, 0, "told")


def test_a_clean_launch_has_loads_and_stores_and_no_finding() -> None:
    events = events_of(copied(awaited=True))
    assert {"load", "store"} <= {event.get("cat") for event in events}
    assert instants(events) == named(events) == []


def test_the_accesses_of_a_race_have_the_finding_and_no_others() -> None:
    result = copied(awaited=False, schedules=("lazy", "eager"))
    (found,) = result.findings
    events = events_of(result)
    loads, stores = ([event for event in events if event.get("cat") == kind] for kind in ("load", "store"))
    assert (len(loads), len(stores)) == (4, 4)
    # The second load overwrites the buffer that the first store reads.
    assert named(events) == [stores[0], loads[1]]
    assert {title for event in named(events) for title in event["args"]["findings"]} == {found.title}
    (instant,) = instants(events)
    assert (instant["name"], instant["cat"], instant["ts"]) == (found.title, "error", loads[1]["ts"])
    assert instant["args"]["places"] == [str(place) for place in found.places]


def test_an_instant_lies_in_a_row_of_its_partition() -> None:
    events = events_of(copied(awaited=False))
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    (instant,) = instants(events)
    assert instant["s"] == "t"
    assert rows[instant["tid"]].startswith("partition 0")


def test_a_finding_of_a_partition_without_a_row_lies_in_its_cta() -> None:
    trace = Trace()
    trace.spans.append(span("buffer", "load", 0, 5))
    trace.mark(finding(Kind.MISSING_FENCE, Severity.LINT, "partition 4"), 3, ())
    (instant,) = instants(trace.as_chrome()["traceEvents"])
    assert (instant["s"], instant["pid"], instant["cat"]) == ("p", 0, "lint")


def test_each_partition_that_waits_without_end_has_the_finding(tmp_path: Path) -> None:
    text = module_file("h100_bf16").read_text(encoding="utf-8")
    release = "        mbarrier.arrive(args.load_empty.index(ring.stage))\n"
    assert release in text
    altered = tmp_path / "altered.py"
    altered.write_text(text.replace(release, ""))
    result, _, _ = launch(import_generated(altered), (128, 256, 384), schedules=("lazy",))
    events = events_of(result)
    (instant,) = instants(events)
    assert instant["name"].startswith("error[deadlock] load_empty: nothing can go on.")
    assert [event["cat"] for event in named(events)] == ["wait"] * 3  # the producer and two consumers


def test_a_finding_without_accesses_is_of_the_newest_work_of_its_lines_and_partition() -> None:
    trace = Trace()
    trace.spans += [
        span("first", "load", 0, 5),
        span("newest", "load", 6, 9),
        span("later", "load", 20, 25),
        span("other", "load", 7, 9, "partition 2 (other) loads"),
    ]
    trace.mark(finding(Kind.ACCUMULATOR_IN_FLIGHT), 10, ())
    events = trace.as_chrome()["traceEvents"]
    assert [event["name"] for event in named(events)] == ["newest"]


def test_each_finding_is_marked_once_at_its_first_time() -> None:
    trace = Trace()
    for step in (3, 9):
        trace.mark(finding(Kind.READ_AFTER_WRITE), step, ())
    assert [mark.step for mark in trace.marks] == [3]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_timeline_is_of_the_schedule_that_shows_an_error(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = Trace.mark

    def not_at_first(trace: Trace, *arguments: Any) -> None:
        if trace.position:  # as if the first schedule showed nothing
            mark(trace, *arguments)

    monkeypatch.setattr(Trace, "mark", not_at_first)
    monkeypatch.setattr("gluonsim.execution.SECONDS_WORTH_A_PROCESS", 0.0)
    result = copied(awaited=False, schedules=("lazy", "eager", "lifo"), processes=processes)
    assert result.schedules[result.trace.position] == "eager"
    assert len(instants(events_of(result))) == 1


def test_the_timeline_of_a_clean_launch_is_of_its_first_schedule() -> None:
    assert copied(awaited=True, schedules=("eager", "lazy")).trace.position == 0
