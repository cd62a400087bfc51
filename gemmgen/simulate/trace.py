"""The timeline of one run, in the Chrome trace format that Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmgen.simulate.barrier import Barrier


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


class Trace:
    """Spans of loads, MMAs, stores and waits, and the steps at which barriers completed phases.

    A step is one choice of the scheduler: the order is real, the distances are not times.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.phases: list[tuple[int, int, str, int]] = []
        """Step, CTA, barrier and number of each completed phase."""

    def phase(self, step: int, barrier: Barrier) -> None:
        """Note that a barrier completes its current phase."""
        self.phases.append((step, barrier.owner, barrier.name, barrier.phases))

    def as_chrome(self) -> Mapping[str, object]:
        """Return a value that JSON can hold: CTAs as processes, partitions and lanes as rows."""
        rows = {row: i for i, row in enumerate(sorted({(span.cta, span.row) for span in self.spans}))}
        events: list[Mapping[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": cta, "tid": tid, "args": {"name": row}}
            for (cta, row), tid in rows.items()
        ]
        for span in self.spans:
            place = {"pid": span.cta, "tid": rows[span.cta, span.row]}
            duration = max(span.end - span.begin, 1)
            events.append(
                {
                    **place,
                    "ph": "X",
                    "name": span.name,
                    "cat": span.kind,
                    "ts": span.begin,
                    "dur": duration,
                    "args": {"line": span.line},
                }
            )
        for i, (step, cta, name, number) in enumerate(self.phases):
            waits = [
                s for s in self.spans if (s.cta, s.kind, s.name) == (cta, "wait", name) and s.end >= step
            ]
            flow = {"cat": "phase", "name": f"{name} phase {number}", "id": i, "pid": cta}
            for wait in waits[:1]:
                row = rows[wait.cta, wait.row]
                events.append({**flow, "ph": "s", "ts": step, "tid": row})
                events.append({**flow, "ph": "f", "bp": "e", "ts": wait.end, "tid": row})
        return {"traceEvents": events}

    def write(self, path: Path) -> None:
        """Write the trace as JSON."""
        path.write_text(json.dumps(self.as_chrome()) + "\n")
