"""What can be wrong with a user's input, as values; no other module formats a diagnostic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]
Value = bool | int | float | str | tuple["Value", ...] | None
"""Of a field of a spec, as YAML has it; None where the field is to be left out."""
Advice = tuple[tuple[str, Value], ...]
"""Fields by dotted paths, each with the value that it is to have; applied together, they end a fault."""


@dataclass(frozen=True)
class Violation:
    """One broken constraint: what was found, the limit that it breaks, and the nearest way to comply."""

    rule: str
    """Id of the rule, e.g. ``smem-capacity``."""
    field: str
    """Dotted path of the spec field to change, e.g. ``buffering.stages``."""
    found: str
    """The offending value with its consequence, in numbers: ``5 stages need 278,752 bytes``."""
    limit: str
    """What the hardware or the compiler allows: ``the limit is 232,448``."""
    fix: str
    """The nearest legal value, as an instruction: ``use at most 4``."""
    advice: Advice = ()
    """The same for a machine: what its first alternative changes."""

    def __str__(self) -> str:
        return f"{self.found}, {self.limit}; {self.fix}"


@dataclass(frozen=True)
class Diagnostic:
    """One message for the user, with the place in the input that it is about.

    Its text form is the one that editors and CI parse: ``path:line:column: error[code] field: message``,
    or ``warning[code]`` where nothing is broken yet.
    """

    path: str
    code: str
    message: str
    field: str | None = None
    line: int | None = None
    """1-based; ``None`` when the problem is the file as a whole."""
    column: int | None = None
    """1-based."""
    severity: Severity = "error"
    advice: Advice = ()
    """What the message advises, for a machine; empty where it advises nothing that one could apply."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)
        subject = f" {self.field}" if self.field else ""
        return f"{place}: {self.severity}[{self.code}]{subject}: {self.message}"


class GemmgenError(Exception):
    """A failure that the user can act on; it always carries at least one diagnostic."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))

    def __reduce__(self) -> tuple[type[GemmgenError], tuple[tuple[Diagnostic, ...]]]:
        # The default would rebuild the error from its text, and the diagnostics would be lost.
        return (GemmgenError, (self.diagnostics,))
