"""Shared and tensor memory of a CTA, laid out as Triton 3.9 does it: every byte has a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter

from gemmgen.plan.problem import Operand
from gemmgen.target import TCGEN05

MBARRIER_BYTES = 8  # [ptx] an mbarrier object is 64 bits
BARRIER_ALIGNMENT_BYTES = 16  # [gluon]
TILE_ALIGNMENT_BYTES = 128  # [gluon] of what TMA writes without a swizzle
SWIZZLE_ROWS = 8  # [gluon] a swizzled tile is aligned to the rows after which its pattern repeats
CAPTURE_ALIGNMENT_BYTES = 8  # [gluon] that of a pointer
WORKER_STATE_BYTES = 1  # [gluon] per worker warp: which partition it runs
WORKER_STATE_ALIGNMENT_BYTES = 4  # [gluon]
SCALAR_BYTES = 4  # [gluon] a captured i32
POINTER_BYTES = 8  # [gluon] a captured tensor descriptor; the base of a captured memory descriptor
OFFSET_BYTES = 4  # [gluon] per dimension of a captured memory descriptor


def k_extent_name(operand: Operand) -> str:
    """Return the constant that holds the extent of an operand's tile along K, as its descriptor counts it."""
    return "PROGRAM_TILE_K" if operand.dtype.elements_per_byte == 1 else "PACKED_TILE_K"


@dataclass(frozen=True)
class SharedBuffer:
    """A ring of tiles of one operand."""

    name: str
    operand: str
    """``a``, ``b``, ``c``, ``d`` or a vector of the epilogue: fixes element type and layout."""
    shape: tuple[str, ...]
    """The names of its extents over all CTAs of a program, ring first."""
    bytes: int
    """In one CTA."""
    swizzle_bytes: int = 0
    alignment: int = TILE_ALIGNMENT_BYTES
    """Of its address in bytes, without a swizzle."""

    @property
    def alignment_bytes(self) -> int:
        """What its address is a multiple of."""
        return max(self.alignment, SWIZZLE_ROWS * self.swizzle_bytes)


@dataclass(frozen=True)
class Barrier:
    """One mbarrier, or a ring of them, for one handshake."""

    name: str
    depth: int
    """Barriers of the ring, 1 without one."""
    ring: str
    """The constant that holds the depth; empty for a single barrier."""
    arrivals: int
    """Arrivals that complete a phase."""
    arrives: str
    """The count per CTA as the kernel writes it."""
    meaning: str
    """Who tells whom what when a phase completes."""
    groups: int = 0
    """Groups of CTAs that share one ring each, in their lowest CTA; 0 where every CTA has its own."""
    bases: tuple[tuple[int, ...], ...] = ()
    """CGA bases that map the CTAs of a group to its barrier."""
    shared: str = "a tile"
    """What the CTAs of a group share."""
    paired: bool = False
    """Whether a pair of CTAs has one ring, in its first CTA, on which both arrive."""

    @property
    def bytes(self) -> int:
        """In one CTA."""
        return self.depth * MBARRIER_BYTES


@dataclass(frozen=True)
class Capture:
    """A value that the compiler hands from the kernel to its worker partitions."""

    name: str
    bytes: int

    @classmethod
    def of(cls, name: str, ranks: Mapping[str, int]) -> Capture:
        """Size the capture `name`; `ranks` holds the rank of each memory descriptor, 0 of tensor memory's."""
        if name in ranks:
            return cls(name, POINTER_BYTES + OFFSET_BYTES * ranks[name])
        return cls(name, POINTER_BYTES if name.endswith(("_desc", "_ptr")) else SCALAR_BYTES)


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
        allocations = [(buffer.bytes, buffer.alignment_bytes) for buffer in self.buffers]
        allocations += [(barrier.bytes, BARRIER_ALIGNMENT_BYTES) for barrier in self.barriers]
        if self.worker_warps:
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


@dataclass(frozen=True)
class TensorBuffer:
    """One allocation of tensor memory."""

    name: str
    columns: int
    derivation: str


@dataclass(frozen=True)
class TensorMemory:
    """The allocations of one CTA."""

    buffers: tuple[TensorBuffer, ...]

    @property
    def columns(self) -> int:
        """Columns that the buffers take."""
        return sum(buffer.columns for buffer in self.buffers)

    @property
    def allocated_columns(self) -> int:
        """Columns that the compiler allocates for them: a power of two, or what is too much as it is."""
        if not self.buffers:
            return 0
        if self.columns > TCGEN05.tmem_columns:
            return -(-self.columns // TCGEN05.tmem_overdraft_columns) * TCGEN05.tmem_overdraft_columns
        return max(TCGEN05.tmem_columns_min, 1 << (self.columns - 1).bit_length())
