"""Faults in kernels that compute scales of D: the columns and rows of a scale, its place, and quotients."""

from __future__ import annotations

from gluonsim import Kind
from mutants.committed import RELEASE, WRONG_NUMBERS, changed_within
from mutants.mutant import of

K = Kind

plain, blocks, gated, masked, expert, experts = (
    of("h100_bf16_quantized"),
    of("h100_e4m3_blockwise_quantized"),
    of("h100_bf16_gated_quantized"),
    of("h100_bf16_masked_quantized"),
    of("h100_e4m3_blockwise_expert"),
    of("h100_e4m3_blockwise_experts"),
)
LARGEST = "    largest = gl.minimum(gl.maximum(gl.max(gl.abs(tile), 1), LEAST_SCALED), MOST_SCALED)\n"
STORE = "    gl.store(scales, gl.div_rn(largest, D_LARGEST), mask=inside)\n"
INVERSE = "    tile *= gl.div_rn(D_LARGEST, largest)[:, None]\n"
BLOCK = "(column // D_SCALE_COLUMNS).to(gl.int64) * pitch"
ROWS = "    scaled_rows = row + gl.arange("
END = "(scaled_rows < end)"
COLUMN = "gl.arange(0, tile.shape[1], gl.SliceLayout(0, tile.type.layout))"
LEFT = f"({COLUMN} < 64).to(gl.float32)[None, :]"
SCALE_OF_FIRST = "scale_of_first = scale * first_scale"
MMA_WAIT = "        step = warpgroup_mma_wait(0, deps=[step])\n"
LAST_WAIT = f"{MMA_WAIT}        {RELEASE}\n"
JOINED = "accumulator = join_column_slabs(first, second)"
SECOND_SLAB = "issue_mmas(args, a_tile, ring.stage, 1, step)"
MUTANTS = {
    "quantized_magnitude_without_negative_numbers": plain(
        WRONG_NUMBERS, "d_scale_ptr", "", (LARGEST, LARGEST.replace("gl.abs(tile)", "tile"))
    ),
    "quantized_magnitude_of_half_the_columns": gated(
        WRONG_NUMBERS, "d_scale_ptr", "", (LARGEST, LARGEST.replace("gl.abs(tile)", f"gl.abs(tile) * {LEFT}"))
    ),
    "quantized_scale_of_the_block_before": plain(
        WRONG_NUMBERS, "d_scale_ptr", "", changed_within(BLOCK, "column //", "gl.maximum(column - 128, 0) //")
    ),
    "quantized_scale_of_the_first_block": blocks(
        WRONG_NUMBERS, "d_scale_ptr", "", changed_within(BLOCK, "column //", "(0 * column) //")
    ),
    "quantized_scale_of_the_row_below": blocks(
        WRONG_NUMBERS, "d_scale_ptr", "", (ROWS, ROWS.replace("row +", "row + 1 +"))
    ),
    "quantized_scale_is_not_stored": blocks(WRONG_NUMBERS, "d_scale_ptr", "", (STORE, "")),
    "quantized_scale_is_the_inverse": plain(
        WRONG_NUMBERS, "d_scale_ptr", "", (STORE, STORE.replace("largest, D_LARGEST", "D_LARGEST, largest"))
    ),
    "quantized_scale_by_a_fast_quotient": plain(
        WRONG_NUMBERS,
        "d_scale_ptr",
        "",
        (STORE, STORE.replace("gl.div_rn(largest, D_LARGEST)", "largest * (1 / 448)")),
    ),
    "quantized_elements_times_the_scale": blocks(
        WRONG_NUMBERS, "d_desc", "", (INVERSE, INVERSE.replace("D_LARGEST, largest", "largest, D_LARGEST"))
    ),
    "quantized_elements_as_they_are": blocks(WRONG_NUMBERS, "d_desc", "", (INVERSE, "")),
    "quantized_scales_of_rows_of_no_group": masked(
        WRONG_NUMBERS, "d_desc", "", (END, END.replace("end", "end + 8"))
    ),
    "quantized_scales_of_the_first_group": masked(
        WRONG_NUMBERS, "d_desc", "", ("block = group *", "block = 0 *")
    ),
    "slabs_of_columns_with_the_other_scale": expert(
        WRONG_NUMBERS,
        "d_scale_ptr",
        "",
        (SCALE_OF_FIRST, SCALE_OF_FIRST.replace("first_scale", "second_scale")),
    ),
    "slabs_of_columns_exchanged": experts(
        WRONG_NUMBERS, "d_scale_ptr", "", (JOINED, JOINED.replace("first, second", "second, first"))
    ),
    "slabs_of_columns_of_the_first_block": experts(
        WRONG_NUMBERS, "d_scale_ptr", "", (SECOND_SLAB, SECOND_SLAB.replace("1, step", "0, step"))
    ),
    "slabs_of_columns_released_before_the_last": expert(
        K.WRITE_AFTER_READ,
        "a_smem_0|a_smem_1|b_smem",
        "tma.async_load(",
        (LAST_WAIT, f"        {RELEASE}\n{MMA_WAIT}"),
    ),
    "slabs_of_columns_added_before_the_mmas_retire": experts(
        K.ACCUMULATOR_IN_FLIGHT,
        "step",
        "first += step",
        (f"{MMA_WAIT}        first += ", f"{MMA_WAIT.replace('(0', '(1')}        first += "),
    ),
}
"""Faults to plant in kernels, each with what the simulator must say of it."""
