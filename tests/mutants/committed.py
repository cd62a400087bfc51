"""Faults in modules as they are committed: of Hopper and Blackwell, in every structure of roles.

Parities, stages, barriers, counts, bytes, stores, fences, accumulators and predicates that are wrong, each in
a module of its own kind; those of some clusters are simulated in smaller tiles. Mutants of other files are in
modules that are pinned.
"""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.mutant import NOTHING, of

K = Kind
WRONG_NUMBERS = "wrong-numbers"
EMPTY_WAIT = "mbarrier.wait(args.load_empty.index(ring.stage), ring.phase)"
READY_WAIT = "mbarrier.wait(args.load_ready.index(ring.stage), ring.phase)"
FIRST_READY_WAIT = f"\n    {READY_WAIT}\n"
LOOP_READY_WAIT = f"\n        {READY_WAIT}\n"
STAGES_OF_A = "args.a_smem.index(ring.stage)"
FIRST_MMA = "    accumulator = issue_mmas(args, a_smem.index(ring.stage), ring.stage, accumulator)\n"
LOOP_MMA = f"    {FIRST_MMA}"
MMA = "return warpgroup_mma("
RELEASE = "mbarrier.arrive(args.load_empty.index(ring.stage))"
LAST_WAIT = "    accumulator = warpgroup_mma_wait(0, deps=[accumulator])\n"
LOAD_A, LOAD_B = "tma.async_load(args.a_desc", "tma.async_load(args.b_desc"
EXPECT = "mbarrier.expect(ready, "
AND_B = " + args.b_desc.nbytes_per_cta)"
TURN_WAIT = "mbarrier.wait(args.mma_turn.index(consumer), turn)"
TURN_PASS = "        mbarrier.arrive(args.mma_turn.index(1 - consumer))\n"
FLIP = "        phase ^= 1\n"
STORE_WAIT = "    tma.store_wait(0)\n    d_smem.store("
D_STORE = "    d_smem.store(tile.to(args.d_desc.dtype))\n"
STORE_FENCE = "    fence_async_shared()\n    tma.async_store("
TMA_STORE = "tma.async_store("
WHOLE_TMA_STORE = "    tma.async_store(args.d_desc, [row, column], d_smem)\n"
FINAL_WAIT = "    tma.store_wait(0)\n\n\n"
WRAPS = "wraps = stage == STAGES"
PHASE_OF_NEXT = "gl.where(wraps, self.phase ^ 1, self.phase)"
TILES = "A and B"


def changed_within(text: str, old: str, new: str) -> tuple[str, str]:
    """Return the change of a text in which one part is another."""
    assert text.count(old) == 1, f"{old!r} is in {text!r} {text.count(old)} times"
    return text, text.replace(old, new)


# A producer and one consumer; and one CTA of two that an SM holds.
lone, twin = of("h100_bf16_one_consumer"), of("h100_bf16_occupancy2")
ONE_CONSUMER = {
    "lone_consumer_awaits_the_empty_barrier": lone(
        K.DEADLOCK,
        "load_empty",
        "  # planted",
        (LOOP_READY_WAIT, f"{LOOP_READY_WAIT.replace('ready', 'empty').rstrip()}  # planted\n"),
    ),
    "lone_producer_awaits_the_ready_barrier": lone(
        K.WRITE_AFTER_READ, "a_smem|b_smem", LOAD_A, changed_within(EMPTY_WAIT, "load_empty", "load_ready")
    ),
    "lone_wait_after_its_use": lone(
        K.UNINITIALISED_READ,
        "a_smem|b_smem",
        MMA,
        (FIRST_READY_WAIT + FIRST_MMA, f"\n{FIRST_MMA}    {READY_WAIT}\n"),
    ),
    "lone_ring_one_stage_too_long": lone(
        K.UNDEFINED_VALUE, "load_empty", EMPTY_WAIT, (WRAPS, f"{WRAPS} + 1")
    ),
    "lone_consumer_multiplies_the_stage_before": lone(
        K.READ_AFTER_WRITE,
        "a_smem",
        MMA,
        changed_within(LOOP_MMA, "a_smem.index(ring.stage),", "a_smem.index((ring.stage + 1) % STAGES),"),
    ),
    "twin_release_of_the_next_stage": twin(
        K.DEADLOCK, "load_empty", EMPTY_WAIT, ("stage_in_flight))", "ring.stage))")
    ),
    "twin_release_of_two": twin(
        K.ARRIVAL_OVERFLOW,
        "load_empty",
        "stage_in_flight), count=2)",
        ("stage_in_flight))", "stage_in_flight), count=2)"),
    ),
    "twin_b_in_the_stage_before": twin(
        K.WRITE_AFTER_READ,
        "b_smem",
        LOAD_B,
        (
            f"{LOAD_B}, [tile.column, k], ready, args.b_smem.index(ring.stage))",
            f"{LOAD_B}, [tile.column, k], ready, args.b_smem.index((ring.stage + STAGES - 1) % STAGES))",
        ),
    ),
    "twin_bytes_of_a_alone": twin(
        K.BYTE_COUNT,
        "load_ready",
        EXPECT,
        changed_within(f"{EXPECT}args.a_desc.nbytes_per_cta{AND_B}", AND_B, ")"),
    ),
    "twin_store_before_the_tile": twin(
        K.UNINITIALISED_READ, "d_smem", TMA_STORE, (D_STORE, ""), (WHOLE_TMA_STORE, WHOLE_TMA_STORE + D_STORE)
    ),
    "twin_last_store_left_running": twin(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, changed_within(FINAL_WAIT, "(0)", "(1)")
    ),
}

