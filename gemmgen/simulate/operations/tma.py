"""TMA: loads into shared memory, with multicast, and stores and reductions from it."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from gemmgen.simulate.agent import Agent, Event, Steps
from gemmgen.simulate.barrier import Barrier
from gemmgen.simulate.clocks import Component
from gemmgen.simulate.errors import refusal
from gemmgen.simulate.global_memory import REDUCTIONS, Descriptor
from gemmgen.simulate.memory import View
from gemmgen.simulate.operations.barrier import find, owner
from gemmgen.simulate.parse import Operation
from gemmgen.simulate.registry import operation
from gemmgen.simulate.trace import Span
from gemmgen.simulate.types import MemDescType

_CACHING = ("cache", "evict", "cachePolicy", "isVolatile", "l2CachePolicy")
"""Hints about speed."""


@operation("ttng.async_tma_copy_global_to_local", "multicast", ignored=_CACHING, blocking=True)
def load(agent: Agent, op: Operation) -> Steps:
    (descriptor_name,), coordinates, offsets, (barrier_name,), (result,), (predicate,) = op.segments()
    if offsets:
        raise refusal("im2col loads are not known to the simulator", op.location)
    if not agent.get(predicate):
        return
    position = len(coordinates) + 2
    type_ = op.operand_types[position]
    assert isinstance(type_, MemDescType)
    receivers = [agent.cta]
    if op.attributes.get("multicast"):
        if agent.cta & type_.shared_bits:
            return  # the group's lowest CTA loads for all of it
        ctas = range(agent.cluster.kernel.ctas)
        receivers = [cta for cta in ctas if cta & ~type_.shared_bits == agent.cta]
    start = tuple(int(agent.get(name)) for name in coordinates)
    descriptor: Descriptor = agent.get(descriptor_name)
    origin = tuple(s + o for s, o in zip(start, type_.origin(agent.cta)[-len(start) :], strict=True))
    barrier_view: View = agent.get(barrier_name)
    for cta in receivers:
        view: View = agent.get(result)
        barrier = find(agent, barrier_view, owner(op, position - 1, cta), "TMA load")
        _load_into(agent, op, descriptor, origin, view.on(agent.cluster.memories[cta]), barrier)
    yield


def destination(agent: Agent, op: Operation, view: View, what: str) -> tuple[Component, int]:
    """Judge an asynchronous write into shared memory; return its lane and its number there."""
    loads = agent.cluster.loads
    component: Component = ("load", view.memory.cta, view.place)
    number = loads[component][0] + 1 if component in loads else 1
    access = agent.asynchronous(component, number, what, op.location)
    loads[component] = (number, access, view.name, view.memory.cta)
    knowledge = agent.knowledge
    # The lowering of try_cancel emits the fence that orders it after generic accesses.
    fenced = knowledge.clock if op.name == "ttng.clc_try_cancel" else knowledge.fenced
    view.memory.write(view, access, knowledge.clock, fenced)
    return component, number


def _load_into(
    agent: Agent,
    op: Operation,
    descriptor: Descriptor,
    origin: tuple[int, ...],
    view: View,
    barrier: Barrier | None,
) -> None:
    cluster = agent.cluster
    component, number = destination(agent, op, view, "TMA load")
    _, access, _, _ = cluster.loads[component]
    shape = tuple(view.data.shape[-len(origin) :])
    region, _ = descriptor.region(origin, shape)
    cluster.globals.read(region, descriptor.name, access, agent.knowledge.clock)
    size = view.data.numel() * view.data.element_size()  # what is out of bounds counts too [ptx]
    cluster.load_count += 1
    identity, begin = cluster.load_count, cluster.step
    if barrier:
        barrier.in_flight[identity] = size

    def complete() -> None:
        box = descriptor.load(origin, shape).view(view.data.dtype)  # bits are bits, whatever their sign
        view.data.copy_(box.view(view.data.shape))
        if barrier:
            barrier.receive(size, identity, component, number)
            cluster.settle(barrier)
        _trace(agent, op, view, "load", begin)

    cluster.issue(Event([], complete))


@operation("ttng.async_tma_copy_local_to_global", ignored=_CACHING, blocking=True)
def store(agent: Agent, op: Operation) -> Steps:
    _store(agent, op, None)
    yield


_REDUCE_KINDS = {1: "add", 2: "min", 3: "max"}


@operation("ttng.async_tma_reduce", "kind", ignored=_CACHING, blocking=True)
def reduce(agent: Agent, op: Operation) -> Steps:
    kind = _REDUCE_KINDS.get(op.attributes["kind"])
    if kind not in REDUCTIONS:
        raise refusal(f"TMA reduction {op.attributes['kind']} is not known to the simulator", op.location)
    _store(agent, op, kind)
    yield


def _store(agent: Agent, op: Operation, reduction: str | None) -> None:
    cluster = agent.cluster
    descriptor: Descriptor = agent.get(op.operands[0])
    if descriptor.rounds_to_tf32:
        raise refusal(
            "stores by a descriptor that rounds to tf32 are not known to the simulator", op.location
        )
    view: View = agent.get(op.operands[-1])
    type_ = op.operand_types[-1]
    assert isinstance(type_, MemDescType)
    start = tuple(int(agent.get(name)) for name in op.operands[1:-1])
    origin = tuple(s + o for s, o in zip(start, type_.origin(agent.cta)[-len(start) :], strict=True))
    shape = tuple(view.data.shape[-len(origin) :])
    base = view.place.allocation.location.name or "<unnamed buffer>"
    what = "TMA reduction" if reduction else "TMA store"
    reads, writes = agent.store_reads, agent.store_writes
    number = reads.issue(base, op.location)
    writes.issue(base, op.location)
    clock, fenced = agent.knowledge.clock, agent.knowledge.fenced
    read = agent.asynchronous(reads.component, number, what, op.location)
    view.memory.read(view, read, clock, fenced)
    write = agent.asynchronous(writes.component, number, what, op.location)
    region, _ = descriptor.region(origin, shape)
    cluster.globals.write(region, descriptor.name, write, clock, atomic=reduction is not None)
    begin = cluster.step

    def complete_read() -> None:
        box = view.data.reshape(shape).clone()

        def complete_write() -> None:
            descriptor.store(origin, box, reduction)

        _trace(agent, op, view, "store", begin)
        cluster.issue(Event(writes.events, complete_write))

    cluster.issue(Event(reads.events, complete_read))


@operation("ttng.async_tma_store_wait", "pendings", "read_only", blocking=True)
def store_wait(agent: Agent, op: Operation) -> Steps:
    pending: int = op.attributes["pendings"]
    agent.store_reads.wait(pending, agent.knowledge)
    agent.drain(agent.store_reads)
    if not op.attributes.get("read_only"):
        agent.store_writes.wait(pending, agent.knowledge)
        agent.drain(agent.store_writes)
    yield


def _trace(agent: Agent, op: Operation, view: View, kind: str, begin: int) -> None:
    cluster = agent.cluster
    if cluster.trace:
        row = f"{agent.label} {kind}s"
        cluster.trace.spans.append(
            Span(view.name, kind, row, view.memory.cta, begin, cluster.step, op.location.line)
        )
