"""Diagnostics for people: the message, the line of the file, and a caret under the place."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from gemmgen.errors import Diagnostic

RED, YELLOW, BOLD, FAINT, PLAIN = "\x1b[1;31m", "\x1b[1;33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
MOST_COLUMNS = 100
"""Characters of a file's line that are shown; a longer line is cut around the place."""


def has_colours(stream: Any) -> bool:
    """Return whether a stream is a terminal that shows colours; NO_COLOR turns them off: https://no-color.org."""
    named = os.environ.get("NO_COLOR", "") or os.environ.get("TERM", "") == "dumb"
    return bool(not named and stream is not None and stream.isatty())


def shown(found: Diagnostic, *, coloured: bool = False) -> str:
    """Return a diagnostic, and below it the line that it is about with a caret under the place."""
    text = str(found)
    strong = RED if found.severity == "error" else YELLOW
    if coloured:
        label = f"{found.severity}[{found.code}]"
        place, _, rest = text.partition(label)
        text = f"{BOLD}{place}{PLAIN}{strong}{label}{PLAIN}{rest}"
    line = line_of(found)
    if line is None or found.line is None or found.column is None:
        return text
    from rich.cells import cell_len

    start = max(0, found.column - 1 - MOST_COLUMNS // 2) if len(line) > MOST_COLUMNS else 0
    part = _visible(line[start : start + MOST_COLUMNS])
    before = _visible(line[start : found.column - 1])
    number, margin = f"{found.line:>5} | ", " " * 5 + " | "
    under = " " * cell_len(before) + "^"
    if coloured:
        number, margin, under = (
            f"{FAINT}{number}{PLAIN}",
            f"{FAINT}{margin}{PLAIN}",
            f"{strong}{under}{PLAIN}",
        )
    return f"{text}\n{number}{part.rstrip()}\n{margin}{under}"


def _visible(text: str) -> str:
    """Return text in which every character can be seen: a terminal would obey some of them."""
    return "".join(letter if letter.isprintable() else " " if letter == "\t" else "\ufffd" for letter in text)


def line_of(found: Diagnostic) -> str | None:
    """Return the line of the file that a diagnostic is about, None if it has no line or no readable file."""
    if found.line is None or found.column is None:
        return None
    from gemmgen.spec.reading import STDIN, stdin_bytes

    try:
        data = stdin_bytes(sys.stdin) if found.path == STDIN else Path(found.path).read_bytes()
    except (OSError, ValueError):
        return None
    lines = re.split("\r\n|\r|\n", data.decode("utf-8-sig", errors="replace"))
    return lines[found.line - 1] if found.line <= len(lines) else None