# Two consumers that share a tile.
shared, registers = of("h100_bf16_128x128"), of("h100_int8_a_registers")
COOPERATIVE = {
    "shared_bytes_of_one_consumer": shared(
        K.BYTE_COUNT, "load_ready", EXPECT, ("CONSUMERS * args.a_desc", "args.a_desc")
    ),
    "shared_release_of_the_wrong_barrier": shared(
        K.DEADLOCK, "load_empty", EMPTY_WAIT, changed_within(RELEASE, "load_empty", "load_ready")
    ),
    "shared_release_by_the_first_consumer": shared(
        K.DEADLOCK,
        "load_empty",
        EMPTY_WAIT,
        (
            "def multiply(args, a_smem, k_steps, ring):",
            "def multiply(args, a_smem, k_steps, ring, consumer: gl.constexpr):",
        ),
        (
            "multiply(args, args.a_smem[consumer], args.k_steps, ring)",
            "multiply(args, args.a_smem[consumer], args.k_steps, ring, consumer)",
        ),
        (f"        {RELEASE}\n", f"        if consumer == 0:\n            {RELEASE}\n"),
    ),
    "shared_buffer_of_d": shared(
        K.WRITE_AFTER_READ, "d_smem_0", "d_smem.store(", ("args.d_smem[consumer]", "args.d_smem[0]")
    ),
    "shared_early_store_wait": shared(
        K.WRITE_AFTER_READ,
        "d_smem_0|d_smem_1",
        "d_smem.store(",
        ("    tma.store_wait(0)\n" + D_STORE, D_STORE + "    tma.store_wait(0)\n"),
    ),
    "registers_bytes_of_a_twice": registers(
        K.BYTE_COUNT, "load_ready", EXPECT, ("CONSUMERS * args.a_desc", "2 * CONSUMERS * args.a_desc")
    ),
    "registers_parity_flipped": registers(
        K.UNINITIALISED_READ,
        "a_smem_0|a_smem_1",
        "a_tile = ",
        changed_within(READY_WAIT, "ring.phase", "ring.phase ^ 1"),
    ),
    "registers_mma_after_the_release": registers(
        K.WRITE_AFTER_READ,
        "b_smem",
        LOAD_B,
        (
            LAST_WAIT.replace("    ", "        ", 1) + f"        {RELEASE}\n",
            f"        {RELEASE}\n" + LAST_WAIT.replace("    ", "        ", 1),
        ),
    ),
    "registers_phase_at_every_stage": registers(
        K.UNINITIALISED_READ, "a_smem_0|a_smem_1", "a_tile = ", (PHASE_OF_NEXT, "self.phase ^ 1")
    ),
}

