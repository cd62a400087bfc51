"""Faults in modules of the other kinds: turns, clusters, kernels without a producer, epilogues, registers."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.mutant import NOTHING, of

K = Kind
WRONG_NUMBERS = "wrong-numbers"
FINAL_WAIT = "    tma.store_wait(0)\n\n\n"
MMA = "return warpgroup_mma("
EXPECT = "mbarrier.expect(ready, "
EMPTY_WAIT = "mbarrier.wait(args.load_empty.index(ring.stage), ring.phase)"
READY_WAIT = "mbarrier.wait(args.load_ready.index(ring.stage), ring.phase)"
LOOP_WAIT = "        accumulator = warpgroup_mma_wait(1, deps=[accumulator])\n"
LAST_WAIT = "accumulator = warpgroup_mma_wait(0, deps=[accumulator])"
TMA_STORE = "tma.async_store("


# Two consumers that take turns.
turns = of("h100_bf16_ping_pong")
TURN_WAIT = "mbarrier.wait(args.mma_turn.index(consumer), turn)"
TURN_PASS = "mbarrier.arrive(args.mma_turn.index(1 - consumer))"
TURNS = {
    "turn_not_awaited": turns(K.READ_AFTER_WRITE, "a_smem", MMA, (TURN_WAIT, NOTHING)),
    "turn_never_passed": turns(K.DEADLOCK, "mma_turn", TURN_WAIT, (TURN_PASS, NOTHING)),
    "turn_given_to_itself": turns(
        K.DEADLOCK, "mma_turn", TURN_WAIT, (TURN_PASS, TURN_PASS.replace("1 - consumer", "consumer"))
    ),
    "turn_of_the_wrong_phase": turns(
        K.DEADLOCK,
        "mma_turn",
        TURN_WAIT,
        ("    turn = 1 - consumer\n", "    turn = 0 + consumer\n"),
        also=((K.READ_AFTER_WRITE, "a_smem|b_smem", MMA),),
    ),
    "empty_counts_both_consumers": turns(
        K.DEADLOCK,
        "load_empty",
        EMPTY_WAIT,
        (
            "mbarrier.init(load_empty.index(stage), count=1)",
            "mbarrier.init(load_empty.index(stage), count=CONSUMERS)",
        ),
    ),
    "turn_released_before_the_mma_retired": turns(
        K.WRITE_AFTER_READ,
        "a_smem",
        "tma.async_load(args.a_desc",
        (LOOP_WAIT, LOOP_WAIT.replace("(1,", "(2,")),
    ),
    "turn_without_final_store_wait": turns(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
}


# Clusters: two CTAs that share A, and four that share A and B.
pair, four = of("h100_bf16_cluster1x2"), of("h100_bf16_cluster2x2")
A_GROUP_WAIT = "mbarrier.wait(args.a_multicast_empty.index(ring.stage), ring.phase)"
B_GROUP_WAIT = "mbarrier.wait(args.b_multicast_empty.index(ring.stage), ring.phase)"
A_RELEASE = "    mbarrier.arrive(args.a_multicast_empty.index(stage))\n"
B_RELEASE = "    mbarrier.arrive(args.b_multicast_empty.index(stage))\n"
LOAD_A = "tma.async_load(args.a_desc, [tile.row"
LOAD_B = "tma.async_load(args.b_desc, [tile.column, k], ready, args.b_smem"
A_BARRIER = "a_multicast_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 2], mbarrier.MBarrierLayout("
B_BARRIER = A_BARRIER.replace("a_", "b_", 1)
ALONE = "gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout([[0]]))"
CLUSTERS = {
    "pair_a_group_not_awaited": pair(K.WRITE_AFTER_READ, "a_smem", LOAD_A, (A_GROUP_WAIT, NOTHING)),
    "pair_a_group_not_released": pair(K.DEADLOCK, "a_multicast_empty", A_GROUP_WAIT, (A_RELEASE, "")),
    "pair_a_barrier_for_each_cta": pair(
        K.WRITE_AFTER_READ,
        "a_smem",
        LOAD_A,
        (ALONE, ALONE.replace("1]", "2]", 1).replace("[[0]]", "[[1]]")),
    ),
    "pair_without_final_store_wait": pair(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
    "four_a_group_not_awaited": four(K.WRITE_AFTER_READ, "a_smem", LOAD_A, (A_GROUP_WAIT, NOTHING)),
    "four_b_group_not_awaited": four(K.WRITE_AFTER_READ, "b_smem", LOAD_B, (B_GROUP_WAIT, NOTHING)),
    "four_a_group_not_released": four(K.DEADLOCK, "a_multicast_empty", A_GROUP_WAIT, (A_RELEASE, "")),
    "four_b_group_not_released": four(K.DEADLOCK, "b_multicast_empty", B_GROUP_WAIT, (B_RELEASE, "")),
    "four_a_group_of_the_ctas_of_b": four(
        K.WRITE_AFTER_READ, "a_smem", LOAD_A, (f"{A_BARRIER}[[1], [0]]", f"{A_BARRIER}[[0], [1]]")
    ),
    "four_b_group_of_the_ctas_of_a": four(
        K.WRITE_AFTER_READ, "b_smem", LOAD_B, (f"{B_BARRIER}[[0], [1]]", f"{B_BARRIER}[[1], [0]]")
    ),
    "four_without_final_store_wait": four(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
}


# Kernels that refill their own stages: a program for each tile, and a program for many.
tiled, persistent = of("h100_bf16_pipelined"), of("h100_bf16_persistent")
REFILL = "        loads = load_next(args, loads, stage_in_flight)\n"
PROLOGUE = "        loads = load_next(args, loads, stage)\n"
LONGER_PROLOGUE = f"{PROLOGUE}    loads = load_next(args, loads, 0)\n"
OWN_EXPECT = "    mbarrier.expect(ready, args.a_desc.nbytes_per_cta + args.b_desc.nbytes_per_cta)\n"
LOOP_READY_WAIT = f"        {READY_WAIT}\n"
PIPELINED = {
    "tiled_refill_before_the_mma_retired": tiled(
        K.WRITE_AFTER_READ, "a_smem", LOAD_A, (LOOP_WAIT + REFILL, REFILL + LOOP_WAIT)
    ),
    "tiled_refill_of_the_stage_in_use": tiled(
        K.WRITE_AFTER_READ, "a_smem", LOAD_A, (REFILL, REFILL.replace("stage_in_flight", "ring.stage"))
    ),
    "tiled_prologue_one_load_too_many": tiled(
        K.WRITE_AFTER_WRITE,
        "a_smem",
        LOAD_A,
        (PROLOGUE, LONGER_PROLOGUE),
        also=((K.ARRIVAL_OVERFLOW, "load_ready", EXPECT),),
    ),
    "tiled_expect_once_too_often": tiled(
        K.ARRIVAL_OVERFLOW, "load_ready", EXPECT, (OWN_EXPECT, OWN_EXPECT * 2)
    ),
    "tiled_mma_of_the_next_stage": tiled(
        K.READ_AFTER_WRITE,
        "a_smem",
        MMA,
        (LOOP_READY_WAIT, LOOP_READY_WAIT.replace("ring.stage", "stage_in_flight")),
    ),
    "tiled_without_final_store_wait": tiled(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
    "persistent_refill_before_the_mma_retired": persistent(
        K.WRITE_AFTER_READ, "a_smem", LOAD_A, (LOOP_WAIT + REFILL, REFILL + LOOP_WAIT)
    ),
    "persistent_refill_of_the_stage_in_use": persistent(
        K.WRITE_AFTER_READ, "a_smem", LOAD_A, (REFILL, REFILL.replace("stage_in_flight", "ring.stage"))
    ),
    "persistent_prologue_one_load_too_many": persistent(
        K.WRITE_AFTER_WRITE,
        "a_smem",
        LOAD_A,
        (PROLOGUE, LONGER_PROLOGUE),
        also=((K.ARRIVAL_OVERFLOW, "load_ready", EXPECT),),
    ),
    "persistent_expect_once_too_often": persistent(
        K.ARRIVAL_OVERFLOW, "load_ready", EXPECT, (OWN_EXPECT, OWN_EXPECT * 2)
    ),
    "persistent_last_refill_before_the_mma_retired": persistent(
        K.WRITE_AFTER_READ,
        "a_smem",
        LOAD_A,
        (f"    {LAST_WAIT}\n", f"    {LAST_WAIT.replace('(0,', '(1,')}\n"),
        also=((K.ACCUMULATOR_IN_FLIGHT, "accumulator", "tile.reshape("),),
    ),
    "persistent_without_final_store_wait": persistent(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")
    ),
}


# One buffer, each step loaded, awaited and multiplied; and a kernel of a single tile.
blocked, single = of("h100_bf16_blocked"), of("h100_bf16_single_tile")
STEP_WAIT = "mbarrier.wait(args.load_ready, k_step & 1)"
SYNCHRONOUS = {
    "blocked_step_not_awaited": blocked(K.READ_AFTER_WRITE, "a_smem", MMA, (STEP_WAIT, NOTHING)),
    "blocked_constant_phase": blocked(
        K.READ_AFTER_WRITE, "a_smem", MMA, (STEP_WAIT, "mbarrier.wait(args.load_ready, 0)")
    ),
    "blocked_next_load_while_the_mma_reads": blocked(
        K.WRITE_AFTER_READ,
        "b_smem",
        "tma.async_load(args.b_desc",
        (LAST_WAIT, LAST_WAIT.replace("(0,", "(1,")),
        also=((K.ACCUMULATOR_IN_FLIGHT, "accumulator", "d_smem.store(|tile.reshape("),),
    ),
    "blocked_without_final_store_wait": blocked(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
    "single_tile_not_awaited": single(
        K.READ_AFTER_WRITE, "a_smem|b_smem", MMA, ("mbarrier.wait(args.load_ready, 0)", NOTHING)
    ),
    "single_tile_without_final_store_wait": single(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")
    ),
}


# C by sub-tiles in one buffer, and vectors.
addend, vectors = of("h100_fp16_axpby"), of("h100_int8_scaled")
C_WAIT = "mbarrier.wait(buffers.c_ready, subtile & 1)"
C_READ = "c = buffers.c_smem.load("
C_LOAD = "tma.async_load(args.c_desc"
C_REFILL = "        load_c(args, buffers, row, column, i + 1)\n"
C_USE = "        tile = epilogue(subtiles[i], i, buffers)\n"
C_FENCE = "    fence_async_shared()\n    c_smem = buffers.c_smem\n"
VECTORS_WAIT = "mbarrier.wait(buffers.vectors_ready, phase)"
VECTORS_FENCE = "    fence_async_shared()\n    mbarrier.expect(\n        buffers.vectors_ready,"
STORE_FENCE = "fence_async_shared()\n    tma.async_store("
VECTOR_BYTES = (
    "\n        + args.column_scale_desc.nbytes_per_cta\n        + args.column_bias_desc.nbytes_per_cta"
)
ROW_SCALE_LOAD = "tma.async_load(args.row_scale_desc, [row], buffers.vectors_ready, buffers.row_scale_smem)"
EPILOGUES = {
    "c_not_awaited": addend(K.READ_AFTER_WRITE, "c_smem", C_READ, (C_WAIT, NOTHING)),
    "c_constant_phase": addend(
        K.READ_AFTER_WRITE, "c_smem", C_READ, (C_WAIT, C_WAIT.replace("subtile & 1", "0"))
    ),
    "c_refilled_before_it_is_read": addend(
        K.ARRIVAL_OVERFLOW,
        "c_ready",
        "mbarrier.expect(ready, args.c_desc",
        (C_USE + C_REFILL, C_REFILL + C_USE),
        also=((K.WRITE_AFTER_WRITE, "c_smem", C_LOAD),),
    ),
    "c_fence_missing": addend(
        K.MISSING_FENCE,
        "c_smem_0",
        C_LOAD,
        (C_FENCE, C_FENCE.partition("\n")[2]),
        severity=Severity.LINT,
    ),
    "c_buffer_of_the_other_consumer": addend(
        K.READ_AFTER_WRITE,
        "c_smem",
        C_READ,
        ("Buffers(c_smem_1,", "Buffers(c_smem_0,"),
        also=((K.WRITE_AFTER_WRITE, "c_smem", C_LOAD),),
    ),
    "c_without_final_store_wait": addend(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
    "vectors_not_awaited": vectors(
        K.READ_AFTER_WRITE,
        "row_scale_smem",
        "row_scale = buffers.row_scale_smem.load(",
        (VECTORS_WAIT, NOTHING),
    ),
    "vectors_constant_phase": vectors(
        K.DEADLOCK,
        "vectors_ready",
        "mbarrier.wait(buffers.vectors_ready, 0)",
        (VECTORS_WAIT, VECTORS_WAIT.replace("phase", "0")),
        also=((K.READ_AFTER_WRITE, "row_scale_smem|column_scale_smem|column_bias_smem", ".load("),),
    ),
    "vectors_of_other_rows": vectors(
        WRONG_NUMBERS, "d_desc", "", (ROW_SCALE_LOAD, ROW_SCALE_LOAD.replace("[row]", "[row + 4]"))
    ),
    "vectors_of_unaligned_rows": vectors(
        K.UNALIGNED_TRANSFER,
        "row_scale_desc",
        "tma.async_load(args.row_scale_desc",
        (ROW_SCALE_LOAD, ROW_SCALE_LOAD.replace("[row]", "[row + 1]")),
    ),
    "vectors_expect_too_little": vectors(
        K.BYTE_COUNT,
        "vectors_ready",
        "mbarrier.expect(",
        (VECTOR_BYTES, ""),
    ),
    "vectors_fences_missing": vectors(  # the one before the store would do
        K.MISSING_FENCE,
        "row_scale_smem",
        ROW_SCALE_LOAD,
        (VECTORS_FENCE, VECTORS_FENCE.partition("\n")[2]),
        (STORE_FENCE, TMA_STORE),
        severity=Severity.LINT,
        also=((K.MISSING_FENCE, "d_smem", TMA_STORE),),
    ),
    "vectors_without_final_store_wait": vectors(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
}


# Sums that are promoted, and A from registers.
promoted, registers = of("h100_e4m3_promoted"), of("registers")
PROMOTION_WAIT = "        step = warpgroup_mma_wait(0, deps=[step])\n"
RELEASE = "        mbarrier.arrive(args.load_empty.index(ring.stage))\n"
REGISTERS_WAIT = f"        {LAST_WAIT}\n"
FENCE_AFTER_A = "    fence_async_shared()\n    return a_tile"
OPERANDS = {
    "promoted_before_the_sum_is_awaited": promoted(
        K.ACCUMULATOR_IN_FLIGHT,
        "step",
        "accumulator += step",
        (PROMOTION_WAIT, PROMOTION_WAIT.replace("(0,", "(1,")),
    ),
    "promoted_sums_that_do_not_start_anew": promoted(WRONG_NUMBERS, "d_desc", "", ("use_acc=False, ", "")),
    "promoted_without_final_store_wait": promoted(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")
    ),
    "registers_released_before_the_mma_retired": registers(
        K.WRITE_AFTER_READ,
        "b_smem",
        "tma.async_load(args.b_desc",
        (REGISTERS_WAIT + RELEASE, RELEASE + REGISTERS_WAIT),
    ),
    "registers_fence_missing": registers(
        K.MISSING_FENCE,
        "a_smem",
        "tma.async_load(args.a_desc",
        (FENCE_AFTER_A, FENCE_AFTER_A.partition("\n")[2]),
    ),
    "registers_read_a_too_early": registers(
        K.UNINITIALISED_READ, "a_smem", "a_tile = ", (READY_WAIT, NOTHING)
    ),
    "registers_without_final_store_wait": registers(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")
    ),
}

MUTANTS = TURNS | CLUSTERS | PIPELINED | SYNCHRONOUS | EPILOGUES | OPERANDS
