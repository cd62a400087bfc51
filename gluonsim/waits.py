"""What a partition waits for: a barrier, other partitions, other CTAs, or a change of global memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from gluonsim.barriers.mbarrier import Barrier
from gluonsim.clocks import Released
from gluonsim.findings import Location
from gluonsim.ir.parse import Operation


class Wait(Protocol):
    """What a partition waits for."""

    on_others: ClassVar[bool]
    """True if other programs can bring it about."""

    @property
    def location(self) -> Location:
        """Where it waits."""
        ...

    def ready(self) -> bool:
        """Return whether it has come about."""
        ...


class Ending(Protocol):
    """A partition that comes to its end."""

    done: bool


@dataclass
class BarrierWait:
    """A partition waits for a phase of an mbarrier."""

    on_others: ClassVar[bool] = False

    barrier: Barrier | None
    """None if it was never initialised: the wait has no end."""
    parity: int
    name: str
    location: Location
    allocation: Operation
    """What the barrier lies in."""
    begin: int = 0
    """The step at which the wait began."""

    def ready(self) -> bool:
        """See `Wait`."""
        barrier = self.barrier
        return barrier is not None and barrier.passes(self.parity)


@dataclass
class JoinWait:
    """A CTA's first partition waits for the others to end."""

    on_others: ClassVar[bool] = False

    agents: Sequence[Ending]
    location: Location

    def ready(self) -> bool:
        """See `Wait`."""
        for agent in self.agents:  # noqa: SIM110 - asked at every step, and a generator takes twice as long
            if not agent.done:
                return False
        return True


@dataclass
class Rendezvous:
    """The CTAs of a cluster wait for each other."""

    on_others: ClassVar[bool] = False

    expected: int
    location: Location
    arrived: int = 0
    released: Released = field(default_factory=Released)
    brought: dict[int, tuple[Operation, Any]] = field(default_factory=dict[int, "tuple[Operation, Any]"])
    """By CTA, the operation at which it meets the others, and what it hands to them."""

    def ready(self) -> bool:
        """See `Wait`."""
        return self.arrived == self.expected


_C_INTEGERS: dict[torch.dtype, Any] = {torch.int32: ctypes.c_int32, torch.int64: ctypes.c_int64}


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
        """Return whether the elements have these values now."""
        if self._one is not None:
            now, value = self._one
            return now.value == value
        return bool((self.flat[self.offsets] == self.values).all())

    @cached_property
    def _one(self) -> tuple[Any, Any] | None:
        """A single integer, to be looked at often: itself, and the value that it had."""
        if self.offsets.numel() != 1 or self.flat.dtype not in _C_INTEGERS:
            return None
        address = self.flat.data_ptr() + int(self.offsets) * self.flat.element_size()
        return _C_INTEGERS[self.flat.dtype].from_address(address), self.values.reshape(()).item()

    def __str__(self) -> str:
        first = int(self.offsets.reshape(-1)[0]) if self.offsets.numel() else "none"
        return f"{self.name}[{first}{':' if self.offsets.numel() > 1 else ''}]"


@dataclass
class PollWait:
    """A partition waits for elements of global memory to have certain values."""

    on_others: ClassVar[bool] = True

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

    on_others: ClassVar[bool] = True

    watches: list[Watch]
    counts: bool
    """True if the loop's own values change: it may end by itself then."""

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
