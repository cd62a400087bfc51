"""Picture of the pipeline of one CTA: an SVG that stands alone, for light and dark pages.

Roles are panels, one under the other; in each a lane of waits, and lanes for the loads, MMAs and stores that
the role has in flight. Under them are the barriers, with a tick where a phase completes.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemmgen.drawing import (
    GAP,
    HEADER_HEIGHT,
    LETTER_WIDTH,
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    fitting,
    panel,
    svg,
    text_at,
)
from gemmgen.literals import markup
from gluonsim.findings import Finding
from gluonsim.timeline.faults import STYLE, Fault, faults_of, listed, outlined, stepped
from gluonsim.timeline.trace import Phase, Span, Trace

LAPS = 2
"""Turns around the longest ring that are shown: one fills it, and from the next on slots are used again."""
MOST_COLUMNS = 120
"""More would be too narrow to read."""

GUTTER = 176
"""Left of the columns: the names of lanes."""
LANE_HEIGHT = 20
BAR_HEIGHT = 16
LEGEND_HEIGHT = 58

COLUMNS_LEFT = MARGIN + GUTTER
COLUMNS_WIDTH = WIDTH - MARGIN - 12 - COLUMNS_LEFT

_KINDS = {"load": "load", "mma": "MMA", "store": "store", "wait": "wait for a barrier"}
"""What a span can be, with the name that the legend has for it; in a panel, in this order."""
_ROLE = re.compile(r"partition (\d+)(?: \((.*?)\))?")
"""How the row of a span begins: with the partition, and the function that it runs where that is known."""


@dataclass(frozen=True)
class _Bar:
    """Spans that are drawn as one."""

    spans: tuple[Span, ...]

    @property
    def kind(self) -> str:
        return self.spans[0].kind

    @property
    def slot(self) -> str:
        """The slot of a ring, if there is one slot."""
        slots = {_slot(span.name) for span in self.spans}
        return slots.pop() if len(slots) == 1 else ""

    @property
    def begin(self) -> int:
        return self.spans[0].begin

    @property
    def end(self) -> int:
        return max(span.shown_end for span in self.spans)

    @property
    def lane(self) -> str:
        """The name of the lane: what the work is, and the slot; waits of all slots share theirs."""
        if self.kind == "wait":
            return "waits"
        _, unit = _split(self.spans[0].row)
        unit = {"mma": "MMA"}.get(unit, unit)
        return f"{unit} [{self.slot}]" if self.slot else unit

    @property
    def texts(self) -> tuple[str, ...]:
        """What can be written in it, the longest first; a lane's name has the slot, but for waits."""
        name = self.spans[0].name
        if self.kind == "wait":
            return name, f"[{self.slot}]" if self.slot else ""
        names = [_base(span.name) for span in self.spans]
        if len(names) == 1:
            return (names[0],)
        # The MMA is the last one of its group.
        return ", ".join(names), f"…, {names[-1]}" if self.kind == "mma" else f"{names[0]}, …"

    @property
    def tooltip(self) -> str:
        lines = dict.fromkeys(str(span.line) for span in self.spans if span.line)
        where = f", line {' and '.join(lines)}" if lines else ""
        return f"{self.kind} {', '.join(span.name for span in self.spans)}{where}"


@dataclass(frozen=True)
class _Role:
    """A partition, and its bars in the order of their beginnings."""

    partition: str
    function: str
    """That the partition runs; empty where nobody knows."""
    bars: tuple[_Bar, ...]


