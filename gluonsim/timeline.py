"""The timeline of a simulated launch, and its Chrome trace, which Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gluonsim.barriers.mbarrier import Barrier
from gluonsim.findings import Finding, Severity, Work

Event = Mapping[str, object]


class Span(NamedTuple):  # each schedule makes thousands, and a frozen dataclass takes longer
    """Something that began at one step of the schedule and ended at another."""

    name: str
    kind: str
    row: str
    cta: int
    begin: int
    end: int
    line: int | None
    works: tuple[Work, ...] = ()
    """The accesses to memory that it makes, as `Access.work`."""

    @property
    def shown_end(self) -> int:
        """Where it ends on the timeline, on which everything takes a step at least."""
        return max(self.end, self.begin + 1)


class Phase(NamedTuple):
    """A barrier's phase, at the step that completed it."""

    step: int
    cta: int
    """That owns the barrier."""
    barrier: str
    number: int
    last: Span
    """The last arrival, which completed the phase unless bytes did so after it."""


@dataclass(frozen=True)
class Mark:
    """A fault, at the step of the schedule that showed it."""

    finding: Finding
    step: int
    works: tuple[Work, ...]
    """The accesses that it is about, as `Access.work`; empty if it is about something else."""


class Trace:
    """Spans of loads, MMAs, stores and waits, and the steps at which barriers completed phases.

    A step is one choice of the scheduler: the order is real, the distances are not times. `position` is the
    index of the schedule in the launch.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.spans: list[Span] = []
        self.phases: list[Phase] = []
        self.marks: list[Mark] = []
        """Each fault once, at its first time."""

    @property
    def shows_errors(self) -> bool:
        """True if an error lies in the timeline."""
        return any(mark.finding.severity is Severity.ERROR for mark in self.marks)

    def mark(self, finding: Finding, step: int, works: tuple[Work, ...]) -> None:
        """Note that the launch shows a fault."""
        if all(mark.finding.key != finding.key for mark in self.marks):
            self.marks.append(Mark(finding, step, works))

    def phase(self, step: int, barrier: Barrier) -> None:
        """Note that a barrier completes its current phase."""
        arrival = barrier.arrivals[-1]
        row, _, cta = arrival.who.partition(" of CTA ")
        arrived = Span(
            barrier.name,
            "arrive",
            row,
            int(cta) if cta.isdecimal() else barrier.owner,
            step,
            step,
            arrival.location.line,
        )
        self.phases.append(Phase(step, barrier.owner, barrier.name, barrier.phases, arrived))

    def as_chrome(self) -> Mapping[str, list[Event]]:
        """Return a value that JSON can hold: CTAs as processes, partitions and their lanes as rows.

        A finding is an instant in the row of its partition, and an argument of the accesses that it names.
        """
        arrows = [(phase, self._cause(phase), list(self._waits(phase))) for phase in self.phases]
        causes = dict.fromkeys(cause for _, cause, waits in arrows if waits)
        spans = list(dict.fromkeys((*self.spans, *causes)))
        places = _places(spans)
        events = [*_names(places), *(_instant(mark, places) for mark in self.marks)]
        findings = self._findings_of_spans()
        for span in spans:
            cta, _, thread = places[span]
            named = {"findings": findings[span]} if span in findings else {}
            events.append(
                {
                    "pid": cta,
                    "tid": thread,
                    "ph": "X",
                    "name": span.name,
                    "cat": span.kind,
                    "ts": span.begin,
                    "dur": span.shown_end - span.begin,
                    "args": {"line": span.line, **named},
                }
            )
        for phase, cause, waits in arrows:
            for wait in waits:
                events += _arrow(len(events), phase, (cause, places[cause]), (wait, places[wait]))
        return {"traceEvents": events}

    def as_json(self) -> str:
        """Return the value of `as_chrome` as JSON."""
        return json.dumps(self.as_chrome())

    def write(self, path: Path) -> None:
        """Write the trace as JSON."""
        path.write_text(self.as_json() + "\n", encoding="utf-8")

    def _findings_of_spans(self) -> dict[Span, list[str]]:
        """Return the titles of the findings that name an access, by the access."""
        found: dict[Span, list[str]] = {}
        for mark in self.marks:
            for span in self._named(mark):
                found.setdefault(span, []).append(mark.finding.title)
        return found

    def _named(self, mark: Mark) -> Iterator[Span]:
        """Yield the accesses that a fault is about, or else the newest of its partition in each line."""
        if mark.works:
            yield from (span for span in self.spans if not set(mark.works).isdisjoint(span.works))
            return
        finding = mark.finding
        for line in finding.lines:
            of_line = [
                span
                for span in self.spans
                if (span.line, span.cta) == (line, finding.cta)
                and span.begin <= mark.step
                and span.row.startswith(finding.partition)
            ]
            if of_line:
                yield max(of_line, key=lambda span: span.begin)

    def _cause(self, phase: Phase) -> Span:
        """Return the load whose bytes completed a phase, or else the last arrival."""
        loads = (span for span in self.spans if span.kind == "load" and span.end == phase.step)
        return next(loads, phase.last)

    def _waits(self, phase: Phase) -> Iterator[Span]:
        """Yield the wait of each row that the phase ended."""
        rows: set[str] = set()
        for span in self.spans:
            is_its_wait = (span.kind, span.cta, span.name) == ("wait", phase.cta, phase.barrier)
            if is_its_wait and span.end >= phase.step and span.row not in rows:
                rows.add(span.row)
                yield span


Place = tuple[int, str, int]
"""A span's CTA, row and number of the line that it is drawn on."""


