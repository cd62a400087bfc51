"""Shared, tensor and global memory as a partition touches them: at once, by the generic proxy."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gluonsim.accesses import STORE_OF_THE_SAME
from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import PADDED, TENSOR_MEMORY, Distributed, MemDescType, TensorType, Type
from gluonsim.memory import View
from gluonsim.operations import computation, operation, resolved
from gluonsim.places import REINTERPRET, SUBSLICE
from gluonsim.program import Agent, Handler
from gluonsim.tensor_memory import is_plain
from gluonsim.tensors.accesses import PLAIN, VOLATILE
from gluonsim.tensors.deferred import Undefined
from gluonsim.tensors.regions import Elements, Region
from gluonsim.waits import Watch

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
        _store_tensor(agent, op, view, op.result_types[0])
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
        view: View
        index: int
        values = agent.values
        view, index = values[ring], values[number]
        if view.__class__ is not View or index.__class__ is not int:
            view, index = agent.get(ring), agent.get(number)
        if not 0 <= index < slots:
            # The device only computes an address here: a predicate may keep it from being used.
            why = f"slot {index} of {view.name}, which has {slots}"
            name = view.place.allocation.location.called
            return Undefined(view.view(hows[0], type_), why, op.location, name)
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
    if after.space == TENSOR_MEMORY:
        if not (is_plain(before) and is_plain(after)) or view.held is None:
            raise refusal("this reinterpretation of tensor memory is not known to the simulator", op.location)
        return view.view((op.name, (after.element, after.local_shape, after.encoding)), after)
    padded = any(type_.encoding and type_.encoding.kind == PADDED for type_ in (before, after))
    if not whole or before.fp4_padded or after.fp4_padded or padded:
        raise refusal("this reinterpretation of memory is not known to the simulator", op.location)
    return view.view((op.name, (after.element, after.local_shape)), after)


@computation(SUBSLICE, "offsets")
def memdesc_subslice(agent: Agent, op: Operation) -> View:
    view: View = agent.get(op.operands[0])
    source, type_ = op.operand_types[0], op.result_types[0]
    assert isinstance(source, MemDescType)
    assert isinstance(type_, MemDescType)
    if any(
        part != whole and held != whole
        for part, held, whole in zip(type_.shape, source.local_shape, source.shape, strict=True)
    ):
        raise refusal("a slice of a buffer along what CTAs divide is not known to the simulator", op.location)
    return view.view((op.name, (op.attributes["offsets"], type_.local_shape)), type_)


@operation("ttg.local_load")
def local_load(agent: Agent, op: Operation) -> Tensor:
    view: View = agent.get(op.operands[0])
    memory, type_ = op.operand_types[0], op.result_types[0]
    assert isinstance(memory, MemDescType)
    assert isinstance(type_, TensorType)
    if memory.blocks == type_.blocks:
        _read(agent, op, view)
        return loaded(agent, op, view)
    # CTAs divide the tensor otherwise than the buffer: it comes from the memory of those that hold it.
    whole = torch.empty(type_.local_shape, dtype=type_.dtype)
    for here, held in parts_of(agent, view, memory, type_):
        _read(agent, op, held)
        whole[here] = held.data
    return whole


def _read(agent: Agent, op: Operation, view: View) -> None:
    access = agent.access("load from shared memory", op.location)
    view.memory.read(view, access, agent.knowledge.clock, agent.knowledge.fenced)


def parts_of(
    agent: Agent, view: View, memory: MemDescType, tensor: TensorType
) -> Iterator[tuple[tuple[slice, ...], View]]:
    """Yield the parts of a tensor that a CTA has or gets, each with its place in the memory of some CTA.

    Triton 3.9 makes no CTA wait for another one at such a load or store: that is up to the kernel.
    """
    for held in memory.holdings(agent.cta, tensor.origin(agent.cta), tensor.local_shape):
        starts = tuple(each.start for each in held.there)
        extents = tuple(each.stop - each.start for each in held.there)
        other = view.on(agent.cluster.memories[held.cta])
        yield held.here, other.view((SUBSLICE, (starts, extents)), memory)


def loaded(agent: Agent, op: Operation, view: View) -> Tensor:
    """Return what a view of memory holds now."""
    return agent.cluster.known.tensor(op, (view.numbers,), lambda: view.data.clone())


@operation("ttg.local_store")
def local_store(agent: Agent, op: Operation) -> None:
    _store_tensor(agent, op, agent.get(op.operands[1]), op.operand_types[1])


def _store_tensor(agent: Agent, op: Operation, view: View, memory: Type) -> None:
    """Store a tensor; where CTAs divide it otherwise than the buffer, into the memory of each."""
    value: Tensor = agent.get(op.operands[0])
    type_ = op.operand_types[0]
    assert isinstance(memory, MemDescType)
    assert isinstance(type_, TensorType)
    if memory.blocks == type_.blocks:
        _store(agent, op, value, view, "store to shared memory")
        return
    what = STORE_OF_THE_SAME if type_.shared_bits else "store to shared memory"
    for here, held in parts_of(agent, view, memory, type_):
        _store(agent, op, value[here], held, what)


def _store(agent: Agent, op: Operation, value: Tensor, view: View, what: str) -> None:
    access = agent.access(what, op.location)
    view.memory.write(view, access, agent.knowledge.clock, agent.knowledge.fenced)
    view.fill(value)


@computation("tt.addptr")
def addptr(agent: Agent, op: Operation) -> Pointer:
    pointer: Pointer = agent.get(op.operands[0])
    return Pointer(pointer.name, pointer.flat, pointer.offset + agent.get(op.operands[1]))


CACHING = ("cache", "evict", "cachePolicy", "boundaryCheck", "padding")


@operation("tt.load", "isVolatile", ignored=CACHING)
def load(agent: Agent, op: Operation) -> Any:
    (pointer_name,), mask_names, other_names = op.segments
    pointer: Pointer = agent.get(pointer_name)
    chosen = Chosen(agent, pointer, mask_names)
    region = chosen.regions(op)
    volatile = bool(op.attributes.get("isVolatile"))
    access = agent.access("volatile load" if volatile else "load", op.location)
    memory, knowledge = agent.cluster.globals, agent.knowledge
    memory.read(region, pointer.name, access, knowledge.clock, VOLATILE if volatile else None)
    if volatile or agent.polled is not None:
        memory.acquire(region, access, knowledge, VOLATILE if volatile else PLAIN)
    found = chosen.elements.copied()
    if agent.polled is not None:
        agent.polled.append(Watch(pointer.name, pointer.flat, chosen.offsets, found, op.location))
    values = chosen.spread(found, agent.get(other_names[0]) if other_names else 0)
    return values if isinstance(op.result_types[0], Distributed) else values.item()


@operation("tt.store", ignored=CACHING)
def store(agent: Agent, op: Operation) -> None:
    type_ = op.operand_types[0]
    if isinstance(type_, Distributed) and agent.cta & type_.shared_bits:
        return  # the lowest of the CTAs that hold the same stores it
    if not isinstance(type_, Distributed) and agent.cta:
        return
    pointer: Pointer = agent.get(op.operands[0])
    chosen = Chosen(agent, pointer, op.operands[2:])
    access = agent.access("store", op.location)
    regions, memory = chosen.regions(op), agent.cluster.globals
    write = memory.write(regions, pointer.name, access, agent.knowledge.clock)
    touched, value = chosen.elements, chosen.part(agent.get(op.operands[1]))
    memory.perform(write, lambda: touched.mark(pointer.flat, value))


class Chosen:
    """The elements that pointers point to where a mask is set, one after the other.

    Most masks leave nothing out, and are dropped: to choose by one takes longer than all else.
    """

    def __init__(self, agent: Agent, pointer: Pointer, mask: tuple[str, ...]) -> None:
        self._pointer = pointer
        offsets = torch.as_tensor(pointer.offset, dtype=torch.int64)
        self.shape = offsets.shape
        """Of the pointers."""
        self._places: Tensor | None = None
        """Where the mask is set; None if that is everywhere."""
        if mask:
            is_set = torch.as_tensor(agent.get(mask[0]), dtype=torch.bool)
            if not is_set.all():
                self._places = is_set.expand(self.shape).reshape(-1).nonzero().squeeze(1)
        self.offsets = self._where_set(offsets)
        """The numbers of the elements in the storage."""
        self.elements = Elements(pointer.flat, self.offsets)

    def _where_set(self, values: Tensor) -> Tensor:
        flat = values.reshape(-1)
        return flat if self._places is None else flat[self._places]

    def part(self, values: Any) -> Tensor:
        """Return the values, one for each pointer or one for all, that go with the elements."""
        return self._where_set(torch.as_tensor(values, dtype=self._pointer.flat.dtype).expand(self.shape))

    def spread(self, found: Tensor, other: Any) -> Tensor:
        """Return values in the shape of the pointers: the elements' own, and others where no mask is set."""
        if self._places is None:
            return found.reshape(self.shape)
        values = torch.empty(self.shape, dtype=found.dtype)
        values.copy_(torch.as_tensor(other))
        values.view(-1)[self._places] = found
        return values

    def regions(self, op: Operation) -> list[Region]:
        """Return what an operation touches.

        Raises:
            GemmgenError: An element lies outside of the tensor's storage.
        """
        pointer = self._pointer
        region = self.elements
        if region.empty:
            return []
        lowest, highest = region.bounds
        if lowest < 0 or highest >= len(pointer.flat):
            element, count = lowest if lowest < 0 else highest, len(pointer.flat)
            place = f"at element {element:,} of {count:,}"
            message = f"{pointer.name} is accessed outside of its storage, {place}"
            raise refusal(message, op.location, "out-of-bounds")
        return [region]


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


@operation("ttng.tmem_load", "resultSegmentSizes", "redOp", "abs", "NaN")
def tmem_load(agent: Agent, op: Operation) -> Any:
    result_count, token_count, reduced_count = op.attributes["resultSegmentSizes"]
    if reduced_count:
        message = "a load from tensor memory that reduces (tcgen05.ld.red) is no instruction of sm_100"
        raise refusal(message, op.location, "unknown-operation")
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