# Two consumers that take turns.
bias, scales = of("h100_bf16_bias_gelu"), of("h100_e4m3_scaled")
nt, tf32, fp32_out, swizzled = (
    of(f"h100_{name}") for name in ("bf16_nt", "tf32", "bf16_fp32_out", "bf16_swizzle")
)
VECTORS_WAIT = "    mbarrier.wait(buffers.vectors_ready, phase)\n"
PAST_THE_OTHER = "        ring = ring.ahead(args.k_steps)\n"
MULTIPLY = "        accumulator, ring = multiply(args, args.a_smem, args.k_steps, ring)\n"
PING_PONG = {
    "bias_turn_of_the_same_parity": bias(
        K.READ_AFTER_WRITE, "a_smem|b_smem", MMA, ("        turn ^= 1\n", "")
    ),
    "bias_parity_of_the_first_tile": bias(
        K.DEADLOCK,
        "vectors_ready",
        VECTORS_WAIT.strip(),
        (FLIP, ""),
        also=((K.READ_AFTER_WRITE, "column_bias_smem", "column_bias.load("),),
    ),
    "bias_awaited_after_its_use": bias(
        K.READ_AFTER_WRITE,
        "column_bias_smem_0|column_bias_smem_1",
        "column_bias.load(",
        (VECTORS_WAIT, ""),
        ("column + i * SUBTILE_N, tile)\n", f"column + i * SUBTILE_N, tile)\n{VECTORS_WAIT}"),
    ),
    "scales_turn_counts_two": scales(
        K.DEADLOCK,
        "mma_turn",
        TURN_WAIT,
        ("init(mma_turn.index(consumer), count=1)", "init(mma_turn.index(consumer), count=2)"),
    ),
    "scales_turn_passed_before_it_is_used": scales(
        K.READ_AFTER_WRITE, "a_smem|b_smem", MMA, (MULTIPLY + TURN_PASS, TURN_PASS + MULTIPLY)
    ),
    "scales_bytes_of_a_vector_twice": scales(
        K.BYTE_COUNT,
        "vectors_ready_0|vectors_ready_1",
        "mbarrier.expect(",
        (
            "buffers.vectors_ready, args.row_scale_desc.nbytes_per_cta",
            "buffers.vectors_ready, 2 * args.row_scale_desc.nbytes_per_cta",
        ),
    ),
    "nt_phase_at_every_stage": nt(
        K.UNINITIALISED_READ, "a_smem|b_smem", MMA, (PHASE_OF_NEXT, "self.phase ^ 1")
    ),
    "nt_stage_never_loaded": nt(K.UNDEFINED_VALUE, "load_empty", EMPTY_WAIT, (WRAPS, f"{WRAPS} + 1")),
    "tf32_accumulator_read_before_its_wait": tf32(
        K.ACCUMULATOR_IN_FLIGHT, "accumulator", ".reshape(", changed_within(LAST_WAIT, "(0", "(1")
    ),
    "tf32_release_twice": tf32(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        LOAD_A,
        (f"    {RELEASE}\n", f"    {RELEASE}\n    {RELEASE}\n"),
        also=((K.EARLY_ARRIVAL, "load_empty", RELEASE),),
    ),
    "fp32_out_store_wait_of_one": fp32_out(
        K.WRITE_AFTER_READ, "d_smem_0|d_smem_1", "d_smem.store(", changed_within(STORE_WAIT, "(0)", "(1)")
    ),
    "fp32_out_ring_of_the_second_consumer_at_the_first_tile": fp32_out(
        K.READ_AFTER_WRITE,
        "a_smem|b_smem",
        MMA,
        (".ahead(consumer * args.k_steps)", ".ahead(0 * args.k_steps)"),
    ),
    "swizzled_own_tile_twice": swizzled(K.READ_AFTER_WRITE, "a_smem|b_smem", MMA, (PAST_THE_OTHER, "")),
    "swizzled_fence_missing": swizzled(
        K.MISSING_FENCE,
        "d_smem_0|d_smem_1",
        TMA_STORE,
        (STORE_FENCE, f"    {TMA_STORE}"),
        severity=Severity.LINT,
    ),
}

# C by sub-tiles, in a ring of its own.
residual = of("h100_bf16_residual")
C_READ = "c = buffers.c_smem.index("
C_PARITY = "subtile // EPILOGUE_BUFFERS & 1)"
C_WAIT = f"    mbarrier.wait(buffers.c_ready.index(subtile % EPILOGUE_BUFFERS), {C_PARITY}\n"
C_LOAD = "tma.async_load(args.c_desc"
LAST_SUBTILES = (
    "EPILOGUE_BUFFERS, SUBTILES):\n        tile = epilogue(subtiles[i], i, buffers)\n"
    "        d_subtile = buffers.d_smem.index(i % EPILOGUE_BUFFERS)"
)
RING_OF_C = {
    "residual_parity_flipped": residual(
        K.DEADLOCK,
        "c_ready",
        "mbarrier.wait(buffers.c_ready",
        (C_PARITY, C_PARITY.replace("& 1", "& 1 ^ 1")),
        also=((K.READ_AFTER_WRITE, "c_smem", C_READ),),
    ),
    "residual_of_the_next_slot": residual(
        K.READ_AFTER_WRITE,
        "c_smem_0|c_smem_1",
        C_READ,
        ("c = buffers.c_smem.index(subtile % ", "c = buffers.c_smem.index((subtile + 1) % "),
    ),
    "residual_refill_of_the_next_slot": residual(
        K.WRITE_AFTER_WRITE,
        "c_smem_0|c_smem_1",
        C_LOAD,
        ("i + EPILOGUE_BUFFERS)", "i + 1)"),
    ),
    "residual_store_wait_of_a_whole_ring": residual(
        K.WRITE_AFTER_READ,
        "d_smem_0|d_smem_1",
        "d_smem.store(",
        ("store_wait(EPILOGUE_BUFFERS - 1)", "store_wait(EPILOGUE_BUFFERS)"),
    ),
    "residual_every_subtile_in_the_first_buffer": residual(
        K.WRITE_AFTER_READ,
        "d_smem_0|d_smem_1",
        "d_smem.store(",
        (LAST_SUBTILES, LAST_SUBTILES.replace("d_smem.index(i %", "d_smem.index(0 * i %")),
    ),
}

