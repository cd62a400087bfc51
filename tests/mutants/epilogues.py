"""Faults in committed modules that the other files leave out: few rows, C of splits, C and D by sub-tiles."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.committed import WRONG_NUMBERS
from mutants.committed import changed_within as edited
from mutants.mutant import NOTHING, of

K = Kind
GDC_WAIT = "    gdc_wait()\n"
FIRST_LOADS = """    loads = Loads(tile, gl.to_tensor(0), args.k_steps)
    for stage in range(STAGES):
        loads = load_next(args, loads, stage)
"""
LOOP_WAIT = "        accumulator = warpgroup_mma_wait(1, deps=[accumulator])\n"
LAST_WAIT = "    return warpgroup_mma_wait(0, deps=[accumulator])\n"
REFILL = "        loads = load_next(args, loads, stage_in_flight)\n"
D_STORE = "    d_smem.store(tile.to(args.d_desc.dtype))\n"
FENCE, TMA_STORE = "    fence_async_shared()\n", "tma.async_store(args.d_desc"
LOAD_A, LOAD_B = "tma.async_load(args.a_desc", "tma.async_load(args.b_desc"
EXPECT = "mbarrier.expect(ready, args.a_desc.nbytes_per_cta + args.b_desc.nbytes_per_cta)"

rows = of("h100_bf16_rows8_dependent")
ROWS = {
    "rows_wait_behind_the_first_loads": rows(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (GDC_WAIT + FIRST_LOADS, FIRST_LOADS + GDC_WAIT)
    ),
    "rows_wait_behind_the_product": rows(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (GDC_WAIT, ""),
        ("    tma.store_wait(0)\n\n", f"{GDC_WAIT}    tma.store_wait(0)\n\n"),
    ),
    "rows_wait_of_the_first_program": rows(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (GDC_WAIT, f"    if gl.program_id(0) == 0:\n    {GDC_WAIT}")
    ),
    "rows_refilled_before_the_mma_retired": rows(
        K.WRITE_AFTER_READ, "a_smem|b_smem", "tma.async_load(", (LOOP_WAIT + REFILL, REFILL + LOOP_WAIT)
    ),
    "rows_sums_stored_in_flight": rows(
        K.ACCUMULATOR_IN_FLIGHT, "accumulator", "store(args, d_smem", edited(LAST_WAIT, "(0,", "(1,")
    ),
    "rows_stored_without_a_fence": rows(
        K.MISSING_FENCE, "d_smem", TMA_STORE, (D_STORE + FENCE, D_STORE), severity=Severity.LINT
    ),
    "rows_bytes_of_b_not_expected": rows(
        K.BYTE_COUNT, "load_ready", "mbarrier.expect(", edited(EXPECT, " + args.b_desc.nbytes_per_cta", "")
    ),
    "rows_b_of_the_tile_before": rows(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (f"{LOAD_B}, [tile.column, k]", f"{LOAD_B}, [tile.column - PROGRAM_TILE_N, k]"),
    ),
}

quarters = of("h100_bf16_split4_residual")
IF_LAST = "    if is_last(args, tiles.tile, tiles.split, accumulator):\n"
LOAD_C = "        load_c(args, buffers, tile.row, tile.column)\n"
SUM = "        accumulator = sum_of_splits(args, tiles.tile)\n"
C_READ, C_LOAD = "c = buffers.c_smem.load(", "tma.async_load(args.c_desc"
C_WAIT = "mbarrier.wait(buffers.c_ready, 0)"
PIECE = "gl.load(addresses + split * SUMS)"
STORES, LOADS = "gl.store(sum_addresses(", "sums += gl.load(addresses"
QUARTERS = {
    "quarters_c_loaded_by_every_split": quarters(
        K.WORK_IN_FLIGHT, "c_smem", C_LOAD, (IF_LAST + LOAD_C, LOAD_C[4:] + IF_LAST)
    ),
    "quarters_c_not_awaited": quarters(K.READ_AFTER_WRITE, "c_smem", C_READ, (C_WAIT, NOTHING)),
    "quarters_c_awaited_in_the_phase_before": quarters(
        K.READ_AFTER_WRITE, "c_smem", C_READ, edited(C_WAIT, "0", "1")
    ),
    "quarters_c_loaded_behind_its_use": quarters(
        K.DEADLOCK,
        "c_ready",
        C_WAIT,
        (LOAD_C, ""),
        ("        tma.store_wait(0)\n\n", f"        tma.store_wait(0)\n{LOAD_C}\n"),
    ),
    "quarters_last_store_left_running": quarters(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, ("        tma.store_wait(0)\n\n", "\n")
    ),
    "quarters_pieces_of_half_the_size": quarters(
        WRONG_NUMBERS, "d_desc", "", edited(PIECE, "SUMS", "(SUMS // 2)")
    ),
    "quarters_first_piece_four_times": quarters(
        WRONG_NUMBERS, "d_desc", "", edited(PIECE, "split", "0 * split")
    ),
    "quarters_added_up_by_the_program_of_the_last_piece": quarters(
        K.GLOBAL_RACE,
        "partials_ptr",
        f"{STORES}|{LOADS}",
        ("return arrived == SPLITS - 1", "return (arrived >= 0) & (split == SPLITS - 1)"),
    ),
}

subtiles = of("h100_fp16_misaligned_residual")
LAST_ONES = """EPILOGUE_BUFFERS, SUBTILES):
        tile = epilogue(subtiles[i], i, buffers)
        d_subtile = buffers.d_smem.index(i % EPILOGUE_BUFFERS)
"""
C_PHASE = "mbarrier.wait(buffers.c_ready.index(subtile % EPILOGUE_BUFFERS), subtile // EPILOGUE_BUFFERS & 1)"
STORE_WAIT = "    tma.store_wait(EPILOGUE_BUFFERS - 1)\n"
USE_C = "        tile = epilogue(subtiles[i], i, buffers)\n"
REFILL_C = "        load_c(args, buffers, row, column, i + EPILOGUE_BUFFERS)\n"
SUBTILES = {
    "subtile_in_the_buffer_of_the_first": subtiles(
        K.WRITE_AFTER_READ, "d_smem", "d_smem.store(", edited(LAST_ONES, "index(i %", "index(0 * i %")
    ),
    "subtile_stored_before_its_buffer_is_free": subtiles(
        K.WRITE_AFTER_READ, "d_smem", "d_smem.store(", (STORE_WAIT + D_STORE, D_STORE + STORE_WAIT)
    ),
    "subtile_stored_without_a_fence": subtiles(
        K.MISSING_FENCE, "d_smem", TMA_STORE, (D_STORE + FENCE, D_STORE), severity=Severity.LINT
    ),
    "subtile_of_c_in_the_first_phase": subtiles(
        K.READ_AFTER_WRITE,
        "c_smem",
        "c = buffers.c_smem.index(",
        edited(C_PHASE, "subtile // EPILOGUE_BUFFERS & 1", "0"),
    ),
    "subtile_of_c_loaded_over_the_one_in_use": subtiles(
        K.WRITE_AFTER_WRITE,
        "c_smem",
        C_LOAD,
        (USE_C + REFILL_C, REFILL_C + USE_C),
    ),
    "subtile_of_c_of_the_first_columns": subtiles(
        WRONG_NUMBERS, "d_desc", "", ("[row, column + subtile * SUBTILE_N]", "[row, column]")
    ),
}

MUTANTS = ROWS | QUARTERS | SUBTILES
