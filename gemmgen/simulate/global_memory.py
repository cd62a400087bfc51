"""Global tensors: boxes that TMA moves, and who touched which element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from gemmgen.problem.dtype import rounded_to_tf32
from gemmgen.simulate.clocks import Clock
from gemmgen.simulate.findings import Findings, Kind
from gemmgen.simulate.memory import Access


@dataclass(frozen=True)
class _Touch:
    """An access of one program to global memory."""

    program: int
    access: Access
    atomic: bool


@dataclass
class _Tracker:
    """For each element of a storage, who wrote and who read it last: an index into touches, 0 for nobody."""

    writers: Tensor
    readers: Tensor


class GlobalMemory:
    """What the programs of one launch did to the tensors that they were given."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._touches: list[_Touch | None] = [None]
        self._trackers: dict[int, _Tracker] = {}
        self._reads: dict[int, list[tuple[Tensor, int]]] = {}
        """Reads of storages that nobody has written yet: most operands stay so, and cost nothing."""
        self._regions: set[tuple[int, int, torch.Size, tuple[int, ...]]] = set()
        self.program = 0

    @property
    def regions(self) -> int:
        """Different regions that the programs have touched so far."""
        return len(self._regions)

    def read(self, region: Tensor, name: str, access: Access, clock: Clock) -> None:
        """Judge a read of a region of a tensor, a view into it, and remember it."""
        if region.numel() == 0:
            return
        key = self._remember(region)
        tracker = self._trackers.get(key)
        number = self._touch(access, atomic=False)
        if tracker is None:
            self._reads.setdefault(key, []).append((region, number))
            return
        self._judge(_same(tracker.writers, region), name, access, clock, False, "reads", "wrote")
        _same(tracker.readers, region).fill_(number)

    def write(self, region: Tensor, name: str, access: Access, clock: Clock, *, atomic: bool = False) -> None:
        """Judge a write of a region of a tensor, a view into it, and remember it."""
        if region.numel() == 0:
            return
        self._remember(region)
        tracker = self._tracker(region)
        number = self._touch(access, atomic=atomic)
        writers, readers = _same(tracker.writers, region), _same(tracker.readers, region)
        self._judge(writers, name, access, clock, atomic, "writes", "wrote")
        self._judge(readers, name, access, clock, False, "writes", "read")
        writers.fill_(number)

    def _remember(self, region: Tensor) -> int:
        """Note that a region is touched, and return its storage's key."""
        key = region.untyped_storage().data_ptr()
        self._regions.add((key, int(region.storage_offset()), region.shape, region.stride()))
        return key

    def _tracker(self, region: Tensor) -> _Tracker:
        storage = region.untyped_storage()
        key = storage.data_ptr()
        if key not in self._trackers:
            count = storage.nbytes() // region.element_size()
            # Two storages: a region's marks are found by its offset in the storage.
            writers, readers = (torch.zeros(count, dtype=torch.int32) for _ in range(2))
            self._trackers[key] = _Tracker(writers, readers)
            for read, number in self._reads.pop(key, []):
                _same(self._trackers[key].readers, read).fill_(number)
        return self._trackers[key]

    def _touch(self, access: Access, *, atomic: bool) -> int:
        self._touches.append(_Touch(self.program, access, atomic))
        return len(self._touches) - 1

    def _judge(
        self, marks: Tensor, name: str, access: Access, clock: Clock, atomic: bool, does: str, did: str
    ) -> None:
        if not bool(marks.any()):
            return
        for number in cast("list[int]", cast(Any, marks).unique().tolist()):
            other = self._touches[number]
            if other is None or (atomic and other.atomic):
                continue
            if other.program == self.program and other.access.covered(clock):
                continue
            whose = "" if other.program == self.program else f" in program {other.program}"
            text = (
                f"{access.what} of program {self.program} {does} elements that {other.access}{whose} {did}, "
                f"and nothing orders the two"
            )
            locations = (access.location, other.access.location)
            self._findings.add(Kind.GLOBAL_RACE, name, locations, access.partition, access.cta, text)


def _same(marks: Tensor, region: Tensor) -> Tensor:
    """Return the marks of a region's elements."""
    return marks.as_strided(region.shape, region.stride(), region.storage_offset())


@dataclass(frozen=True)
class Descriptor:
    """A TMA descriptor: a tensor, what a load returns outside of it, and how it converts."""

    name: str
    tensor: Tensor
    padding: float
    rounds_to_tf32: bool = False
    """Whether a load rounds fp32 to tf32; the tensor core would drop the bits instead."""

    def region(self, origin: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Tensor, tuple[slice, ...]]:
        """Return the part of a box that lies within the tensor, and where in the box it is."""
        region = self.tensor
        inside: list[slice] = []
        for dim, (start, extent) in enumerate(zip(origin, shape, strict=True)):
            low = min(max(start, 0), self.tensor.shape[dim])
            high = min(max(start + extent, low), self.tensor.shape[dim])
            region = region.narrow(dim, low, high - low)
            # An empty box inside the box's bounds: where nothing is copied, the place does not matter.
            inside.append(slice(low - start, high - start) if high > low else slice(0, 0))
        return region, tuple(inside)

    def load(self, origin: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """Return a box; what lies outside of the tensor reads as the padding."""
        region, inside = self.region(origin, shape)
        if self.rounds_to_tf32:
            region = rounded_to_tf32(region)
        if region.shape == shape:
            return region
        box = torch.full(shape, self.padding, dtype=torch.float32).to(self.tensor.dtype)
        box[inside] = region
        return box

    def store(self, origin: tuple[int, ...], box: Tensor, reduce: str | None) -> None:
        """Write a box; what lies outside of the tensor is dropped."""
        region, inside = self.region(origin, tuple(box.shape))
        part = box[inside]
        if reduce is None:
            region.copy_(part)
        else:
            region.copy_(REDUCTIONS[reduce](region, part))


REDUCTIONS: dict[str, Any] = {"add": torch.add, "min": torch.minimum, "max": torch.maximum}
