"""What a simulated launch showed, for people, for programs, and for the tools of others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from gemmgen import errors
from gemmgen.errors import GemmgenError, Region, Reported
from gluonsim.findings import Finding, Severity, ring_of
from gluonsim.lints.compiler import CompilerReport
from gluonsim.timeline import Trace

PHASES_TO_COVER = 3
"""A ring whose barriers complete fewer phases may hide faults: the third tells a lap from its neighbours."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number of things: ``1 schedule``, ``2 schedules``."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


@dataclass(frozen=True)
class Result:
    """What several schedules of one launch showed."""

    findings: tuple[Finding, ...]
    """Every fault that a schedule showed, each once; empty when the kernel is clean."""
    trace: Trace
    """Timeline of the first program, in the first schedule with an error there, or else the first."""
    phases: Mapping[str, int]
    """For each barrier, the phases that it completed in the busiest program of any schedule: the fewest of
    any CTA, and all of a barrier that is invalidated and initialised again."""
    deterministic: bool
    """True if all schedules left the same bytes in every tensor."""
    kernel: str = ""
    """The kernel's name."""
    grid: tuple[int, int, int] = (1, 1, 1)
    """Programs along each axis."""
    schedules: tuple[str, ...] = ()
    """The policies that were run."""
    performance: tuple[Finding, ...] = ()
    """Loops that lose time: lints that no check counts."""
    compiler: CompilerReport | None = None
    """Registers, spills and notes of ptxas; None if the kernel was not compiled to machine code."""
    programs: int = 1
    """Programs that ran under each schedule: all of the grid, or fewer if only a sample of them ran."""

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Barriers with too few phases for this run to show all faults: use more steps, or fewer programs."""
        return tuple(_uncovered(self.phases))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is no fault, and may hide one or come of one."""
        return tuple(note for notes in notes_by_kernel([self.evidence]).values() for note in notes)

    @property
    def is_sample(self) -> bool:
        """True if only some programs of the grid ran."""
        return self.programs < prod(self.grid)

    @property
    def evidence(self) -> dict[str, Any]:
        """What `notes_by_kernel` takes of a launch: values that JSON can hold.

        Where there is a fault, it is no news that schedules leave different bytes, or that barriers stop.
        """
        faulty = bool(self.errors)
        phases = {} if faulty else dict(self.phases)
        return {
            "kernel": self.kernel,
            "phases": phases,
            "deterministic": faulty or self.deterministic,
            "performance": [
                f"{each.file}:{each.line}: [{each.kind}] {each.text}" for each in self.performance
            ],
        }

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
            "programs": self.programs,
            "sample": self.is_sample,
            "schedules": list(self.schedules),
            "deterministic": self.deterministic,
            "findings": [finding.as_dict() for finding in self.findings],
            "phases": dict(self.phases),
            "uncovered": list(self.uncovered),
            "performance": [finding.as_dict() for finding in self.performance],
            "compiler": self.compiler.as_dict() if self.compiler else None,
        }

    def sarif(self) -> str:
        """Return the findings as a log in SARIF 2.1.0, which code hosts show beside the source."""
        return json.dumps(sarif_log(self.findings), indent=2)

    def chrome_trace(self) -> str:
        """Return the timeline of `trace` as JSON that Perfetto opens."""
        return self.trace.as_json()

    @property
    def headline(self) -> str:
        """What was run, and the number of findings, in a line."""
        schedules, found = counted(len(self.schedules), "schedule"), counted(len(self.findings), "finding")
        ran = f"a sample of {self.programs:,} of its {prod(self.grid):,} programs, " if self.is_sample else ""
        grid = " x ".join(map(str, self.grid))
        return f"{self.kernel}, grid {grid}: {ran}{schedules}, {found}"

    def __str__(self) -> str:
        compiler = [str(self.compiler)] if self.compiler else []
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([self.headline, *map(str, self.findings), *notes, *compiler])


def _uncovered(phases: Mapping[str, int]) -> list[str]:
    return [name for name, completed in phases.items() if completed < PHASES_TO_COVER]


def _notes(phases: Mapping[str, int], *, deterministic: bool) -> Iterator[str]:
    if not deterministic:
        yield "schedules leave different bytes"
    if uncovered := _uncovered(phases):
        rings = ", ".join(dict.fromkeys(ring_of(name) for name in uncovered))
        yield f"faults may hide in barriers with fewer than {PHASES_TO_COVER} phases: {rings}"


def notes_by_kernel(launches: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the notes of several launches by kernel, from each one's `Result.evidence`.

    A barrier that came round in one launch of a kernel is covered.
    """
    phases: dict[str, dict[str, int]] = {}
    deterministic: dict[str, bool] = {}
    slow: dict[str, dict[str, None]] = {}
    for launch in launches:
        kernel: str = launch["kernel"]
        most = phases.setdefault(kernel, {})
        for name, completed in cast("Mapping[str, int]", launch["phases"]).items():
            most[name] = max(completed, most.get(name, 0))
        deterministic[kernel] = deterministic.get(kernel, True) and launch["deterministic"]
        slow.setdefault(kernel, {}).update(dict.fromkeys(launch["performance"]))
    noted = {
        kernel: [*_notes(most, deterministic=deterministic[kernel]), *slow[kernel]]
        for kernel, most in phases.items()
    }
    return {kernel: notes for kernel, notes in noted.items() if notes}


def sarif_log(findings: Iterable[Finding]) -> dict[str, object]:
    """Return a log in SARIF 2.1.0 as a value that JSON can hold; files below this directory are relative."""
    return errors.sarif_log("gemmgen simulate", map(_reported, findings))


def _reported(finding: Finding) -> Reported:
    places = [Region(place.file, place.line, snippet=place.snippet) for place in finding.places]
    severity = "error" if finding.severity is Severity.ERROR else "warning"
    return Reported(finding.kind.value, severity, f"{finding.name}: {finding.text}", places)
