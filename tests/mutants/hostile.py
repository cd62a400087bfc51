"""Bounds left out in kernels that obey tensors: numbers of rows in memory of the GPU may be any.

Only a launch whose tensors hold such numbers shows these faults.
"""

from __future__ import annotations

from functools import partial

from gluonsim import Kind
from mutants.committed import WRONG_NUMBERS
from mutants.mutant import of

K = Kind

OUTSIDE = "out-of-bounds"
rows, swapped, masked, depths, gathered, scattered = (
    partial(of(f"h100_bf16_{name}"), hostile=True)
    for name in ("grouped", "grouped_rows64", "masked", "wgrad", "gather", "scatter")
)
END = "    end = gl.minimum(gl.maximum(end, 0), args.m)\n"
START = "    start = gl.minimum(gl.maximum(start, 0), args.m)\n"
BEYOND_END, BELOW_START = "    end = gl.maximum(end, 0)\n", "    start = gl.minimum(start, args.m)\n"
ROWS = "gl.minimum(gl.maximum(rows, 0), args.m)"
FALLS = "gl.where(is_group & (end > start), (end - start + PROGRAM_TILE_M - 1) // PROGRAM_TILE_M, 0)"
LOAD = "tma.async_load(args.a_desc"
DEPTH_START = "start = gl.minimum(gl.maximum(start, 0), self.args.k)"
DEPTH_END = "end = gl.minimum(gl.load(self.args.offs_ptr + group), self.args.k)"
MUTANTS = {
    "hostile_end_beyond_m": rows(WRONG_NUMBERS, "d_desc", "", (END, BEYOND_END)),
    "hostile_start_below_0": rows(K.UNDEFINED_VALUE, "row", LOAD, (START, BELOW_START)),
    "hostile_ends_that_fall": rows(
        K.UNDEFINED_VALUE, "row", LOAD, (FALLS, "(end - start + PROGRAM_TILE_M - 1) // PROGRAM_TILE_M")
    ),
    "hostile_swap_end_beyond_m": swapped(WRONG_NUMBERS, "d_desc", "", (END, BEYOND_END)),
    "hostile_rows_above_m": masked(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", (ROWS, "gl.maximum(rows, 0)")
    ),
    "hostile_depth_below_0": depths(
        WRONG_NUMBERS, "d_desc", "", (DEPTH_START, "start = gl.minimum(start, self.args.k)")
    ),
}
REFUSED = {
    "hostile_depth_beyond_k": depths(
        OUTSIDE, "a_desc", "tma.async_load(", (DEPTH_END, "end = gl.load(self.args.offs_ptr + group)")
    ),
    "hostile_index_beyond_a": gathered(
        OUTSIDE,
        "a_ptr",
        "async_copy.async_load(",
        ("(rows_of_a >= 0) & (rows_of_a < args.rows_of_a)", "rows_of_a >= 0"),
    ),
    "hostile_index_beyond_d": scattered(
        OUTSIDE, "d_ptr", "gl.store(", ("(rows_of_d >= 0) & (rows_of_d < args.rows_of_d)", "rows_of_d >= 0")
    ),
}
"""Accesses outside of the memory of a tensor: the simulation ends there, with an error."""
