"""Where allocations and their views lie in a CTA's memory: the same for every CTA, program and schedule."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from math import prod
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import PADDED, TENSOR_MEMORY, Encoding, MemDescType, Type
from gluonsim.tensor_memory import index_from, reinterpreted

GRANULE_BYTES = 4
"""Accesses are told apart down to this size: a bank of shared memory."""


class Place:
    """The granules of an allocation, or of a view of one, in the view's shape."""

    def __init__(
        self,
        allocation: Operation,
        index: Tensor,
        element_bytes: int,
        slot: int | None = None,
        path: tuple[tuple[Place, Hashable], ...] = (),
    ) -> None:
        self.allocation = allocation
        self.index = index
        """First byte of each element; any view of the data is also a view of this."""
        self.element_bytes = element_bytes
        self._slot = slot
        """Of the ring that the allocation is, where the view is within one."""
        self._path = path
        """The places that it is a view of, from the allocation on, and the view that was taken of each."""
        self._views: dict[Hashable, Place] = {}
        self._from: dict[Place, tuple[Hashable, ...] | None] = {}
        """What leads here from other places of the allocation, where that was asked."""

    @cached_property
    def granules(self) -> Tensor:
        """Every granule of the view, once, ascending."""
        low, high = (int(bound) for bound in self.index.aminmax())
        # No two elements are at one place, so these have no gaps.
        if high - low == (self.index.numel() - 1) * self.element_bytes:
            return torch.arange(low // GRANULE_BYTES, (high + self.element_bytes - 1) // GRANULE_BYTES + 1)
        first = self.index.reshape(-1) // GRANULE_BYTES
        more = -(-self.element_bytes // GRANULE_BYTES)
        touched = torch.zeros(int(first.max()) + more, dtype=torch.bool)
        for step in range(more):
            touched[first + step] = True
        return touched.nonzero().reshape(-1)

    @cached_property
    def offset(self) -> int:
        """Byte at which the view begins."""
        return int(self.index.reshape(-1)[0])

    def view(self, how: Any, type_: Type) -> Place:
        """Return a view; one that was asked for before is the same object."""
        if how not in self._views:
            make = self._reinterpreted if how[0] == REINTERPRET else self._part
            self._views[how] = make(how, type_)
        return self._views[how]

    def _part(self, how: Any, type_: Type) -> Place:
        slot = self._slot
        if slot is None and how[0] == "ttg.memdesc_index":
            slot = how[1]
        index = apply_view(self.index, how, type_)
        return Place(self.allocation, index, self.element_bytes, slot, (*self._path, (self, how)))

    def _reinterpreted(self, how: Hashable, type_: Type) -> Place:
        """Return the place of other elements over the same bytes, from the first one on."""
        assert isinstance(type_, MemDescType)
        path = (*self._path, (self, how))
        if type_.space == TENSOR_MEMORY:
            index = index_from(type_, self.offset)
            return Place(self.allocation, index, type_.element_bytes, self._slot, path)
        count = prod(type_.local_shape)
        index = self.offset + torch.arange(count, dtype=torch.int64) * type_.element_bytes
        index = index.reshape(type_.local_shape)
        return Place(self.allocation, index, type_.element_bytes, self._slot, path)

    def chosen(self, index: Tensor) -> Place:
        """Return the place of some elements, given their first bytes."""
        different: Tensor = cast(Any, index).unique()
        if different.numel() == self.index.numel():
            return self
        return Place(self.allocation, different, self.element_bytes, self._slot)

    def views_from(self, other: Place) -> tuple[Hashable, ...] | None:
        """Return the views that lead here from another place; None where this is no view of that one."""
        if other is self:
            return ()
        if other not in self._from:
            self._from[other] = self._views_from(other)
        return self._from[other]

    def _views_from(self, other: Place) -> tuple[Hashable, ...] | None:
        found: list[Hashable] = []
        for place, how in reversed(self._path):
            found.append(how)
            if place is other:
                return tuple(found)
        return None

    @cached_property
    def name(self) -> str:
        """The variable of the allocation, and the slot of a ring where the view is within one."""
        name = self.allocation.location.called
        return name if self._slot is None else f"{name}[{self._slot}]"


def shared_memory_index(operation: Operation) -> Tensor:
    """Return the first byte of each element of an allocation, at the offset that the compiler chose.

    Swizzling permutes the bytes of a tile among themselves, so it makes no difference to who touches what.
    Padding does: what lies in a gap is no element.
    """
    type_ = operation.result_types[0]
    assert isinstance(type_, MemDescType)
    start = int(operation.attributes["allocation.offset"])
    order = torch.arange(prod(type_.local_shape), dtype=torch.int64)
    if type_.encoding is not None and type_.encoding.kind == PADDED:
        order = _padded(type_, type_.encoding)
    return (order * type_.element_bytes + start).reshape(type_.local_shape)


def _padded(type_: MemDescType, encoding: Encoding) -> Tensor:
    """Return the place of each element, counted in elements, with a gap after each interval of a padding."""
    shape, bases = type_.local_shape, _bases(encoding)
    rank = len(bases[0])
    tile = shape[len(shape) - rank :]
    place = torch.zeros(tile, dtype=torch.int64)
    for bit, basis in enumerate(bases):
        steps = [(dim, step) for dim, step in enumerate(basis) if step]
        if len(steps) != 1 or steps[0][1].bit_count() != 1:
            raise refusal(f"a padded layout with the basis {basis} is not known to the simulator")
        ((dim, step),) = steps
        position = torch.arange(tile[dim]).reshape([-1 if each == dim else 1 for each in range(rank)])
        place = place + ((position & step) != 0).to(torch.int64) * (1 << bit)
    slots = torch.arange(prod(shape[: len(shape) - rank])) * prod(tile)
    place = (slots.reshape(-1, *[1] * rank) + place).reshape(-1)
    gaps = torch.zeros_like(place)
    paddings: list[list[int]] = encoding.fields["paddings"]
    for interval, padding in paddings:
        gaps += place // interval * padding
    return place + gaps


def _bases(encoding: Encoding) -> list[list[int]]:
    """Return the step that each bit of an element's place makes along each dimension."""
    fields = encoding.fields
    if "offset" in fields:
        return fields["offset"]
    shape: list[int] = fields["shape"]
    order: list[int] = fields["order"]
    return [
        [1 << bit if each == dim else 0 for each in range(len(shape))]
        for dim in order
        for bit in range(shape[dim].bit_length() - 1)
    ]


REINTERPRET = "ttg.memdesc_reinterpret"
SUBSLICE = "ttg.memdesc_subslice"


def apply_view(tensor: Tensor, how: Any, type_: Type) -> Tensor:
    """Apply a view operation, (its name, its numbers), to data or to an index."""
    kind, numbers = how
    if kind == "ttg.memdesc_index":
        return tensor[numbers]
    if kind == "ttg.memdesc_trans":
        return tensor.permute(numbers)
    assert isinstance(type_, MemDescType)
    if kind == "ttg.memdesc_reshape":
        return tensor.reshape(type_.local_shape)
    if kind == SUBSLICE:
        for dim, (start, extent) in enumerate(zip(*numbers, strict=True)):
            tensor = tensor.narrow(dim, start, extent)
        return tensor
    if kind == "ttng.tmem_subslice":
        return tensor.narrow(*numbers)
    if kind == REINTERPRET and type_.space == TENSOR_MEMORY:
        return reinterpreted(tensor, type_)
    if kind == REINTERPRET:
        elements = tensor.view(-1).view(type_.dtype)
        return elements[: prod(type_.local_shape)].view(type_.local_shape)
    raise refusal(f"view {kind} is not known to the simulator", code="unknown-operation")


class Divisible(Protocol):
    """What keeps something for each atom."""

    def divide(self, atom: int) -> None:
        """Follow the division of an atom: its new part comes last."""
        ...


class Layout:
    """Every allocation of a kernel with its place, and the finest common division of the granules.

    An atom is a set of granules that no access has told apart so far. Accesses nearly always touch the same
    few sets, so a record for each atom is exact and cheap.
    """

    def __init__(self) -> None:
        self.places: dict[Operation, Place] = {}
        self.scratch: dict[Operation, Place] = {}
        """The places of memory that the compiler takes for an operation while it runs."""
        self.atom_of = torch.zeros(0, dtype=torch.int64)
        self.atom_sizes: list[int] = []
        self.version = 0
        self._divided: list[int] = []
        """The version since which each atom is what it is."""
        self._atoms: dict[Place, tuple[int, list[int]]] = {}
        self.sharers: list[Divisible] = []
        """The memories of the programs that run: they follow every division."""

    def add(self, operation: Operation, index: Tensor) -> None:
        """Place one allocation; the index has the first byte of each element."""
        type_ = operation.result_types[0]
        assert isinstance(type_, MemDescType)
        place = self.places[operation] = Place(operation, index, type_.element_bytes)
        self._cover(int(place.granules[-1]) + 1)

    def add_scratch(self, operation: Operation, offset: int, size: int) -> None:
        """Place the scratch memory of an operation, given in bytes."""
        index = torch.arange(offset, offset + size, GRANULE_BYTES)
        place = self.scratch[operation] = Place(operation, index, GRANULE_BYTES)
        self._cover(int(place.granules[-1]) + 1)

    def _cover(self, end: int) -> None:
        if end > len(self.atom_of):
            self.atom_of = torch.zeros(end, dtype=torch.int64)
            self.atom_sizes = [end]
            self._divided = [0]

    def afresh(self) -> Layout:
        """Return one with the same places that no access has divided."""
        other = Layout()
        other.places, other.scratch = self.places, self.scratch
        other._cover(len(self.atom_of))
        return other

    def atoms(self, place: Place, split: list[tuple[int, int]]) -> list[int]:
        """Return the atoms of a view, dividing some if need be: (old, new) is appended to `split`."""
        known = self._atoms.get(place)
        if known is not None:
            version, whole = known
            if version == self.version:
                return whole
            if all(self._divided[atom] <= version for atom in whole):
                self._atoms[place] = self.version, whole  # what was divided since then lies elsewhere
                return whole
        here = self.atom_of[place.granules]
        atoms: list[int] = []
        for old, count in enumerate(map(int, torch.bincount(here))):
            if count == 0:
                continue
            if count == self.atom_sizes[old]:
                atoms.append(old)
                continue
            new = len(self.atom_sizes)
            self.atom_sizes.append(count)
            self.atom_sizes[old] -= count
            self._divided.append(self.version + 1)
            self._divided[old] = self.version + 1
            self.atom_of[place.granules[here == old]] = new
            split.append((old, new))
            atoms.append(new)
        if split:
            self.version += 1
        self._atoms[place] = (self.version, atoms)
        return atoms
