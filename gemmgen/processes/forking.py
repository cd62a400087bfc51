"""Forked processes, each a ``ProcessPoolExecutor`` of one: a compiler that aborts costs only its own call.

A process is forked, and not spawned: it has this process's closures, objects that cannot be pickled, and
compiler, and a script that calls gemmgen needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from gemmgen.errors import GemmgenError
from gemmgen.processes.locks import FORK_LOCK

ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a process. Its exit code is then 128 plus the signal's number, as shells say it."""

SECONDS_TO_LOOK = 0.2
"""Seconds between two looks of a process whether its parent is still alive."""

SECONDS_TO_DIE = 2.0
"""Seconds that a killed process may take to be gone."""

T = TypeVar("T")
U = TypeVar("U")

_GROUPS: set[int] = set()
"""The process groups of the programs that this process has started and not yet seen end."""


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LostError(Exception):
    """A forked process has no result; the text says why."""

    def __init__(self, returncode: int, how: str = "") -> None:
        super().__init__(returncode, how or (f"signal {-returncode}" if returncode < 0 else "no message"))
        self.returncode = returncode
        """Negative for a signal."""

    def __str__(self) -> str:
        return str(self.args[1])


class LateError(LostError):
    """A forked process took too long and was killed for that."""


class Child(Generic[T, U]):
    """A forked process that answers one request after the other, until it is ended.

    In the process, ``start`` makes the function that answers. Requests and answers are handed over by pickle.
    The process leads a group of its own and ends with this one.
    """

    def __init__(self, start: Callable[[], Callable[[T], U]]) -> None:
        """Fork the process.

        Raises:
            LostError: The process ended at once.
            OSError: The system starts no more processes.
        """
        self._ending, self._ended = Lock(), False  # two threads must not shut down one pool
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _begin, (start,))
        with FORK_LOCK, _held_back(), warnings.catch_warnings():
            # Python 3.12 warns about threads. The child uses none of the parent's.
            warnings.simplefilter("ignore", DeprecationWarning)
            asked = self._pool.submit(os.getpid)
        try:
            self.group = asked.result()
            (self._process,) = (each for each in multiprocessing.active_children() if each.pid == self.group)
        except (BrokenProcessPool, ValueError) as error:
            raise LostError(0, "it ended at once") from error

    def submit(self, request: T) -> Future[U]:
        """Return the answer to a request as one that is to come: `wait` for it."""
        return self._pool.submit(_answered, request)

    def wait(self, answer: Future[U], seconds: float | None = None) -> U:
        """Return an answer, which may take `seconds`, or any time if that is None.

        Raises:
            LostError: The function raised an exception, or the process ended before it answered, or took too
                long (`LateError`). In the last two cases it is gone.
            GemmgenError: The function's own.
        """
        try:
            return answer.result(seconds)
        except BrokenProcessPool:
            raise self._lost() from None
        except TimeoutError:
            self.end()
            raise LateError(-signal.SIGKILL, f"no answer within {seconds:g} seconds") from None

    def ask(self, request: T, seconds: float | None = None, begun: Callable[[], None] = lambda: None) -> U:
        """Return the answer to a request as `wait` does; `begun` is called once the request is on its way."""
        try:
            answer = self.submit(request)
        except BrokenProcessPool:  # it has ended since its last answer
            raise self._lost() from None
        begun()
        return self.wait(answer, seconds)

    def answers(self) -> bool:
        """Return True if the process, which has no request, answers: a killed one may take a while to end."""
        try:
            return self._pool.submit(os.getpid).result() == self.group
        except BrokenProcessPool:
            return False

    def _lost(self) -> LostError:
        self.end()
        return LostError(self._process.exitcode or 0)

    def end(self) -> None:
        """End the process, whatever it does."""
        with self._ending:
            if not self._ended:  # later, another process may have its number
                self._ended = True
                _kill(self.group)
                self._pool.shutdown(cancel_futures=True)


@contextmanager
def forked(function: Callable[[], T]) -> Generator[Callable[[], T]]:
    """Run a function in a forked process for as long as the context lasts; yield the way to its result.

    The yielded function waits for the result. It raises the function's own GemmgenError, and LostError for
    another exception or if the process ended before it had a result.
    """
    child = Child[None, T](lambda: lambda _: function())
    try:
        answer = child.submit(None)
        yield lambda: child.wait(answer)
    finally:
        child.end()


@contextmanager
def serving(start: Callable[[], Callable[[T], U]]) -> Generator[Callable[[T, float], U]]:
    """Keep a `Child` for as long as the context lasts; yield its method `ask`."""
    child = Child(start)
    try:
        yield child.ask
    finally:
        child.end()


@contextmanager
def _held_back() -> Generator[None]:
    """Hold back the signals in `ENDINGS`: a process that is being forked would run the parent's handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the child

_answer: Callable[[Any], Any]
"""The function that answers requests."""


def _begin(start: Callable[[], Callable[[Any], Any]]) -> None:
    """Prepare a forked process: it ends by the signals in `ENDINGS`, and with its parent."""
    global _answer
    FORK_LOCK.release()  # this process was forked in the middle of holding it
    gc.freeze()  # a search for garbage in the parent's objects would copy all of its memory
    os.setpgid(0, 0)  # so that what it starts, as ptxas, ends with it
    for number in ENDINGS:  # compilers would not look for Python's handlers of these
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)  # see `_held_back`
    Thread(target=_end_with_parent, daemon=True).start()
    _answer = start()


def _answered(request: Any) -> Any:
    try:
        return _answer(request)
    except GemmgenError:
        raise
    except BaseException as error:  # SystemExit too: it must not end the parent
        raise LostError(1, f"{type(error).__name__}: {error}") from error


def _end_with_parent() -> None:
    """Kill this process's group once its parent is gone."""
    parent = multiprocessing.parent_process()
    while parent and os.getppid() == parent.pid:  # its pipes may be open in its other children
        time.sleep(SECONDS_TO_LOOK)
    os.killpg(0, signal.SIGKILL)


# --- the end of this process


@contextmanager
def started(group: int) -> Generator[None]:
    """Register a process group for as long as the context lasts: it is killed if this process has to end."""
    _GROUPS.add(group)
    try:
        yield
    finally:
        _GROUPS.discard(group)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def kill_children() -> None:
    """Kill all processes that are open, and wait until the forked ones are gone."""
    children = multiprocessing.active_children()
    for group in (*_GROUPS, *(child.pid for child in children if child.pid)):
        _kill(group)
    for child in children:
        child.kill()  # one that does not yet lead its group
        child.join(SECONDS_TO_DIE)
