"""Faults in kernels that scale the sums of groups: scales of other rows, groups and columns."""

from __future__ import annotations

from gluonsim import Kind
from mutants.committed import EMPTY_WAIT, WRONG_NUMBERS
from mutants.mutant import NOTHING, of

K = Kind

slabs, masked, few_rows = (
    of("h100_e4m3_blockwise_grouped"),
    of("h100_e4m3_blockwise_masked"),
    of("h100_e4m3_blockwise_groups16"),
)
blocks, gated, grouped_gate = (
    of("h100_e4m3_blockwise_kturns"),
    of("h100_e4m3_blockwise_gated"),
    of("h100_e4m3_blockwise_swiglu"),
)
ROW_OF_SCALES = "tile.group * gl.cdiv(args.n, SCALE_COLUMNS) + "
PLACE = "[k // PROGRAM_TILE_K, (tile.row + i * CONSUMER_TILE_M) // 4 * 4]"
FENCE = "            fence_async_shared()\n"
FIRST_STEP = "gl.where(is_empty, gl.cdiv(self.args.k, PROGRAM_TILE_K), piece.first)"
OF_BLOCKS = "scales_of_blocks(first_scale, second_scale)"
MUTANTS = {
    "gate_scales_of_the_other_block": gated(
        WRONG_NUMBERS, "d_desc", "", (OF_BLOCKS, "scales_of_blocks(second_scale, first_scale)")
    ),
    "gate_scales_of_one_block": gated(
        WRONG_NUMBERS, "d_desc", "", ("b_scale_ptr + rows * ", "b_scale_ptr + 0 * rows * ")
    ),
    "gate_scales_of_half_a_group": grouped_gate(
        WRONG_NUMBERS, "d_desc", "", ("tile.group * 2 * (args.n", "tile.group * (args.n")
    ),
    "group_blocks_of_a_group_without_k": blocks(WRONG_NUMBERS, "d_desc", "", (FIRST_STEP, "piece.first")),
    "group_blocks_rounded_down": blocks(
        WRONG_NUMBERS, "d_desc", "", ("gl.cdiv(end, PROGRAM_TILE_K)", "end // PROGRAM_TILE_K")
    ),
    "group_blocks_from_the_first_one": blocks(
        WRONG_NUMBERS, "d_desc", "", ("self.blocks_before(group - 1)", "self.blocks_before(group - 2)")
    ),
    "group_blocks_scales_of_rows_of_all_groups": blocks(
        K.UNALIGNED_TRANSFER,
        "a_scale_desc",
        "tma.async_load(",
        ("[k // PROGRAM_TILE_K, tile.row - tile.group * args.m]", "[k // PROGRAM_TILE_K, tile.row]"),
    ),
    "group_scales_of_the_first_group": slabs(WRONG_NUMBERS, "d_desc", "", (ROW_OF_SCALES, "")),
    "group_scales_of_the_next_group": few_rows(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (ROW_OF_SCALES, ROW_OF_SCALES.replace("tile.group", "gl.minimum(tile.group + 1, args.groups - 1)")),
    ),
    "group_scales_by_tiles_and_not_by_a_group_s_first_row": slabs(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (PLACE, PLACE.replace("tile.row +", "tile.row // CONSUMER_TILE_M * CONSUMER_TILE_M +")),
    ),
    "group_scales_at_multiples_of_four_rows": few_rows(
        WRONG_NUMBERS, "d_desc", "", ("columns = first + ", "columns = ")
    ),
    "group_scales_of_slabs_at_multiples_of_four_rows": slabs(
        WRONG_NUMBERS, "d_desc", "", ("            tile.row % 4,\n", "            0,\n")
    ),
    "group_scales_of_the_upper_slab": slabs(
        WRONG_NUMBERS, "d_desc", "", ("scale_row + SLAB_M)", "scale_row)")
    ),
    "group_scales_from_any_row": slabs(
        K.UNALIGNED_TRANSFER,
        "a_scale_desc",
        "tma.async_load(",
        (PLACE, "[k // PROGRAM_TILE_K, tile.row + i * CONSUMER_TILE_M]"),
    ),
    "group_scales_of_the_first_consumer": masked(
        WRONG_NUMBERS, "d_desc", "", ("row_in_group + i * CONSUMER_TILE_M]", "row_in_group]")
    ),
    "group_scales_of_the_first_masked_group": masked(
        WRONG_NUMBERS, "d_desc", "", ("[tile.group * args.k_steps + k // ", "[k // ")
    ),
    "group_scales_by_rows_of_all_masked_groups": masked(
        K.UNALIGNED_TRANSFER,
        "a_scale_desc",
        "tma.async_load(",
        ("row_in_group = tile.row - tile.group * args.m", "row_in_group = tile.row"),
    ),
    "group_scales_not_expected": slabs(
        K.BYTE_COUNT,
        "load_ready",
        "mbarrier.expect(",
        ("        + CONSUMERS * args.a_scale_desc.nbytes_per_cta,\n", ""),
    ),
    "group_scales_loaded_without_a_fence": slabs(
        K.MISSING_FENCE, "a_scale_smem_0", "tma.async_load(", (FENCE, "")
    ),
    "group_scales_copied_before_the_stage_is_released": few_rows(
        K.WRITE_AFTER_READ, "a_smem", "tma.async_load(args.a_desc", (EMPTY_WAIT, NOTHING)
    ),
}
