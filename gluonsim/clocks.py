"""Vector clocks: what each agent knows to have happened, and how one agent hands that on to another.

A component is an agent (a partition of a CTA) or a lane of asynchronous work that completes in order; an
event is a component with the number that it had. A clock that has at least that number covers the event.
"""

from __future__ import annotations

from typing import NamedTuple

from gluonsim.findings import Work

NUMBER_BITS = 32
"""Of a component's number in a clock; the highest is the guard bit of `maximum`, and always 0."""
NUMBER_MASK = (1 << NUMBER_BITS - 1) - 1


class Component:
    """A component of one program's clocks: where its number stands in them."""

    __slots__ = ("program", "shift")

    def __init__(self, program: int, position: int) -> None:
        self.program = program
        self.shift = position * NUMBER_BITS


class Components:
    """The components of one program's clocks: each gets the next place when it is first needed."""

    def __init__(self, program: int) -> None:
        self._program = program
        self._count = 0

    def add(self) -> Component:
        """Return a new one."""
        self._count += 1
        return Component(self._program, self._count - 1)


Clock = dict[int, int]
"""For each program that is known of, the numbers of its components side by side in one integer: clocks are
joined at every barrier, and one operation on a long integer is as fast as one on a short one."""


def reached(clock: Clock, component: Component) -> int:
    """Return the number that a clock has for a component."""
    return clock.get(component.program, 0) >> component.shift & NUMBER_MASK


class Tick(NamedTuple):
    """One event of a component."""

    component: Component
    number: int

    def known(self, clock: Clock, /) -> bool:
        """Return whether a clock covers it."""
        return reached(clock, self.component) >= self.number

    @property
    def work(self) -> Work:
        """The event as a value that other runs have too."""
        return self.component.program, self.component.shift, self.number


def learn(clock: Clock, component: Component, number: int) -> None:
    """Let a clock cover a component's events up to a number."""
    more = number - reached(clock, component)
    if more > 0:
        clock[component.program] = clock.get(component.program, 0) + (more << component.shift)


def join(clock: Clock, other: Clock) -> None:
    """Let `clock` cover what `other` covers too."""
    for program, numbers in other.items():
        known = clock.get(program)
        if known is None:
            clock[program] = numbers
        elif known != numbers:
            clock[program] = maximum(known, numbers)


_guards = 1 << NUMBER_BITS - 1
"""The guard bits of as many numbers as any clock has had."""


def maximum(a: int, b: int) -> int:
    """Return the larger of each two numbers that stand side by side in `a` and in `b`."""
    global _guards
    while a > _guards or b > _guards:
        _guards |= _guards << _guards.bit_length()
    no_less = (a | _guards) - b & _guards  # a guard bit is left where nothing had to be borrowed from it
    chosen = no_less - (no_less >> NUMBER_BITS - 1)
    return b ^ (a ^ b) & chosen


class Knowledge:
    """What one agent has acquired, and how much of it a proxy fence has made visible to asynchronous work."""

    def __init__(self, component: Component) -> None:
        self.component = component
        self.now = 0
        """Number of this agent's present: what it does counts as done then."""
        self.clock: Clock = {component.program: 0}
        self.fenced: Clock = {}
        self._program, self._one = component.program, 1 << component.shift
        self.tick()

    def tick(self) -> None:
        """Begin a new present: what comes now is not covered by what was released before."""
        self.now += 1
        self.clock[self._program] += self._one

    def fence(self) -> None:
        """Order all generic accesses known here before the asynchronous ones issued from now on."""
        self.fenced = dict(self.clock)
        self.tick()

    def acquire(self, released: Released) -> None:
        """Learn what others released."""
        join(self.clock, released.clock)
        join(self.fenced, released.fenced)

    def release(self) -> Released:
        """Publish what is known here to whoever gets what returns."""
        released = Released(self.clock, self.fenced)
        self.tick()
        return released

    def release_into(self, released: Released) -> None:
        """Publish what is known here."""
        join(released.clock, self.clock)
        join(released.fenced, self.fenced)
        self.tick()


class Released:
    """What a barrier's next waiter will learn. A fence before the release counts for the waiter too [ptx]."""

    __slots__ = ("clock", "fenced")

    def __init__(self, clock: Clock | None = None, fenced: Clock | None = None) -> None:
        self.clock: Clock = clock.copy() if clock else {}
        self.fenced: Clock = fenced.copy() if fenced else {}

    def copy(self) -> Released:
        """Return an independent copy."""
        return Released(self.clock, self.fenced)
