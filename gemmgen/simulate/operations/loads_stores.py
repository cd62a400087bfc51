"""Shared, tensor and global memory as a partition touches them: at once, by the generic proxy."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmgen.simulate.clocks import learn
from gemmgen.simulate.findings import refusal
from gemmgen.simulate.global_memory import PLAIN, VOLATILE, Elements, Region, same_bits
from gemmgen.simulate.memory import View
from gemmgen.simulate.operations import computation, operation, resolved
from gemmgen.simulate.operations.control import find, owner
from gemmgen.simulate.parse import SHARED_MEMORY, Distributed, MemDescType, Operation
from gemmgen.simulate.places import REINTERPRET
from gemmgen.simulate.program import Agent, Event, Handler, Steps, Undefined, Watch

TOKEN = None
"""Orders operations for the compiler; here the order is that of the program."""


@dataclass(frozen=True)
class Pointer:
    """Elements of a tensor's storage, by their number in it: a number, or a tensor of numbers."""

    name: str
    flat: Tensor
    """The storage as one dimension."""
    offset: Any


@operation("ttg.local_alloc", ignored=("alignment",))
def local_alloc(agent: Agent, op: Operation) -> View:
    view = agent.memory.allocations[op]
    if op.operands:
        _store(agent, op, agent.get(op.operands[0]), view, "store to shared memory")
    return view


@operation("ttg.local_dealloc")
def local_dealloc(agent: Agent, op: Operation) -> None:
    """Nothing: the offsets are chosen, and what comes over this memory must be ordered after it anyway."""


@resolved("ttg.memdesc_index", computes=True)
def memdesc_index(op: Operation) -> Handler:
    source, type_ = op.operand_types[0], op.result_types[0]
    assert isinstance(source, MemDescType)
    slots = source.local_shape[0]
    hows = [(op.name, slot) for slot in range(slots)]
    ring, number = op.operands

    def run(agent: Agent, op: Operation) -> View | Undefined:
        view: View = agent.get(ring)
        index: int = agent.get(number)
        if not 0 <= index < slots:
            # The device only computes an address here: a predicate may keep it from being used.
            why = f"slot {index} of {view.name}, which has {slots}"
            return Undefined(view.view(hows[0], type_), why, op.location)
        return view.view(hows[index], type_)

    return run


@computation("ttg.memdesc_trans", "order")
def memdesc_trans(agent: Agent, op: Operation) -> View:
    view: View = agent.get(op.operands[0])
    return view.view((op.name, op.attributes["order"]), op.result_types[0])


@computation("ttg.memdesc_reshape")
def memdesc_reshape(agent: Agent, op: Operation) -> View:
    view: View = agent.get(op.operands[0])
    type_ = op.result_types[0]
    assert isinstance(type_, MemDescType)
    return view.view((op.name, type_.local_shape), type_)


@computation(REINTERPRET)
def memdesc_reinterpret(agent: Agent, op: Operation) -> View:
    """Return other elements over the same bytes.

    Swizzling is left out, as everywhere: what is written by one view and read by the other comes out in
    another order than on the device, and no kernel should do that.
    """
    view: View = agent.get(op.operands[0])
    before, after = op.operand_types[0], op.result_types[0]
    assert isinstance(before, MemDescType)
    assert isinstance(after, MemDescType)
    whole = view.held is not None and view.data.is_contiguous()
    if not whole or before.fp4_padded or after.fp4_padded or after.space != SHARED_MEMORY:
        raise refusal("this reinterpretation of memory is not known to the simulator", op.location)
    return view.view((op.name, (after.element, after.local_shape)), after)


@computation("ttg.memdesc_subslice", "offsets")
def memdesc_subslice(agent: Agent, op: Operation) -> View:
    view: View = agent.get(op.operands[0])
    type_ = op.result_types[0]
    assert isinstance(type_, MemDescType)
    return view.view((op.name, (op.attributes["offsets"], type_.local_shape)), type_)


@operation("ttg.local_load")
def local_load(agent: Agent, op: Operation) -> Tensor:
    view: View = agent.get(op.operands[0])
    access = agent.access("load from shared memory", op.location)
    view.memory.read(view, access, agent.knowledge.clock, agent.knowledge.fenced)
    return loaded(agent, op, view)


def loaded(agent: Agent, op: Operation, view: View) -> Tensor:
    """Return what a view of memory holds now."""
    return agent.cluster.known.tensor(op, (view.numbers,), lambda: view.data.clone())


