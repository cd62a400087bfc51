"""One program: the CTAs of a cluster, their partitions, and the work in flight, step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, cast

from torch import Tensor

from gemmgen.errors import GemmgenError
from gemmgen.simulate.clocks import Barrier, Component, Knowledge, Released
from gemmgen.simulate.findings import UNKNOWN, Findings, Kind, Location, Severity, refusal
from gemmgen.simulate.global_memory import GlobalMemory
from gemmgen.simulate.memory import Access, Memory, Proxy
from gemmgen.simulate.parse import Block, Operation
from gemmgen.simulate.places import Layout, Place
from gemmgen.simulate.policies import Grid
from gemmgen.simulate.result import Trace


class Wait(Protocol):
    """What a partition waits for."""

    @property
    def location(self) -> Location:
        """Where it waits."""
        ...

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
    cluster: Cluster | None = None
    """The program that issued it."""


@dataclass(eq=False)
class Accumulator:
    """The result of an asynchronous MMA: no instruction may use it before the MMA has retired."""

    number: int
    """The MMA's number in its lane."""
    location: Location
    value: Tensor | None = None


@dataclass(frozen=True)
class Undefined:
    """What the device computes and does not define: a fault only if something depends on it."""

    value: Any
    """Stands for it, so that the run goes on."""
    why: str
    location: Location


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
        self.program = cluster.grid.number
        identity = (self.program, cta, partition)
        self.key: Component = identity
        self.memory = cluster.memories[cta]
        self.values: dict[str, Any] = {}
        self.knowledge = Knowledge(self.key)
        self.mma = Lane(("mma", *identity))
        self.tensor_core = Lane(("tensor-core", *identity))
        self.store_reads = Lane(("store-read", *identity))
        self.store_writes = Lane(("store-write", *identity))
        self.copies = Lane(("copy", *identity))
        self.copy_groups: list[int] = []
        """For each committed group of copies by cp.async, the number of its last one."""
        self.steps: Steps | None = None
        self.waiting: Wait | None = None
        self.here = UNKNOWN
        """Where its newest operation comes from."""
        self.done = False
        self.polled: list[Watch] | None = None
        """What the loop that it is in has seen of global memory, while it does nothing else."""
        self.computing = False
        """Whether its newest operation does nothing but to compute a value of others."""
        self.undefined: Undefined | None = None
        """What that value depends on."""

    def get(self, name: str) -> Any:
        """Return a value that an instruction uses now."""
        return self.used(self.values[name])

    def used(self, value: Any) -> Any:
        """Return a value as an instruction uses it now."""
        if isinstance(value, Accumulator):
            return self.use(value)
        if isinstance(value, Undefined):
            return self._use_undefined(value)
        return value

    def _use_undefined(self, value: Undefined) -> Any:
        """Let a computed value be undefined too; what does more with it is at fault."""
        if self.computing:
            self.undefined = value
        else:
            name = value.location.name or "<unnamed value>"
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
            moment=(self.key, knowledge.now),
        )

    def check_exit(self, location: Location) -> None:
        """Report work that can no longer be awaited."""
        for lane, what in ((self.store_reads, "TMA store from it"), (self.mma, "MMA into it")):
            for _, name, issued in lane.unawaited[:1]:
                text = f"the {self.label} ends without having awaited the {what}"
                self.report(Kind.WORK_IN_FLIGHT, name, (issued, location), text)


Handler = Callable[[Agent, Operation], Any]
"""What an operation does: returns the result, or a tuple of several; a blocking one is a generator that
returns them."""


