"""Faults in kernels with two matrices side by side in C and D: boxes, columns in turn, derivatives."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.committed import STORE_FENCE, WRONG_NUMBERS
from mutants.mutant import NOTHING, of

K = Kind

in_turn, blocks, ring = (
    of("h100_bf16_dgated_interleaved"),
    of("h100_bf16_dgated"),
    of("h100_bf16_dgated_geglu"),
)
C_WAIT = "    mbarrier.wait(buffers.c_ready, subtile & 1)\n"
PARTED = "    gate, up = even_and_odd(c)\n"
LOAD_OF_UP = "        c_tile = as_box(args.c_desc, c_smem.index(block))\n"
STORED = "        tma.async_store(args.d_desc, [block, row, column], d_tile)\n"
SLOT = "d_smem.index(len(tiles) * slot + block)"
saved, saved_in_turn = of("h100_bf16_gated_saved"), of("h100_bf16_saved_interleaved")
SECOND_OF_SAVED = "saved_smem.index(2 * slot + 1)"
SAVED_BY_TMA = "    tma.async_store(args.saved_desc, [1, row, column], saved_tile)\n"
MUTANTS = {
    "saved_up_is_not_stored": saved(
        K.WRITE_AFTER_READ, "d_smem_0|d_smem_1", "d_smem.index(slot).store(", (SAVED_BY_TMA, "")
    ),
    "saved_up_over_the_gate": saved(
        K.GLOBAL_RACE,
        "saved_desc",
        "tma.async_store(",
        (SAVED_BY_TMA, SAVED_BY_TMA.replace("[1, row", "[0, row")),
    ),
    "saved_up_from_the_buffer_of_the_gate": saved(
        K.UNINITIALISED_READ,
        "saved_smem_0|saved_smem_1",
        "tma.async_store(",
        (f"    {SECOND_OF_SAVED}.store(up)\n", "    saved_smem.index(2 * slot).store(up)\n"),
    ),
    "saved_store_waits_for_d_alone": saved(
        K.WRITE_AFTER_READ,
        "saved_smem_0|saved_smem_1|d_smem_0|d_smem_1",
        ".store(",
        ("tma.store_wait(3 * (EPILOGUE_BUFFERS - 1))", "tma.store_wait(3 * EPILOGUE_BUFFERS - 1)"),
    ),
    "saved_without_a_fence": saved(
        K.MISSING_FENCE,
        "saved_smem_0|saved_smem_1",
        "tma.async_store(",
        ("    fence_async_shared()\n    saved_tile", "    saved_tile"),
        severity=Severity.LINT,
    ),
    "saved_last_stores_left_running": saved(
        K.WORK_IN_FLIGHT,
        "d_smem_0|d_smem_1|saved_smem_0|saved_smem_1",
        "tma.async_store(",
        ("    tma.store_wait(0)\n", "    tma.store_wait(1)\n"),
    ),
    "saved_in_turn_swapped": saved_in_turn(
        WRONG_NUMBERS, "saved_desc", "", (".store(in_turn(gate, up))", ".store(in_turn(up, gate))")
    ),
    "saved_in_turn_columns_of_d": saved_in_turn(
        K.GLOBAL_RACE,
        "saved_desc",
        "tma.async_store(",
        ("args.saved_desc, [row, 2 * column]", "args.saved_desc, [row, column]"),
    ),
    "saved_in_turn_after_the_store": saved_in_turn(
        K.UNINITIALISED_READ,
        "saved_smem_0|saved_smem_1",
        "tma.async_store(",
        ("    saved_smem.index(slot).store(in_turn(gate, up))\n", f"    {NOTHING}\n"),
    ),
    "saved_in_turn_one_buffer_for_all": saved_in_turn(
        K.WRITE_AFTER_READ,
        "saved_smem_0|saved_smem_1",
        "saved_smem.index(",
        ("saved_smem.index(slot).store(", "saved_smem.index(0).store("),
        ("[row, 2 * column], saved_smem.index(slot)", "[row, 2 * column], saved_smem.index(0)"),
    ),
    "dgated_in_turn_swapped_names": in_turn(
        WRONG_NUMBERS, "d_desc", "", (PARTED, PARTED.replace("gate, up", "up, gate"))
    ),
    "dgated_in_turn_swapped_gradients": in_turn(
        WRONG_NUMBERS, "d_desc", "", ("return in_turn(tile_2, tile)", "return in_turn(tile, tile_2)")
    ),
    "dgated_in_turn_columns_of_the_sums_in_c": in_turn(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("[row, 2 * (column + subtile * SUBTILE_N)]", "[row, column + subtile * SUBTILE_N]"),
    ),
    "dgated_in_turn_columns_of_the_sums_in_d": in_turn(
        K.GLOBAL_RACE,
        "d_desc",
        "tma.async_store(",
        ("args.d_desc, [row, 2 * column]", "args.d_desc, [row, column]"),
    ),
    "dgated_in_turn_one_gradient_twice": in_turn(
        WRONG_NUMBERS, "d_desc", "", ("return in_turn(tile_2, tile)", "return in_turn(tile_2, tile_2)")
    ),
    "dgated_in_turn_c_before_it_arrives": in_turn(
        K.READ_AFTER_WRITE, "c_smem_0|c_smem_1", "c = buffers.c_smem.load(", (C_WAIT, f"    {NOTHING}\n")
    ),
    "dgated_in_turn_store_without_a_fence": in_turn(
        K.MISSING_FENCE,
        "d_smem_0|d_smem_1",
        "tma.async_store(",
        (STORE_FENCE, "    tma.async_store("),
        severity=Severity.LINT,
    ),
    "dgated_in_turn_the_function_for_its_derivative": in_turn(
        WRONG_NUMBERS, "d_desc", "", ("tile_3 = silu_grad(gate)", "tile_3 = silu(gate)")
    ),
    "dgated_blocks_bytes_of_one": blocks(
        K.BYTE_COUNT,
        "c_ready_0|c_ready_1",
        "mbarrier.expect(",
        ("2 * args.c_desc.nbytes_per_cta", "args.c_desc.nbytes_per_cta"),
    ),
    "dgated_blocks_up_over_the_gate": blocks(
        K.WRITE_AFTER_WRITE,
        "c_smem_0|c_smem_1",
        "tma.async_load(",
        (LOAD_OF_UP, LOAD_OF_UP.replace("index(block)", "index(0)")),
    ),
    "dgated_blocks_the_gate_twice": blocks(
        WRONG_NUMBERS, "d_desc", "", ("args.c_desc, [block, row", "args.c_desc, [0, row")
    ),
    "dgated_blocks_c_before_it_arrives": blocks(
        K.READ_AFTER_WRITE, "c_smem_0|c_smem_1", "= buffers.c_smem.index(", (C_WAIT, f"    {NOTHING}\n")
    ),
    "dgated_blocks_both_stored_as_one": blocks(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", (STORED, STORED.replace("[block, row", "[0, row"))
    ),
    "dgated_blocks_second_in_the_buffer_of_the_first": blocks(
        K.UNINITIALISED_READ,
        "d_smem_0|d_smem_1",
        "tma.async_store(",
        (f"{SLOT}.store(", "d_smem.index(len(tiles) * slot).store("),
    ),
    "dgated_blocks_one_store_left_running": blocks(
        K.WRITE_AFTER_READ,
        "d_smem_0|d_smem_1",
        ".store(tiles[block]",
        ("    tma.store_wait(0)\n    for block", "    tma.store_wait(1)\n    for block"),
    ),
    "dgated_blocks_swapped_gradients": blocks(
        WRONG_NUMBERS, "d_desc", "", ("    return tile_2, tile\n", "    return tile, tile_2\n")
    ),
    "dgated_ring_stores_of_one_buffer_too_many": ring(
        K.WRITE_AFTER_READ,
        "d_smem",
        ".store(tiles[block]",
        ("tma.store_wait(2 * (EPILOGUE_BUFFERS - 1))", "tma.store_wait(2 * EPILOGUE_BUFFERS)"),
    ),
    "dgated_ring_phase_of_c_kept": ring(
        K.READ_AFTER_WRITE,
        "c_smem",
        "= buffers.c_smem.index(",
        ("subtile // EPILOGUE_BUFFERS & 1)", "0)"),
    ),
}
"""Faults by name."""
