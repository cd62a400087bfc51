"""Faults in modules for Blackwell: launch control, stores of D, and those that only numbers show."""

from __future__ import annotations

from blackwell_mutants import (
    COPY_A_SCALES,
    MMA,
    RELEASE,
    SCALED_MMA,
    one,
    pair,
    scaled,
    scaled_pair,
    share_a,
    share_b,
    within,
)
from simulate_kind_mutants import TMA_STORE, WRONG_NUMBERS, of
from simulate_mutants import NOTHING, Mutant

from gemmgen.simulate import Kind, Severity

K = Kind
ANSWER_WAIT = "mbarrier.wait(clc_ready.index(slot), number // ANSWERS & 1)"
REQUEST_WAIT = "mbarrier.wait(clc_empty.index(slot), number // ANSWERS & 1 ^ 1)"
EXPECT_ANSWER = "mbarrier.expect(clc_ready.index(slot), 16"
TRY_CANCEL = "clc.try_cancel(clc_answers.index(slot), clc_ready.index(slot))"
LOAD_ANSWER = "    answer = clc.load_result(clc_answers.index(slot))\n"
SIGNAL = "    mbarrier.arrive(clc_empty.index(slot))\n"
ROLES = "ROLES = gl.constexpr(4)"
END_OF_MMA_PARTITION = "        tiles_done += 1\n\n\n@gluon.jit\ndef drain("
NEXT = (
    f"        _, working = next_tile(clc_answers, clc_ready, clc_empty, tiles_done)\n{END_OF_MMA_PARTITION}"
)
NEXT_UNSIGNALLED = (
    "        mbarrier.wait(clc_ready.index(tiles_done % ANSWERS), tiles_done // ANSWERS & 1)\n"
    "        working = clc.load_result(clc_answers.index(tiles_done % ANSWERS)).is_canceled()\n"
    f"{END_OF_MMA_PARTITION}"
)
ASK_AGAIN = (
    "        number += 1\n"
    "    slot = number % ANSWERS\n"
    "    mbarrier.expect(clc_ready.index(slot), 16)\n"
    f"    {TRY_CANCEL}\n"
)
LAUNCH_CONTROL = {
    "answer_read_before_it_is_there": one(
        K.READ_AFTER_WRITE, "clc_answers", LOAD_ANSWER.strip(), (ANSWER_WAIT, NOTHING)
    ),
    "answer_overwritten_before_it_is_read": one(
        K.WRITE_AFTER_READ, "clc_answers", TRY_CANCEL, (REQUEST_WAIT, NOTHING)
    ),
    "answer_read_without_signalling": one(
        K.WRITE_AFTER_READ,
        "clc_answers",
        TRY_CANCEL,
        within(ROLES, "4", "3"),
        (NEXT, NEXT_UNSIGNALLED),
    ),
    "answer_never_signalled_as_read": scaled_pair(K.DEADLOCK, "clc_empty", REQUEST_WAIT, (SIGNAL, "")),
    "answer_signalled_before_it_is_read": scaled_pair(
        K.WRITE_AFTER_READ, "clc_answers", TRY_CANCEL, (LOAD_ANSWER + SIGNAL, SIGNAL + LOAD_ANSWER)
    ),
    "one_role_too_few": one(K.READ_AFTER_WRITE, "clc_answers", LOAD_ANSWER.strip(), within(ROLES, "4", "3")),
    "one_role_too_many": share_b(K.DEADLOCK, "clc_empty", REQUEST_WAIT, within(ROLES, "4", "5")),
    "answer_phase_of_every_answer": one(
        K.READ_AFTER_WRITE,
        "clc_answers",
        LOAD_ANSWER.strip(),
        within(ANSWER_WAIT, "number // ANSWERS", "number"),
    ),
    "request_phase_not_flipped": scaled_pair(
        K.DEADLOCK, "clc_empty", REQUEST_WAIT.removesuffix(" ^ 1)"), within(REQUEST_WAIT, " ^ 1")
    ),
    "half_of_the_answer_expected": scaled_pair(
        K.BYTE_COUNT, "clc_ready", "mbarrier.expect(clc_ready", within(EXPECT_ANSWER, "16", "8")
    ),
    "readers_of_the_other_cta_not_awaited": scaled_pair(
        K.WRITE_AFTER_READ,
        "clc_answers",
        TRY_CANCEL,
        ("[ANSWERS, 1], mbarrier.MBarrierLayout([[0]])", "[ANSWERS, 2], mbarrier.MBarrierLayout([[1]])"),
    ),
    "asked_again_after_a_refusal": one(
        K.CANCEL_AFTER_REFUSAL, "clc_answers", TRY_CANCEL, ("        number += 1\n", ASK_AGAIN)
    ),
}

