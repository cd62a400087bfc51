"""What a simulated launch showed, for people, for programs, and for the tools of others.

Its timeline is in the Chrome trace format, which Perfetto opens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmgen import __version__
from gemmgen.errors import GemmgenError
from gemmgen.simulate.clocks import Barrier
from gemmgen.simulate.findings import Finding, Frame, Severity

Event = Mapping[str, object]


@dataclass(frozen=True)
class Span:
    """Something that began at one step of the schedule and ended at another."""

    name: str
    kind: str
    row: str
    cta: int
    begin: int
    end: int
    line: int | None

    @property
    def shown_end(self) -> int:
        """Where it ends on the timeline, on which everything takes a step at least."""
        return max(self.end, self.begin + 1)


@dataclass(frozen=True)
class Phase:
    """A barrier's phase, at the step that completed it."""

    step: int
    cta: int
    """That owns the barrier."""
    barrier: str
    number: int
    last: Span
    """The last arrival, which completed the phase unless bytes did so after it."""


class Trace:
    """Spans of loads, MMAs, stores and waits, and the steps at which barriers completed phases.

    A step is one choice of the scheduler: the order is real, the distances are not times.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.phases: list[Phase] = []

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

    def as_chrome(self) -> Mapping[str, object]:
        """Return a value that JSON can hold: CTAs as processes, partitions and their lanes as rows."""
        arrows = [(phase, self._cause(phase), list(self._waits(phase))) for phase in self.phases]
        causes = dict.fromkeys(cause for _, cause, waits in arrows if waits)
        spans = list(dict.fromkeys((*self.spans, *causes)))
        places = _places(spans)
        events = list(_names(places))
        for span in spans:
            cta, _, thread = places[span]
            events.append(
                {
                    "pid": cta,
                    "tid": thread,
                    "ph": "X",
                    "name": span.name,
                    "cat": span.kind,
                    "ts": span.begin,
                    "dur": span.shown_end - span.begin,
                    "args": {"line": span.line},
                }
            )
        for phase, cause, waits in arrows:
            for wait in waits:
                events += _arrow(len(events), phase, (cause, places[cause]), (wait, places[wait]))
        return {"traceEvents": events}

    def write(self, path: Path) -> None:
        """Write the trace as JSON."""
        path.write_text(json.dumps(self.as_chrome()) + "\n", encoding="utf-8")

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


def _arrow(number: int, phase: Phase, source: tuple[Span, Place], target: tuple[Span, Place]) -> list[Event]:
    """Return the two ends of an arrow, each within its span, for it is bound to the span that it lies in."""
    (cause, (from_cta, _, from_line)), (wait, (to_cta, _, to_line)) = source, target
    flow = {"cat": "phase", "name": f"{phase.barrier} phase {phase.number}", "id": number}
    return [
        {**flow, "ph": "s", "ts": cause.shown_end - 0.5, "pid": from_cta, "tid": from_line},
        {**flow, "ph": "f", "bp": "e", "ts": wait.shown_end - 0.5, "pid": to_cta, "tid": to_line},
    ]


PHASES_TO_COVER = 3
"""A ring whose barriers complete fewer phases may hide faults: the third tells a lap from its neighbours."""

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number of things: ``1 schedule``, ``2 schedules``."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


@dataclass(frozen=True)
class Result:
    """What several schedules of one launch showed."""

    findings: tuple[Finding, ...]
    """Every fault that a schedule showed, each once; empty when the kernel is clean."""
    trace: Trace
    """Timeline of the first schedule."""
    phases: Mapping[str, int]
    """For each barrier, the phases that it completed in the busiest program of any schedule: the fewest of
    any CTA, and all of a barrier that is invalidated and initialised again."""
    deterministic: bool
    """Whether all schedules left the same bytes in every tensor."""
    kernel: str = ""
    """The kernel's name."""
    grid: tuple[int, int, int] = (1, 1, 1)
    """Programs along each axis."""
    schedules: tuple[str, ...] = ()
    """The policies that were run."""

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Barriers with too few phases for this run to show all faults: use more steps, or fewer programs."""
        return tuple(name for name, phases in self.phases.items() if phases < PHASES_TO_COVER)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings without lints, which the compiler of today repairs or disregards."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    def raise_on_findings(self, *, lints: bool = False) -> None:
        """Return if no fault was found.

        Raises:
            GemmgenError: There are errors, or with `lints` any findings; its diagnostics are all of them.
        """
        found = self.findings if lints else self.errors
        if found:
            raise GemmgenError(finding.diagnostic for finding in found)

    def json(self) -> str:
        """Return findings and coverage as JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "schedules": list(self.schedules),
            "deterministic": self.deterministic,
            "findings": [finding.as_dict() for finding in self.findings],
            "phases": dict(self.phases),
            "uncovered": list(self.uncovered),
        }

    def sarif(self) -> str:
        """Return the findings as a log in SARIF 2.1.0, which code hosts show beside the source."""
        return json.dumps(sarif_log(self.findings), indent=2)

    def chrome_trace(self) -> str:
        """Return the timeline of the first schedule as JSON that Perfetto opens."""
        return json.dumps(self.trace.as_chrome())

    @property
    def headline(self) -> str:
        """What was run, and the number of findings, in a line."""
        schedules, found = counted(len(self.schedules), "schedule"), counted(len(self.findings), "finding")
        return f"{self.kernel}, grid {' x '.join(map(str, self.grid))}: {schedules}, {found}"

    def __str__(self) -> str:
        lines = [self.headline, *map(str, self.findings)]
        if not self.deterministic:
            lines.append("note: schedules leave different bytes")
        if self.uncovered:
            rings = ", ".join(dict.fromkeys(name.partition("[")[0] for name in self.uncovered))
            lines.append(
                f"note: faults may hide in barriers with fewer than {PHASES_TO_COVER} phases: {rings}"
            )
        return "\n".join(lines)


def sarif_log(findings: Iterable[Finding]) -> dict[str, object]:
    """Return a log in SARIF 2.1.0 as a value that JSON can hold; files below this directory are relative."""
    findings = tuple(findings)
    kinds = list(dict.fromkeys(finding.kind for finding in findings))
    results: list[dict[str, object]] = []
    for finding in findings:
        locations = [_sarif_location(place) for place in dict.fromkeys(finding.places)]
        result: dict[str, object] = {
            "ruleId": finding.kind.value,
            "ruleIndex": kinds.index(finding.kind),
            "level": "error" if finding.severity is Severity.ERROR else "warning",
            "message": {"text": f"{finding.name}: {finding.text}"},
        }
        if locations:
            result["locations"] = locations[:1]
            result["relatedLocations"] = locations[1:]
        results.append(result)
    rules = [{"id": kind.value, "shortDescription": {"text": kind.value.replace("-", " ")}} for kind in kinds]
    driver = {"name": "gemmgen simulate", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_location(place: Frame) -> dict[str, object]:
    path = Path(place.file).resolve()
    here = Path.cwd()
    uri = path.relative_to(here).as_posix() if path.is_relative_to(here) else path.as_uri()
    region: dict[str, object] = {"startLine": place.line}
    if place.snippet:
        region["snippet"] = {"text": place.snippet}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
