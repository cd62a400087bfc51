"""Vector clocks: what each agent knows to have happened, and the mbarriers that hand it on.

A component is an agent (a partition of a CTA) or a lane of asynchronous work that completes in order; an
event is a component with the number that it had. A clock that has at least that number covers the event.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from gemmgen.simulate.findings import UNKNOWN, Location, Moment

Component = Hashable
Clock = dict[Component, int]


def join(clock: Clock, other: Mapping[Component, int]) -> None:
    """Let `clock` cover what `other` covers too."""
    known = clock.get
    clock.update({component: number for component, number in other.items() if number > known(component, 0)})


class Knowledge:
    """What one agent has acquired, and how much of it a proxy fence has made visible to asynchronous work."""

    def __init__(self, component: Component) -> None:
        self.component = component
        self.clock: Clock = {component: 1}
        self.fenced: Clock = {}

    @property
    def now(self) -> int:
        """Number of this agent's present: what it does counts as done then."""
        return self.clock[self.component]

    def tick(self) -> None:
        """Begin a new present: what comes now is not covered by what was released before."""
        self.clock[self.component] += 1

    def fence(self) -> None:
        """Order all generic accesses known here before the asynchronous ones issued from now on."""
        self.fenced = dict(self.clock)
        self.tick()

    def acquire(self, released: Released) -> None:
        """Learn what others released."""
        join(self.clock, released.clock)
        join(self.fenced, released.fenced)

    def release_into(self, released: Released) -> None:
        """Publish what is known here."""
        join(released.clock, self.clock)
        join(released.fenced, self.fenced)
        self.tick()


class Released:
    """What a barrier's next waiter will learn. A fence before the release counts for the waiter too [ptx]."""

    def __init__(self) -> None:
        self.clock: Clock = {}
        self.fenced: Clock = {}

    def copy(self) -> Released:
        """Return an independent copy."""
        other = Released()
        other.clock = dict(self.clock)
        other.fenced = dict(self.fenced)
        return other


@dataclass(frozen=True)
class Arrival:
    """One arrival, for the report of a deadlock."""

    count: int
    who: str
    location: Location

    def __str__(self) -> str:
        return f"{self.count} by {self.who} at {self.location}"


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
        self.in_flight: dict[int, int] = {}
        """Bytes of each load that was issued and has not signalled yet, by the load's number."""
        self._targets: dict[int, Component] = {}
        """Where the loads of `in_flight` go to."""
        self._filled: set[Component] = set()
        self._filled_before: set[Component] = set()
        self.overtaken = False
        """Whether a load went to where another one of its phase goes: it was a phase too early, and bytes
        are counted in wrong phases from then on."""
        self._accumulating = Released()
        self._completed = Released()

    def passes(self, parity: int) -> bool:
        """Whether the last completed phase has this parity; before phase 0 comes one of parity 1 [ptx]."""
        return self.phases & 1 != parity & 1

    def acquire(self, knowledge: Knowledge) -> None:
        """Let a waiter learn what the completed phases published."""
        knowledge.acquire(self._completed)

    def arrive(self, count: int, who: str, location: Location, knowledge: Knowledge) -> bool:
        """Count an arrival that publishes what the agent knows; return False where it is one too many.

        The hardware's behaviour is then undefined; here the surplus is lost, so that the run goes on.
        """
        knowledge.release_into(self._accumulating)
        return self._count(count, who, location)

    def arrive_later(self, who: str, location: Location, released: Released) -> bool:
        """Count one arrival that publishes what was known when it was asked for; see `arrive`."""
        join(self._accumulating.clock, released.clock)
        join(self._accumulating.fenced, released.fenced)
        return self._count(1, who, location)

    def _count(self, count: int, who: str, location: Location) -> bool:
        self.arrivals.append(Arrival(count, who, location))
        self.pending -= count
        if self.pending < 0:
            self.pending = 0
            return False
        return True

    def expect(self, size: int, partition: str, location: Location, moment: Moment) -> None:
        """Let the current phase await bytes too."""
        self.expect_moment = moment
        self.expected_bytes += size
        self.expect_partition = partition
        self.expect_location = location

    def issue(self, size: int, load: int, target: Component) -> None:
        """Await the bytes of a load that goes to the lane `target`."""
        self.in_flight[load] = size
        self._targets[load] = target
        self.overtaken |= target in self._filled
        self._filled.add(target)

    def receive(self, size: int, load: int, published: Released) -> None:
        """Count a load's bytes; its completion publishes its write and what its issuer knew."""
        self.received_bytes += size
        del self.in_flight[load], self._targets[load]
        join(self._accumulating.clock, published.clock)
        join(self._accumulating.fenced, published.fenced)

    @property
    def lacks_load(self) -> bool:
        """Whether a load of the phase before has none that corresponds to it in the current one."""
        return not self._filled_before <= self._filled

    @property
    def known(self) -> Clock:
        """What those that have arrived in the current phase know."""
        return self._accumulating.clock

    @property
    def complete(self) -> bool:
        """Whether the current phase has nothing more to await."""
        return self.pending == 0 and self.expected_bytes == self.received_bytes

    def advance(self) -> None:
        """Begin the next phase."""
        self.phases += 1
        self.pending = self.count
        self.arrivals = []
        self.expected_bytes = self.received_bytes = 0
        self._filled_before, self._filled = self._filled, set(self._targets.values())
        self._completed = self._accumulating.copy()

    def __str__(self) -> str:
        """Say what the current phase still awaits."""
        so_far = "; ".join(map(str, self.arrivals)) or "none"
        text = f"phase {self.phases} has {self.count - self.pending} of {self.count} arrivals ({so_far})"
        if self.expected_bytes or self.received_bytes:
            text += f" and {self.received_bytes:,} of {self.expected_bytes:,} bytes"
        return text
