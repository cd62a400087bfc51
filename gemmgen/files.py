"""Files of unknown origin: read as a whole, up to a limit, without waiting for a pipe."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 1 << 28
"""The largest size of a document or a module: the largest committed record has some megabytes."""


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file.

    A pipe, a socket or a device is not opened for reading, since it could wait without an end or never end.

    Raises:
        OSError: The file cannot be read, is not a regular file, or has more than ``MOST_BYTES``.
    """
    # Without O_NONBLOCK, to open a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes", str(path))
    return data


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8.

    Raises:
        OSError: As ``read_bytes``.
        UnicodeDecodeError: The file is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")
