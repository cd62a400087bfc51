"""One launch under one schedule: the steps of its programs, in the order that a policy chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluonsim.clocks import Tick
from gluonsim.findings import Findings, Kind
from gluonsim.global_memory import GlobalMemory
from gluonsim.policies import Grid, Pending, Policy
from gluonsim.program import Agent, Cluster, IdleError, Kernel
from gluonsim.progress import Watch
from gluonsim.tensors.known import Known
from gluonsim.timeline import Span, Trace
from gluonsim.verdicts import judge_end, judge_stop
from gluonsim.waits import BarrierWait, SpinWait

PROGRAMS_AT_A_TIME = 16
"""Begun together: enough for any order of two or three, and few to choose from at every step."""


class Interleaved:
    """One launch under one schedule: its programs run interleaved, as many as are resident.

    Programs that exchange nothing may run in any order, so one at a time is enough for them; those that
    should have exchanged something are found by their accesses to global memory, which are compared by what
    each knew of the other.
    """

    def __init__(
        self,
        kernel: Kernel,
        programs: tuple[int, int, int],
        numbers: Sequence[int],
        resident: int,
        arguments: Mapping[str, Any],
        memory: GlobalMemory,
        findings: Findings,
        known: Known,
        trace: Trace | None,
        max_idle_operations: int,
        watch: Watch | None,
    ) -> None:
        self._kernel = kernel
        self._programs = programs
        self._numbers = numbers
        self._resident = resident
        self._arguments = arguments
        self._memory = memory
        self._findings = findings
        self._known = known
        self._trace = trace
        self._max_idle_operations = max_idle_operations
        self._watch = watch
        self._places = min(PROGRAMS_AT_A_TIME, resident)
        """Programs that may run now: more where these wait for others, up to those that are resident."""
        self._running: list[Cluster] = []
        self.phases: dict[str, int] = {}
        self.chose = False
        """True if the policy had a choice."""

    def run(self, policy: Policy) -> None:
        """Run the programs of these numbers; stop where none can go on, or one has no end."""
        self._findings.begin_run()
        self._findings.shown = None if self._trace is None else []
        pending = Pending(self._numbers, policy)
        try:
            while self._launch(pending):
                done = len(self._numbers) - pending.left - len(self._running)
                if self._run_one_to_its_end(policy, done):
                    continue
                idle = any(cluster.idle for cluster in self._running)
                if idle or not pending.left or self._places == self._resident:
                    judge_stop(self._running, pending.left, self._resident)
                    self._mark_stop()
                    return
                self._places = min(self._places + PROGRAMS_AT_A_TIME, self._resident)
        finally:
            self.chose |= pending.asked
            self._memory.end()
            for cluster in self._running:
                self._count_phases(cluster)
                cluster.end()

    def _launch(self, pending: Pending) -> bool:
        """Begin programs while there is room for them; return whether any are running."""
        while len(self._running) < self._places and (number := pending.launch()) is not None:
            trace = self._trace if number == 0 else None
            grid = Grid(self._programs, number, pending)
            limit = self._max_idle_operations
            findings, known = self._findings, self._known
            cluster = Cluster(self._kernel, grid, self._memory, findings, known, trace, limit)
            cluster.begin(self._arguments)
            self._running.append(cluster)
        return bool(self._running)

    def _run_one_to_its_end(self, policy: Policy, done: int) -> bool:
        """Take steps until a program has ended, after `done` others; False if none will."""
        running, choose, watch, findings = self._running, policy.choose, self._watch, self._findings
        while True:
            if watch is not None:
                watch.look(done)
            agents, events = running[0].runnable, running[0].events
            if len(running) > 1:
                agents, events = agents.copy(), events.copy()
                for cluster in running[1:]:
                    agents += cluster.runnable
                    events += cluster.events
            if not agents and not events:
                agents = _spinning(running)
                if not agents:
                    return False
            if len(agents) + len(events) > 1:
                self.chose = True
            chosen = choose(agents, events)
            cluster = chosen.cluster
            assert cluster is not None
            try:
                cluster.take(chosen)
            except IdleError:
                return False
            if findings.shown:
                self._mark(cluster)
            if not cluster.events and cluster.finished:
                judge_end(cluster)
                self._mark(cluster)
                self._count_phases(cluster)
                cluster.end()
                running.remove(cluster)
                return True

    def _mark(self, cluster: Cluster) -> None:
        """Mark the faults that a program has just shown in its timeline, if it has one."""
        for finding, works in self._findings.shown or ():
            if cluster.trace is not None:
                cluster.trace.mark(finding, cluster.step, works)
        if self._findings.shown:
            self._findings.shown.clear()

    def _mark_stop(self) -> None:
        """Draw the waits that have no end, and mark them where programs cannot go on."""
        for cluster in self._running:
            if cluster.trace is None:
                continue
            waits: list[Span] = []
            for agent in cluster.agents:
                wait = agent.waiting
                if isinstance(wait, BarrierWait) and not agent.done:
                    line, end = wait.location.line, cluster.step + 1
                    works = (Tick(agent.key, agent.knowledge.now).work,)
                    waits.append(
                        Span(wait.name, "wait", agent.label, agent.cta, wait.begin, end, line, works)
                    )
            cluster.trace.spans += waits
            stuck = tuple(work for wait in waits for work in wait.works)
            self._findings.shown = [
                (finding, stuck if finding.kind is Kind.DEADLOCK else works)
                for finding, works in self._findings.shown or ()
            ]
            self._mark(cluster)

    def _count_phases(self, cluster: Cluster) -> None:
        completed: dict[tuple[str, int], int] = {}
        for barrier in cluster.initialised:
            key = (barrier.name, barrier.owner)
            completed[key] = completed.get(key, 0) + barrier.phases
        fewest: dict[str, int] = {}
        for (name, _), count in completed.items():
            fewest[name] = min(count, fewest.get(name, count))
        for name, count in fewest.items():
            self.phases[name] = max(count, self.phases.get(name, 0))


def _spinning(running: Sequence[Cluster]) -> list[Agent]:
    """Return who can go on when nothing happens: a loop that only looks at memory and counts goes round."""
    stuck = (agent for cluster in running for agent in cluster.agents if not agent.done)
    return [agent for agent in stuck if isinstance(agent.waiting, SpinWait) and agent.waiting.counts]
