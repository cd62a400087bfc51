"""What the plans of all kernels share: TMA in and out, tiles of D, a ring of stages, a schedule.

A plan has every decision as a field and everything that follows from them as a property. It can be illegal:
the rules (``rules/``) say whether it is. So every property is defined for any positive decisions, and none
of them judges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.problem import Problem, Shape
from gemmgen.plan.registers import RegisterPool
from gemmgen.plan.roles import Partition, captures
from gemmgen.plan.storage import Barrier, SharedBuffer, SharedMemory, TensorMemory
from gemmgen.target import Architecture


@dataclass(frozen=True)
class KernelPlan(ABC):
    """The decisions that every kernel has.

    Sizes are in elements unless the name says bytes. A *program* is one cluster; a CTA's share of it is
    called ``cta_...``.
    """

    problem: Problem

    cta_tile_m: int
    cta_tile_n: int
    cta_tile_k: int
    cluster_m: int
    cluster_n: int

    a_swizzle_bytes: int
    b_swizzle_bytes: int
    stages: int
    epilogue_buffers: int
    subtile_n: int

    schedule_kind: str
    order: str
    minor: str
    width: int
    occupancy: int
    """CTAs that share an SM."""

    @property
    def architecture(self) -> Architecture:
        """What the kernel is compiled for."""
        return self.problem.gpu.architecture

    @property
    def persistent(self) -> bool:
        """Whether a program walks over tiles that are its own from the start."""
        return self.schedule_kind == "persistent"

    @property
    @abstractmethod
    def specialized(self) -> bool:
        """Whether warps have roles."""

    @property
    @abstractmethod
    def mma_name(self) -> str:
        """The matrix instruction as PTX spells what the plan decides of it."""

    # --- tiles

    @property
    def cluster_size(self) -> int:
        """CTAs of one program."""
        return self.cluster_m * self.cluster_n

    @property
    def program_tile_m(self) -> int:
        """Rows of D that one program computes at a time."""
        return self.cta_tile_m * self.cluster_m

    @property
    def program_tile_n(self) -> int:
        """Columns of D that one program computes at a time."""
        return self.cta_tile_n * self.cluster_n

    @property
    def subtiles(self) -> int:
        """Parts into which the epilogue splits a tile's columns."""
        return max(1, self.cta_tile_n // self.subtile_n)

    # --- the cluster: CTA rank bits count along M first, then along N

    def bases(self, m_axis: int | None, n_axis: int | None, rank: int = 2) -> list[list[int]]:
        """Return a tensor's CGA bases, one for each bit of a CTA's rank.

        The CTAs along M divide axis `m_axis` of the tensor and those along N axis `n_axis`; with None,
        every one of them holds it whole.
        """
        along_m = unit_bases(m_axis, self.cluster_m, rank)
        return along_m + unit_bases(n_axis, self.cluster_n, rank)

    @property
    @abstractmethod
    def multicast(self) -> tuple[str, ...]:
        """The operands of which CTAs of a program share tiles that one of them loads."""

    @abstractmethod
    def loads(self, operand: str) -> int:
        """Return the TMA loads of an operand for one K step of a CTA."""

    @property
    def operations(self) -> Mapping[str, int]:
        """How often operations are in the code, for those of which the plan promises a number."""
        return {}

    def boxes(self, rows: int, row_bytes: int, swizzle_bytes: int) -> int:
        """Return the TMA operations for a tile in shared memory: one moves a swizzle's span, of few rows."""
        spans = max(1, row_bytes // swizzle_bytes) if swizzle_bytes else 1
        return spans * -(-rows // self.architecture.tma_rows)

    # --- storage

    def widest_swizzle(self, row_elements: int, bits: int) -> int:
        """Return the widest swizzle in bytes that a row of a tile fills, 0 if it fills none."""
        row_bytes = row_elements * bits // 8
        return next((s for s in self.architecture.tma_swizzle_bytes if row_bytes >= s), 0)

    @property
    def c_swizzle_bytes(self) -> int:
        """Swizzle of the C sub-tiles."""
        return self.widest_swizzle(self.subtile_n, self.problem.c.bits) if self.problem.c else 0

    @property
    def d_swizzle_bytes(self) -> int:
        """Swizzle of the D sub-tiles."""
        return self.widest_swizzle(self.subtile_n, self.problem.d.bits)

    @property
    @abstractmethod
    def a_tile_bytes(self) -> int:
        """Bytes of one stage of A in one CTA."""

    @property
    @abstractmethod
    def b_tile_bytes(self) -> int:
        """Bytes of one stage of B in one CTA."""

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage in one CTA."""
        return self.a_tile_bytes + self.b_tile_bytes

    @cached_property
    @abstractmethod
    def shared_buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in shared memory, in the order in which the kernel allocates them."""

    @cached_property
    @abstractmethod
    def barriers(self) -> tuple[Barrier, ...]:
        """The mbarriers, in the order in which the kernel allocates them."""

    @cached_property
    def shared_memory(self) -> SharedMemory:
        """Every byte of a CTA's shared memory, laid out as the compiler does it."""
        return SharedMemory(
            buffers=self.shared_buffers,
            barriers=self.barriers,
            captures=captures(self),
            worker_warps=self.total_warps - self.default_warps,
        )

    @property
    def smem_bytes(self) -> int:
        """Bytes of shared memory per CTA, to the byte the compiler's figure."""
        return self.shared_memory.total_bytes

    @cached_property
    def tensor_memory(self) -> TensorMemory:
        """Every column of a CTA's tensor memory, which not every kernel has."""
        return TensorMemory(())

    @property
    def tmem_columns(self) -> int:
        """Columns of tensor memory per CTA as the compiler allocates them."""
        return self.tensor_memory.allocated_columns

    @property
    @abstractmethod
    def tiles_to_wrap(self) -> int:
        """Tiles of one program in which every ring that turns with the tile comes round twice and goes on."""

    # --- partitions

    @cached_property
    @abstractmethod
    def partitions(self) -> tuple[Partition, ...]:
        """All roles; the first is the default partition, which keeps the kernel's own warps."""

    @property
    @abstractmethod
    def default_warps(self) -> int:
        """Warps of the default partition."""

    @property
    def workers(self) -> tuple[Partition, ...]:
        """The partitions that run on warps of their own."""
        return self.partitions[1:] if self.specialized else ()

    @property
    @abstractmethod
    def kernel_arguments(self) -> tuple[str, ...]:
        """What the kernel is launched with, in order."""

    # --- registers

    @cached_property
    def register_pool(self) -> RegisterPool:
        """How the compiler divides the SM's register file among the partitions."""
        return RegisterPool(
            architecture=self.architecture,
            default_warps=self.default_warps,
            workers=tuple((worker.warps, worker.registers) for worker in self.workers),
            occupancy=self.occupancy,
        )

    @property
    def total_warps(self) -> int:
        """Warps per CTA, with those that only pad a worker group."""
        return self.register_pool.total_warps

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.total_warps * self.architecture.threads_per_warp

    @property
    def launch_register_limit(self) -> int | None:
        """Registers per thread that the launch must not exceed for the planned CTAs to share an SM."""
        return self.register_pool.launch_registers if self.occupancy > 1 else None

    @property
    def ptxas_notes(self) -> tuple[str, ...]:
        """The notes that ptxas is known to give."""
        return ()

    # --- a problem [M, N, K]

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Return the program tiles along M and N of a problem."""
        m, n, _ = shape
        return -(-m // self.program_tile_m), -(-n // self.program_tile_n)

    @property
    def resident_programs(self) -> int:
        """Programs that the GPU holds at once."""
        return self.problem.gpu.clusters(self.cluster_size) * self.occupancy

    def waves(self, shape: Shape) -> float:
        """Return the tiles of a problem per resident program: the fraction above an integer is idle time."""
        tiles_m, tiles_n = self.tiles(shape)
        return tiles_m * tiles_n / self.resident_programs

    @property
    def l2_flops_per_byte(self) -> float:
        """Operations per byte that a program loads: its tile's arithmetic intensity towards L2."""
        flops = 2 * self.program_tile_m * self.program_tile_n
        a, b = self.problem.a.dtype.bits, self.problem.b.dtype.bits
        return flops * 8 / (self.program_tile_m * a + self.program_tile_n * b)


def unit_bases(axis: int | None, ctas: int, rank: int, first: int = 1) -> list[list[int]]:
    """Return the bases of so many CTAs that divide an axis, the first of which are `first` tiles apart."""
    extents = [first << bit for bit in range(ctas.bit_length() - 1)]
    return [[extent if i == axis else 0 for i in range(rank)] for extent in extents]
