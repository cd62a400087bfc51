"""The plan of one kernel: every decision as a field, everything that follows from them as a property.

A plan can be illegal: the rules (``rules.py``) say whether it is. So every property is defined for any
positive decisions, and none of them judges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.dtype import DType
from gemmgen.plan.registers import RegisterPool
from gemmgen.plan.storage import Barrier, Capture, SharedBuffer, SharedMemory
from gemmgen.target import WGMMA, Gpu


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


@dataclass(frozen=True)
class Plan:
    """All decisions of one Hopper kernel: persistent, warp-specialized, TMA in and out.

    Sizes are in elements unless the name says bytes. A *program* is one cluster; a CTA's share of it is
    called ``cta_...``.
    """

    title: str
    gpu: Gpu
    a_dtype: DType
    b_dtype: DType
    d_dtype: DType
    a_major: str
    b_major: str

    cta_tile_m: int
    cta_tile_n: int
    cta_tile_k: int
    cluster_m: int
    cluster_n: int

    stages: int
    outstanding_mmas: int
    epilogue_buffers: int
    consumers: int
    producer_registers: int
    consumer_registers: int
    order: str
    width: int
    subtile_n: int

    check_shapes: tuple[tuple[int, int, int], ...]
    bench_shapes: tuple[tuple[int, int, int], ...]

    # --- tiles

    @property
    def cluster_size(self) -> int:
        """CTAs of one program."""
        return self.cluster_m * self.cluster_n

    @property
    def program_tile_m(self) -> int:
        """Rows of D that one program computes."""
        return self.cta_tile_m * self.cluster_m

    @property
    def program_tile_n(self) -> int:
        """Columns of D that one program computes."""
        return self.cta_tile_n * self.cluster_n

    @property
    def consumer_warps(self) -> int:
        """Warps of one consumer: a lone consumer takes two warpgroups, so that its accumulator fits."""
        warpgroup = self.gpu.architecture.warps_per_warpgroup
        return 2 * warpgroup if self.consumers == 1 else warpgroup

    @property
    def cta_consumer_tile_m(self) -> int:
        """Rows of D that one consumer computes in one CTA."""
        return self.cta_tile_m // self.consumers

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
        """The wgmma instruction (m, n, k): the widest n that the tile has."""
        return (WGMMA.m, min(self.cta_tile_n, WGMMA.n_max), WGMMA.k_bytes // self.a_dtype.bytes)

    @property
    def mma_name(self) -> str:
        """The instruction as PTX spells its shape."""
        m, n, k = self.mma_shape
        return f"m{m}n{n}k{k}"

    @property
    def multicast(self) -> bool:
        """Whether the CTAs of a program share their B tile."""
        return self.cluster_m > 1

    # --- storage

    @property
    def m_bases(self) -> list[list[int]]:
        """CGA bases of a tensor [M, ...] whose rows the CTAs of a program divide among them."""
        return [[1, 0]] * int(math.log2(self.cluster_size))

    @property
    def shared_bases(self) -> list[list[int]]:
        """CGA bases of a tensor that every CTA of a program holds whole."""
        return [[0, 0]] * int(math.log2(self.cluster_size))

    def swizzle_bytes(self, row_elements: int, dtype: DType) -> int:
        """Return the widest swizzle that a row of a tile fills, 0 if it fills none."""
        row_bytes = row_elements * dtype.bytes
        return next((s for s in self.gpu.architecture.tma_swizzle_bytes if row_bytes >= s), 0)

    @property
    def a_swizzle_bytes(self) -> int:
        """Swizzle of the A tiles."""
        return self.swizzle_bytes(self.cta_tile_k, self.a_dtype)

    @property
    def b_swizzle_bytes(self) -> int:
        """Swizzle of the B tiles."""
        return self.swizzle_bytes(self.cta_tile_k, self.b_dtype)

    @property
    def d_swizzle_bytes(self) -> int:
        """Swizzle of the D sub-tiles."""
        return self.swizzle_bytes(self.subtile_n, self.d_dtype)

    @property
    def a_tile_bytes(self) -> int:
        """Bytes of one stage of A in one CTA, all consumers."""
        return self.cta_tile_m * self.cta_tile_k * self.a_dtype.bytes

    @property
    def b_tile_bytes(self) -> int:
        """Bytes of one stage of B in one CTA."""
        return self.cta_tile_n * self.cta_tile_k * self.b_dtype.bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes that one phase of ``load_ready`` awaits in one CTA."""
        return self.a_tile_bytes + self.b_tile_bytes

    @property
    def d_subtile_bytes(self) -> int:
        """Bytes of one epilogue buffer of one consumer in one CTA."""
        return self.cta_consumer_tile_m * self.subtile_n * self.d_dtype.bytes

    def per_consumer(self, name: str) -> tuple[str, ...]:
        """Return the names of what each consumer has of its own: ``x_0``, ``x_1``; ``x`` of a lone one."""
        return (name,) if self.consumers == 1 else tuple(f"{name}_{i}" for i in range(self.consumers))

    @cached_property
    def shared_buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in shared memory, in the order in which the kernel allocates them."""
        a_shape = ("STAGES", "CONSUMER_TILE_M", "PROGRAM_TILE_K")
        d_shape = ("CONSUMER_TILE_M", "PROGRAM_TILE_N")
        if self.subtiles > 1:
            d_shape = ("EPILOGUE_BUFFERS", "CONSUMER_TILE_M", "SUBTILE_N")
        a_bytes = self.stages * self.a_tile_bytes // self.consumers
        d_bytes = self.epilogue_buffers * self.d_subtile_bytes
        b = SharedBuffer(
            "b_smem", "b", ("STAGES", "PROGRAM_TILE_N", "PROGRAM_TILE_K"), self.stages * self.b_tile_bytes
        )
        return (
            *(SharedBuffer(name, "a", a_shape, a_bytes) for name in self.per_consumer("a_smem")),
            b,
            *(SharedBuffer(name, "d", d_shape, d_bytes) for name in self.per_consumer("d_smem")),
        )

    @cached_property
    def barriers(self) -> tuple[Barrier, ...]:
        """The mbarriers, in the order in which the kernel allocates them."""
        rings = [
            Barrier(
                "load_ready",
                self.stages,
                arrivals=1,
                arrives="1",
                meaning="producer to consumers: the stage holds its tiles",
            ),
            Barrier(
                "load_empty",
                self.stages,
                arrivals=self.consumers,
                arrives="CONSUMERS",
                meaning="consumers to their CTA's producer: the stage has been read",
            ),
        ]
        if self.multicast:
            rings.append(
                Barrier(
                    "multicast_empty",
                    self.stages,
                    arrivals=self.consumers * self.cluster_size,
                    arrives="CONSUMERS",
                    meaning="consumers of all CTAs to the lead CTA's producer: all have read the stage",
                    cluster_wide=True,
                )
            )
        return tuple(rings)

    @cached_property
    def shared_memory(self) -> SharedMemory:
        """Every byte of a CTA's shared memory, laid out as the compiler does it."""
        return SharedMemory(
            buffers=self.shared_buffers,
            barriers=self.barriers,
            captures=self.captures,
            worker_warps=self.total_warps - self.consumer_warps,
        )

    @property
    def smem_bytes(self) -> int:
        """Bytes of shared memory per CTA, to the byte the compiler's figure."""
        return self.shared_memory.total_bytes

    # --- partitions

    @property
    def release_arguments(self) -> tuple[str, ...]:
        """The barriers on which a consumer releases a stage."""
        return ("load_empty", "multicast_empty") if self.multicast else ("load_empty",)

    @property
    def schedule_arguments(self) -> tuple[str, ...]:
        """The scalars from which a partition derives its tiles and K steps."""
        return ("tiles_m", "tiles_n", "k_steps")

    @cached_property
    def consumer_partitions(self) -> tuple[Partition, ...]:
        """The consumers; the first one is the default partition, which keeps the kernel's own warps."""
        return tuple(
            Partition(
                name=name,
                function="consumer_partition",
                warps=self.consumer_warps,
                registers=self.consumer_registers,
                arguments=(
                    *(() if self.consumers == 1 else (str(i),)),
                    "d_desc",
                    a_smem,
                    "b_smem",
                    d_smem,
                    "load_ready",
                    *self.release_arguments,
                    *self.schedule_arguments,
                ),
            )
            for i, (name, a_smem, d_smem) in enumerate(
                zip(*map(self.per_consumer, ("consumer", "a_smem", "d_smem")), strict=True)
            )
        )

    @cached_property
    def producer_partition(self) -> Partition:
        """The warp that issues every load."""
        return Partition(
            name="producer",
            function="producer_partition",
            warps=1,
            registers=self.producer_registers,
            arguments=(
                "a_desc",
                "b_desc",
                *self.per_consumer("a_smem"),
                "b_smem",
                "load_ready",
                *self.release_arguments,
                *self.schedule_arguments,
            ),
        )

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """All roles; the first is the default partition, the others are workers."""
        return (*self.consumer_partitions, self.producer_partition)

    @property
    def workers(self) -> tuple[Partition, ...]:
        """The partitions that run on warps of their own."""
        return self.partitions[1:]

    @cached_property
    def captures(self) -> tuple[Capture, ...]:
        """What the kernel hands to its workers through shared memory: each value once."""
        ranks = {buffer.name: len(buffer.shape) for buffer in self.shared_buffers} | {
            bar.name: 2 for bar in self.barriers
        }
        names = dict.fromkeys(name for worker in self.workers for name in worker.arguments)
        return tuple(Capture.of(name, ranks) for name in names if not name.isdecimal())

    # --- registers

    @cached_property
    def register_pool(self) -> RegisterPool:
        """How the compiler divides the SM's register file among the partitions."""
        return RegisterPool(
            architecture=self.gpu.architecture,
            default_warps=self.consumer_warps,
            workers=tuple((worker.warps, worker.registers) for worker in self.workers),
        )

    @property
    def total_warps(self) -> int:
        """Warps per CTA, with those that only pad a worker group."""
        return self.register_pool.total_warps

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.total_warps * self.gpu.architecture.threads_per_warp

    @property
    def accumulator_registers(self) -> int:
        """Registers per consumer thread that hold the fp32 accumulator."""
        threads = self.consumer_warps * self.gpu.architecture.threads_per_warp
        return self.cta_consumer_tile_m * self.cta_tile_n // threads

    # --- a problem [M, N, K]

    def tiles(self, shape: tuple[int, int, int]) -> tuple[int, int]:
        """Return the program tiles along M and N of a problem."""
        m, n, _ = shape
        return -(-m // self.program_tile_m), -(-n // self.program_tile_n)

    @property
    def resident_programs(self) -> int:
        """Programs that the GPU holds at once, one CTA per SM."""
        return self.gpu.sm_count // self.cluster_size

    def waves(self, shape: tuple[int, int, int]) -> float:
        """Return the tiles of a problem per resident program: the fraction above an integer is idle time."""
        tiles_m, tiles_n = self.tiles(shape)
        return tiles_m * tiles_n / self.resident_programs

    @property
    def l2_flops_per_byte(self) -> float:
        """Operations per byte that a program loads: its tile's arithmetic intensity towards L2."""
        flops = 2 * self.program_tile_m * self.program_tile_n
        loaded = self.program_tile_m * self.a_dtype.bytes + self.program_tile_n * self.b_dtype.bytes
        return flops / loaded
