"""The tensors of a launch: who touched which elements, and what atomics order between programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import torch
from torch import Tensor

from gemmgen.simulate.clocks import Clock, Component, Knowledge, join
from gemmgen.simulate.findings import Findings, Kind, Location, Severity
from gemmgen.simulate.memory import Access, Proxy


class Scope(StrEnum):
    """The threads that an atomic access is atomic and ordered for."""

    CTA = "cta"
    GPU = "gpu"
    SYSTEM = "sys"


@dataclass(frozen=True)
class Strength:
    """What an atomic or volatile access orders; a plain one has none."""

    order: str
    """``relaxed``, ``acquire``, ``release`` or ``acq_rel``; ``plain`` only to say that nothing is learned."""
    scope: Scope

    @property
    def acquires(self) -> bool:
        """Whether its issuer learns what the writer of the value that it reads has released."""
        return self.order in ("acquire", "acq_rel")

    @property
    def releases(self) -> bool:
        """Whether it hands on what its issuer knows."""
        return self.order in ("release", "acq_rel")


RELAXED = Strength("relaxed", Scope.GPU)
"""A TMA reduction's."""
VOLATILE = Strength("relaxed", Scope.SYSTEM)
"""A volatile load's [ptx]."""
PLAIN = Strength("plain", Scope.SYSTEM)
"""What a plain load learns by the value that it finds: nothing."""


@dataclass(frozen=True)
class _Touch:
    """An access to global memory."""

    access: Access
    strength: Strength | None

    def together(self, other: _Touch) -> bool:
        """Whether the two may come in any order: both are atomic, each within the other's scope [ptx]."""
        return self.strength is not None and other.strength is not None and not self.apart(other)

    def apart(self, other: _Touch) -> bool:
        """Whether the two are atomic, and of different CTAs that a scope does not hold both of."""
        if self.strength is None or other.strength is None:
            return False
        here, there = self.access, other.access
        same = (here.program, here.cta) == (there.program, there.cta)
        return not same and Scope.CTA in (self.strength.scope, other.strength.scope)


@dataclass(frozen=True, eq=False)
class _Head:
    """The newest atomic write of one agent to a place: what a reader of the place may learn."""

    touch: _Touch
    clock: Clock
    fenced: Clock


@dataclass(frozen=True)
class _Unordered:
    """An atomic access that read what another had written, and learned nothing."""

    touch: _Touch
    head: _Head
    why: str


class _Marks:
    """For each element of a storage a number, 0 at first: an index into what they stand for."""

    def __init__(self, count: int) -> None:
        self._numbers = torch.zeros(count, dtype=torch.int32)

    def of(self, region: Tensor) -> Tensor:
        """Return the marks of a region's elements."""
        return self._numbers.as_strided(region.shape, region.stride(), region.storage_offset())


@dataclass
class _Tracker:
    """What is remembered for each element of a storage."""

    writers: _Marks
    """The last write, or all atomic ones that nothing orders."""
    readers: _Marks
    """All reads that nothing orders."""
    heads: _Marks
    """The last atomic write, and those whose releases it hands on."""


