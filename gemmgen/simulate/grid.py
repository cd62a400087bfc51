"""The programs of a launch: where each is, and which have not begun."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gemmgen.simulate.schedule import Policy


class Pending:
    """The programs of a launch that have not begun: each is launched, or cancelled by one that runs."""

    def __init__(self, programs: int, policy: Policy) -> None:
        self._programs = deque(range(programs))
        self._policy = policy

    @property
    def left(self) -> int:
        """Programs that have not begun."""
        return len(self._programs)

    def launch(self) -> int | None:
        """Begin the next program; None when all have begun."""
        return self._programs.popleft() if self._programs else None

    def cancel(self) -> int | None:
        """Hand the next program to one that runs; None is a refusal, which may come at any time."""
        return None if self._policy.refuses() else self.launch()


@dataclass(frozen=True)
class Grid:
    """The programs of a launch; with clusters, a program is a cluster."""

    programs: tuple[int, int, int]
    program: tuple[int, int, int]
    pending: Pending


def program_at(programs: tuple[int, int, int], number: int) -> tuple[int, int, int]:
    """Return a program's place in the grid, by its number in the order of launch."""
    x, y, _ = programs
    return number % x, number // x % y, number // (x * y)
