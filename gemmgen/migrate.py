"""Brings records, tables and libraries of an earlier gemmgen into today's form, in place.

``python -m gemmgen.migrate [--specs DIR] FILE…`` takes records of suites and tables of ``gemmgen tune``
(``.jsonl``) and folders of libraries. Earlier ones named a problem by a sentence; today's have its
``Contest``. It is computed from the specs that a file names, never from the sentence. A file of today's form
stays as it is.

Stores of ``gemmgen tune`` are not migrated: their trials count only for the gemmgen that made them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from gemmgen.documents.decode import parsed
from gemmgen.documents.files import read_bytes
from gemmgen.documents.former import COMMAND
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem.contest import Contest
from gemmgen.product import write_files
from gemmgen.spec import SpecFile, load_spec, parse_spec

RECORD_SCHEMAS: Final = (2, 3)
"""Schemas of the sessions of a suite's record: the earlier one and today's."""
TABLE_FORMATS: Final = (1, 2)
LIBRARY_FORMATS: Final = ((1, 2), 3)
MANIFEST: Final = "library.json"

Document = dict[str, Any]


@dataclass
class Migration:
    """The files of one call: a library's manifest has the hashes of records that are migrated beside it."""

    specs: Sequence[Path] = ()
    """Folders with specs, for records whose own specs are gone."""
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    """The SHA-256 of each file that was migrated: before, after."""

    def run(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """Migrate files and folders of libraries, and return the files that were rewritten.

        Raises GemmgenError (``cannot-migrate``) for a file that is of no known form, or names specs that are
        not there; then that file stays as it is.
        """
        records = [path for path in paths if path.suffix == ".jsonl"]
        others = [path for path in paths if path.suffix != ".jsonl"]
        manifests = [path if path.name == MANIFEST else path / MANIFEST for path in others]
        return tuple(path for path in (*records, *manifests) if self._migrated(path))

    def _migrated(self, path: Path) -> bool:
        try:
            before = read_bytes(path)
            after = self._manifest(path, before) if path.name == MANIFEST else self._lines(path, before)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _refused(
                path, f"is no record, table or library that an earlier gemmgen wrote: {error}"
            ) from error
        if after == before:
            return False
        self.hashes[_sha256(before)] = _sha256(after)
        write_files({path: after})
        return True

    # --- records and tables

    def _lines(self, path: Path, data: bytes) -> bytes:
        whole, newline, rest = data.rpartition(b"\n")  # a last line that is not whole stays
        found: list[bytes] = []
        contests: dict[str, Contest] | None = None
        begun = False
        for text in whole.split(b"\n") if whole else ():
            document = cast("Document", parsed(text.decode()))
            if "table" in document:
                found.append(text if document["format"] == TABLE_FORMATS[1] else self._row(path, document))
                continue
            if document["line"] == "session":
                begun, contests = True, None
                if document["schema"] == RECORD_SCHEMAS[0]:
                    contests = self._contests(path, document)
                elif document["schema"] != RECORD_SCHEMAS[1]:
                    raise ValueError(f"schema {document['schema']}")
            if not begun:
                raise ValueError("a record begins with its session")
            found.append(text if contests is None else _record_line(document, contests))
        return b"\n".join(found) + newline + rest

    def _contests(self, path: Path, session: Document) -> dict[str, Contest]:
        """Return the contests of a session by their sentences, as the specs of their kernels say."""
        found: dict[str, set[Contest]] = {contest["name"]: set() for contest in session["contests"]}
        for entry in session["kernels"]:
            if (source := _spec_of(path, entry)) is not None:
                found[entry["contest"]].add(source.contest)
        for name, contests in found.items():
            if not contests:
                contests |= {spec.contest for spec in self._known() if spec.description == name}
            if len(contests) != 1:
                why = (
                    "are of several problems" if contests else "are not there: name their folder with --specs"
                )
                raise _refused(path, f"the specs of {json.dumps(name)} {why}")
        return {name: contests.pop() for name, contests in found.items()}

    def _known(self) -> Iterable[SpecFile]:
        for path in sorted(path for folder in self.specs for path in folder.glob("*.yaml")):
            yield load_spec(path)

    def _row(self, path: Path, row: Document) -> bytes:
        if row["format"] != TABLE_FORMATS[0]:
            raise ValueError(f"format {row['format']}")
        source = load_spec(path.parent / row["spec"])
        members = {**row, "format": TABLE_FORMATS[1]}
        described = {"problem": asdict(source.contest), "description": row["problem"]}
        return _line(_replaced(members, "problem", described))

    # --- libraries

    def _manifest(self, path: Path, data: bytes) -> bytes:
        document = cast("Document", parsed(data.decode()))
        form = document["gemmgen"]["library_format"]
        if form == LIBRARY_FORMATS[1]:
            return data
        if form not in LIBRARY_FORMATS[0]:
            raise ValueError(f"library_format {form}")
        source = load_spec(path.parent / "specs" / f"{document['kernels'][0]}.yaml")
        described = {"problem": asdict(source.contest), "description": document["problem"]}
        members = _replaced(
            {**document, "gemmgen": {"library_format": LIBRARY_FORMATS[1]}}, "problem", described
        )
        members["sources"] = [[name, self.hashes.get(sha256, sha256)] for name, sha256 in document["sources"]]
        return (json.dumps(members, indent=2) + "\n").encode()


def _spec_of(record: Path, entry: Document) -> SpecFile | None:
    """Return the spec of a kernel that took part; None if it is gone."""
    if entry.get("spec") is not None:
        return parse_spec(entry["spec"].encode(), Path(entry["subject"]["spec_path"]).stem)
    stated, sha256 = Path(entry["subject"]["spec_path"]), entry["subject"]["spec_sha256"]
    for place in (stated, record.parent / "specs" / stated.name):
        if place.is_file() and _sha256(read_bytes(place)) == sha256:
            return load_spec(place)
    return None


def _record_line(line: Document, contests: Mapping[str, Contest]) -> bytes:
    """Return a line of a record, with the contest in place of the sentence."""
    if line["line"] != "session":
        return _line({**line, "contest": asdict(contests[line["contest"]])})
    described = [
        _replaced(each, "name", {"contest": asdict(contests[each["name"]]), "description": each["name"]})
        for each in line["contests"]
    ]
    kernels = [{**entry, "contest": asdict(contests[entry["contest"]])} for entry in line["kernels"]]
    return _line({**line, "schema": RECORD_SCHEMAS[1], "contests": described, "kernels": kernels})


def _replaced(members: Document, name: str, by: Document) -> Document:
    """Return an object with other members at the place of one."""
    found: Document = {}
    for key, value in members.items():
        found |= by if key == name else {key: value}
    return found


def _line(document: Document) -> bytes:
    return json.dumps(document, allow_nan=False).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refused(path: Path, message: str) -> GemmgenError:
    return GemmgenError([Diagnostic(path.as_posix(), "cannot-migrate", message)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Migrate the files of a command line; exit with diagnostics if that fails."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--specs", action="append", default=[], type=Path, help="a folder with specs")
    given = parser.parse_args(arguments)
    try:
        Migration(given.specs).run(given.paths)
    except GemmgenError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
