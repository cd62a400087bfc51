"""The two JSON files of a library: its manifest, and its table of kernels, as gemmgen reads them.

The manifest, library.json, lists the sources of the library and a digest of every other file; only gemmgen
reads it. The table, table.json, is for calls: gemmgen_table.py reads it, and packs have it too. Another
program may have written them, so no name in them leads out of the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.json_files import BadFieldError, read_json
from gemmgen.kinds import Extent, FileName, GpuName, Kind, Microseconds, OneLine, Sha256, Version
from gemmgen.launcher_file import LAUNCHERS, LIBRARY_FILES
from gemmgen.problem.contest import Contest
from gemmgen.spec.diagnostics import quoted
from gemmgen.spec.module_names import module_name_problem

LIBRARY_FORMAT: Final = 5
"""Format of the files and of the interface of a library: gemmgen_table.py has the same number."""
MANIFEST: Final = "library.json"
TABLE: Final = "table.json"
SPECS: Final = "specs"
"""The folder of the kernels' specs."""
PARTS: Final = (
    "__init__.py",
    TABLE,
    "forecast.py",
    "group_forecast.py",
    "groups.py",
    "timing.py",
    "cards.py",
    *LIBRARY_FILES,
    *LAUNCHERS,
)
"""The files of a package that are around its kernels."""


def _is_module_name(name: str) -> bool:
    return module_name_problem(name) is None


ModuleName = Annotated[str, Kind(_is_module_name, "a name that a module can have")]
MeasuredLine = tuple[Extent, Extent, Extent, Microseconds, Microseconds]
"""An observation in the format of a package: M, N, K, and the kernel's and the baseline's microseconds."""


def module_file(stem: str) -> str:
    """Return the name of a kernel's module in a package."""
    return f"{stem}.py"


def spec_file(stem: str) -> str:
    """Return the name of a kernel's spec in a package."""
    return f"{SPECS}/{stem}.yaml"


def files_of(stems: Iterable[str]) -> Iterator[str]:
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
    sources: tuple[tuple[FileName, Sha256], ...]
    """The names of the files that it was made from, and the SHA-256 of each."""
    sha256: Mapping[OneLine, Sha256]
    """SHA-256 of each file, by its name in the package."""

    @property
    def kernels(self) -> set[str]:
        """The names of the kernels whose specs the package has."""
        names = (Path(name) for name in self.sha256 if name.startswith(f"{SPECS}/"))
        return {name.stem for name in names if _is_module_name(name.stem)}


@dataclass(frozen=True)
class KernelTable:
    """Members of a package's table: measurements, and values that follow from the specs."""

    format: Annotated[int, Version(LIBRARY_FORMAT)]
    gpu: GpuName | None
    """Product name of the measured GPU; None without measurements."""
    baseline: OneLine
    """Description of the calls that the kernels were measured beside."""
    kernels: tuple[ModuleName, ...]
    measured: Mapping[ModuleName, tuple[MeasuredLine, ...]]
    call: Mapping[str, Any]
    """The tensors and the computation of all kernels: gemmgen makes it from the specs, and never reads it."""
    rule: Mapping[str, Any]
    """The inputs of predicted times, likewise."""


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


def read_table(package: Path, manifest: Manifest) -> KernelTable:
    """Return the table of a package; raises GemmgenError (``bad-library``) as `read_manifest` does."""

    def check(table: KernelTable) -> None:
        for field, message in _faults_of_table(table, manifest):
            raise BadFieldError(field, message)

    return read_json(KernelTable, package / TABLE, "bad-library", check)


def _faults(manifest: Manifest, package: Path) -> Iterator[tuple[str, str]]:
    """Yield the path of a member and a message for each contradiction of a manifest."""
    if manifest.name != (folder := folder_name(package)):
        yield "name", f"is {manifest.name}, and the folder is {quoted(folder)}: give both one name"
    for place in (package, package / SPECS):
        if place.is_symlink():
            yield "", f"{place.as_posix()} is a link to another folder: a library is in its own"
    names, kernels = manifest.sha256.keys(), manifest.kernels
    needed = {"__init__.py", TABLE, *files_of(kernels)}
    for name in sorted(names - needed - {*PARTS}):
        yield "sha256", f"{quoted(name)} is not a file of such a library"
    for name in sorted(needed - names):
        yield "sha256", f"{quoted(name)} is missing"
    for name in sorted(kernels & {manifest.name, *TAKEN_NAMES}):
        yield "sha256", f"{quoted(name)} is the name of a kernel, and the library has it already"


def _faults_of_table(table: KernelTable, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the path of a member and a message for each contradiction of a table."""
    kernels = table.kernels
    if not kernels or len({*kernels}) < len(kernels) or manifest.kernels != {*kernels}:
        yield "kernels", f"must be the names of the kernels in {MANIFEST}, each once"
    for stem in table.measured:
        if stem not in kernels:
            yield "measured", f"{quoted(stem)} is not one of the kernels"
    if table.measured and table.gpu is None:
        yield "gpu", "must be the GPU that the times were measured on"


PART_NAMES: Final = frozenset(Path(name).stem for name in PARTS)
"""Names of those files, without a suffix."""
FUNCTIONS: Final = (
    "matmul",
    "choose",
    "explain",
    "accept_table",
    "can_implement",
    "warmup",
    "tune_on_first_use",
    "arrange_scales",
)
"""The functions of a package; only kernels with scales of blocks have the last one."""
TAKEN_NAMES: Final = PART_NAMES | {
    *FUNCTIONS,
    "library",
    "Library",
    "Tensor",
    "KERNELS",
    "GPU",
    "COMPUTES",
    "OPERATOR",
}
"""Names that no kernel can have: Python would put its module in the place of a part or of a value."""


def folder_name(package: Path) -> str:
    """Return the name of a package's folder, even if the path ends in a dot."""
    return package.name if package.name not in ("", "..") else package.resolve().name
