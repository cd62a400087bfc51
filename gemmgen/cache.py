"""What the compiler has made before, kept on the disk by everything that it depends on.

An entry is named by a digest of all inputs, so that nothing is ever out of date: another kernel, option,
compiler or gemmgen has another name. Only what worked is kept.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path

VARIABLE = "GEMMGEN_CACHE_DIR"
"""Names the cache's directory; set to nothing, it turns the cache off."""

MAX_BYTES = 1 << 30
"""What the cache may take of the disk: beyond that, the entries go that were used the longest ago."""

LOCKS = 64
"""Files that compilations of one entry wait at; those of two entries seldom meet at one."""

MOST_PARSES = 10
"""Tries to parse a text beside other threads: it fails once in about 200."""

SELF_CONTAINED = frozenset(
    {"__future__", "dataclasses", "functools", "math", "types", "typing", "torch", "triton"}
)
"""Packages that a file may import and still say all about its kernels: they do not depend on the machine."""

Files = Mapping[str, bytes]
"""An entry: its parts by name."""


def cache_directory() -> Path | None:
    """Return where the cache is: ``$GEMMGEN_CACHE_DIR``, or else gemmgen's place among the user's caches.

    None where the variable is set to nothing, or where the user has no home.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen) if chosen else None
    if of_user := os.environ.get("XDG_CACHE_HOME"):
        return Path(of_user) / "gemmgen"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) / "gemmgen" / "cache" if local else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "gemmgen"


def key_of(parts: Iterable[object]) -> str:
    """Return the digest of an entry's inputs; no two lists of texts run together."""
    digest = sha256()
    for part in parts:
        text = str(part).encode()
        digest.update(b"%d:" % len(text))
        digest.update(text)
    return digest.hexdigest()


@cache
def revision(*files: Path) -> str:
    """Return a digest of the gemmgen sources that decide what an entry holds."""
    return key_of(sha256(path.read_bytes()).hexdigest() for path in files)


def parsed(source: str) -> ast.Module:
    """Parse Python, also while other threads do.

    Python 3.11 counts the depth of all threads' trees together, so that a parse during which another begins
    or ends can find the wrong depth, which it raises as a SystemError: the next one does not.

    Raises:
        SyntaxError, ValueError: It is no Python.
    """
    for _ in range(MOST_PARSES):
        with contextlib.suppress(SystemError):
            return ast.parse(source)
    return ast.parse(source)


_IMPORT = re.compile(r"\bimport\b")
_PLAIN_IMPORT = re.compile(r"\s*(?:import (\w+)[\w.]*(?: as \w+)?|from (\w+)[\w.]* import (?:\(|[\w, ]+))")


@lru_cache(maxsize=16)
def is_self_contained(source: str) -> bool:
    """Whether a file imports nothing beside `SELF_CONTAINED`, so that its text says all about its kernels."""
    # To parse a module takes ten milliseconds. There is no statement that imports without a line that has the
    # word, and most files have it only in lines that are such a statement, whole and alone.
    joined = source.replace("\\\n", " ")
    lines = [_PLAIN_IMPORT.fullmatch(line) for line in joined.splitlines() if _IMPORT.search(line)]
    if lines and all(line is not None and (line[1] or line[2]) in SELF_CONTAINED for line in lines):
        return True
    try:
        tree = parsed(source)
    except (ValueError, SyntaxError):
        return False
    imported: list[str] = []
    for node in statements(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported.append("" if node.level else node.module or "")
    return all(name.partition(".")[0] in SELF_CONTAINED for name in imported)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement, and what may hold some, outer ones first.

    Most of a tree are expressions, and there is no statement in one.
    """
    for part in ast.iter_child_nodes(tree):
        if not isinstance(part, ast.expr):
            yield part
            yield from statements(part)


def cached(key: str | None, make: Callable[[], Files]) -> Files:
    """Return an entry, made if it is not there; `key` is None for what must be made afresh.

    Of several processes that want one entry, one makes it. A cache that cannot be used, and an entry that
    cannot be read, are as none.
    """
    directory = cache_directory() if key else None
    if directory is None or key is None:
        return make()
    path = directory / key[:2] / f"{key}.zip"
    if (found := _read(path)) is not None:
        return found
    with _locked(directory, key):
        if (found := _read(path)) is not None:
            return found
        files = make()
        with contextlib.suppress(OSError):
            _write(path, files)
            if key.endswith("0"):  # to look at all entries takes a while: one writer in sixteen does
                _prune(directory)
        return files


def _read(path: Path) -> Files | None:
    """Return the parts of an entry, each as its checksum says; None where that does not hold."""
    try:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        os.utime(path)  # the time of its last use
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError):
        return None
    return files


def _write(path: Path, files: Files) -> None:
    """Write an entry, which appears in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for part, data in files.items():
                archive.writestr(part, data, compresslevel=1)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _prune(directory: Path) -> None:
    """If all take too much, remove what was used the longest ago, and so what killed writers left."""
    entries: list[tuple[float, int, Path]] = []
    for path in directory.glob("??/*"):
        with contextlib.suppress(FileNotFoundError):  # another process prunes too
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    if total <= MAX_BYTES:
        return
    for _, size, path in sorted(entries):
        if total <= MAX_BYTES // 2:
            break
        path.unlink(missing_ok=True)
        total -= size


@contextmanager
def _locked(directory: Path, key: str) -> Generator[None]:
    """Hold the lock that goes with a key; where there is none to be had, go on without."""
    try:
        import fcntl

        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / f"lock-{int(key[:8], 16) % LOCKS}").open("a")
    except (ImportError, OSError):  # Windows, or a place that cannot be written
        yield
        return
    with lock:
        with contextlib.suppress(OSError):  # a file system may have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # by closing alone, a forked child would still hold it
                fcntl.flock(lock, fcntl.LOCK_UN)
