"""Vector clocks: what each agent knows to have happened, and the mbarriers that hand it on.

A component is an agent (a partition of a CTA) or a lane of asynchronous work that completes in order; an
event is a component with the number that it had. A clock that has at least that number covers the event.
"""

from __future__ import annotations

from typing import NamedTuple

from gluonsim.findings import UNKNOWN, Location, Moment

NUMBER_BITS = 32
"""Of a component's number in a clock; the highest is the guard bit of `maximum`, and always 0."""
NUMBER_MASK = (1 << NUMBER_BITS - 1) - 1


class Component:
    """A component of one program's clocks: where its number stands in them."""

    __slots__ = ("program", "shift")

    def __init__(self, program: int, position: int) -> None:
        self.program = program
        self.shift = position * NUMBER_BITS


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


class Arrival(NamedTuple):
    """One arrival, for the report of a deadlock."""

    amount: int
    who: str
    location: Location

    def __str__(self) -> str:
        return f"{self.amount} by {self.who} at {self.location}"


class Barrier:
    """An initialised mbarrier in the shared memory of its owner CTA."""

    def __init__(self, name: str, owner: int, count: int) -> None:
        self.name = name
        self.owner = owner
        self.count = count
        self.pending = count
        self.phases = 0
        """Completed phases."""
        self.arrivals: list[Arrival] = []
        """Of the current phase."""
        self.expected_bytes = 0
        self.received_bytes = 0
        self.expect_location = UNKNOWN
        self.expect_partition = ""
        self.expect_moment: Moment | None = None
        self._in_flight: dict[int, tuple[int, Component]] = {}
        """Bytes and lane of each load that was issued and has not signalled yet, by the load's number."""
        self._filled: set[Component] = set()
        """Lanes of the loads of this phase."""
        self._filled_before: set[Component] = set()
        """Of the phase before."""
        self.overtaken = False
        """True if a load went to where another one of its phase goes: it was a phase too early, and bytes
        are counted in wrong phases from then on."""
        self._accumulating = Released()
        self._completed = Released()

    def passes(self, parity: int) -> bool:
        """Return whether the last complete phase has this parity; before phase 0 is one of parity 1 [ptx]."""
        return self.phases & 1 != parity & 1

    def acquire(self, knowledge: Knowledge) -> None:
        """Let a waiter learn what the completed phases published."""
        knowledge.acquire(self._completed)

    def arrive(self, count: int, who: str, location: Location, knowledge: Knowledge) -> None:
        """Count an arrival that publishes what the agent knows.

        If more arrive than the phase awaits, the hardware's behaviour is undefined; here the surplus is lost,
        so that the run goes on.
        """
        knowledge.release_into(self._accumulating)
        self._count(count, who, location)

    def arrive_later(self, who: str, location: Location, released: Released, count: int = 1) -> None:
        """Count arrivals that publish what was known when they were asked for; see `arrive`."""
        join(self._accumulating.clock, released.clock)
        join(self._accumulating.fenced, released.fenced)
        self._count(count, who, location)

    def _count(self, count: int, who: str, location: Location) -> None:
        self.arrivals.append(Arrival(count, who, location))
        self.pending = max(self.pending - count, 0)

    def expect(self, size: int, partition: str, location: Location, moment: Moment) -> None:
        """Let the current phase await bytes too."""
        self.expect_moment = moment
        self.expected_bytes += size
        self.expect_partition = partition
        self.expect_location = location

    def issue(self, size: int, load: int, target: Component) -> None:
        """Await the bytes of a load that goes to the lane `target`."""
        self._in_flight[load] = size, target
        self.overtaken |= target in self._filled
        self._filled.add(target)

    def receive(self, size: int, load: int, published: Released) -> None:
        """Count a load's bytes; its completion publishes its write and what its issuer knew."""
        self.received_bytes += size
        del self._in_flight[load]
        join(self._accumulating.clock, published.clock)
        join(self._accumulating.fenced, published.fenced)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the loads that were issued and have not signalled yet."""
        return sum(size for size, _ in self._in_flight.values())

    @property
    def lacks_load(self) -> bool:
        """Return whether a load of the phase before has none that corresponds to it in the current one."""
        return not self._filled_before <= self._filled

    @property
    def known(self) -> Clock:
        """What those that have arrived in the current phase know."""
        return self._accumulating.clock

    @property
    def complete(self) -> bool:
        """Return whether the current phase has nothing more to await."""
        return self.pending == 0 and self.expected_bytes == self.received_bytes

    def advance(self) -> None:
        """Begin the next phase."""
        self.phases += 1
        self.pending = self.count
        self.arrivals = []
        self.expected_bytes = self.received_bytes = 0
        self._filled_before, self._filled = self._filled, {target for _, target in self._in_flight.values()}
        self._completed = self._accumulating.copy()

    def __str__(self) -> str:
        """Say what the current phase still awaits."""
        so_far = "; ".join(map(str, self.arrivals)) or "none"
        text = f"phase {self.phases} has {self.count - self.pending} of {self.count} arrivals ({so_far})"
        if self.expected_bytes or self.received_bytes:
            text += f" and {self.received_bytes:,} of {self.expected_bytes:,} bytes"
        return text