def _places(spans: list[Span]) -> dict[Span, Place]:
    """Give each row as many lines as it has spans at a time: the format lets those of a line only nest."""
    rows: dict[tuple[int, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.cta, span.row, span.begin)):
        rows.setdefault((span.cta, span.row), []).append(span)
    places: dict[Span, Place] = {}
    lines = 0
    for (cta, row), members in rows.items():
        free: list[int] = []  # the step from which each line of the row is free
        for span in members:
            line = next((i for i, end in enumerate(free) if end <= span.begin), len(free))
            free[line : line + 1] = [span.shown_end]
            places[span] = (cta, row, lines + line)
        lines += len(free)
    return places


def _names(places: Mapping[Span, Place]) -> Iterator[Event]:
    for cta in dict.fromkeys(cta for cta, _, _ in places.values()):
        yield {"ph": "M", "name": "process_name", "pid": cta, "args": {"name": f"CTA {cta}"}}
    for cta, row, line in sorted(set(places.values())):
        yield {"ph": "M", "name": "thread_name", "pid": cta, "tid": line, "args": {"name": row}}


def _instant(mark: Mark, places: Mapping[Span, Place]) -> Event:
    """Return a fault as an instant: in the first row of its partition, or in its CTA if that has no row."""
    finding = mark.finding
    lines = (
        line
        for cta, row, line in sorted(set(places.values()))
        if cta == finding.cta and row.startswith(finding.partition)
    )
    line = next(lines, None)
    return {
        "pid": finding.cta,
        "ph": "i",
        "name": finding.title,
        "cat": finding.severity.value,
        "ts": mark.step,
        "args": {"places": [str(place) for place in finding.places]},
        **({"s": "p"} if line is None else {"s": "t", "tid": line}),
    }


def _arrow(number: int, phase: Phase, source: tuple[Span, Place], target: tuple[Span, Place]) -> list[Event]:
    """Return the two ends of an arrow, each within its span, for it is bound to the span that it lies in."""
    (cause, (from_cta, _, from_line)), (wait, (to_cta, _, to_line)) = source, target
    flow = {"cat": "phase", "name": f"{phase.barrier} phase {phase.number}", "id": number}
    return [
        {**flow, "ph": "s", "ts": cause.shown_end - 0.5, "pid": from_cta, "tid": from_line},
        {**flow, "ph": "f", "bp": "e", "ts": wait.shown_end - 0.5, "pid": to_cta, "tid": to_line},
    ]
