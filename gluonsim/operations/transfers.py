"""Asynchronous transfers by TMA, with multicast and reductions."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from operator import add
from typing import Protocol

from torch import Tensor

from gluonsim.accesses import Access, Proxy
from gluonsim.barriers.mbarrier import Barrier
from gluonsim.clocks import Component, Tick, learn
from gluonsim.findings import Kind, Work, refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import DescriptorType, MemDescType, TensorType
from gluonsim.memory import View
from gluonsim.operations import operation, resolved
from gluonsim.operations.control import find, owner
from gluonsim.operations.loads_stores import loaded, parts_of
from gluonsim.program import Agent, Event, Handler, Steps
from gluonsim.tensors.accesses import RELAXED
from gluonsim.tensors.descriptors import REDUCTIONS, Boxes, Descriptor
from gluonsim.tensors.regions import Region
from gluonsim.timeline import Span

_CACHING = ("cache", "evict", "cachePolicy", "isVolatile", "l2CachePolicy")
"""Hints about speed."""


@resolved("ttng.async_tma_copy_global_to_local", "multicast", ignored=_CACHING)
def load(op: Operation) -> Handler:
    (descriptor_name,), coordinates, offsets, (barrier_name,), (result,), (predicate,) = op.segments
    position = len(coordinates) + len(offsets) + 2
    type_ = op.operand_types[position]
    assert isinstance(type_, MemDescType)
    if offsets and type_.local_shape != type_.shape:
        raise refusal("im2col loads that CTAs divide are not known to the simulator", op.location)
    if not offsets:
        _check_box(op, type_)
    shape = type_.local_shape[-len(coordinates) :]
    # The bits of the CTA's number in which those differ that one load writes into: the lowest issues it.
    spread = type_.shared_bits if op.attributes.get("multicast") else 0
    rank = len(coordinates)

    def run(agent: Agent, op: Operation) -> Steps:
        if not agent.get(predicate) or agent.cta & spread:
            return
        descriptor: Descriptor = agent.get(descriptor_name)
        start = [int(agent.get(name)) for name in coordinates]
        barrier_view: View = agent.get(barrier_name)
        view: View = agent.get(result)
        if offsets:
            _check_alignment(agent, op, descriptor, start[-1], "TMA load")
            part = _pixels(descriptor, start, [int(agent.get(name)) for name in offsets], shape)
        else:
            origin = tuple(
                [at + first for at, first in zip(start, type_.origin(agent.cta)[-rank:], strict=True)]
            )
            _check_alignment(agent, op, descriptor, origin[-1], "TMA load")
            part = descriptor.box(origin, shape)
        memories = agent.cluster.memories
        for cta in range(len(memories)) if spread else (agent.cta,):
            if cta & ~spread == agent.cta:
                barrier = find(agent, barrier_view, owner(op, position - 1, cta), "TMA load")
                _load_into(agent, op, part, view.on(memories[cta]), barrier)
        yield

    return run


def _pixels(
    descriptor: Descriptor, start: Sequence[int], offsets: Sequence[int], shape: tuple[int, ...]
) -> Boxes:
    """Return the pixels of an im2col load, `shape` of them by channels, each moved by the offsets."""
    assert descriptor.pixels is not None
    image, *position, channel = start
    sizes = descriptor.shape[1:-1]
    walked = descriptor.pixels.walk(sizes, image, position, shape[-2])
    origins = tuple((number, *map(add, pixel, offsets), channel) for number, *pixel in walked)
    return Boxes(descriptor, origins, (*[1] * (len(start) - 1), shape[-1]))


@operation("ttng.async_tma_gather", ignored=(*_CACHING, "multicast"))
def gather(agent: Agent, op: Operation) -> Steps:
    """Load rows of a matrix that a tensor names."""
    if op.attributes.get("multicast") or agent.cluster.kernel.ctas > 1:
        raise refusal("TMA gathers in a cluster are not known to the simulator", op.location)
    descriptor_name, rows, column, barrier_name, result, predicate = op.operands
    if not agent.get(predicate):
        return
    view: View = agent.get(result)
    barrier = find(agent, agent.get(barrier_name), owner(op, 3, agent.cta), "TMA gather")
    part = _rows(agent, op, (descriptor_name, rows, column), view, "TMA gather")
    _load_into(agent, op, part, view, barrier)
    yield


@operation("ttng.async_tma_scatter", ignored=_CACHING)
def scatter(agent: Agent, op: Operation) -> Steps:
    """Store rows of a matrix that a tensor names."""
    if agent.cluster.kernel.ctas > 1:
        raise refusal("TMA scatters in a cluster are not known to the simulator", op.location)
    descriptor_name, rows, column, source = op.operands
    view: View = agent.get(source)
    part = _rows(agent, op, (descriptor_name, rows, column), view, "TMA scatter")
    _store_from(agent, op, view, part, "TMA scatter", None)
    yield


def _rows(agent: Agent, op: Operation, names: tuple[str, str, str], view: View, what: str) -> Boxes:
    descriptor, rows, column = (agent.get(name) for name in names)
    _check_alignment(agent, op, descriptor, int(column), what)
    return Boxes(descriptor, tuple((int(row), int(column)) for row in rows), (1, view.data.shape[-1]))


_ALIGNMENT = 16
"""Bytes that the last coordinate of a transfer must be a multiple of; else the GPU ends the kernel [H200]."""


def _check_alignment(agent: Agent, op: Operation, descriptor: Descriptor, first: int, what: str) -> None:
    if offset := first * descriptor.element_bytes % _ALIGNMENT:
        text = (
            f"{descriptor.name}: the last coordinate of a {what} is {first}, {offset} bytes past a multiple "
            f"of {_ALIGNMENT}: an illegal instruction"
        )
        agent.report(Kind.UNALIGNED_TRANSFER, descriptor.name, (op.location,), text)


def _check_box(op: Operation, memory: MemDescType) -> None:
    """Refuse a buffer that has another shape than the box: the compiler compares numbers of elements only."""
    box = op.operand_types[0]
    assert isinstance(box, DescriptorType)
    if memory.shape[-len(box.shape) :] != box.shape:
        shapes = f"{list(box.shape)} to or from a buffer of {list(memory.shape)}"
        raise refusal(f"a transfer of boxes of {shapes} is not known to the simulator", op.location)


def _check_base(agent: Agent, op: Operation, descriptor: Descriptor) -> None:
    """Report a load whose descriptor begins outside of memory: TMA reads there [H100]."""
    if beside := descriptor.base_elements_outside:
        place = "ahead of" if beside < 0 else "after the end of"
        text = (
            f"{descriptor.name}: the base of the descriptor of a TMA load lies {abs(beside):,} elements "
            f"{place} the memory of its tensor: TMA reads there, even if all boxes lie within the tensor"
        )
        agent.report(Kind.DESCRIPTOR_BASE, descriptor.name, (op.location,), text)


class Part(Hashable, Protocol):
    """What one transfer moves of a tensor in global memory; equal parts are of the same elements."""

    @property
    def descriptor(self) -> Descriptor:
        """Of the tensor."""
        ...

    @property
    def regions(self) -> list[Region]:
        """The elements that lie within the tensor."""
        ...

    def load(self) -> Tensor:
        """Return what is there now, padding outside of the tensor."""
        ...

    def store(self, values: Tensor, reduction: str | None) -> None:
        """Write values; what lies outside of the tensor is dropped."""
        ...


def destination(
    agent: Agent, op: Operation, view: View, what: str, proxy: Proxy = Proxy.ASYNC
) -> tuple[Component, int]:
    """Judge an asynchronous write into shared memory; return its lane and its number there."""
    loads = agent.cluster.loads
    destinations, key = agent.cluster.destinations, (view.memory.cta, view.place)
    component = destinations.get(key)
    if component is None:
        component = destinations[key] = agent.cluster.components.add()
    before = loads.get(component)
    number = before[0] + 1 if before else 1
    access = agent.asynchronous(component, number, what, op.location)._replace(proxy=proxy)
    loads[component] = (number, access, view.name, view.memory.cta)
    knowledge = agent.knowledge
    # The lowering of try_cancel emits the fence that orders it after generic accesses.
    fenced = knowledge.clock if op.name == "ttng.clc_try_cancel" else knowledge.fenced
    view.memory.write(view, access, knowledge.clock, fenced)
    return component, number


def deliver(
    agent: Agent,
    op: Operation,
    barrier: Barrier | None,
    size: int,
    write: tuple[Component, int],
    fill: Callable[[], None],
) -> None:
    """Issue an asynchronous write into shared memory, whose completion a barrier learns.

    Args:
        agent: The agent that issues it.
        op: Its operation.
        barrier: The barrier that gets its bytes; None if it is not known.
        size: Number of these bytes.
        write: Its lane and number, from `destination`.
        fill: Write the values; called when it completes.
    """
    cluster = agent.cluster
    cluster.load_count += 1
    identity = cluster.load_count
    told = agent.knowledge.release()  # the completion tells of the write, and of what its issuer knows now
    learn(told.clock, *write)
    if barrier:
        barrier.issue(size, identity, write[0])

    def complete() -> None:
        fill()
        if barrier:
            barrier.receive(size, identity, told)
            cluster.settle(barrier)

    cluster.issue(Event(deque(), complete, op))


def _load_into(agent: Agent, op: Operation, part: Part, view: View, barrier: Barrier | None) -> None:
    cluster = agent.cluster
    write = destination(agent, op, view, "TMA load")
    _, access, _, _ = cluster.loads[write[0]]
    cluster.globals.read(part.regions, part.descriptor.name, access, agent.knowledge.clock)
    _check_base(agent, op, part.descriptor)
    _use(part.descriptor, access)
    assert view.held is not None
    size = view.held.nbytes  # what is out of bounds counts too [ptx]
    begin = cluster.step

    def fill() -> None:
        # A part of a tensor that nobody has written yet is the same in every schedule.
        if cluster.globals.is_as_given(part.regions):
            values = cluster.known.tensor(op, (part,), lambda: _as_held(view, part.load()), changes=True)
            view.fill(values, cluster.known.numbers(values))
        else:
            view.fill(_as_held(view, part.load()))
        _trace(agent, op, view, "load", begin, (access.work,))

    deliver(agent, op, barrier, size, write, fill)


@operation("ttng.async_shared_store")
def async_shared_store(agent: Agent, op: Operation) -> Steps:
    """Store a tensor by st.async: the barrier of each CTA that holds a part gets that part's bytes."""
    tensor, memory = op.operand_types[:2]
    assert isinstance(tensor, TensorType)
    assert isinstance(memory, MemDescType)
    if tensor.shared_bits or memory.shared_bits:
        raise refusal("an asynchronous store of what several CTAs hold is not known", op.location)
    value: Tensor = agent.get(op.operands[0])
    view: View = agent.get(op.operands[1])
    barrier_view: View = agent.get(op.operands[2])
    for here, held in parts_of(agent, view, memory, tensor):
        barrier = find(agent, barrier_view, owner(op, 2, held.memory.cta), "st.async")
        _store_into(agent, op, value[here], held, barrier)
    yield


