"""A kernel as a value: its decisions, and everything that follows from them, each computed once.

What all kernels share is here: TMA in and out, tiles of D, a ring of stages, a schedule. A kernel can be
illegal: the rules say whether it is. So everything is defined for any positive decisions, and nothing judges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gemmgen.hardware import Architecture, DType, Gpu
from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.decisions import LINES, Decisions
from gemmgen.plan.roles import Argument, Partition, Passed, RegisterPool, captures
from gemmgen.plan.stage import Stage, boxes, in_words
from gemmgen.plan.storage import (
    Barrier,
    Extent,
    Ring,
    SharedBuffer,
    SharedMemory,
    TensorMemory,
    numbered,
)
from gemmgen.plan.sum_order import SumOrder
from gemmgen.problem import Matmul, Request, Shape
from gemmgen.problem.operations import OPERATIONS


@dataclass(frozen=True)
class Entry:
    """One line: an amount with its unit, and how it comes about."""

    name: str
    amount: float
    unit: str
    derivation: str


@dataclass(frozen=True, kw_only=True)
class Geometry(Decisions, ABC):
    """The decisions of a kernel for a problem, and the sizes that follow from them.

    Sizes are in elements unless the name says bytes. A *program* is one cluster; a CTA's share of it is
    called ``cta_...``. Everything is defined for any positive decisions, legal or not.
    """

    request: Request

    @property
    def problem(self) -> Matmul:
        """What the kernel computes."""
        return self.request.matmul

    @property
    def gpu(self) -> Gpu:
        """What the kernel is planned for."""
        return self.request.gpu

    @property
    def architecture(self) -> Architecture:
        """What the kernel is compiled for."""
        return self.gpu.architecture

    @property
    def persistent(self) -> bool:
        """Whether a program walks over tiles that are its own from the start."""
        return self.schedule_kind == "persistent"

    @property
    def read_early(self) -> Literal["a", "b"] | None:
        """The operand that is read before the kernel ahead has ended; None where all waits for that."""
        return None

    @property
    def dependent(self) -> bool:
        """Whether it is launched before the kernel ahead of it has ended."""
        return False

    @property
    def deterministic(self) -> bool:
        """Whether D has the same bits in every run: nothing is added up in the order in which it comes."""
        return True

    @property
    @abstractmethod
    def specialized(self) -> bool:
        """Whether warps have roles."""

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
    def loaded_n(self) -> int:
        """Columns of B that one program loads for a tile."""
        return self.program_tile_n

    @property
    def placing_dimensions(self) -> tuple[str, ...]:
        """The dimensions whose tiles have to be counted to find a tile: of an order of lines, a line's."""
        return (LINES[self.order],) if self.order in LINES else ("m", "n")

    @property
    def column_parts(self) -> tuple[int, ...]:
        """Columns of the parts of a CTA's tile, each of which has MMAs and sums of its own."""
        return (self.cta_tile_n,)

    @property
    def composed(self) -> bool:
        """Whether a tile has several parts; a plain one has one."""
        return len(self.column_parts) > 1

    @property
    def subtiles(self) -> int:
        """Parts into which the epilogue splits a tile's columns."""
        return max(1, self.cta_tile_n // self.subtile_n)

    @property
    def even_buffers(self) -> bool:
        """Whether a tile must use each epilogue buffer equally often: their ring starts anew with it."""
        return True

    # --- the cluster: CTA rank bits count along M first, then along N

    def bases(self, m_axis: int | None, n_axis: int | None, rank: int = 2) -> list[list[int]]:
        """Return a tensor's CGA bases, one for each bit of a CTA's rank.

        The CTAs along M divide axis `m_axis` of the tensor and those along N axis `n_axis`; with None,
        every one of them holds it whole.
        """
        along_m = unit_bases(m_axis, self.cluster_m, rank)
        return along_m + unit_bases(n_axis, self.cluster_n, rank)

    @cached_property
    @abstractmethod
    def stage(self) -> Stage:
        """All that a stage of the ring holds in one CTA."""

    @property
    def multicast(self) -> tuple[str, ...]:
        """The tensors of which CTAs of a program share tiles that one of them loads."""
        return tuple(payload.tensor for payload in self.stage.multicast)

    def loads(self, tensor: str) -> int:
        """Return the TMA loads of a tensor for one K step of a CTA."""
        return self.stage.loads.get(tensor, 0)

    def boxes(self, rows: int, row_bytes: int, swizzle_bytes: int) -> int:
        """Return the TMA operations for a tile in shared memory: one moves a swizzle's span, of few rows."""
        return boxes(rows, row_bytes, swizzle_bytes, self.architecture.tma_rows)

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
    def epilogue_rows(self) -> int:
        """Rows of the tile of one epilogue in one CTA."""
        return self.cta_tile_m

    def subtile_bytes(self, dtype: DType) -> int:
        """Return the bytes of one buffer of one epilogue in one CTA."""
        return self.epilogue_rows * min(self.subtile_n, self.cta_tile_n) * dtype.bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage in one CTA."""
        return self.stage.bytes

    @property
    def smem_limit_bytes(self) -> int:
        """Bytes of shared memory that each of the CTAs on an SM can have."""
        architecture = self.architecture
        share = architecture.smem_bytes_per_sm // self.occupancy - architecture.smem_reserved_bytes_per_cta
        return max(1, min(share, architecture.smem_bytes_per_cta))

    # --- a problem [M, N, K]

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Return the program tiles along M and N of a problem."""
        m, n, _ = shape
        together = self.tiles_together
        return -(-m // self.program_tile_m), -(-n // (together * self.program_tile_n)) * together

    @property
    def tiles_together(self) -> int:
        """Tiles along N that are one rectangle of D together: several, if none is one by itself."""
        return 1

    @property
    def splits_per_tile(self) -> int:
        """Splits of a tile: ranges of its K, of which a program takes one at a time."""
        return 1

    @property
    def divides_last_wave(self) -> bool:
        """Whether the tiles that fill no wave are divided among all programs by K steps."""
        return False

    @property
    def sorts_parts_by_gpc(self) -> bool:
        """True if programs that start on one GPC take neighbouring tiles of one split."""
        return False

    @property
    def frees_buffers_early(self) -> bool:
        """Whether the stores of the previous tile are waited for before the last MMA of the next one."""
        return False

    @property
    def reduces_apart(self) -> bool:
        """Whether a second kernel adds up the sums of all parts of K, and stores D."""
        return False

    @property
    def least_steps(self) -> int:
        """K steps that a program multiplies at least of divided tiles, where a tile has as many."""
        return 1

    @property
    def least_saved_steps(self) -> int:
        """K steps that it must save to share what is behind the chunks of divided tiles."""
        return 1

    @property
    def resident_programs(self) -> int:
        """Programs that the GPU holds at once."""
        return self.gpu.clusters(self.cluster_size) * self.occupancy

    def waves(self, shape: Shape) -> float:
        """Return the tiles of a problem per resident program: the fraction above an integer is idle time.

        Of a tile whose K is divided, each split counts.
        """
        tiles_m, tiles_n = self.tiles(shape)
        return tiles_m * tiles_n * self.splits_per_tile / self.resident_programs

    @property
    def l2_flops_per_byte(self) -> float:
        """Operations per byte that a program loads: its tile's arithmetic intensity towards L2."""
        flops = 2 * self.program_tile_m * self.program_tile_n
        a, b = self.problem.a.dtype.bits, self.problem.b.dtype.bits
        return flops * 8 / (self.program_tile_m * a + self.loaded_n * b)


def unit_bases(axis: int | None, ctas: int, rank: int, first: int = 1) -> list[list[int]]:
    """Return the bases of so many CTAs that divide an axis, the first of which are `first` tiles apart."""
    extents = [first << bit for bit in range(ctas.bit_length() - 1)]
    return [[extent if i == axis else 0 for i in range(rank)] for extent in extents]


@dataclass(frozen=True)
class EpilogueStorage:
    """What one epilogue reads besides its sums, and what it stores D through."""

    c: SharedBuffer | None
    vectors: tuple[SharedBuffer, ...]
    d: SharedBuffer
    c_ready: Barrier | None
    vectors_ready: Barrier | None

    @property
    def buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in the order in which a kernel with one epilogue allocates them."""
        return (*((self.c,) if self.c else ()), *self.vectors, self.d)

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        """The barriers in the order in which the kernel allocates them."""
        return tuple(barrier for barrier in (self.c_ready, self.vectors_ready) if barrier)

    @property
    def loaded(self) -> tuple[Passed, ...]:
        """What it reads besides its sums, and the barriers of that, in order."""
        values = (self.c, *self.vectors, *self.barriers)
        return tuple(value for value in values if value)


def epilogue_storage(
    kernel: Geometry,
    rows: Extent,
    vector_columns: tuple[Extent, int] | None = None,
    number: int | None = None,
) -> EpilogueStorage:
    """Return the buffers and barriers of one epilogue: of a lone one, or of a numbered consumer's.

    `rows` are those of its tile over all CTAs; `vector_columns` are the elements of a column operand, over
    all CTAs and in one, if they are not a tile's.
    """
    problem, cta_rows = kernel.problem, kernel.epilogue_rows
    ring = Ring(Extent(kernel.epilogue_buffers, "epilogue_buffers"), indexed=kernel.epilogue_buffers > 1)
    tile_columns = Extent(kernel.program_tile_n, "tile_n")
    columns = Extent(kernel.subtile_n, "subtile_n") if kernel.subtiles > 1 else tile_columns

    def subtile(operand: str, dtype: DType, swizzle_bytes: int) -> SharedBuffer:
        contents = f"{kernel.epilogue_buffers} x {cta_rows} x {kernel.subtile_n} {dtype.name}"
        return SharedBuffer(
            numbered(f"{operand}_smem", number),
            operand,
            (rows, columns),
            kernel.epilogue_buffers * kernel.subtile_bytes(dtype),
            f"{contents}, swizzle {swizzle_bytes}",
            ring,
            swizzle_bytes,
        )

    def vector(name: str) -> SharedBuffer:
        extent, elements = vector_columns or (tile_columns, kernel.cta_tile_n)
        if OPERATIONS[name].along == "m":
            extent, elements = rows, cta_rows
        dtype, own = problem.vector_dtype(name), numbered(f"{name}_smem", number)
        return SharedBuffer(own, name, (extent,), elements * dtype.bytes, f"{elements} {dtype.name}")

    c_ready = vectors_ready = None
    if problem.c:
        c_ready = Barrier(numbered("c_ready", number), ring, "from TMA: the buffer holds a part of C")
    if problem.vectors:
        once = Ring(Extent(1), indexed=False)
        meaning = "from TMA: the epilogue's row and column operands have arrived"
        vectors_ready = Barrier(numbered("vectors_ready", number), once, meaning)
    return EpilogueStorage(
        c=subtile("c", problem.c, kernel.c_swizzle_bytes) if problem.c else None,
        vectors=tuple(map(vector, problem.vectors)),
        d=subtile("d", problem.d, kernel.d_swizzle_bytes),
        c_ready=c_ready,
        vectors_ready=vectors_ready,
    )


def epilogue_arguments(problem: Matmul) -> tuple[Argument, ...]:
    """Return the tensors that an epilogue reads, in order."""
    c = (Argument("c", "matrix", problem.c),) if problem.c else ()
    vectors = (
        Argument(name, "vector", problem.vector_dtype(name), OPERATIONS[name].along)
        for name in problem.vectors
    )
    scalar = (Argument("tensor_scale", "scalar", DTYPES["fp32"]),) if problem.scalar else ()
    return (*c, *vectors, *scalar)


@dataclass(frozen=True, kw_only=True)
class Kernel(Geometry, ABC):
    """A kernel: the decisions for a problem, and all that it is made of, as values."""

    @property
    @abstractmethod
    def mma_name(self) -> str:
        """The matrix instruction as PTX spells what the plan decides of it."""

    @property
    def mma_names(self) -> tuple[str, ...]:
        """The same of every instruction that it multiplies with."""
        return (self.mma_name,)

    @property
    def mma_types(self) -> tuple[str, ...]:
        """The element types that PTX spells in the instruction, where a descriptor does not hold them."""
        return ()

    @property
    @abstractmethod
    def sum_order(self) -> SumOrder:
        """In which order the products of one element of D are added up."""

    @property
    def operations(self) -> Mapping[str, int]:
        """How often operations are in the code, for those of which the plan promises a number."""
        return {}

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
        captured = captures(self.workers)
        return SharedMemory(
            buffers=self.shared_buffers,
            barriers=self.barriers,
            capture_bytes=sum(value.capture_bytes for value in captured),
            captures=len(captured),
            worker_warps=self.total_warps - self.default_warps,
            counting_partitions=self.counting_partitions,
            counts_in_cluster=self.cluster_size > 1,
        )

    @property
    def reduction_warps(self) -> int:
        """Warps of one of its programs, 0 where there is no such kernel."""
        return 0

    @property
    def reduction_smem_bytes(self) -> int | None:
        """Bytes of shared memory of the kernel that adds up the sums of parts of K, None without one."""
        return None

    @property
    def restored(self) -> tuple[str, ...]:
        """The arguments that a launch leaves as it finds them, and relies on that."""
        return ()

    @property
    def counting_partitions(self) -> int:
        """Partitions that count in global memory."""
        return 0

    @cached_property
    def smem_bytes(self) -> int:
        """Bytes of shared memory per CTA, to the byte the compiler's figure."""
        return self.shared_memory.total_bytes

    @cached_property
    def tensor_memory(self) -> TensorMemory:
        """Every column of a CTA's tensor memory, which not every kernel has."""
        return TensorMemory()

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
    def worker_shares(self) -> tuple[tuple[int, int], ...]:
        """Warps of each of these, in order, and their registers per thread: no buffer decides them."""

    @cached_property
    @abstractmethod
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that the kernel is launched with, in order."""

    @cached_property
    def kernel_arguments(self) -> tuple[Argument, ...]:
        """Those of the kernel that multiplies, where the module has another one besides."""
        return self.arguments

    def argument(self, name: str) -> Argument:
        """Return the argument of this name."""
        return next(argument for argument in self.arguments if argument.name == name)

    # --- what a ledger says of the kernel itself

    @property
    @abstractmethod
    def summary(self) -> tuple[Entry, ...]:
        """The decisions with what they mean in this kernel."""

    @property
    def cluster_entry(self) -> Entry:
        """How a cluster lies, and what its CTAs share."""
        shared = f", {self.shared_operands} loaded once and multicast" if self.multicast else ""
        return Entry("cluster", self.cluster_size, "CTAs", f"{self.cluster_m} x {self.cluster_n}{shared}")

    @property
    def shared_operands(self) -> str:
        """What CTAs share by multicast: ``A and B``."""
        return in_words(self.stage.multicast)

    @property
    def register_entries(self) -> tuple[Entry, ...]:
        """What threads hold in registers, where the kernel knows it."""
        return ()

    # --- registers

    @cached_property
    def register_pool(self) -> RegisterPool:
        """How the compiler divides the SM's register file among the partitions."""
        return RegisterPool(
            architecture=self.architecture,
            default_warps=self.default_warps,
            workers=self.worker_shares,
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