@operation("ttg.local_store")
def local_store(agent: Agent, op: Operation) -> None:
    _store(agent, op, agent.get(op.operands[0]), agent.get(op.operands[1]), "store to shared memory")


def _store(agent: Agent, op: Operation, value: Tensor, view: View, what: str) -> None:
    access = agent.access(what, op.location)
    view.memory.write(view, access, agent.knowledge.clock, agent.knowledge.fenced)
    view.fill(value)


@computation("tt.addptr")
def addptr(agent: Agent, op: Operation) -> Pointer:
    pointer: Pointer = agent.get(op.operands[0])
    return Pointer(pointer.name, pointer.flat, pointer.offset + agent.get(op.operands[1]))


_CACHING = ("cache", "evict", "boundaryCheck", "padding")


@operation("tt.load", "isVolatile", ignored=_CACHING)
def load(agent: Agent, op: Operation) -> Any:
    pointer_names, mask_names, other_names = op.segments
    pointer: Pointer = agent.get(pointer_names[0])
    offsets = torch.as_tensor(pointer.offset)
    mask = mask_of(agent, mask_names, offsets)
    region = elements(pointer, offsets[mask], op)
    volatile = bool(op.attributes.get("isVolatile"))
    access = agent.access("volatile load" if volatile else "load", op.location)
    memory, knowledge = agent.cluster.globals, agent.knowledge
    memory.read(region, pointer.name, access, knowledge.clock, VOLATILE if volatile else None)
    if volatile or agent.polled is not None:
        memory.acquire(region, access, knowledge, VOLATILE if volatile else PLAIN)
    if agent.polled is not None:
        found = pointer.flat[offsets[mask]]
        agent.polled.append(Watch(pointer.name, pointer.flat, offsets[mask], found, op.location))
    values = torch.zeros(offsets.shape, dtype=pointer.flat.dtype)
    if other_names:
        values.copy_(torch.as_tensor(agent.get(other_names[0])))
    values[mask] = pointer.flat[offsets[mask]]
    return values if isinstance(op.result_types[0], Distributed) else values.item()


@operation(
    "ttg.async_copy_global_to_local",
    ignored=(*_CACHING, "isVolatile", "contiguity", "cachePolicy"),
    blocking=True,
)
def async_copy(agent: Agent, op: Operation) -> Steps:
    """cp.async: the generic proxy, at some time until the group is awaited; a masked element becomes 0."""
    (pointer_name,), (target,), mask_names, other_names = op.segments
    pointer: Pointer = agent.get(pointer_name)
    offsets = torch.as_tensor(pointer.offset)
    mask = mask_of(agent, mask_names, offsets)
    view: View = agent.get(target)
    other = agent.get(other_names[0]) if other_names else 0
    lane, knowledge = agent.copies, agent.knowledge
    number = lane.issue(view.name, op.location)
    access = agent.access("cp.async", op.location)._replace(component=lane.component, number=number)
    view.memory.write(view, access, knowledge.clock, knowledge.fenced)
    regions = elements(pointer, offsets[mask], op)
    agent.cluster.globals.read(regions, pointer.name, access, knowledge.clock)

    def complete() -> None:
        values = torch.full(offsets.shape, 0, dtype=pointer.flat.dtype)
        values.copy_(torch.as_tensor(other))
        values[mask] = pointer.flat[offsets[mask]]
        view.fill(values)

    agent.cluster.issue(Event(lane.events, complete))
    yield
    return TOKEN


@operation("ttg.async_commit_group")
def async_commit_group(agent: Agent, _: Operation) -> Any:
    agent.copy_groups.append(agent.copies.issued)
    return TOKEN


@operation("ttg.async_wait", "num", blocking=True)
def async_wait(agent: Agent, op: Operation) -> Steps:
    outstanding: int = op.attributes["num"]
    if len(agent.copy_groups) > outstanding:
        last = agent.copy_groups[-1 - outstanding]
        agent.copies.wait(agent.copies.issued - last, agent.knowledge)
        agent.drain(agent.copies)
    yield
    return TOKEN