def _store_into(agent: Agent, op: Operation, value: Tensor, view: View, barrier: Barrier | None) -> None:
    write = destination(agent, op, view, "asynchronous store", Proxy.GENERIC)
    begin = agent.cluster.step

    def fill() -> None:
        view.fill(value)
        _trace(agent, op, view, "store", begin, (Tick(*write).work,))

    deliver(agent, op, barrier, value.nbytes, write, fill)


def _use(descriptor: Descriptor, access: Access) -> None:
    """Remember a transfer that reads a descriptor which the kernel made, and may make again."""
    if descriptor.home is not None:
        descriptor.home.uses[access.component] = access


def _as_held(view: View, values: Tensor) -> Tensor:
    """Return values with the element type and the shape of a view: bits are bits, whatever their sign."""
    assert view.held is not None
    return values.view(view.held.dtype).view(view.held.shape)


@operation("ttng.async_tma_copy_local_to_global", ignored=_CACHING)
def store(agent: Agent, op: Operation) -> Steps:
    _store(agent, op, None)
    yield


_REDUCE_KINDS = {1: "add", 2: "min", 3: "max", 6: "and", 7: "or", 8: "xor"}


@operation("ttng.async_tma_reduce", "kind", ignored=_CACHING)
def reduce(agent: Agent, op: Operation) -> Steps:
    kind = _REDUCE_KINDS.get(op.attributes["kind"])
    if kind not in REDUCTIONS:
        raise refusal(f"TMA reduction {op.attributes['kind']} is not known to the simulator", op.location)
    _store(agent, op, kind)
    yield


