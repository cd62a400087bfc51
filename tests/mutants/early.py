"""Faults in kernels with roles that start before the kernel ahead has ended: who waits, what is loaded when.

A consumer that stores only what it multiplied need not wait itself: it learns of the end from the producer's
loads. So its missing wait is a fault where it reads C, a bias or a scale.
"""

from __future__ import annotations

from gluonsim import Kind
from mutants.kinds import WRONG_NUMBERS
from mutants.mutant import NOTHING, of

K = Kind

roles, splits = of("h100_bf16_early_roles"), of("h100_bf16_early_roles_splits")
group, copies = of("h100_fp16_waiting_cluster2x2"), of("h100_bf16_waiting_misaligned")
program = of("h100_bf16_waiting_parts")
turns, parts = of("h100_fp16_early_a_ping_pong"), of("h100_bf16_early_parts")
WAIT, LAUNCH, RESTART = "    gdc_wait()\n", "    gdc_launch_dependents()\n", "    ring = start\n"
SCALAR = "    tensor_scale = gl.load(args.tensor_scale_ptr)\n"
CONSUMER_RING = "    ring = RingPosition(gl.to_tensor(0), gl.to_tensor(0))\n"
PRODUCER_RING = "    ring = RingPosition(gl.to_tensor(0), gl.to_tensor(1))\n"
READ_SCALE = "    tensor_scale = gl.load(tensor_scale_ptr)\n"
LOAD_C = "    load_c(args, buffers, tile.row, tile.column, 0)\n"
CONSUMER_WAIT = WAIT + SCALAR
PRODUCER_WAIT = WAIT + LAUNCH + RESTART
LOAD_A, LOAD_B = "tma.async_load(args.a_desc", "tma.async_load(args.b_desc"
SCALAR_LOAD = "gl.load(args.tensor_scale_ptr)"
COLUMN_BIAS_LOAD, ROW_BIAS_LOAD = "tma.async_load(args.column_bias_desc", "tma.async_load(args.row_bias_desc"
VECTORS = "        load_vectors(args, args.buffers[consumer], tile.column)\n"
STEPS = "gl.minimum(args.k_steps, STAGES)"
EARLY_B = "        fill_b(args, tile, k_step, ring)\n        ring = ring.next()\n"
LATER_B = "                fill_b(args, tile, k_step, ring)\n"
LATE_A = "            fill_a(args, tile, k_step, ring)\n"
EARLY_A = EARLY_B.replace("fill_b", "fill_a")
LATER_A = LATER_B.replace("fill_b", "fill_a")
LATE_B = LATE_A.replace("fill_a", "fill_b")
NEXT = "        early_end = gl.to_tensor(0)\n"
EMPTY_WAIT = "mbarrier.wait(args.load_empty.index(ring.stage), ring.phase)"
GROUP_WAIT = "mbarrier.wait(args.b_multicast_empty.index(ring.stage), ring.phase)"
READY_WAIT = "mbarrier.wait(args.load_ready.index(ring.stage), ring.phase)"
EXPECT = "    mbarrier.expect(ready, CONSUMERS * args.a_desc.nbytes_per_cta + args.b_desc.nbytes_per_cta)\n"
EXPECTS = "mbarrier.expect(ready, "
WAITS = {
    # The producer.
    "roles_producer_does_not_wait": roles(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (PRODUCER_WAIT, LAUNCH + RESTART)
    ),
    "roles_producer_launches_and_does_not_wait": roles(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (PRODUCER_WAIT, LAUNCH + LAUNCH + RESTART)
    ),
    "roles_producer_waits_behind_its_tiles": roles(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (PRODUCER_WAIT, LAUNCH + RESTART), (NEXT, NEXT + WAIT)
    ),
    "roles_producer_of_the_first_program_does_not_wait": roles(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (PRODUCER_WAIT, f"    if gl.program_id(0) > 0:\n    {PRODUCER_WAIT}"),
    ),
    "roles_both_operands_before_the_wait": roles(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (EARLY_B, LATER_A[8:] + EARLY_B),
        (LATER_B + LATE_A, LATER_B + LATER_A),
    ),
    "roles_the_other_operand_before_the_wait": roles(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (EARLY_B, EARLY_A),
        (LATER_B + LATE_A, LATER_A + LATE_B),
        (EXPECT, ""),
        (
            "    for i in gl.static_range(CONSUMERS):\n        a_tile",
            f"{EXPECT}    for i in gl.static_range(CONSUMERS):\n        a_tile",
        ),
    ),
    # The consumers.
    "roles_consumers_do_not_wait": roles(
        K.EARLY_ACCESS, "tensor_scale_ptr", SCALAR_LOAD, (CONSUMER_WAIT, SCALAR)
    ),
    "roles_first_consumer_does_not_wait": roles(
        K.EARLY_ACCESS,
        "tensor_scale_ptr",
        SCALAR_LOAD,
        (CONSUMER_WAIT, f"    if consumer > 0:\n    {CONSUMER_WAIT}"),
    ),
    "roles_last_consumer_does_not_wait": roles(
        K.EARLY_ACCESS,
        "tensor_scale_ptr",
        SCALAR_LOAD,
        (CONSUMER_WAIT, f"    if consumer == 0:\n    {CONSUMER_WAIT}"),
    ),
    "roles_scalar_before_the_wait": roles(
        K.EARLY_ACCESS, "tensor_scale_ptr", SCALAR_LOAD, (CONSUMER_WAIT, SCALAR + WAIT)
    ),
    "roles_vectors_before_the_wait": roles(
        K.EARLY_ACCESS,
        "column_bias_desc",
        COLUMN_BIAS_LOAD,
        (CONSUMER_WAIT, ""),
        (VECTORS, f"{VECTORS}    {WAIT}    {SCALAR}"),
    ),
    "roles_store_before_the_wait": roles(
        K.EARLY_ACCESS,
        "d_desc",
        "tma.async_store(args.d_desc, [0, 0]",
        (
            CONSUMER_WAIT,
            f"    tma.async_store(args.d_desc, [0, 0], args.buffers[consumer].d_smem)\n{CONSUMER_WAIT}",
        ),
        also=((K.UNINITIALISED_READ, "d_smem", "tma.async_store(args.d_desc, [0, 0]"),),  # there is no D yet
    ),
    "roles_nobody_waits": roles(
        K.EARLY_ACCESS,
        "tensor_scale_ptr",
        SCALAR_LOAD,
        (CONSUMER_WAIT, SCALAR),
        (PRODUCER_WAIT, LAUNCH + RESTART),
        also=((K.EARLY_ACCESS, "a_desc", LOAD_A),),
    ),
    "roles_split_producer_does_not_wait": splits(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (PRODUCER_WAIT, LAUNCH + RESTART)
    ),
    "roles_split_nobody_waits": splits(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (WAIT + CONSUMER_RING, CONSUMER_RING),
        (PRODUCER_WAIT, LAUNCH + RESTART),
        also=(
            (K.EARLY_ACCESS, "partials_ptr", "gl.store(sum_addresses("),
            (K.EARLY_ACCESS, "counters_ptr", "arrived = gl.atomic_add("),
        ),
    ),
    "roles_split_partial_cleared_before_the_wait": splits(
        K.EARLY_ACCESS,
        "partials_ptr",
        "gl.store(args.partials_ptr, ",
        (WAIT + CONSUMER_RING, f"    gl.store(args.partials_ptr, 0.0)\n{WAIT}{CONSUMER_RING}"),
    ),
    "roles_split_counter_cleared_before_the_wait": splits(
        K.EARLY_ACCESS,
        "counters_ptr",
        "gl.atomic_and(args.counters_ptr",
        (WAIT + CONSUMER_RING, f"    gl.atomic_and(args.counters_ptr, -1)\n{WAIT}{CONSUMER_RING}"),
    ),
    "roles_turns_one_consumer_does_not_wait": turns(
        K.EARLY_ACCESS,
        "row_bias_desc",
        ROW_BIAS_LOAD,
        (f"{WAIT}    ring = RingPosition(", f"    if consumer == 0:\n    {WAIT}    ring = RingPosition("),
    ),
    "roles_turns_producer_does_not_wait": turns(K.EARLY_ACCESS, "b_desc", LOAD_B, (WAIT + RESTART, RESTART)),
    "roles_parts_producer_does_not_wait": parts(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (PRODUCER_WAIT, LAUNCH + RESTART)
    ),
}
RING = {
    # The first lap, which two loops fill.
    "roles_a_step_too_many_is_early": roles(
        K.ARRIVAL_OVERFLOW, "load_ready", EXPECTS, (STEPS, "gl.minimum(args.k_steps, STAGES + 1)")
    ),
    "roles_steps_past_the_part_are_early": splits(
        K.ARRIVAL_OVERFLOW, "load_ready", EXPECTS, (STEPS, "STAGES")
    ),
    "roles_next_tile_taken_for_loaded": roles(
        K.WRITE_AFTER_READ, "a_smem", LOAD_A, (NEXT, ""), also=((K.DEADLOCK, "load_ready", READY_WAIT),)
    ),
    "roles_ring_goes_on_behind_the_wait": roles(
        K.ARRIVAL_OVERFLOW, "load_ready", EXPECTS, (LAUNCH + RESTART, LAUNCH)
    ),
    "roles_late_operand_not_loaded_for_the_first_steps": roles(
        K.DEADLOCK,
        "load_ready",
        READY_WAIT,
        (LATE_A, f"    {LATE_A}"),
        also=((K.BYTE_COUNT, "load_ready", EXPECTS),),
    ),
    "roles_expects_its_own_bytes": roles(
        K.BYTE_COUNT,
        "load_ready",
        EXPECTS,
        (EXPECT, EXPECT.replace("CONSUMERS * args.a_desc.nbytes_per_cta + ", "")),
    ),
    "roles_stage_not_awaited": roles(K.ARRIVAL_OVERFLOW, "load_ready", EXPECTS, (EMPTY_WAIT, NOTHING)),
    "roles_first_part_begins_where_another_does": splits(
        WRONG_NUMBERS, "d_desc", "", (EARLY_B, EARLY_B.replace("k_step,", "k_step - steps.first,"))
    ),
    "roles_turns_group_not_awaited": turns(K.WRITE_AFTER_READ, "b_smem", LOAD_B, (GROUP_WAIT, NOTHING)),
    "roles_turns_early_operand_of_the_first_step": turns(
        WRONG_NUMBERS, "d_desc", "", (EARLY_A, EARLY_A.replace("k_step,", "0,"))
    ),
}

