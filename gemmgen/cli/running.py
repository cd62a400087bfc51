"""Runs of a command over many specs: in order, and with progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from gemmgen.cli.reporting import complain, tell
from gemmgen.errors import GemmgenError
from gemmgen.literals import visible

if TYPE_CHECKING:
    from gemmgen.tune.measuring import TuningProgress

S = TypeVar("S")
T = TypeVar("T")

WAKING_SECONDS = 0.2
"""Seconds after which the waiting thread wakes: a signal just before its wait does not wake it."""


def run_each(
    paths: Iterable[S],
    action: Callable[[S], T],
    progress: Callable[[str], None] | None = None,
    *,
    parallel: bool = False,
) -> tuple[list[T], bool]:
    """Run an action on each path; print errors; return the results in order, and whether any failed."""

    def attempt(path: S) -> T | GemmgenError:
        if progress:
            progress(str(path))
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
def progressing(what: str) -> Generator[Callable[[str], None]]:
    """Yield a function that shows progress on stderr: a spinner on a terminal, else lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: tell(f"{what} {step}")
        return
    try:
        with console.status(Text(what)) as status:
            yield lambda step: status.update(Text(visible(f"{what} {step}")))  # no markup
    finally:
        console.show_cursor()  # an interrupt can come before the status is there to do it


@contextmanager
def tuning_progress() -> Generator[Callable[[TuningProgress], None]]:
    """Yield a function that shows the progress of tuning: a bar on a terminal, else lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        told: set[tuple[str, str]] = set()

        def tell_once(tick: TuningProgress) -> None:
            text = tick.text.partition(",")[0]
            if (tick.subject, text) not in told:  # not every trial
                told.add((tick.subject, text))
                tell(f"tuning {tick.subject}, {tick.number} of {tick.count}: {text}")

        yield tell_once
        return
    left = TimeRemainingColumn(compact=True)
    what = TextColumn("{task.description}", markup=False)
    with Progress(what, BarColumn(), TaskProgressColumn(), left, console=console) as shown:
        bar = shown.add_task("tuning", total=None)

        def show(tick: TuningProgress) -> None:
            done = (tick.number - 1) * tick.budget + min(tick.spent, tick.budget)
            shown.update(
                bar,
                total=tick.count * tick.budget,
                completed=done,
                description=visible(f"{tick.subject}, {tick.number} of {tick.count}: {tick.text}"),
            )

        yield show


def prefixed(progress: Callable[[str], None], subject: str, step: object) -> None:
    """Tell a step of one subject."""
    progress(f"{subject}: {step}")
