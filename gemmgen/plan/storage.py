"""Shared and tensor memory of a kernel: buffers, their rings, and the barriers that hand them over.

Every value is of one CTA unless it says otherwise. Sizes and alignments follow Triton's release, so that
the sum is the compiler's figure to the byte.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple

from gemmgen.hardware import TCGEN05, TRITON

MBARRIER_BYTES = 8  # [ptx] an mbarrier object is 64 bits

Measure = Literal[
    "stages",
    "epilogue_buffers",
    "consumers",
    "accumulators",
    "clc_responses",
    "tile_m",
    "tile_n",
    "product_n",
    "tile_k",
    "packed_tile_k",
    "consumer_tile_m",
    "part_n_0",
    "part_n_1",
    "part_n_2",
    "vector_n",
    "subtile_n",
    "d_columns",
    "block_slots",
    "saved_columns",
    "saved_slots",
    "a_scale_blocks",
    "b_scale_blocks",
    "scale_blocks_k",
    "step_blocks",
    "scale_rows",
    "scale_k",
]
"""The origin of an extent: a decision of the kernel, or a size that follows from one."""


def numbered(name: str, number: int | None) -> str:
    """Return a name with the number of its consumer; without a number if there is one consumer."""
    return name if number is None else f"{name}_{number}"


def numbers(count: int) -> tuple[int | None, ...]:
    """Return the numbers of several things that are alike; a lone one has none."""
    return (None,) if count == 1 else tuple(range(count))


@dataclass(frozen=True)
class Extent:
    """One extent of a buffer over all CTAs of a program, and what decides it."""

    size: int
    measure: Measure | None = None
    """None if the hardware fixes it."""


@dataclass(frozen=True)
class Ring:
    """Slots that one role fills and another one frees, in turn; their barriers say who tells whom.

    A slot's round is a *lap*; each lap is one phase of the slot's barriers.
    """

    slots: Extent
    indexed: bool = True
    """True if a slot is found by its index; a ring of a single slot need not be."""

    @property
    def depth(self) -> int:
        """Number of slots."""
        return self.slots.size


@dataclass(frozen=True)
class SharedBuffer:
    """A tile in shared memory, or a ring of them."""

    name: str
    tensor: str
    """The tensor whose tiles it holds: ``a`` or ``a_scale``, for example; ``clc`` for CLC responses."""
    shape: tuple[Extent, ...]
    """Without the ring's slots."""
    bytes: int
    """All slots."""
    contents: str
    """Its contents in words and numbers."""
    ring: Ring | None = None
    swizzle_bytes: int = 0
    alignment: int = TRITON.tile_alignment_bytes
    """Alignment of its address in bytes, without a swizzle."""
    part: int | None = None
    """Which further part of the tensor's tiles it holds; None for the first one, or all."""
    loaded_shape: tuple[Extent, ...] | None = None
    """The extents of a block of a tile that TMA moves by itself; None if it moves a whole tile."""

    @property
    def operand(self) -> str:
        """The argument whose tiles it holds, which fixes element type and layout."""
        return numbered(self.tensor, self.part)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Its extents as it is allocated: the slots of an indexed ring first."""
        return (self.ring.slots, *self.shape) if self.ring and self.ring.indexed else self.shape

    @property
    def alignment_bytes(self) -> int:
        """The number of bytes that its address is a multiple of."""
        return max(self.alignment, TRITON.swizzle_rows * self.swizzle_bytes)

    @property
    def capture_bytes(self) -> int:
        """Bytes of its memory descriptor where a worker partition is passed it."""
        return TRITON.pointer_capture_bytes + TRITON.offset_capture_bytes * len(self.extents)


@dataclass(frozen=True)
class Scope:
    """The CTAs of a cluster that have one barrier between them, which is in the first of them."""

    ctas: int = 1
    """CTAs that arrive on one barrier."""
    pair: bool = False
    """True if they are the two CTAs of an MMA."""
    groups: int = 0
    """Barriers of the cluster where groups of CTAs have one each; 0 where every CTA, or pair, has its own."""
    bases: tuple[tuple[int, ...], ...] = ()
    """CGA bases that map the CTAs of a group to its barrier."""
    shared: str = ""
    """The operands that the CTAs of a group share."""


CTA_SCOPE = Scope()
"""Every CTA has its own."""
PAIR_SCOPE = Scope(ctas=2, pair=True)


@dataclass(frozen=True)
class Barrier:
    """The mbarrier of each slot of a ring, for one handshake."""

    name: str
    ring: Ring
    meaning: str
    """Who tells whom what when a phase completes."""
    count: int = 1
    """Arrivals of one CTA that a phase awaits."""
    counts: Literal["consumers", "roles"] | None = None
    """The threads, warps or CTAs that each arrive once; None if `count` is complete."""
    scope: Scope = CTA_SCOPE

    @property
    def arrivals(self) -> int:
        """Arrivals of all CTAs that complete a phase."""
        return self.count * self.scope.ctas

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return self.ring.depth * MBARRIER_BYTES

    @property
    def capture_bytes(self) -> int:
        """Bytes of its memory descriptor where a worker partition is passed it."""
        return TRITON.pointer_capture_bytes + TRITON.offset_capture_bytes * (2 if self.ring.indexed else 1)


@dataclass(frozen=True)
class TensorBuffer:
    """One allocation of tensor memory."""

    name: str
    columns: int
    contents: str
    """Its contents in words and numbers."""

    @property
    def capture_bytes(self) -> int:
        """Bytes of its descriptor where a worker partition is passed it."""
        return TRITON.pointer_capture_bytes


class KernelResources(ABC):
    """The buffers and barriers of one kernel, by their purpose."""

    @property
    @abstractmethod
    def buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in shared memory, in the order in which the kernel allocates them."""

    @property
    @abstractmethod
    def barriers(self) -> tuple[Barrier, ...]:
        """The mbarriers, in the order in which the kernel allocates them."""


