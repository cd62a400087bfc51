"""Faults in the rings of stages and of epilogue buffers of two cooperative modules: one CTA, and two."""

from __future__ import annotations

from gluonsim import Kind, Severity
from mutants.mutant import NOTHING, Mutant, of

SHAPES = {
    # Four tiles in one program; 10 k-steps are 2 * 4 stages + 2. The last rows and columns are ragged.
    "h100_bf16": (208, 416, 640),
    "h100_bf16_cluster2x1": (432, 416, 640),
}

READY_WAIT = "mbarrier.wait(args.load_ready.index(ring.stage), ring.phase)"
FIRST_READY_WAIT = f"\n    {READY_WAIT}\n"
EMPTY_WAIT = "mbarrier.wait(args.load_empty.index(ring.stage), ring.phase)"
EMPTY_AT_FIRST = "RingPosition(gl.to_tensor(0), gl.to_tensor(1))"
GROUP_WAIT = "mbarrier.wait(args.b_multicast_empty.index(ring.stage), ring.phase)"
MMA = "return warpgroup_mma(a_tile, b_tile.permute((1, 0)), accumulator, is_async=True)"
LAST_WAIT = "accumulator = warpgroup_mma_wait(0, deps=[accumulator])"
FIRST_MMA_WAIT = "\n    accumulator = warpgroup_mma_wait(1, deps=[accumulator])\n"
RELEASE = "        mbarrier.arrive(args.load_empty.index(ring.stage))\n"
GROUP_RELEASE = "release(args, ring.stage)"
STORE_WAIT = "    tma.store_wait(0)\n    d_smem.store("
FINAL_WAIT = "    tma.store_wait(0)\n\n\n"
ONE_CTA_LOAD_B = "tma.async_load(args.b_desc, [tile.column, k], ready, args.b_smem.index(ring.stage))"
LOAD_A = "tma.async_load(args.a_desc, [tile.row + i * CONSUMER_TILE_M, k], ready, a_tile)"
LOAD_B = "tma.async_load(args.b_desc, [tile.column, k], ready, args.b_smem.index(ring.stage), multicast=True)"
STORE = "d_smem.store(tile.to(args.d_desc.dtype))"
TMA_STORE = "tma.async_store("
EXPECT = "mbarrier.expect("
LOAD = "tma.async_load("
EARLY_LOAD = (Kind.WRITE_AFTER_READ, "a_smem|b_smem", LOAD)
"""What comes of a missing wait for an empty stage, beside an arrival too many."""


one, two = of("h100_bf16"), of("h100_bf16_cluster2x1")


