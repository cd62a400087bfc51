"""The sizes that follow from the decisions of a kernel: tiles, clusters, storage, waves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from gemmgen.hardware import Architecture, DType, Gpu
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.decisions import LINES, Decisions
from gemmgen.plan.planning import Sides
from gemmgen.plan.stage import Stage, boxes
from gemmgen.problem import Matmul, Request, Shape


@dataclass(frozen=True, kw_only=True)
class Geometry(Decisions, ABC):
    """The decisions of a kernel for a problem, and the sizes that follow from them.

    Sizes are in elements unless the name says bytes. A *program* is one cluster; a CTA's share of it is
    called ``cta_...``. Everything is defined for any positive decisions, legal or not.
    """

    request: Request
    sides: Sides = field(compare=False, repr=False)
    """The sides of all features of the family. They follow from the family, and are no decision."""

    @cached_property
    def access(self) -> TensorAccess:
        """How the kernel reaches the tensors of its problem."""
        return TensorAccess(self.problem)

    @property
    def problem(self) -> Matmul:
        """The matmul that the kernel computes."""
        return self.request.matmul

    @property
    def gpu(self) -> Gpu:
        """The GPU that the kernel is planned for."""
        return self.request.gpu

    @property
    def architecture(self) -> Architecture:
        """The architecture that the kernel is compiled for."""
        return self.gpu.architecture

    @property
    def persistent(self) -> bool:
        """True if a program walks over tiles that are its own from the start."""
        return self.schedule_kind == "persistent"

    @property
    def read_early(self) -> Literal["a", "b"] | None:
        """The operand that is read before the kernel ahead has ended, or None."""
        return None

    @property
    def dependent(self) -> bool:
        """True if it is launched before the kernel ahead of it has ended."""
        return False

    @property
    def deterministic(self) -> bool:
        """True if D has the same bits in every run: nothing is added up in the order in which it comes."""
        return True

    @property
    @abstractmethod
    def specialized(self) -> bool:
        """True if warps have roles."""

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
    def cta_columns(self) -> int:
        """Columns of D that one CTA computes at a time: its columns of B, over the sums of an element."""
        return max(1, self.cta_tile_n // self.problem.b_blocks)

    @property
    def program_tile_n(self) -> int:
        """Columns of D that one program computes at a time."""
        return self.cta_columns * self.cluster_n

    @property
    def loaded_n(self) -> int:
        """Columns of B that one program loads for a tile."""
        return self.cta_tile_n * self.cluster_n

    @property
    def placing_dimensions(self) -> tuple[str, ...]:
        """The dimensions whose tiles have to be counted to find a tile: of an order of lines, a line's."""
        return (LINES[self.order],) if self.order in LINES else ("m", "n")

    @property
    def column_parts(self) -> tuple[int, ...]:
        """Columns of the parts of a CTA's tile; each part has its own MMAs and sums."""
        return (self.cta_tile_n,)

    @property
    def composed(self) -> bool:
        """True if a tile has several parts; a plain one has one."""
        return len(self.column_parts) > 1

    @property
    def subtiles(self) -> int:
        """Parts into which the epilogue splits a tile's columns."""
        return max(1, self.cta_columns // self.subtile_n)

    @property
    def even_buffers(self) -> bool:
        """True if a tile must use each epilogue buffer equally often: their ring starts anew with it."""
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
        """The tensors whose tiles one CTA loads for several CTAs of its program."""
        return tuple(payload.tensor for payload in self.stage.multicast)

    def loads(self, tensor: str) -> int:
        """Return the TMA loads of a tensor for one K step of a CTA."""
        return self.stage.loads.get(tensor, 0)

    def boxes(self, rows: int, row_bytes: int, swizzle_bytes: int) -> int:
        """Return the TMA operations for a tile in shared memory: one moves a swizzle's span, of few rows."""
        return boxes(rows, row_bytes, swizzle_bytes, self.architecture.tma_rows)

    @property
    def group_slots(self) -> int:
        """Most groups of a call, whose rows each warp holds: a power of two; 0 if warps hold none.

        A warp holds the rows of all groups to find the group of a tile. Tiles of groups that divide K have
        numbers that tell their group.
        """
        groups = self.problem.groups
        if groups is None or groups.counts is None or groups.divides_k:
            return 0
        return max(self.architecture.threads_per_warp, 1 << (groups.count - 1).bit_length())

    # --- storage

    def widest_swizzle(self, row_elements: int, bits: int) -> int:
        """Return the widest swizzle in bytes that a row of a tile fills, 0 if it fills none."""
        row_bytes = row_elements * bits // 8
        return next((s for s in self.architecture.tma_swizzle_bytes if row_bytes >= s), 0)

    @property
    def moved_n(self) -> int:
        """Columns of C and D that TMA moves at a time: of both matrices if they take turns, or of one."""
        return self.subtile_n * (self.problem.d_blocks if self.problem.interleaved else 1)

    @property
    def c_swizzle_bytes(self) -> int:
        """Swizzle of the C sub-tiles."""
        return self.widest_swizzle(self.moved_n, self.problem.c.bits) if self.problem.c else 0

    @property
    def d_swizzle_bytes(self) -> int:
        """Swizzle of the D sub-tiles."""
        return self.widest_swizzle(self.moved_n, self.problem.d.bits)

    @property
    def saved_n(self) -> int:
        """Columns of saved sums that TMA moves at a time: of both accumulators in turn, or of one."""
        return self.subtile_n * (self.problem.b_blocks if self.problem.interleaved else 1)

    @property
    def saved_swizzle_bytes(self) -> int:
        """Swizzle of the sub-tiles of saved sums."""
        return self.widest_swizzle(self.saved_n, self.problem.d.bits)

    @property
    def a_unit(self) -> int:
        """Elements of A in 16 bytes, the most that a thread copies at a time."""
        return self.architecture.tma_alignment_bytes // self.problem.a.dtype.bytes

    @property
    def d_unit(self) -> int:
        """Elements of D in 16 bytes: a row of D in memory is a whole number of such units."""
        return self.architecture.tma_alignment_bytes // self.problem.d.bytes

    @property
    def epilogue_rows(self) -> int:
        """Rows of the tile of one epilogue in one CTA."""
        return self.cta_tile_m

    def subtile_bytes(self, dtype: DType) -> int:
        """Return the bytes of one buffer of one epilogue in one CTA, with all matrices in C or in D."""
        columns = self.problem.d_blocks * min(self.subtile_n, self.cta_columns)
        return self.epilogue_rows * columns * dtype.bytes

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
        together, groups, rows = self.tiles_together, self.problem.groups, self.program_tile_m
        tiles_m = groups.row_tiles(m, rows) if groups else -(-m // rows)
        return tiles_m, -(-n // (together * self.program_tile_n)) * together

    def k_steps(self, shape: Shape) -> float:
        """Return the K steps of a tile of a problem, in the mean of its groups: each has one or more."""
        groups, k = self.problem.groups, shape[2]
        return groups.mean_k_steps(k, self.cta_tile_k) if groups else float(max(1, -(-k // self.cta_tile_k)))

    @property
    def tiles_together(self) -> int:
        """Tiles along N that are one rectangle of D together: several, if none is one by itself."""
        return 1

    @property
    def last_tile_ends_with_d(self) -> bool:
        """True if a last tile along M that D does not fill begins earlier, and ends with D."""
        return False

    def rows_of_two_tiles(self, m: int) -> range:
        """Return the rows of a D with `m` rows that the last two tiles along M both compute; mostly none."""
        tile, multiple = self.program_tile_m, self.access.m_place_multiple
        first, end = -(-m // multiple) * multiple - tile, (-(-m // tile) - 1) * tile
        return range(max(0, first), end) if self.last_tile_ends_with_d else range(0)

    @property
    def splits_per_tile(self) -> int:
        """Splits of a tile: ranges of its K. A program takes one split at a time."""
        return 1

    @property
    def frees_buffers_early(self) -> bool:
        """True if the stores of the previous tile are waited for before the last MMA of the next one."""
        return False

    @property
    def reduces_apart(self) -> bool:
        """True if a second kernel adds up the sums of all parts of K, and stores D."""
        return False

    @property
    def resident_programs(self) -> int:
        """Programs that the GPU holds at once."""
        return self.gpu.clusters(self.cluster_size) * self.occupancy

    def waves(self, shape: Shape) -> float:
        """Return the tiles of a problem per resident program: the fraction above an integer is idle time.

        Each split of a tile counts.
        """
        tiles_m, tiles_n = self.tiles(shape)
        return tiles_m * tiles_n * self.splits_per_tile / self.resident_programs

    @property
    def l2_flops_per_byte(self) -> float:
        """Operations per byte that a program loads: its tile's arithmetic intensity towards L2."""
        flops = 2 * self.program_tile_m * self.program_tile_n * self.problem.b_blocks
        a, b = self.problem.a.dtype.bits, self.problem.b.dtype.bits
        return flops * 8 / (self.program_tile_m * a + self.loaded_n * b)


def unit_bases(axis: int | None, ctas: int, rank: int, first: int = 1) -> list[list[int]]:
    """Return the bases of `ctas` CTAs that divide an axis; neighbours are `first` tiles apart."""
    extents = [first << bit for bit in range(ctas.bit_length() - 1)]
    return [[extent if i == axis else 0 for i in range(rank)] for extent in extents]
