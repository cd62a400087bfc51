"""From the path of a spec to its text: the file's name, kind, size and encoding."""

from __future__ import annotations

import re
import stat
import sys
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from gemmgen.spec.diagnostics import Place, Report, did_you_mean, listing

SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 64 * 1024

# Outside the printable characters of YAML 1.2.2, section 5.1; or a second byte order mark; or U+0085, U+2028
# or U+2029, which some editors count as line breaks and YAML does not.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


STDIN = "<stdin>"
"""Name of the spec on stdin in diagnostics."""
STDIN_STEM = "matmul"
"""Name of the module of a spec without a file, and of the one that ``gemmgen init`` writes."""


@lru_cache(maxsize=1)
def stdin_bytes(stream: TextIO | None) -> bytes:
    """Return the bytes of a stream up to one more than a spec's limit; a stream is read only once."""
    return stream.buffer.read(MAX_BYTES + 1) if stream else b""


def read_bytes(path: Path, report: Report) -> bytes:
    """Return the bytes of the file; its kind and size are judged before it is opened. ``-`` is stdin."""
    try:
        if str(path) == "-":
            data = stdin_bytes(sys.stdin)
            if len(data) > MAX_BYTES:
                report.stop("file-size", f"more than {MAX_BYTES:,} bytes, the limit for a spec")
            return data
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            report.stop("file-type", "this is a directory, a spec is a file")
        if not stat.S_ISREG(status.st_mode):
            report.stop("file-type", "this is a pipe, a socket or a device, a spec is a regular file")
        if path.suffix not in SUFFIXES:
            report.stop("file-type", f"the name of a spec ends in {listing(SUFFIXES, 'or')}")
        if status.st_size > MAX_BYTES:
            report.stop("file-size", f"{status.st_size:,} bytes, the limit for a spec is {MAX_BYTES:,}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a path with a NUL
        report.stop("file-missing", f"there is no such file{_similar_file(path)}")
    except OSError as error:
        # `str(error)` would show the path in Python's form.
        report.stop("file-unreadable", f"cannot be read: {error.strerror or type(error).__name__}")
    if len(data) > MAX_BYTES:  # it grew, or its size is not known until it is read
        report.stop("file-size", f"more than {MAX_BYTES:,} bytes, the limit for a spec")
    return data


SIMILAR_STEMS = 0.85
"""How alike two names must be that one is offered for the other. The suffix does not count, which all share;
and specs that lie beside each other differ by a word, so a name that is only related is another spec's."""


def _similar_file(path: Path) -> str:
    try:
        names = {
            entry.stem: entry.name
            for entry in sorted(path.parent.iterdir())
            if entry.suffix in SUFFIXES and entry.exists()  # not a link to nowhere
        }
    except (OSError, ValueError):
        names = {}
    return did_you_mean(path.stem, names, SIMILAR_STEMS)


def decode(data: bytes, report: Report) -> str:
    """Return the text of the file, without the byte order mark that some editors write."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # `error.start` counts from behind the byte order mark.
        before = data.removeprefix(b"\xef\xbb\xbf")[: error.start].decode()
        found = f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
        report.stop("file-encoding", f"{found}; save the file as UTF-8 text", _place_after(before))
    if unprintable := _UNPRINTABLE.search(text):
        found = f"the character U+{ord(unprintable[0]):04X} is not allowed in a spec"
        report.stop("file-encoding", f"{found}; remove it", _place_after(text[: unprintable.start()]))
    if not text.strip():
        report.stop("file-empty", "the file is empty; a spec starts with its title and target")
    return text


def _place_after(text: str) -> Place:
    lines = re.split("\r\n|\r|\n", text)
    return len(lines), len(lines[-1]) + 1