K = Kind
MUTANTS = {
    # One CTA; each MMA is awaited before the next.
    "consumer_phase_flipped": one(
        K.UNINITIALISED_READ, "a_smem_0", MMA, (READY_WAIT, READY_WAIT.replace("phase)", "phase ^ 1)"))
    ),
    "no_ready_wait": one(K.UNINITIALISED_READ, "a_smem|b_smem", MMA, (READY_WAIT, NOTHING)),
    "producer_phase_not_flipped": one(
        K.DEADLOCK, "load_empty", EMPTY_WAIT, (EMPTY_AT_FIRST, EMPTY_AT_FIRST.replace("(1)", "(0)"))
    ),
    "missing_arrive": one(K.DEADLOCK, "load_empty", EMPTY_WAIT, (RELEASE, "")),
    "empty_count_one_too_many": one(
        K.DEADLOCK, "load_empty", EMPTY_WAIT, ("count=CONSUMERS)", "count=CONSUMERS + 1)")
    ),
    "ready_count_one_too_many": one(K.DEADLOCK, "load_ready", READY_WAIT, ("count=1)", "count=2)")),
    "empty_count_one_too_few": one(
        K.WRITE_AFTER_READ, "a_smem|b_smem", LOAD, ("count=CONSUMERS)", "count=1)")
    ),
    "constant_consumer_phase": one(
        K.READ_AFTER_WRITE,
        "a_smem_0",
        MMA,
        (READY_WAIT, READY_WAIT.replace("ring.phase", "ring.phase * 0")),
    ),
    "constant_producer_phase": one(
        K.WRITE_AFTER_READ,
        "a_smem_0",
        LOAD_A,
        (EMPTY_WAIT, EMPTY_WAIT.replace("ring.phase", "ring.phase * 0 + 1")),
        also=((K.ARRIVAL_OVERFLOW, "load_ready", EXPECT),),
    ),
    "arrive_before_the_mma_retired": one(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        LOAD,
        (
            f"        {LAST_WAIT}\n{RELEASE}",
            f"{RELEASE}        {LAST_WAIT}\n",
        ),
    ),
    "mma_wait_leaves_one_in_flight": one(
        K.ACCUMULATOR_IN_FLIGHT, "accumulator", "tile.reshape(", (LAST_WAIT, LAST_WAIT.replace("(0,", "(1,"))
    ),
    "no_empty_wait_overflows": one(
        K.ARRIVAL_OVERFLOW, "load_ready", EXPECT, (EMPTY_WAIT, NOTHING), also=(EARLY_LOAD,)
    ),
    "expect_too_large": one(
        K.BYTE_COUNT,
        "load_ready",
        EXPECT,
        ("+ args.b_desc.nbytes_per_cta)", "+ args.b_desc.nbytes_per_cta + 16)"),
    ),
    "expect_too_small": one(K.BYTE_COUNT, "load_ready", EXPECT, (" + args.b_desc.nbytes_per_cta)", ")")),
    "no_store_wait": one(K.WRITE_AFTER_READ, "d_smem_0", STORE, (STORE_WAIT, "    d_smem.store(")),
    "store_wait_off_by_one": one(
        K.WRITE_AFTER_READ, "d_smem", STORE, (STORE_WAIT, STORE_WAIT.replace("(0)", "(1)"))
    ),
    "shared_d_buffer": one(
        K.WRITE_AFTER_READ,
        "d_smem_0",
        STORE,
        ("(d_smem_0, d_smem_1)", "(d_smem_0, d_smem_0)"),
    ),
    "no_final_store_wait": one(K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, "\n\n")),
    "barrier_not_initialised": one(
        K.UNINITIALISED_BARRIER,
        "load_empty",
        EMPTY_WAIT,
        ("        mbarrier.init(load_empty.index(stage), count=CONSUMERS)\n", ""),
    ),
    "wrong_store_coordinate": one(
        K.GLOBAL_RACE, "d_desc", TMA_STORE, ("row + consumer * CONSUMER_TILE_M", "row + consumer * 0")
    ),
    "too_many_stages": one(
        K.SMEM_CAPACITY,
        "b_smem",
        "b_smem = gl.allocate_shared_memory(",
        ("STAGES = gl.constexpr(4)", "STAGES = gl.constexpr(6)"),
    ),
    "loads_past_the_end": one(
        K.WORK_IN_FLIGHT,
        "a_smem|b_smem",
        LOAD,
        ("for k_step in range(args.k_steps):", "for k_step in range(args.k_steps + 1):"),
    ),
    "no_fence_in_the_partition": Mutant(
        "h100_bf16",
        (("    fence_async_shared()\n", ""),),
        K.MISSING_FENCE,
        "d_smem_0",
        TMA_STORE,
        Severity.LINT,
    ),
    "unpayable_registers": Mutant(
        "h100_bf16",
        (("worker_num_regs=[232, 40]", "worker_num_regs=[256, 256]"),),
        K.REGISTER_BUDGET,
        "worker_num_regs",
        "def matmul_kernel(",
        Severity.LINT,
    ),
    # Two CTAs that share B by multicast; one MMA stays in flight.
    "multicast_without_a_cluster_wide_empty": two(
        K.WRITE_AFTER_READ, "b_smem", LOAD_B, (GROUP_WAIT, NOTHING)
    ),
    "no_empty_wait_before_the_expect": two(
        K.ARRIVAL_OVERFLOW, "load_ready", EXPECT, (EMPTY_WAIT, NOTHING), also=(EARLY_LOAD,)
    ),
    "current_stage_released": two(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        LOAD,
        (f"    {LAST_WAIT}\n    {GROUP_RELEASE}", f"    {LAST_WAIT}"),
        (FIRST_MMA_WAIT, f"{FIRST_MMA_WAIT}    {GROUP_RELEASE}\n"),
        ("release(args, stage_in_flight)", GROUP_RELEASE),
    ),
    "accumulator_used_in_flight": two(
        K.ACCUMULATOR_IN_FLIGHT, "accumulator", "tile.reshape(", (LAST_WAIT, LAST_WAIT.replace("(0,", "(1,"))
    ),
    "multicast_not_released": two(
        K.DEADLOCK,
        "b_multicast_empty",
        GROUP_WAIT,
        ("    mbarrier.arrive(args.b_multicast_empty.index(stage))\n", ""),
    ),
    "multicast_empty_count_one_too_few": two(
        K.WRITE_AFTER_READ,
        "b_smem",
        LOAD_B,
        (
            "mbarrier.init(b_multicast_empty.index(stage), count=CONSUMERS)",
            "mbarrier.init(b_multicast_empty.index(stage), count=1)",
        ),
    ),
    "multicast_empty_count_one_too_many": two(
        K.DEADLOCK,
        "b_multicast_empty",
        GROUP_WAIT,
        (
            "mbarrier.init(b_multicast_empty.index(stage), count=CONSUMERS)",
            "mbarrier.init(b_multicast_empty.index(stage), count=CONSUMERS + 1)",
        ),
    ),
    "multicast_empty_not_initialised": two(
        K.UNINITIALISED_BARRIER,
        "b_multicast_empty",
        GROUP_WAIT,
        (
            "mbarrier.init(b_multicast_empty.index(stage), count=CONSUMERS)",
            NOTHING,
        ),
    ),
    "own_bytes_only": two(K.BYTE_COUNT, "load_ready", EXPECT, (" + args.b_desc.nbytes_per_cta)", ")")),
    "no_ready_wait_in_the_cluster": two(K.UNINITIALISED_READ, "a_smem|b_smem", MMA, (FIRST_READY_WAIT, "\n")),
    "no_final_store_wait_in_the_cluster": two(K.WORK_IN_FLIGHT, "d_smem_1", TMA_STORE, (FINAL_WAIT, "\n\n")),
}
