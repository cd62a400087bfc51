"""Results of the compiler on the disk, under a digest of all inputs.

No entry is ever out of date: another kernel, option, compiler or gemmgen gives another digest. Failures are
not stored.

An entry ends with a digest of its key and of all its bytes. This finds a file that was cut short, changed, or
moved from another key. It does not stop a person who may write in the directory, because that person can
compute the digest too: so the directory must belong to the user, and nobody else may write in it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from gemmgen.errors import Diagnostic

T = TypeVar("T")

VARIABLE = "GEMMGEN_CACHE_DIR"
"""Names the cache's directory; set to nothing, it turns the cache off."""

MAX_BYTES = 1 << 30
"""Most bytes of the cache: the least recently used entries beyond it are removed."""

MAX_ENTRY_BYTES = 1 << 28
"""The most that one entry may have, as a file and unpacked: a kernel takes some megabytes."""

LOCKS = 64
"""Lock files: compilations of one entry wait at one of them, and two entries seldom share one."""
LOCK_SECONDS = 60.0
"""How long a compilation waits for another one of the same entry: ten times as long as most of them take."""
LOCK_LOOK_SECONDS = 0.05
"""How often a compilation that waits tries again."""

MAX_LINKS = 40
"""Symbolic links on the way to one place, as many as Linux follows."""

Files = Mapping[str, bytes]
"""An entry: its parts by name."""


def cache_directory() -> Path | None:
    """Return where the cache is: ``$GEMMGEN_CACHE_DIR``, or else gemmgen's place among the user's caches.

    None if the variable is empty, or if the user has no home.
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


class CacheWarning(UserWarning):
    """Why the cache, or a lock of it, is not used; nothing else changes, except that more is compiled."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


_WARNED: dict[Diagnostic, object] = {}
"""Each warning that this process has given, with a token of the call that gave it."""


def _warn(path: Path, code: str, message: str) -> None:
    """Warn of a directory or a file of the cache, once per process."""
    found, call = Diagnostic(path.as_posix(), code, message, severity="warning"), object()
    if _WARNED.setdefault(found, call) is call:  # of two threads, one
        warnings.warn(CacheWarning(found), stacklevel=2)


# --- entries


def cached(key: str | None, make: Callable[[], Files], read: Callable[[Files], T]) -> T:
    """Return the value that `read` makes of an entry's parts; a missing entry is made by `make`.

    `key` is 64 hexadecimal digits, or None to bypass the cache. If several processes want one entry, one of
    them makes it. A cache that cannot be used is ignored. So is an entry that cannot be read, that was
    written under another key, or whose parts let `read` raise one of `UNREADABLE`.

    Raises:
        Exception: Errors of `make`, and errors of `read` for parts that were made just now.
    """
    directory = cache_directory() if key else None
    if directory is None or key is None or not _is_usable(directory):
        return read(make())
    path = directory / key[:2] / f"{key}.zip"
    if found := _stored(path, key, read):
        return found[0]
    with _locked(directory, key):
        if found := _stored(path, key, read):
            return found[0]
        files = make()
        result = read(files)
        with contextlib.suppress(OSError):
            _write(path, key, files)
            if key.endswith("0"):  # to look at all entries takes a while: one writer in sixteen does
                _prune(directory)
        return result


