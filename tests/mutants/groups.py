"""Faults in kernels of groups of rows: the group of a tile, its place in B, and the rows that are stored."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.committed import EXPECT, WRONG_NUMBERS
from mutants.mutant import NOTHING, of

K = Kind

rows, swapped, gated, batches, masked = (
    of(f"h100_bf16_{name}") for name in ("grouped", "grouped_rows64", "grouped_gated", "batched", "masked")
)
biased, gated_bias, weighted = (
    of(f"h100_bf16_{name}") for name in ("grouped_bias", "grouped_gptoss", "masked_weighted")
)
clusters, along_n, along_m, tiled = (
    of(f"h100_bf16_batched_{name}") for name in ("cluster2x1", "nn", "tt", "tiled")
)
one_a, one_b = (of(f"h100_bf16_broadcast_{name}") for name in ("a", "b"))
ragged_clusters = of("h100_bf16_grouped_cluster2x1")
END = "    end = gl.load(args.offs_ptr + number, mask=is_group, other=0)\n"
CLAMPED_END = "    end = gl.minimum(gl.maximum(end, 0), args.m)\n"
START = "args.offs_ptr + number - 1, mask=is_group & (number > 0), other=0"
KEPT = "gl.maximum(gl.minimum(end - row, rows), 0)"
BOX = "[row + kept, rows - kept, column]"
LOAD_OF_B = "[tile.group * args.n + tile.column, k]"
AWAIT = "        accumulator = warpgroup_mma_wait(0, deps=[accumulator])\n"
RELEASE = "        mbarrier.arrive(args.load_empty.index(ring.stage))\n"
MUTANTS = {
    "groups_b_of_the_first_group": rows(WRONG_NUMBERS, "d_desc", "", (LOAD_OF_B, "[tile.column, k]")),
    "groups_b_of_the_next_group": rows(
        WRONG_NUMBERS, "d_desc", "", (LOAD_OF_B, "[(tile.group + 1) * args.n + tile.column, k]")
    ),
    "groups_b_by_whole_tiles": rows(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (LOAD_OF_B, "[tile.group * args.tiles_n * PROGRAM_TILE_N + tile.column, k]"),
    ),
    "groups_all_rows_of_a_tile_stored": rows(K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "rows")),
    "groups_a_row_too_many_stored": rows(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "gl.maximum(gl.minimum(end - row + 1, rows), 0)")
    ),
    "groups_a_row_too_few_stored": rows(
        WRONG_NUMBERS, "d_desc", "", (KEPT, "gl.maximum(gl.minimum(end - row - 1, rows), 0)")
    ),
    "groups_stored_a_row_further": rows(
        WRONG_NUMBERS, "d_desc", "", (BOX, "[row + kept + 1, rows - kept, column]")
    ),
    "groups_start_of_the_own_end": rows(WRONG_NUMBERS, "d_desc", "", (START, START.replace(" - 1", ""))),
    "groups_tiles_before_counted_too": rows(
        K.UNDEFINED_VALUE, "row", "tma.async_load(", ("self.groups.tiles <= item", "self.groups.tiles < item")
    ),
    "groups_whole_tiles_only": rows(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("(end - start + PROGRAM_TILE_M - 1) // PROGRAM_TILE_M", "(end - start) // PROGRAM_TILE_M"),
    ),
    "groups_rows_from_the_first_group": rows(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", ("row = start + (first_row", "row = (first_row")
    ),
    "groups_released_before_the_mma": rows(
        K.WRITE_AFTER_READ,
        "a_smem_0",
        "tma.async_load(",
        (AWAIT + RELEASE, RELEASE + AWAIT),
    ),
    "groups_bytes_of_one_consumer": rows(
        K.BYTE_COUNT,
        "load_ready",
        EXPECT,
        ("CONSUMERS * args.a_desc.nbytes_per_cta", "args.a_desc.nbytes_per_cta"),
    ),
    "groups_swap_b_of_the_first_group": swapped(WRONG_NUMBERS, "d_desc", "", (LOAD_OF_B, "[tile.column, k]")),
    "groups_swap_all_rows_stored": swapped(K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "rows")),
    "groups_swap_store_without_a_fence": swapped(
        K.MISSING_FENCE,
        "d_smem",
        "tma.async_store(",
        ("    fence_async_shared()\n", f"    {NOTHING}\n"),
        severity=Severity.LINT,
    ),
    "groups_gate_b_of_half_the_rows": gated(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("[tile.group * 2 * args.n + tile.column, k]", "[tile.group * args.n + tile.column, k]"),
    ),
    "groups_batch_b_of_the_first": batches(WRONG_NUMBERS, "d_desc", "", (LOAD_OF_B, "[tile.column, k]")),
    "groups_batch_rows_of_whole_tiles": batches(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("start = group * args.m", "start = group * args.tiles_m * PROGRAM_TILE_M"),
    ),
    "groups_batch_all_rows_stored": batches(K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "rows")),
    "groups_cluster_all_rows_stored": clusters(K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "rows")),
    "groups_cluster_rows_of_one_cta_stored": clusters(
        WRONG_NUMBERS, "d_desc", "", (KEPT, KEPT.replace(" rows", " rows // 2"))
    ),
    "groups_ragged_cluster_all_rows_stored": ragged_clusters(
        K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "rows")
    ),
    "groups_ragged_cluster_rows_of_one_cta_stored": ragged_clusters(
        WRONG_NUMBERS, "d_desc", "", (KEPT, KEPT.replace(" rows", " rows // 2"))
    ),
    "groups_b_along_n_of_the_first": along_n(
        WRONG_NUMBERS, "d_desc", "", ("[tile.group, k, tile.column]", "[0, k, tile.column]")
    ),
    "groups_a_along_m_from_the_first_row_of_all": along_m(
        K.UNALIGNED_TRANSFER, "a_desc", "tma.async_load(", ("tile.row - tile.group * args.m", "tile.row")
    ),
    "groups_one_a_of_each_group": one_a(
        WRONG_NUMBERS, "d_desc", "", ("[0, tile.row", "[tile.group, tile.row")
    ),
    "groups_one_a_by_rows_of_d": one_a(WRONG_NUMBERS, "d_desc", "", (" - tile.group * args.m, k]", ", k]")),
    "groups_one_a_with_one_b": one_a(
        WRONG_NUMBERS, "d_desc", "", ("[tile.group, k, tile.column]", "[0, k, tile.column]")
    ),
    "groups_one_b_of_each_group": one_b(
        WRONG_NUMBERS, "d_desc", "", ("[0, tile.column, k]", "[tile.group, tile.column, k]")
    ),
    "groups_one_b_with_one_a": one_b(WRONG_NUMBERS, "d_desc", "", ("[tile.group, tile.row", "[0, tile.row")),
    "groups_tiled_batch_of_whole_tiles": tiled(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("start = group * args.m", "start = group * args.tiles_m * PROGRAM_TILE_M"),
    ),
    "groups_tiled_all_rows_stored": tiled(K.GLOBAL_RACE, "d_desc", "tma.async_store(", (KEPT, "rows")),
    "groups_masked_rows_of_the_group_before": masked(
        WRONG_NUMBERS, "d_desc", "", ("start = number * args.m", "start = (number - 1) * args.m")
    ),
    "groups_masked_rows_unlimited": masked(
        WRONG_NUMBERS, "d_desc", "", ("gl.minimum(gl.maximum(rows, 0), args.m)", "gl.maximum(rows, 0) + 1")
    ),
    "groups_bias_of_the_first_group": biased(
        WRONG_NUMBERS, "d_desc", "", ("args.column_bias_ptr + group * args.n", "args.column_bias_ptr")
    ),
    "groups_bias_of_the_first_columns": biased(
        WRONG_NUMBERS, "d_desc", "", ("columns = column + gl.arange", "columns = gl.arange")
    ),
    "groups_factors_of_the_first_rows": biased(
        WRONG_NUMBERS, "d_desc", "", ("rows = row + gl.arange", "rows = gl.arange")
    ),
    "groups_factors_of_rows_of_the_group_alone": weighted(
        WRONG_NUMBERS, "d_desc", "", ("rows = row + gl.arange", "rows = row % args.m + gl.arange")
    ),
    "groups_gate_biases_exchanged": gated_bias(
        WRONG_NUMBERS, "d_desc", "", ("2 * (group * args.n + columns) + 1", "2 * (group * args.n + columns)")
    ),
}