@dataclass(frozen=True)
class Entry:
    """One known operation."""

    run: Handler
    attributes: frozenset[str]
    ignored: frozenset[str]
    """Hints that change the speed, or what is undefined anyway: never a defined result."""
    blocking: bool
    computes: bool
    """Whether it does nothing but to compute its results of its operands."""


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel, ready to run any number of times."""

    function: Operation
    entries: Mapping[Operation, Entry]
    """What each operation does, but for the terminators of blocks."""
    layout: Layout
    """Of shared memory."""
    tensor_layout: Layout
    """Of tensor memory."""
    ctas: int
    pairs: bool
    """Whether two CTAs issue each tcgen05 operation together: the even one, for both."""
    roles: Mapping[int, str]
    """Name of the function that each source line is in."""
    used: frozenset[str]
    """Names of all values that an operation takes."""


@dataclass
class BarrierWait:
    """A partition waits for a phase of an mbarrier."""

    barrier: Barrier | None
    """None if it was never initialised: the wait has no end."""
    parity: int
    name: str
    location: Location
    allocation: Operation
    """What the barrier lies in."""

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


@dataclass(frozen=True)
class Watch:
    """Elements of a tensor, and the values that they had."""

    name: str
    flat: Tensor
    """The tensor's storage as one dimension."""
    offsets: Tensor
    """Of the elements in it."""
    values: Tensor
    location: Location
    """Where they are looked at."""

    @property
    def same(self) -> bool:
        """Whether the elements have these values now."""
        if self._one is not None:
            array, offset, value = self._one
            return array[offset] == value
        return bool((self.flat[self.offsets] == self.values).all())

    @cached_property
    def _one(self) -> tuple[Any, int, Any] | None:
        """A single integer, to be looked at often: the storage as an array, its place there and the value."""
        if self.offsets.numel() != 1 or self.flat.dtype.is_floating_point:
            return None
        return cast(Any, self.flat).numpy(), int(self.offsets), self.values.reshape(()).item()

    def __str__(self) -> str:
        first = int(self.offsets.reshape(-1)[0]) if self.offsets.numel() else "none"
        return f"{self.name}[{first}{':' if self.offsets.numel() > 1 else ''}]"


@dataclass
class PollWait:
    """A partition waits for elements of global memory to have certain values."""

    watch: Watch

    @property
    def location(self) -> Location:
        """Where it looks."""
        return self.watch.location

    def ready(self) -> bool:
        """See `Wait`."""
        return self.watch.same

    @property
    def name(self) -> str:
        """The tensor that it looks at."""
        return self.watch.name

    def __str__(self) -> str:
        return f"{self.watch} to be {_value(self.watch.values)}; it is {_now(self.watch)}"


@dataclass
class SpinWait:
    """A partition goes round a loop that only looks at global memory: it waits for a change there."""

    watches: list[Watch]
    counts: bool
    """Whether the loop's own values change: it may end by itself then."""

    @property
    def location(self) -> Location:
        """Where it looks last."""
        return self.watches[-1].location

    def ready(self) -> bool:
        """See `Wait`."""
        return not all(watch.same for watch in self.watches)

    @property
    def name(self) -> str:
        """The tensor that it looks at."""
        return self.watches[0].name

    def __str__(self) -> str:
        return ", ".join(f"{watch} to change; it is {_now(watch)}" for watch in self.watches)


def _value(values: Tensor) -> str:
    distinct = {value.item() for value in values.reshape(-1)}
    return str(*distinct) if len(distinct) == 1 else "several values"


def _now(watch: Watch) -> str:
    return _value(watch.flat[watch.offsets])


