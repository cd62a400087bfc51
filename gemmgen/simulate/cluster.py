"""One program: the CTAs of a cluster, their partitions, and the work in flight, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gemmgen.errors import GemmgenError
from gemmgen.simulate.agent import Agent, Event, Steps
from gemmgen.simulate.barrier import Barrier
from gemmgen.simulate.clocks import Clock, Component, Released, join
from gemmgen.simulate.errors import refusal
from gemmgen.simulate.findings import Findings, Kind
from gemmgen.simulate.global_memory import GlobalMemory
from gemmgen.simulate.grid import Grid
from gemmgen.simulate.location import UNKNOWN, Location
from gemmgen.simulate.memory import Access, Memory
from gemmgen.simulate.parse import Block, Operation
from gemmgen.simulate.place import Layout
from gemmgen.simulate.registry import TERMINATORS, Entry
from gemmgen.simulate.schedule import Policy
from gemmgen.simulate.trace import Trace


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel, ready to run any number of times."""

    function: Operation
    entries: Mapping[Operation, Entry]
    layout: Layout
    """Of shared memory."""
    tensor_layout: Layout
    """Of tensor memory."""
    ctas: int
    pairs: bool
    """Whether two CTAs issue each tcgen05 operation together: the even one, for both."""
    roles: Mapping[int, str]
    """Name of the function that each source line is in."""


@dataclass
class BarrierWait:
    """A partition waits for a phase of an mbarrier."""

    barrier: Barrier | None
    """None if it was never initialised: the wait has no end."""
    parity: int
    name: str
    location: Location

    def ready(self) -> bool:
        """See `Wait`."""
        return self.barrier is not None and self.barrier.passes(self.parity)


@dataclass
class JoinWait:
    """A CTA's first partition waits for the others to end."""

    agents: list[Agent]
    location: Location

    def ready(self) -> bool:
        """See `Wait`."""
        return all(agent.done for agent in self.agents)


@dataclass
class Rendezvous:
    """The CTAs of a cluster wait for each other."""

    expected: int
    location: Location
    arrived: int = 0
    released: Released = field(default_factory=Released)

    def ready(self) -> bool:
        """See `Wait`."""
        return self.arrived == self.expected


