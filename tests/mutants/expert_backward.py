"""Faults in kernels of groups that save sums, or that have two matrices in C and D: rows of other groups."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.committed import WRONG_NUMBERS
from mutants.mutant import of

K = Kind

saved, in_turn = of("h100_bf16_grouped_saved"), of("h100_bf16_masked_saved")
dgated, batched = of("h100_bf16_grouped_dgated"), of("h100_bf16_batched_dgated")
KEPT = "gl.maximum(gl.minimum(end - row, rows), 0)"
UP = "tma.async_store(args.saved_desc, [1, row + kept, rows - kept, column], saved_tile)"
STORED = "tma.async_store(args.d_desc, [block, row + kept, rows - kept, column], d_tile)"
LOADED = "tma.async_load(args.c_desc, [block, row, column + subtile * SUBTILE_N], ready, c_tile)"
MUTANTS = {
    "experts_saved_rows_of_the_next_group": saved(
        K.GLOBAL_RACE, "saved_desc|d_desc", "tma.async_store(", (KEPT, "rows")
    ),
    "experts_saved_a_row_too_few": saved(
        WRONG_NUMBERS, "saved_desc", "", (KEPT, "gl.maximum(gl.minimum(end - row - 1, rows), 0)")
    ),
    "experts_saved_up_a_row_further": saved(
        WRONG_NUMBERS, "saved_desc", "", (UP, UP.replace("row + kept", "row + kept + 1"))
    ),
    "experts_saved_up_of_whole_tiles": saved(
        K.GLOBAL_RACE,
        "saved_desc",
        "tma.async_store(",
        (UP, UP.replace("row + kept, rows - kept", "row + rows, 0")),
    ),
    "experts_saved_up_over_the_gate": saved(
        K.GLOBAL_RACE, "saved_desc", "tma.async_store(", (UP, UP.replace("[1, ", "[0, "))
    ),
    "experts_saved_in_turn_rows_of_no_group": in_turn(
        WRONG_NUMBERS,
        "saved_desc",
        "",
        ("args.saved_desc, [row + kept, rows - kept, 2", "args.saved_desc, [row + rows, 0, 2"),
    ),
    "experts_saved_in_turn_columns_of_d": in_turn(
        K.GLOBAL_RACE, "saved_desc", "tma.async_store(", ("rows - kept, 2 * column]", "rows - kept, column]")
    ),
    "experts_gradients_of_the_next_group": dgated(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "rows")
    ),
    "experts_gradient_of_up_a_row_further": dgated(
        WRONG_NUMBERS, "d_desc", "", (STORED, STORED.replace("rows - kept", "rows - kept + block"))
    ),
    "experts_gradients_both_as_one": dgated(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", (STORED, STORED.replace("[block, ", "[0, "))
    ),
    "experts_gradient_of_a_gate_of_other_rows": dgated(
        WRONG_NUMBERS, "d_desc", "", (LOADED, LOADED.replace("[block, row, ", "[block, row + 1, "))
    ),
    "experts_gradient_by_the_gate_twice": dgated(
        WRONG_NUMBERS, "d_desc", "", (LOADED, LOADED.replace("[block, row, ", "[0, row, "))
    ),
    "experts_gradient_without_factors": dgated(
        WRONG_NUMBERS, "d_desc", "", ("    tile *= row_scale[:, None]\n", "")
    ),
    "experts_gradient_by_factors_of_the_next_row": dgated(
        WRONG_NUMBERS, "d_desc", "", ("args.row_scale_ptr + rows", "args.row_scale_ptr + rows + 1")
    ),
    "experts_gradients_without_a_fence": dgated(
        K.MISSING_FENCE,
        "d_smem_0|d_smem_1",
        "tma.async_store(",
        ("    fence_async_shared()\n    rows:", "    rows:"),
        severity=Severity.LINT,
    ),
    "experts_batch_gradients_of_the_next_batch": batched(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "rows")
    ),
    "experts_batch_c_of_the_sums_columns": batched(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("args.c_desc, [row, 2 * (column", "args.c_desc, [row, (column"),
    ),
}
"""Faults by name."""
