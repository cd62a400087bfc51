"""One program: the CTAs of a cluster, their partitions, and the work in flight, step by step."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import Any, cast

from torch import Tensor

from gemmgen.errors import GemmgenError
from gluonsim.accesses import Access, Proxy
from gluonsim.barriers.mbarrier import Barrier
from gluonsim.barriers.rounds import report_early
from gluonsim.clocks import Component, Components, Knowledge, Tick, learn
from gluonsim.findings import (
    UNKNOWN,
    Findings,
    Kind,
    Location,
    Severity,
    carried_out,
    placed,
    ring_of,
    unexpected,
)
from gluonsim.global_memory import GlobalMemory
from gluonsim.ir.parse import Block, Operation
from gluonsim.memory import Memory, RelaxedMeetings
from gluonsim.places import Layout, Place
from gluonsim.policies import Grid
from gluonsim.tensors.deferred import Accumulator, Deferred, Undefined
from gluonsim.tensors.descriptors import Home
from gluonsim.tensors.known import Known
from gluonsim.timeline import Trace
from gluonsim.waits import BarrierWait, Rendezvous, Wait, Watch

Steps = Generator[Wait | None, None, Any]
"""A partition's execution: it yields where another may go on, with what it must wait for if anything."""


@dataclass(eq=False, slots=True)
class Event:
    """Asynchronous work that may complete from now on; work of one lane completes in order."""

    lane: deque[Event]
    complete: Callable[[], None]
    op: Operation
    """The operation that issued it."""
    cluster: Cluster | None = None
    """The program that issued it."""
    number: int = 0
    """In the order of issue by that program."""


@dataclass
class Lane:
    """Work of one kind that an agent issues and awaits in order."""

    components: Components
    issued: int = 0
    awaited: int = 0
    events: deque[Event] = field(default_factory=deque[Event])
    unawaited: deque[tuple[int, str, Location]] = field(default_factory=deque[tuple[int, str, Location]])
    """Number, variable and place of all work that has not been awaited."""

    @cached_property
    def component(self) -> Component:
        """The lane in clocks: it takes room there from its first work on."""
        return self.components.add()

    def issue(self, name: str, location: Location) -> int:
        """Number the next work."""
        self.issued += 1
        self.unawaited.append((self.issued, name, location))
        return self.issued

    def wait(self, pending: int, knowledge: Knowledge) -> None:
        """Learn that all but the newest `pending` are complete."""
        self.awaited = max(self.awaited, self.issued - pending)
        if self.awaited > 0:
            learn(knowledge.clock, self.component, self.awaited)
        while self.unawaited and self.unawaited[0][0] <= self.awaited:
            self.unawaited.popleft()


