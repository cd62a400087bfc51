"""Shared memory of a CTA, laid out as Triton 3.9 does it: every byte has a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter

MBARRIER_BYTES = 8  # [ptx] an mbarrier object is 64 bits
ALIGNMENT_BYTES = 16  # [gluon] of mbarriers; tiles, which are larger, lie before all that could displace them
CAPTURE_ALIGNMENT_BYTES = 8  # [gluon] that of a pointer
WORKER_STATE_BYTES = 1  # [gluon] per worker warp: which partition it runs
WORKER_STATE_ALIGNMENT_BYTES = 4  # [gluon]
SCALAR_BYTES = 4  # [gluon] a captured i32
POINTER_BYTES = 8  # [gluon] a captured tensor descriptor; the base of a captured memory descriptor
OFFSET_BYTES = 4  # [gluon] per dimension of a captured memory descriptor


@dataclass(frozen=True)
class SharedBuffer:
    """A ring of tiles of one operand."""

    name: str
    operand: str
    """``a``, ``b`` or ``d``: fixes element type and layout."""
    shape: tuple[str, ...]
    """The names of its extents over all CTAs of a program, ring first."""
    bytes: int
    """In one CTA."""


@dataclass(frozen=True)
class Barrier:
    """A ring of mbarriers for one handshake."""

    name: str
    stages: int
    arrivals: int
    """Arrivals that complete a phase."""
    arrives: str
    """The count per CTA as the kernel writes it."""
    meaning: str
    """Who tells whom what when a phase completes."""
    cluster_wide: bool = False
    """Whether one barrier of the lead CTA collects the arrivals of all CTAs."""

    @property
    def bytes(self) -> int:
        """In one CTA."""
        return self.stages * MBARRIER_BYTES


@dataclass(frozen=True)
class Capture:
    """A value that the compiler hands from the kernel to its worker partitions."""

    name: str
    bytes: int

    @classmethod
    def of(cls, name: str, ranks: Mapping[str, int]) -> Capture:
        """Size the capture `name`; `ranks` holds the rank of each memory descriptor."""
        if name in ranks:
            return cls(name, POINTER_BYTES + OFFSET_BYTES * ranks[name])
        return cls(name, POINTER_BYTES if name.endswith("_desc") else SCALAR_BYTES)


@dataclass(frozen=True)
class SharedMemory:
    """The allocations of one CTA and their sum, padding included."""

    buffers: tuple[SharedBuffer, ...]
    barriers: tuple[Barrier, ...]
    captures: tuple[Capture, ...]
    worker_warps: int

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all tiles."""
        return sum(buffer.bytes for buffer in self.buffers)

    @property
    def capture_bytes(self) -> int:
        """Bytes of all captures, which share one allocation."""
        return sum(capture.bytes for capture in self.captures)

    @property
    def worker_state_bytes(self) -> int:
        """Bytes in which the worker warps find the partition that they run."""
        return self.worker_warps * WORKER_STATE_BYTES

    @property
    def total_bytes(self) -> int:
        """The compiler's figure: one allocation behind the other, the largest first, each aligned."""
        allocations = [(item.bytes, ALIGNMENT_BYTES) for item in (*self.buffers, *self.barriers)]
        allocations.append((self.capture_bytes, CAPTURE_ALIGNMENT_BYTES))
        allocations.append((self.worker_state_bytes, WORKER_STATE_ALIGNMENT_BYTES))
        end = 0
        for size, alignment in sorted(allocations, key=itemgetter(0), reverse=True):
            end = -(-end // alignment) * alignment + size
        return end

    @property
    def padding_bytes(self) -> int:
        """Bytes lost to alignment."""
        named = self.buffer_bytes + self.capture_bytes + self.worker_state_bytes
        return self.total_bytes - named - sum(barrier.bytes for barrier in self.barriers)
