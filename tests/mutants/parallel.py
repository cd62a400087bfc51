"""Faults in kernels whose parts of K a second one adds up: what one leaves, what the other reads."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.kinds import WRONG_NUMBERS
from mutants.mutant import NOTHING, of

K = Kind

tiled, roles = of("h100_bf16_parallel"), of("h100_bf16_parallel_roles")
WAIT = "    gdc_wait()\n"
LOOP = "    for behind in gl.static_range(0, SPLITS, SPLITS_SIDE_BY_SIDE):\n"
MASK = ", mask=(behind + split < SPLITS)[:, None], other=0"
PLACE = "    place = tiles.tile * SPLITS + tiles.split\n"
FIRST = "first = gl.program_id(0) % PIECES * PIECE_SUMS"
TILE = "tile = gl.program_id(0) // PIECES"
OF_TILE = "partials_ptr + tile.to(gl.int64) * SPLITS * TILE_SUMS"
OF_SPLIT = "addresses + split * TILE_SUMS"
IN_TURN = "    for split in gl.static_range(1, SPLITS):\n"
LEFT, READ, STORED = "gl.store(sum_addresses(", "sums += gl.load(addresses", "gl.store(addresses, d"
FIRST_READ = "sums = gl.load(addresses)"
ORIGIN = "return fragments * FRAGMENT_ROWS, along"
PLACED, LOADED = "tile, steps = tiles.at(item)", "tile, steps = tiles.at(item // SPLITS)"
D = "d_ptr"
MUTANTS = {
    # The second kernel starts early: it must not read before the first one has ended.
    "parallel_nobody_waits": tiled(K.EARLY_ACCESS, "partials_ptr", READ, (WAIT, "")),
    "parallel_waits_behind_the_sums": tiled(
        K.EARLY_ACCESS,
        "partials_ptr",
        READ,
        (WAIT, ""),
        ("    origin = ", f"{WAIT}    origin = "),
    ),
    "parallel_roles_nobody_waits": roles(K.EARLY_ACCESS, "partials_ptr", FIRST_READ, (WAIT, "")),
    # Where sums are left.
    "parallel_left_in_the_place_of_the_tile": tiled(
        K.GLOBAL_RACE, "partials_ptr", LEFT, (PLACE, PLACE.replace(" + tiles.split", ""))
    ),
    "parallel_consumers_leave_in_one_place": roles(
        K.GLOBAL_RACE, "partials_ptr", LEFT, ("place * CONSUMERS + consumer", "place * CONSUMERS")
    ),
    "parallel_consumers_change_places": roles(
        WRONG_NUMBERS, D, "", ("place * CONSUMERS + consumer", "place * CONSUMERS + 1 - consumer")
    ),
    "parallel_sums_in_another_order": tiled(
        WRONG_NUMBERS, D, "", (".permute((0, 3, 2, 4, 1, 5))", ".permute((0, 3, 2, 4, 5, 1))")
    ),
    # Which parts programs take.
    "parallel_roles_producer_in_another_order": roles(WRONG_NUMBERS, D, "", (PLACED, LOADED)),
    # Which of them are read.
    "parallel_last_split_left_out": tiled(
        WRONG_NUMBERS, D, "", (LOOP, LOOP.replace("SPLITS, ", "SPLITS - 1, "))
    ),
    "parallel_first_splits_left_out": tiled(
        WRONG_NUMBERS, D, "", (LOOP, LOOP.replace("(0, ", "(SPLITS_SIDE_BY_SIDE, "))
    ),
    "parallel_roles_last_split_left_out": roles(
        WRONG_NUMBERS, D, "", (IN_TURN, IN_TURN.replace("SPLITS", "SPLITS - 1"))
    ),
    "parallel_roles_first_split_added_again": roles(
        WRONG_NUMBERS, D, "", (IN_TURN, IN_TURN.replace("(1, ", "(0, "))
    ),
    "parallel_splits_of_the_first_tile": tiled(WRONG_NUMBERS, D, "", (OF_TILE, "partials_ptr")),
    "parallel_splits_of_a_consumer_apart": roles(
        WRONG_NUMBERS, D, "", (OF_SPLIT, OF_SPLIT.replace("TILE_SUMS", "SUMS"))
    ),
    "parallel_every_part_is_the_first": tiled(
        WRONG_NUMBERS,
        D,
        "",
        (
            "Steps(self.split * self.args.k_steps, (self.split + 1) * self.args.k_steps)",
            "Steps(0 * self.split, self.args.k_steps)",
        ),
    ),
    # Where they go.
    "parallel_piece_of_another_place": tiled(
        WRONG_NUMBERS, D, "", (ORIGIN, "return fragments * FRAGMENT_ROWS + 16, along")
    ),
    "parallel_piece_turned": tiled(WRONG_NUMBERS, D, "", (ORIGIN, "return along, fragments * FRAGMENT_ROWS")),
    "parallel_pieces_on_top_of_each_other": tiled(
        K.GLOBAL_RACE, D, STORED, (ORIGIN, "return fragments * FRAGMENT_ROWS, along * 0")
    ),
    "parallel_every_program_the_first_piece": tiled(
        K.REDUNDANT_STORE, D, STORED, (FIRST, "first = gl.to_tensor(0)"), severity=Severity.LINT
    ),
    "parallel_every_program_the_first_tile": tiled(
        K.REDUNDANT_STORE, D, STORED, (TILE, "tile = gl.to_tensor(0)"), severity=Severity.LINT
    ),
    "parallel_rows_as_wide_as_d": tiled(
        WRONG_NUMBERS, D, "", ("rows.to(gl.int64) * d_stride", "rows.to(gl.int64) * n")
    ),
    "parallel_bias_of_the_next_column": tiled(
        WRONG_NUMBERS,
        D,
        "",
        ("args.column_bias_ptr + columns, mask=", "args.column_bias_ptr + columns + 1, mask="),
    ),
    "parallel_ctas_of_a_cluster_change_columns": roles(
        WRONG_NUMBERS, D, "", ("block % COLUMN_CTAS", "(block + 1) % COLUMN_CTAS")
    ),
    # The main loop is the others': the barriers of its ring.
    "parallel_roles_empty_not_awaited": roles(
        K.ARRIVAL_OVERFLOW,
        "load_ready",
        "mbarrier.expect(",
        ("mbarrier.wait(args.load_empty.index(ring.stage), ring.phase)", NOTHING),
    ),
}
PAST_THE_END = {
    "parallel_partials_unmasked": tiled("out-of-bounds", "partials_ptr", "", (MASK, "")),
    "parallel_d_past_its_rows": tiled(
        "out-of-bounds", "d_ptr", "", ("mask=(rows < m)[:, None]", "mask=(rows < m + 64)[:, None]")
    ),
}
"""With which a kernel leaves a tensor: the run ends there, and the message names it."""
