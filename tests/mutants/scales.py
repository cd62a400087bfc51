"""Faults in kernels whose threads scale the sums of blocks: reads of scales, their order and places."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.committed import EMPTY_WAIT, READY_WAIT, RELEASE, WRONG_NUMBERS, changed_within
from mutants.mutant import NOTHING, of

K = Kind

slabs, shared, by_turns, few_rows, columns, parts, in_flight, early = (
    of("h100_e4m3_blockwise"),
    of("h100_e4m3_blockwise_cluster2x1"),
    of("h100_e4m3_blockwise_ping_pong"),
    of("h100_e4m3_blockwise_rows16"),
    of("h100_e4m3_blockwise_wgrad"),
    of("h100_e4m3_blockwise_split4"),
    of("h100_e4m3_blockwise_overlapped"),
    of("h100_e4m3_blockwise_early"),
)
LOAD = "tma.async_load("
FENCE = "            fence_async_shared()\n            load_stage("
REFILL_FENCE = "        fence_async_shared()\n        loads = load_next("
READ = "        scale = row_scales(a_scale_smem.index(ring.stage)) * b_scale\n"
COLUMNS = "        b_scale = column_scales(args.b_scale_smem.index(ring.stage))\n"
MMA_WAIT = "        step = warpgroup_mma_wait(0, deps=[step])\n"
LAST_WAIT = f"{MMA_WAIT}        {RELEASE}\n        lower += "
PROMOTION = "        accumulator += step * scale\n"
NEXT_B = "gl.load(b_scale_ptr + gl.minimum(k_step + 1, k_steps - 1))"
LOWER = "a_scale_smem.index(ring.stage).slice(SLAB_M, SLAB_M, dim=1)"
PLACE = "[k // PROGRAM_TILE_K, tile.row + i * CONSUMER_TILE_M],"
SECOND_BLOCK = "a_scale_smem.index(ring.stage).slice(block, 1)"
OLDER_WAIT = "            older, newer = warpgroup_mma_wait(1, deps=[older, newer])\n"
OLDER_RELEASE = "            mbarrier.arrive(args.load_empty.index(stage_in_flight))\n"
FIRST_OF_RUN = "b_scales.of(first + RUN)"
LAST_OF_RUN = "        older, newer = warpgroup_mma_wait(0, deps=[older, newer])\n"
EARLY_FILL = "fill_b(args, tile, k_step, ring)"
EARLY_FENCE = "                fence_async_shared()\n                fill_b("
BYTES = "\n        + CONSUMERS * args.a_scale_desc.nbytes_per_cta,"
MUTANTS = {
    "scales_no_fence_before_the_loads": slabs(
        K.MISSING_FENCE, "a_scale_smem_0", LOAD, (FENCE, "            load_stage(")
    ),
    "scales_no_fence_before_the_refill": few_rows(
        K.MISSING_FENCE,
        "a_scale_smem",
        f"{LOAD}args.a_scale_desc",
        (REFILL_FENCE, "        loads = load_next("),
        severity=Severity.LINT,
    ),
    "scales_read_before_the_wait": by_turns(
        K.UNINITIALISED_READ,
        "a_scale_smem",
        "scales.permute(",
        (f"        {READY_WAIT}\n{READ}", f"{READ}        {READY_WAIT}\n"),
    ),
    "scales_read_after_the_release": by_turns(
        K.WRITE_AFTER_READ,
        "a_scale_smem",
        LOAD,
        (READ, ""),
        (f"        {RELEASE}\n", f"        {RELEASE}\n{READ}"),
    ),
    "scales_of_columns_read_after_the_release": columns(
        K.WRITE_AFTER_READ,
        "b_scale_smem",
        LOAD,
        (COLUMNS, ""),
        (f"        {RELEASE}\n", f"        {RELEASE}\n{COLUMNS}"),
    ),
    "scales_of_the_other_slab": slabs(WRONG_NUMBERS, "d_desc", "", (LOWER, LOWER.replace("(SLAB_M,", "(0,"))),
    "scales_of_the_rows_before": shared(
        WRONG_NUMBERS, "d_desc", "", (PLACE, PLACE.replace(" + i * CONSUMER_TILE_M", ""))
    ),
    "scales_of_the_block_before": by_turns(
        WRONG_NUMBERS, "d_desc", "", changed_within(NEXT_B, "k_step + 1", "k_step")
    ),
    "scales_of_the_first_columns": few_rows(
        WRONG_NUMBERS, "d_desc", "", ("row = tile.column // SCALE_COLUMNS", "row = 0 * tile.column")
    ),
    "scales_left_out": by_turns(WRONG_NUMBERS, "d_desc", "", (PROMOTION, PROMOTION.replace(" * scale", ""))),
    "scales_promotion_left_out": by_turns(
        WRONG_NUMBERS, "d_desc", "", (PROMOTION, PROMOTION.replace("+=", "="))
    ),
    "scales_sums_that_go_on": columns(WRONG_NUMBERS, "d_desc", "", ("use_acc=False", "use_acc=True")),
    "scales_stage_released_before_the_last_slab": slabs(
        K.WRITE_AFTER_READ,
        "a_smem_0|b_smem",
        LOAD,
        (
            LAST_WAIT,
            f"        {RELEASE}\n{MMA_WAIT}        lower += ",
        ),
    ),
    "scales_promoted_before_the_mmas_retire": by_turns(
        K.ACCUMULATOR_IN_FLIGHT,
        "step",
        "accumulator += step",
        (MMA_WAIT, "        step = warpgroup_mma_wait(1, deps=[step])\n"),
    ),
    "scales_of_the_first_split": parts(
        WRONG_NUMBERS, "d_desc", "", ("scales_from(args, tile, steps.first)", "scales_from(args, tile, 0)")
    ),
    "scales_of_the_first_block": parts(
        WRONG_NUMBERS, "d_desc", "", (SECOND_BLOCK, SECOND_BLOCK.replace("block", "0"))
    ),
    "scales_one_block_left_out": parts(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("accumulator += steps[block]", "accumulator = accumulator * 0 + steps[block]"),
    ),
    "scales_stage_in_flight_released": in_flight(
        K.WRITE_AFTER_READ,
        "a_smem_0|a_smem_1|b_smem",
        LOAD,
        (f"{OLDER_WAIT}{OLDER_RELEASE}", f"{OLDER_RELEASE}{OLDER_WAIT}"),
    ),
    "scales_newer_step_released": in_flight(
        K.DEADLOCK,
        "load_empty",
        "mbarrier.wait(args.load_empty",
        (OLDER_RELEASE, OLDER_RELEASE.replace("stage_in_flight", "ring.stage")),
    ),
    "scales_promoted_in_flight": in_flight(
        K.ACCUMULATOR_IN_FLIGHT,
        "older|newer",
        "accumulator += older",
        (LAST_OF_RUN, LAST_OF_RUN.replace("wait(0", "wait(1")),
    ),
    "scales_of_the_step_before_in_a_run": in_flight(
        WRONG_NUMBERS, "d_desc", "", ("            scale = next_scale\n", "")
    ),
    "scales_of_the_run_before": in_flight(
        WRONG_NUMBERS, "d_desc", "", (FIRST_OF_RUN, FIRST_OF_RUN.replace(" + RUN", ""))
    ),
    "scales_no_fence_before_later_early_loads": early(
        K.MISSING_FENCE, "a_scale_smem", LOAD, (EARLY_FENCE, "                fill_b(")
    ),
    "scales_of_a_loaded_early": early(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD,
        (
            f"        {EARLY_FILL}\n        ring",
            f"        {EARLY_FILL}\n        {EARLY_FILL.replace('fill_b', 'fill_a')}\n        ring",
        ),
    ),
    "scales_bytes_not_expected": slabs(K.BYTE_COUNT, "load_ready", "mbarrier.expect(", (BYTES, ",")),
    "scales_producer_does_not_wait": slabs(
        K.WRITE_AFTER_READ, "a_smem_0", f"{LOAD}args.a_desc", (EMPTY_WAIT, NOTHING)
    ),
}
