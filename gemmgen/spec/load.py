"""From a YAML file to a validated spec that knows the line and column of each of its values.

Four steps: the file's name and bytes, its text, its YAML (``compose``), its fields (``explain`` where they
are wrong). A step that cannot go on stops the load; every other problem is
collected, so that one run shows them all. A diagnostic's `field` always exists in the model; whatever else a
user wrote is quoted in the message.
"""

from __future__ import annotations

import hashlib
import keyword
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gemmgen.errors import Diagnostic, Violation
from gemmgen.spec.compose import compose
from gemmgen.spec.diagnostics import Node, Place, Report, did_you_mean, fields, listing, quoted
from gemmgen.spec.explain import explain
from gemmgen.spec.model import Spec

SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 64 * 1024

# A generated module stands where other modules are imported from: it must not hide one that
# Python, pytest or the kernel itself imports.
_TAKEN_NAMES = sys.stdlib_module_names | {
    "conftest",
    "gemmgen",
    "numpy",
    "sitecustomize",
    "torch",
    "triton",
    "usercustomize",
}

# Outside the printable characters of YAML 1.2.2, section 5.1; or a second byte order mark; or U+0085, U+2028
# or U+2029, which some editors count as line breaks and YAML does not.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def read_bytes(path: Path, report: Report) -> bytes:
    """Return the bytes of the file; its kind and size are judged before it is opened."""
    try:
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
            entry.stem: entry.name for entry in sorted(path.parent.iterdir()) if entry.suffix in SUFFIXES
        }
    except (OSError, ValueError):
        names = {}
    return did_you_mean(path.stem, names, SIMILAR_STEMS)


def check_module_name(path: Path, report: Report) -> None:
    """Report a stem that Python could not import, or that would stand in another module's way."""
    problem = module_name_problem(path.stem)
    if not problem:
        return
    fixed = re.sub("[^A-Za-z0-9]+", "_", path.stem).strip("_")
    if module_name_problem(fixed):
        fixed = f"matmul_{fixed}".rstrip("_")
    report.add(
        "module-name",
        f"the file's name is the generated module's, and {quoted(path.stem)} {problem};"
        f" rename it, e.g. to {fixed}{path.suffix}",
    )


def module_name_problem(name: str) -> str | None:
    """Return why a module should not have this name: Python cannot import it, or would miss another one."""
    # `match` and other soft keywords can be imported; which words are soft depends on Python's version.
    if not (name.isascii() and name.isidentifier()):
        return "is not made of ASCII letters, digits and underscores with no digit first"
    if keyword.iskeyword(name):
        return "is a keyword of Python"
    if name in _TAKEN_NAMES or name.startswith("__"):
        return "would shadow a module that Python or the kernel imports"
    return None


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


@dataclass(frozen=True)
class SpecFile:
    """A valid spec together with the file that it came from."""

    spec: Spec
    path: str
    """As the user gave it, with forward slashes."""
    stem: str
    """The name of the module to generate."""
    sha256: str
    """Of the file's bytes, in hexadecimal."""
    positions: Mapping[str, Place]
    """Where each value starts; a list's items are fields too: ``check.shapes.0.2``."""
    key_positions: Mapping[str, Place]
    """Where each field starts: its key, or the value itself for a list's item."""

    def locate(self, field: str) -> Place | tuple[None, None]:
        """Return the place of a field's value.

        A field that the user left out is at the key of the nearest section that would hold it, or at the
        start of the file; only the empty field name, the file as a whole, has no place.
        """
        if not field:
            return None, None
        if field in self.positions:
            return self.positions[field]
        while field := field.rpartition(".")[0]:
            if field in self.key_positions:
                return self.key_positions[field]
        return 1, 1

    def diagnose(self, violation: Violation) -> Diagnostic:
        """Return the message for a violation of a rule, at the line that has to change."""
        line, column = self.locate(violation.field)
        return Diagnostic(
            path=self.path,
            code=violation.rule,
            message=str(violation),
            field=violation.field or None,
            line=line,
            column=column,
        )


def load_spec(path: Path) -> SpecFile:
    """Return the spec in a YAML file, with the place of each value.

    Raises GemmgenError with one diagnostic per bad field, in the order of the file.
    """
    report = Report(path.as_posix())
    data = read_bytes(path, report)
    check_module_name(path, report)
    root = compose(decode(data, report), report)
    spec = _validate(root, report)
    places = dict(fields(root, ()))
    return SpecFile(
        spec=spec,
        path=path.as_posix(),
        stem=path.stem,
        sha256=hashlib.sha256(data).hexdigest(),
        positions={field: node.place for field, node in places.items()},
        key_positions={field: node.key_place for field, node in places.items()},
    )


def _validate(root: Node, report: Report) -> Spec:
    """Return the spec that a tree says, unless anything was reported on the way."""
    try:
        spec = Spec.model_validate(root.plain())
    except ValidationError as error:
        explain(error, root, report)
        raise report.error() from None
    if report:
        raise report.error()
    return spec