@dataclass(frozen=True)
class _Window:
    """The steps that are shown; each at which something begins or ends is a column."""

    steps: Sequence[int]
    """All steps of the timeline, ascending."""
    columns: int
    """Number of steps that are shown."""
    first: int = 0
    """Index of the first step that is shown."""

    def x(self, step: int) -> float:
        """Return where a step lies; steps outside of the window lie at its ends."""
        column = min(max(self.column(step), 0), self.columns)
        return COLUMNS_LEFT + COLUMNS_WIDTH * column / self.columns

    def column(self, step: int) -> int:
        return bisect(self.steps, step - 1) - self.first

    def shows(self, begin: int, end: int | None = None) -> bool:
        """Return whether something is shown that begins and ends at these steps, or happens at one."""
        after = self.column(begin) >= 0 if end is None else self.column(end) > 0
        return after and self.column(begin) < self.columns

    @property
    def elided(self) -> bool:
        return self.first + self.columns < len(self.steps)

    @property
    def told(self) -> str:
        """The part of the timeline that is shown; empty for all of it."""
        count = len(self.steps)
        if self.first:
            last = self.first + self.columns
            return f"Columns {self.first + 1} to {last} of {count} are shown, because a finding is there."
        return f"The first {self.columns} of {count} columns are shown." if self.elided else ""


def drawn(trace: Trace, kernel: str, launch: str, cta: int = 0, findings: Iterable[Finding] = ()) -> str:
    """Return the timeline of a CTA as an SVG; same timeline, same bytes.

    A long timeline is shown up to the end of its first laps, or around its first error. Bars of accesses that
    a finding names are outlined, and a line stands at the step that shows it.

    Args:
        trace: The timeline.
        kernel: The name of what ran.
        launch: What it ran on, and under which schedule.
        cta: Number of the CTA in its cluster.
        findings: All findings of the launch, so that the picture lists those of other schedules too.
    """
    title = f"{kernel}: {launch}, CTA {cta}"
    spans = [span for span in trace.spans if span.cta == cta]
    phases = [phase for phase in trace.phases if phase.cta == cta]
    roles = _roles(spans)
    faults = faults_of(trace.marks, spans, cta)
    window = _window(roles, phases, faults)
    lines: list[str] = []
    top = float(MARGIN + TITLE_HEIGHT)
    for role in roles:
        lanes = _lanes(bar for bar in role.bars if window.shows(bar.begin, bar.end))
        lines += _drawn_role(role, lanes, window, top, faults)
        top += HEADER_HEIGHT + LANE_HEIGHT * len(lanes) + GAP
    rings = _rings(phase for phase in phases if window.shows(phase.step))
    if rings:
        lines += _drawn_barriers(rings, window, top)
        top += HEADER_HEIGHT + LANE_HEIGHT * len(rings) + GAP
    if not lines:
        lines.append(
            text_at("lane", MARGIN, top, f"CTA {cta} loads, multiplies and stores nothing, nor waits.")
        )
        top += LANE_HEIGHT
    if window.elided:
        x = COLUMNS_LEFT + COLUMNS_WIDTH
        lines.append(f'<path class="cut" d="M{x} {MARGIN + TITLE_HEIGHT}V{top - GAP:g}"/>')
    if window.first:
        lines.append(f'<path class="cut" d="M{COLUMNS_LEFT} {MARGIN + TITLE_HEIGHT}V{top - GAP:g}"/>')
    lines += _legend(window, top)
    texts, height_of_texts = listed(faults, findings, top + LEGEND_HEIGHT)
    lines += texts
    height = top + LEGEND_HEIGHT + height_of_texts
    roles_text = ", ".join(role.function or role.partition for role in roles) or "nothing"
    spoken = f"The pipeline of {title}. Roles: {roles_text}"
    return svg(title, spoken, height, lines, STYLE if texts else "")


# --- what is drawn


def _split(row: str) -> tuple[str, str]:
    """Return the beginning of a row that names its partition, and what follows."""
    match = _ROLE.match(row)
    role = match[0] if match else row
    return role, row[len(role) :].strip()


def _partition(row: str) -> str:
    """Return the partition of a row, without its function."""
    match = _ROLE.match(row)
    return f"partition {match[1]}" if match else row


def _base(name: str) -> str:
    return name.partition("[")[0]


def _slot(name: str) -> str:
    return name.partition("[")[2].removesuffix("]")


