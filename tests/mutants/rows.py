"""Faults in kernels that store rows of D by an index: the index of a row, and the rows that are stored."""

from __future__ import annotations

from gluonsim import Kind
from mutants.committed import WRONG_NUMBERS
from mutants.mutant import of

K = Kind

scattered, swapped, weighted = (of(f"h100_bf16_scatter{name}") for name in ("", "_rows16", "_weighted"))
ROWS = "rows = row + gl.arange(0, d_smem.shape[0]"
INDEX = "rows_of_d = gl.load(args.d_rows_ptr + rows, mask=rows < end, other=-1)"
STORE = "gl.store("
OWN_BUFFER = "args.d_smem[consumer]"
MUTANTS = {
    "scatter_index_of_the_first_rows": scattered(
        K.GLOBAL_RACE, "d_ptr", STORE, (ROWS, ROWS.replace("row + ", ""))
    ),
    "scatter_index_of_the_next_row": scattered(
        WRONG_NUMBERS, "d_ptr", "", (INDEX, INDEX.replace("+ rows,", "+ (rows + 1) % args.m,"))
    ),
    "scatter_without_the_index": scattered(
        WRONG_NUMBERS, "d_ptr", "", (INDEX, "rows_of_d = gl.where(rows < end, rows, -1)")
    ),
    "scatter_rows_of_the_next_group_too": scattered(
        WRONG_NUMBERS, "d_ptr", "", (INDEX, INDEX.replace("rows < end", "rows < args.m"))
    ),
    "scatter_through_one_buffer": scattered(
        K.WRITE_AFTER_READ, "d_smem_0", "d_smem.store(", (OWN_BUFFER, OWN_BUFFER.replace("consumer", "0"))
    ),
    "scatter_swap_the_last_unit_is_left_out": swapped(
        WRONG_NUMBERS, "d_ptr", "", ("gl.cdiv(args.n, D_UNIT) * D_UNIT", "args.n // D_UNIT * D_UNIT")
    ),
    "scatter_swap_rows_without_their_padding": swapped(
        WRONG_NUMBERS, "d_ptr", "", ("* args.d_stride", "* args.n")
    ),
    "scatter_weights_of_rows_of_d": weighted(
        WRONG_NUMBERS,
        "d_ptr",
        "",
        (
            "args.row_scale_ptr + rows,",
            "args.row_scale_ptr + gl.load(args.d_rows_ptr + rows, rows < end, 0),",
        ),
    ),
}