# Clusters that share tiles by multicast; sums that are promoted.
promoted, four = of("h100_e4m3_promoted128"), of("h100_e4m3_ping_pong_cluster2x2_grouped_e4m3_out")
pair = of("h100_int8_one_consumer_cluster2x1_grouped_fp32_out")
A_GROUP_WAIT = "mbarrier.wait(args.a_multicast_empty.index(ring.stage), ring.phase)"
B_GROUP_WAIT = "mbarrier.wait(args.b_multicast_empty.index(ring.stage), ring.phase)"
B_MULTICAST = f"    {LOAD_B}, [tile.column, k], ready, args.b_smem.index(ring.stage), multicast=True)\n"
STEP_WAIT = "        step = warpgroup_mma_wait(0, deps=[step])\n"
GROUP_RELEASE = "        release(args, ring.stage)\n"
CLUSTERS = {
    "promoted_stage_released_before_the_wait": promoted(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        (STEP_WAIT + GROUP_RELEASE, GROUP_RELEASE + STEP_WAIT),
    ),
    "promoted_group_awaited_after_the_load": promoted(
        K.WRITE_AFTER_READ,
        "b_smem",
        LOAD_B,
        (f"    {B_GROUP_WAIT}\n{B_MULTICAST}", f"{B_MULTICAST}    {B_GROUP_WAIT}\n"),
    ),
    "promoted_stage_released_to_the_group_only": promoted(
        K.DEADLOCK, "load_empty", EMPTY_WAIT, ("    mbarrier.arrive(args.load_empty.index(stage))\n", "")
    ),
    "four_groups_exchanged": four(
        K.WRITE_AFTER_READ,
        "a_smem",
        LOAD_A,
        changed_within(A_GROUP_WAIT, "a_multi", "b_multi"),
    ),
    "four_group_counts_two": four(
        K.DEADLOCK,
        "a_multicast_empty",
        A_GROUP_WAIT,
        ("init(a_multicast_empty.index(stage), count=1)", "init(a_multicast_empty.index(stage), count=2)"),
    ),
    "four_c_parity_flipped": four(
        K.DEADLOCK,
        "c_ready",
        "mbarrier.wait(buffers.c_ready",
        changed_within("mbarrier.wait(buffers.c_ready, phase)", "phase", "phase ^ 1"),
        also=((K.READ_AFTER_WRITE, "c_smem", "c = buffers.c_smem.load("),),
    ),
    "pair_multicast_into_the_first_stage": pair(
        K.WRITE_AFTER_READ,
        "b_smem",
        LOAD_B,
        changed_within(B_MULTICAST, "b_smem.index(ring.stage)", "b_smem.index(ring.stage * 0)"),
    ),
    "pair_barrier_not_initialised": pair(
        K.UNINITIALISED_BARRIER,
        "b_multicast_empty",
        B_GROUP_WAIT,
        ("        mbarrier.init(b_multicast_empty.index(stage), count=1)\n", ""),
    ),
    "pair_c_of_the_tile_before": pair(
        K.DEADLOCK,
        "c_ready",
        "mbarrier.wait(buffers.c_ready, phase)",
        (FLIP, ""),
        also=((K.READ_AFTER_WRITE, "c_smem", "c = buffers.c_smem.load("),),
    ),
}

