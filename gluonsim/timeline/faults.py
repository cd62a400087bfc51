"""Findings in the picture of a pipeline: the number of each stands at its bars, its step and its text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gemmgen.drawing import LETTER_WIDTH, MARGIN, NOTE_HEIGHT, WIDTH, text_at
from gemmgen.literals import markup
from gluonsim.findings import Finding, Severity
from gluonsim.timeline.trace import Mark, Span

STYLE = """
  .error { stroke: #cf222e }
  .lint { stroke: #9a6700 }
  .error, .lint { stroke-width: 2.5; fill: none; pointer-events: all }
  line.error, line.lint { stroke-width: 1.5; stroke-dasharray: 4 2 }
  .error-number { fill: #cf222e }
  .lint-number { fill: #9a6700 }
  .number { font-size: 9px; font-weight: 600; fill: #ffffff; text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    .error { stroke: #ff7b72 }
    .lint { stroke: #d29922 }
    .number { fill: #ffffff }
  }
"""
"""Rules for the marks, which only a picture with findings has."""

_TEXT_LEFT = MARGIN + 24
"""Left end of the texts of findings, behind their numbers."""


MOST_OTHERS = 4
"""Most findings without a mark that are listed: reports have all of them."""


@dataclass(frozen=True)
class Fault:
    """A finding with a number, and its place in the timeline of a CTA."""

    number: int
    mark: Mark
    spans: frozenset[Span]
    """The accesses that it names."""
    is_here: bool
    """True if a partition of this CTA shows it."""

    @property
    def kind(self) -> str:
        """The class of its marks."""
        return "lint" if self.mark.finding.severity is Severity.LINT else "error"

    @property
    def begin(self) -> int:
        """The step at which the first of its accesses begins."""
        return min([self.mark.step, *(span.begin for span in self.spans)])


def faults_of(marks: Iterable[Mark], spans: Sequence[Span], cta: int) -> tuple[Fault, ...]:
    """Return the findings that lie in the timeline of a CTA, in the order of their steps."""
    faults: list[Fault] = []
    for mark in sorted(marks, key=lambda mark: mark.step):
        named = frozenset(_spans_of(mark, spans))
        is_here = mark.finding.cta == cta
        if named or is_here:
            faults.append(Fault(len(faults) + 1, mark, named, is_here))
    return tuple(faults)


def _spans_of(mark: Mark, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the accesses that a finding is about, or else the newest work of its partition in each line."""
    if mark.works:
        yield from (span for span in spans if not set(mark.works).isdisjoint(span.works))
        return
    for line in mark.finding.lines:
        of_line = [
            span
            for span in spans
            if span.line == line and span.begin <= mark.step and span.row.startswith(mark.finding.partition)
        ]
        if of_line:
            yield max(of_line, key=lambda span: span.begin)


def outlined(
    faults: Iterable[Fault], spans: Iterable[Span], place: str, right: float, top: float
) -> list[str]:
    """Return the marks of a bar: an outline with the titles of its faults, and their numbers.

    Args:
        faults: All faults of the timeline.
        spans: The spans of the bar.
        place: Attributes of its rectangle.
        right: Its right end in pixels.
        top: The top of the numbers in pixels.
    """
    shown = set(spans)
    of_bar = [fault for fault in faults if not shown.isdisjoint(fault.spans)]
    if not of_bar:
        return []
    outline = f'<rect class="{_kind(of_bar)}" {place}><title>{_titles(of_bar)}</title></rect>'
    return [outline, *_numbers(of_bar, right - _numbers_width(of_bar), top)]


def stepped(faults: Iterable[Fault], x: Callable[[int], float], top: float, bottom: float) -> Iterator[str]:
    """Yield a line at each step that shows faults, from the top of their partition's panel to the bottom.

    Args:
        faults: Faults that one partition shows.
        x: Returns the pixels of a step.
        top: The top of the lines in pixels.
        bottom: The end of the lines in pixels.
    """
    free = 0.0
    for step, grouped in groupby(faults, key=lambda fault: fault.mark.step):
        of_step = list(grouped)
        here = f'x1="{x(step):.1f}" y1="{top:g}" x2="{x(step):.1f}" y2="{bottom:g}"'
        yield f'<line class="{_kind(of_step)}" {here}><title>{_titles(of_step)}</title></line>'
        left = max(free, x(step) - _numbers_width(of_step) / 2)
        yield from _numbers(of_step, left, top)
        free = left + _numbers_width(of_step) + 1


def listed(faults: Sequence[Fault], findings: Iterable[Finding], top: float) -> tuple[list[str], float]:
    """Return a line of text for each finding, and the height that they take.

    Findings of other schedules, programs and CTAs follow, without a number.
    """
    known = {fault.mark.finding.key for fault in faults}
    others = [finding for finding in findings if finding.key not in known]
    lines: list[str] = []
    y = top
    for fault in faults:
        lines += _numbers([fault], MARGIN, y)
        y += _add(lines, _texts(fault.mark.finding), y)
    for finding in others[:MOST_OTHERS]:
        y += _add(lines, _texts(finding, "not in this timeline: "), y)
    if len(others) > MOST_OTHERS:
        y += _add(lines, [f"{len(others) - MOST_OTHERS} more findings are not in this timeline."], y)
    return lines, y - top + 4 if lines else 0


def _add(lines: list[str], texts: Sequence[str], top: float) -> float:
    """Add lines of text, and return the height that they take."""
    lines += [text_at("note", _TEXT_LEFT, top + 10 + NOTE_HEIGHT * i, text) for i, text in enumerate(texts)]
    return NOTE_HEIGHT * len(texts)


def _texts(finding: Finding, before: str = "") -> list[str]:
    """Return a finding and its place, as lines of the width of the picture."""
    place = f"{Path(finding.file).name}:{finding.line}: " if finding.file else ""
    most = int((WIDTH - MARGIN - _TEXT_LEFT) / (11 * LETTER_WIDTH))
    return textwrap.wrap(f"{before}{place}{finding.title}", most)


def _kind(faults: Iterable[Fault]) -> str:
    """Return the class of a mark of several faults."""
    return "error" if any(fault.kind == "error" for fault in faults) else "lint"


def _titles(faults: Iterable[Fault]) -> str:
    return markup("\n".join(fault.mark.finding.title for fault in faults))


def _text_of(faults: Iterable[Fault]) -> str:
    return ",".join(str(fault.number) for fault in faults)


def _numbers_width(faults: Sequence[Fault]) -> float:
    return 7 + len(_text_of(faults)) * 9 * LETTER_WIDTH


def _numbers(faults: Sequence[Fault], left: float, top: float) -> Iterator[str]:
    """Yield the numbers of faults on a ground of their colour."""
    width = _numbers_width(faults)
    size = f'x="{left:.1f}" y="{top:g}" width="{width:.1f}" height="12" rx="6"'
    yield f'<rect class="{_kind(faults)}-number" {size}/>'
    yield text_at("number", left + width / 2, top + 9, _text_of(faults))
