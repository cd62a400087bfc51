"""The decisions of a Blackwell kernel, tensor memory in between, and the sizes that follow."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.hardware import MMA_KINDS, SCALE_COLUMNS, TCGEN05, DType
from gemmgen.plan.decisions import Decisions
from gemmgen.plan.kernel import Geometry, unit_bases
from gemmgen.problem import Operand

CLC_RESPONSES = 2
"""Responses of cluster launch control that are kept: one is read while the next is requested."""


@dataclass(frozen=True, kw_only=True)
class Tcgen05Decisions(Decisions):
    """What is decided of a Blackwell kernel besides."""

    accumulators: int
    """Tiles of sums in tensor memory."""
    worker_registers: int
    """Registers per thread of each warp beside the epilogue's."""


@dataclass(frozen=True, kw_only=True)
class Tcgen05Geometry(Tcgen05Decisions, Geometry):
    """The sizes that follow from the decisions of a Blackwell kernel.

    Two CTAs along M are a *pair*: one MMA computes the tiles of both, for which each CTA loads its own rows
    of A and half of the columns of B.
    """

    @property
    def specialized(self) -> bool:
        """Whether warps have roles: always."""
        return True

    @property
    def launch_control(self) -> bool:
        """Whether a program takes over the tiles of programs that have not started."""
        return self.schedule_kind == "launch_control"

    @property
    def block_scaled(self) -> bool:
        """Whether the MMA scales its operands."""
        return self.problem.block_scaled

    @property
    def paired(self) -> bool:
        """Whether pairs of CTAs multiply together."""
        return self.cluster_m > 1

    @property
    def cta_group(self) -> int:
        """CTAs that one MMA computes for."""
        return 2 if self.paired else 1

    # --- the instruction

    @property
    def mma_kind(self) -> str:
        """The kind of MMA as PTX spells it."""
        a, b = self.problem.a.scale, self.problem.b.scale
        if a and b:
            return MMA_KINDS.get((a.format.name, b.format.name), "none")
        return self.problem.a.dtype.tcgen05_kind or "none"

    @property
    def mma_k(self) -> int:
        """Elements of K of one instruction."""
        bits = max(self.problem.a.smem_bits, self.problem.b.smem_bits)
        return TCGEN05.k_bytes * 8 // bits

    @property
    def mma_shape(self) -> tuple[int, int, int]:
        """The instruction (m, n, k), over the CTAs of its group."""
        return (self.cta_tile_m * self.cta_group, min(self.cta_tile_n, TCGEN05.n_max), self.mma_k)

    @property
    def mmas_per_step(self) -> int:
        """Instructions of one K step of a tile: the fewest that can be."""
        _, n, k = self.mma_shape
        return max(1, self.cta_tile_n // n) * max(1, self.cta_tile_k // k)

    # --- the cluster

    @property
    def multicast(self) -> tuple[str, ...]:
        """What one CTA loads for several: A along N, B along M beyond the pair, and scales also within it."""
        shared = {
            "a": self.cluster_n > 1,
            "b": self.cluster_m > 2,
            "a_scale": self.block_scaled and self.cluster_n > 1,
            "b_scale": self.block_scaled and self.cluster_m > 1,
        }
        return tuple(operand for operand, is_shared in shared.items() if is_shared)

    def b_bases(self, n_axis: int, rank: int = 2) -> list[list[int]]:
        """Return the CGA bases of B, of which the CTAs of a pair hold half of the columns each."""
        pair = unit_bases(n_axis, self.cta_group, rank)
        others_along_m = unit_bases(None, self.cluster_m // self.cta_group, rank)
        return pair + others_along_m + unit_bases(n_axis, self.cluster_n, rank, first=self.cta_group)

    @property
    def stage_readers(self) -> int:
        """Pairs, or lone CTAs, whose MMAs read what one CTA's loads of a stage bring."""
        return self.cluster_n + max(1, self.cluster_m // self.cta_group) - 1

    # --- storage

    @property
    def a_row(self) -> int:
        """Elements of a row of A's tile as it is stored: along K, or along M."""
        return self.cta_tile_k if self.problem.a.major == "k" else self.cta_tile_m

    @property
    def cta_b_columns(self) -> int:
        """Columns of B in the shared memory of one CTA."""
        return max(1, self.cta_tile_n // self.cta_group)

    @property
    def b_row(self) -> int:
        """Elements of a row of B's tile as it is stored: along K, or along N."""
        return self.cta_tile_k if self.problem.b.major == "k" else self.cta_b_columns

    @property
    def a_tile_bytes(self) -> int:
        """Bytes of one stage of A in one CTA."""
        return self.cta_tile_m * self.cta_tile_k * self.problem.a.smem_bits // 8

    @property
    def b_tile_bytes(self) -> int:
        """Bytes of one stage of B in one CTA."""
        return self.cta_b_columns * self.cta_tile_k * self.problem.b.smem_bits // 8

    def scale_columns(self, operand: Operand) -> int:
        """Return the scales of one row of an operand in one K step, 0 without any."""
        return self.cta_tile_k // operand.scale.vector if operand.scale else 0

    def scale_groups(self, operand: Operand) -> int:
        """Return the groups of scales of one row that lie together."""
        return max(1, self.scale_columns(operand) // SCALE_COLUMNS)

    @property
    def a_scale_tile_bytes(self) -> int:
        """Bytes of one stage of A's scales in one CTA."""
        return self.cta_tile_m * self.scale_columns(self.problem.a)

    @property
    def b_scale_tile_bytes(self) -> int:
        """Bytes of one stage of B's scales in one CTA: those of all columns, in both CTAs of a pair."""
        return self.cta_tile_n * self.scale_columns(self.problem.b)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage in one CTA."""
        return self.a_tile_bytes + self.b_tile_bytes + self.a_scale_tile_bytes + self.b_scale_tile_bytes

    @property
    def awaited_bytes(self) -> int:
        """Bytes that one CTA announces for a stage: those that TMA reads, without what it pads them with."""
        scales = self.a_scale_tile_bytes + self.b_scale_tile_bytes
        return self.a_loaded_bytes + self.b_loaded_bytes + scales

    @property
    def a_loaded_bytes(self) -> int:
        """Bytes of A that TMA reads for one stage of one CTA."""
        return self.a_tile_bytes * self.problem.a.dtype.bits // self.problem.a.smem_bits

    @property
    def b_loaded_bytes(self) -> int:
        """Bytes of B that TMA reads for one stage of one CTA."""
        return self.b_tile_bytes * self.problem.b.dtype.bits // self.problem.b.smem_bits

    # --- what is in the code, each loop's body once: the fewest operations that the roles can do with

    def loads(self, operand: str) -> int:
        """Return the TMA loads of A, B or their scales for one K step of a CTA."""
        if operand in ("a_scale", "b_scale"):
            return 1
        is_a = operand == "a"
        tile, row = (self.problem.a, self.a_row) if is_a else (self.problem.b, self.b_row)
        tile_bytes = self.a_tile_bytes if is_a else self.b_tile_bytes
        row_bytes = row * tile.smem_bits // 8
        swizzle_bytes = self.a_swizzle_bytes if is_a else self.b_swizzle_bytes
        return self.boxes(tile_bytes // row_bytes, row_bytes, swizzle_bytes)

    def _moves(self, dtype: DType, swizzle_bytes: int) -> int:
        """Return the TMA operations in the code for a sub-tile: each warp of the epilogue issues a share."""
        row_bytes = min(self.subtile_n, self.cta_tile_n) * dtype.bytes
        return -(-self.boxes(self.cta_tile_m, row_bytes, swizzle_bytes) // self.epilogue_warps)

    @property
    def stores(self) -> int:
        """TMA stores of a tile in the code."""
        return self.subtiles * self._moves(self.problem.d, self.d_swizzle_bytes)

    @property
    def awaited_loads(self) -> int:
        """How often the epilogue announces and awaits loads of a tile: of each part of C, and of vectors."""
        return (self.subtiles if self.problem.c else 0) + bool(self.problem.vectors)

    @property
    def epilogue_loads(self) -> int:
        """TMA loads of a tile's C and vectors in the code; a vector is one box."""
        c = self.problem.c
        of_c = self.subtiles * self._moves(c, self.c_swizzle_bytes) if c else 0
        return of_c + len(self.problem.vectors)

    @property
    def scale_copies(self) -> int:
        """Copies of a K step's scales from shared to tensor memory."""
        return (self.a_scale_tile_bytes + self.b_scale_tile_bytes) // TCGEN05.copy_bytes

    # --- roles

    @property
    def epilogue_warps(self) -> int:
        """Warps of the epilogue: a warpgroup, of which each warp reaches a quarter of tensor memory."""
        return self.architecture.warps_per_warpgroup

    @property
    def roles(self) -> int:
        """Partitions of a CTA: epilogue, MMA and load, and with launch control the scheduler."""
        return 4 if self.launch_control else 3
