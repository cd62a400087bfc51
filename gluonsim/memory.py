"""The memory of each CTA: what is there, and who may touch it when."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gemmgen.hardware import TRITON
from gluonsim.accesses import ATOMIC, AWAITED_BY, INIT, INVALIDATE, STORE_OF_THE_SAME, Access, Proxy
from gluonsim.clocks import Clock, Component, join
from gluonsim.findings import UNKNOWN, Findings, Kind, Location, Severity, refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import TENSOR_MEMORY, MemDescType, Type
from gluonsim.places import Layout, Place, apply_view
from gluonsim.tensor_memory import allocated

_RACES = (Kind.READ_AFTER_WRITE, Kind.WRITE_AFTER_READ, Kind.WRITE_AFTER_WRITE)

POISON_INTEGER = 0x5A
"""What uninitialised integers hold in each byte; floats hold NaN."""


class Written(NamedTuple):
    """What one write put into memory."""

    numbers: Hashable
    """Stands for them: the same only for the same ones."""
    place: Place


@dataclass
class _Record:
    """The accesses to an atom that later ones must be ordered after."""

    write: Access | None = None
    beside: tuple[Access, ...] = ()
    """Atomics that changed the contents too, and that nothing orders with the last write."""
    holder: Operation | None = None
    """The allocation that the contents were written to: for any other over the same bytes, and where there is
    none, they are undefined."""
    reads: dict[Component, Access] = field(default_factory=dict[Component, Access])
    """Of what was written last: the newest one of each component, and the first one."""
    first_reads: dict[Component, Access] = field(default_factory=dict[Component, Access])
    lost: Access | None = None
    """The last write of what was there before, if nobody else had read it."""
    seen: bool = False
    """True if one who does not write it has read what is there."""
    written: Written | None = None
    """What its bytes are a part of; None where nothing stands for that."""

    def copy(self) -> _Record:
        return replace(self, reads=dict(self.reads), first_reads=dict(self.first_reads))

    def add_read(self, access: Access) -> None:
        """Remember a read."""
        component = access.component
        if self.write is not None and self.write.component is not component:
            self.seen = True
        self.reads[component] = access
        if component not in self.first_reads:
            self.first_reads[component] = access

    def add_write(self, access: Access, holder: Operation, clock: Clock) -> None:
        """Remember a write that is issued with a clock, and forget the reads of what it overwrites."""
        if access.what == ATOMIC and self.write is not None:
            others = (*self.beside, self.write)
            self.beside = tuple(
                other for other in others if other.what == ATOMIC and not other.covered(clock)
            )
        elif self.beside:
            self.beside = ()
        own = self.reads.get(access.component)
        if own is None or own.number != access.number:  # else it adds to what is there
            self.lost = None if self.seen else self.write
            self.seen = False
        self.write, self.holder = access, holder
        self.reads.clear()
        self.first_reads.clear()

    def ahead(self, read: Access, clock: Clock) -> bool:
        """Return whether who reads did so again where one who writes with this clock knows of the first time.

        The next contents were to come in between: it is the reader who is a lap ahead.
        """
        first = self.first_reads[read.component]
        return first is not read and first.location == read.location and first.covered(clock)

    def behind(self, clock: Clock) -> bool:
        """Return whether a write that a reader with this clock knows is lost: the writer is a lap ahead."""
        return self.lost is not None and self.lost.covered(clock)


@dataclass(eq=False)
class View:
    """A part of one CTA's memory."""

    memory: Memory
    place: Place
    held: Tensor | None
    """Where the data is; None where torch cannot express the view without a copy."""
    _views: dict[Hashable, View] = field(default_factory=dict[Hashable, "View"])
    _path: tuple[tuple[Hashable, Type], ...] = ()
    _base: View | None = None
    """What the data is made of afresh where it is not held."""

    @property
    def data(self) -> Tensor:
        """What the memory holds now."""
        self.memory.settle(self.place.allocation)
        if self.held is not None:
            return self.held
        assert self._base is not None
        return apply_view(self._base.data, *self._path[-1])

    def view(self, how: Hashable, type_: Type) -> View:
        """Return a view of this view."""
        known = self._views.get(how)
        if known is None:
            place = self.place.view(how, type_)
            path = (*self._path, (how, type_))
            base = self.data
            data = apply_view(base, how, type_)
            same = (
                self.held is not None
                and data.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
            )
            held, remade = (data, None) if same else (None, self)
            known = View(self.memory, place, held, _path=path, _base=remade)
            self._views[how] = known
        return known

    @property
    def numbers(self) -> Hashable | None:
        """What stands for what the memory holds now, the same only for the same; None if nothing does.

        A view of a place that was written as a whole is told by what was written and by how it is viewed.
        """
        written = self.memory.written(self.place)
        if written is None:
            return None
        views = self.place.views_from(written.place)
        return None if views is None else (written.numbers, views)

    def fill(self, values: Tensor, numbers: Hashable | None = None) -> None:
        """Change what the memory holds; `numbers` stands for the values, if anything does.

        Values that something stands for must never change: they are copied when somebody looks at them, which
        nobody may, if all that is computed of them is known.
        """
        if numbers is None:
            self.data.copy_(values)
            self.memory.note(self.place, None)
        else:
            self.memory.put_off(self, values)
            self.memory.note(self.place, Written(numbers, self.place))

    def forget(self) -> None:
        """Forget the views of this view, some of which refer to it."""
        for view in self._views.values():
            view.forget()
        self._views.clear()

    def on(self, memory: Memory) -> View:
        """Return the same part of a CTA's memory."""
        if memory is self.memory:
            return self
        found = memory.allocations[self.place.allocation]
        for how, type_ in self._path:
            found = found.view(how, type_)
        return found

    @property
    def name(self) -> str:
        """The variable of the buffer."""
        return self.place.name


