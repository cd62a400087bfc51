"""Faults of a user's input as values, and in the forms that other tools read.

No other module formats a diagnostic; ``gemmgen.cli.reporting`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gemmgen import __version__
from gemmgen.literals import visible

Severity = Literal["error", "warning"]
Value = bool | int | float | str | tuple["Value", ...] | None
"""The value of a spec's field, as YAML has it; None to leave the field out."""
Advice = tuple[tuple[str, Value], ...]
"""Fields by dotted paths, each with the value that it is to have; applied together, they end a fault."""


Bound = Literal["exactly", "at most", "at least"]
"""Which values mend a fault: the one that an assignment names, or also all lower or all higher ones."""


@dataclass(frozen=True)
class Assignment:
    """A field of a spec, and a value that it is to have."""

    field: str
    """Dotted path: ``tile.n``."""
    value: Value
    """None to leave the field out. A machine can assign it whatever the bound is."""
    bound: Bound = "exactly"
    note: str = ""
    """A consequence of the value for the user: ``B stored as [N, K]``."""


@dataclass(frozen=True)
class Diagnostic:
    """One message for the user, with the place in the input that it is about.

    Its text form is the one that editors and CI parse: ``path:line:column: error[code] field: message``,
    or ``warning[code]`` if nothing is broken yet. It is one line without control characters, because
    paths and messages quote users and files.
    """

    path: str
    """The file that the message is about; empty if it is about this machine and no file."""
    code: str
    message: str
    field: str | None = None
    line: int | None = None
    """1-based; ``None`` when the problem is the file as a whole."""
    column: int | None = None
    """1-based."""
    severity: Severity = "error"
    advice: Advice = ()
    """The advice of the message, for a machine; empty if none of it can be applied."""
    fix: tuple[tuple[Assignment, ...], ...] = ()
    """The alternatives that the message names, as data; those that are only words are left out."""

    def __str__(self) -> str:
        place = ":".join(
            str(part) for part in (self.path or None, self.line, self.column) if part is not None
        )
        before = f"{place}: " if place else ""
        subject = f" {self.field}" if self.field else ""
        return visible(f"{before}{self.severity}[{self.code}]{subject}: {self.message}")

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold; every key is always there."""
        return asdict(self)

    def as_github(self) -> str:
        """Return the command that makes GitHub Actions show the message at its line of a pull request."""
        place = {"file": self.path or None, "line": self.line, "col": self.column, "title": f"{self.code}"}
        properties = ",".join(
            f"{name}={_escaped(str(value), _PROPERTY)}" for name, value in place.items() if value is not None
        )
        text = f"{self.field}: {self.message}" if self.field else self.message
        return visible(f"::{self.severity} {properties}::{_escaped(text, _DATA)}")


_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}
"""The escapes of GitHub's workflow commands, in a message and in a property."""


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(character, character) for character in text)


class GemmgenError(Exception):
    """A failure that the user can act on, with at least one diagnostic."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))

    def __reduce__(self) -> tuple[type[GemmgenError], tuple[tuple[Diagnostic, ...]]]:
        # The default would rebuild the error from its text, and the diagnostics would be lost.
        return (GemmgenError, (self.diagnostics,))


# --- missing packages


def install_advice(extra: str) -> str:
    """Return how to install an extra of pyproject.toml, as the end of a message.

    The command needs a checkout: gemmgen is on no package index, so nobody may be told to install it by name,
    which would run the code of whoever registers that name.
    """
    return f"run `pip install '.[{extra}]'` in a checkout of gemmgen"


# --- SARIF

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class Region:
    """A place in a file, as SARIF has it."""

    file: str
    line: int | None
    """1-based; None for the file as a whole."""
    column: int | None = None
    """1-based."""
    snippet: str = ""
    """The line's text, empty where it is not told."""

    def as_sarif(self) -> dict[str, object]:
        """Return a location; files below this directory are relative to it."""
        path, here = Path(self.file).resolve(), Path.cwd()
        uri = path.relative_to(here).as_posix() if path.is_relative_to(here) else path.as_uri()
        physical: dict[str, object] = {"artifactLocation": {"uri": uri}}
        if self.line is not None:
            region: dict[str, object] = {"startLine": self.line}
            if self.column is not None:
                region["startColumn"] = self.column
            if self.snippet:
                region["snippet"] = {"text": self.snippet}
            physical["region"] = region
        return {"physicalLocation": physical}


@dataclass(frozen=True)
class Reported:
    """A result of a SARIF log."""

    rule: str
    severity: Severity
    text: str
    places: Sequence[Region]
    """The place of the fault, then others that have to do with it."""


def sarif_log(
    tool: str, reported: Iterable[Reported], says: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Return a log in SARIF 2.1.0 as a value that JSON can hold.

    `says` has a sentence for rules that have one; the others are described by their names.
    """
    reported = tuple(reported)
    rules = list(dict.fromkeys(found.rule for found in reported))
    results: list[dict[str, object]] = []
    for found in reported:
        result: dict[str, object] = {
            "ruleId": found.rule,
            "ruleIndex": rules.index(found.rule),
            "level": found.severity,
            "message": {"text": found.text},
        }
        locations = [place.as_sarif() for place in dict.fromkeys(found.places)]
        if locations:
            result["locations"] = locations[:1]
            result["relatedLocations"] = locations[1:]
        results.append(result)
    described = [
        {"id": rule, "shortDescription": {"text": (says or {}).get(rule) or rule.replace("-", " ")}}
        for rule in rules
    ]
    driver = {"name": tool, "version": __version__, "rules": described}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
