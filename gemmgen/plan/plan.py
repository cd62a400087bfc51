"""The plan of one kernel: every decision as a field, everything that follows from them as a property.

A plan can be illegal: the rules (``rules/``) say whether it is. So every property is defined for any
positive decisions, and none of them judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.dtype import FP8, DType
from gemmgen.plan.problem import Problem, Shape
from gemmgen.plan.registers import RegisterPool
from gemmgen.plan.roles import Partition, captures, consumer_partitions, producer_partition
from gemmgen.plan.storage import Barrier, SharedBuffer, SharedMemory
from gemmgen.plan.tiles import barriers, shared_buffers
from gemmgen.target import WGMMA, Architecture


@dataclass(frozen=True)
class Plan:
    """All decisions of one Hopper kernel: TMA in and out, wgmma in between.

    Sizes are in elements unless the name says bytes. A *program* is one cluster; a CTA's share of it is
    called ``cta_...``. A *consumer* is a group of warps that multiplies one accumulator; without warp
    specialization all warps of a CTA are one.
    """

    problem: Problem

    cta_tile_m: int
    cta_tile_n: int
    cta_tile_k: int
    mma_n: int
    """Columns of one instruction."""
    promote_k: int
    """Elements of K after which a sum of 8-bit products is added up in fp32; 0 for never."""
    warps_m: int
    """Warps of one consumer along M."""
    warps_n: int
    cluster_m: int
    cluster_n: int

    a_source: str
    """``shared`` or ``registers``."""
    a_swizzle_bytes: int
    b_swizzle_bytes: int
    stages: int
    outstanding_mmas: int
    epilogue_buffers: int
    subtile_n: int

    specialization: str
    """``none``, ``cooperative`` or ``ping_pong``."""
    consumers: int
    producer_registers: int
    consumer_registers: int
    schedule_kind: str
    """``single_tile``, ``tiled`` or ``persistent``."""
    order: str
    minor: str
    width: int
    occupancy: int
    """CTAs that share an SM."""

    @property
    def architecture(self) -> Architecture:
        """What the kernel is compiled for."""
        return self.problem.gpu.architecture

    # --- kinds

    @property
    def specialized(self) -> bool:
        """Whether a warp of its own loads."""
        return self.specialization != "none"

    @property
    def ping_pong(self) -> bool:
        """Whether each consumer has a tile of its own."""
        return self.specialization == "ping_pong"

    @property
    def persistent(self) -> bool:
        """Whether a program walks over tiles."""
        return self.schedule_kind == "persistent"

    @property
    def synchronous(self) -> bool:
        """Whether the warps that multiply also load, and wait for it: there is no ring then."""
        return not self.specialized and self.stages == 1

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
    def consumer_warps(self) -> int:
        """Warps of one consumer."""
        return self.warps_m * self.warps_n

    @property
    def row_shares(self) -> int:
        """Parts into which the consumers divide a tile's rows, each with its own tiles of A."""
        return self.consumers if self.specialization == "cooperative" else 1

    @property
    def cta_consumer_tile_m(self) -> int:
        """Rows of D that one consumer computes in one CTA."""
        return self.cta_tile_m // self.row_shares

    @property
    def consumer_tile_m(self) -> int:
        """Rows of D that one consumer computes over all CTAs of its program."""
        return self.cta_consumer_tile_m * self.cluster_m

    @property
    def subtiles(self) -> int:
        """Parts into which the epilogue splits a consumer's columns."""
        return max(1, self.cta_tile_n // self.subtile_n)

    @property
    def subtile_halvings(self) -> int:
        """Times that the epilogue halves a consumer's columns to get its sub-tiles."""
        return self.subtiles.bit_length() - 1

    @property
    def mma_shape(self) -> tuple[int, int, int]:
        """The wgmma instruction (m, n, k)."""
        return (WGMMA.m, self.mma_n, WGMMA.k_bytes // self.problem.a.dtype.bytes)

    @property
    def widest_mma_n(self) -> int:
        """Columns of the widest instruction for the operands' type."""
        return WGMMA.n_max_int8 if self.problem.a.dtype.name == "int8" else WGMMA.n_max

    @property
    def mma_name(self) -> str:
        """The instruction as PTX spells its shape."""
        m, n, k = self.mma_shape
        return f"m{m}n{n}k{k}"

    @property
    def mmas_per_step(self) -> int:
        """Instructions that one warpgroup of a consumer issues for one K step."""
        rows = WGMMA.rows_per_warp * self.warps_m
        _, n, k = self.mma_shape
        columns = max(1, self.cta_tile_n // self.warps_n // n)
        return max(1, self.cta_consumer_tile_m // rows) * columns * max(1, self.cta_tile_k // k)

    @property
    def ptxas_notes(self) -> tuple[str, ...]:
        """The notes that ptxas is known to give: it serializes MMAs whose 16-bit sums Gluon unpacks."""
        return ("C7514", "C7517") if self.problem.accumulator.bits == 16 else ()

    @property
    def fp8(self) -> bool:
        """Whether the operands are 8-bit floats."""
        return self.problem.a.dtype.name in FP8

    # --- the cluster: CTA rank bits count along M first, then along N

    def bases(self, m_axis: int | None, n_axis: int | None, rank: int = 2) -> list[list[int]]:
        """Return a tensor's CGA bases, one for each bit of a CTA's rank.

        The CTAs along M divide axis `m_axis` of the tensor and those along N axis `n_axis`; with None,
        every one of them holds it whole.
        """

        def along(axis: int | None, ctas: int) -> list[list[int]]:
            extents = [1 << bit for bit in range(ctas.bit_length() - 1)]
            return [[extent if i == axis else 0 for i in range(rank)] for extent in extents]

        return along(m_axis, self.cluster_m) + along(n_axis, self.cluster_n)

    @property
    def multicast(self) -> tuple[str, ...]:
        """The operands that CTAs of a program share: B those along M, A those along N."""
        shared = {"a": self.cluster_n > 1, "b": self.cluster_m > 1}
        return tuple(operand for operand, is_shared in shared.items() if is_shared)

    # --- storage

    def widest_swizzle(self, row_elements: int, dtype: DType) -> int:
        """Return the widest swizzle in bytes that a row of a tile fills, 0 if it fills none."""
        row_bytes = row_elements * dtype.bytes
        return next((s for s in self.architecture.tma_swizzle_bytes if row_bytes >= s), 0)

    @property
    def a_row(self) -> int:
        """Elements of a row of A's tile as it is stored: along K, or along M."""
        return self.cta_tile_k if self.problem.a.major == "k" else self.cta_consumer_tile_m

    @property
    def b_row(self) -> int:
        """Elements of a row of B's tile as it is stored: along K, or along N."""
        return self.cta_tile_k if self.problem.b.major == "k" else self.cta_tile_n

    @property
    def c_swizzle_bytes(self) -> int:
        """Swizzle of the C sub-tiles."""
        return self.widest_swizzle(self.subtile_n, self.problem.c) if self.problem.c else 0

    @property
    def d_swizzle_bytes(self) -> int:
        """Swizzle of the D sub-tiles."""
        return self.widest_swizzle(self.subtile_n, self.problem.d)

    @property
    def a_tile_bytes(self) -> int:
        """Bytes of one stage of A in one CTA, all consumers."""
        return self.cta_tile_m * self.cta_tile_k * self.problem.a.dtype.bytes

    @property
    def b_tile_bytes(self) -> int:
        """Bytes of one stage of B in one CTA."""
        return self.cta_tile_n * self.cta_tile_k * self.problem.b.dtype.bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes that one phase of ``load_ready`` awaits in one CTA."""
        return self.a_tile_bytes + self.b_tile_bytes

    def loads(self, operand: str) -> int:
        """Return the TMA loads of A or B for one K step of a CTA: one moves a swizzle's span, of few rows."""
        is_a = operand == "a"
        shares = self.row_shares if is_a else 1
        tile_bytes, row = (self.a_tile_bytes, self.a_row) if is_a else (self.b_tile_bytes, self.b_row)
        row_bytes = row * self.problem.a.dtype.bytes  # B's elements are of the same size
        rows = tile_bytes // shares // row_bytes
        swizzle_bytes = self.a_swizzle_bytes if is_a else self.b_swizzle_bytes
        spans = max(1, row_bytes // max(1, swizzle_bytes))
        return shares * spans * -(-rows // self.architecture.tma_rows)

    def subtile_bytes(self, dtype: DType) -> int:
        """Return the bytes of one epilogue buffer of one consumer in one CTA."""
        return self.cta_consumer_tile_m * min(self.subtile_n, self.cta_tile_n) * dtype.bytes

    def per_share(self, name: str) -> tuple[str, ...]:
        """Return the names of what each share of a tile's rows has of its own: ``x_0``, ``x_1``."""
        return _numbered(name, self.row_shares)

    def per_consumer(self, name: str) -> tuple[str, ...]:
        """Return the names of what each consumer has of its own: ``x_0``, ``x_1``; ``x`` of a lone one."""
        return _numbered(name, self.consumers)

    @cached_property
    def shared_buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in shared memory, in the order in which the kernel allocates them."""
        return tuple(shared_buffers(self))

    @cached_property
    def barriers(self) -> tuple[Barrier, ...]:
        """The mbarriers, in the order in which the kernel allocates them."""
        return tuple(barriers(self))

    @cached_property
    def shared_memory(self) -> SharedMemory:
        """Every byte of a CTA's shared memory, laid out as the compiler does it."""
        return SharedMemory(
            buffers=self.shared_buffers,
            barriers=self.barriers,
            captures=captures(self),
            worker_warps=self.total_warps - self.consumer_warps,
        )

    @property
    def smem_bytes(self) -> int:
        """Bytes of shared memory per CTA, to the byte the compiler's figure."""
        return self.shared_memory.total_bytes

    # --- partitions

    @cached_property
    def consumer_partitions(self) -> tuple[Partition, ...]:
        """The consumers; the first one is the default partition, which keeps the kernel's own warps."""
        return consumer_partitions(self)

    @cached_property
    def producer_partition(self) -> Partition:
        """The warp that issues every load of A and B."""
        return producer_partition(self)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """All roles; the first is the default partition, the others are workers."""
        return (*self.consumer_partitions, self.producer_partition)

    @property
    def workers(self) -> tuple[Partition, ...]:
        """The partitions that run on warps of their own."""
        return self.partitions[1:] if self.specialized else ()

    @property
    def kernel_arguments(self) -> tuple[str, ...]:
        """What the kernel is launched with, in order."""
        c = ("c_desc",) if self.problem.c else ()
        vectors = tuple(f"{name}_desc" for name in self.problem.vectors)
        scalar = ("tensor_scale_ptr",) if self.problem.scalar else ()
        return ("a_desc", "b_desc", *c, *vectors, *scalar, "d_desc")

    # --- registers

    @cached_property
    def register_pool(self) -> RegisterPool:
        """How the compiler divides the SM's register file among the partitions."""
        return RegisterPool(
            architecture=self.architecture,
            default_warps=self.consumer_warps,
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
    def accumulator_elements(self) -> int:
        """Sums of a consumer thread."""
        threads = self.consumer_warps * self.architecture.threads_per_warp
        return self.cta_consumer_tile_m * self.cta_tile_n // threads

    @property
    def accumulator_registers(self) -> int:
        """Registers per consumer thread that hold the accumulator; with promotion, the partial sum too."""
        registers = self.accumulator_elements * self.problem.accumulator.bits // 32
        return 2 * registers if self.promote_k else registers

    @property
    def operand_registers(self) -> int:
        """Registers per consumer thread that hold a K step of A; its warps along N hold the same."""
        if self.a_source == "shared":
            return 0
        threads = self.warps_m * self.architecture.threads_per_warp
        return self.cta_consumer_tile_m * self.cta_tile_k * self.problem.a.dtype.bytes // 4 // threads

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
        a, b = self.problem.a.dtype.bytes, self.problem.b.dtype.bytes
        return flops / (self.program_tile_m * a + self.program_tile_n * b)


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}_{i}" for i in range(count))