def _store(agent: Agent, op: Operation, reduction: str | None) -> None:
    descriptor: Descriptor = agent.get(op.operands[0])
    view: View = agent.get(op.operands[-1])
    type_ = op.operand_types[-1]
    assert isinstance(type_, MemDescType)
    _check_box(op, type_)
    start = tuple(int(agent.get(name)) for name in op.operands[1:-1])
    origin = tuple(s + o for s, o in zip(start, type_.origin(agent.cta)[-len(start) :], strict=True))
    what = "TMA reduction" if reduction else "TMA store"
    _check_alignment(agent, op, descriptor, origin[-1], what)
    box = descriptor.box(origin, tuple(view.data.shape[-len(origin) :]))
    _store_from(agent, op, view, box, what, reduction)


def _store_from(
    agent: Agent, op: Operation, view: View, part: Part, what: str, reduction: str | None
) -> None:
    if part.descriptor.rounds_to_tf32:
        raise refusal(
            "stores by a descriptor that rounds to tf32 are not known to the simulator", op.location
        )
    cluster = agent.cluster
    base = view.place.allocation.location.called
    reads, writes = agent.store_reads, agent.store_writes
    number = reads.issue(base, op.location)
    writes.issue(base, op.location)
    clock, fenced = agent.knowledge.clock, agent.knowledge.fenced
    read = agent.asynchronous(reads.component, number, what, op.location)
    view.memory.read(view, read, clock, fenced)
    _use(part.descriptor, read)
    write = agent.asynchronous(writes.component, number, what, op.location)
    strength = RELAXED if reduction else None
    touch = cluster.globals.write(part.regions, part.descriptor.name, write, clock, strength)
    begin = cluster.step

    def complete_read() -> None:
        values = loaded(agent, op, view)

        def complete_write() -> None:
            cluster.globals.perform(touch, lambda: part.store(values, reduction))

        _trace(agent, op, view, "store", begin, (read.work, write.work))
        cluster.issue(Event(writes.events, complete_write, op))

    cluster.issue(Event(reads.events, complete_read, op))


@operation("ttng.async_tma_store_wait", "pendings", "read_only")
def store_wait(agent: Agent, op: Operation) -> Steps:
    pending: int = op.attributes["pendings"]
    agent.store_reads.wait(pending, agent.knowledge)
    agent.drain(agent.store_reads)
    if not op.attributes.get("read_only"):
        agent.store_writes.wait(pending, agent.knowledge)
        agent.drain(agent.store_writes)
    yield


def _trace(agent: Agent, op: Operation, view: View, kind: str, begin: int, works: tuple[Work, ...]) -> None:
    cluster = agent.cluster
    if cluster.trace:
        row = f"{agent.label} {kind}s"
        cluster.trace.spans.append(
            Span(view.name, kind, row, view.memory.cta, begin, cluster.step, op.location.line, works)
        )
