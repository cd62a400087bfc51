"""Worker processes that are kept for the next call: a fork costs a quarter of a short compilation."""

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gemmgen.processes.forking import AT_EXIT, STANDARD, LateError, LostError, Server, kill_groups
from gemmgen.processes.locks import FORK_LOCK
from gemmgen.processes.scratch import is_full, remove_directories

T = TypeVar("T")

Call = tuple[Mapping[str, str], str | None, Callable[[], Any]]
"""The environment, the working directory, and the function of a call."""

MOST_CALLS = 64
"""Calls after which a worker is ended: each compilation leaves some memory in it."""

_IDLE: dict[int, list[_Worker]] = {}
"""The workers that wait for a call, by the process that started them: a process forked from it has none."""


@dataclass
class _Worker:
    """A process that answers one call after the other."""

    server: Server[Call, Any]
    calls: int = 0


def call_in_worker(
    function: Callable[[], T], seconds: float | None = None, begun: Callable[[], None] = lambda: None
) -> T:
    """Run a function in a worker, and return its result.

    The function is handed over by pickle: a function of a module, with arguments. It sees this process's
    environment and working directory, and all else as it was when the worker was forked; an exception must be
    part of its result.

    Raises:
        LostError: The worker ended before there was a result, or took longer than `seconds` (`LateError`).
    """
    worker = _waiting() or _Worker(Server(_ready_for_calls, alone=True))
    try:
        call = (dict(os.environ), _working_directory(), function)
        result = worker.server.ask(call, seconds, begun)
    except BaseException:
        worker.server.end()
        raise
    worker.calls += 1
    if worker.calls < MOST_CALLS:
        _IDLE.setdefault(os.getpid(), []).append(worker)
    else:
        worker.server.end()
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
    try:
        status = call_in_worker(partial(printing, function, _printed(directory), environment), timeout, begun)
    except LateError as late:
        raise subprocess.TimeoutExpired("the child", timeout) from late
    except LostError as lost:
        status = lost.returncode
    return _completed(status, directory)


def _printed(directory: Path) -> tuple[Path, Path]:
    return directory / "stdout", directory / "stderr"


def _completed(status: int, directory: Path) -> subprocess.CompletedProcess[str]:
    if status and is_full(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
    stdout, stderr = (path.read_text(encoding="utf-8", errors="replace") for path in _printed(directory))
    return subprocess.CompletedProcess("the child", status, stdout, stderr)


def _waiting() -> _Worker | None:
    """Return a worker that waits for a call, None if there is none."""
    waiting = _IDLE.get(os.getpid(), [])
    with suppress(IndexError):  # there is none
        while not (worker := waiting.pop()).server.is_alive:
            worker.server.end()
        return worker
    return None


@atexit.register
def _end_idle() -> None:
    """End the workers that wait for a call."""
    waiting = _IDLE.pop(os.getpid(), [])
    while waiting:
        waiting.pop().server.end()


_INHERITED: list[Any] = []
"""In a worker, file objects of the parent: to delete them would close descriptors that are in use."""


def _ready_for_calls() -> Callable[[Call], Any]:
    """In a worker: prepare the process for calls, and return the function that makes them."""
    faulthandler.disable()  # it would print to the parent's stderr when a kernel aborts this process
    gc.disable()  # a worker ends after `MOST_CALLS`: to look for garbage would only cost time
    _INHERITED.extend((sys.stdin, sys.stdout, sys.stderr))
    _print_nowhere()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    # Files in the user's directory must not be imported in place of modules that a function needs.
    sys.path[:] = [entry for entry in sys.path if entry]
    return _called


def _print_nowhere() -> None:
    """In a worker: drop the parent's output, so that its readers see when the parent has ended."""
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


def _working_directory() -> str | None:
    """Return the working directory of this process, None if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def printing(
    function: Callable[[], object], printed: tuple[Path, Path], environment: Mapping[str, str]
) -> int:
    """In a child: run a function that prints into two files, and return the exit code that it would have."""
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


AT_EXIT.append(_end_idle)


def discard() -> None:
    """End the processes and remove the directories that are open, because this process is about to end.

    A file that is being written is written as a whole first, and nothing can be opened any more.
    """
    FORK_LOCK.acquire()
    _end_idle()  # nobody waits for these
    kill_groups(_end_idle)  # a worker that has just answered becomes idle
    remove_directories()