class Agent:
    """A partition of a CTA: its values, its clock and its lanes."""

    def __init__(self, cluster: Cluster, cta: int, partition: int, label: str, warps: int) -> None:
        self.warps = warps
        self.cluster = cluster
        self.cta = cta
        self.partition = partition
        self.label = label
        self.program = cluster.grid.number
        self.key = cluster.components.add()
        """The agent in clocks."""
        self.memory = cluster.memories[cta]
        self.values: dict[str, Any] = {}
        self.knowledge = Knowledge(self.key)
        self.mma = Lane(cluster.components)
        self.tensor_core = Lane(cluster.components)
        self.store_reads = Lane(cluster.components)
        self.store_writes = Lane(cluster.components)
        self.copies = Lane(cluster.components)
        self.copy_groups: list[int] = []
        """For each committed group of copies by cp.async, the number of its last one."""
        self.steps: Steps | None = None
        self.waiting: Wait | None = None
        self.step: Step | None = None
        """Its newest operation."""
        self.done = False
        self.polled: list[Watch] | None = None
        """What the loop that it is in has seen of global memory, while it does nothing else."""
        self.undefined: Undefined | None = None
        """What the value depends on that its newest operation computes."""

    @property
    def here(self) -> Location:
        """Where its newest operation comes from."""
        return self.step.op.location if self.step else UNKNOWN

    def get(self, name: str) -> Any:
        """Return a value that an instruction uses now."""
        value = self.values[name]
        return self.used(value) if isinstance(value, Deferred) else value

    def used(self, value: Any) -> Any:
        """Return a value as an instruction uses it now."""
        if isinstance(value, Accumulator):
            return self.use(value)
        if isinstance(value, Undefined):
            return self._use_undefined(value)
        return value

    def _use_undefined(self, value: Undefined) -> Any:
        """Let a computed value be undefined too; what does more with it is at fault."""
        if self.step and self.step.computes:
            self.undefined = value
        else:
            name = value.name or value.location.called
            text = f"{value.why}, and what is done here depends on the result"
            self.report(Kind.UNDEFINED_VALUE, name, (self.here, value.location), text)
        return value.value

    def taint(self, results: Sequence[Any]) -> list[Any]:
        """Return the results of a computation that depends on an undefined value: they are undefined too."""
        origin, self.undefined = self.undefined, None
        assert origin is not None
        return [
            replace(origin, value=result.value if isinstance(result, Undefined) else result)
            for result in results
        ]

    def use(self, accumulator: Accumulator) -> Tensor:
        """Return an accumulator's numbers, which must have been awaited."""
        if accumulator.number > self.mma.awaited:
            name = accumulator.location.called
            text = "used while the MMA that writes it is in flight: warpgroup_mma_wait must come first"
            self.report(Kind.ACCUMULATOR_IN_FLIGHT, name, (self.here, accumulator.location), text)
        while accumulator.value is None:
            self.cluster.finish(self.mma.events[0])
        return accumulator.value

    def drain(self, lane: Lane) -> None:
        """Complete all work of a lane that has been awaited."""
        while len(lane.events) > lane.issued - lane.awaited:
            self.cluster.finish(lane.events[0])

    def access(self, what: str, location: Location, proxy: Proxy = Proxy.GENERIC) -> Access:
        """Return the event of touching memory now."""
        now, key = self.knowledge.now, self.key
        return Access(key, now, key, self.label, self.cta, proxy, what, location, self.program)

    def asynchronous(self, component: Component, number: int, what: str, location: Location) -> Access:
        """Return the event of touching memory at some time until work is known to be complete."""
        now = self.knowledge.now
        key, program = self.key, self.program
        return Access(component, number, key, self.label, self.cta, Proxy.ASYNC, what, location, program, now)

    def report(
        self,
        kind: Kind,
        name: str,
        locations: tuple[Location, ...],
        text: str,
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Report a fault that this agent shows."""
        findings, knowledge = self.cluster.findings, self.knowledge
        findings.add(
            kind,
            name,
            locations,
            self.label,
            self.cta,
            text,
            severity=severity,
            follows=findings.follows(knowledge.clock),
            moment=Tick(self.key, knowledge.now),
        )

    def check_exit(self, location: Location) -> None:
        """Report work that can no longer be awaited."""
        for lane, what, wait in (
            (self.store_reads, "TMA store from it", "tma.store_wait(0)"),
            (self.mma, "MMA into it", "warpgroup_mma_wait(0, …)"),
        ):
            for _, name, issued in islice(lane.unawaited, 1):
                text = f"{self.label} ends without having awaited the {what}: {wait} must come before its end"
                self.report(Kind.WORK_IN_FLIGHT, name, (issued, location), text)


Handler = Callable[[Agent, Operation], Any]
"""What an operation does: returns the result, or a tuple of several; one that may wait is a generator
function."""


@dataclass(frozen=True)
class Entry:
    """One known operation."""

    resolve: Callable[[Operation], Handler]
    """Returns what does one operation of this name: what follows from its types is decided once."""
    attributes: frozenset[str]
    ignored: frozenset[str]
    """Hints that change the speed, or what is undefined anyway: never a defined result."""
    computes: bool
    """True if it does nothing but to compute its results of its operands."""


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One operation of a block, resolved."""

    op: Operation
    run: Handler
    blocking: bool
    computes: bool
    result: str | None
    """The only one's name."""


@dataclass(frozen=True, eq=False, slots=True)
class Code:
    """What a block executes."""

    steps: tuple[Step, ...]
    terminator: Step | None
    """What says where it goes on; None in a block without operations."""


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel, ready to run any number of times."""

    function: Operation
    code: Mapping[Block, Code]
    """Of every block."""
    layout: Layout
    """Of shared memory."""
    tensor_layout: Layout
    """Of tensor memory."""
    ctas: int
    warps: int
    """Of a CTA's first partition, which keeps them in a region of several."""
    pairs: bool
    """True if two CTAs issue each tcgen05 operation together: the even one, for both."""
    used: frozenset[str]
    """Names of all values that an operation takes."""


def _successor(agent: Agent, terminator: Operation) -> tuple[str, tuple[str, ...]]:
    """Return the block that a branch goes to and the values that it hands over."""
    if terminator.name == "cf.br":
        return terminator.successors[0], terminator.operands
    (condition,), then, otherwise = terminator.segments
    if agent.get(condition):
        return terminator.successors[0], then
    return terminator.successors[1], otherwise


class IdleError(Exception):
    """A program goes on and gets nowhere."""


class Cluster:
    """The state of one running program."""

    def __init__(
        self,
        kernel: Kernel,
        grid: Grid,
        memory: GlobalMemory,
        findings: Findings,
        known: Known,
        trace: Trace | None,
        max_idle_operations: int,
    ) -> None:
        self.kernel = kernel
        self.grid = grid
        self.globals = memory
        self.known = known
        self.findings = findings
        self.trace = trace
        self.relaxed = RelaxedMeetings()
        self.memories = [Memory(cta, kernel.layout, findings, self.relaxed) for cta in range(kernel.ctas)]
        self.tensor_memories = [Memory(cta, kernel.tensor_layout, findings) for cta in range(kernel.ctas)]
        kernel.layout.sharers += self.memories
        kernel.tensor_layout.sharers += self.tensor_memories
        self.components = Components(grid.number)
        self.agents: list[Agent] = []
        self.barriers: dict[tuple[int, int], Barrier] = {}
        """Those that can be used now, by owner CTA and byte offset."""
        self.initialised: list[Barrier] = []
        """All that there have been, the invalidated ones too."""
        self.events: list[Event] = []
        """Asynchronous work that can complete, the first of each lane, in the order of issue."""
        self._issued = 0
        self._unfinished = 0
        """Partitions that have not come to their end."""
        self._runnable: list[Agent] | None = None
        """Partitions that can go on; None where that may have changed."""
        self.loads: dict[Component, tuple[int, Access, str, int]] = {}
        """Newest load of each destination: number, event, buffer and the CTA that it writes into."""
        self.destinations: dict[tuple[int, Place], Component] = {}
        """The lane of each place that loads write to, by CTA."""
        self.homes: dict[tuple[Operation, int], Home] = {}
        """Where the program makes descriptors, by the operation that allocates the memory and the CTA."""
        self.load_count = 0
        self.refusals: list[tuple[Component, int]] = []
        """Requests for another program that were refused."""
        self.atomics: dict[tuple[Operation, int, int], Any] = {}
        """Newest result of an atomic that one CTA does for others, by partition and that CTA."""
        self.rendezvous: dict[int, Rendezvous] = {}
        """Newest meeting of the CTAs, by partition."""
        self.step = 0
        self.idle: Agent | None = None
        """The partition that ran when the program was found to get nowhere."""
        self.max_idle_operations = max_idle_operations
        self._operations_left = max_idle_operations
        self._progress = (0, 0)

    def spawn(self, cta: int, partition: int, label: str, warps: int) -> Agent:
        """Add a partition of some warps to a CTA."""
        agent = Agent(self, cta, partition, label, warps)
        self.agents.append(agent)
        self._unfinished += 1
        self._runnable = None
        return agent

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Get ready to take steps."""
        body = self.kernel.function.regions[0]
        for cta in range(self.kernel.ctas):
            agent = self.spawn(cta, 0, "partition 0", self.kernel.warps)
            agent.values.update(arguments)
            agent.steps = self._whole(agent, body)

    @property
    def runnable(self) -> list[Agent]:
        """The partitions that can go on."""
        if self._runnable is not None:
            return self._runnable
        runnable: list[Agent] = []
        settled = True
        for agent in self.agents:
            if agent.done:
                continue
            waiting = agent.waiting
            if waiting is None:
                runnable.append(agent)
                continue
            if waiting.on_others:
                settled = False
            if waiting.ready():
                runnable.append(agent)
        if settled:
            self._runnable = runnable
        return runnable

    @property
    def finished(self) -> bool:
        """Return whether all partitions have come to their end."""
        return self._unfinished == 0

    def take(self, chosen: Agent | Event) -> None:
        """Let a partition go on, or asynchronous work complete.

        Raises:
            IdleError: The program has no end.
        """
        self.step += 1
        if isinstance(chosen, Event):
            self.finish(chosen)
        else:
            self._advance(chosen)

    def end(self) -> None:
        """Give the memory back, and forget what refers to the program: nothing is left in circles."""
        for layout, memories in (
            (self.kernel.layout, self.memories),
            (self.kernel.tensor_layout, self.tensor_memories),
        ):
            layout.sharers = [sharer for sharer in layout.sharers if sharer not in memories]
            for memory in memories:
                memory.end()
        for agent in self.agents:
            agent.steps = None
            agent.values.clear()
        self.agents.clear()

    def role(self, partition: int, block: Block) -> str:
        """Name a partition by the function that it runs, where the source says so."""
        kernel = self.kernel.function.attributes["sym_name"]
        called = (
            frame.function
            for op in block.operations
            for frame in reversed(op.location.frames)  # the outermost call is the partition's own
        )
        name = next((name for name in called if name and name != kernel), None)
        return f"partition {partition}" + (f" ({name})" if name else "")

    def finish(self, event: Event) -> None:
        """Complete asynchronous work, the first of its lane."""
        self.events.remove(event)
        lane = event.lane
        lane.popleft()
        if lane:
            insort(self.events, lane[0], key=attrgetter("number"))
        carried_out(event.complete, event.op.name, event.op.location)

    def issue(self, event: Event) -> None:
        """Let asynchronous work complete from now on."""
        self._issued += 1
        event.cluster = self
        event.number = self._issued
        event.lane.append(event)
        if len(event.lane) == 1:
            self.events.append(event)

    def settle(self, barrier: Barrier) -> None:
        """Begin a barrier's next phase if the current one is complete."""
        if not barrier.complete:
            return
        if barrier.bytes_in_flight and not barrier.overtaken:
            text = (
                f"{barrier.name}: phase {barrier.phases} completes with the {barrier.expected_bytes:,} bytes "
                f"that it expects while loads of {barrier.bytes_in_flight:,} more bytes are in flight"
            )
            name = ring_of(barrier.name)
            self.findings.add(
                Kind.BYTE_COUNT,
                name,
                (barrier.expect_location,),
                barrier.expect_partition,
                barrier.owner,
                text,
                follows=self.findings.follows(barrier.known),
                moment=barrier.expect_moment,
            )
        if self.trace:
            self.trace.phase(self.step, barrier)
        report_early(barrier.advance(), barrier.name, self.findings)
        self._runnable = None

    def block(self, agent: Agent, block: Block) -> Steps:
        """Run a block and those that it branches to; return the values that the last terminator hands on."""
        values, codes = agent.values, self.kernel.code
        while True:
            code = codes[block]
            for step in code.steps:
                agent.step = step
                self._operations_left -= 1
                if self._operations_left == 0:
                    self._demand_progress(agent)
                try:
                    result = step.run(agent, step.op)
                    if step.blocking:
                        result = cast(Any, (yield from result))
                except GemmgenError as error:
                    raise placed(error, step.op.location) from error
                except IdleError:
                    raise
                except Exception as error:
                    raise unexpected(error, step.op.name, step.op.location) from error
                if agent.undefined is not None:
                    self._taint(agent, step, result)
                elif step.result is not None:
                    values[step.result] = result
                elif step.op.results:
                    values.update(zip(step.op.results, result, strict=True))
            if code.terminator is None:
                return []
            agent.step = code.terminator
            terminator = code.terminator.op
            if not terminator.successors:  # the region's end
                return [values[name] for name in terminator.operands]
            label, names = _successor(agent, terminator)
            handed = [values[name] for name in names]
            block = block.siblings[label]
            values.update(zip(block.arguments, handed, strict=True))
            yield  # such blocks may form a loop

    def _taint(self, agent: Agent, step: Step, result: Any) -> None:
        """Take the results of a computation that depends on an undefined value: they are undefined too."""
        names = step.op.results
        results = [result] if step.result is not None else result
        agent.values.update(zip(names, agent.taint(results), strict=True))

    def _whole(self, agent: Agent, body: Block) -> Steps:
        yield from self.block(agent, body)
        agent.check_exit(body.operations[-1].location)

    def _advance(self, agent: Agent) -> None:
        assert agent.steps is not None
        agent.waiting = None
        try:
            waiting = agent.waiting = next(agent.steps)
        except StopIteration:
            agent.done = True
            self._unfinished -= 1
            self._runnable = None
            return
        if waiting is None or self._runnable is None:
            return
        if not isinstance(waiting, BarrierWait):
            self._runnable = None
        elif not waiting.ready():  # which changes nothing for the others
            self._runnable.remove(agent)

    def _demand_progress(self, agent: Agent) -> None:
        """Begin another stretch of operations, if something new came of the last one.

        What is new can come only so often: each region of global memory is touched for the first time once,
        and each program of the grid is taken over once. So a program without an end finds nothing new here.
        """
        progress = (self.globals.regions, self.grid.pending.left)
        if progress == self._progress:
            self.idle = agent
            raise IdleError
        self._progress = progress
        self._operations_left = self.max_idle_operations
