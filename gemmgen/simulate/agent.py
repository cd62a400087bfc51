"""One partition of one CTA as it runs, and the asynchronous work that it has issued."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from gemmgen.simulate.clocks import Component, Knowledge
from gemmgen.simulate.findings import Kind
from gemmgen.simulate.location import UNKNOWN, Location
from gemmgen.simulate.memory import Access, Proxy

if TYPE_CHECKING:
    from gemmgen.simulate.cluster import Cluster


class Wait(Protocol):
    """What a partition waits for."""

    location: Location

    def ready(self) -> bool:
        """Whether it has come about."""
        ...


Steps = Generator[Wait | None, None, Any]
"""A partition's execution: it yields where another may go on, with what it must wait for if anything."""


@dataclass(eq=False)
class Event:
    """Asynchronous work that may complete from now on; work of one lane completes in order."""

    lane: list[Event]
    complete: Callable[[], None]


@dataclass(eq=False)
class Accumulator:
    """The result of an asynchronous MMA: no instruction may use it before the MMA has retired."""

    number: int
    """The MMA's number in its lane."""
    location: Location
    value: Tensor | None = None


@dataclass
class Lane:
    """Work of one kind that an agent issues and awaits in order."""

    component: Component
    issued: int = 0
    awaited: int = 0
    events: list[Event] = field(default_factory=list[Event])
    unawaited: list[tuple[int, str, Location]] = field(default_factory=list[tuple[int, str, Location]])
    """Number, variable and place of all work that has not been awaited."""

    def issue(self, name: str, location: Location) -> int:
        """Number the next work."""
        self.issued += 1
        self.unawaited.append((self.issued, name, location))
        return self.issued

    def wait(self, pending: int, knowledge: Knowledge) -> None:
        """Learn that all but the newest `pending` are complete."""
        self.awaited = max(self.awaited, self.issued - pending)
        if self.awaited > 0:
            knowledge.clock[self.component] = self.awaited
        self.unawaited = [work for work in self.unawaited if work[0] > self.awaited]


class Agent:
    """A partition of a CTA: its values, its clock and its lanes."""

    def __init__(self, cluster: Cluster, cta: int, partition: int, label: str) -> None:
        self.cluster = cluster
        self.cta = cta
        self.partition = partition
        self.label = label
        self.key: Component = (cta, partition)
        self.memory = cluster.memories[cta]
        self.values: dict[str, Any] = {}
        self.knowledge = Knowledge(self.key)
        self.mma = Lane(("mma", cta, partition))
        self.tensor_core = Lane(("tensor-core", cta, partition))
        self.store_reads = Lane(("store-read", cta, partition))
        self.store_writes = Lane(("store-write", cta, partition))
        self.steps: Steps | None = None
        self.waiting: Wait | None = None
        self.here = UNKNOWN
        """Where its newest operation comes from."""
        self.done = False

    def get(self, name: str) -> Any:
        """Return a value that an instruction uses now."""
        value = self.values[name]
        return self.use(value) if isinstance(value, Accumulator) else value

    def use(self, accumulator: Accumulator) -> Tensor:
        """Return an accumulator's numbers, which must have been awaited."""
        if accumulator.number > self.mma.awaited:
            name = accumulator.location.name or "<unnamed accumulator>"
            text = "used while the MMA that writes it is in flight: warpgroup_mma_wait must come first"
            self.report(Kind.ACCUMULATOR_IN_FLIGHT, name, (self.cluster.here, accumulator.location), text)
        while accumulator.value is None:
            self.cluster.finish(self.mma.events[0])
        return accumulator.value

    def drain(self, lane: Lane) -> None:
        """Complete all work of a lane that has been awaited."""
        while len(lane.events) > lane.issued - lane.awaited:
            self.cluster.finish(lane.events[0])

    def access(self, what: str, location: Location) -> Access:
        """Return the event of touching memory now, by the generic proxy."""
        return Access(
            self.key,
            self.knowledge.now,
            self.key,
            self.label,
            self.cta,
            Proxy.GENERIC,
            what,
            location,
        )

    def asynchronous(self, component: Component, number: int, what: str, location: Location) -> Access:
        """Return the event of touching memory at some time until work is known to be complete."""
        return Access(component, number, self.key, self.label, self.cta, Proxy.ASYNC, what, location)

    def report(self, kind: Kind, name: str, locations: tuple[Location, ...], text: str) -> None:
        """Report a fault that this agent shows."""
        self.cluster.findings.add(kind, name, locations, self.label, self.cta, text)

    def check_exit(self, location: Location) -> None:
        """Report work that nobody can await any more."""
        for lane, what in ((self.store_reads, "TMA store from it"), (self.mma, "MMA into it")):
            for _, name, issued in lane.unawaited[:1]:
                text = f"the {self.label} ends without having awaited the {what}"
                self.report(Kind.WORK_IN_FLIGHT, name, (issued, location), text)
