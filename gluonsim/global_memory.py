"""The tensors of a launch: who touched which elements, and what atomics order between programs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gluonsim.accesses import Access, Proxy
from gluonsim.clocks import Clock, Component, Knowledge, join, reached
from gluonsim.findings import Findings, Kind, Location, Severity, refusal
from gluonsim.tensors.accesses import Common, Dispute, Scope, Strength, Touch
from gluonsim.tensors.marks import Marks, distinct
from gluonsim.tensors.regions import Region, Slice, Storage, same_bits

AHEAD = Component(-1, 0)
"""Of no program: the end of the kernel ahead is its only event, in a launch that may begin before that."""


@dataclass(frozen=True)
class Dependence:
    """Of a launch that may begin before the kernel ahead of it has ended: gdc_wait awaits that end."""

    early: frozenset[str] | None
    """Arguments that no kernel ahead still writes; None where the launch says nothing of that."""
    waits: tuple[Location, ...]
    """Where the kernel has gdc_wait."""


@dataclass(frozen=True, eq=False)
class _Head:
    """The newest atomic write of one agent to a place: what a reader of the place may learn."""

    touch: Touch
    clock: Clock
    fenced: Clock


@dataclass(frozen=True)
class _Unordered:
    """An atomic access that read what another had written, and learned nothing."""

    touch: Touch
    head: _Head
    why: str


@dataclass
class _Tracker:
    """What is remembered for each element of a storage."""

    writers: Marks
    """The last write, or all atomic ones that nothing orders."""
    readers: Marks
    """All reads that nothing orders."""
    heads: Marks
    """The last atomic write, and those whose releases it hands on."""


class GlobalMemory:
    """What the programs of one launch did to the tensors that they were given."""

    def __init__(
        self, findings: Findings, dependence: Dependence | None = None, recomputed: Iterable[Region] = ()
    ) -> None:
        self._findings = findings
        self._recomputed = dict[Storage, Marks]()
        """Marks of the elements that several stores compute on purpose, by storage."""
        for region in recomputed:
            self._recomputed.setdefault(region.storage, Marks(region.storage.elements)).set(region, 1)
        self.dependence = dependence
        """None where the kernel ahead has ended."""
        self._touches: list[tuple[Touch, ...]] = [()]
        self._heads: list[tuple[_Head, ...]] = [()]
        self._trackers: dict[Storage, _Tracker] = {}
        self._reads: dict[Storage, list[tuple[Region, Touch]]] = {}
        """Reads of storages that no agent has written yet: most operands stay so, and cost nothing."""
        self._regions: set[Hashable] = set()
        self._slices: set[Slice] = set()
        """Those that were touched: a descriptor has the same ones again, and what they are is longer."""
        self._elements: dict[int, int] = {}
        """Of the storage at each address."""
        self._unordered: dict[tuple[Component, Component, Location], _Unordered] = {}
        self._judged: set[tuple[str, Location, Location]] = set()
        self._judged_early: set[tuple[str, Location]] = set()
        self._disputes: list[Dispute] = []

    @property
    def regions(self) -> int:
        """Different regions that the programs have touched so far."""
        return len(self._regions)

    def read(
        self,
        regions: Sequence[Region],
        name: str,
        access: Access,
        clock: Clock,
        strength: Strength | None = None,
    ) -> None:
        """Judge a read of regions of a tensor, and remember it."""
        touch = Touch(access, strength)
        if self.dependence is not None and not reached(clock, AHEAD):
            self._judge_early(self.dependence, regions, name, access, clock, writes=False)
        for region in regions:
            if region.empty:
                continue
            self._remember(region)
            tracker = self._trackers.get(region.storage)
            if tracker is None:
                self._reads.setdefault(region.storage, []).append((region, touch))
                continue
            self._judge(region, tracker.writers, name, touch, clock, "reads", "wrote")
            self._add(tracker.readers, region, touch, clock)

    def write(
        self,
        regions: Sequence[Region],
        name: str,
        access: Access,
        clock: Clock,
        strength: Strength | None = None,
    ) -> Touch:
        """Judge a write of regions of a tensor, and remember it; `perform` does a plain one."""
        touch = Touch(access, strength)
        if self.dependence is not None and not reached(clock, AHEAD):
            self._judge_early(self.dependence, regions, name, access, clock, writes=True)
        alone = len(self._touches)
        self._touches.append((touch,))
        for region in regions:
            if region.empty:
                continue
            self._remember(region)
            tracker = self._tracker(region)
            self._judge(region, tracker.writers, name, touch, clock, "writes", "wrote")
            self._judge(region, tracker.readers, name, touch, clock, "writes", "read")
            if strength is None:
                tracker.writers.set(region, alone)
                if tracker.heads.found(region) is not None:
                    tracker.heads.set(region, 0)
            else:
                self._add(tracker.writers, region, touch, clock)
        return touch

    def perform(self, write: Touch, store: Callable[[], None]) -> None:
        """Do a plain write, and settle its disputes with other writes: it stores what they stored, or not."""
        due = [each for each in write.disputes if each.other_than(write).performed]
        before = [each.values() for each in due]
        store()
        for dispute, values in zip(due, before, strict=True):
            dispute.settle(same=same_bits(dispute.values(), values))
        write.performed = True

    def is_as_given(self, regions: Sequence[Region]) -> bool:
        """Return whether nothing has written to the storages of regions since the launch was given them."""
        trackers = self._trackers
        for region in regions:  # noqa: SIM110 - there is one, and a generator takes longer than to look
            if region.storage in trackers:
                return False
        return True

    def last_write(self, region: Region) -> Access | None:
        """Return who wrote a region last, one of those that nothing orders; None if nobody did."""
        tracker = self._trackers.get(region.storage)
        marks = tracker.writers.found(region) if tracker else None
        touches = self._touches[distinct(marks)[-1]] if marks is not None else ()
        return touches[-1].access if touches else None

    def written(self, region: Region) -> Tensor | None:
        """Return which elements of a region any program has written; None if nobody wrote to its storage."""
        tracker = self._trackers.get(region.storage)
        marks = tracker.writers.found(region) if tracker else None
        return None if marks is None else marks != 0

    def end(self) -> None:
        """Report races of writes that were never done."""
        for dispute in self._disputes:
            dispute.settle(same=False)

    def acquire(
        self, regions: Sequence[Region], access: Access, knowledge: Knowledge, strength: Strength
    ) -> None:
        """Let an atomic read of some regions learn what the writers of their values released."""
        heads: dict[_Head, None] = {}
        for region in regions:
            tracker = self._trackers.get(region.storage)
            marks = tracker.heads.found(region) if tracker else None
            for number in distinct(marks) if marks is not None else ():
                heads.update(dict.fromkeys(self._heads[number]))
        touch = Touch(access, strength)
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
        regions: Sequence[Region],
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
        head = _Head(Touch(access, strength), dict(knowledge.clock), dict(knowledge.fenced))
        for region in regions:
            marks = self._tracker(region).heads
            changed: dict[int, int] = {}
            for number in distinct(marks.of(region)):
                kept = tuple(other for other in self._heads[number] if _stays(other, head, hands_on))
                self._heads.append((*kept, head))
                changed[number] = len(self._heads) - 1
            marks.change(region, changed)
        knowledge.tick()

    def _remember(self, region: Region) -> None:
        """Note that a region is touched.

        Raises:
            GemmgenError: Its storage was touched as elements of another size.
        """
        if isinstance(region, Slice):
            if region in self._slices:
                return
            self._slices.add(region)
        self._regions.add(region.key)
        address, elements = region.storage
        if self._elements.setdefault(address, elements) != elements:
            raise refusal("a tensor that is accessed as elements of two sizes is not known to the simulator")

    def _tracker(self, region: Region) -> _Tracker:
        key = region.storage
        if key not in self._trackers:
            marks = (Marks(key.elements) for _ in range(3))
            self._trackers[key] = tracker = _Tracker(*marks)
            for read, touch in self._reads.pop(key, []):
                self._add(tracker.readers, read, touch, {})
        return self._trackers[key]

    def _add(self, marks: Marks, region: Region, touch: Touch, clock: Clock) -> None:
        """Add an access to those that elements remember, and forget those that it is ordered after."""
        known: dict[tuple[Touch, ...], int] = {}
        changed: dict[int, int] = {}
        for number in distinct(marks.of(region)):
            component = touch.access.component
            kept = tuple(
                other
                for other in self._touches[number]
                if other.access.component != component and not other.access.covered(clock)
            )
            if kept not in known:
                self._touches.append((*kept, touch))
                known[kept] = len(self._touches) - 1
            changed[number] = known[kept]
        marks.change(region, changed)

    def _judge(
        self, region: Region, tracked: Marks, name: str, touch: Touch, clock: Clock, does: str, did: str
    ) -> None:
        marks = tracked.found(region)
        if marks is None:
            return
        others = (other for number in distinct(marks) for other in self._touches[number])
        for other in dict.fromkeys(others):
            if other.access.covered(clock):
                if did == "wrote" and not touch.together(other):
                    self._judge_proxy(name, touch.access, other.access)
            elif not touch.together(other):
                numbers = [number for number in distinct(marks) if other in self._touches[number]]
                common = Common(region, torch.isin(marks, torch.tensor(numbers)))
                self._report(name, touch, other, clock, does, did, common)

    def _judge_early(
        self,
        dependence: Dependence,
        regions: Sequence[Region],
        name: str,
        access: Access,
        clock: Clock,
        *,
        writes: bool,
    ) -> None:
        """Judge an access that is not known to come after the end of the kernel ahead."""
        early = dependence.early
        if not writes and early is not None and name in early:
            return
        if (name, access.location) in self._judged_early or all(region.empty for region in regions):
            return
        self._judged_early.add((name, access.location))
        does, other = ("writes", "read or write") if writes else ("reads", "write")
        ahead = f"the kernel ahead may still {other} it"
        text = f"{access.what} {does} it although no gdc_wait comes before: {ahead}"
        severity = Severity.ERROR
        if not writes and early is None:
            severity = Severity.LINT
            text += f'; simulate(…, early=("{name}",)) says that it does not'
        self._findings.add(
            Kind.EARLY_ACCESS,
            name,
            (access.location, *dependence.waits),
            access.partition,
            access.cta,
            text,
            severity=severity,
            follows=self._findings.follows(clock),
        )

    def _judge_proxy(self, name: str, access: Access, write: Access) -> None:
        """Judge asynchronous work after a write that is known to be done.

        Gluon's only proxy fence is for shared memory. The completion of asynchronous work is one by itself,
        for the generic accesses that come after it [ptx]. That asynchronous accesses of two CTAs need more is
        what PTX says and no device was seen to show: a lint.
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

    def _report(
        self, name: str, touch: Touch, other: Touch, clock: Clock, does: str, did: str, common: Common
    ) -> None:
        """Report two accesses that nothing orders, by what should have ordered them."""
        access, before = touch.access, other.access
        if (name, access.location, before.location) in self._judged:
            return
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
        places = tuple(dict.fromkeys(locations))

        follows = self._findings.follows(clock)

        def harmful() -> None:
            self._judged.add((name, access.location, before.location))
            self._findings.add(
                kind,
                name,
                places,
                access.partition,
                access.cta,
                text,
                follows=follows,
                moment=access.moment,
                works=(access.work, before.work),
            )

        def redundant() -> None:
            count = int(common.chosen.sum())
            enough = f"both compute {count:,} of {common.chosen.numel():,} elements"
            again = f"{race}, and both store the same: " + (
                "one of the two is enough" if count == common.chosen.numel() else enough
            )
            self._findings.add(
                Kind.REDUNDANT_STORE,
                name,
                (access.location, before.location),
                access.partition,
                access.cta,
                again,
                severity=Severity.LINT,
            )

        def unequal() -> None:
            self._findings.add(
                Kind.UNEQUAL_STORES,
                name,
                (access.location, before.location),
                access.partition,
                access.cta,
                f"{race}, and the two store different numbers, although both compute these elements",
                follows=True,
                works=(access.work, before.work),
            )

        if (does, did) != ("writes", "wrote") or touch.strength or other.strength:
            harmful()
            return
        recomputed = self._recomputed.get(common.region.storage)
        if recomputed and bool(recomputed.of(common.region)[common.chosen].all()):
            dispute = Dispute((other, touch), common, unequal, lambda: None)
        else:
            dispute = Dispute((other, touch), common, harmful, redundant)
        self._disputes.append(dispute)
        touch.disputes += (dispute,)
        other.disputes += (dispute,)

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
    """Return whether readers of a place learn from an earlier write there, after a new one."""
    before, after = head.touch, new.touch
    assert before.strength is not None
    assert after.strength is not None
    own = before.access.component == after.access.component
    if not hands_on and not own:
        return False
    if after.strength.releases and after.strength.scope is not Scope.CTA:
        return not before.access.covered(new.clock)  # the new one tells all that this one did
    return not own or before.strength.releases


def _issue_covered(access: Access, clock: Clock) -> bool:
    """Return whether asynchronous work was issued before everything that is issued with a clock."""
    return access.component != access.agent and reached(clock, access.agent) >= access.issued


def _who(access: Access) -> str:
    return f"{access.what} of program {access.program}"


def _whose(access: Access, other: Access) -> str:
    return str(other) if other.program == access.program else f"{other} in program {other.program}"


def _narrow(touch: Touch, other: Touch) -> str:
    narrow = touch if touch.strength is not None and touch.strength.scope is Scope.CTA else other
    return f"the scope of the {narrow.access.what} at {narrow.access.location} is its own CTA"


def _why_unordered(touch: Touch, head: _Head) -> str | None:
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
