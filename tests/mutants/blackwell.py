"""Faults in modules for Blackwell: accumulators in tensor memory, and the ring of stages.

The modules are those of specs in `kinds`: what the committed ones have, with few small stages, so that every
ring soon comes round.
"""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.mutant import NOTHING, of

K = Kind
# One CTA with launch control, a pair, and two pairs that share A and B; block-scaled: one CTA, and a pair
# with launch control and a single accumulator.
one, pair = of("b200_dense_one_cta"), of("b200_dense_pair")
share_a, share_b = of("b200_dense_2x2"), of("b200_dense_4x1")
scaled, scaled_pair = of("b200_scaled_one_cta"), of("b200_scaled_pair")


def within(text: str, old: str, new: str = "") -> tuple[str, str]:
    """Return the change of a text in which one part is another."""
    assert old in text, f"no {old!r} in {text!r}"
    return text, text.replace(old, new)


MMA, SCALED_MMA = "tcgen05_mma(", "tcgen05_mma_scaled("
READ = "tile = accumulator.slice(i * SUBTILE_N, SUBTILE_N).load()"
EMPTY_WAIT = "mbarrier.wait(args.accumulator_empty.index(sums.slot), sums.phase)"
EMPTY_AT_FIRST = "RingPosition(gl.to_tensor(0), gl.to_tensor(1), ACCUMULATORS)"
READY_WAIT = "mbarrier.wait(args.accumulator_ready.index(sums.slot), sums.phase)"
LAST_READ = "    tile = accumulator.slice((SUBTILES - 1) * SUBTILE_N, SUBTILE_N).load()\n"
RELEASE = "    mbarrier.arrive(accumulator_empty)\n"
RELEASED_EARLY = (LAST_READ + RELEASE, RELEASE + LAST_READ)
WHOLE_READ = "    tile = accumulator.load()\n"
COMMIT = "tcgen05_commit(args.accumulator_ready.index(sums.slot))"
MULTIPLY = "ring = multiply(args, args.accumulators.index(sums.slot), ring)\n"
END_OF_MULTIPLY = "        ring = ring.next()\n    return ring\n\n\n@gluon.jit\ndef mma_partition("
EMPTY_OF_PAIRS = "accumulator_empty = mbarrier.allocate_mbarrier(batch=ACCUMULATORS, two_ctas=True)"
ACCUMULATORS = {
    "accumulator_released_before_its_last_subtile": pair(
        K.WRITE_AFTER_READ, "accumulators", MMA, RELEASED_EARLY
    ),
    "whole_accumulator_released_before_it_was_read": share_a(
        K.WRITE_AFTER_READ,
        "accumulators",
        MMA,
        (WHOLE_READ + RELEASE, RELEASE + WHOLE_READ),
    ),
    "only_accumulator_released_after_a_subtile": scaled_pair(
        K.WRITE_AFTER_READ,
        "accumulator",
        SCALED_MMA,
        (RELEASE, ""),
        (f"        {READ}\n", f"        {READ}\n        if i == 0:\n        {RELEASE}"),
    ),
    "accumulator_read_before_it_is_ready": one(
        K.UNINITIALISED_READ, "accumulators", READ, (READY_WAIT, NOTHING)
    ),
    "accumulator_not_awaited_before_reuse": one(
        K.WRITE_AFTER_READ, "accumulators", MMA, (EMPTY_WAIT, NOTHING)
    ),
    "accumulator_ready_by_a_plain_arrival": one(
        K.READ_AFTER_WRITE, "accumulators", READ, within(COMMIT, "tcgen05_commit", "mbarrier.arrive")
    ),
    "accumulator_not_committed": pair(K.DEADLOCK, "accumulator_ready", READY_WAIT, (COMMIT, NOTHING)),
    "accumulator_committed_in_every_step": pair(
        K.READ_AFTER_WRITE,
        "accumulators",
        READ,
        ("def multiply(args, accumulator, ring):", "def multiply(args, accumulator, ring, ready):"),
        (END_OF_MULTIPLY, f"        tcgen05_commit(ready)\n{END_OF_MULTIPLY}"),
        (
            f"{MULTIPLY}        {COMMIT}",
            MULTIPLY.replace("ring)", "ring, args.accumulator_ready.index(sums.slot))"),
        ),
    ),
    "accumulator_released_by_one_cta": pair(
        K.WRITE_AFTER_READ, "accumulators", MMA, within(EMPTY_OF_PAIRS, ", two_ctas=True")
    ),
    "only_accumulator_released_by_one_cta": scaled_pair(
        K.WRITE_AFTER_READ,
        "accumulator",
        SCALED_MMA,
        within("accumulator_empty = mbarrier.allocate_mbarrier(two_ctas=True)", "two_ctas=True"),
    ),
    "accumulator_awaits_each_cta_twice": share_a(
        K.DEADLOCK,
        "accumulator_empty",
        EMPTY_WAIT,
        within("mbarrier.init(accumulator_empty.index(slot), count=1)", "=1", "=2"),
    ),
    "accumulator_phase_of_every_tile": pair(
        K.READ_AFTER_WRITE,
        "accumulators",
        READ,
        within(READY_WAIT, "sums.phase", "sums.slot"),
    ),
    "accumulator_phase_not_flipped": one(
        K.DEADLOCK, "accumulator_empty", EMPTY_WAIT, within(EMPTY_AT_FIRST, "(1)", "(0)")
    ),
    "all_sums_in_the_first_accumulator": scaled(
        K.WRITE_AFTER_READ,
        "accumulators",
        SCALED_MMA,
        within(MULTIPLY, "sums.slot", "0"),
    ),
    "sums_begin_with_what_was_there": one(
        K.UNINITIALISED_READ, "accumulators", MMA, within("use_acc=k_step > 0", "k_step > 0", "True")
    ),
    "too_many_accumulators": pair(
        K.TMEM_CAPACITY,
        "accumulators",
        "accumulators = allocate_tensor_memory(",
        within("ACCUMULATORS = gl.constexpr(2)", "2", "9"),
    ),
}

