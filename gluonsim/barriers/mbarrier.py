"""An mbarrier in shared memory: its phases, and the arrivals and bytes that complete each one."""

from __future__ import annotations

from typing import NamedTuple

from gluonsim.barriers.rounds import Early, Rounds
from gluonsim.clocks import Clock, Component, Knowledge, Released, join
from gluonsim.findings import UNKNOWN, Location, Moment


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
        self.rounds = Rounds(owner)
        """The agents that arrived and waited, to find an arrival that comes a round too early."""
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

    def advance(self) -> list[Early]:
        """Begin the next phase; return the arrivals of the complete phase that came too early."""
        self.phases += 1
        self.pending = self.count
        self.arrivals = []
        self.expected_bytes = self.received_bytes = 0
        self._filled_before, self._filled = self._filled, {target for _, target in self._in_flight.values()}
        self._completed = self._accumulating.copy()
        return self.rounds.advance()

    def __str__(self) -> str:
        """Say what the current phase still awaits."""
        so_far = "; ".join(map(str, self.arrivals)) or "none"
        text = f"phase {self.phases} has {self.count - self.pending} of {self.count} arrivals ({so_far})"
        if self.expected_bytes or self.received_bytes:
            text += f" and {self.received_bytes:,} of {self.expected_bytes:,} bytes"
        return text
