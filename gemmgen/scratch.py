"""What a run keeps on the machine while it works: directories for passing files, and processes.

All of it goes with the run, however that ends: ``discard`` undoes what is open when a signal ends it. After a
``kill -9`` the processes end by themselves, and the next run removes the directories.
"""

from __future__ import annotations

import atexit
import errno
import faulthandler
import gc
import os
import pickle
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Generic, NoReturn, TypeVar

from gemmgen.errors import Diagnostic, GemmgenError

ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to end. The exit code of each is 128 and its number, as shells say it."""

T = TypeVar("T")
U = TypeVar("U")

HOLD = Lock()
"""Held while a file is replaced, a directory made or a process started; ``discard`` takes it for good."""

_DIRECTORIES: dict[Path, int] = {}
"""The open directories of this process, each with the descriptor that locks it."""

_GROUPS: set[int] = set()
"""The process groups that this process has started and not yet seen end."""

_NAME = re.compile(r"gemmgen-scratch-\d+-\w{8}")
"""How the directories are called: by the process that made them, and at random."""

LENGTH_BYTES = 8
"""Of the number of bytes ahead of each answer."""

STANDARD = (0, 1, 2)
"""The descriptors of what a process reads and prints."""

SECONDS_TO_LOOK = 0.2
"""How often a process looks whether the one that started it is still there."""

SECONDS_TO_DIE = 2.0
"""How long a process that was killed may take to be gone."""


# --- locks


def lock(descriptor: int, *, exclusive: bool, wait: bool = False) -> bool | None:
    """Lock an open file or directory until its descriptor is closed, which the end of a process does too.

    Returns whether it is locked now: False where another holds it, None where nothing can be locked.
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


# --- directories


@contextmanager
def scratch() -> Generator[str]:
    """Give the path of a new directory, which goes at the end of the context.

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
"""What a system says where a file system, or a user's part of it, has no space left."""

PROBE_BYTES = 1 << 18
"""With less than this left in a place for temporary files, that is why a compiler has failed."""


def is_full(directory: Path) -> bool:
    """Whether a directory has no space for another file."""
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
    with HOLD:
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


# --- processes


def run_kept(
    function: Callable[[], object],
    directory: Path,
    environment: Mapping[str, str],
    timeout: float,
    begun: Callable[[], None] = lambda: None,
) -> subprocess.CompletedProcess[str]:
    """Run a function in a process that is kept, and return how that ended and what it printed.

    `in_kept` says what the function must be. It has `environment` besides this process's; `directory` takes
    what it prints, and whatever it puts into temporary files. An exception in it is a return code of 1.
    `begun` is called once it is under way.

    Raises:
        subprocess.TimeoutExpired: It took longer than `timeout` seconds; it and what it started are gone.
        OSError: It failed, and `directory` is full: what it printed may be lost.
    """
    environment = {**environment, "TMPDIR": str(directory)}
    try:
        status = in_kept(partial(printing, function, _printed(directory), environment), timeout, begun)
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
    """Run a function in a forked process for as long as the context lasts; yield what waits for its result.

    The result is handed over by pickle. The process leads a group of its own, and an interrupt ends it
    without a word; an exception in the function must be part of its result.

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

    In it, ``start`` makes the function that answers. Requests and answers are handed over by pickle; an
    exception must be part of an answer. With `alone`, nothing is open in it that is open here: a process that
    outlives one call would keep the other ends of pipes waiting.
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
        """Return the answer, which may take so long; `begun` is called once the request is on its way.

        Without `seconds` it may take any time.

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
    def is_there(self) -> bool:
        """Whether the process could answer."""
        return not select.select([self._gone], [], [], 0)[0]

    def end(self) -> None:
        """End the process; there is nobody to ask any more."""
        self._ended()
        _GROUPS.discard(self.group)
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        os.close(self._gone)

    def _ended(self) -> int:
        """End the process, unless it has ended by itself; one thread may interrupt another that waits."""
        with self._reaping:
            if self._returncode is None:
                _kill(self.group)
                _, status = os.waitpid(self.group, 0)
                self._returncode = os.waitstatus_to_exitcode(status)
            return self._returncode


@contextmanager
def serving(start: Callable[[], Callable[[T], U]]) -> Generator[Callable[[T, float], U]]:
    """Keep a `Server` for as long as the context lasts; yield how it is asked."""
    server = Server(start)
    try:
        yield server.ask
    finally:
        server.end()


Call = tuple[Mapping[str, str], str | None, Callable[[], Any]]
"""The environment, the working directory, and a function."""

MOST_KEPT_CALLS = 64
"""After which a process that is kept for calls goes: each compilation leaves it some memory."""

_KEPT: dict[int, list[_Kept]] = {}
"""The processes that wait for a call, by the process that started them: one forked from it has none."""


