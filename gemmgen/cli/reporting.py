"""Output of the command line: results, diagnostics, JSON and SARIF.

Results go to stdout (`say`), progress and diagnostics to stderr (`tell`). Text that comes from users and
files is shown with escapes for control characters. A diagnostic is one line that editors parse, and
below it the line of the file that it is about. With ``--json`` stdout has one object, whatever happened:
``{"diagnostics": [...], "results": ...}``.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

import typer

from gemmgen.cli.excerpt import has_colours, line_of, shown
from gemmgen.errors import Diagnostic, GemmgenError, Region, Reported, sarif_log
from gemmgen.literals import visible

if TYPE_CHECKING:
    from rich.table import Table

MOST_SHOWN = 20
"""Diagnostics of one file that are printed; the others are counted."""
Form = Literal["text", "github"]
"""Form of the diagnostics on stderr."""
FORMS: tuple[Form, ...] = ("text", "github")


STATES = {
    "missing": "A generated file is not there.",
    "stale": "A generated file is not what its spec and this version of gemmgen generate.",
    "hand-edited": "A generated module differs from the one that its manifest was written with.",
    "orphaned": "A generated file has no spec.",
    "no-specs": "There is no spec to check.",
    "foreign-file": "A file that gemmgen did not write stands where it would write one.",
    "cannot-write": "A file cannot be written.",
    "cannot-read": "A file cannot be read.",
    "out-of-memory": "The memory of the GPU does not suffice.",
}
"""Summaries of the codes that are no rules of a spec, for SARIF."""


@dataclass
class Run:
    """State of one run of the command line: its options, results and diagnostics."""

    as_json: bool = False
    form: Form = "text"
    sarif: Path | None = None
    results: object = None
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def begin(self, *, as_json: bool) -> None:
        """Reset the state that an earlier run of this process left."""
        self.as_json, self.form, self.sarif, self.results, self.diagnostics = as_json, "text", None, None, []


RUN = Run()
"""The one run of this process at a time."""


# --- the end of a run


def print_report() -> None:
    """Print the one object that stdout has with ``--json``."""
    told = {"diagnostics": [found.as_dict() for found in RUN.diagnostics], "results": RUN.results}
    print(json.dumps(told, indent=2))


def write_sarif() -> None:
    """Write the log of diagnostics, if the run is asked for one."""
    if RUN.sarif:
        from gemmgen.cli.explanations import explanations

        reported = [
            Reported(found.code, found.severity, _text(found), [_region(found)] if found.path else [])
            for found in RUN.diagnostics
        ]
        says = STATES | {code: entry.summary for code, entry in explanations().items()}
        write(RUN.sarif, json.dumps(sarif_log("gemmgen", reported, says), indent=2) + "\n")


def _text(found: Diagnostic) -> str:
    return f"{found.field}: {found.message}" if found.field else found.message


def _region(found: Diagnostic) -> Region:
    return Region(found.path, found.line, found.column, line_of(found) or "")


# --- output of commands


def say(*values: object, end: str = "\n") -> None:
    """Print results to stdout."""
    print(visible(" ".join(map(str, values)), lines=True), end=end)


def tell(text: str) -> None:
    """Print one line to stderr, at once."""
    _write_line(visible(text))


def _write_line(line: str) -> None:
    """Write a line to stderr with one call: `print` takes two, between which another thread can write."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def say_tables(tables: Iterable[Table], columns: int) -> None:
    """Print tables to stdout, in the width of its terminal, or of `columns` characters without one.

    Cells must have their control characters escaped: the table itself uses colours.
    """
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else columns, emoji=False)
    for table in tables:
        console.print(table)


def tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of the cache as a diagnostic, and one of another library as Python does."""
    from gemmgen.cache import CacheWarning

    if isinstance(message, CacheWarning):
        complain(GemmgenError([message.diagnostic]))
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(visible(text, lines=True), file=file or sys.stderr, end="")


def choose(form: str, sarif: Path | None) -> None:
    """Set the form of diagnostics on stderr and the file of the SARIF log, which is written at the end."""
    if form not in FORMS:
        raise typer.BadParameter(f"{form}: choose among {', '.join(FORMS)}", param_hint="--format")
    RUN.form, RUN.sarif = form, sarif


def print_json(results: object) -> None:
    """Set the results of the run's JSON."""
    RUN.results = results


def complain(error: GemmgenError) -> None:
    """Print diagnostics to stderr, at most `MOST_SHOWN` for each file; JSON and SARIF have all."""
    RUN.diagnostics.extend(error.diagnostics)
    told: Counter[str] = Counter()
    coloured = has_colours(sys.stderr)
    with suppress(OSError):  # nobody can be told that stderr is full
        for found in error.diagnostics:
            told[found.path] += 1
            if RUN.form == "github":
                _write_line(found.as_github())
            elif told[found.path] <= MOST_SHOWN:
                _write_line(shown(found, coloured=coloured))
        for path, count in told.items() if RUN.form == "text" else ():
            if count > MOST_SHOWN:
                rest = f"{count - MOST_SHOWN:,} of {count:,} diagnostics are not shown; --json has them all"
                tell(f"{path}: note: {rest}")


def end(failed: bool | int) -> None:
    """End a command: with 1 if it failed, or with the exit code that is given."""
    if failed:
        raise typer.Exit(int(failed))


def unwritable(path: Path, *, folder: bool = False) -> str | None:
    """Return why a file cannot be written, as far as can be seen before it is; None if it can.

    With `folder`, an existing directory is accepted too.
    """
    try:
        if path.is_dir():
            return None if folder else f"{path} is a directory"
        if not path.parent.is_dir():
            return f"there is no directory {path.parent}"
        path.exists()  # which a name that is too long cannot
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None if os.access(path.parent, os.W_OK) else f"no file can be written in {path.parent}"


def write(path: Path, text: str) -> None:
    """Write a regular file as a whole or not at all; a pipe or a device is written as a stream.

    Raises:
        GemmgenError: It cannot be written (``cannot-write``).
    """
    from gemmgen.product import write_files

    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8")
            return
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path.parent.as_posix())
        place = path.resolve() if path.is_symlink() else path  # the link stays, its target is written
    except OSError as error:
        message = f"cannot write: {error.strerror or error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "cannot-write", message)]) from error
    write_files({place: text.encode()})
