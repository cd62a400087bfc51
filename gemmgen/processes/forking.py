"""Forked processes that hand their results over by pickle, and end with the process that started them."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Generic, NoReturn, TypeVar

from gemmgen.processes.locks import FORK_LOCK

ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a process. Its exit code is then 128 plus the signal's number, as shells say it."""

T = TypeVar("T")
U = TypeVar("U")

_GROUPS: set[int] = set()
"""The process groups that this process has started and not yet seen end."""

LENGTH_BYTES = 8
"""Bytes of the length in front of each answer."""

STANDARD = (0, 1, 2)
"""The descriptors of standard input, output and error."""

SECONDS_TO_LOOK = 0.2
"""Seconds between two looks of a process whether its parent is still alive."""

SECONDS_TO_DIE = 2.0
"""Seconds that a killed process may take to be gone."""


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LostError(Exception):
    """A forked process ended without a result; the text says how."""

    def __init__(self, returncode: int, how: str = "") -> None:
        super().__init__(returncode, how or (f"signal {-returncode}" if returncode < 0 else "no message"))
        self.returncode = returncode
        """Negative for a signal."""

    def __str__(self) -> str:
        return str(self.args[1])


class LateError(LostError):
    """A forked process took too long and was killed for that."""


@contextmanager
def forked(function: Callable[[], T]) -> Generator[Callable[[], T]]:
    """Run a function in a forked process for as long as the context lasts; yield the way to its result.

    The yielded function waits for the result, which is handed over by pickle. The process leads a group of
    its own, and an interrupt ends it without a word; an exception in the function must be part of its result.

    Raises:
        LostError: The process ended before it had a result.
    """
    reading, writing = os.pipe()
    child = _fork(partial(_answer, function, reading, writing))
    os.close(writing)
    status: int | None = None

    def result() -> T:
        nonlocal status
        received = pipe.read()
        _, status = os.waitpid(child, 0)
        if not received:
            raise LostError(os.waitstatus_to_exitcode(status))
        return pickle.loads(received)

    with started(child), os.fdopen(reading, "rb") as pipe:
        try:
            yield result
        finally:
            if status is None:  # nobody waits for it any more
                _kill(child)
                os.waitpid(child, 0)


class Server(Generic[T, U]):
    """A forked process that answers one request after the other, until it is ended.

    In the process, ``start`` makes the function that answers. Requests and answers are handed over by pickle;
    an exception must be part of an answer. With `alone`, the process closes all files that it inherits: a
    process that outlives a call would keep the other ends of pipes open.
    """

    def __init__(self, start: Callable[[], Callable[[T], U]], *, alone: bool = False) -> None:
        (asked, asking), (answered, answering) = os.pipe(), os.pipe()
        of_parent = None if alone else (asking, answered)
        self.group = _fork(partial(_serve, start, of_parent, asked, answering))
        os.close(asked)
        os.close(answering)
        self._requests, self._answers = os.fdopen(asking, "wb"), os.fdopen(answered, "rb")
        self._reaping = Lock()
        self._returncode: int | None = None
        try:
            self._gone = os.pidfd_open(self.group)
        except OSError:
            self._ended()
            _GROUPS.discard(self.group)
            raise

    def ask(self, request: T, seconds: float | None, begun: Callable[[], None] = lambda: None) -> U:
        """Return the answer to a request; `begun` is called once the request is on its way.

        The answer may take `seconds`, or any time if that is None.

        Raises:
            LostError: The process ended before it answered, or took too long (`LateError`). Then it is gone.
        """
        with suppress(BrokenPipeError):  # the process has ended: that is told below
            pickle.dump(request, self._requests)
            self._requests.flush()
        begun()
        # Its end too: a process that another thread forks may keep the pipe open for as long as it lives.
        ready, _, _ = select.select([self._answers, self._gone], [], [], seconds)
        if self._answers in ready:
            received = self._answers.read(LENGTH_BYTES)
            data = self._answers.read(int.from_bytes(received)) if len(received) == LENGTH_BYTES else b""
            if data:
                return pickle.loads(data)
        if ready:  # it is about to end by itself, and how tells why
            with suppress(OSError, ValueError):  # another thread has ended it
                select.select([self._gone], [], [], SECONDS_TO_DIE)
        returncode = self._ended()
        if not ready:
            assert seconds is not None
            raise LateError(returncode, f"no answer within {seconds:g} seconds")
        raise LostError(returncode)

    @property
    def is_alive(self) -> bool:
        """True if the process is alive, so that it can answer."""
        return not select.select([self._gone], [], [], 0)[0]

    def end(self) -> None:
        """End the process and close its pipes."""
        self._ended()
        _GROUPS.discard(self.group)
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        os.close(self._gone)

    def _ended(self) -> int:
        """End the process unless it has ended by itself, and return its exit code; thread-safe."""
        with self._reaping:
            if self._returncode is None:
                _kill(self.group)
                _, status = os.waitpid(self.group, 0)
                self._returncode = os.waitstatus_to_exitcode(status)
            return self._returncode


