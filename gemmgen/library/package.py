"""A library's package on the disk: written, read, checked, and imported to be timed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import all_suffixes
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.files import read_bytes, read_text
from gemmgen.library.assemble import Library, Member
from gemmgen.library.manifest import (
    MANIFEST,
    PART_NAMES,
    PARTS,
    SPECS,
    read_manifest,
    read_table,
    spec_file,
)
from gemmgen.library.sources import refuse_library
from gemmgen.library.texts import rendered
from gemmgen.problem import Shape
from gemmgen.processes.scratch import scratch
from gemmgen.product import Finding, make, write_files


def write(library: Library, directory: Path) -> Path:
    """Write a library's package below a directory, without its earlier files; return the package.

    Only files that a library of this name can have are written or removed, all inside the package.

    Raises GemmgenError: ``foreign-file`` if a directory of that name is not a library of gemmgen's, or is a
    link.
    """
    package = directory / library.name
    before = _listed(package)
    if before is None:
        message = "exists and is not a library made by gemmgen: move it, or choose another --out"
        raise GemmgenError([Diagnostic(package.as_posix(), "foreign-file", message)])
    files = rendered(library)
    write_files({package / name: text.encode() for name, text in files.items()})
    for name in sorted(before - files.keys()):
        (package / name).unlink(missing_ok=True)
    for path in _bytecode(package, before | files.keys()):
        path.unlink(missing_ok=True)  # Python makes it anew
    return package


def _bytecode(package: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield what Python keeps of the modules of a package, and may run in place of their text."""
    folder, stems = package / "__pycache__", {Path(name).stem for name in names if name.endswith(".py")}
    if folder.is_dir() and not folder.is_symlink():
        yield from (path for path in sorted(folder.glob("*.pyc")) if path.name.partition(".")[0] in stems)


def _is_unchecked(path: Path) -> bool:
    """Return True if Python runs a file of bytecode without a comparison with its source (PEP 552)."""
    with suppress(OSError):
        return int.from_bytes(read_bytes(path)[4:8], "little") == UNCHECKED
    return False


UNCHECKED: Final = 0b01
"""Flags of bytecode that is identified by an unchecked hash; Python itself writes other flags."""


def parent_of(package: Path) -> Path:
    """Return the directory of a package, even if its path ends in a dot."""
    return package.parent if package.name not in ("", "..") else package.resolve().parent


def _listed(package: Path) -> set[str] | None:
    """Return the files in the manifest of a library; empty for a new one, None if it is not a library."""
    if not package.is_symlink() and (
        not package.exists() or (package.is_dir() and not any(package.iterdir()))
    ):
        return set()
    try:
        return {*read_manifest(package).sha256}
    except GemmgenError:
        return None


def read_library(package: Path) -> Library:
    """Return the library in a package: its manifest, table and specs.

    Raises GemmgenError: ``no-library``, ``bad-library``, the errors of a spec, and the reasons for which such
    kernels make no library.
    """
    manifest = read_manifest(package)
    found = read_table(package, manifest)
    members = tuple(_member(package, stem) for stem in found.kernels)
    refuse_library(package, manifest.problem, found.gpu, [member.product for member in members])
    return Library(
        manifest.name,
        manifest.problem,
        members[0].product.source.description,
        found.gpu,
        found.baseline,
        manifest.sources,
        members,
        found.measured,
    )


def contestants(package: Path) -> tuple[list[Path], Callable[[Shape], str]]:
    """Return the specs of a library's kernels, and a function from a shape to the name of the chosen kernel.

    The function is the choice of the package as its users import it, on the GPU of its table. The package is
    imported from new files after a check that its own files are equal to them, so no edited file is executed,
    and no other file in its folder.

    Raises GemmgenError: ``no-library``, ``bad-library``, and all findings of ``check``.
    """
    if findings := check(package):
        raise GemmgenError(finding.diagnostic for finding in findings)
    library = read_library(package)
    with scratch() as directory:
        module = _imported(write(library, Path(directory)))
    specs = [package / spec_file(member.stem) for member in library.members]
    return specs, lambda shape: module.choose(*shape).kernel


def _imported(package: Path) -> ModuleType:
    """Import a package that was just written, with its parts: its files are not needed afterwards.

    It is registered under a name of its own, so that it and another module of its name do not replace each
    other.
    """
    name, place = f"{IMPORTED}{package.name}", package / "__init__.py"
    spec = spec_from_file_location(name, place, submodule_search_locations=[str(package)])
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    for part in ("", *(f".{part}" for part in PART_NAMES)):
        sys.modules.pop(f"{name}{part}", None)  # from an earlier library of this name
    sys.modules[name] = module  # its own imports look there
    spec.loader.exec_module(module)
    return module


IMPORTED: Final = "gemmgen_library_"
"""Prefix of the name of a package that is imported to be timed."""


def _member(package: Path, stem: str) -> Member:
    path = package / spec_file(stem)
    return Member(stem, read_text(path), make(path))


def check(package: Path) -> tuple[Finding, ...]:
    """Return the missing, edited, stale and orphaned files of a library, compared byte for byte.

    A kernel is stale if its spec no longer generates it; the files around the kernels are made again from the
    manifest. No file of the package is run.

    Raises GemmgenError: ``no-library``, ``bad-library``, and the errors of a spec.
    """
    manifest = read_manifest(package)
    found = tuple(_edits(package, manifest.sha256))
    if found:
        return found
    expected = rendered(read_library(package))
    stale = [
        name
        for name, text in expected.items()
        if name != MANIFEST and (name not in manifest.sha256 or read_bytes(package / name) != text.encode())
    ]
    remedy = f"`gemmgen library {package.as_posix()} --refresh` rewrites it"
    return tuple(
        Finding(Diagnostic((package / name).as_posix(), "stale", f"{_stale(name)}: {remedy}"))
        for name in stale
    )


def _stale(name: str) -> str:
    if name in PARTS:
        return "not what this gemmgen makes of the library"
    return "not what its spec and this gemmgen generate"


def _edits(package: Path, digests: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the files that are not as they were written."""
    remedy = "write the library again, from its sources"
    for name, digest in digests.items():
        path = package / name
        try:
            data = read_bytes(path)
        except OSError:
            yield Finding(Diagnostic(path.as_posix(), "missing", remedy))
            continue
        if hashlib.sha256(data).hexdigest() != digest:
            yield Finding(Diagnostic(path.as_posix(), "hand-edited", f"edited by hand: {remedy}"))
    known = {package / name for name in digests}
    for path in sorted([*package.iterdir(), *(package / SPECS).glob("*.yaml")]):
        if path not in known and (path.suffix == ".yaml" or _is_importable(path)):
            message = "the library does not name it: delete it"
            yield Finding(Diagnostic(path.as_posix(), "orphaned", message))
    for path in filter(_is_unchecked, _bytecode(package, digests)):
        message = "Python would run it without a comparison with the module: delete it"
        yield Finding(Diagnostic(path.as_posix(), "orphaned", message))


def _is_importable(path: Path) -> bool:
    """Return True if Python would import a path of a package: a file, or a folder with a file."""
    if path.is_dir():
        return path.name not in (SPECS, "__pycache__")
    return path.name.endswith(tuple(all_suffixes()))
