"""The decisions of a Hopper kernel, TMA in and out and wgmma in between, and the sizes that follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from gemmgen.hardware import WGMMA
from gemmgen.plan.decisions import Decisions
from gemmgen.plan.sizes import Geometry
from gemmgen.plan.stage import Stage
from gemmgen.plan.wgmma.mma import Mma, mma_of
from gemmgen.plan.wgmma.payloads import stage_of
from gemmgen.spec.words import (
    EarlyOperand,
    MmaRows,
    Reduction,
    Source,
    Specialization,
    Trigger,
)


@dataclass(frozen=True, kw_only=True)
class WgmmaDecisions(Decisions):
    """The further decisions of a Hopper kernel.

    A *consumer* is a group of warps that multiplies one accumulator; without warp specialization all warps of
    a CTA are one.
    """

    staggered: bool
    """True if the first of two consumers has more columns than the second.

    In the next tile along N they exchange rows and sides.
    """
    swap_ab: bool
    """True if the instruction multiplies B by A: its rows are D's columns, and its sums D transposed."""
    mma_n: int
    """Columns of one instruction."""
    promote_k: int
    """Elements of K after which a sum of products is added up in full fp32; 0 for never."""
    warps_m: int
    """Warps of one consumer along M."""
    warps_n: int
    """Warps of one consumer along N."""

    a_source: Source
    outstanding_mmas: int

    splits: int
    """Parts of K, which programs take one by one."""
    reduction: Reduction
    """How their sums are added up."""
    early_operand: EarlyOperand | Literal["none"]
    """The operand whose first loads do not wait for the kernel ahead; with none, the launch itself does."""
    trigger: Trigger
    """When the kernel behind may start, if it does not wait for this one to end."""

    specialization: Specialization
    consumers: int
    producer_registers: int
    consumer_registers: int


