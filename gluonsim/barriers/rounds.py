"""Rounds of an mbarrier: an arrival that comes before its agent has acquired the slot in this round.

In a ring, an agent arrives to hand a slot over and waits to get it back. Each round trip of a slot is one
phase of each of its barriers, so an arrival in phase n must come after a wait for phase n - 1: the agent on
the other side has then taken the slot, used it, and signalled that on another barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gluonsim.clocks import Clock, Component, Tick
from gluonsim.findings import Findings, Kind, Location, ring_of

NO_PHASE = -1
"""The phase that a wait for parity 1 on a fresh barrier counts as complete [ptx]."""
PHASES_KEPT = 4
"""Older waits say nothing about the current phase."""


class Party(NamedTuple):
    """An agent at one moment: it arrives at a barrier, or its wait for a phase ends."""

    moment: Tick
    partition: str
    cta: int
    location: Location

    @property
    def agent(self) -> Component:
        """The agent."""
        return self.moment.component

    def __str__(self) -> str:
        return f"the wait at {self.location} ({self.partition} of CTA {self.cta})"


class _Arrival(NamedTuple):
    """An arrival in the current phase."""

    party: Party
    clock: Clock
    """The events that come before the arrival."""
    since: int
    """The phase of the same agent's arrival before this one; `NO_PHASE` if this is its first."""


class Early(NamedTuple):
    """An arrival that comes too early, and a wait that it should come after."""

    phase: int
    """The phase that the arrival counts in."""
    arrival: Party
    clock: Clock
    """The events that come before the arrival."""
    wait: Party


class Rounds:
    """The agents that arrive at one barrier and wait for it, phase by phase."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        """The CTA that the barrier belongs to."""
        self._phase = 0
        self._arrivals: list[_Arrival] = []
        self._before: list[_Arrival] = []
        """Arrivals of the phase before."""
        self._last: dict[Component, int] = {}
        """The phase of each agent's last arrival."""
        self._awaited: dict[Component, int] = {}
        """The last phase that each agent has awaited."""
        self._waits: dict[int, dict[Component, Party]] = {}
        """The first wait of each agent for each of the last phases."""

    def arrive(self, party: Party, clock: Clock) -> None:
        """Add an arrival in the current phase; `clock` must not change any more."""
        self._arrivals.append(_Arrival(party, clock, self._last.get(party.agent, NO_PHASE)))
        self._last[party.agent] = self._phase

    def wait(self, party: Party) -> None:
        """Add a wait that the last complete phase ends."""
        self._awaited[party.agent] = self._phase - 1
        self._waits.setdefault(self._phase - 1, {}).setdefault(party.agent, party)

    def advance(self) -> list[Early]:
        """Begin the next phase; return the arrivals of the complete phase that came too early."""
        found = list(self._early())
        self._before, self._arrivals = self._arrivals, []
        self._phase += 1
        self._waits.pop(self._phase - PHASES_KEPT, None)
        return found

    def missed(self, wait: Party, parity: int) -> list[Early]:
        """Return the arrivals that completed a phase before an agent waited for the phase before it.

        The wait for that parity has no end then. An agent awaits one phase after the other; its first wait
        is for `NO_PHASE` if the parity is 1 and nobody has awaited the barrier.
        """
        last = self._awaited.get(wait.agent, None if self._awaited else NO_PHASE - 1)
        complete = self._phase - 1
        if last is None or last + 1 & 1 != parity & 1 or complete <= last + 1:
            return []
        early = (arrival for arrival in self._before if arrival.party.agent != wait.agent)
        return [
            Early(complete, arrival.party, arrival.clock, wait)
            for arrival in early
            if not self._acquired(arrival)
        ]

    def _early(self) -> Iterator[Early]:
        waits = self._waits.get(self._phase - 1)
        if not waits:
            return
        for arrival in self._arrivals:
            if self._acquired(arrival) or self._vouched(arrival) or self._is_stranger(arrival):
                continue
            agent, clock = arrival.party.agent, arrival.clock
            unknown = [
                wait for wait in waits.values() if wait.agent != agent and not wait.moment.known(clock)
            ]
            if unknown:
                yield Early(self._phase, arrival.party, clock, unknown[0])

    def _acquired(self, arrival: _Arrival) -> bool:
        """Return whether the agent knows that its last arrival was awaited: the slot went round since."""
        return any(
            phase >= arrival.since and any(wait.moment.known(arrival.clock) for wait in waits.values())
            for phase, waits in self._waits.items()
        )

    def _is_stranger(self, arrival: _Arrival) -> bool:
        """Return whether an agent of another CTA has nothing to do with the slot.

        A commit arrives in all CTAs that share an operand, and the slots of such a CTA never come round to
        the agent: it knows no wait for the barrier.
        """
        return arrival.party.cta != self._owner and not any(
            wait.moment.known(arrival.clock) for waits in self._waits.values() for wait in waits.values()
        )

    def _vouched(self, arrival: _Arrival) -> bool:
        """Return whether another agent keeps the phase open until the waits for the phase before have ended.

        An arrival may then come at any time after the phase before. Before the first phase there is none.
        """
        if self._phase == 0:
            return False
        waits = self._waits[self._phase - 1].values()
        others = [other for other in self._arrivals if other.party.agent != arrival.party.agent]
        if not any(all(wait.moment.known(other.clock) for wait in waits) for other in others):
            return False
        return all(before.party.moment.known(arrival.clock) for before in self._before)


def report_early(early: Iterable[Early], name: str, findings: Findings) -> None:
    """Report arrivals that came too early at the barrier of a name."""
    for phase, arrival, clock, wait in early:
        text = (
            f"{name}: the arrival in phase {phase} hands over a slot that was not acquired in this round: "
            f"nothing that this partition has awaited comes after {wait}, which begins the round"
        )
        findings.add(
            Kind.EARLY_ARRIVAL,
            ring_of(name),
            (arrival.location, wait.location),
            arrival.partition,
            arrival.cta,
            text,
            follows=findings.follows(clock),
            moment=arrival.moment,
        )