WAITING = {
    "waiting_producer_launches_and_does_not_wait": copies(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (WAIT + LAUNCH, LAUNCH + LAUNCH)
    ),
    "waiting_producer_does_not_wait": copies(K.EARLY_ACCESS, "a_desc", LOAD_A, (WAIT + LAUNCH, LAUNCH)),
    "waiting_producer_of_a_cluster_does_not_wait": group(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (WAIT + PRODUCER_RING, PRODUCER_RING)
    ),
    "waiting_program_does_not_wait": program(
        K.EARLY_ACCESS, "tensor_scale_ptr", "gl.load(tensor_scale_ptr)", (WAIT + READ_SCALE, READ_SCALE)
    ),
    "waiting_program_reads_the_scale_first": program(
        K.EARLY_ACCESS,
        "tensor_scale_ptr",
        "gl.load(tensor_scale_ptr)",
        (WAIT + READ_SCALE, READ_SCALE + WAIT),
    ),
    "waiting_program_loads_c_first": program(
        K.EARLY_ACCESS,
        "c_desc",
        "tma.async_load(args.c_desc",
        (WAIT + READ_SCALE + LOAD_C, LOAD_C + WAIT + READ_SCALE),
    ),
    "waiting_program_loads_its_ring_first": program(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (WAIT + READ_SCALE + LOAD_C, ""),
        (LAUNCH, WAIT + READ_SCALE + LOAD_C + LAUNCH),
    ),
}
"""Of kernels that load nothing early."""

MUTANTS = WAITS | RING | WAITING
