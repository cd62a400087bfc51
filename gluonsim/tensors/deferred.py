"""Values that an agent has before the device defines them: results in flight, and undefined ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gluonsim.findings import Location


class Deferred:
    """A value that is judged when an instruction uses it."""


@dataclass(eq=False)
class Accumulator(Deferred):
    """The result of an asynchronous MMA: no instruction may use it before the MMA has retired."""

    number: int
    """The MMA's number in its lane."""
    location: Location
    value: Tensor | None = None


@dataclass(frozen=True)
class Undefined(Deferred):
    """What the device computes and does not define: a fault only if something depends on it."""

    value: Any
    """Stands for it, so that the run goes on."""
    why: str
    location: Location
    name: str | None = None
    """The variable that it is about, if that is another one than the location's."""
