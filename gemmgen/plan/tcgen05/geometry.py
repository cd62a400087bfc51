"""The decisions of a Blackwell kernel, tensor memory in between, and the sizes that follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gemmgen.hardware import MMA_KINDS, SCALE_ROWS, TCGEN05, DType
from gemmgen.plan.decisions import Decisions
from gemmgen.plan.sizes import Geometry, unit_bases
from gemmgen.plan.stage import Payload, Stage
from gemmgen.plan.storage import Extent
from gemmgen.problem import Operand

CLC_RESPONSES = 2
"""Responses of cluster launch control that are kept: one is read while the next is requested."""


def k_extent(cta_tile_k: int, operand: Operand) -> Extent:
    """Return the extent of an operand's tile along K, as its descriptor counts it."""
    if operand.dtype.elements_per_byte == 1:
        return Extent(cta_tile_k, "tile_k")
    return Extent(cta_tile_k // operand.dtype.elements_per_byte, "packed_tile_k")


@dataclass(frozen=True, kw_only=True)
class Tcgen05Decisions(Decisions):
    """The further decisions of a Blackwell kernel."""

    accumulators: int
    """Tiles of sums in tensor memory."""
    worker_registers: int
    """Registers per thread of each warp beside the epilogue's."""


@dataclass(frozen=True, kw_only=True)
class Tcgen05Geometry(Tcgen05Decisions, Geometry):
    """The sizes that follow from the decisions of a Blackwell kernel.

    Two CTAs along M are a *pair*: one MMA computes the tiles of both. Each CTA loads its own rows of A and
    half of the columns of B.
    """

    @property
    def specialized(self) -> bool:
        """True if warps have roles: always."""
        return True

    @property
    def launch_control(self) -> bool:
        """True if a program takes over the tiles of programs that have not started."""
        return self.schedule_kind == "launch_control"

    @property
    def scale_rows(self) -> int:
        """Rows of A, or columns of B, whose scales lie together, so that a tile has all; 1 without scales."""
        return SCALE_ROWS if self.problem.packs_scales else 1

    @property
    def paired(self) -> bool:
        """True if pairs of CTAs multiply together."""
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
        return self.problem.a.multiplied.tcgen05_kind or "none"

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

    def b_bases(self, n_axis: int, rank: int = 2) -> list[list[int]]:
        """Return the CGA bases of B; each CTA of a pair holds half of the columns."""
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

    def scale_columns(self, operand: Operand) -> int:
        """Return the scales of one row of an operand in one K step, 0 without any."""
        return self.cta_tile_k // operand.scale.vector if operand.scale else 0

    @cached_property
    def stage(self) -> Stage:
        """A and B, and then the tiles of features.

        CTAs along M share B beyond the pair, whose CTAs load half of it each.
        """
        a, b = self.problem.a, self.problem.b
        pairs_m = max(1, self.cluster_m // self.cta_group)
        of_a, of_b = Extent(self.program_tile_m, "tile_m"), Extent(self.program_tile_n, "tile_n")
        matrices = (
            self._operand("a", a, of_a, self.a_swizzle_bytes, self.cluster_n),
            self._operand("b", b, of_b, self.b_swizzle_bytes, pairs_m),
        )
        return Stage((*matrices, *(payload for side in self.sides for payload in side.payloads(self))))

    def _operand(
        self, tensor: Literal["a", "b"], operand: Operand, outer: Extent, swizzle_bytes: int, sharing: int
    ) -> Payload:
        """Return a tile of A or B; `outer` is the extent of its rows or columns over all CTAs."""
        rows, row = (self.cta_tile_m, self.a_row) if tensor == "a" else (self.cta_b_columns, self.b_row)
        k, bits = self.cta_tile_k, operand.smem_bits
        row_bytes, box = row * bits // 8, (outer, k_extent(k, operand))
        stored_rows = rows * k * bits // 8 // max(1, row_bytes)
        return Payload(
            tensor=tensor,
            kind="matrix",
            dtype=operand.dtype,
            axis="m" if tensor == "a" else "n",
            box=box if operand.major == "k" else box[::-1],
            elements=rows * k,
            bits=bits,
            loads_per_tile=self.boxes(stored_rows, row_bytes, swizzle_bytes),
            words=f"{rows} x {k} {operand.dtype.name}{' padded' * operand.padded}",
            swizzle_bytes=swizzle_bytes,
            sharing=sharing,
        )

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
    def smem_limit_bytes(self) -> int:
        """Bytes of shared memory that a CTA can have: it is alone on its SM."""
        return self.architecture.smem_bytes_per_cta

    @property
    def scale_copies(self) -> int:
        """Copies of a K step's scales from shared to tensor memory."""
        return (self.stage.bytes_of("a_scale") + self.stage.bytes_of("b_scale")) // TCGEN05.copy_bytes

    # --- roles

    @property
    def epilogue_warps(self) -> int:
        """Warps of the epilogue: one warpgroup, because each warp reaches a quarter of tensor memory."""
        return self.architecture.warps_per_warpgroup

    @property
    def roles(self) -> int:
        """Partitions of a CTA: epilogue, MMA and load, and with launch control the scheduler."""
        return 4 if self.launch_control else 3
