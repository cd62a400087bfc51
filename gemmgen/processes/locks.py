"""Locks: of this process's threads, and of files between processes."""

from __future__ import annotations

from threading import Lock

FORK_LOCK = Lock()
"""Held while a file is replaced, a directory made or a process started; ``discard`` takes it for good."""


def lock(descriptor: int, *, exclusive: bool, wait: bool = False) -> bool | None:
    """Lock an open file or directory until its descriptor is closed, which the end of a process does too.

    Return True if it is locked now, False if another process holds it, None if the system has no such locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    mode = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, mode)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True