LOAD_EMPTY_WAIT = "mbarrier.wait(args.load_empty.index(ring.slot), ring.phase)"
LOAD_READY_WAIT = "mbarrier.wait(args.load_ready.index(ring.slot), ring.phase)"
LOAD_A = "tma.async_load(args.a_desc, [tile.row, k]"
LOAD_B = "tma.async_load(args.b_desc, [tile.column, k]"
LOAD_SCALES = "tma.async_load("
COPY_A_SCALES = "        tcgen05_copy(as_matrix(args.a_scale_smem.index(ring.slot)), args.a_scale_tmem)\n"
COPY_B_SCALES = COPY_A_SCALES.replace("a_scale", "b_scale")
READY_OF_PAIRS = "load_ready = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)"
EXPECT = "mbarrier.expect("
B_BYTES = " args.b_desc.nbytes_per_cta"
A_SCALE_BYTES = "            + args.a_scale_desc.nbytes_per_cta\n"
B_SCALE_BYTES = "            + args.b_scale_desc.nbytes_per_cta,\n"
RELEASED = "args.load_empty.index(ring.slot)"
TO_BARRIER = f"            mbarriers=[{RELEASED}],\n"
TO_ALL = f"            multicast=True,\n{TO_BARRIER}"
END_OF_MMA = "        )\n"
ARRIVE = f"        mbarrier.arrive({RELEASED})\n"
EMPTY_OF_TWO_PAIRS = "mbarrier.init(load_empty.index(stage), count=2)"
RING = "    ring = RingPosition(gl.to_tensor(0), gl.to_tensor(0), STAGES)\n"
TILES = (
    f"    sums = {EMPTY_AT_FIRST}\n"
    "    for _ in range(gl.program_id(0), args.tiles_m * args.tiles_n, gl.num_programs(0)):\n"
)
STAGES = {
    "stage_multiplied_before_it_is_loaded": one(
        K.UNINITIALISED_READ, "a_smem|b_smem", MMA, (LOAD_READY_WAIT, NOTHING)
    ),
    "scales_copied_before_they_are_loaded": scaled(
        K.UNINITIALISED_READ, "a_scale_smem|b_scale_smem", "tcgen05_copy(", (LOAD_READY_WAIT, NOTHING)
    ),
    "stage_not_awaited_before_the_next_load": pair(
        K.WRITE_AFTER_READ, "a_smem|b_smem", "tma.async_load(", (LOAD_EMPTY_WAIT, NOTHING)
    ),
    "stage_ready_in_one_cta": pair(
        K.READ_AFTER_WRITE, "a_smem", MMA, within(READY_OF_PAIRS, ", two_ctas=True")
    ),
    "scales_ready_in_one_cta": scaled_pair(
        K.READ_AFTER_WRITE,
        "a_scale_smem|b_scale_smem",
        "tcgen05_copy(",
        within(READY_OF_PAIRS, ", two_ctas=True"),
    ),
    "bytes_of_b_not_expected": share_a(K.BYTE_COUNT, "load_ready", EXPECT, (f" +{B_BYTES})", ")")),
    "bytes_of_scales_not_expected": scaled(
        K.BYTE_COUNT,
        "load_ready",
        EXPECT,
        (A_SCALE_BYTES + B_SCALE_BYTES, ""),
    ),
    "bytes_of_b_scales_not_expected": scaled_pair(K.BYTE_COUNT, "load_ready", EXPECT, (B_SCALE_BYTES, "")),
    "stage_released_by_a_plain_arrival": one(
        K.WRITE_AFTER_READ, "a_smem", LOAD_A, (TO_BARRIER + END_OF_MMA, END_OF_MMA + ARRIVE)
    ),
    "stage_not_released": pair(K.DEADLOCK, "load_empty", LOAD_EMPTY_WAIT, within(TO_BARRIER, RELEASED)),
    "stage_before_released": scaled_pair(
        K.EARLY_ARRIVAL,
        "load_empty",
        SCALED_MMA,
        within(TO_BARRIER, "ring.slot", "(ring.slot + STAGES - 1) % STAGES"),
    ),
    "stage_released_twice": pair(
        K.EARLY_ARRIVAL, "load_empty", MMA, within(TO_BARRIER, RELEASED, f"{RELEASED}, {RELEASED}")
    ),
    "one_pair_of_two_that_share_a_awaited": share_a(
        K.WRITE_AFTER_READ, "a_smem", LOAD_A, within(EMPTY_OF_TWO_PAIRS, "=2", "=1")
    ),
    "one_pair_of_two_that_share_b_awaited": share_b(
        K.WRITE_AFTER_READ, "b_smem", LOAD_B, within(EMPTY_OF_TWO_PAIRS, "=2", "=1")
    ),
    "three_pairs_of_two_awaited": share_b(
        K.DEADLOCK, "load_empty", LOAD_EMPTY_WAIT, within(EMPTY_OF_TWO_PAIRS, "=2", "=3")
    ),
    "shared_a_released_in_its_own_pair_only": share_a(
        K.DEADLOCK, "load_empty", LOAD_EMPTY_WAIT, (TO_ALL, TO_BARRIER)
    ),
    "ring_restarts_at_every_tile": pair(
        K.ARRIVAL_OVERFLOW,
        "load_ready",
        EXPECT,
        (RING + TILES, f"{TILES}    {RING}"),
        also=((K.READ_AFTER_WRITE, "a_smem|b_smem", MMA),),
    ),
    "constant_phase_of_loads": pair(
        K.READ_AFTER_WRITE, "a_smem", MMA, within(LOAD_READY_WAIT, "ring.phase", "0")
    ),
    "a_of_the_next_stage": pair(
        K.READ_AFTER_WRITE,
        "a_smem",
        MMA,
        ("a_smem.index(ring.slot),\n", "a_smem.index((ring.slot + 1) % STAGES),\n"),
    ),
    "scales_of_the_first_stage": scaled_pair(
        K.READ_AFTER_WRITE, "a_scale_smem", "a_scale_smem.index(0)", within(COPY_A_SCALES, "ring.slot", "0")
    ),
    "scales_not_copied": scaled_pair(K.UNINITIALISED_READ, "a_scale_tmem", SCALED_MMA, (COPY_A_SCALES, "")),
    "scales_copied_over_those_of_a": scaled(
        K.UNINITIALISED_READ,
        "b_scale_tmem",
        SCALED_MMA,
        within(COPY_B_SCALES, "b_scale_tmem", "a_scale_tmem"),
    ),
    "scales_copied_after_the_mma": scaled(
        K.WRITE_AFTER_READ,
        "b_scale_smem",
        LOAD_SCALES,
        (COPY_B_SCALES, ""),
        (TO_BARRIER + END_OF_MMA, TO_BARRIER + END_OF_MMA + COPY_B_SCALES),
        also=((K.UNINITIALISED_READ, "b_scale_tmem", SCALED_MMA),),
    ),
    "too_many_stages": pair(
        K.SMEM_CAPACITY,
        "a_smem",
        "a_smem = gl.allocate_shared_memory(",
        within("STAGES = gl.constexpr(2)", "2", "48"),
    ),
}