# Kernels that refill their own stages, and one without a ring.
tiled, persistent = of("h100_tf32_pipelined_hilbert_fp32_out"), of("h100_fp16_persistent_row_bf16_out")
blocked = of("h100_tf32_blocked_grouped_e4m3_out")
OWN_EXPECT = f"    {EXPECT}args.a_desc.nbytes_per_cta{AND_B}\n"
MULTIPLY_ALONE = "def multiply(args, ring, loads):\n"
WITHOUT_PRODUCER = {
    "tiled_loads_without_their_predicate": tiled(
        K.WORK_IN_FLIGHT,
        "a_smem|b_smem",
        "tma.async_load(",
        ("if loads.k_step < loads.end:", "if loads.k_step >= 0:"),
    ),
    "tiled_parity_flipped": tiled(
        K.READ_AFTER_WRITE,
        "a_smem|b_smem",
        "_smem.load(|return warpgroup_mma(",
        changed_within(READY_WAIT, "ring.phase", "ring.phase ^ 1"),
    ),
    "persistent_loads_without_their_predicate": persistent(
        K.WORK_IN_FLIGHT,
        "a_smem|b_smem",
        "tma.async_load(",
        ("if loads.item < args.tiles_m * args.tiles_n:", "if loads.item >= 0:"),
    ),
    "persistent_bytes_never_expected": persistent(K.DEADLOCK, "load_ready", READY_WAIT, (OWN_EXPECT, "")),
    "persistent_b_in_the_first_stage": persistent(
        K.WRITE_AFTER_WRITE, "b_smem", LOAD_B, ("args.b_smem.index(stage))", "args.b_smem.index(stage * 0))")
    ),
    "persistent_barrier_initialised_again": persistent(
        K.DOUBLE_INIT,
        "load_ready",
        "# planted",
        (
            MULTIPLY_ALONE,
            f"{MULTIPLY_ALONE}    mbarrier.init(args.load_ready.index(0), count=1)  # planted\n",
        ),
    ),
    "persistent_vectors_of_the_tile_before": persistent(
        K.DEADLOCK,
        "vectors_ready",
        VECTORS_WAIT.strip(),
        (FLIP, ""),
        also=((K.READ_AFTER_WRITE, "column_scale_smem", "column_scale.load("),),
    ),
    "blocked_parity_flipped": blocked(
        K.READ_AFTER_WRITE, "a_smem", "a_tile = a_smem.load(", ("k_step & 1)", "k_step & 1 ^ 1)")
    ),
    "blocked_c_not_awaited": blocked(
        K.READ_AFTER_WRITE,
        "c_smem",
        "c = buffers.c_smem.load(",
        ("mbarrier.wait(buffers.c_ready, 0)", NOTHING),
    ),
    "blocked_bytes_of_c_twice": blocked(
        K.BYTE_COUNT,
        "c_ready",
        "mbarrier.expect(ready, 2 * args.c_desc",
        ("(ready, args.c_desc", "(ready, 2 * args.c_desc"),
    ),
    "blocked_c_barrier_not_initialised": blocked(
        K.UNINITIALISED_BARRIER,
        "c_ready",
        "mbarrier.expect(ready, args.c_desc",
        ("    mbarrier.init(c_ready, count=1)\n", ""),
    ),
}

