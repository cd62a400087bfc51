"""Faults in kernels of groups that divide K: the rows of K of a step, and the ring of unequal work items."""

from __future__ import annotations

from gluonsim import Kind
from mutants.committed import EXPECT, WRONG_NUMBERS
from mutants.mutant import NOTHING, of

K = Kind

cooperative, in_turn, added, clusters = (
    of(f"h100_bf16_wgrad{ending}") for ending in ("", "_ping_pong", "_accumulated", "_cluster2x1")
)
STORED_ROW = "            tile.row + consumer * CONSUMER_TILE_M,\n"
ROW, AHEAD = "gl.maximum(row, self.start)", "gl.minimum(row - self.start, 0)"
NO_ROWS = "gl.to_tensor(0)"
ACQUIRE = "mbarrier.wait(args.load_empty.index("
MULTIPLY = "return warpgroup_mma("
PASS = "ring = ring.ahead(tiles.steps_before(item))"
MUTANTS = {
    "k_groups_rows_ahead_multiplied": cooperative(
        WRONG_NUMBERS, "d_desc", "", (ROW, "row"), (AHEAD, NO_ROWS)
    ),
    "k_groups_first_step_unclipped": cooperative(WRONG_NUMBERS, "d_desc", "", (AHEAD, NO_ROWS)),
    "k_groups_first_step_clipped_twice": cooperative(
        WRONG_NUMBERS, "d_desc", "", (AHEAD, "2 * gl.minimum(row - self.start, 0)")
    ),
    "k_groups_steps_from_the_start": cooperative(
        WRONG_NUMBERS, "d_desc", "", ("row = self.end + k_step", "row = self.start + k_step")
    ),
    "k_groups_start_of_the_own_end": cooperative(
        WRONG_NUMBERS, "d_desc", "", ("gl.maximum(group - 1, 0)", "group")
    ),
    "k_groups_whole_steps_only": cooperative(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("gl.cdiv(piece.end - piece.start, PROGRAM_TILE_K)", "(piece.end - piece.start) // PROGRAM_TILE_K"),
    ),
    "k_groups_step_without_rows_left_in_the_ring": cooperative(
        K.DEADLOCK,
        "load_empty",
        ACQUIRE,
        (
            "k_steps = tiles.steps(piece).count()",
            "k_steps = gl.cdiv(piece.end - piece.start, PROGRAM_TILE_K)",
        ),
    ),
    "k_groups_column_of_a_as_row_of_d": cooperative(
        K.UNALIGNED_TRANSFER, "a_desc", "tma.async_load(", (" - tile.group * args.m", "")
    ),
    "k_groups_stored_in_the_first_d": cooperative(
        K.GLOBAL_RACE,
        "d_desc",
        "tma.async_store(",
        (STORED_ROW, STORED_ROW.replace("row", "row - tile.group * args.m")),
    ),
    "k_groups_bytes_of_one_consumer": cooperative(
        K.BYTE_COUNT,
        "load_ready",
        EXPECT,
        ("CONSUMERS * args.a_desc.nbytes_per_cta", "args.a_desc.nbytes_per_cta"),
    ),
    "k_groups_other_item_not_passed": in_turn(K.READ_AFTER_WRITE, "a_smem", MULTIPLY, (PASS, NOTHING)),
    "k_groups_own_item_passed": in_turn(
        K.DEADLOCK, "load_empty", ACQUIRE, ("before = item - self.stride()", "before = item")
    ),
    "k_groups_all_items_alike": in_turn(
        K.DEADLOCK, "load_empty", ACQUIRE, (PASS, "ring = ring.ahead(tiles.steps(piece).count())")
    ),
    "k_groups_c_of_the_first_group": added(
        WRONG_NUMBERS, "d_desc", "", ("place = [group, row", "place = [0, row")
    ),
    "k_groups_c_of_the_next_group": added(
        WRONG_NUMBERS, "d_desc", "", ("group = (end - 1) // args.m", "group = end // args.m")
    ),
    "k_groups_c_from_a_row_further": added(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("row - group * args.m, column + s", "row - group * args.m + 1, column + s"),
    ),
    "k_groups_c_of_the_first_columns": added(
        WRONG_NUMBERS, "d_desc", "", ("args.m, column + subtile * SUBTILE_N]", "args.m, column]")
    ),
    "k_groups_c_not_awaited": added(
        K.READ_AFTER_WRITE,
        "c_smem",
        "c = buffers.c_smem.load(",
        ("    mbarrier.wait(buffers.c_ready, subtile & 1)\n", f"    {NOTHING}\n"),
    ),
    "k_groups_cluster_rows_of_one_cta_stored": clusters(
        WRONG_NUMBERS, "d_desc", "", ("gl.minimum(end - row, rows)", "gl.minimum(end - row, rows // 2)")
    ),
    "k_groups_cluster_first_step_unclipped": clusters(WRONG_NUMBERS, "d_desc", "", (AHEAD, NO_ROWS)),
    "k_groups_cluster_shared_stage_not_awaited": clusters(
        K.WRITE_AFTER_WRITE,
        "b_smem",
        "tma.async_load(",
        ("mbarrier.wait(args.b_multicast_empty.index(ring.stage), ring.phase)", NOTHING),
    ),
}