# What an epilogue reads: of a pair, C by four sub-tiles through two buffers, and vectors; of one CTA with
# block scales and launch control, C by halves through one buffer, and a vector.
residual, halved = of("b200_residual_pair"), of("b200_residual_scaled")
C_READ, C_LOAD = "c = buffers.c_smem", "tma.async_load(args.c_desc"
C_RING_WAIT = (
    "mbarrier.wait(buffers.c_ready.index(subtile % EPILOGUE_BUFFERS), subtile // EPILOGUE_BUFFERS & 1)"
)
C_HALF_WAIT = "mbarrier.wait(buffers.c_ready, subtile & 1)"
VECTORS_WAIT = "mbarrier.wait(buffers.vectors_ready, phase)"
VECTORS_LOAD = "        load_vectors(args, args.buffers, tile.row, tile.column)\n"
LEFT = "    tile = epilogue(tile, 0, buffers)\n"
C_FENCE = "    fence_async_shared()\n    c_smem = buffers.c_smem\n"
TMA_STORE = "tma.async_store("
STORE_FENCE = f"    fence_async_shared()\n    {TMA_STORE}"
REFILL = "    load_c(args, buffers, row, column, 1)\n"
EPILOGUES = {
    "c_read_before_it_is_loaded": residual(K.READ_AFTER_WRITE, "c_smem", C_READ, (C_RING_WAIT, NOTHING)),
    "c_phase_flipped": residual(
        K.DEADLOCK,
        "c_ready",
        "mbarrier.wait(buffers.c_ready",
        within(C_RING_WAIT, "& 1)", "& 1 ^ 1)"),
        also=((K.READ_AFTER_WRITE, "c_smem", C_READ),),
    ),
    "c_of_the_next_buffer": residual(
        K.READ_AFTER_WRITE,
        "c_smem",
        C_READ,
        within("c = buffers.c_smem.index(subtile %", "(subtile", "((subtile + 1)"),
    ),
    "c_buffer_refilled_by_the_next_sub_tile": residual(
        K.WRITE_AFTER_WRITE, "c_smem", C_LOAD, ("column, i + EPILOGUE_BUFFERS)", "column, i + 1)")
    ),
    "c_half_refilled_before_it_was_read": halved(
        K.WRITE_AFTER_READ, "c_smem", C_LOAD, (LEFT + REFILL, REFILL + LEFT)
    ),
    "c_loaded_without_a_fence_behind_its_reads": halved(
        K.MISSING_FENCE,
        "c_smem",
        C_LOAD,
        (C_FENCE, C_FENCE.partition("\n")[2]),
        (STORE_FENCE, f"    {TMA_STORE}"),
        severity=Severity.LINT,
        also=((K.MISSING_FENCE, "d_smem", TMA_STORE),),
    ),
    "c_half_awaited_in_the_first_phase": halved(
        K.READ_AFTER_WRITE, "c_smem", C_READ, within(C_HALF_WAIT, "subtile & 1", "0")
    ),
    "vectors_read_before_they_are_loaded": residual(
        K.READ_AFTER_WRITE,
        "row_scale_smem|column_bias_smem",
        ".load(gl.SliceLayout(",
        (VECTORS_WAIT, NOTHING),
    ),
    "vectors_phase_of_the_first_tile": residual(
        K.DEADLOCK,
        "vectors_ready",
        VECTORS_WAIT,
        ("        phase ^= 1\n", ""),
        also=((K.READ_AFTER_WRITE, "row_scale_smem|column_bias_smem", ".load(gl.SliceLayout("),),
    ),
    "bytes_of_a_vector_not_expected": residual(
        K.BYTE_COUNT,
        "vectors_ready",
        "mbarrier.expect(",
        (" + args.column_bias_desc.nbytes_per_cta", ""),
    ),
    "vectors_ready_in_one_cta": residual(
        K.READ_AFTER_WRITE,
        "row_scale_smem|column_bias_smem",
        ".load(gl.SliceLayout(",
        (
            "vectors_ready = mbarrier.allocate_mbarrier()",
            "vectors_ready = mbarrier.allocate_mbarrier(two_ctas=True)",
        ),
    ),
    "vectors_never_loaded": halved(
        K.DEADLOCK,
        "vectors_ready",
        "mbarrier.wait(buffers.vectors_ready",
        (VECTORS_LOAD.replace("tile.row, ", ""), ""),
    ),
}
MUTANTS = ACCUMULATORS | STAGES | EPILOGUES