def _roles(spans: Iterable[Span]) -> list[_Role]:
    """Return the partitions that did something: first those that load, then those that multiply."""
    by_partition: dict[str, list[Span]] = {}
    functions: dict[str, str] = {}
    for span in sorted(spans, key=lambda span: (span.begin, span.end, span.name)):
        match = _ROLE.match(span.row)
        partition = _partition(span.row)
        by_partition.setdefault(partition, []).append(span)
        if match and match[2]:  # the first partition bears it only from its call on
            functions[partition] = match[2]
    order = list(_KINDS)

    def rank(partition: str) -> tuple[int, int, str]:
        return min(order.index(span.kind) for span in by_partition[partition]), len(partition), partition

    return [
        _Role(partition, functions.get(partition, ""), tuple(_bars(by_partition[partition])))
        for partition in sorted(by_partition, key=rank)
    ]


def _lanes(bars: Iterable[_Bar]) -> list[list[_Bar]]:
    """Return the lanes of a partition, no bar above another: waits, then each kind of work by slots."""
    lanes: list[list[_Bar]] = []
    for bar in bars:
        free = (lane for lane in lanes if lane[0].lane == bar.lane and lane[-1].end <= bar.begin)
        lane = next(free, None)
        if lane is None:
            lanes.append([bar])
        else:
            lane.append(bar)
    order = ["wait", *_KINDS]
    return sorted(lanes, key=lambda lane: (order.index(lane[0].kind), len(lane[0].lane), lane[0].lane))


def _bars(spans: Sequence[Span]) -> list[_Bar]:
    """Draw as one what belongs to a K step: what a partition issues between two of its waits.

    These are the loads into one slot, and on Blackwell the MMA with the copies of its scales.
    """
    waits = sorted(span.begin for span in spans if span.kind == "wait")
    groups: dict[tuple[str, str, str, int], list[Span]] = {}
    bars: list[list[Span]] = []
    for span in spans:
        slot = _slot(span.name) if span.kind == "load" else ""
        key = (span.row, span.kind, slot, bisect(waits, span.begin))
        group = groups.get(key, [])
        belongs = span.kind == "mma" or (span.kind == "load" and slot)
        if group and belongs and all(span.name != other.name for other in group):
            group.append(span)
        else:
            groups[key] = [span]
            bars.append(groups[key])
    return [_Bar(tuple(bar)) for bar in bars]


def _rings(phases: Iterable[Phase]) -> dict[str, list[Phase]]:
    """Return the phases of each ring of barriers, in the order of their completion."""
    rings: dict[str, list[Phase]] = {}
    for phase in sorted(phases, key=lambda phase: (phase.step, phase.barrier)):
        rings.setdefault(_base(phase.barrier), []).append(phase)
    return rings


def _window(roles: Iterable[_Role], phases: Sequence[Phase], faults: Iterable[Fault]) -> _Window:
    bars = [bar for role in roles for bar in role.bars]
    steps = sorted({bar.begin for bar in bars} | {bar.end for bar in bars} | {phase.step for phase in phases})
    last = _end_of_laps(phases)
    columns = len(steps) if last is None else bisect(steps, last) + 1  # with room for the last slot's name
    window = _Window(steps, max(1, min(columns, len(steps), MOST_COLUMNS)))
    error = next((fault for fault in faults if fault.kind == "error"), None)
    return window if error is None else _around(error, window)


def _around(error: Fault, window: _Window) -> _Window:
    """Return a window that shows an error: the first laps, or else columns before it and a few behind."""
    shown = window.column(error.mark.step)
    if shown < window.columns or not window.elided:
        return window
    margin = window.columns // 8 + 1
    columns = min(max(window.columns, shown - window.column(error.begin) + 2 * margin), MOST_COLUMNS)
    last = min(shown + margin, len(window.steps))
    return _Window(window.steps, columns, max(last - columns, 0))


def _end_of_laps(phases: Iterable[Phase]) -> int | None:
    """Return the step at which the longest ring has come round `LAPS` times, if there is one that does."""
    laps: dict[tuple[int, str], int] = {}
    for ring, completed in _rings(phases).items():
        slots = {_slot(phase.barrier) for phase in completed} - {""}
        ends = [phase.step for phase in completed if phase.number == LAPS - 1]
        if slots and len(ends) >= len(slots):
            laps[len(slots), ring] = max(ends[: len(slots)])
    longest = max((slots for slots, _ in laps), default=0)
    return max((end for (slots, _), end in laps.items() if slots == longest), default=None)