@dataclass(frozen=True, kw_only=True)
class WgmmaGeometry(WgmmaDecisions, Geometry):
    """The sizes that follow from the decisions of a Hopper kernel."""

    # --- kinds

    @property
    def specialized(self) -> bool:
        """True if a warp of its own loads."""
        return self.specialization != "none"

    @property
    def producer_warps(self) -> int:
        """Warps that load: one thread issues the loads of TMA, and a warpgroup copies rows of A by an index.

        A warp alone takes the registers of a warpgroup.
        """
        return self.architecture.warps_per_warpgroup if self.problem.gathers_a else 1

    @property
    def ping_pong(self) -> bool:
        """True if each consumer has a tile of its own."""
        return self.specialization == "ping_pong"

    @property
    def splits_per_tile(self) -> int:
        """Splits of a tile: ranges of its K. A program takes one split at a time."""
        return self.splits

    @property
    def deterministic(self) -> bool:
        """True if each run leaves the same bits: integers have one sum in any order, floats have not."""
        return self.splits == 1 or self.reduction != "atomic" or self.problem.accumulator.integer

    @property
    def reduces_apart(self) -> bool:
        """True if a second kernel adds up the sums of all parts of K, and stores D."""
        return self.reduction == "parallel"

    @property
    def counts_parts(self) -> bool:
        """True if programs count the parts of a tile that are multiplied, so that the last one stores D."""
        return self.splits > 1 and not self.reduces_apart

    @property
    def read_early(self) -> Literal["a", "b"] | None:
        """The operand that is read before the kernel ahead has ended, or None."""
        return None if self.early_operand in ("none", "nothing") else self.early_operand

    @property
    def dependent(self) -> bool:
        """True if it is launched before the kernel ahead of it has ended."""
        return self.early_operand != "none"

    @property
    def early_launch(self) -> str:
        """The name of an early launch in messages: by the operand that is loaded then, if there is one."""
        return f"{self.read_early.upper()} loaded early" if self.read_early else "dependent_launch"

    @property
    def frees_buffers_early(self) -> bool:
        """True if the stores of the previous tile are waited for before the last MMA of the next one.

        On an H200 that takes 1.2 % off 8192 x 8192 x 1024, where two consumers keep an MMA in flight each
        (``benchmarks/reading/waits.json``): such consumers run in step, and both wait for a buffer at once.
        """
        in_step = self.specialized and self.row_shares > 1 and self.outstanding_mmas > 0
        loads = self.problem.c is not None or self.access.tma_vectors
        stores_once = not (self.composed or self.splits > 1 or self.problem.saves)
        in_step &= not self.scales_in_flight  # threads promote sums between MMAs
        return in_step and self.subtiles <= 2 and stores_once and not loads

    @property
    def even_buffers(self) -> bool:
        """True if a tile must use each epilogue buffer equally often: the phases of C's barriers count that.

        Where none of them is read, a tile can wait for all stores of the one before it, which ended long ago.
        """
        return self.problem.c is not None or self.problem.saves

    @property
    def synchronous(self) -> bool:
        """True if the warps that multiply also load, and wait for it: there is no ring then."""
        return not self.specialized and self.stages == 1

    # --- tiles

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

    @cached_property
    def mma(self) -> Mma:
        """Which operand is on each side of the instruction, and where it is read."""
        b_source: Source = "registers" if self.problem.b.decoded else "shared"
        return mma_of(self.a_source, b_source, swap_ab=self.swap_ab)

    @property
    def mma_axis(self) -> MmaRows:
        """The dimension of D along the instruction's rows."""
        return self.mma.left.axis

    @property
    def column_parts(self) -> tuple[int, ...]:
        """Columns of the parts of a CTA's tile, powers of two, the widest first.

        Each part has MMAs, tiles of B and sums of its own. They differ; but in a staggered tile the last one,
        which only its first consumer has, may be as wide as the one before it.
        """
        if not self.stagger_n:
            return powers_of_two(self.cta_tile_n)
        return (*powers_of_two(self.cta_tile_n - self.stagger_n), 2 * self.stagger_n)

    @cached_property
    def stagger_n(self) -> int:
        """Columns that a consumer of a staggered tile has more than the tile, and the other one less.

        They are the columns of the narrowest part, which one consumer has for both. A tile of one part has
        none, and no rule allows to stagger it.
        """
        narrowest = self.cta_tile_n & -self.cta_tile_n
        return narrowest if self.staggered and narrowest < self.cta_tile_n else 0

    @cached_property
    def cta_widest_n(self) -> int:
        """Columns of D of a CTA's widest consumer, which are the columns of B that a CTA loads."""
        return sum(self.column_parts)

    @property
    def loaded_n(self) -> int:
        """Columns of B that one program loads for a tile."""
        return self.cta_widest_n * self.cluster_n

    @property
    def part_rows(self) -> tuple[int, ...]:
        """Rows of D of each part in one CTA: of all consumers, or of one."""
        *others, last = (self.cta_tile_m for _ in self.column_parts)
        return (*others, last // 2 if self.stagger_n else last)

    @property
    def subtiles(self) -> int:
        """Parts into which the epilogue splits D's columns of the widest consumer."""
        return max(1, self.cta_widest_n // self.problem.b_blocks // self.subtile_n)

    @property
    def widest_subtile_n(self) -> int:
        """Columns of the widest sub-tile that a tile can have: D's columns of its narrowest part."""
        return max(1, self.column_parts[-1] // self.problem.b_blocks)

    @property
    def tiles_together(self) -> int:
        """Tiles along N that are one rectangle of D together: two, if they are staggered."""
        return 2 if self.staggered else 1

    @property
    def last_tile_ends_with_d(self) -> bool:
        """True if a last tile along M that D does not fill begins earlier, and ends with D.

        Its first rows are computed twice, to the same bits. TMA takes up to four times as long for rows
        outside of A (``benchmarks/reading/last_tiles.json``). A tile would read C, which may be D, after
        another one stored there, and rows of other groups come after a group's. Sums that are added as they
        come have other bits in each tile.
        """
        has_several = self.schedule_kind != "single_tile"
        may_be_twice = not (self.problem.groups or self.problem.c)
        return has_several and self.reduction != "atomic" and may_be_twice

    @property
    def mma_parts(self) -> tuple[int, ...]:
        """Elements of a consumer's tile in one CTA along the instruction's columns, part by part."""
        _, parts = self.mma.across((self.cta_consumer_tile_m,), self.column_parts)
        return parts

    @property
    def warps_across(self) -> tuple[int, int]:
        """Warps of one consumer along the rows and along the columns of the instruction."""
        return self.mma.across(self.warps_m, self.warps_n)

    @property
    def consumer_extents(self) -> tuple[int, int]:
        """Elements of a consumer's tile in one CTA along the instruction's rows and columns."""
        return self.mma.across(self.cta_consumer_tile_m, self.cta_tile_n)

    @property
    def mma_shape(self) -> tuple[int, int, int]:
        """The wgmma instruction (m, n, k), the widest one."""
        return (WGMMA.m, self.mma_n, self.mma_k)

    @property
    def mma_k(self) -> int:
        """Elements of K of one instruction."""
        return WGMMA.k_bytes // self.problem.a.multiplied.bytes

    @cached_property
    def mma_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """The instruction of each part: no wider than the warps of the part."""
        m, n, k = self.mma_shape
        warps = self.warps_across[1]
        narrower = (max(1, columns // warps) for columns in self.mma_parts[1:])
        return ((m, n, k), *((m, min(n, columns), k) for columns in narrower))

    @property
    def widest_mma_n(self) -> int:
        """Columns of the widest instruction for the operands' type, and for a slab of columns."""
        most, slabs = self.problem.a.multiplied.wgmma_n_max, self.column_slabs
        return min(most, self.cta_tile_n // slabs) if slabs > 1 else most

    @cached_property
    def mmas_per_step(self) -> int:
        """Instructions that one warpgroup of a consumer issues for one K step."""
        warps_down, warps_along = self.warps_across
        down = max(1, self.consumer_extents[0] // (WGMMA.rows_per_warp * warps_down))
        along = sum(
            max(1, columns // warps_along // n)
            for columns, (_, n, _) in zip(self.mma_parts, self.mma_shapes, strict=True)
        )
        return down * along * max(1, self.cta_tile_k // self.mma_shape[2])

    @property
    def fp8(self) -> bool:
        """True if the instruction multiplies 8-bit floats."""
        return self.problem.a.multiplied.fp8

    # --- storage

    @property
    def a_row(self) -> int:
        """Elements of a row of A's tile as it is stored: along K, or along M."""
        return self.cta_tile_k if self.problem.a.major == "k" else self.cta_consumer_tile_m

    @property
    def b_row(self) -> int:
        """Elements of a row of B's tile, of its widest part, as it is stored: along K, or along N."""
        return self.b_row_of(self.column_parts[0])

    def b_row_of(self, columns: int) -> int:
        """Return the elements of a row of a part of B's tile as it is stored: along K, or along N.

        Along N a row has the columns of one block, if B has several.
        """
        blocks = self.problem.b_blocks if self.problem.in_blocks else 1
        return self.cta_tile_k if self.problem.b.major == "k" else max(1, columns // blocks)

    def b_swizzle_of(self, columns: int) -> int:
        """Return the swizzle in bytes of a part of B's tile: that of B, or the widest that its rows fill."""
        if columns == self.column_parts[0]:
            return self.b_swizzle_bytes
        widest = self.widest_swizzle(self.b_row_of(columns), self.problem.b.dtype.bits)
        return min(self.b_swizzle_bytes, widest)

    @cached_property
    def stage(self) -> Stage:
        """A's tiles of each consumer's rows, B's of each part of the columns, and the tiles of features."""
        a, b, parts = self.problem.a, self.problem.b, self.column_parts
        of_b = tuple(map(self.b_swizzle_of, parts)) if len(parts) > 1 else (self.b_swizzle_bytes,)
        matrices = stage_of(
            (a.dtype.name, b.dtype.name),
            (a.major, b.major),
            (self.a_swizzle_bytes, of_b),
            (self.cta_tile_m, parts, self.cta_tile_k),
            self.row_shares,
            (self.problem.b_blocks, self.problem.interleaved),
            (self.cluster_m, self.cluster_n),
            self.architecture.tma_rows,
        )
        further = [payload for side in self.sides for payload in side.payloads(self)]
        return Stage((*matrices.payloads, *further)) if further else matrices

    @property
    def has_tile_scales(self) -> bool:
        """True if all columns of a tile have one scale of B in a K step, which threads read by address."""
        return self.access.has_tile_scales

    @property
    def step_blocks(self) -> int:
        """Blocks of K in a K step, whose sums have scales of their own; 1 in kernels that scale no sums."""
        block = self.problem.scaled_k
        return max(1, self.cta_tile_k // block) if block else 1

    @property
    def scales_in_flight(self) -> bool:
        """True if threads scale the sums of a K step while the MMAs of the next one run."""
        return self.problem.scales_sums and self.outstanding_mmas > 0

    @property
    def finds_scales_by_block(self) -> bool:
        """True if consumers read the scale of B of a block by its number, which may be past K."""
        by_block = self.splits > 1 or self.step_blocks > 1 or self.scales_in_flight
        return self.has_tile_scales and by_block

    @property
    def row_slabs(self) -> int:
        """Slabs of a consumer's rows in a CTA that are multiplied one after the other, 64 rows a warpgroup.

        The partial sums of one slab at a time are in registers, where threads scale them. 1 in kernels that
        scale no sums, and with swap-AB.
        """
        if not self.problem.scales_sums or self.swap_ab:
            return 1
        return max(1, self.cta_consumer_tile_m // (WGMMA.rows_per_warp * self.warps_m))

    @property
    def column_slabs(self) -> int:
        """Slabs of a tile's columns whose partial sums are in registers one after the other.

        There is one for each scale of B: a gate whose tile has whole blocks of columns has a slab for each
        accumulator. Other tiles have one.
        """
        problem, scale = self.problem, self.problem.b.scale
        slabs = problem.b_blocks if problem.in_blocks and self.has_tile_scales else 1
        return slabs if scale and self.cta_tile_n // slabs >= scale.format.rows else 1

    @property
    def epilogue_rows(self) -> int:
        """Rows of a consumer's tile in one CTA."""
        return self.cta_consumer_tile_m

    @property
    def vector_columns(self) -> int:
        """Elements of a column operand that a CTA loads for a tile: a block of them, no fewer than it has."""
        return 1 << (self.cta_tile_n - 1).bit_length()


@cache
def powers_of_two(value: int) -> tuple[int, ...]:
    """Return the powers of two that add up to a value, each once, the largest first."""
    return tuple(1 << bit for bit in reversed(range(value.bit_length())) if value >> bit & 1)
