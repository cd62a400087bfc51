"""One mbarrier: phase, pending arrivals, outstanding bytes, and who arrived."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.simulate.clocks import Component, Knowledge, Released, join
from gemmgen.simulate.location import UNKNOWN, Location


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
        self.in_flight: dict[int, int] = {}
        """Bytes of each load that was issued and has not signalled yet, by the load's number."""
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

    def expect(self, size: int, partition: str, location: Location) -> None:
        """Let the current phase await bytes too."""
        self.expected_bytes += size
        self.expect_partition = partition
        self.expect_location = location

    def receive(self, size: int, load: int, component: Component, number: int) -> None:
        """Count a load's bytes; its completion publishes its own write and nothing else."""
        self.received_bytes += size
        del self.in_flight[load]
        clock = self._accumulating.clock
        clock[component] = max(number, clock.get(component, 0))

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
        self._completed = self._accumulating.copy()

    def __str__(self) -> str:
        """Say what the current phase still awaits."""
        so_far = "; ".join(map(str, self.arrivals)) or "none"
        text = f"phase {self.phases} has {self.count - self.pending} of {self.count} arrivals ({so_far})"
        if self.expected_bytes or self.received_bytes:
            text += f" and {self.received_bytes:,} of {self.expected_bytes:,} bytes"
        return text