STORE_WAIT = "tma.store_wait(EPILOGUE_BUFFERS - 1)"
STORE_WAIT_OF_WHOLE_TILES = "    tma.store_wait(0)\n    d_smem.store("
D_STORE, WHOLE_D_STORE = "d_subtile.store(tile.to(d_desc.dtype))", "d_smem.store(tile.to(d_desc.dtype))"
FINAL_WAIT = "    tma.store_wait(0)\n\n\n"
STORE_FENCE = "fence_async_shared()\n        tma.async_store("
STORES = {
    "store_wait_off_by_one": pair(K.WRITE_AFTER_READ, "d_smem", D_STORE, within(STORE_WAIT, " - 1")),
    "store_of_the_tile_before_not_awaited": share_a(
        K.WRITE_AFTER_READ,
        "d_smem",
        WHOLE_D_STORE,
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
        (within(STORE_FENCE, "fence_async_shared()\n        "),),
        K.MISSING_FENCE,
        "d_smem",
        TMA_STORE,
        Severity.LINT,
    ),
    "no_final_store_wait": share_a(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
    "every_subtile_in_the_first_columns": pair(
        K.GLOBAL_RACE, "d_desc", TMA_STORE, within("[row, column + i * SUBTILE_N]", " + i * SUBTILE_N")
    ),
}

A_SCALE_ORIGIN, B_SCALE_ORIGIN = "[0, row // SCALE_ROWS, ", "[0, column // SCALE_ROWS, "
SCALE_BLOCK = "scale_block = k_step * SCALE_BLOCKS_K"
TRANSPOSED = "b_smem.index(stage).permute((1, 0))"
SCALES = '                {}_scale_tmem,\n                {}_scale_tmem,\n                "e4m3",\n'
FORMATS = '"e4m3",\n                "e{}m{}",\n                use_acc'
EPILOGUE_ORIGIN = "tile_origin(tile, tiles_m, tiles_n)\n        slot"
IN_NUMBERS_ONLY: dict[str, Mutant] = {
    name: make(WRONG_NUMBERS, "d_desc", "", change)
    for name, make, change in (
        ("b_not_transposed", one, within(TRANSPOSED, ".permute((1, 0))")),
        ("rows_of_b_by_those_of_d", share_b, within("[column, k], ready", "column", "row")),
        ("step_of_one_element", pair, within("k = k_step * PROGRAM_TILE_K", " * PROGRAM_TILE_K")),
        ("second_step_begins_the_sums", one, within("use_acc=k_step > 0", "0", "1")),
        ("epilogue_in_another_order", pair, within(EPILOGUE_ORIGIN, "tiles_m, tiles_n", "tiles_n, tiles_m")),
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
        K.WRITE_AFTER_READ, "accumulators", MMA, within(RELEASE, "- 1", "- 2")
    ),
    "scales_not_copied_in_a_committed_module": of("b200_mxfp4_mxfp8_one_cta")(
        K.UNINITIALISED_READ, "a_scale_tmem", SCALED_MMA, (COPY_A_SCALES, "")
    ),
}
MUTANTS = LAUNCH_CONTROL | STORES | IN_NUMBERS_ONLY | AS_COMMITTED
