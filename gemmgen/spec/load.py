"""From a YAML file to a validated spec that knows the line and column of each of its values.

Four steps: the file's name and bytes, its text, its YAML (``compose``), its fields (``explain`` if they are
wrong). A step that cannot go on stops the load; every other problem is collected, so that one run shows them
all. A diagnostic's `field` always exists in the model; whatever else a user wrote is quoted in the message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import Matmul, Request
from gemmgen.problem.contest import Contest, description_of
from gemmgen.spec.diagnostics import Code, Location, Node, Place, Report, compose, fields
from gemmgen.spec.mistakes import explain
from gemmgen.spec.model import Spec
from gemmgen.spec.module_names import stem_problem
from gemmgen.spec.reading import STDIN, STDIN_STEM, decode, read_bytes
from gemmgen.spec.request import request_of
from gemmgen.spec.spelling import GONE, RENAMED


@dataclass(frozen=True)
class SpecFile:
    """A valid spec together with the file that it came from."""

    spec: Spec
    path: str
    """As the user gave it, with forward slashes; ``<stdin>`` for ``-``."""
    stem: str
    """The name of the module to generate."""
    sha256: str
    """SHA-256 of the file's bytes, in hexadecimal."""
    positions: Mapping[str, Place]
    """Where each value starts; a list's items are fields too: ``check.shapes.0.2``."""
    key_positions: Mapping[str, Place]
    """Where each field starts: its key, or the value itself for a list's item."""

    @classmethod
    def of(cls, spec: Spec) -> SpecFile:
        """Return a spec that was made by a program: diagnostics call it by its title, at its first line."""
        return cls(spec, path=spec.title, stem="", sha256="", positions={}, key_positions={})

    @cached_property
    def request(self) -> Request:
        """The request of the spec: the matmul, its sizes and the GPU."""
        return request_of(self.spec)

    @property
    def name(self) -> str:
        """The file's name in generated texts; one after the module if no module can have the file's name."""
        path = Path(self.path)
        return path.name if self.path == STDIN or path.stem == self.stem else f"{self.stem}{path.suffix}"

    @property
    def problem(self) -> Matmul:
        """The matmul of the spec."""
        return self.request.matmul

    @property
    def promote_k(self) -> int | None:
        """The K after which the spec has sums promoted to fp32; None if it states none.

        Sums that have a scale for each block of K are promoted in any case, and it is None for them.
        """
        return None if self.problem.scaled_k else self.spec.mma.promote_k

    @cached_property
    def contest(self) -> Contest:
        """The identity of the kernels that can be timed against its own."""
        return Contest.of(self.problem, promoted=bool(self.promote_k))

    @property
    def description(self) -> str:
        """The problem in few words, for people."""
        return description_of(self.request, promoted=bool(self.promote_k))

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


class SpecError(GemmgenError):
    """Mistakes in a spec file that leave a spec which can be planned, so that its rules can be judged too."""

    def __init__(self, diagnostics: Iterable[Diagnostic], usable: SpecFile) -> None:
        super().__init__(diagnostics)
        self.usable = usable
        """The spec without its unknown keys, under the name that the file has."""

    def with_others(self, found: Iterable[Diagnostic]) -> GemmgenError:
        """Return these mistakes and others of the same file as one error, in the order of the file."""
        every = (*self.diagnostics, *found)
        return GemmgenError(sorted(every, key=lambda each: (each.line or 0, each.column or 0)))


def load_spec(path: Path) -> SpecFile:
    """Return the spec in a YAML file, or with ``-`` on stdin, with the place of each value.

    Raises GemmgenError with one diagnostic per bad field, in the order of the file; it is a SpecError
    if the file still has a spec that can be planned.
    """
    given = str(path) == "-"
    name, stem = (STDIN, STDIN_STEM) if given else (path.as_posix(), path.stem)
    report = Report(name)
    data = read_bytes(path, report)
    if not given and (problem := stem_problem(path)):
        report.add(*problem)
    return _accepted(_parse(data, name, stem, report), report)


def parse_spec(data: bytes, stem: str) -> SpecFile:
    """Return the spec in the bytes of a file of this stem, which need not be there.

    Raises GemmgenError as ``load_spec`` does.
    """
    name = f"{stem}.yaml"
    report = Report(name)
    return _accepted(_parse(data, name, stem, report), report)


def parse_recorded(text: str, stem: str) -> SpecFile:
    """Return the spec of a kernel in a record, without fields that left and say nothing of it (`GONE`).

    Raises GemmgenError as ``load_spec`` does.
    """
    name = f"{stem}.yaml"
    report = Report(name)
    return _accepted(_parse(text.encode(), name, stem, report, recorded=True), report)


def _parse(data: bytes, name: str, stem: str, report: Report, *, recorded: bool = False) -> SpecFile:
    root = compose(decode(data, report), report)
    spec = _validate(root, report, GONE if recorded else {})
    places = dict(fields(root, ()))
    for renamed in RENAMED:  # diagnostics name the field of today, wherever the file has it
        for earlier, path in (
            (renamed.earlier, renamed.path),
            (f"search.{renamed.earlier}", f"search.{renamed.path}"),
        ):
            if earlier in places:
                places[path] = places[earlier]
    return SpecFile(
        spec=spec,
        path=name,
        stem=stem,
        sha256=hashlib.sha256(data).hexdigest(),
        positions={field: node.place for field, node in places.items()},
        key_positions={field: node.key_place for field, node in places.items()},
    )


def _accepted(source: SpecFile, report: Report) -> SpecFile:
    """Return a spec, or raise SpecError if a mistake was reported."""
    if report:
        raise SpecError(report.error().diagnostics, source)
    return source


PLANNABLE: tuple[Code, ...] = ("module-name", "unknown-key", "duplicate-key")
"""Codes of mistakes beside which the rest of a spec still means what its user wanted."""


def _validate(root: Node, report: Report, gone: Mapping[str, str]) -> Spec:
    """Return the spec that a tree says, without its unknown keys and without `gone` values of fields.

    Raises GemmgenError with everything that was reported, unless each problem leaves a spec to plan.
    """
    data = root.plain()
    for path, value in gone.items():
        location = tuple(path.split("."))
        if root.descend(location)[-1].value == value:
            _remove(data, location)
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        explain(error, root, report)
        for detail in error.errors(include_url=False, include_input=False):
            if detail["type"] == "extra_forbidden":
                _remove(data, detail["loc"])
        try:
            spec = Spec.model_validate(data)
        except ValidationError:
            raise report.error() from None
    if not report.only(PLANNABLE):
        raise report.error()
    return spec


def _remove(data: Any, location: Location) -> None:
    """Remove a key from nested mappings and lists."""
    *section, key = location
    with suppress(LookupError, TypeError):  # a location can name a type that the value might have had
        for step in section:
            data = data[step]
        del data[key]
