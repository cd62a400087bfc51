"""Temporary directories, removed also when the command line ends in the middle of their use."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.processes.locks import FORK_LOCK

_OPEN: set[tempfile.TemporaryDirectory[str]] = set()
"""The open directories of this process."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a file system, or of a user's quota, that has no space left."""

PROBE_BYTES = 1 << 18
"""Bytes that a compiler needs at least for its temporary files: with less space, this is why it failed."""


@contextmanager
def scratch() -> Generator[str]:
    """Yield the path of a new directory, which is removed at the end of the context.

    Raises:
        GemmgenError: There is no place for temporary files, or it is full (``no-scratch``).
    """
    try:
        with FORK_LOCK:
            directory = tempfile.TemporaryDirectory(
                prefix=f"gemmgen-{os.getpid()}-", ignore_cleanup_errors=True
            )
            _OPEN.add(directory)
    except OSError as error:
        raise _no_scratch(error, error.filename or "TMPDIR") from error
    try:
        yield directory.name
    except OSError as error:
        if error.errno not in FULL or not is_full(Path(directory.name)):
            raise
        raise _no_scratch(error, Path(directory.name).parent) from error
    finally:
        directory.cleanup()
        _OPEN.discard(directory)


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


def remove_directories() -> None:
    """Remove the open directories of this process, which is about to end."""
    for directory in tuple(_OPEN):
        directory.cleanup()
