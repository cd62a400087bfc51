"""The problems of one spec file: their codes, their places, and the report that collects them."""

from __future__ import annotations

from typing import Literal, NoReturn, TypeAlias

from gemmgen.errors import Diagnostic, GemmgenError

Place: TypeAlias = tuple[int, int]
"""Line and column, both 1-based."""
Code = Literal[
    "duplicate-key",
    "file-empty",
    "file-encoding",
    "file-missing",
    "file-size",
    "file-type",
    "file-unreadable",
    "missing-field",
    "module-name",
    "not-a-choice",
    "out-of-range",
    "title",
    "unknown-key",
    "wrong-length",
    "wrong-type",
    "yaml-depth",
    "yaml-feature",
    "yaml-syntax",
]
"""Every diagnostic that a spec file can get before the planner sees it."""


class Report:
    """The diagnostics of one file, as they are found."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._diagnostics: list[Diagnostic] = []

    def add(self, code: Code, message: str, place: Place | None = None, field: str | None = None) -> None:
        """Note a problem, and go on."""
        line, column = place or (None, None)
        self._diagnostics.append(Diagnostic(self._path, code, message, field, line, column))

    def stop(self, code: Code, message: str, place: Place | None = None) -> NoReturn:
        """Raise everything found so far, this problem last: nothing behind it can be judged."""
        self.add(code, message, place)
        raise self.error() from None

    def error(self) -> GemmgenError:
        """Return everything found so far, in the order of the file."""
        return GemmgenError(sorted(self._diagnostics, key=lambda found: (found.line or 0, found.column or 0)))

    def __bool__(self) -> bool:
        return bool(self._diagnostics)
