"""From a YAML file to a validated spec that knows the line and column of each of its values.

Four steps: the file's name and bytes, its text (both in ``file``), its YAML (``compose``), its fields (here,
and ``explain`` where they are wrong). A step that cannot go on stops the load; every other problem is
collected, so that one run shows them all. A diagnostic's `field` always exists in the model; whatever else a
user wrote is quoted in the message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gemmgen.errors import Diagnostic, Violation
from gemmgen.spec.compose import compose
from gemmgen.spec.explain import explain
from gemmgen.spec.file import check_module_name, decode, read_bytes
from gemmgen.spec.model import Spec
from gemmgen.spec.report import Place, Report
from gemmgen.spec.tree import Node, fields


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
