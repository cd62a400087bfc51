"""Faults in modules for Blackwell: launch control, stores of D, and those that only numbers show."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.blackwell import (
    COPY_A_SCALES,
    MMA,
    RELEASED_EARLY,
    SCALED_MMA,
    one,
    pair,
    scaled,
    scaled_pair,
    share_a,
    share_b,
    within,
)
from mutants.kinds import TMA_STORE, WRONG_NUMBERS
from mutants.mutant import NOTHING, Mutant, of

K = Kind
RESPONSE_WAIT = "mbarrier.wait(args.clc_ready.index(responses.slot), responses.phase)"
REQUEST_WAIT = "mbarrier.wait(args.clc_empty.index(responses.slot), responses.phase ^ 1)"
EXPECT_RESPONSE = "mbarrier.expect(args.clc_ready.index(responses.slot), CLC_RESPONSE_BYTES"
TRY_CANCEL = "clc.try_cancel(args.clc_responses.index(responses.slot), args.clc_ready.index(responses.slot))"
LOAD_RESPONSE = "        response = clc.load_result(args.clc_responses.index(responses.slot))\n"
SIGNAL = "        mbarrier.arrive(args.clc_empty.index(responses.slot))\n"
ROLES = "ROLES = gl.constexpr(4)"
END_OF_MMA_PARTITION = "\n\n@gluon.jit\ndef store_subtile("
NEXT_TILE = "        item = tiles.next(item)\n"
NEXT = NEXT_TILE + END_OF_MMA_PARTITION
NEXT_UNSIGNALLED = (
    "        responses = item.responses\n"
    f"        {RESPONSE_WAIT}\n"
    "        response = clc.load_result(args.clc_responses.index(responses.slot))\n"
    f"        item = Item(item.number, response.is_canceled(), responses.next())\n{END_OF_MMA_PARTITION}"
)
ASK = f"        {TRY_CANCEL}\n{NEXT_TILE}"
ASK_AGAIN = f"{ASK}    responses = item.responses\n    {EXPECT_RESPONSE})\n    {TRY_CANCEL}\n"
LAUNCH_CONTROL = {
    "response_read_before_it_is_there": one(
        K.READ_AFTER_WRITE, "clc_responses", LOAD_RESPONSE.strip(), (RESPONSE_WAIT, NOTHING)
    ),
    "response_overwritten_before_it_is_read": one(
        K.WRITE_AFTER_READ, "clc_responses", TRY_CANCEL, (REQUEST_WAIT, NOTHING)
    ),
    "response_read_without_signalling": one(
        K.WRITE_AFTER_READ,
        "clc_responses",
        TRY_CANCEL,
        within(ROLES, "4", "3"),
        (NEXT, NEXT_UNSIGNALLED),
    ),
    "response_never_signalled_as_read": scaled_pair(K.DEADLOCK, "clc_empty", REQUEST_WAIT, (SIGNAL, "")),
    "response_signalled_before_it_is_read": scaled_pair(
        K.WRITE_AFTER_READ, "clc_responses", TRY_CANCEL, (LOAD_RESPONSE + SIGNAL, SIGNAL + LOAD_RESPONSE)
    ),
    "one_role_too_few": one(
        K.READ_AFTER_WRITE, "clc_responses", LOAD_RESPONSE.strip(), within(ROLES, "4", "3")
    ),
    "one_role_too_many": share_b(K.DEADLOCK, "clc_empty", REQUEST_WAIT, within(ROLES, "4", "5")),
    "response_phase_of_every_response": one(
        K.READ_AFTER_WRITE,
        "clc_responses",
        LOAD_RESPONSE.strip(),
        within(RESPONSE_WAIT, "responses.phase", "responses.slot"),
    ),
    "request_phase_not_flipped": scaled_pair(
        K.DEADLOCK, "clc_empty", REQUEST_WAIT.removesuffix(" ^ 1)"), within(REQUEST_WAIT, " ^ 1")
    ),
    "half_of_the_response_expected": scaled_pair(
        K.BYTE_COUNT,
        "clc_ready",
        "mbarrier.expect(args.clc_ready",
        within(EXPECT_RESPONSE, "CLC_RESPONSE_BYTES", "8"),
    ),
    "readers_of_the_other_cta_not_awaited": scaled_pair(
        K.WRITE_AFTER_READ,
        "clc_responses",
        TRY_CANCEL,
        (
            "[CLC_RESPONSES, 1], mbarrier.MBarrierLayout([[0]])",
            "[CLC_RESPONSES, 2], mbarrier.MBarrierLayout([[1]])",
        ),
    ),
    "asked_again_after_a_refusal": one(K.CANCEL_AFTER_REFUSAL, "clc_responses", TRY_CANCEL, (ASK, ASK_AGAIN)),
}

STORE_WAIT = "tma.store_wait(EPILOGUE_BUFFERS - 1)"
STORE_WAIT_OF_WHOLE_TILES = "    tma.store_wait(0)\n    d_smem.store("
D_STORE = "d_smem.store(tile.to(args.d_desc.dtype))"
FINAL_WAIT = "    tma.store_wait(0)\n\n\n"
STORE_FENCE = "fence_async_shared()\n    tma.async_store("
STEP_ORIGIN = "k = k_step * PROGRAM_TILE_K"
STORES = {
    "store_wait_off_by_one": pair(K.WRITE_AFTER_READ, "d_smem", D_STORE, within(STORE_WAIT, " - 1")),
    "store_of_the_tile_before_not_awaited": share_a(
        K.WRITE_AFTER_READ,
        "d_smem",
        D_STORE,
        within(STORE_WAIT_OF_WHOLE_TILES, "    tma.store_wait(0)\n"),
    ),
    "every_subtile_in_the_first_buffer": one(
        K.WRITE_AFTER_READ,
        "d_smem",
        D_STORE,
        within("d_smem.index(i % EPILOGUE_BUFFERS)", "i % EPILOGUE_BUFFERS", "0"),
    ),
    "no_fence_before_the_store": Mutant(
        "b200_dense_pair",
        (within(STORE_FENCE, "fence_async_shared()\n    "),),
        K.MISSING_FENCE,
        "d_smem",
        TMA_STORE,
        Severity.LINT,
    ),
    "no_final_store_wait": share_a(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
    "every_subtile_in_the_first_columns": pair(
        K.GLOBAL_RACE, "d_desc", TMA_STORE, within("row, column + i * SUBTILE_N, tile", " + i * SUBTILE_N")
    ),
    "step_of_one_element": pair(
        K.UNALIGNED_TRANSFER, "a_desc", "tma.async_load(args.a_desc", within(STEP_ORIGIN, " * PROGRAM_TILE_K")
    ),
}

A_SCALE_ORIGIN, B_SCALE_ORIGIN = "= tile.row // SCALE_ROWS, ", ", tile.column // SCALE_ROWS\n"
SCALE_BLOCK = "k_block = k_step * SCALE_BLOCKS_K"
TRANSPOSED = "args.b_smem.index(ring.slot).permute((1, 0))"
SCALES = '            args.{}_scale_tmem,\n            args.{}_scale_tmem,\n            "e4m3",\n'
FORMATS = '"e4m3",\n            "e{}m{}",\n            use_acc'
EPILOGUE_ORIGIN = "tile_origin(args, item)\n        mbarrier.wait(args.accumulator_ready"
REVERSED = "args.tiles_m * args.tiles_n - 1 - item"
IN_NUMBERS_ONLY: dict[str, Mutant] = {
    name: make(WRONG_NUMBERS, "d_desc", "", change)
    for name, make, change in (
        ("b_not_transposed", one, within(TRANSPOSED, ".permute((1, 0))")),
        ("rows_of_b_by_those_of_d", share_b, within("[tile.column, k], ready", "column", "row")),
        ("step_of_half_a_tile", pair, within(STEP_ORIGIN, "_TILE_K", "_TILE_K // 2")),
        ("second_step_begins_the_sums", one, within("use_acc=k_step > 0", "0", "1")),
        ("epilogue_in_another_order", pair, within(EPILOGUE_ORIGIN, "item)", f"{REVERSED})")),
        ("b_scales_of_rows", scaled, within(B_SCALE_ORIGIN, "column", "row")),
        ("a_scales_by_rows_and_not_blocks", scaled_pair, within(A_SCALE_ORIGIN, " // SCALE_ROWS")),
        ("scales_of_a_step_a_block_apart", scaled_pair, within(SCALE_BLOCK, " * SCALE_BLOCKS_K")),
        ("scales_of_the_first_step", scaled, within(SCALE_BLOCK, "k_step * SCALE_BLOCKS_K", "0")),
        ("rows_of_scales_in_another_order", scaled, within("permute((0, 3, 2, 1, 4))", "3, 2", "2, 3")),
        ("scales_of_the_other_operand", scaled, (SCALES.format("a", "b"), SCALES.format("b", "a"))),
        ("elements_of_another_format", scaled, (FORMATS.format(4, 3), FORMATS.format(5, 2))),
    )
}

# As committed, with the stages and tiles that the planner chose.
AS_COMMITTED = {
    "accumulator_released_early_in_a_committed_module": of("b200_bf16")(
        K.WRITE_AFTER_READ, "accumulators", MMA, RELEASED_EARLY
    ),
    "scales_not_copied_in_a_committed_module": of("b200_mxfp4_mxfp8_one_cta")(
        K.UNINITIALISED_READ, "a_scale_tmem", SCALED_MMA, (COPY_A_SCALES, "")
    ),
}
MUTANTS = LAUNCH_CONTROL | STORES | IN_NUMBERS_ONLY | AS_COMMITTED
