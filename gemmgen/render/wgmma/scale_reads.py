"""How a Hopper module reads the scales of a block of K: which template, and the expressions of the scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.stage import least_elements
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import BlockScale
from gemmgen.render.walks import walk_of

RUN_STEPS = 4
"""K steps of a run: with fewer, more promotions have no MMA beside them; with more, the loop is longer."""


@dataclass(frozen=True)
class ScaleReads:
    """The scales of a K step of one plan as the templates of its K loop see them.

    Scales lie in a stage as one row, [1, N] for the columns of the accumulator; turned to [M, 1], they are
    for its rows.
    """

    plan: WgmmaKernel

    @property
    def of_two_blocks(self) -> bool:
        """True if a tile has columns of two blocks of B, with a scale each."""
        return self.plan.problem.in_blocks

    @property
    def one_of_b(self) -> bool:
        """True if all columns of a tile have one scale of B."""
        return self.plan.has_tile_scales and not self.of_two_blocks

    @property
    def of_groups(self) -> bool:
        """True if each group has scales of its own B."""
        return self.plan.access.scales_groups_of_rows

    @property
    def column(self) -> str:
        """The first column of a tile in B, or in the first block of B."""
        problem = self.plan.problem
        return f"{problem.b_blocks} * tile.column" if problem.interleaved else "tile.column"

    @property
    def row_of_b(self) -> str:
        """The row of scales of a tile's columns, among the rows of all groups if there are groups."""
        row = f"{self.column} // SCALE_COLUMNS"
        return f"tile.group * {self._rows_of_group} + {row}" if self.of_groups else row

    @property
    def _rows_of_group(self) -> str:
        """The rows of scales that a group's B has."""
        blocks = self.plan.problem.b_blocks
        if self.plan.problem.in_blocks:
            return f"{blocks} * (args.n // SCALE_COLUMNS)"
        columns = f"{blocks} * args.n" if blocks > 1 else "args.n"
        return f"gl.cdiv({columns}, SCALE_COLUMNS)"

    @property
    def functions(self) -> Iterator[str]:
        """The templates of the functions that read scales."""
        plan = self.plan
        loaded = {"a"} if plan.has_tile_scales else {"a", "b"}
        if self.are_coded("a") or self.are_coded("b"):
            yield "wgmma/scales/powers_of_two"
        if self.beside_rows in loaded:
            yield "wgmma/scales/row_scales"
        if self.beside_columns in loaded:
            yield "wgmma/scales/column_scales"
        if plan.has_tile_scales:
            yield "wgmma/scales/of_part" if self.by_block else "wgmma/scales/of_tile"
        if plan.column_slabs > 1:
            yield "wgmma/scales/join_column_slabs"
        elif plan.problem.in_blocks:
            yield "wgmma/scales/scales_of_blocks"
        if plan.step_blocks > 1 and plan.has_tile_scales:
            yield "wgmma/scales/of_step"
        if plan.row_slabs > 1:
            yield "wgmma/scales/join_slabs"

    @property
    def loop(self) -> str:
        """The template of the K loop: how the blocks of K and the slabs of a tile follow each other."""
        plan = self.plan
        if plan.column_slabs > 1:
            return "wgmma/k_loop/scaled_column_slabs"
        if plan.row_slabs > 1:
            return "wgmma/k_loop/scaled_slabs"
        if plan.step_blocks > 1:
            return "wgmma/k_loop/scaled_blocks"
        return "wgmma/k_loop/scaled_overlapped" if plan.scales_in_flight else "wgmma/k_loop/scaled"

    @property
    def by_block(self) -> bool:
        """True if a K loop finds the scale of B of a block by its number, which may be past K."""
        return self.plan.finds_scales_by_block

    @property
    def passed(self) -> tuple[str, str]:
        """The parameter of the K loop for the scales of B of a tile, and the argument of a call."""
        if not self.by_block:
            return "b_scale_ptr", "scales_of_tile(args, tile)"
        if not (steps := walk_of(self.plan).steps):
            return "b_scales", "scales_from(args, tile, 0)"
        return "b_scales", f"scales_from(args, tile, {steps if self.plan.specialized else 'steps'}.first)"

    def _scale(self, name: str) -> BlockScale:
        """Return the scales of the operand ``a`` or ``b``."""
        scale = self.plan.problem.operand(name).scale
        assert scale is not None  # of kernels that scale sums, which have scales of both operands
        return scale

    @property
    def beside_rows(self) -> str:
        """The operand whose scales are beside the rows of the accumulator."""
        return "b" if self.plan.swap_ab else "a"

    @property
    def beside_columns(self) -> str:
        """The operand whose scales are beside the columns of the accumulator."""
        return "a" if self.plan.swap_ab else "b"

    def are_coded(self, operand: str) -> bool:
        """Return True if the scales of an operand are exponents, which `powers_of_two` decodes."""
        return self._scale(operand).dtype.coded

    def number_of_b(self, read: str) -> str:
        """Return the text of a scale of B as an fp32 number, by the text that reads it."""
        return f"powers_of_two({read})" if self.are_coded("b") else read

    def start_anywhere(self, operand: str) -> bool:
        """Return True if the scales of an operand's tile begin at any row of a stage."""
        return operand == "a" and self.plan.access.scales_from_any_row

    @property
    def first_row(self) -> str:
        """The place of a tile's first row among the scales of A in a stage."""
        return f"tile.row % {self._scale('a').unit}"

    @property
    def rows(self) -> str:
        """The constant of the rows of A whose scales are read at a time."""
        return "SLAB_M" if self.plan.row_slabs > 1 else self.own("a")

    @property
    def rows_in_stage(self) -> int:
        """The rows of A whose scales a stage has for a consumer."""
        return self.plan.resources.of("a_scale")[0].shape[-1].size

    @property
    def unit(self) -> int:
        """The scales of B in 16 bytes: a row of scales begins at a multiple of this number."""
        return self._scale("b").unit

    def own(self, operand: str) -> str:
        """Return the constant of the rows of A, or columns of B, that a consumer multiplies."""
        return self._extent(operand)[0]

    def _extent(self, operand: str) -> tuple[str, int]:
        """Return the constant and the number of the rows of A, or columns of B, of a consumer."""
        plan = self.plan
        if operand == "b":
            return "PROGRAM_TILE_N", plan.program_tile_n
        return ("CONSUMER_TILE_M" if plan.row_shares > 1 else "PROGRAM_TILE_M"), plan.cta_consumer_tile_m

    def loaded_beyond(self, operand: str) -> int:
        """Return how many scales of an operand TMA loads if they are more than a consumer has; else 0."""
        least = least_elements(self._scale(operand).dtype)
        return least if self.plan.row_slabs == 1 and least > self._extent(operand)[1] else 0

    def of_a(self, slab: int) -> str:
        """Return the scales of A beside the accumulator, of one of several slabs of rows."""
        scales = self._of_stage("a_scale_smem" if self.plan.specialized else "args.a_scale_smem")
        if self.plan.access.scales_from_any_row:
            scales = f"{scales}, scale_row + SLAB_M" if slab else f"{scales}, scale_row"
        elif self.plan.row_slabs > 1:
            scales = f"{scales}.slice({'SLAB_M' if slab else '0'}, SLAB_M, dim=1)"
        return f"column_scales({scales})" if self.plan.swap_ab else f"row_scales({scales})"

    @property
    def of_b(self) -> str:
        """The scales of B beside the accumulator."""
        scales = self._of_stage("args.b_scale_smem")
        return f"row_scales({scales})" if self.plan.swap_ab else f"column_scales({scales})"

    def _of_stage(self, ring: str) -> str:
        """Return the scales in a stage: of a K step, or of one of its blocks."""
        scales = f"{ring}.index(ring.stage)"
        return f"{scales}.slice(block, 1)" if self.plan.step_blocks > 1 else scales
