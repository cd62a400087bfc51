"""The roles of a plan's warps, and what each of them is passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmgen.plan.storage import Capture

if TYPE_CHECKING:
    from gemmgen.plan.plan import KernelPlan


@dataclass(frozen=True)
class Partition:
    """One role of a CTA's warps: a device function that they run from start to end."""

    name: str
    function: str
    warps: int
    registers: int
    """Registers per thread."""
    arguments: tuple[str, ...]
    """What the kernel passes, in order."""


def captures(plan: KernelPlan) -> tuple[Capture, ...]:
    """Return what the kernel hands to its workers through shared memory: each value once."""
    ranks = {buffer.name: len(buffer.shape) for buffer in plan.shared_buffers}
    ranks |= {bar.name: 2 if bar.ring else 1 for bar in plan.barriers}
    ranks |= {buffer.name: 0 for buffer in plan.tensor_memory.buffers}
    names = dict.fromkeys(name for worker in plan.workers for name in worker.arguments)
    return tuple(Capture.of(name, ranks) for name in names if not name.isdecimal())