class Allocation(NamedTuple):
    """Shared memory of one purpose, in one piece."""

    name: str
    """Name of its buffer or barrier, or of the compiler's own data."""
    bytes: int
    alignment_bytes: int
    read_before_counting: bool = False
    """True if nobody reads it any more when a partition counts."""


@dataclass(frozen=True)
class SharedMemory:
    """The allocations of one CTA and their sum, padding included."""

    buffers: tuple[SharedBuffer, ...]
    barriers: tuple[Barrier, ...]
    capture_bytes: int
    """Bytes of all values that worker partitions are passed, which share one allocation."""
    captures: int
    """Number of those values."""
    worker_warps: int
    counting_partitions: int = 0
    """Partitions that count in global memory, and then read the count through shared memory."""
    counts_in_cluster: bool = False
    """True if the CTAs of a cluster do so together."""

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all tiles."""
        return sum(buffer.bytes for buffer in self.buffers)

    @property
    def worker_state_bytes(self) -> int:
        """Bytes in which the worker warps find the partition that they run."""
        return self.worker_warps * TRITON.worker_state_bytes

    @property
    def cluster_barrier_bytes(self) -> int:
        """Bytes with which the CTAs of a cluster meet before and after they count, behind all else."""
        return self.counting_partitions * TRITON.cluster_barrier_bytes if self.counts_in_cluster else 0

    @property
    def total_bytes(self) -> int:
        """The compiler's figure: the end of all buffers, counts and cluster barriers.

        The count of a partition lies in the first free place, also over the captures, which are read before.
        """
        return self._end(self.placed)

    def bytes_with(self, measure: Measure, slots: int) -> int:
        """Return `total_bytes` with a given number of slots for the rings of a measure."""
        return self._end(_placed(self._allocations(measure, slots)))

    def _end(self, placed: Sequence[tuple[Allocation, int]]) -> int:
        """Return the end in bytes of all buffers, counts and cluster barriers."""
        end = placed[-1][1] + placed[-1][0].bytes if placed else 0
        taken = [
            range(begin, begin + allocation.bytes)
            for allocation, begin in (placed if self.counting_partitions else ())
            if not allocation.read_before_counting
        ]
        for _ in range(self.counting_partitions):
            alignment = TRITON.counter_scratch_alignment_bytes
            places = sorted(-(-occupied.stop // alignment) * alignment for occupied in taken)
            begin = next(place for place in places if not any(place in occupied for occupied in taken))
            taken.append(range(begin, begin + TRITON.counter_scratch_bytes))
            end = max(end, begin + TRITON.counter_scratch_bytes)
        if self.cluster_barrier_bytes:
            end = -(-end // MBARRIER_BYTES) * MBARRIER_BYTES + self.cluster_barrier_bytes
        return end

    @cached_property
    def placed(self) -> tuple[tuple[Allocation, int], ...]:
        """Each allocation with its first byte: one behind the other, the largest first, each aligned."""
        return _placed(self._allocations())

    def _allocations(self, measure: Measure | None = None, slots: int = 0) -> Iterator[Allocation]:
        """Yield all allocations by size, the largest first; equal ones keep their order.

        The rings of a given measure have the given number of slots.
        """

        def sized(total: int, ring: Ring | None) -> int:
            other = measure and ring and ring.slots.measure == measure
            return total // ring.depth * slots if other and ring else total

        for buffer in self.buffers:
            yield Allocation(buffer.name, sized(buffer.bytes, buffer.ring), buffer.alignment_bytes)
        for barrier in self.barriers:
            yield Allocation(barrier.name, sized(barrier.bytes, barrier.ring), TRITON.barrier_alignment_bytes)
        if self.worker_warps:
            captures = (self.capture_bytes, TRITON.capture_alignment_bytes)
            yield Allocation("captures", *captures, read_before_counting=True)
            yield Allocation("worker state", self.worker_state_bytes, TRITON.worker_state_alignment_bytes)

    @property
    def padding_bytes(self) -> int:
        """Bytes lost to alignment."""
        named = self.buffer_bytes + self.capture_bytes + self.worker_state_bytes + self.cluster_barrier_bytes
        return self.total_bytes - named - sum(barrier.bytes for barrier in self.barriers)


def _placed(allocations: Iterable[Allocation]) -> tuple[tuple[Allocation, int], ...]:
    """Return each allocation with its first byte: one behind the other, the largest first, each aligned."""
    end, found = 0, list[tuple[Allocation, int]]()
    for allocation in sorted(allocations, key=attrgetter("bytes"), reverse=True):
        begin = -(-end // allocation.alignment_bytes) * allocation.alignment_bytes
        end = begin + allocation.bytes
        found.append((allocation, begin))
    return tuple(found)


@dataclass(frozen=True)
class TensorMemory:
    """The allocations of one CTA."""

    buffers: tuple[TensorBuffer, ...] = ()

    @property
    def columns(self) -> int:
        """Columns that the buffers take."""
        return sum(buffer.columns for buffer in self.buffers)

    @property
    def allocated_columns(self) -> int:
        """Columns that the compiler allocates: a power of two, or the sum itself if it is too large."""
        if not self.buffers:
            return 0
        if self.columns > TCGEN05.tmem_columns:
            return -(-self.columns // TRITON.tmem_excess_columns) * TRITON.tmem_excess_columns
        return max(TCGEN05.tmem_columns_min, 1 << (self.columns - 1).bit_length())
