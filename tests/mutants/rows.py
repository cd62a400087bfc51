"""Faults in kernels of rows by an index: the index of a row, the rows that are stored, and copies of rows."""

from __future__ import annotations

from gluonsim import Kind
from mutants.committed import WRONG_NUMBERS
from mutants.mutant import of

K = Kind

scattered, swapped, weighted = (of(f"h100_bf16_scatter{name}") for name in ("", "_rows16", "_weighted"))
gathered, gathered_few, gated = (of(f"h100_bf16_gather{name}") for name in ("", "_rows16", "_gated"))
ROWS = "rows = row + gl.arange(0, d_smem.shape[0]"
INDEX = "rows_of_d = gl.load(args.d_rows_ptr + rows, mask=rows < end, other=-1)"
STORE = "gl.store("
FENCE = "    fence_async_shared()\n    b_tile = args.b_smem.index(stage)\n"
INDEX_OF_A = "rows_of_a = gl.load(args.a_rows_ptr + rows, mask=rows < end, other=-1)"
ARRIVAL = "    async_copy.mbarrier_arrive(ready, increment_count=False)\n"
OWN_BUFFER = "args.d_smem[consumer]"
MUTANTS = {
    "gather_without_a_fence": gathered(
        K.MISSING_FENCE, "a_smem_0", "return warpgroup_mma(", (FENCE, FENCE.partition("\n")[2])
    ),
    "gather_few_without_a_fence": gathered_few(
        K.MISSING_FENCE, "a_smem", "return warpgroup_mma(", (FENCE, FENCE.partition("\n")[2])
    ),
    "gather_arrives_for_one_thread": gathered(
        K.READ_AFTER_WRITE,
        "a_smem_0",
        "return warpgroup_mma(",
        (ARRIVAL, "    mbarrier.arrive(ready, count=128)\n"),
    ),
    "gather_never_arrives": gathered(
        K.DEADLOCK, "load_ready", "mbarrier.wait(args.load_ready", (ARRIVAL, "")
    ),
    "gather_arrives_before_the_copies": gathered_few(
        K.READ_AFTER_WRITE,
        "a_smem",
        "return warpgroup_mma(",
        (ARRIVAL, ""),
        ("    copy_rows(args,", f"{ARRIVAL}    copy_rows(args,"),
    ),
    "gather_into_a_stage_that_is_read": gathered(
        K.WRITE_AFTER_READ,
        "a_smem_0",
        "async_copy.async_load(",
        ("count=CONSUMERS)", "count=1)"),
    ),
    "gather_index_of_the_next_row": gathered(
        WRONG_NUMBERS, "d_desc", "", (INDEX_OF_A, INDEX_OF_A.replace("+ rows,", "+ (rows + 1) % args.m,"))
    ),
    "gather_without_the_index": gathered(
        WRONG_NUMBERS, "d_desc", "", (INDEX_OF_A, "rows_of_a = gl.where(rows < end, rows, -1)")
    ),
    "gather_of_a_gate_the_same_step": gated(
        WRONG_NUMBERS, "d_desc", "", ("ring.stage), offsets[i], k)", "ring.stage), offsets[i], 0 * k)")
    ),
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
