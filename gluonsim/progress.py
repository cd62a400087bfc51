"""How far a long launch is: one line after some seconds, and then ever more rarely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from gluonsim.findings import refusal

FIRST_SECONDS = 5.0
"""Seconds of a launch before its first line: most launches have ended by then."""
MOST_SECONDS = 60.0
"""Longest time between two lines; until then each wait is as long as all time before it."""


@dataclass(frozen=True)
class Progress:
    """How far a launch is."""

    kernel: str
    done: int
    """Programs that have ended under the current schedule."""
    programs: int
    """Programs that run under each schedule."""
    schedule: str
    """Name of the current schedule."""
    number: int
    """Number of the current schedule, from 1."""
    schedules: int
    seconds: float
    """Time since the launch began."""

    @property
    def estimated_seconds(self) -> float | None:
        """Time of the whole launch at the rate so far; None before the first program has ended."""
        share = (self.number - 1 + self.done / self.programs) / self.schedules
        return self.seconds / share if share else None

    def __str__(self) -> str:
        done = f"{self.done:,} of {self.programs:,} program{'s' * (self.programs != 1)}"
        schedule = f"schedule {self.number} of {self.schedules} ({self.schedule})"
        estimate = self.estimated_seconds
        in_all = "" if estimate is None else f" of about {estimate:.0f} s"
        return f"{self.kernel}: {done}, {schedule}, {self.seconds:.0f} s{in_all}"


Tell = Callable[[Progress], None]
"""Shows how far a launch is; ``str`` of its argument is one line."""


def at_most(seconds: float) -> Tell:
    """Return a function that ends a launch that has taken longer, with an error that says how far it is.

    It is told after five seconds, and then more and more rarely, so a launch may take up to twice as long.
    """

    def tell(progress: Progress) -> None:
        if progress.seconds > seconds:
            raise refusal(f"the launch takes more than {seconds:g} s: {progress}", code="too-long")

    return tell


class Watch:
    """Tells now and then how far a launch is."""

    def __init__(self, tell: Tell, kernel: str, programs: int, schedules: Sequence[str]) -> None:
        self._tell = tell
        self._kernel = kernel
        self._programs = programs
        self._schedules = schedules
        self._position = 0
        self._begin = perf_counter()
        self._due = self._begin + FIRST_SECONDS

    def begin(self, position: int) -> None:
        """Note that the schedule at a position begins."""
        self._position = position

    def look(self, done: int) -> None:
        """Tell the number of programs that have ended, if it is time to."""
        now = perf_counter()
        if now < self._due:
            return
        seconds = now - self._begin
        self._due = now + min(max(seconds, FIRST_SECONDS), MOST_SECONDS)
        schedule, number = self._schedules[self._position], self._position + 1
        count = len(self._schedules)
        self._tell(Progress(self._kernel, done, self._programs, schedule, number, count, seconds))