class _IdleError(Exception):
    """A program goes on and gets nowhere."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent


class Cluster:
    """The state of one running program."""

    def __init__(
        self,
        kernel: Kernel,
        grid: Grid,
        memory: GlobalMemory,
        findings: Findings,
        trace: Trace | None,
        max_idle_operations: int,
    ) -> None:
        self.kernel = kernel
        self.grid = grid
        self.globals = memory
        self.findings = findings
        self.trace = trace
        self.memories = [Memory(cta, kernel.layout, findings) for cta in range(kernel.ctas)]
        kernel.layout.sharers = list(self.memories)
        self.tensor_memories = [Memory(cta, kernel.tensor_layout, findings) for cta in range(kernel.ctas)]
        kernel.tensor_layout.sharers = list(self.tensor_memories)
        self.agents: list[Agent] = []
        self.barriers: dict[tuple[int, int], Barrier] = {}
        """Those that can be used now, by owner CTA and byte offset."""
        self.initialised: list[Barrier] = []
        """All that there have been, the invalidated ones too."""
        self.events: dict[Event, None] = {}
        self.loads: dict[Component, tuple[int, Access, str, int]] = {}
        """Newest load of each destination: number, event, buffer and the CTA that it writes into."""
        self.load_count = 0
        self.refusals: list[tuple[Component, int]] = []
        """Requests for another program that were refused."""
        self.rendezvous: dict[int, Rendezvous] = {}
        """Newest meeting of the CTAs, by partition."""
        self.here = UNKNOWN
        """Where the operation that runs now comes from."""
        self.step = 0
        self._max_idle_operations = max_idle_operations
        self._operations_left = max_idle_operations
        self._progress = (0, 0)

    def spawn(self, cta: int, partition: int, label: str) -> Agent:
        """Add a partition to a CTA."""
        agent = Agent(self, cta, partition, label)
        self.agents.append(agent)
        return agent

    def run(self, arguments: Mapping[str, Any], policy: Policy) -> bool:
        """Run to the end; False when the program has none, which is reported."""
        body = self.kernel.function.regions[0]
        for cta in range(self.kernel.ctas):
            agent = self.spawn(cta, 0, "partition 0")
            agent.values.update(arguments)
            agent.steps = self._whole(agent, body)
        try:
            self._run_agents(policy)
        except _IdleError as error:
            self._report_livelock(error.agent)
            return False
        finished = all(agent.done for agent in self.agents)
        if finished:
            self._check_loads()
            self._check_tensor_cores()
        else:
            self._report_deadlock()
        return finished

    def _run_agents(self, policy: Policy) -> None:
        """Take steps for as long as there are any."""
        while True:
            runnable = [a for a in self.agents if not a.done and (a.waiting is None or a.waiting.ready())]
            events = [event for event in self.events if event.lane[0] is event]
            if not runnable and not events:
                return
            chosen = policy.choose(runnable, events)
            self.step += 1
            if isinstance(chosen, Event):
                self.finish(chosen)
            else:
                self._advance(chosen)

    def role(self, partition: int, block: Block) -> str:
        """Name a partition by the function that it runs, where the source says so."""
        roles, kernel = self.kernel.roles, self.kernel.function.attributes["sym_name"]
        called = (
            roles.get(frame.line)
            for op in block.operations
            for frame in reversed(op.location.frames)  # the outermost call is the partition's own
        )
        name = next((name for name in called if name and name != kernel), None)
        return f"partition {partition}" + (f" ({name})" if name else "")

    def finish(self, event: Event) -> None:
        """Complete asynchronous work."""
        del self.events[event]
        event.lane.remove(event)
        event.complete()

    def issue(self, event: Event) -> None:
        """Let asynchronous work complete from now on."""
        event.lane.append(event)
        self.events[event] = None

    def settle(self, barrier: Barrier) -> None:
        """Begin a barrier's next phase if the current one is complete."""
        if not barrier.complete:
            return
        if barrier.in_flight:
            text = (
                f"{barrier.name}: phase {barrier.phases} completes with the {barrier.expected_bytes:,} bytes "
                f"that it expects while loads of {sum(barrier.in_flight.values()):,} more bytes are in flight"
            )
            name = barrier.name.partition("[")[0]
            self.findings.add(
                Kind.BYTE_COUNT,
                name,
                (barrier.expect_location,),
                barrier.expect_partition,
                barrier.owner,
                text,
            )
        if self.trace:
            self.trace.phase(self.step, barrier)
        barrier.advance()

    def block(self, agent: Agent, block: Block) -> Steps:
        """Run a block and return the values that its terminator hands on."""
        entries = self.kernel.entries
        values = agent.values
        for op in block.operations:
            if op.name in TERMINATORS:
                return [values[name] for name in op.operands]
            entry = entries[op]
            self.here = agent.here = op.location
            self._operations_left -= 1
            if self._operations_left == 0:
                self._demand_progress(agent)
            try:
                result = entry.run(agent, op)
                if entry.blocking:
                    result = cast(Any, (yield from result))
            except GemmgenError as error:
                if error.diagnostics[0].line is not None or op.location.line is None:
                    raise
                raise refusal(error.diagnostics[0].message, op.location, error.diagnostics[0].code) from error
            if len(op.results) == 1:
                values[op.results[0]] = result
            elif op.results:
                values.update(zip(op.results, result, strict=True))
        return []

    def _whole(self, agent: Agent, body: Block) -> Steps:
        yield from self.block(agent, body)
        agent.check_exit(body.operations[-1].location)

    def _advance(self, agent: Agent) -> None:
        assert agent.steps is not None
        try:
            agent.waiting = next(agent.steps)
        except StopIteration:
            agent.done = True

    def _demand_progress(self, agent: Agent) -> None:
        """Begin another stretch of operations, if something new came of the last one.

        What is new can come only so often: each region of global memory is touched for the first time once,
        and each program of the grid is taken over once. So a program that has no end comes here in vain.
        """
        progress = (self.globals.regions, self.grid.pending.left)
        if progress == self._progress:
            raise _IdleError(agent)
        self._progress = progress
        self._operations_left = self._max_idle_operations

    def _check_loads(self) -> None:
        """Report loads into shared memory that its CTA has not awaited: it may end before they do."""
        for component, (number, access, name, cta) in self.loads.items():
            if self._known(cta).get(component, 0) < number:
                text = f"{name}: CTA {cta} ends without having awaited {access}"
                base = name.partition("[")[0]
                self.findings.add(
                    Kind.WORK_IN_FLIGHT, base, (access.location,), access.partition, access.cta, text
                )

    def _check_tensor_cores(self) -> None:
        """Report tcgen05 work in memory of a CTA that has not awaited it: it may end before the work does."""
        for agent in self.agents:
            lane = agent.tensor_core
            ctas = (agent.cta, agent.cta | 1) if self.kernel.pairs else (agent.cta,)
            for cta in dict.fromkeys(ctas):
                done = self._known(cta).get(lane.component, 0)
                for _, name, issued in [work for work in lane.unawaited if work[0] > done][:1]:
                    text = f"{name}: CTA {cta} ends without having awaited the tcgen05 operation into it"
                    agent.report(Kind.WORK_IN_FLIGHT, name.partition("[")[0], (issued,), text)

    def _known(self, cta: int) -> Clock:
        """Return what the partitions of a CTA know together."""
        known: Clock = {}
        for agent in self.agents:
            if agent.cta == cta:
                join(known, agent.knowledge.clock)
        return known

    def _report_livelock(self, running: Agent) -> None:
        alive = [agent for agent in self.agents if not agent.done]
        text = (
            f"{self._max_idle_operations:,} operations touch no global memory that was not touched before, "
            f"and take over no program. {'; '.join(map(self._place, alive))}"
        )
        locations = dict.fromkeys((running.here, *(agent.here for agent in alive)))
        name: str = self.kernel.function.attributes["sym_name"]
        running.report(Kind.LIVELOCK, name, tuple(locations), text)

    def _place(self, agent: Agent) -> str:
        who = f"{agent.label} of CTA {agent.cta}"
        if agent.here.line is None:
            return f"{who} has not begun"
        does = "is" if agent.waiting is None else "waits"
        return f"{who} {does} at {agent.here} ({self.kernel.roles.get(agent.here.line, 'no known function')})"

    def _report_deadlock(self) -> None:
        waiters = [
            (agent, agent.waiting)
            for agent in self.agents
            if not agent.done and isinstance(agent.waiting, BarrierWait)
        ]
        described = [
            f"{agent.label} of CTA {agent.cta} waits at {wait.location} for parity {wait.parity} of "
            f"{wait.name}: {wait.barrier or 'never initialised'}"
            for agent, wait in waiters
        ]
        for agent, wait in waiters:
            name = wait.name.partition("[")[0]
            text = "nothing can go on. " + "; ".join(described)
            agent.report(Kind.DEADLOCK, name, (wait.location,), text)
            barrier = wait.barrier
            if barrier and barrier.pending == 0 and barrier.expected_bytes != barrier.received_bytes:
                text = (
                    f"{wait.name}: phase {barrier.phases} expects {barrier.expected_bytes:,} bytes and "
                    f"receives {barrier.received_bytes:,}"
                )
                agent.report(Kind.BYTE_COUNT, name, (barrier.expect_location,), text)
        if not waiters:
            stuck = [agent for agent in self.agents if not agent.done]
            places = "; ".join(
                f"{a.label} of CTA {a.cta} at {a.waiting.location if a.waiting else UNKNOWN}" for a in stuck
            )
            location = stuck[0].waiting.location if stuck[0].waiting else UNKNOWN
            stuck[0].report(Kind.DEADLOCK, "<cluster barrier>", (location,), f"nothing can go on. {places}")
