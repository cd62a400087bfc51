"""What the timing protocol needs of a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from gemmgen.bench.record import Environment, GpuState

Work = Callable[[], None]
"""Enqueues operations on the device's current stream and returns without waiting for them."""


class Machine(Protocol):
    """A device and two clocks, its own and the host's: ``CudaMachine``, or what a test brings."""

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        ...

    def environment(self) -> Environment:
        """Return the versions and the GPU."""
        ...

    def state(self, work: Work) -> GpuState | None:
        """Return clock, power and temperature while ``work`` is done; None where they cannot be read."""
        ...

    def now(self) -> float:
        """Return the host's clock in seconds."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all its work."""
        ...

    def seconds(self, work: Work) -> float:
        """Do the work and wait for it; return the device time from its start to its end."""
        ...

    def capture(self, work: Work) -> Work:
        """Return the work as a graph that replays its operations without the host's part in them."""
        ...