@dataclass
class _Kept:
    """A process that is kept for more than one call."""

    server: Server[Call, Any]
    calls: int = 0


def in_kept(
    function: Callable[[], T], seconds: float | None = None, begun: Callable[[], None] = lambda: None
) -> T:
    """Run a function in a forked process that is kept for the next call, and return its result.

    The function is handed over by pickle: it is one of a module, with arguments. It sees this process's
    environment and working directory, and all else as it was when the process was forked; an exception must
    be part of its result. To fork for each call costs a quarter of a short compilation, and more the larger
    this process is.

    Raises:
        LostError: The process ended before there was a result, or took too long (`LateError`).
    """
    kept = _waiting() or _Kept(Server(_ready_for_calls, alone=True))
    try:
        call = (dict(os.environ), _working_directory(), function)
        result = kept.server.ask(call, seconds, begun)
    except BaseException:
        kept.server.end()
        raise
    kept.calls += 1
    if kept.calls < MOST_KEPT_CALLS:
        _KEPT.setdefault(os.getpid(), []).append(kept)
    else:
        kept.server.end()
    return result


def _waiting() -> _Kept | None:
    """Return a process that waits for a call, if there is one."""
    waiting = _KEPT.get(os.getpid(), [])
    with suppress(IndexError):  # there is none
        while not (kept := waiting.pop()).server.is_there:
            kept.server.end()
        return kept
    return None


@atexit.register
def _end_kept() -> None:
    """End the processes that wait for a call."""
    waiting = _KEPT.pop(os.getpid(), [])
    while waiting:
        waiting.pop().server.end()


_OF_PARENT: list[Any] = []
"""In a process that is kept, objects of files that it has closed: they must not close what is open now."""


def _ready_for_calls() -> Callable[[Call], Any]:
    """In the child: get ready for calls, and return what makes them."""
    faulthandler.disable()  # it would print to the parent's stderr when a kernel aborts this process
    gc.disable()  # a process that goes after so many calls needs no search for what they leave
    _OF_PARENT.extend((sys.stdin, sys.stdout, sys.stderr))
    _print_nowhere()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    # Files beside the user must not be imported in place of what a function needs.
    sys.path[:] = [entry for entry in sys.path if entry]
    return _called


def _print_nowhere() -> None:
    """In the child: who reads what the parent prints must see when the parent has ended."""
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
    """Return where this process works; None where that is gone."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _fork(in_child: Callable[[int, Set[int]], NoReturn]) -> int:
    """Fork a process that runs a function, and return its id.

    The function gets the id of this process, and the signals that it has to unblock.
    """
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with HOLD, warnings.catch_warnings():
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
    """In the child: be a process of its own, that ends with its parent and by the signals that end others."""
    HOLD.release()  # this process was forked in the middle of holding it
    gc.freeze()  # to look for garbage in what the parent has would copy all of its memory
    end_with_parent(parent)
    # Compilers would not look for Python's handlers of these.
    for number in ENDINGS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _answer(
    function: Callable[[], object], reading: int, writing: int, parent: int, blocked: Set[int]
) -> NoReturn:
    """In the child: send the result and end, whatever happens: what follows is for the parent."""
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
    """In the child: answer until there are no more requests, and end: what follows is for the parent."""
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
    """Return what this process has open, besides some, and what it reads and prints."""
    return {int(path.name) for path in Path("/proc/self/fd").iterdir()} - {*STANDARD, *descriptors}


def _leave(code: int) -> NoReturn:
    """In the child: end it, and what it keeps.

    A fresh compile makes nanobind report leaks at exit, on the descriptor that carries errors: skip that.
    """
    with suppress(BaseException):
        _end_kept()
    os._exit(code)


def printing(
    function: Callable[[], object], printed: tuple[Path, Path], environment: Mapping[str, str]
) -> int:
    """In a child: run a function that prints into two files; return the code that it would end with."""
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


@contextmanager
def started(group: int) -> Generator[None]:
    """Know of a process group for as long as the context lasts, so that it ends if this process has to."""
    _GROUPS.add(group)
    try:
        yield
    finally:
        _GROUPS.discard(group)


def end_with_parent(parent: int) -> None:
    """Make this process lead a group, and end it with all that it starts once its parent is gone."""
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


# --- the end


def discard() -> None:
    """End the processes and remove the directories that are open, for this process is about to end.

    What is being written is written as a whole first, and nothing can be opened any more.
    """
    HOLD.acquire()
    _end_kept()  # nobody waits for these
    for group in tuple(_GROUPS):
        _kill(group)
    end = time.monotonic() + SECONDS_TO_DIE
    while _GROUPS and time.monotonic() < end:
        time.sleep(0.005)  # the threads that wait for them see them end
        _end_kept()  # one that has just answered
    for path in tuple(_DIRECTORIES):
        shutil.rmtree(path, ignore_errors=True)
