"""Processes that are kept for the next call: a fork costs a quarter of a short compilation."""

from __future__ import annotations

import atexit
import errno
import faulthandler
import gc
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gemmgen.processes.forking import Child, LateError, LostError, kill_children
from gemmgen.processes.locks import FORK_LOCK
from gemmgen.processes.scratch import is_full, remove_directories

T = TypeVar("T")

Call = tuple[Mapping[str, str], str | None, Callable[[], Any]]
"""The environment, the working directory, and the function of a call."""

MOST_CALLS = 64
"""Calls after which a worker is ended: each compilation leaves some memory in it."""

STANDARD = (0, 1, 2)
"""The descriptors of standard input, output and error."""

_IDLE: dict[int, list[tuple[Child[Call, Any], int]]] = {}
"""The workers that wait for a call, each with the number of calls that it has answered, by the process that
started them: a process forked from it has none.
"""


def call_in_worker(
    function: Callable[[], T], seconds: float | None = None, begun: Callable[[], None] = lambda: None
) -> T:
    """Run a function in a worker, and return its result.

    The function is handed over by pickle: a function of a module, with arguments. It sees this process's
    environment and working directory, and all else as it was when the worker was forked.

    Raises:
        LostError: The function raised an exception, or the worker ended before there was a result, or took
            longer than `seconds` (`LateError`).
        GemmgenError: The function's own.
    """
    worker, calls = _waiting() or (Child(partial(_ready_for_calls, _descriptors())), 0)
    try:
        result = worker.ask((dict(os.environ), _working_directory(), function), seconds, begun)
    except BaseException:
        worker.end()
        raise
    if calls + 1 < MOST_CALLS:
        _IDLE.setdefault(os.getpid(), []).append((worker, calls + 1))
    else:
        worker.end()
    return result


def run_in_worker(
    function: Callable[[], object],
    directory: Path,
    environment: Mapping[str, str],
    timeout: float,
    begun: Callable[[], None] = lambda: None,
) -> subprocess.CompletedProcess[str]:
    """Run a function in a worker, and return its exit code and the text that it printed.

    The function is handed over as by `call_in_worker`. It has `environment` besides this process's variables;
    `directory` takes its output and its temporary files. An exception in it is an exit code of 1. `begun` is
    called once it is under way.

    Raises:
        subprocess.TimeoutExpired: It took longer than `timeout` seconds; its processes were killed.
        OSError: It failed, and `directory` is full: its output may be lost.
    """
    environment = {**environment, "TMPDIR": str(directory)}
    printed = directory / "stdout", directory / "stderr"
    try:
        status = call_in_worker(partial(printing, function, printed, environment), timeout, begun)
    except LateError as late:
        raise subprocess.TimeoutExpired("the child", timeout) from late
    except LostError as lost:
        status = lost.returncode or 1
    if status and is_full(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
    stdout, stderr = (path.read_text(encoding="utf-8", errors="replace") for path in printed)
    return subprocess.CompletedProcess("the child", status, stdout, stderr)


def _waiting() -> tuple[Child[Call, Any], int] | None:
    """Return a worker that waits for a call and its number of calls, None if there is none."""
    waiting = _IDLE.get(os.getpid(), [])
    with suppress(IndexError):  # there is none
        while not (last := waiting.pop())[0].answers():
            last[0].end()
        return last
    return None


@atexit.register
def _end_idle() -> None:
    """End the workers that wait for a call."""
    waiting = _IDLE.pop(os.getpid(), [])
    while waiting:
        waiting.pop()[0].end()


def _working_directory() -> str | None:
    """Return the working directory of this process, None if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _descriptors() -> dict[int, tuple[int, int]]:
    """Return the open descriptors of this process, each with the device and the inode of its file."""
    found: dict[int, tuple[int, int]] = {}
    with suppress(OSError):  # a system without /proc
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # by which they are listed is closed by now
                status = os.fstat(int(path.name))
                found[int(path.name)] = status.st_dev, status.st_ino
    return found


# --- in a worker

_INHERITED: list[Any] = []
"""File objects of the parent: to delete them would close descriptors that are in use."""


def _ready_for_calls(inherited: Mapping[int, tuple[int, int]]) -> Callable[[Call], Any]:
    """Prepare the process for calls, and return the function that makes them.

    A process that outlives a call must not keep the other ends of the parent's pipes open: `inherited` has
    the descriptors that the parent had open before it made the pipes of this process.
    """
    faulthandler.disable()  # it would print to the parent's stderr when a kernel aborts this process
    gc.disable()  # a worker ends after `MOST_CALLS`: to look for garbage would only cost time
    _INHERITED.extend((sys.stdin, sys.stdout, sys.stderr))
    _print_nowhere()
    for descriptor in _descriptors().items() & inherited.items():
        if descriptor[0] not in STANDARD:
            os.close(descriptor[0])
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    # Files in the user's directory must not be imported in place of modules that a function needs.
    sys.path[:] = [entry for entry in sys.path if entry]
    return _called


def _print_nowhere() -> None:
    """Drop the parent's output, so that its readers see when the parent has ended."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in STANDARD:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _called(call: Call) -> Any:
    environment, directory, function = call
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    tempfile.tempdir = None  # it would remember that of another call
    if directory is not None:
        with suppress(OSError):
            os.chdir(directory)
    try:
        return function()
    finally:
        _print_nowhere()


def printing(
    function: Callable[[], object], printed: tuple[Path, Path], environment: Mapping[str, str]
) -> int:
    """Run a function that prints into two files, and return the exit code that it would have."""
    code = 1
    for descriptor, path in zip((1, 2), printed, strict=True):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    os.environ.update(environment)
    tempfile.tempdir = None  # it would remember the parent's
    try:
        function()
        code = 0
    except SystemExit as ended:  # it wants to end, and without a word
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # the parent reports it, whatever it is
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


# --- the end of this process


def discard() -> None:
    """End the processes and remove the directories that are open, because this process is about to end.

    A file that is being written is written as a whole first, and nothing can be opened any more.
    """
    FORK_LOCK.acquire()
    kill_children()
    remove_directories()