# Blackwell: one CTA, pairs, pairs that share tiles, launch control, block scales.
single, pairs, pairs_of_pairs = of("b200_bf16_n64"), of("b200_tf32"), of("b200_bf16_cluster2x2")
controlled, mixed, mxfp4 = of("b200_fp16_gelu"), of("b200_mxfp8_mxfp4_one_cta"), of("b200_mxfp4_one_cta")
LOAD_EMPTY_WAIT = "mbarrier.wait(args.load_empty.index(ring.slot), ring.phase)"
LOAD_READY_WAIT = "        mbarrier.wait(args.load_ready.index(ring.slot), ring.phase)\n"
SLOT_WAIT = "mbarrier.wait(args.accumulator_{}.index(sums.slot), sums.phase)"
SUBTILE_READ = "= accumulator.slice("
TCGEN05_MMA, SCALED_MMA = "tcgen05_mma(", "tcgen05_mma_scaled("
COMMIT = "tcgen05_commit(args.accumulator_ready.index(sums.slot))"
FREES = "mbarriers=[args.load_empty.index(ring.slot)]"
DRAIN = "        store(args, tile.row, tile.column, args.accumulator, args.accumulator_empty)\n"
COPY_A = "        tcgen05_copy(as_matrix(args.a_scale_smem.index(ring.slot)), args.a_scale_tmem)\n"
COPY_B = COPY_A.replace("a_scale", "b_scale")
PAIRS_MULTIPLY = "        ring = multiply(args, args.accumulator, ring)\n"
PAIRS_COMMIT = "        tcgen05_commit(args.accumulator_ready)\n"
BLACKWELL = {
    "single_commit_to_the_empty_barrier": single(
        K.DEADLOCK,
        "accumulator_ready",
        SLOT_WAIT.format("ready"),
        changed_within(COMMIT, "ready", "empty"),
    ),
    "single_mma_frees_the_next_stage": single(
        K.DEADLOCK,
        "load_empty",
        LOAD_EMPTY_WAIT,
        changed_within(FREES, "ring.slot", "(ring.slot + 1) % STAGES"),
        also=((K.EARLY_ARRIVAL, "load_empty", TCGEN05_MMA),),
    ),
    "single_ready_awaited_by_the_other_parity": single(
        K.UNINITIALISED_READ,
        "accumulators",
        SUBTILE_READ,
        changed_within(SLOT_WAIT.format("ready"), "sums.phase", "sums.phase ^ 1"),
    ),
    "single_store_wait_of_a_whole_ring": single(
        K.WRITE_AFTER_READ,
        "d_smem",
        "d_smem.store(",
        ("store_wait(EPILOGUE_BUFFERS - 1)", "store_wait(EPILOGUE_BUFFERS)"),
    ),
    "single_both_halves_in_one_buffer": single(
        K.WRITE_AFTER_READ, "d_smem", "d_smem.store(", ("args.d_smem.index(1)", "args.d_smem.index(0)")
    ),
    "pairs_commit_before_the_mmas": pairs(
        K.UNINITIALISED_READ,
        "accumulator",
        SUBTILE_READ,
        (PAIRS_MULTIPLY + PAIRS_COMMIT, PAIRS_COMMIT + PAIRS_MULTIPLY),
    ),
    "pairs_epilogue_parity_of_the_first_tile": pairs(
        K.READ_AFTER_WRITE,
        "accumulator",
        SUBTILE_READ,
        (f"{FLIP}    tma.store_wait(0)\n", "    tma.store_wait(0)\n"),
    ),
    "pairs_mma_parity_of_the_first_tile": pairs(
        K.WRITE_AFTER_READ, "accumulator", TCGEN05_MMA, (PAIRS_COMMIT + FLIP, PAIRS_COMMIT)
    ),
    "pairs_sums_read_before_their_wait": pairs(
        K.UNINITIALISED_READ,
        "accumulator",
        SUBTILE_READ,
        (
            f"        mbarrier.wait(args.accumulator_ready, phase)\n{DRAIN}",
            f"{DRAIN}        mbarrier.wait(args.accumulator_ready, phase)\n",
        ),
    ),
    "pairs_bytes_of_b_twice": pairs(
        K.BYTE_COUNT,
        "load_ready",
        EXPECT,
        changed_within(f"args.a_desc.nbytes_per_cta{AND_B}", "args.b_desc", "2 * args.b_desc"),
    ),
    "pairs_of_pairs_one_commit_awaited": pairs_of_pairs(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        (
            "mbarrier.init(load_empty.index(stage), count=2)",
            "mbarrier.init(load_empty.index(stage), count=1)",
        ),
    ),
    "pairs_of_pairs_free_their_own_stages": pairs_of_pairs(
        K.DEADLOCK,
        "load_empty",
        LOAD_EMPTY_WAIT,
        ("            multicast=True,\n            mbarriers", "            mbarriers"),
    ),
    "controlled_stage_ready_in_each_cta": controlled(
        K.READ_AFTER_WRITE,
        "a_smem|b_smem",
        TCGEN05_MMA,
        (
            "load_ready = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)",
            "load_ready = mbarrier.allocate_mbarrier(batch=STAGES)",
        ),
    ),
    "controlled_response_of_the_first_slot": controlled(
        K.UNINITIALISED_READ,
        "clc_responses",
        "clc.load_result(",
        (
            "clc.load_result(args.clc_responses.index(responses.slot))",
            "clc.load_result(args.clc_responses.index((responses.slot + 1) % CLC_RESPONSES))",
        ),
    ),
    "mixed_scales_copied_before_their_wait": mixed(
        K.UNINITIALISED_READ,
        "a_scale_smem",
        COPY_A.strip(),
        (LOAD_READY_WAIT + COPY_A, COPY_A + LOAD_READY_WAIT),
    ),
    "mixed_bytes_of_tiles_for_scales": mixed(
        K.BYTE_COUNT,
        "load_ready",
        "mbarrier.expect(",
        ("+ args.a_scale_desc.nbytes_per_cta\n", "+ args.a_desc.nbytes_per_cta\n"),
        ("+ args.b_scale_desc.nbytes_per_cta,\n", "+ args.b_desc.nbytes_per_cta,\n"),
    ),
    "mixed_scales_in_the_first_stage": mixed(
        K.WRITE_AFTER_READ,
        "b_scale_smem",
        "tma.async_load(args.b_scale_desc",
        (
            "b_scale_tile = args.b_scale_smem.index(ring.slot)",
            "b_scale_tile = args.b_scale_smem.index(ring.slot * 0)",
        ),
    ),
    "mixed_sums_never_turn": mixed(
        K.WRITE_AFTER_READ,
        "accumulators",
        SCALED_MMA,
        (f"{COMMIT}\n        sums = sums.next()\n", f"{COMMIT}\n"),
    ),
    "mxfp4_scales_of_b_copied_after_the_mma": mxfp4(
        K.UNINITIALISED_READ,
        "b_scale_tmem",
        SCALED_MMA,
        (COPY_B, ""),
        (f"            {FREES},\n        )\n", f"            {FREES},\n        )\n{COPY_B}"),
    ),
    "mxfp4_stage_freed_by_a_plain_arrival": mxfp4(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem|a_scale_smem|b_scale_smem",
        "tma.async_load(",
        (
            f"            {FREES},\n        )\n",
            "        )\n        mbarrier.arrive(args.load_empty.index(ring.slot))\n",
        ),
    ),
    "mxfp4_sums_released_before_they_were_read": mxfp4(
        K.WRITE_AFTER_READ,
        "accumulator",
        SCALED_MMA,
        (
            DRAIN,
            f"        mbarrier.arrive(args.accumulator_empty)\n{DRAIN}",
        ),
        ("    mbarrier.arrive(accumulator_empty)\n", ""),
    ),
    "mxfp4_store_left_running": mxfp4(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, changed_within(FINAL_WAIT, "(0)", "(1)")
    ),
}