UNREADABLE = (
    OSError,
    EOFError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors that a damaged entry may raise, in its archive or in the reader of its parts."""


def _stored(path: Path, key: str, read: Callable[[Files], T]) -> tuple[T] | None:
    """Return the value of a stored entry in a tuple of one, None if it is missing or damaged."""
    try:
        result = read(_unpacked(key, _bytes_of(path)))
    except UNREADABLE:
        return None
    with contextlib.suppress(OSError):  # a file system may be read-only
        os.utime(path)  # the time of its last use
    return (result,)


def _bytes_of(path: Path) -> bytes:
    """Return what an entry's file holds.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no regular file in a real directory, or is too large.
    """
    if not stat.S_ISDIR(path.parent.lstat().st_mode):
        raise ValueError(f"{path.parent} is not a directory")
    with os.fdopen(_opened(path, os.O_RDONLY), "rb") as file:
        data = file.read(MAX_ENTRY_BYTES + 1)
    if len(data) > MAX_ENTRY_BYTES:
        raise ValueError(f"{path} has more than {MAX_ENTRY_BYTES} bytes")
    return data


def _opened(path: Path, flags: int) -> int:
    """Return the descriptor of a regular file; a pipe is not waited for, and a symbolic link not followed.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is no regular file.
    """
    careful = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags | careful, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is no regular file")
    return descriptor


DIGEST_BYTES = 64
"""Bytes of SHA-256 in hexadecimal, with which an entry ends: the comment of the ZIP archive."""


def _digest(key: str, content: bytes) -> bytes:
    return sha256(key.encode() + content).hexdigest().encode()


def _packed(key: str, files: Files) -> bytes:
    """Return an entry's bytes: a ZIP archive whose comment is the digest of its key and all other bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.comment = bytes(DIGEST_BYTES)
        for part, data in files.items():
            archive.writestr(part, data)
    content = buffer.getvalue()[:-DIGEST_BYTES]
    return content + _digest(key, content)


def _unpacked(key: str, data: bytes) -> Files:
    """Return the parts of an entry.

    Raises:
        ValueError: The bytes were not written under this key.
        UNREADABLE: They were, but are no archive that can be read.
    """
    content, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if digest != _digest(key, content):
        raise ValueError("this is no entry of this key")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = archive.infolist()
        if len({part.filename for part in parts}) < len(parts):
            raise ValueError("two parts have one name")
        if any(part.compress_type != zipfile.ZIP_DEFLATED for part in parts):
            raise ValueError("a part is packed in another way than this module packs it")
        if sum(part.file_size for part in parts) > MAX_ENTRY_BYTES:
            raise ValueError(f"the parts have more than {MAX_ENTRY_BYTES} bytes")
        return {part.filename: archive.read(part) for part in parts}


def _write(path: Path, key: str, files: Files) -> None:
    """Write an entry, which appears in one step."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.parent.is_symlink():
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{key}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_packed(key, files))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


FOLDER = re.compile(r"[0-9a-f]{2}")
FILE = re.compile(r"[0-9a-f]{64}\.(zip|\w{8}\.tmp)")
"""How entries are called, and their files until they are whole; each begins with its folder's name."""


def _prune(directory: Path) -> None:
    """If entries take too much, remove those that were used the longest ago, and what killed writers left.

    Other files than the cache's own stay, and symbolic links are not followed.
    """
    entries: list[tuple[float, int, Path]] = []
    for path in _own_files(directory):
        with contextlib.suppress(OSError):  # another process prunes too
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    if total <= MAX_BYTES:
        return
    for _, size, path in sorted(entries):
        if total <= MAX_BYTES // 2:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size


def _own_files(directory: Path) -> Iterator[Path]:
    """Yield the files whose names and folders match the pattern of entries; links are not followed."""
    for folder in directory.iterdir():
        if FOLDER.fullmatch(folder.name) and stat.S_ISDIR(folder.lstat().st_mode):
            for path in folder.iterdir():
                if FILE.fullmatch(path.name) and path.name.startswith(folder.name):
                    yield path


# --- whose the directory is


def _is_usable(directory: Path) -> bool:
    """Return whether a directory exists or can be made, and is this user's alone; else warn once."""
    try:
        problem = _foreign_link(directory)
        if problem is None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = _foreign(directory)
    except OSError:
        return False
    if problem:
        _warn(directory, "cache-refused", f"the cache is not used, because {problem}")
    return problem is None


def _foreign(directory: Path) -> str | None:
    """Return why other users may have written in a directory, None if they cannot."""
    if sys.platform == "win32":  # which has no such owners and modes
        return None
    status = directory.stat()
    if status.st_uid != os.getuid():
        return f"it belongs to another user, whose uid is {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        return f"its mode {mode:04o} lets others write in it; `chmod go-w` ends that"
    return None


def _foreign_link(path: Path) -> str | None:
    """Return why a symbolic link on the way to a place is not trusted, None if all are.

    Links of root, as a system has some, are trusted: root can write anywhere.
    """
    if sys.platform == "win32":
        return None
    trusted = {0, os.getuid()}
    place, *rest = (Path(part) for part in path.absolute().parts)
    links = 0
    while rest:
        step = rest.pop(0)
        place = place.parent if step.name == ".." else place / step
        try:
            status = place.lstat()
        except FileNotFoundError:
            return None  # a missing directory is made by this user
        if not stat.S_ISLNK(status.st_mode):
            continue
        if status.st_uid not in trusted:
            return f"{place} is a symbolic link that another user has made, whose uid is {status.st_uid}"
        links += 1
        if links > MAX_LINKS:
            return f"more than {MAX_LINKS} symbolic links lead to it"
        rest = [*map(Path, place.readlink().parts), *rest]
        place = place.parent
    return None


# --- locks

_GIVEN_UP: set[Path] = set()
"""Locks that this process has waited for in vain: it does not wait for one twice."""


@contextmanager
def _locked(directory: Path, key: str) -> Generator[None]:
    """Hold the lock of a key; after `LOCK_SECONDS` go on without it."""
    path = directory / f"lock-{int(key[:8], 16) % LOCKS}"
    try:
        import fcntl

        lock = _opened(path, os.O_RDWR | os.O_CREAT)
    except (ImportError, OSError, ValueError):  # Windows, or a place that cannot be written, or no file
        yield
        return
    try:
        _wait_for(lock, path)
        yield
    finally:
        with contextlib.suppress(OSError):  # by closing alone, a forked child would still hold it
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _wait_for(lock: int, path: Path) -> None:
    """Take a lock; a file system may have none, and who holds it may never let go."""
    import fcntl

    end = time.monotonic() + (0 if path in _GIVEN_UP else LOCK_SECONDS)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                break
            time.sleep(LOCK_LOOK_SECONDS)
        except OSError:
            return
    if path not in _GIVEN_UP:
        _GIVEN_UP.add(path)
        message = f"another process has held this lock for {LOCK_SECONDS:g} seconds: going on without it"
        _warn(path, "cache-locked", message)
