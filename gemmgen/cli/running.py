"""Runs of a command over many specs: in order, and with progress on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

from gemmgen.cli.reporting import complain
from gemmgen.errors import GemmgenError
from gemmgen.literals import visible

S = TypeVar("S")
T = TypeVar("T")

Show = Callable[[object], None]
"""Shows the text of a step in place of the step before."""

WAKING_SECONDS = 0.2
"""Seconds after which the waiting thread wakes: a signal just before its wait does not wake it."""


def run_each(
    paths: Iterable[S],
    action: Callable[[S], T],
    progress: Show | None = None,
    *,
    parallel: bool = False,
) -> tuple[list[T], bool]:
    """Run an action on each path; print errors; return the results in order, and whether any failed."""

    def attempt(path: S) -> T | GemmgenError:
        if progress:
            progress(path)
        try:
            return action(path)
        except GemmgenError as error:
            return error

    pool = ThreadPoolExecutor(os.cpu_count() if parallel else 1)
    try:
        attempts = [pool.submit(attempt, path) for path in paths]
        while wait(attempts, WAKING_SECONDS).not_done:
            pass
        outcomes = [done.result() for done in attempts]
    finally:
        # An interrupt does not wait for the threads, whose work can take minutes: the process ends with them.
        pool.shutdown(wait=False, cancel_futures=True)
    results: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, GemmgenError):
            complain(outcome)
        else:
            results.append(outcome)
    return results, len(results) < len(outcomes)


@contextmanager
def progressing(what: str, *, shown: bool = True) -> Generator[Show]:
    """Yield a function that shows a step of a task on the last line of a terminal.

    It shows nothing if stderr is no terminal, where each step would stay as a line, or if `shown` is False.
    """
    if not (shown and _on_terminal()):
        yield _show_nothing
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    status, begun = console.status(""), Event()

    def show(step: object) -> None:
        status.update(Text(visible(f"{what} {step}")))  # no markup
        if not begun.is_set():
            begun.set()
            status.start()

    try:
        yield show
    finally:
        if begun.is_set():
            status.stop()
            console.show_cursor()  # an interrupt can come while the status hides it
        begun.set()  # an interrupt leaves threads that may still show a step


def _on_terminal() -> bool:
    """Return whether stderr is a terminal that can rewrite a line, whatever FORCE_COLOR and the like say."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _show_nothing(_: object) -> None:
    """Show no progress."""


def prefixed(progress: Show, subject: str, step: object) -> None:
    """Show a step of one subject."""
    progress(f"{subject}: {step}")
