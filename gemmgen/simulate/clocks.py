"""Vector clocks: what each agent knows to have happened.

A component is an agent (a partition of a CTA) or a lane of asynchronous work that completes in order; an
event is a component with the number that it had. A clock that has at least that number covers the event.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

Component = Hashable
Clock = dict[Component, int]


def join(clock: Clock, other: Mapping[Component, int]) -> None:
    """Let `clock` cover what `other` covers too."""
    for component, number in other.items():
        if number > clock.get(component, 0):
            clock[component] = number


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