@operation("ttng.async_copy_mbarrier_arrive", "noIncrement", blocking=True)
def async_copy_arrive(agent: Agent, op: Operation) -> Steps:
    """Arrive when the copies so far are complete; the arrival adds itself to those that are awaited."""
    if op.attributes.get("noIncrement"):
        raise refusal("arrivals of copies that the barrier's count covers are not known", op.location)
    view: View = agent.get(op.operands[0])
    barrier = find(agent, view, owner(op, 0, agent.cta), "cp.async.mbarrier.arrive")
    lane, cluster = agent.copies, agent.cluster
    released = agent.knowledge.release()
    number = lane.issue(view.name, op.location)
    learn(released.clock, lane.component, number)
    if barrier:
        barrier.pending += 1

    def complete() -> None:
        if barrier:
            barrier.arrive_later(f"cp.async of {agent.label} of CTA {agent.cta}", op.location, released)
            cluster.settle(barrier)

    cluster.issue(Event(lane.events, complete))
    yield


@operation("tt.store", ignored=_CACHING)
def store(agent: Agent, op: Operation) -> None:
    type_ = op.operand_types[0]
    if isinstance(type_, Distributed) and agent.cta & type_.shared_bits:
        return  # the lowest of the CTAs that hold the same stores it
    if not isinstance(type_, Distributed) and agent.cta:
        return
    pointer: Pointer = agent.get(op.operands[0])
    offsets = torch.as_tensor(pointer.offset)
    mask = mask_of(agent, op.operands[2:], offsets)
    access = agent.access("store", op.location)
    touched = offsets[mask]
    regions, memory = elements(pointer, touched, op), agent.cluster.globals
    write = memory.write(regions, pointer.name, access, agent.knowledge.clock)
    value = torch.as_tensor(agent.get(op.operands[1]), dtype=pointer.flat.dtype).expand(offsets.shape)[mask]
    memory.perform(write, lambda: not same_bits(pointer.flat[touched], value))
    pointer.flat[touched] = value


def mask_of(agent: Agent, names: tuple[str, ...], offsets: Tensor) -> Tensor:
    mask = torch.as_tensor(agent.get(names[0]) if names else True, dtype=torch.bool)
    return mask.expand(offsets.shape)


def elements(pointer: Pointer, offsets: Tensor, op: Operation) -> list[Region]:
    """Return the elements that are touched.

    Raises:
        GemmgenError: One lies outside of the tensor's storage.
    """
    if not offsets.numel():
        return []
    lowest, highest = (int(bound) for bound in offsets.aminmax())
    if lowest < 0 or highest >= len(pointer.flat):
        raise refusal(f"{pointer.name} is accessed outside of its storage", op.location, "out-of-bounds")
    return [Elements(pointer.flat, offsets.to(torch.int64))]


@operation("ttng.tmem_alloc", "tensor_memory_col_offset", "tensor_memory_row_offset")
def tmem_alloc(agent: Agent, op: Operation) -> Any:
    view = agent.cluster.tensor_memories[agent.cta].allocations[op]
    if op.operands:
        _store(agent, op, agent.get(op.operands[0]), view, "store to tensor memory")
    return view if len(op.results) == 1 else (view, TOKEN)


@computation("ttng.tmem_subslice", "dim", "offset")
def tmem_subslice(agent: Agent, op: Operation) -> View:
    view: View = agent.get(op.operands[0])
    before, after = op.operand_types[0], op.result_types[0]
    assert isinstance(before, MemDescType)
    assert isinstance(after, MemDescType)
    dim: int = op.attributes["dim"]
    if before.local_shape[dim] != before.shape[dim]:
        raise refusal("a slice of tensor memory across CTAs is not known to the simulator", op.location)
    return view.view((op.name, (dim, op.attributes["offset"], after.shape[dim])), after)


@operation("ttng.tmem_load", "resultSegmentSizes")
def tmem_load(agent: Agent, op: Operation) -> Any:
    result_count, token_count, reduced_count = op.attributes["resultSegmentSizes"]
    if reduced_count:
        raise refusal("loads from tensor memory that reduce are not known to the simulator", op.location)
    view: View = agent.get(op.operands[0])
    access = agent.access("load from tensor memory", op.location)
    view.memory.read(view, access, agent.knowledge.clock, agent.knowledge.fenced)
    value = loaded(agent, op, view)
    return value if result_count + token_count == 1 else (value, TOKEN)


@operation("ttng.tmem_store")
def tmem_store(agent: Agent, op: Operation) -> Any:
    if len(op.operands) != 3:
        raise refusal("a store to tensor memory that takes a token is not known", op.location)
    if agent.get(op.operands[2]):
        _store(agent, op, agent.get(op.operands[1]), agent.get(op.operands[0]), "store to tensor memory")
    return TOKEN