# Tiles of several parts: of three consumers, in turns, promoted, and in clusters with C.
thirds, parts_by_turns = (
    of("h100_bf16_composed_three_consumers_bf16_out"),
    of("h100_fp16_composed_ping_pong_fp16_out"),
)
promoted_parts, parts_with_c = (
    of("h100_e5m2_composed_promoted_e4m3_out"),
    of("h100_tf32_composed_cluster2x1_fp32_out"),
)
ahead = of("h100_bf16_128x160")
AHEAD_WAIT = "        in_flight = warpgroup_mma_wait(0, deps=in_flight)\n"
PARTS_WAIT = "        accumulators = warpgroup_mma_wait(0, deps=accumulators)\n"
PARTS_IN_FLIGHT = "        accumulators = warpgroup_mma_wait(PARTS, deps=accumulators)\n"
PROMOTED_WAIT = "        steps = warpgroup_mma_wait(0, deps=steps)\n"
AND_B_1 = "\n        + args.b_desc[1].nbytes_per_cta,"
ISSUE = "sums = warpgroup_mma("
seven = of("h100_bf16_composed_two_buffers_of_seven")
ANEW_WAIT, SUBTILE_LOOP = "    tma.store_wait(0)\n", "    for i in gl.static_range(SUBTILES):\n"
WIDE_PART = "split_part(accumulators[0], halvings=2)"
NARROW_PART = "split_part(accumulators[1], halvings=0)"
COMPOSED = {
    "thirds_bytes_of_the_first_part": thirds(K.BYTE_COUNT, "load_ready", "mbarrier.expect(", (AND_B_1, ",")),
    "thirds_second_part_of_the_columns_of_the_first": thirds(
        WRONG_NUMBERS, "d_desc", "", ("[k, tile.column + PART_N_0]", "[k, tile.column]")
    ),
    "thirds_counted_as_two": thirds(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        (
            "mbarrier.init(load_empty.index(stage), count=CONSUMERS)",
            "mbarrier.init(load_empty.index(stage), count=2)",
        ),
    ),
    "thirds_released_before_the_last_part_retired": thirds(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        (PARTS_WAIT, PARTS_WAIT.replace("(0,", "(1,")),
        also=((K.ACCUMULATOR_IN_FLIGHT, "sums", "tile += c"),),
    ),
    "thirds_parts_stored_in_the_wrong_order": thirds(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (
            f"{WIDE_PART}\n    subtiles += {NARROW_PART}",
            f"{NARROW_PART}\n    subtiles += {WIDE_PART}",
        ),
    ),
    "thirds_third_stores_the_rows_of_the_second": thirds(
        K.WRITE_AFTER_READ, "d_smem_1", "d_smem.store(", ("d_smem_2)", "d_smem_1)")
    ),
    "turns_an_mma_of_the_older_step_left_in_flight": parts_by_turns(
        K.READ_AFTER_WRITE,
        "a_smem|b_smem",
        ISSUE,
        (PARTS_IN_FLIGHT, PARTS_IN_FLIGHT.replace("PARTS", "PARTS + 1")),
    ),
    "ahead_released_before_the_mmas_retired": ahead(
        K.WRITE_AFTER_READ,
        "b_smem",
        "tma.async_load(args.b_desc",
        (AHEAD_WAIT, AHEAD_WAIT.replace("(0,", "(1,")),
        also=((K.READ_AFTER_WRITE, "b_smem", ISSUE), (K.ACCUMULATOR_IN_FLIGHT, "sums", ISSUE)),
    ),
    "ahead_reads_the_next_a_too_early": ahead(
        K.READ_AFTER_WRITE,
        "a_smem",
        "a_tile = a_smem.load(",
        ("mbarrier.wait(args.load_ready.index(following.stage), following.phase)", NOTHING),
    ),
    "ahead_reads_the_same_a_again": ahead(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("read_a(a_smem.index(following.stage))", "read_a(a_smem.index(ring.stage))"),
    ),
    "promoted_parts_added_in_flight": promoted_parts(
        K.ACCUMULATOR_IN_FLIGHT,
        "sums",
        "accumulators[i] + steps[i]",
        (PROMOTED_WAIT, PROMOTED_WAIT.replace("(0,", "(1,")),
    ),
    "parts_of_c_in_an_even_number_of_phases": parts_with_c(
        K.DEADLOCK, "c_ready", "mbarrier.wait(buffers.c_ready", ("(phase + subtile) & 1", "subtile & 1")
    ),
    "parts_loaded_before_the_group_released": parts_with_c(
        K.WRITE_AFTER_READ,
        "b_smem",
        "tma.async_load(",
        ("mbarrier.wait(args.b_multicast_empty.index(ring.stage), ring.phase)", NOTHING),
    ),
    "seven_subtiles_ring_anew_without_a_wait": seven(
        K.WRITE_AFTER_READ, "d_smem_0|d_smem_1", "d_smem.store(", (ANEW_WAIT + SUBTILE_LOOP, SUBTILE_LOOP)
    ),
    "seven_subtiles_one_store_too_many_in_flight": seven(
        K.WRITE_AFTER_READ,
        "d_smem_0|d_smem_1",
        "d_smem.store(",
        ("tma.store_wait(EPILOGUE_BUFFERS - 1)", "tma.store_wait(EPILOGUE_BUFFERS)"),
    ),
}

