"""Temporary directories, removed however the run ends.

A directory is locked by its process: after a ``kill -9`` the next run removes it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.processes.locks import FORK_LOCK, lock

_DIRECTORIES: dict[Path, int] = {}
"""The open directories of this process, each with the descriptor that locks it."""

_NAME = re.compile(r"gemmgen-scratch-\d+-\w{8}")
"""Names of the directories: the process that made them, and random characters."""


@contextmanager
def scratch() -> Generator[str]:
    """Yield the path of a new directory, which is removed at the end of the context.

    Raises:
        GemmgenError: There is no place for temporary files, or it is full (``no-scratch``).
    """
    try:
        path, descriptor = _new_directory()
    except OSError as error:
        raise _no_scratch(error, error.filename or "TMPDIR") from error
    try:
        yield str(path)
    except OSError as error:
        if error.errno not in FULL or not is_full(path):
            raise
        raise _no_scratch(error, path.parent) from error
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if _DIRECTORIES.pop(path, None) is not None:
            os.close(descriptor)


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a file system, or of a user's quota, that has no space left."""

PROBE_BYTES = 1 << 18
"""Bytes that a compiler needs at least for its temporary files: with less space, this is why it failed."""


def is_full(directory: Path) -> bool:
    """Return whether a directory has no space for another file."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
    except OSError as error:
        return error.errno in FULL
    return False


def _no_scratch(error: OSError, place: object) -> GemmgenError:
    message = f"no place for temporary files: {error.strerror}; let TMPDIR name one that can be written"
    return GemmgenError([Diagnostic(str(place), "no-scratch", message)])


def _new_directory() -> tuple[Path, int]:
    """Return a new directory and the descriptor that locks it."""
    with FORK_LOCK:
        if not _DIRECTORIES:
            _sweep(Path(tempfile.gettempdir()))
        # Under another name until it is locked: a sweep must not take it for one that was left.
        unlocked = Path(tempfile.mkdtemp(prefix="gemmgen-new-"))
        descriptor = os.open(unlocked, os.O_RDONLY)
        lock(descriptor, exclusive=True)
        path = unlocked.rename(unlocked.with_name(f"gemmgen-scratch-{os.getpid()}-{unlocked.name[-8:]}"))
        _DIRECTORIES[path] = descriptor
    return path, descriptor


def _sweep(place: Path) -> None:
    """Remove the directories of processes that were killed: their locks are free."""
    for path in place.glob("gemmgen-scratch-*"):
        with suppress(OSError):
            if not _NAME.fullmatch(path.name) or path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if lock(descriptor, exclusive=True):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def remove_directories() -> None:
    """Remove the open directories of this process, which is about to end."""
    for path in tuple(_DIRECTORIES):
        shutil.rmtree(path, ignore_errors=True)