CLUSTER_BARRIER = "a cluster.barrier() between the two"
"""The remedy for accesses of two CTAs that nothing orders."""


class RelaxedMeetings:
    """Fences of the CTAs of a cluster that a relaxed cluster barrier did not hand to the other CTAs."""

    def __init__(self) -> None:
        self.clock: Clock = {}
        """All accesses that were fenced before such a barrier."""
        self.location = UNKNOWN
        """The newest such barrier."""

    def add(self, fenced: Clock, location: Location) -> None:
        """Add the fenced accesses of a CTA that comes to a relaxed cluster barrier."""
        join(self.clock, fenced)
        self.location = location


class Memory:
    """Shared or tensor memory of one CTA while one program runs."""

    def __init__(
        self, cta: int, layout: Layout, findings: Findings, relaxed: RelaxedMeetings | None = None
    ) -> None:
        self.cta = cta
        self._relaxed = relaxed or RelaxedMeetings()
        self._layout = layout
        self._findings = findings
        self._records = [_Record() for _ in layout.atom_sizes]
        self._known: dict[Place, tuple[int, list[_Record]]] = {}
        """The records of a view's atoms, as of a version of the layout."""
        self._put_off: dict[Operation, dict[Place, tuple[View, Tensor]]] = {}
        """What has been written to each allocation and not yet copied there, in order."""
        self.allocations: dict[Operation, View] = {}
        """The place of each allocation: to execute it again changes nothing there."""
        for operation, place in layout.places.items():
            type_ = operation.result_types[0]
            assert isinstance(type_, MemDescType)
            if type_.space == TENSOR_MEMORY:
                data = allocated(type_, poison)
            else:
                data = torch.empty(type_.local_shape, dtype=type_.dtype)
                poison(data)
            self.allocations[operation] = View(self, place, data)
        nothing = torch.empty(0)
        self._scratch = {op: View(self, place, nothing) for op, place in layout.scratch.items()}

    def read(
        self, view: View, access: Access, clock: Clock, fenced: Clock, place: Place | None = None
    ) -> None:
        """Judge a read that is issued with a clock, of a view or of a place in it, and remember it."""
        allocation, findings = view.place.allocation, self._findings
        if findings.faulty:
            access = self._placed(access, clock)
        ordered: Access | None = None  # most atoms of a view were written by one access
        for record in self._touched(place or view.place):
            write = record.write
            if record.holder is not allocation:
                self._report(Kind.UNINITIALISED_READ, view, access, None, "reads what was never written")
            elif write is not ordered and write is not None:
                if access.is_ordered(write, clock):
                    ordered = write
                else:
                    self._judge_read(view, access, record, write, clock, fenced)
            for other in record.beside:
                if not access.is_ordered(other, clock):
                    self._judge_read(view, access, record, other, clock, fenced)
            record.add_read(self._placed(access, clock) if findings.faulty else access)

    def write(
        self, view: View, access: Access, clock: Clock, fenced: Clock, place: Place | None = None
    ) -> None:
        """Judge a write that is issued with a clock, to a view or to a place in it, and remember it."""
        if view.held is None:
            raise refusal(f"a write to {view.name} through a view that moves elements is not known")
        allocation, findings = view.place.allocation, self._findings
        if findings.faulty:
            access = self._placed(access, clock)
        ordered: Access | None = None  # as for a read
        for record in self._touched(place or view.place):
            write = record.write
            if access.proxy is Proxy.SCRATCH and record.holder is not None:  # the buffer that was there
                view = self.allocations.get(record.holder, view)
            if write is not ordered and write is not None and write.what == INIT:
                self._judge_barrier(view, access, record, write)
            if access.what == ATOMIC and record.holder is not allocation:
                self._report(Kind.UNINITIALISED_READ, view, access, None, "reads what was never written")
            if write is not ordered and write is not None:
                if access.is_ordered(write, clock):
                    ordered = write
                else:
                    self._judge_overwrite(view, access, write, clock, fenced)
            for other in record.beside:
                if not access.is_ordered(other, clock):
                    self._judge_overwrite(view, access, other, clock, fenced)
            for read in record.reads.values():
                if not access.is_ordered(read, clock):
                    self._judge_write(view, access, record, read, clock, fenced)
            record.add_write(self._placed(access, clock) if findings.faulty else access, allocation, clock)

    def use_scratch(self, op: Operation, access: Access, clock: Clock) -> None:
        """Judge what an operation does with its scratch memory, which the compiler puts over dead buffers."""
        self.write(self._scratch[op], access, clock, clock)

    def put_off(self, view: View, values: Tensor) -> None:
        """Write values when the allocation is next looked at."""
        waiting = self._put_off.setdefault(view.place.allocation, {})
        waiting.pop(view.place, None)  # overwritten as a whole
        waiting[view.place] = view, values

    def settle(self, allocation: Operation) -> None:
        """Write what was put off."""
        waiting = self._put_off.pop(allocation, None)
        for view, values in waiting.values() if waiting else ():
            assert view.held is not None
            view.held.copy_(values)

    def end(self) -> None:
        """Forget the views, which refer to this memory."""
        for view in self.allocations.values():
            view.forget()
        self.allocations.clear()
        self._scratch.clear()
        self._put_off.clear()

    def _placed(self, access: Access, clock: Clock) -> Access:
        """Return an access, in a run that has shown a fault, that knows whether it comes after one."""
        return access._replace(follows=True) if self._findings.follows(clock) else access

    def _judge_read(
        self, view: View, access: Access, record: _Record, write: Access, clock: Clock, fenced: Clock
    ) -> None:
        if write.covered(clock):
            self._judge_fence(view, access, write, fenced)
        elif record.behind(clock):
            text = f"{write.what} overwrites it before {access} has read it"
            self._report(Kind.WRITE_AFTER_READ, view, write, access, text)
        else:
            text = f"{access.what} reads it although {write} is not known to be complete"
            self._report(Kind.READ_AFTER_WRITE, view, access, write, text)

    def _judge_overwrite(
        self, view: View, access: Access, write: Access, clock: Clock, fenced: Clock
    ) -> None:
        if access.what == write.what == ATOMIC:
            return
        if write.covered(clock):
            self._judge_fence(view, access, write, fenced)
        elif access.what == write.what == STORE_OF_THE_SAME and access.location == write.location:
            text = f"{access.what} writes what {write} wrote: one of the two is enough"
            self._report(Kind.REDUNDANT_STORE, view, access, write, text, Severity.LINT)
        else:
            text = f"{access.what} overwrites it although {write} is not known to be complete"
            self._report(Kind.WRITE_AFTER_WRITE, view, access, write, text)

    def _judge_barrier(self, view: View, access: Access, record: _Record, init: Access) -> None:
        """Judge a write where an mbarrier was initialised last: only its invalidation may come [ptx]."""
        if access.what == INVALIDATE:
            return
        assert record.holder is not None
        there = record.holder.location
        kind = Kind.DOUBLE_INIT if access.what == INIT else Kind.LIVE_BARRIER
        text = f"{access.what} writes where the barrier {there.called} of {there} is in use"
        self._report(kind, view, access, init, f"{text}: {INVALIDATE} must come first")

    def _judge_write(
        self, view: View, access: Access, record: _Record, read: Access, clock: Clock, fenced: Clock
    ) -> None:
        if read.covered(clock):
            self._judge_fence(view, access, read, fenced)
        elif record.ahead(read, clock):
            text = f"{read.what} reads it again although {access} has not begun, which brings what is next"
            self._report(Kind.READ_AFTER_WRITE, view, read, access, text)
        else:
            text = f"{access.what} overwrites it while {read} may still read it"
            self._report(Kind.WRITE_AFTER_READ, view, access, read, text)

    def _judge_fence(self, view: View, access: Access, before: Access, fenced: Clock) -> None:
        """Judge asynchronous work after what threads read or wrote and are known to have done."""
        if access.proxy is not Proxy.ASYNC or before.proxy is not Proxy.GENERIC or before.covered(fenced):
            return
        if before.cta != access.cta and before.covered(self._relaxed.clock):
            text = (
                f"the cluster barrier at {self._relaxed.location} is relaxed, so {before} is not visible to "
                f"{access.what}, although a fence comes before it: a cluster.barrier() is necessary"
            )
            self._report(Kind.MISSING_CLUSTER_BARRIER, view, access, before, text)
            return
        # Within one partition Triton inserts the missing fence; across partitions it does not.
        same = before.agent == access.agent
        text = f"no fence_async_shared between {before} and {access.what}, which goes by the async proxy"
        if same:
            text += f"; Triton {TRITON.name} inserts it"
        severity = Severity.LINT if same else Severity.ERROR
        self._report(Kind.MISSING_FENCE, view, access, before, text, severity)

    def _report(
        self,
        kind: Kind,
        view: View,
        access: Access,
        other: Access | None,
        text: str,
        severity: Severity = Severity.ERROR,
    ) -> None:
        locations = (access.location,) if other is None else (access.location, other.location)
        if access.cta != self.cta:
            text += f"; the buffer is CTA {self.cta}'s"
        name = view.place.allocation.location.called
        if other is None:
            text = f"{access.what} {text}"
            if access.cta != self.cta:
                text += f": if that CTA writes it, {CLUSTER_BARRIER} must come first"
        elif kind in _RACES and other.agent == access.agent and other.what in AWAITED_BY:
            text += f": {AWAITED_BY[other.what]} must come first"
        elif kind in _RACES and other.cta != access.cta:
            text += f": {CLUSTER_BARRIER}, or an mbarrier that both CTAs use, must order them"
        self._findings.add(
            kind,
            name,
            locations,
            access.partition,
            access.cta,
            f"{view.name}: {text}",
            severity=severity,
            follows=access.follows or (other is not None and other.follows),
            moment=access.moment,
            works=(access.work,) if other is None else (access.work, other.work),
        )

    def written(self, place: Place) -> Written | None:
        """Return the one write that all of a place was left by; None if that is not known."""
        records = self._touched(place)
        written = records[0].written
        for record in records:
            if record.written is not written:
                return None
        return written

    def note(self, place: Place, written: Written | None) -> None:
        """Remember what a place holds now."""
        for record in self._touched(place):
            record.written = written

    def _touched(self, place: Place) -> list[_Record]:
        known = self._known.get(place)
        if known is not None and known[0] == self._layout.version:
            return known[1]
        split: list[tuple[int, int]] = []
        atoms = self._layout.atoms(place, split)
        for old, _ in split:
            for memory in self._layout.sharers:
                memory.divide(old)
        records = [self._records[atom] for atom in atoms]
        self._known[place] = self._layout.version, records
        return records

    def divide(self, atom: int) -> None:
        """Give the newest atom, which was part of this one, a record of its own."""
        self._records.append(self._records[atom].copy())


def poison(data: Tensor) -> None:
    """Fill memory with what no kernel should mistake for data."""
    if data.dtype.is_floating_point:
        data.fill_(float("nan"))
    else:
        data.view(torch.uint8).fill_(POISON_INTEGER)