# A staggered tile: which rows and columns are whose in which tile, one consumer with two parts, one with one.
staggered = of("h100_e4m3_staggered")
STAGGERED = {
    "staggered_tiles_do_not_change_sides": staggered(
        WRONG_NUMBERS, "d_desc", "", ("column // PROGRAM_TILE_N % 2", "column // PROGRAM_TILE_N % 1")
    ),
    "staggered_common_columns_stay": staggered(
        K.REDUNDANT_STORE,
        "d_desc",
        TMA_STORE,
        ("column + is_mirrored(column) * STAGGER_N", "column"),
        severity=Severity.LINT,  # both tiles store the same numbers
    ),
    "staggered_own_columns_stay": staggered(
        WRONG_NUMBERS, "d_desc", "", ("(1 - is_mirrored(column)) * PROGRAM_TILE_N", "PROGRAM_TILE_N")
    ),
    "staggered_own_part_stored_as_a_common_one": staggered(
        WRONG_NUMBERS, "d_desc", "", ("own + (i - SUBTILES) * SUBTILE_N", "first + i * SUBTILE_N")
    ),
    "staggered_bytes_of_the_common_part": staggered(
        K.BYTE_COUNT, "load_ready", "mbarrier.expect(", (AND_B_1, ",")
    ),
    "staggered_released_before_the_own_part_retired": staggered(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        ("accumulators = wait_for(accumulators, 0)", "accumulators = wait_for(accumulators, 1)"),
        also=((K.ACCUMULATOR_IN_FLIGHT, "sums", "tile *= tensor_scale"),),
    ),
}

MUTANTS = (
    ONE_CONSUMER
    | COOPERATIVE
    | PING_PONG
    | RING_OF_C
    | CLUSTERS
    | WITHOUT_PRODUCER
    | COMPOSED
    | STAGGERED
    | BLACKWELL
)
