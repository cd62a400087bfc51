"""The compiler in a process of its own, for illegal kernels can abort it."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import NoReturn

from gemmgen.simulate.errors import refusal


def in_child(compile_: Callable[[], str]) -> str:
    """Run a function in a forked child and return its text; what it printed explains a failure."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns about threads. The child uses none of the parent's: the compiler has its own.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        answer(compile_, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        received = pipe.read()
    _, status = os.waitpid(child, 0)
    if not received:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "no message"
        raise refusal(f"Triton aborts on the kernel ({how})", code="lowering-failed")
    worked, text = pickle.loads(received)
    if not worked:
        raise refusal(f"Triton refuses the kernel: {text}", code="lowering-failed")
    return text


def answer(compile_: Callable[[], str], writing: int) -> NoReturn:
    """In the child: send the result and end without the toolchain's own report of leaks.

    It ends here whatever happens: what follows in the callers is for their own process.
    """
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the compiler would not look for Python's interrupt
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 2)  # MLIR prints its errors there, and Python sees only that there was one
            try:
                outcome = (True, compile_())
            except BaseException as error:  # the parent reports it, whatever it is
                log.seek(0)
                printed = log.read().decode(errors="replace").splitlines()
                told = [line for line in printed if "error" in line.lower()][:1]
                outcome = (False, "; ".join([f"{type(error).__name__}: {error}", *told]))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(outcome))
    finally:
        os._exit(0)
