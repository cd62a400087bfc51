"""How a Hopper module reads the scales of a block of K: which template, and the expressions of the scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gemmgen.plan.stage import least_elements
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import BlockScale
from gemmgen.render.arguments import TMA_UNIT_BYTES
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
    def column(self) -> str:
        """The first column of a tile in B, or in the first block of B."""
        return (
            f"{self.plan.problem.b_blocks} * tile.column" if self.plan.problem.interleaved else "tile.column"
        )

    @property
    def row_of_b(self) -> str:
        """The row of scales of a tile's columns, among the rows of all groups if there are groups."""
        row = f"{self.column} // SCALE_COLUMNS"
        return (
            f"tile.group * {self._rows_of_group} + {row}" if self.plan.problem.scales_groups_of_rows else row
        )

    @property
    def words_of_rows(self) -> str:
        """The comment on rows of scales of B, of each group if there are groups."""
        if self.plan.problem.scales_groups_of_rows:
            rows = "Each group has a row of scales for SCALE_COLUMNS columns of its B."
            return f"{rows} Rows begin at multiples of {self.unit} scales."
        multiple = f"multiples of {TMA_UNIT_BYTES} bytes: {self.unit} scales"
        return f"Rows of scales, one for SCALE_COLUMNS columns of B, begin at {multiple}."

    @property
    def _rows_of_group(self) -> str:
        """The rows of scales that a group's B has."""
        blocks = self.plan.problem.b_blocks
        if self.plan.problem.in_blocks:
            return f"{blocks} * (args.n // SCALE_COLUMNS)"
        return f"gl.cdiv({f'{blocks} * ' * (blocks > 1)}args.n, SCALE_COLUMNS)"

    @property
    def functions(self) -> Iterator[str]:
        """The templates of the functions that read scales."""
        plan = self.plan
        loaded = {"a"} if plan.has_tile_scales else {"a", "b"}
        if any(self._scale(name).dtype.coded for name in ("a", "b")):
            yield "wgmma/scales/powers_of_two"
        if self._beside_rows in loaded:
            yield "wgmma/scales/row_scales"
        if self._beside_columns in loaded:
            yield "wgmma/scales/column_scales"
        if plan.has_tile_scales:
            yield f"wgmma/scales/{'of_part' if self.by_block else 'of_tile'}"
        if plan.column_slabs > 1:
            yield "wgmma/scales/join_column_slabs"
        elif plan.problem.in_blocks:
            yield "wgmma/scales/scales_of_blocks"
        if plan.step_blocks > 1 and plan.has_tile_scales:
            yield "wgmma/scales/of_step"
        if plan.row_slabs > 1:
            yield "wgmma/scales/join_slabs"

    @property
    def pace(self) -> str:
        """The ending of the name of the K loop's template: how blocks and slabs follow each other."""
        plan = self.plan
        if plan.column_slabs > 1:
            return "_column_slabs"
        if plan.row_slabs > 1:
            return "_slabs"
        return "_blocks" if plan.step_blocks > 1 else "_overlapped" if plan.scales_in_flight else ""

    @property
    def by_block(self) -> bool:
        """True if a K loop finds the scale of B of a block by its number, which may be past K."""
        return self.plan.finds_scales_by_block

    @property
    def of_tiles(self) -> str:
        """The parameter of the K loop for the scales of B of a tile."""
        return "b_scales" if self.by_block else "b_scale_ptr"

    @property
    def found(self) -> str:
        """The value of that parameter for a work item."""
        if not self.by_block:
            return "scales_of_tile(args, tile)"
        if not (steps := walk_of(self.plan).steps):
            return "scales_from(args, tile, 0)"
        return f"scales_from(args, tile, {steps if self.plan.specialized else 'steps'}.first)"

    @property
    def first_of_b(self) -> str:
        """The scale of B of the first K step of a work item, which has one block."""
        return "b_scales.of(0)" if self.by_block else self.number_of_b("gl.load(b_scale_ptr)")

    def next_of_b(self, k_steps: str) -> str:
        """Return the scale of B of the K step after `k_step`; after the last step it is the last one."""
        if self.by_block:
            return "b_scales.of(k_step + 1)"
        return self.number_of_b(f"gl.load(b_scale_ptr + gl.minimum(k_step + 1, {k_steps} - 1))")

    @property
    def block_k(self) -> str:
        """The constant that holds the K of a block."""
        return "SCALE_K" if self.plan.step_blocks > 1 else "PROGRAM_TILE_K"

    def _scale(self, name: str) -> BlockScale:
        """Return the scales of the operand ``a`` or ``b``."""
        scale = self.plan.problem.operand(name).scale
        assert scale is not None  # of kernels that scale sums, which have scales of both operands
        return scale

    @property
    def _beside_rows(self) -> str:
        """The operand whose scales are beside the rows of the accumulator."""
        return "b" if self.plan.swap_ab else "a"

    @property
    def _beside_columns(self) -> str:
        """The operand whose scales are beside the columns of the accumulator."""
        return "a" if self.plan.swap_ab else "b"

    def _number(self, name: str, read: str) -> str:
        """Return the text of scales as fp32 numbers, by the text that reads the scales of an operand."""
        return f"powers_of_two({read})" if self._scale(name).dtype.coded else read

    def number_of_b(self, read: str) -> str:
        """Return the text of a scale of B as an fp32 number, by the text that reads it."""
        return self._number("b", read)

    def starts_anywhere(self, beside: Literal["rows", "columns"]) -> bool:
        """Return True if the scales beside the accumulator's rows or columns begin at any row of a stage."""
        name = self._beside_rows if beside == "rows" else self._beside_columns
        return name == "a" and self.plan.access.scales_from_any_row

    @property
    def first_row(self) -> str:
        """The place of a tile's first row among the scales of A in a stage."""
        return f"tile.row % {self._scale('a').unit}"

    @property
    def rows(self) -> str:
        """The constant of the rows of A whose scales are read at a time."""
        return "SLAB_M" if self.plan.row_slabs > 1 else self._extent("a")[0]

    @property
    def loaded_rows(self) -> int:
        """The rows of A whose scales a stage has for a consumer."""
        return self.plan.resources.of("a_scale")[0].shape[-1].size

    @property
    def gathered_rows(self) -> str:
        """The scales at the indices `rows`, as a column of fp32 numbers."""
        return self._number("a", "scales.permute((1, 0)).gather(rows[:, None], axis=0)")

    @property
    def gathered_columns(self) -> str:
        """The scales at the indices `columns`, as a row of fp32 numbers."""
        return self._number("a", "scales.gather(columns[None, :], axis=1)")

    @property
    def unit(self) -> int:
        """The scales of B in 16 bytes: a row of scales begins at a multiple of this number."""
        return self._scale("b").unit

    @property
    def read_rows(self) -> str:
        """The scales beside the rows of the accumulator, as a column of fp32 numbers."""
        read = f"scales{self._slice(self._beside_rows)}.permute((1, 0)).load(ACCUMULATOR_LAYOUT)"
        return self._number(self._beside_rows, read)

    @property
    def read_columns(self) -> str:
        """The scales beside the columns of the accumulator, as a row of fp32 numbers."""
        read = f"scales{self._slice(self._beside_columns)}.load(ACCUMULATOR_LAYOUT)"
        return self._number(self._beside_columns, read)

    def _extent(self, name: str) -> tuple[str, int]:
        """Return the constant and the number of the rows of A, or columns of B, of a consumer."""
        plan = self.plan
        if name == "b":
            return "PROGRAM_TILE_N", plan.program_tile_n
        return ("CONSUMER_TILE_M" if plan.row_shares > 1 else "PROGRAM_TILE_M"), plan.cta_consumer_tile_m

    def _is_loaded_beyond(self, name: str) -> bool:
        """True if TMA loads scales of more rows of A, or columns of B, than a consumer has."""
        return self.plan.row_slabs == 1 and least_elements(self._scale(name).dtype) > self._extent(name)[1]

    def _loaded(self, name: str) -> str:
        """The words about the scales that a stage has beyond the accumulator; empty if there are none."""
        return f"; TMA loads {least_elements(self._scale(name).dtype)}" * self._is_loaded_beyond(name)

    @property
    def words_of_column(self) -> str:
        """The words about a column of scales, and about the scales that a stage has beyond the rows."""
        beyond = self._loaded(self._beside_rows)
        return f"beside the rows{beyond}" if beyond else "[M, 1] beside the rows of the accumulator"

    @property
    def loaded_columns(self) -> str:
        """The words about the scales that a stage has beyond the columns; empty if there are none."""
        return self._loaded(self._beside_columns)

    def _slice(self, name: str) -> str:
        """Return the selection of the scales that a consumer multiplies by; empty if TMA loads no others."""
        return f".slice(0, {self._extent(name)[0]}, dim=1)" * self._is_loaded_beyond(name)

    def of_a(self, slab: int) -> str:
        """Return the scales of A beside the accumulator, of one of several slabs of rows."""
        scales = f"{'' if self.plan.specialized else 'args.'}a_scale_smem.index(ring.stage)"
        if self.plan.step_blocks > 1:
            scales += ".slice(block, 1)"
        if self.plan.access.scales_from_any_row:
            scales += f", scale_row{' + SLAB_M' if slab else ''}"
        elif self.plan.row_slabs > 1:
            scales += f".slice({'SLAB_M' if slab else '0'}, SLAB_M, dim=1)"
        return f"{'column' if self.plan.swap_ab else 'row'}_scales({scales})"

    @property
    def of_b(self) -> str:
        """The scales of B beside the accumulator."""
        scales = f"args.b_scale_smem.index(ring.stage){'.slice(block, 1)' * (self.plan.step_blocks > 1)}"
        return f"{'row' if self.plan.swap_ab else 'column'}_scales({scales})"

    # --- steps of several blocks

    @property
    def step_number(self) -> str:
        """The variable of a loop over K steps, whose scales of B are found by the number of a step."""
        return "k_step" if self.plan.has_tile_scales else "_"

    @property
    def of_block(self) -> str:
        """The scales of a block: their product, or a pair if each column has a scale of B."""
        return "scale * b_scale[block]" if self.plan.has_tile_scales else f"(scale, {self.of_b})"

    @property
    def scaled_block(self) -> str:
        """The sums of a block times their scales."""
        scales = "scales[block]"
        return f"steps[block] * {scales if self.plan.has_tile_scales else f'({scales}[0] * {scales}[1])'}"