@contextmanager
def serving(start: Callable[[], Callable[[T], U]]) -> Generator[Callable[[T, float], U]]:
    """Keep a `Server` for as long as the context lasts; yield its method `ask`."""
    server = Server(start)
    try:
        yield server.ask
    finally:
        server.end()


def _fork(in_child: Callable[[int, Set[int]], NoReturn]) -> int:
    """Fork a process that runs a function, and return its id.

    The function gets the id of this process, and the signals that it has to unblock.
    """
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with FORK_LOCK, warnings.catch_warnings():
        # Python 3.12 warns about threads. The child uses none of the parent's.
        warnings.simplefilter("ignore", DeprecationWarning)
        # A handler of this process must not run in the child, which begins with these at their default.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
        try:
            child = os.fork()
            if child == 0:
                in_child(parent, before)
            with suppress(OSError):  # the child does so too: whoever is first
                os.setpgid(child, child)
            _GROUPS.add(child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child


def _begin(parent: int, blocked: Set[int]) -> None:
    """In the child: end with the parent, and by the signals in `ENDINGS`, without the parent's handlers."""
    FORK_LOCK.release()  # this process was forked in the middle of holding it
    gc.freeze()  # a search for garbage in the parent's objects would copy all of its memory
    end_with_parent(parent)
    # Compilers would not look for Python's handlers of these.
    for number in ENDINGS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _answer(
    function: Callable[[], object], reading: int, writing: int, parent: int, blocked: Set[int]
) -> NoReturn:
    """In the child: send the result and end, whatever happens, before any code of the parent runs."""
    try:
        _begin(parent, blocked)
        os.close(reading)
        result = pickle.dumps(function())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(result)
    finally:
        _leave(0)


def _serve(
    start: Callable[[], Callable[[T], object]],
    of_parent: Sequence[int] | None,
    asked: int,
    answering: int,
    parent: int,
    blocked: Set[int],
) -> NoReturn:
    """In the child: answer until there are no more requests, and end before any code of the parent runs."""
    code = 1
    try:
        _begin(parent, blocked)
        for descriptor in _open_besides(asked, answering) if of_parent is None else of_parent:
            with suppress(OSError):  # by which they were listed is closed by now
                os.close(descriptor)
        answer = start()
        with os.fdopen(asked, "rb") as requests, os.fdopen(answering, "wb") as answers:
            while requests.peek(1):
                data = pickle.dumps(answer(pickle.load(requests)))
                answers.write(len(data).to_bytes(LENGTH_BYTES) + data)
                answers.flush()
        code = 0
    finally:
        _leave(code)


def _open_besides(*descriptors: int) -> set[int]:
    """Return the open descriptors of this process, without the given and the standard ones."""
    return {int(path.name) for path in Path("/proc/self/fd").iterdir()} - {*STANDARD, *descriptors}


AT_EXIT: list[Callable[[], None]] = []
"""Functions that a child calls before it ends."""


def _leave(code: int) -> NoReturn:
    """In the child: end the process.

    Python's own exit is skipped: after a fresh compile nanobind would report leaks there, on standard error.
    """
    for function in AT_EXIT:
        with suppress(BaseException):
            function()
    os._exit(code)


@contextmanager
def started(group: int) -> Generator[None]:
    """Register a process group for as long as the context lasts: it is killed if this process has to end."""
    _GROUPS.add(group)
    try:
        yield
    finally:
        _GROUPS.discard(group)


def end_with_parent(parent: int) -> None:
    """Make this process lead a group, and kill the group once its parent is gone."""
    with suppress(OSError):  # it leads one already
        os.setpgid(0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_TO_LOOK)
        os.killpg(0, signal.SIGKILL)

    Thread(target=watch, daemon=True).start()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def kill_groups(again: Callable[[], None]) -> None:
    """Kill all process groups that are open, and wait until they are gone; `again` is called meanwhile."""
    for group in tuple(_GROUPS):
        _kill(group)
    end = time.monotonic() + SECONDS_TO_DIE
    while _GROUPS and time.monotonic() < end:
        time.sleep(0.005)  # the threads that wait for them see them end
        again()
