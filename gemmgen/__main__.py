"""The process of the command line: how it starts and how it ends."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from gemmgen.processes.forking import ENDINGS
from gemmgen.processes.workers import discard

GARBAGE_THRESHOLDS = (50_000, 20, 20)
"""Thresholds of the garbage collector for a process whose objects are mostly imported and stay: with Python's
own thresholds, collections take a fifth of the time to import torch."""


def _open_streams() -> None:
    """Open the standard streams that whoever started this process has closed, on nothing.

    Else the next file that is opened would take their numbers, and be printed into.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))


def _command_line() -> Callable[[], None]:
    from gemmgen.cli import main

    return main


def run(load: Callable[[], Callable[[], None]] = _command_line) -> None:
    """Run a command line; the process ends here, with its exit code.

    `load` imports it and returns what runs it, which ends by SystemExit.
    """
    _open_streams()
    # With `python -m` the working directory comes first: files in it must not be imported in place
    # of modules that the command needs, unless this very package is there.
    here = Path.cwd()
    if sys.path[0] in ("", str(here)) and not (here / "gemmgen" / "cli" / "app.py").is_file():
        del sys.path[0]
    # While nothing runs that has to be undone, a signal ends the process without a traceback.
    heeded = [number for number in ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, signal.SIG_DFL)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    main = load()
    received: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        received.append(number)
        for again in heeded:
            signal.signal(again, signal.SIG_IGN)  # ending takes no time, but must not be cut off
        sys.exit(128 + number)

    for number in heeded:
        signal.signal(number, end)
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        if not received:  # a terminal that hung up cannot be written to, which is not worth a word
            raise
    for number in heeded:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    discard()
    # Not through Python's own end, which waits for the threads that an interrupt leaves, and at which
    # Triton's binding library reports leaks of its own on stderr.
    os._exit(128 + received[0] if received else code if isinstance(code, int) else 1)


if __name__ == "__main__":
    run()
