"""The file of a suite: families of shapes to time kernels on, in YAML as specs have it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from gemmgen.files import read_bytes
from gemmgen.hardware import DTYPES
from gemmgen.problem import Shape
from gemmgen.spec.diagnostics import (
    Node,
    Report,
    compose,
    describe,
    did_you_mean,
    listing,
    quoted,
)

MAX_BYTES: Final = 64 * 1024
LARGEST: Final = 2**31 - 1
"""Largest extent."""
KEYS: Final = ("title", "source", "dtypes", "m", "families")
FAMILY_KEYS: Final = ("dtypes", "m", "nk", "shapes")


@dataclass(frozen=True)
class ShapeFamily:
    """Named shapes [M, N, K], with the types of A for which they are timed."""

    name: str
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Suite:
    """Content of a suite's file."""

    path: str
    """Path as the user gave it."""
    sha256: str
    """SHA-256 of the file's bytes."""
    title: str
    families: tuple[ShapeFamily, ...]

    def shapes(self, dtype: str, extents: range) -> dict[Shape, tuple[str, ...]]:
        """Return the shapes for operands of a type whose M is in a range, with the families of each."""
        found: dict[Shape, tuple[str, ...]] = {}
        for family in self.families:
            for shape in family.shapes if dtype in family.dtypes else ():
                if shape[0] in extents:
                    found[shape] = (*found.get(shape, ()), family.name)
        return found


def load_suite(path: Path) -> Suite:
    """Return the suite in a YAML file.

    Raises GemmgenError with a diagnostic for each thing that is wrong, at its line.
    """
    report = Report(path.as_posix(), noun="suite", begins="has `families`")
    try:
        data = read_bytes(path)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        report.stop("file-missing", "there is no such file")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        report.stop("file-unreadable", f"cannot be read: {reason}")
    if len(data) > MAX_BYTES:
        report.stop("file-size", f"{len(data):,} bytes, the limit for a suite is {MAX_BYTES:,}")
    if not text.strip():
        report.stop("file-empty", f"the file is empty; a {report.noun} {report.begins}")
    reader = _SuiteReader(report)
    suite = reader.suite(compose(text, report), path.as_posix(), hashlib.sha256(data).hexdigest())
    if report:
        raise report.error()
    return suite


