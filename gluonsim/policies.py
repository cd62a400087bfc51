"""Which of the possible next steps is taken, and which program begins next.

Each policy makes asynchronous work late, early, or neither.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gluonsim.findings import refusal

Step = TypeVar("Step")

POLICIES = ("lazy", "eager", "lifo", "random")
"""The last one has a seed."""


def schedules(seeds: int) -> tuple[str, ...]:
    """Return every policy, the random one as many times as there are seeds."""
    return (*POLICIES[:-1], *POLICIES[-1:] * seeds)


DEFAULT_SCHEDULES = schedules(3)


class Policy(Protocol):
    """Chooses among partitions that can go on and asynchronous work that can complete."""

    def choose(self, agents: Sequence[Step], events: Sequence[Step]) -> Step:
        """Return one of the steps; there is at least one, and events are in the order of issue."""
        ...

    def refuses(self) -> bool:
        """Return whether a request for another program is refused although programs are left."""
        ...


class _Generous:
    def refuses(self) -> bool:
        """See `Policy`."""
        return False


class Lazy(_Generous):
    """Asynchronous work completes when nothing else can go on, the oldest first."""

    def choose(self, agents: Sequence[Step], events: Sequence[Step]) -> Step:
        """See `Policy`."""
        return agents[0] if agents else events[0]


class Eager(_Generous):
    """Asynchronous work completes at once, and partitions take turns."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, agents: Sequence[Step], events: Sequence[Step]) -> Step:
        """See `Policy`."""
        self._turn += 1
        return events[0] if events else agents[self._turn % len(agents)]


class Lifo(_Generous):
    """As lazy, but the youngest work completes first and the last partition goes on first."""

    def choose(self, agents: Sequence[Step], events: Sequence[Step]) -> Step:
        """See `Policy`."""
        return agents[-1] if agents else events[-1]


class Random:
    """Any order, the same for the same seed.

    A fair coin at every step would rarely let one side run far ahead, and most faults need that: so how
    likely an event is, and how long one partition goes on, are drawn for each stretch of steps.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._bits = self._random.getrandbits
        self._fraction = self._random.random
        self._steps_left = 0
        self._event_chance = 0.5
        self._favourite = 0
        self._loyalty = 0.0

    def refuses(self) -> bool:
        """See `Policy`."""
        return self._random.random() < 0.1

    def choose(self, agents: Sequence[Step], events: Sequence[Step]) -> Step:
        """See `Policy`."""
        if self._steps_left == 0:
            self._steps_left = self._random.randint(5, 200)
            self._event_chance = self._random.choice((0.02, 0.2, 0.5, 0.9))
            self._favourite = self._random.randrange(64)
            self._loyalty = self._random.choice((0.0, 0.5, 0.95))
        self._steps_left -= 1
        if events and (not agents or self._fraction() < self._event_chance):
            return self._any(events)
        if self._fraction() < self._loyalty:
            return agents[self._favourite % len(agents)]
        return self._any(agents)

    def _any(self, steps: Sequence[Step]) -> Step:
        """Return what `random.choice` does, which takes twice as long."""
        count = len(steps)
        size = count.bit_length()
        place = self._bits(size)
        while place >= count:
            place = self._bits(size)
        return steps[place]


def policy_of(name: str, seed: int) -> Policy:
    """Return the policy of a name.

    Raises:
        GemmgenError: There is none.
    """
    if name == "random":
        return Random(seed)
    policies = {"lazy": Lazy, "eager": Eager, "lifo": Lifo}
    if name not in policies:
        raise refusal(f"no schedule is called {name!r}: there are {', '.join(POLICIES)}")
    return policies[name]()


def sampled(count: int, programs: int | None, seed: int) -> Sequence[int]:
    """Return the numbers of the programs that run, ascending: all of a grid, or a sample of it.

    A sample has the first and the last program, and random ones in between; the first alone if it has one.

    Args:
        count: Programs of the grid.
        programs: Programs of the sample; None for all.
        seed: Seed of the random ones.

    Raises:
        GemmgenError: A sample has no programs.
    """
    if programs is not None and programs < 1:
        raise refusal(f"programs is {programs}: a sample has at least one", code="bad-launch")
    if programs is None or programs >= count:
        return range(count)
    between = random.Random(seed).sample(range(1, count - 1), max(programs - 2, 0))
    return [0] if programs == 1 else [0, *sorted(between), count - 1]


class Pending:
    """The programs of a launch that have not begun: each is launched, or cancelled by one that runs."""

    def __init__(self, programs: Sequence[int], policy: Policy) -> None:
        self._programs = deque(programs)
        self._policy = policy
        self.asked = False
        """True if a program has asked for another one, which the policy may refuse."""

    @property
    def left(self) -> int:
        """Programs that have not begun."""
        return len(self._programs)

    def launch(self) -> int | None:
        """Begin the next program; None when all have begun."""
        return self._programs.popleft() if self._programs else None

    def cancel(self) -> int | None:
        """Hand the next program to one that runs; None is a refusal, which may come at any time."""
        self.asked = True
        return None if self._policy.refuses() else self.launch()


@dataclass(frozen=True)
class Grid:
    """The programs of a launch; with clusters, a program is a cluster."""

    programs: tuple[int, int, int]
    number: int
    """Of the program, in the order of launch."""
    pending: Pending

    @property
    def program(self) -> tuple[int, int, int]:
        """The program's place."""
        return program_at(self.programs, self.number)


def program_at(programs: tuple[int, int, int], number: int) -> tuple[int, int, int]:
    """Return a program's place in the grid, by its number in the order of launch."""
    x, y, _ = programs
    return number % x, number // x % y, number // (x * y)
