"""What must be told of a planted fault, and when what is told first is its root cause."""

from __future__ import annotations

from dataclasses import dataclass

from gluonsim import Finding, Kind, Severity


@dataclass(frozen=True)
class Symptom:
    """How a fault shows where it is, and not by what follows from it."""

    kind: str
    """A `Kind` but for wrong numbers."""
    name: str
    """Of the variable; each consumer may have one of its own, with its number. Several, apart by a bar, where
    one operation guards them all."""
    line: str
    """A snippet of the first line of the finding; empty where that says nothing: the last write of a wrong
    number need not be at fault. Several, apart by a bar, where
    each buffer has a line of its own."""
    severity: Severity = Severity.ERROR
    also: tuple[tuple[str, str, str], ...] = ()
    """Kind, name and line of what else the fault is by itself."""

    @property
    def titles(self) -> frozenset[str]:
        """Kind and name, for each variable that it may be about."""
        return frozenset(f"{self.kind} {name}" for name in _variables(self.name))

    def is_named(self, told: Told) -> bool:
        """Whether a finding is this fault, in the line where it is."""
        return told.severity == self.severity and told.fits(self.kind, self.name, self.line)

    def is_cause(self, told: Told) -> bool:
        """Whether a finding, told first, tells the root cause.

        Its line is the one at fault; where the fault is that an operation is missing, comes too late or
        awaits the wrong thing, the line of what is done too early for it, or waits for ever without it. Its
        name is that of the barrier or accumulator that the fault is in, or of a buffer that is guarded by
        it. Its kind is the fault's, or that of the same fault in another lap of a ring: what is read too
        early was never written or is being written, and one who writes too early meets a reader or the
        write before.
        """
        return told.severity == self.severity and any(
            told.fits(kind, name, line)
            for first, name, line in ((self.kind, self.name, self.line), *self.also)
            for kind in next((lap for lap in _LAPS if first in lap), (first,))
        )


@dataclass(frozen=True)
class Told:
    """What a finding says of itself."""

    kind: str
    name: str
    severity: Severity
    line: str
    """The text of its first line; empty where it has none."""

    @classmethod
    def by(cls, finding: Finding) -> Told:
        """Return what a finding says."""
        return cls(finding.kind.value, finding.name, finding.severity, finding.snippet)

    def fits(self, kind: str, names: str, lines: str) -> bool:
        """Whether it is of a kind, about one of some variables, in one of some lines."""
        if self.kind != kind or self.name not in _variables(names):
            return False
        return any(line in self.line for line in lines.split("|"))


def _variables(names: str) -> list[str]:
    return [f"{name}{number}" for name in names.split("|") for number in ("", "_0", "_1", "_2")]


_LAPS = (
    (Kind.UNINITIALISED_READ, Kind.READ_AFTER_WRITE),
    (Kind.WRITE_AFTER_READ, Kind.WRITE_AFTER_WRITE),
)
"""What one fault is in the first lap of a ring and in a later one."""
