"""Faults in kernels with two sums for each element of D: loads of B, parts of sums, columns of D."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.committed import EXPECT, STORE_FENCE, WRONG_NUMBERS, changed_within
from mutants.mutant import NOTHING, of

K = Kind

program, roles, scaled, in_turn, channels, biased, by_columns, added = (
    of("h100_bf16_gated_tiled"),
    of("h100_bf16_gated_ping_pong"),
    of("h100_e4m3_gated_scaled"),
    of("h100_bf16_gated_interleaved"),
    of("h100_e4m3_gated_channels"),
    of("h100_bf16_gptoss_gated"),
    of("h100_bf16_gated_nn"),
    of("h100_bf16_gated_residual"),
)
FIRST_LOAD = "    tma.async_load(args.b_desc, [tile.column, k], ready, b_tile.slice(0, PROGRAM_TILE_N))\n"
SECOND_LOAD = """\
    tma.async_load(
        args.b_desc, [args.n + tile.column, k], ready, b_tile.slice(PROGRAM_TILE_N, PROGRAM_TILE_N)
    )
"""
SUMS = "    gate, up = halves(accumulator)\n"
PARTED = "tile.reshape((tile.shape[0], 2, tile.shape[1] // 2)).permute((0, 2, 1)).split()"
SUMS_IN_TURN = "    gate, up = even_and_odd(accumulator)\n"
PARTED_IN_TURN = "tile.reshape((tile.shape[0], tile.shape[1] // 2, 2)).split()"
SECOND_BLOCK = "        [args.n + column],\n"
BLOCK_0, BLOCK_1 = "column_scale_smem.slice(0, ", "column_scale_smem.slice(PROGRAM_TILE_N, "
SCALE_OF_UP = f"    up_column_scale = buffers.{BLOCK_1}PROGRAM_TILE_N)\n"
BIASES = "    gate_column_bias, up_column_bias = elements_in_turn("
LOAD_OF_BIAS = "    tma.async_load(args.column_bias_desc, [2 * column],"
MUTANTS = {
    "gate_swapped_names": program(WRONG_NUMBERS, "d_desc", "", (SUMS, SUMS.replace("gate, up", "up, gate"))),
    "gate_swapped_loads": program(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (FIRST_LOAD, FIRST_LOAD.replace("slice(0, ", "slice(PROGRAM_TILE_N, ")),
        changed_within(SECOND_LOAD, "slice(PROGRAM_TILE_N, ", "slice(0, "),
    ),
    "gate_up_beside_the_gate": program(
        WRONG_NUMBERS, "d_desc", "", changed_within(SECOND_LOAD, "args.n", "PROGRAM_TILE_N")
    ),
    "gate_roles_up_after_whole_tiles": roles(
        WRONG_NUMBERS, "d_desc", "", changed_within(SECOND_LOAD, "args.n", "args.tiles_n * PROGRAM_TILE_N")
    ),
    "gate_loaded_twice": program(
        WRONG_NUMBERS, "d_desc", "", changed_within(SECOND_LOAD, "args.n + tile.column", "tile.column")
    ),
    "gate_both_loads_into_one_half": program(
        K.WRITE_AFTER_WRITE,
        "b_smem",
        "    tma.async_load(",
        changed_within(SECOND_LOAD, "slice(PROGRAM_TILE_N, ", "slice(0, "),
    ),
    "gate_second_load_missing": program(
        K.BYTE_COUNT, "load_ready", EXPECT, (SECOND_LOAD, f"    {NOTHING}\n")
    ),
    "gate_bytes_of_one_block": program(
        K.BYTE_COUNT, "load_ready", EXPECT, ("2 * args.b_desc.nbytes_per_cta", "args.b_desc.nbytes_per_cta")
    ),
    "gate_neighbours_in_place_of_halves": program(
        WRONG_NUMBERS, "d_desc", "", (PARTED, "tile.reshape((tile.shape[0], tile.shape[1] // 2, 2)).split()")
    ),
    "gate_roles_columns_of_the_product": roles(
        WRONG_NUMBERS, "d_desc", "", ("tile_column * PROGRAM_TILE_N", "tile_column * PRODUCT_TILE_N")
    ),
    "gate_store_without_a_fence": program(
        K.MISSING_FENCE,
        "d_smem",
        "tma.async_store(",
        (STORE_FENCE, "    tma.async_store("),
        severity=Severity.LINT,
    ),
    "gate_roles_swapped_names": roles(
        WRONG_NUMBERS, "d_desc", "", (SUMS, SUMS.replace("gate, up", "up, gate"))
    ),
    "gate_roles_up_beside_the_gate": roles(
        WRONG_NUMBERS, "d_desc", "", changed_within(SECOND_LOAD, "args.n", "PROGRAM_TILE_N")
    ),
    "gate_scaled_wait_for_the_scales_removed": scaled(
        K.READ_AFTER_WRITE,
        "row_scale_smem_0|row_scale_smem_1",
        "buffers.row_scale_smem.load(",
        ("    mbarrier.wait(buffers.vectors_ready, phase)\n", f"    {NOTHING}\n"),
    ),
    "gate_scaled_up_in_the_stage_before": scaled(
        K.READ_AFTER_WRITE,
        "b_smem",
        "return warpgroup_mma(",
        changed_within(
            SECOND_LOAD,
            "b_tile.slice(PROGRAM_TILE_N,",
            "args.b_smem.index((ring.stage + STAGES - 1) % STAGES).slice(PROGRAM_TILE_N,",
        ),
    ),
    "gate_in_turn_swapped_names": in_turn(
        WRONG_NUMBERS, "d_desc", "", (SUMS_IN_TURN, SUMS_IN_TURN.replace("gate, up", "up, gate"))
    ),
    "gate_in_turn_halves_in_place_of_neighbours": in_turn(
        WRONG_NUMBERS, "d_desc", "", (PARTED_IN_TURN, PARTED)
    ),
    "gate_in_turn_columns_of_d": in_turn(
        WRONG_NUMBERS, "d_desc", "", ("[2 * tile.column, k]", "[tile.column, k]")
    ),
    "gate_in_turn_a_column_late": in_turn(
        WRONG_NUMBERS, "d_desc", "", ("[2 * tile.column, k]", "[2 * tile.column + 1, k]")
    ),
    "gate_channels_up_scaled_as_the_gate": channels(
        WRONG_NUMBERS, "d_desc", "", (SCALE_OF_UP, SCALE_OF_UP.replace(BLOCK_1, BLOCK_0))
    ),
    "gate_channels_up_scaled_by_the_neighbour": channels(
        WRONG_NUMBERS, "d_desc", "", (SECOND_BLOCK, "        [column + PROGRAM_TILE_N],\n")
    ),
    "gate_channels_bytes_of_one_block": channels(
        K.BYTE_COUNT,
        "vectors_ready_0|vectors_ready_1",
        "mbarrier.expect(",
        ("2 * args.column_scale_desc.nbytes_per_cta", "args.column_scale_desc.nbytes_per_cta"),
    ),
    "gate_channels_both_blocks_in_one_place": channels(
        K.WRITE_AFTER_WRITE,
        "column_scale_smem_0|column_scale_smem_1",
        "    tma.async_load(",
        (f"        buffers.{BLOCK_1}PROGRAM_TILE_N),\n", f"        buffers.{BLOCK_0}PROGRAM_TILE_N),\n"),
    ),
    "gate_added_c_before_it_arrives": added(
        K.READ_AFTER_WRITE,
        "c_smem_0|c_smem_1",
        "c = buffers.c_smem.load(",
        ("    mbarrier.wait(buffers.c_ready, phase)\n", f"    {NOTHING}\n"),
    ),
    "gate_added_c_to_the_gate_alone": added(
        WRONG_NUMBERS, "d_desc", "", ("    return gate + c\n", "    return gate + c * up\n")
    ),
    "gate_by_columns_up_beside_the_gate": by_columns(
        WRONG_NUMBERS, "d_desc", "", ("[k, args.n + tile.column]", "[k, PROGRAM_TILE_N + tile.column]")
    ),
    "gate_by_columns_both_blocks_in_one_half": by_columns(
        K.WRITE_AFTER_WRITE,
        "b_smem",
        "    tma.async_load(",
        ("b_tile.slice(PROGRAM_TILE_N, PROGRAM_TILE_N, dim=1)", "b_tile.slice(0, PROGRAM_TILE_N, dim=1)"),
    ),
    "gate_by_columns_place_between_units": by_columns(
        K.UNALIGNED_TRANSFER,
        "b_desc",
        "tma.async_load(",
        ("[k, args.n + tile.column]", "[k, args.n + tile.column + 4]"),
    ),
    "gate_biased_swapped_elements": biased(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (BIASES, BIASES.replace("gate_column_bias, up", "up_column_bias, gate")),
    ),
    "gate_biased_columns_of_d": biased(
        WRONG_NUMBERS, "d_desc", "", (LOAD_OF_BIAS, LOAD_OF_BIAS.replace("2 * column", "column"))
    ),
    "gate_biased_place_between_units": biased(
        K.UNALIGNED_TRANSFER,
        "column_bias_desc",
        "tma.async_load(",
        (LOAD_OF_BIAS, LOAD_OF_BIAS.replace("2 * column", "2 * column + 1")),
    ),
    "gate_biased_without_the_limit_from_above": biased(
        WRONG_NUMBERS, "d_desc", "", ("    gate = clamp_max(gate)\n", f"    {NOTHING}\n")
    ),
    "gate_biased_without_the_lower_limit": biased(
        WRONG_NUMBERS, "d_desc", "", ("CLAMP_MIN = gl.constexpr(-7.0)", "CLAMP_MIN = gl.constexpr(-7e6)")
    ),
    "gate_biased_wait_removed": biased(
        K.READ_AFTER_WRITE,
        "column_bias_smem_0|column_bias_smem_1",
        "elements = operand.load(",
        ("    mbarrier.wait(buffers.vectors_ready, phase)\n", f"    {NOTHING}\n"),
    ),
    "gate_in_turn_bytes_of_two_blocks": in_turn(
        K.BYTE_COUNT,
        "load_ready",
        EXPECT,
        ("+ args.b_desc.nbytes_per_cta", "+ 2 * args.b_desc.nbytes_per_cta"),
    ),
}
"""Faults by name."""
