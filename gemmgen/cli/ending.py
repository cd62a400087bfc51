"""The end of a run of the command line: its exit code, with a diagnostic for each error of the user."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import typer

from gemmgen.cli.reporting import RUN, complain, print_report, tell_warning, write_sarif
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.literals import visible

USAGE_CODE = "usage"
"""The code of a diagnostic about the words of the command line."""


def run_command(app: Callable[..., object], arguments: Sequence[str], name: str = "gemmgen") -> int:
    """Run a command line and return its exit code; each error that a user can cause is a diagnostic.

    `app` is called as Typer's are; `name` is the command that the user has typed.
    """
    RUN.begin(as_json="--json" in arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a title may have letters that a terminal lacks
    try:
        with warnings.catch_warnings():
            warnings.showwarning = tell_warning
            code = ended(lambda: _called(app, name))
        return max(code, ended(_finish)) if code in (0, 1, 2) else code
    except BrokenPipeError:
        # The reader of stdout has gone, so nothing is reported.
        _forget(sys.stdout)
        return 1


def _called(app: Callable[..., object], name: str) -> int:
    """Call the application; print wrong usage, whose exit code is 2."""
    try:
        code = app(prog_name=name, standalone_mode=False)
    except typer.Abort:
        return 1
    except Exception as error:
        if not isinstance(error, _USAGE):
            raise
        wrong: Any = error
        place = getattr(getattr(wrong, "ctx", None), "command_path", name)
        RUN.diagnostics.append(Diagnostic(place, USAGE_CODE, wrong.format_message()))
        wrong.message = visible(wrong.message or "")  # it may quote the command's words
        wrong.show()
        return int(wrong.exit_code)
    return code if isinstance(code, int) else 0


_USAGE = typer.BadParameter.__mro__[2]
"""The error of Click for wrong usage; Typer may bring its own Click and exports only this subclass."""


def ended(step: Callable[[], int]) -> int:
    """Run a step and return its exit code: 1, with diagnostics, if it raises GemmgenError or OSError.

    Likewise if the memory of the GPU does not suffice, whichever stage it was.
    """
    try:
        return step()
    except GemmgenError as error:
        complain(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        # A full disk, a directory that went away: what no stage can foresee.
        complain(GemmgenError([_machine(error)]))
    except Exception:
        from gemmgen.device import memory_faults  # which `gemmgen --help` has no need of

        try:
            with memory_faults(""):
                raise
        except GemmgenError as error:
            complain(error)
    return 1


def _machine(error: OSError) -> Diagnostic:
    """Return the diagnostic of an error of the operating system: a file, or output that cannot be printed."""
    message = error.strerror or str(error)
    if error.filename is None:
        try:
            os.write(sys.stdout.fileno(), b"")  # even of nothing a full device has no place
        except (OSError, ValueError):
            return _unprintable(error)
    return Diagnostic(str(error.filename or "this machine"), "machine", message)


def _unprintable(error: OSError) -> Diagnostic:
    """Return the diagnostic that stdout cannot be written, and drop its buffer."""
    _forget(sys.stdout)
    message = f"cannot write: {error.strerror or error}"
    return Diagnostic("standard output", "cannot-write", message)


def _forget(stream: Any) -> None:
    """Discard the buffer of a stream, which Python would try to write at its exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _finish() -> int:
    """Write the report of a run at its end, and return the exit code."""
    code = ended(_log)
    try:
        if RUN.as_json:
            print_report()
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise GemmgenError([_unprintable(error)]) from error
    return code


def _log() -> int:
    write_sarif()
    return 0
