"""Accesses to global memory: how strong they are, and plain writes that nothing orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from gluonsim.accesses import Access
from gluonsim.tensors.regions import Region


class Scope(StrEnum):
    """The threads that an atomic access is atomic and ordered for."""

    CTA = "cta"
    GPU = "gpu"
    SYSTEM = "sys"


@dataclass(frozen=True)
class Strength:
    """The order and the scope of an atomic or volatile access; a plain one has none."""

    order: str
    """``relaxed``, ``acquire``, ``release`` or ``acq_rel``; ``plain`` only to say that nothing is learned."""
    scope: Scope

    @property
    def acquires(self) -> bool:
        """Return whether its issuer learns what the writer of the value that it reads has released."""
        return self.order in ("acquire", "acq_rel")

    @property
    def releases(self) -> bool:
        """Return whether it hands on what its issuer knows."""
        return self.order in ("release", "acq_rel")


RELAXED = Strength("relaxed", Scope.GPU)
"""The strength of a TMA reduction."""
VOLATILE = Strength("relaxed", Scope.SYSTEM)
"""The strength of a volatile load [ptx]."""
PLAIN = Strength("plain", Scope.SYSTEM)
"""The strength of a plain load, which learns nothing by the value that it finds."""


@dataclass(eq=False)
class Touch:
    """An access to global memory."""

    access: Access
    strength: Strength | None
    performed: bool = False
    """True if a plain write has put its numbers there; asynchronous work is judged before it is done."""
    disputes: tuple[Dispute, ...] = ()
    """With plain writes to the same elements that nothing orders."""

    def together(self, other: Touch) -> bool:
        """Return whether any order of the two will do: both are atomic, each in the other's scope [ptx]."""
        return self.strength is not None and other.strength is not None and not self.apart(other)

    def apart(self, other: Touch) -> bool:
        """Return whether the two are atomic, and of different CTAs that a scope does not hold both of."""
        if self.strength is None or other.strength is None:
            return False
        here, there = self.access, other.access
        same = (here.program, here.cta) == (there.program, there.cta)
        return not same and Scope.CTA in (self.strength.scope, other.strength.scope)


@dataclass(frozen=True, eq=False)
class Common:
    """Elements of a region that two accesses touch."""

    region: Region
    chosen: Tensor
    """bool: which elements of the region they are."""


@dataclass(eq=False)
class Dispute:
    """Two plain writes that nothing orders: no harm is done if they store the same."""

    writes: tuple[Touch, Touch]
    common: Common
    harmful: Callable[[], None]
    """Reports the race."""
    redundant: Callable[[], None]
    """Reports that one of the two is not needed."""
    settled: bool = False

    def other_than(self, write: Touch) -> Touch:
        """Return the other one of the two."""
        first, second = self.writes
        return second if first is write else first

    def values(self) -> Tensor:
        """Return the present values of the elements of both."""
        return self.common.region.values()[self.common.chosen]

    def settle(self, *, same: bool) -> None:
        """Report the race, or the store that is not needed."""
        if not self.settled:
            self.settled = True
            (self.redundant if same else self.harmful)()
