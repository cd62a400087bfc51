"""Generated text that git does not have: rendered when it is needed, and compared with committed digests.

The modules of the specs under ``tests/pairs`` and the packages of the libraries are a function of what is
committed. They are rendered into ``build/``, which git ignores; a digest of each file is committed, so that a
change of gemmgen says of which files it moves the bytes.

``python -m tools.rendered`` names the files that moved; ``--record`` writes their digests, and ``--pack DIR``
makes an archive of each library.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from gemmgen.launcher_file import LAUNCHERS, LIBRARY_FILES, launcher_texts
from gemmgen.processes.locks import lock
from gemmgen.product import make, write_files

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build"
PAIRS_SPECS: Final = ROOT / "tests" / "pairs" / "specs"
LIBRARIES: Final = ROOT / "libraries"
MANIFEST: Final = "library.json"
GENERATORS: Final = ("gemmgen", "templates")
"""Folders whose files decide what is rendered, with the files beside them that are copied."""
STAMP: Final = ".rendered-from"
"""The file of a rendered folder that has the digest of everything that it was rendered from."""

Files = Mapping[str, str]
"""Texts by the names of their files."""


@dataclass(frozen=True)
class Rendered:
    """A folder of generated text."""

    folder: Path
    """Where it is rendered."""
    sources: Path
    """The committed folder that it is made of, beside gemmgen itself."""
    digests: Path
    """The committed file with the SHA-256 of each text."""
    render: Callable[[], Files]
    digested: Callable[[Files], str]
    """The text of the file of digests."""
    read: Callable[[str], Mapping[str, str]]
    """The digests in it, by the names of files."""

    def moved(self, files: Files) -> list[str]:
        """Return the names of files whose digests are not the committed ones, in alphabetical order."""
        text = self.digested(files)
        recorded = self.digests.read_text(encoding="utf-8") if self.digests.exists() else ""
        if recorded == text:
            return []
        old: Mapping[str, str] = self.read(recorded) if recorded else {}
        new = self.read(text)
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        return names or [self.digests.name]

    def record(self, files: Files) -> None:
        """Write the digests of these files, and the texts that are committed among the sources."""
        committed = {
            self.sources / name: text for name, text in files.items() if (self.sources / name).exists()
        }
        digests = {self.digests: self.digested(files)}
        write_files({path: text.encode() for path, text in (committed | digests).items()})


# --- the modules of tests/pairs


def _pairs() -> Files:
    files = dict(launcher_texts())
    for path in sorted(PAIRS_SPECS.glob("*.yaml")):
        files |= make(path).files()
    return files


def _pairs_digests(files: Files) -> str:
    found = {name: sha256(text.encode()).hexdigest() for name, text in files.items() if name not in LAUNCHERS}
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


PAIRS: Final = Rendered(
    BUILD / "pairs",
    PAIRS_SPECS,
    PAIRS_SPECS.parent / "modules.json",
    _pairs,
    _pairs_digests,
    json.loads,
)
"""The modules that complete the coverage of tests, and their manifests."""


# --- libraries


def _library(sources: Path) -> Files:
    from gemmgen.library.package import read_library  # seldom wanted, and they take a while
    from gemmgen.library.texts import rendered

    return rendered(read_library(sources))


def _manifest(files: Files) -> str:
    return files[MANIFEST]


def _digests_of_manifest(text: str) -> Mapping[str, str]:
    return json.loads(text)["sha256"]


@cache
def library(name: str) -> Rendered:
    """Return the package of a committed library: its manifest has the digests of all files."""
    sources = LIBRARIES / name
    return Rendered(
        BUILD / LIBRARIES.name / name,
        sources,
        sources / MANIFEST,
        partial(_library, sources),
        _manifest,
        _digests_of_manifest,
    )


def libraries() -> tuple[Rendered, ...]:
    """Return the packages of all committed libraries, in alphabetical order."""
    return tuple(library(path.parent.name) for path in sorted(LIBRARIES.glob(f"*/{MANIFEST}")))


def everything() -> tuple[Rendered, ...]:
    """Return all text that git does not have."""
    return (PAIRS, *libraries())


def packed(name: str, files: Files) -> bytes:
    """Return a folder of this name with these files as a .tar.gz; the same files give the same bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for path, text in sorted(files.items()):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


# --- rendering


@cache
def folder_of(text: Rendered) -> Path:
    """Return the folder of a text, which is rendered if something that decides it has changed.

    Of several processes one renders, and the others wait for it. The folder appears whole.
    """
    wanted = _digest_of_sources(text)
    stamp = text.folder / STAMP
    with _alone(text.folder):
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            _replace(text.folder, {**text.render(), STAMP: wanted})
    return text.folder


def rendered_anew(text: Rendered) -> Files:
    """Render a text whatever its folder has, and return its files."""
    files = text.render()
    with _alone(text.folder):
        _replace(text.folder, {**files, STAMP: _digest_of_sources(text)})
    return files


def _replace(folder: Path, files: Files) -> None:
    """Replace a folder, which nothing else is replacing now, by one with these files."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new, old = Path(temporary) / "new", Path(temporary) / "old"
        for name, content in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8", newline="\n")
        if folder.exists():
            folder.rename(old)
        new.rename(folder)


def _digest_of_sources(text: Rendered) -> str:
    """Return a digest of all files that a text follows from."""
    digest = sha256()
    folders = (*(ROOT / name for name in GENERATORS), text.sources)
    copied = (ROOT / name for name in (*LAUNCHERS, *LIBRARY_FILES))
    for path in sorted((*copied, *(path for folder in folders for path in _committed(folder)))):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def _committed(folder: Path) -> Iterator[Path]:
    """Yield the files under a folder, without those that Python and tools leave there."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        yield from (Path(place) / name for name in names if not name.startswith("."))


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Keep other processes from rendering the same folder for as long as the context lasts."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.parent / f".{folder.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        lock(descriptor, exclusive=True, wait=True)
        yield
    finally:
        os.close(descriptor)
