"""Accesses to memory: who touches it, by which path, and when."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gluonsim.clocks import NUMBER_MASK, Clock, Component, Tick, reached
from gluonsim.findings import Location, Work

ATOMIC = "atomic on shared memory"
"""The name of an access to an element of shared memory that other partitions may make at the same time."""

INIT, INVALIDATE = "mbarrier.init", "mbarrier.invalidate"
"""The names of the writes that begin and end the life of an mbarrier."""

STORE_OF_THE_SAME = "store to shared memory of what other CTAs hold too"
"""Each of them stores it, into the memory of whoever holds that part of the buffer."""


class Proxy(StrEnum):
    """The path of an access to memory; a fence orders generic accesses before asynchronous ones."""

    GENERIC = "generic"
    ASYNC = "async"
    SCRATCH = "scratch"
    """The path of the compiler's own accesses to scratch memory: it fences them itself."""
    MBARRIER = "mbarrier"
    """The path of operations on the 8 bytes of a barrier, which need no fence."""


class Access(NamedTuple):
    """An event that touches memory."""

    component: Component
    number: int
    """Number that a clock must reach in the component to cover the event."""
    agent: Component
    """Who issued it."""
    partition: str
    cta: int
    proxy: Proxy
    what: str
    """A noun phrase: `TMA load`."""
    location: Location
    program: int = 0
    """Number of the program, in the order of launch; it matters in global memory only."""
    issued: int = 0
    """The number of the issuer's own event, for asynchronous work."""
    follows: bool = False
    """True if it comes after a fault of this run."""

    @property
    def moment(self) -> Tick:
        """When it was issued."""
        return Tick(self.agent, self.issued or self.number)

    @property
    def work(self) -> Work:
        """The event itself, by which a timeline finds it: for asynchronous work its number in its lane."""
        return Tick(self.component, self.number).work

    def covered(self, clock: Clock) -> bool:
        """Return whether the event happened before everything that is issued with this clock."""
        return reached(clock, self.component) >= self.number

    def is_ordered(self, before: Access, clock: Clock) -> bool:
        """Return whether an access is done before this one, issued with a clock, and needs no fence."""
        component = before.component  # as `reached` has it, which is asked here more often than anywhere
        if clock.get(component.program, 0) >> component.shift & NUMBER_MASK < before.number:
            return False
        return self.proxy is not Proxy.ASYNC or before.proxy is not Proxy.GENERIC

    def __str__(self) -> str:
        return f"the {self.what} at {self.location} ({self.partition} of CTA {self.cta})"


AWAITED_BY = {
    "TMA load": "a wait for the barrier that the load signals",
    "TMA store": "tma.store_wait",
    "TMA reduction": "tma.store_wait",
    "TMA scatter": "tma.store_wait",
    "wgmma": "warpgroup_mma_wait",
}
"""The wait that a partition needs before it reuses memory that its own asynchronous work touches."""
