"""The manifest of a library: its members, and the names of the files that a package can have.

Another program may have written a manifest, so no name in it leads out of its package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.json_files import BadFieldError, read_json
from gemmgen.kinds import Extent, FileName, GpuName, Kind, Microseconds, OneLine, Sha256, Version
from gemmgen.launcher_file import LAUNCHERS
from gemmgen.problem.contest import Contest
from gemmgen.spec.diagnostics import quoted
from gemmgen.spec.module_names import module_name_problem

LIBRARY_FORMAT: Final = 3
"""Format of the files and of the interface of a library."""
MANIFEST: Final = "library.json"
SPECS: Final = "specs"
"""The folder of the kernels' specs."""
PARTS: Final = (
    "__init__.py",
    "forecast.py",
    "group_forecast.py",
    "groups.py",
    "timing.py",
    "cards.py",
    "coefficients.py",
    "measured.py",
    *LAUNCHERS,
)
"""The modules of a package that are around its kernels; the two of groups only if its kernels have groups."""
EARLIER_PARTS: Final = ("rule.py",)
"""Modules that only packages of an earlier gemmgen have: these are stale, and can be refreshed."""


def _is_module_name(name: str) -> bool:
    return module_name_problem(name) is None


ModuleName = Annotated[str, Kind(_is_module_name, "a name that a module can have")]
TableLine = tuple[Extent, Extent, tuple[tuple[Extent, Extent, ModuleName], ...]]
"""Ranges of M for one N and K: N, K, and the least M, greatest M and kernel of each range."""
MeasuredLine = tuple[Extent, Extent, Extent, Microseconds, Microseconds]
"""An observation in the format of a package: M, N, K, and the kernel's and the baseline's microseconds."""


def module_file(stem: str) -> str:
    """Return the name of a kernel's module in a package."""
    return f"{stem}.py"


def spec_file(stem: str) -> str:
    """Return the name of a kernel's spec in a package."""
    return f"{SPECS}/{stem}.yaml"


def files_of(stems: Sequence[str]) -> Iterator[str]:
    """Yield the names of the files of these kernels in a package."""
    for stem in stems:
        yield module_file(stem)
        yield spec_file(stem)


@dataclass(frozen=True)
class Format:
    """Version of the format of the files."""

    library_format: Annotated[int, Version(LIBRARY_FORMAT)]


@dataclass(frozen=True)
class Manifest:
    """Members of a package's manifest; every name in it is that of a file inside the package."""

    gemmgen: Format
    name: ModuleName
    problem: Contest
    description: OneLine
    """Description of the problem that its kernels compute, for people."""
    gpu: GpuName | None
    """Product name of the measured GPU; None without measurements."""
    baseline: OneLine
    sources: tuple[tuple[FileName, Sha256], ...]
    """The names of the files that it was made from, and the SHA-256 of each."""
    kernels: tuple[ModuleName, ...]
    table: tuple[TableLine, ...]
    sha256: Mapping[OneLine, Sha256]
    """SHA-256 of each file, by its name in the package."""


def read_manifest(package: Path) -> Manifest:
    """Return the manifest of a package.

    Raises GemmgenError: ``no-library`` without one; ``bad-library`` with the first member that is not valid
    for a library of this name, and for a package whose folder is a link.
    """
    path = package / MANIFEST
    if not path.exists():
        message = f"is not a library: it has no {MANIFEST}"
        raise GemmgenError([Diagnostic(package.as_posix(), "no-library", message)])

    def check(manifest: Manifest) -> None:
        for field, message in _faults(manifest, package):
            raise BadFieldError(field, message)

    return read_json(Manifest, path, "bad-library", check)


def bad_library(path: Path, message: str, field: str = "") -> GemmgenError:
    """Return the refusal of a file of a library."""
    return GemmgenError([Diagnostic(path.as_posix(), "bad-library", message, field=field or None)])


def _faults(manifest: Manifest, package: Path) -> Iterator[tuple[str, str]]:
    """Yield the path of a member and a message for each contradiction of a manifest."""
    if manifest.name != (folder := folder_name(package)):
        yield "name", f"is {manifest.name}, and the folder is {quoted(folder)}: give both one name"
    for place in (package, package / SPECS):
        if place.is_symlink():
            yield "", f"{place.as_posix()} is a link to another folder: a library lies in its own"
    kernels = manifest.kernels
    if not kernels or len({*kernels}) < len(kernels) or manifest.name in kernels or {*kernels} & PART_NAMES:
        yield "kernels", "must be names of modules, each once, and no name that the library has already"
    needed, names = {"__init__.py", *files_of(kernels)}, manifest.sha256.keys()
    for name in sorted(names - needed - {*PARTS, *EARLIER_PARTS}):
        yield "sha256", f"{quoted(name)} is not a file of such a library"
    for name in sorted(needed - names):
        yield "sha256", f"{quoted(name)} is missing"
    for number, (_, _, ranges) in enumerate(manifest.table):
        if manifest.gpu is None or not ranges:
            yield f"table.{number}", "has no range of M, or there is no GPU that it was measured on"
        last = 0
        for least, most, stem in ranges:
            if stem not in kernels or not last < least <= most:
                yield (
                    f"table.{number}",
                    "must have ranges of M in ascending order, each with one of the kernels",
                )
            last = most


PART_NAMES: Final = frozenset(Path(name).stem for name in PARTS)
"""Names of those modules, without a suffix."""


def folder_name(package: Path) -> str:
    """Return the name of a package's folder, even if the path ends in a dot."""
    return package.name if package.name not in ("", "..") else package.resolve().name