# --- how it is drawn

NOTE = "A column is a step at which something begins or ends: the order is real, the distances are not times."


def _drawn_role(
    role: _Role, lanes: Sequence[Sequence[_Bar]], window: _Window, top: float, faults: Sequence[Fault]
) -> Iterator[str]:
    height = HEADER_HEIGHT + LANE_HEIGHT * len(lanes)
    remark = role.partition if role.function else ""
    if not lanes:
        remark = f"{remark}, idle so far" if remark else "idle so far"
    yield from panel(top, height, role.function or role.partition, remark)
    named = ""
    for number, bars in enumerate(lanes):
        lane_top = top + HEADER_HEIGHT - 4 + LANE_HEIGHT * number
        if bars[0].lane != named:
            named = bars[0].lane
            yield _lane_name(named, lane_top)
        for bar in bars:
            yield from _drawn_bar(bar, window, lane_top, faults)
    shown = [
        fault
        for fault in faults
        if fault.is_here
        and _partition(fault.mark.finding.partition) == role.partition
        and window.shows(fault.mark.step)
    ]
    yield from stepped(shown, window.x, top + 4, top + height - 2)


def _drawn_bar(bar: _Bar, window: _Window, top: float, faults: Sequence[Fault]) -> Iterator[str]:
    left, right = window.x(bar.begin), window.x(bar.end)
    place = (
        f'x="{left + 0.5:.1f}" y="{top + 2:g}" width="{right - left - 1:.1f}" height="{BAR_HEIGHT}" rx="2"'
    )
    yield f'<rect class="{bar.kind}" {place}><title>{markup(bar.tooltip)}</title></rect>'
    room = int((right - left - 6) / (10 * LETTER_WIDTH))
    text = next((text for text in bar.texts if len(text) <= room), "")
    if text:
        yield text_at("inside", left + 4, top + 13.5, text)
    yield from outlined(faults, bar.spans, place, right, top + 4)


def _drawn_barriers(rings: Mapping[str, Sequence[Phase]], window: _Window, top: float) -> Iterator[str]:
    yield from panel(top, HEADER_HEIGHT + LANE_HEIGHT * len(rings), "barriers", "slots whose phase completes")
    for number, (ring, completed) in enumerate(rings.items()):
        lane_top = top + HEADER_HEIGHT - 4 + LANE_HEIGHT * number
        yield _lane_name(ring, lane_top)
        free = 0.0
        for phase in completed:
            x = window.x(phase.step)
            told = f"{phase.barrier}: phase {phase.number} completes"
            tick = f'd="M{x:.1f} {lane_top + 4:g}v12"'
            yield f'<path class="phase" {tick}><title>{markup(told)}</title></path>'
            slot = _slot(phase.barrier)
            if slot and x >= free:
                yield text_at("slot", x + 3, lane_top + 14, slot)
                free = x + 4 + len(slot) * 10 * LETTER_WIDTH


def _lane_name(name: str, top: float) -> str:
    return text_at("lane", MARGIN + 10, top + 14, fitting(name, GUTTER - 18, 11))


def _legend(window: _Window, top: float) -> Iterator[str]:
    x = float(MARGIN)
    for kind, name in _KINDS.items():
        yield f'<rect class="{kind}" x="{x + 0.5:g}" y="{top + 2.5:g}" width="17" height="11" rx="2"/>'
        yield text_at("note", x + 24, top + 12, name)
        x += 24 + len(name) * 11 * LETTER_WIDTH + 16
    yield f'<path class="phase" d="M{x + 4:g} {top + 2:g}v12"/>'
    yield text_at("note", x + 12, top + 12, "a phase of a barrier completes")
    yield text_at("note", MARGIN, top + 32, NOTE)
    if window.told:
        yield text_at("note", MARGIN, top + 48, window.told)