class GlobalMemory:
    """What the programs of one launch did to the tensors that they were given."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._touches: list[tuple[_Touch, ...]] = [()]
        self._heads: list[tuple[_Head, ...]] = [()]
        self._trackers: dict[int, _Tracker] = {}
        self._reads: dict[int, list[tuple[Tensor, _Touch]]] = {}
        """Reads of storages that no agent has written yet: most operands stay so, and cost nothing."""
        self._regions: set[tuple[int, int, torch.Size, tuple[int, ...]]] = set()
        self._unordered: dict[tuple[Component, Component, Location], _Unordered] = {}
        self._judged: set[tuple[str, Location, Location]] = set()

    @property
    def regions(self) -> int:
        """Different regions that the programs have touched so far."""
        return len(self._regions)

    def read(
        self, region: Tensor, name: str, access: Access, clock: Clock, strength: Strength | None = None
    ) -> None:
        """Judge a read of a region of a tensor, a view into it, and remember it."""
        if region.numel() == 0:
            return
        key = self._remember(region)
        tracker = self._trackers.get(key)
        touch = _Touch(access, strength)
        if tracker is None:
            self._reads.setdefault(key, []).append((region, touch))
            return
        self._judge(tracker.writers.of(region), name, touch, clock, "reads", "wrote")
        self._add(tracker.readers.of(region), touch, clock)

    def write(
        self, region: Tensor, name: str, access: Access, clock: Clock, strength: Strength | None = None
    ) -> None:
        """Judge a write of a region of a tensor, a view into it, and remember it."""
        if region.numel() == 0:
            return
        self._remember(region)
        tracker = self._tracker(region)
        touch = _Touch(access, strength)
        writers, readers = tracker.writers.of(region), tracker.readers.of(region)
        self._judge(writers, name, touch, clock, "writes", "wrote")
        self._judge(readers, name, touch, clock, "writes", "read")
        if strength is None:
            self._touches.append((touch,))
            writers.fill_(len(self._touches) - 1)
            tracker.heads.of(region).fill_(0)
        else:
            self._add(writers, touch, clock)

    def acquire(
        self, regions: Sequence[Tensor], access: Access, knowledge: Knowledge, strength: Strength
    ) -> None:
        """Let an atomic read of some regions learn what the writers of their values released."""
        heads: dict[_Head, None] = {}
        for region in regions:
            tracker = self._trackers.get(region.untyped_storage().data_ptr())
            if tracker is not None:
                for number in _distinct(tracker.heads.of(region)):
                    heads.update(dict.fromkeys(self._heads[number]))
        touch = _Touch(access, strength)
        for head in heads:
            why = _why_unordered(touch, head)
            if why is None:
                join(knowledge.clock, head.clock)
                join(knowledge.fenced, head.fenced)
            elif not head.touch.access.covered(knowledge.clock):
                key = (access.component, head.touch.access.component, access.location)
                self._unordered[key] = _Unordered(touch, head, why)

    def release(
        self,
        regions: Sequence[Tensor],
        access: Access,
        knowledge: Knowledge,
        strength: Strength,
        *,
        hands_on: bool,
    ) -> None:
        """Let later readers of some regions learn what an atomic write releases.

        One that reads what it overwrites `hands_on` what that one released; another hands on its issuer's
        own earlier releases [ptx].
        """
        head = _Head(_Touch(access, strength), dict(knowledge.clock), dict(knowledge.fenced))
        for region in regions:
            marks = self._tracker(region).heads.of(region)
            before = marks.clone()
            for number in _distinct(before):
                kept = tuple(other for other in self._heads[number] if _stays(other, head, hands_on))
                self._heads.append((*kept, head))
                marks.masked_fill_(before == number, len(self._heads) - 1)
        knowledge.tick()

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
            self._trackers[key] = tracker = _Tracker(_Marks(count), _Marks(count), _Marks(count))
            for read, touch in self._reads.pop(key, []):
                self._add(tracker.readers.of(read), touch, {})
        return self._trackers[key]

    def _add(self, marks: Tensor, touch: _Touch, clock: Clock) -> None:
        """Add an access to those that elements remember, and forget those that it is ordered after."""
        before = marks.clone()
        known: dict[tuple[_Touch, ...], int] = {}
        for number in _distinct(before):
            component = touch.access.component
            kept = tuple(
                other
                for other in self._touches[number]
                if other.access.component != component and not other.access.covered(clock)
            )
            if kept not in known:
                self._touches.append((*kept, touch))
                known[kept] = len(self._touches) - 1
            marks.masked_fill_(before == number, known[kept])

    def _judge(self, marks: Tensor, name: str, touch: _Touch, clock: Clock, does: str, did: str) -> None:
        if not bool(marks.any()):
            return
        others = (other for number in _distinct(marks) for other in self._touches[number])
        for other in dict.fromkeys(others):
            if other.access.covered(clock):
                if did == "wrote" and not touch.together(other):
                    self._judge_proxy(name, touch.access, other.access)
            elif not touch.together(other):
                self._report(name, touch, other, clock, does, did)

    def _judge_proxy(self, name: str, access: Access, write: Access) -> None:
        """Judge asynchronous work after a write that is known to be done.

        Gluon's only proxy fence is for shared memory. The completion of asynchronous work is one by itself,
        for the generic accesses that come after it [ptx].
        """
        same_cta = (access.program, access.cta) == (write.program, write.cta)
        if access.proxy is not Proxy.ASYNC or (write.proxy is Proxy.ASYNC and same_cta):
            return
        severity = Severity.ERROR if write.proxy is Proxy.GENERIC else Severity.LINT
        text = (
            f"{_who(access)} goes by the async proxy after {_whose(access, write)}, and no fence orders "
            f"proxies in global memory: fence_async_shared does so in shared memory only"
        )
        locations = (access.location, write.location)
        self._findings.add(
            Kind.MISSING_FENCE, name, locations, access.partition, access.cta, text, severity=severity
        )

    def _report(self, name: str, touch: _Touch, other: _Touch, clock: Clock, does: str, did: str) -> None:
        """Report two accesses that nothing orders, by what should have ordered them."""
        access, before = touch.access, other.access
        pair = (name, access.location, before.location)
        if pair in self._judged:
            return
        self._judged.add(pair)
        race = f"{_who(access)} {does} elements that {_whose(access, before)} {did}"
        locations = (access.location, before.location)
        cause = self._cause(before, clock)
        if touch.apart(other):
            kind = Kind.WEAK_ATOMIC
            text = f"{race}; they are of different CTAs, and {_narrow(touch, other)}"
        elif access.program != before.program and _issue_covered(before, clock):
            kind = Kind.WORK_IN_FLIGHT
            locations = locations[::-1]
            text = f"{race}, and its issuer did not await that it is complete"
            if before.what.startswith("TMA"):
                text += ": that takes store_wait with read_only=False"
        elif cause is not None:
            kind = Kind.WEAK_ATOMIC
            weak = (cause.head.touch.access.location, cause.touch.access.location)
            locations = (*(weak if "releases" in cause.why else weak[::-1]), *locations)
            text = f"{race}, and nothing orders the two: {cause.why}"
        else:
            kind = Kind.GLOBAL_RACE
            text = f"{race}, and nothing orders the two"
        self._findings.add(
            kind,
            name,
            tuple(dict.fromkeys(locations)),
            access.partition,
            access.cta,
            text,
            follows=self._findings.follows(clock),
            moment=access.moment,
        )

    def _cause(self, before: Access, clock: Clock) -> _Unordered | None:
        """Return the atomic that would have ordered an access before what is issued with a clock."""
        known = dict(clock)
        left = list(self._unordered.values())[::-1]
        while True:
            now = [weak for weak in left if weak.touch.access.covered(known)]
            for weak in now:
                join(known, weak.head.clock)
                if before.covered(known) or _issue_covered(before, known):
                    return weak
            if not now:
                return None
            left = [weak for weak in left if weak not in now]


def _stays(head: _Head, new: _Head, hands_on: bool) -> bool:
    """Whether readers of a place learn from an earlier write there, after a new one."""
    before, after = head.touch, new.touch
    assert before.strength is not None
    assert after.strength is not None
    own = before.access.component == after.access.component
    if not hands_on and not own:
        return False
    if after.strength.releases and after.strength.scope is not Scope.CTA:
        return not before.access.covered(new.clock)  # the new one tells all that this one did
    return not own or before.strength.releases


def _distinct(marks: Tensor) -> list[int]:
    return cast("list[int]", cast(Any, marks).unique().tolist())


def _issue_covered(access: Access, clock: Clock) -> bool:
    """Whether asynchronous work was issued before everything that is issued with a clock."""
    return access.component != access.agent and clock.get(access.agent, 0) >= access.issued


def _who(access: Access) -> str:
    return f"{access.what} of program {access.program}"


def _whose(access: Access, other: Access) -> str:
    return str(other) if other.program == access.program else f"{other} in program {other.program}"


def _narrow(touch: _Touch, other: _Touch) -> str:
    narrow = touch if touch.strength is not None and touch.strength.scope is Scope.CTA else other
    return f"the scope of the {narrow.access.what} at {narrow.access.location} is its own CTA"


def _why_unordered(touch: _Touch, head: _Head) -> str | None:
    """Say why an atomic learns nothing from the write of the value that it reads; None if it does."""
    writer, mine, theirs = head.touch.access, touch.strength, head.touch.strength
    assert mine is not None
    assert theirs is not None
    if touch.apart(head.touch):
        return _narrow(touch, head.touch)
    if not theirs.releases:
        return f"the {writer.what} at {writer.location} is {theirs.order}, and releases nothing"
    if not mine.acquires:
        return f"the {touch.access.what} at {touch.access.location} is {mine.order}, and acquires nothing"
    return None