@dataclass(frozen=True)
class _SuiteReader:
    """Reads the tree of a suite, and reports its faults."""

    report: Report

    def suite(self, root: Node, path: str, sha256: str) -> Suite:
        members = self._members(root, "", KEYS, required=("title", "families"))
        dtypes = self._dtypes(members.get("dtypes"), "dtypes")
        extents = self._extents(members.get("m"), "m")
        families: list[ShapeFamily] = []
        node = members.get("families")
        if node and self._is(node, dict, "families", "a mapping of names to families"):
            named = cast("dict[str, Node]", node.value)
            if not named:
                self.report.add("wrong-length", "there is no family in it", node.place, "families")
            families = [self._family(each, name, dtypes, extents) for name, each in named.items()]
        self._text(members.get("source"), "source")
        title = self._text(members.get("title"), "title")
        return Suite(path, sha256, title, tuple(families))

    def _family(
        self, node: Node, name: str, dtypes: tuple[str, ...], extents: tuple[int, ...]
    ) -> ShapeFamily:
        where = f"families.{name}"
        members = self._members(node, where, FAMILY_KEYS)
        dtypes = self._dtypes(members.get("dtypes"), f"{where}.dtypes") or dtypes
        extents = self._extents(members.get("m"), f"{where}.m") or extents
        shapes = [cast("Shape", tuple(row)) for row in self._rows(members, where, "shapes", "MNK")]
        layers = self._rows(members, where, "nk", "NK")
        shapes += [(m, n, k) for n, k in layers for m in extents]
        if members.keys() <= {"dtypes", "m"} and isinstance(node.value, dict):
            self.report.add("missing-field", "has neither `shapes` nor `nk`", node.key_place, where)
        if "nk" in members and not extents:
            message = "needs `m`, a list of M, here or at the top of the file"
            self.report.add("missing-field", message, members["nk"].key_place, f"{where}.nk")
        if isinstance(node.value, dict) and not dtypes and "dtypes" not in members:
            message = "needs `dtypes`, a list of types of A and B, here or at the top of the file"
            self.report.add("missing-field", message, node.key_place, where)
        return ShapeFamily(name, dtypes, tuple(dict.fromkeys(shapes)))

    def _members(
        self, node: Node, where: str, keys: Sequence[str], required: Sequence[str] = ()
    ) -> dict[str, Node]:
        """Return the members of a mapping, which must have these keys and no others."""
        if not self._is(node, dict, where, f"a mapping with the keys {listing(keys, 'and')}"):
            return {}
        members = cast("dict[str, Node]", node.value)
        for name, member in members.items():
            if name not in keys:
                known = f"the keys here are {listing(keys, 'and')}{did_you_mean(name, keys)}"
                self.report.add(
                    "unknown-key", f"unknown key {quoted(name)}, {known}", member.key_place, where or None
                )
        for name in required:
            if name not in members:
                self.report.add("missing-field", f"has no `{name}`", node.key_place, where or None)
        return members

    def _is(self, node: Node, kind: type, where: str, expected: str) -> bool:
        right = isinstance(node.value, kind) and not (kind is int and isinstance(node.value, bool))
        if not right and not node.refused:
            message = f"expected {expected}, found {describe(node)}"
            self.report.add("wrong-type", message, node.place, where or None)
        return right

    def _items(self, node: Node | None, where: str, expected: str) -> list[Node]:
        if node is None or not self._is(node, list, where, expected):
            return []
        if not node.value:
            self.report.add("wrong-length", f"expected {expected}, found none", node.place, where)
        return cast("list[Node]", node.value)

    def _dtypes(self, node: Node | None, where: str) -> tuple[str, ...]:
        found: list[str] = []
        for index, item in enumerate(self._items(node, where, "a list of element types")):
            if item.value in DTYPES:
                found.append(cast("str", item.value))
            elif not item.refused:
                known = f"expected {listing(list(DTYPES), 'or')}, found {describe(item)}"
                self.report.add("not-a-choice", known, item.place, f"{where}.{index}")
        return tuple(found)

    def _extents(self, node: Node | None, where: str) -> tuple[int, ...]:
        items = self._items(node, where, "a list of whole numbers")
        return tuple(
            extent
            for index, item in enumerate(items)
            if (extent := self._extent(item, f"{where}.{index}")) is not None
        )

    def _rows(self, members: Mapping[str, Node], where: str, name: str, extents: str) -> list[list[int]]:
        """Return lists of extents, one for each letter."""
        row = f"[{', '.join(extents)}]"
        found: list[list[int]] = []
        for index, item in enumerate(self._items(members.get(name), f"{where}.{name}", f"a list of {row}")):
            place = f"{where}.{name}.{index}"
            if not self._is(item, list, place, row):
                continue
            parts = cast("list[Node]", item.value)
            numbers = [self._extent(part, f"{place}.{number}") for number, part in enumerate(parts)]
            if len(parts) != len(extents):
                self.report.add("wrong-length", f"expected {row}, found {describe(item)}", item.place, place)
            elif None not in numbers:
                found.append(cast("list[int]", numbers))
        return found

    def _extent(self, node: Node, where: str) -> int | None:
        if not self._is(node, int, where, "a whole number"):
            return None
        extent = cast("int", node.value)
        if not 1 <= extent <= LARGEST:
            message = f"expected 1 to {LARGEST:,}, found {describe(node)}"
            self.report.add("out-of-range", message, node.place, where)
            return None
        return extent

    def _text(self, node: Node | None, where: str) -> str:
        if node is None or not self._is(node, str, where, "text"):
            return ""
        return cast("str", node.value)