def _successor(agent: Agent, terminator: Operation) -> tuple[str, tuple[str, ...]] | None:
    """Return the block that a branch goes to and the values that it hands over; None at the region's end."""
    if not terminator.successors:
        return None
    if terminator.name == "cf.br":
        return terminator.successors[0], terminator.operands
    (condition,), then, otherwise = terminator.segments
    agent.computing = False
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
        trace: Trace | None,
        max_idle_operations: int,
    ) -> None:
        self.kernel = kernel
        self.grid = grid
        self.globals = memory
        self.findings = findings
        self.trace = trace
        self.memories = [Memory(cta, kernel.layout, findings) for cta in range(kernel.ctas)]
        self.tensor_memories = [Memory(cta, kernel.tensor_layout, findings) for cta in range(kernel.ctas)]
        kernel.layout.sharers += self.memories
        kernel.tensor_layout.sharers += self.tensor_memories
        self.agents: list[Agent] = []
        self.barriers: dict[tuple[int, int], Barrier] = {}
        """Those that can be used now, by owner CTA and byte offset."""
        self.initialised: list[Barrier] = []
        """All that there have been, the invalidated ones too."""
        self.events: dict[Event, None] = {}
        self.loads: dict[Component, tuple[int, Access, str, int]] = {}
        """Newest load of each destination: number, event, buffer and the CTA that it writes into."""
        self.destinations: dict[Place, int] = {}
        """Numbers of the places that loads write to: clocks are compared often, and places hash slowly."""
        self.load_count = 0
        self.refusals: list[tuple[Component, int]] = []
        """Requests for another program that were refused."""
        self.atomics: dict[tuple[Operation, int, int], Any] = {}
        """Newest result of an atomic that one CTA does for others, by partition and that CTA."""
        self.rendezvous: dict[int, Rendezvous] = {}
        """Newest meeting of the CTAs, by partition."""
        self.here = UNKNOWN
        """Where the operation that runs now comes from."""
        self.step = 0
        self.idle: Agent | None = None
        """The partition that ran when the program was found to get nowhere."""
        self.max_idle_operations = max_idle_operations
        self._operations_left = max_idle_operations
        self._progress = (0, 0)

    def spawn(self, cta: int, partition: int, label: str) -> Agent:
        """Add a partition to a CTA."""
        agent = Agent(self, cta, partition, label)
        self.agents.append(agent)
        return agent

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Get ready to take steps."""
        body = self.kernel.function.regions[0]
        for cta in range(self.kernel.ctas):
            agent = self.spawn(cta, 0, "partition 0")
            agent.values.update(arguments)
            agent.steps = self._whole(agent, body)

    @property
    def finished(self) -> bool:
        """Whether all partitions have come to their end."""
        return all(agent.done for agent in self.agents)

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
        """Give the memory back."""
        for layout, memories in (
            (self.kernel.layout, self.memories),
            (self.kernel.tensor_layout, self.tensor_memories),
        ):
            layout.sharers = [sharer for sharer in layout.sharers if sharer not in memories]

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
        event.cluster = self
        event.lane.append(event)
        self.events[event] = None

    def settle(self, barrier: Barrier) -> None:
        """Begin a barrier's next phase if the current one is complete."""
        if not barrier.complete:
            return
        if barrier.in_flight and not barrier.overtaken:
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
                follows=self.findings.follows(barrier.known),
                moment=barrier.expect_moment,
            )
        if self.trace:
            self.trace.phase(self.step, barrier)
        barrier.advance()

    def block(self, agent: Agent, block: Block) -> Steps:
        """Run a block and return the values that its terminator hands on."""
        values = agent.values
        while True:
            last = yield from self._straight(agent, block)
            if last is None:
                return []
            successor = _successor(agent, last)
            if successor is None:
                return [values[name] for name in last.operands]
            label, names = successor
            handed = [values[name] for name in names]
            block = block.siblings[label]
            values.update(zip(block.arguments, handed, strict=True))
            yield  # such blocks may form a loop

    def _straight(self, agent: Agent, block: Block) -> Generator[Wait | None, None, Operation | None]:
        """Run the operations of a block up to its terminator, and return that."""
        entries = self.kernel.entries
        values = agent.values
        for op in block.operations:
            entry = entries.get(op)
            if entry is None:
                return op
            self.here = agent.here = op.location
            agent.computing = entry.computes
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
            results = op.results
            if agent.undefined is not None:
                one = len(results) == 1
                values.update(zip(results, agent.taint([result] if one else result), strict=True))
            elif len(results) == 1:
                values[results[0]] = result
            elif results:
                values.update(zip(results, result, strict=True))
        return None

    def _whole(self, agent: Agent, body: Block) -> Steps:
        yield from self.block(agent, body)
        agent.check_exit(body.operations[-1].location)

    def _advance(self, agent: Agent) -> None:
        assert agent.steps is not None
        agent.waiting = None
        try:
            agent.waiting = next(agent.steps)
        except StopIteration:
            agent.done = True

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
