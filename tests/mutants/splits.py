"""Faults in kernels whose programs divide a tile's K, and in those that start before the kernel ahead ends.

That `gl.barrier()` is missing before the counter is none: the compiler has all warps wait before a release.
"""

from __future__ import annotations

from gluonsim import Kind
from mutants.counters import COUNTS, faults_of_counter
from mutants.kinds import WRONG_NUMBERS
from mutants.mutant import NOTHING, of

K = Kind

# K divided by three, each part a program's: what they leave for each other, and who adds it up.
splits, both = of("h100_bf16_splits"), of("h100_bf16_early_splits")
COUNT = 'gl.atomic_add(args.counters_ptr + share, 1, sem="acq_rel", scope="gpu")'
ARRIVE = f"    arrived = {COUNT}\n"
LAST = "    return arrived == SPLITS - 1\n"
RESET = "    gl.store(args.counters_ptr + share, 0)\n"
LEAVE = "    gl.store(sum_addresses(args, share * SPLITS + split, sums.type.layout), sums)\n"
FIRST_PARTIAL = "addresses = sum_addresses(args, share * SPLITS, sums.type.layout)\n"
ALL_PARTIALS = "gl.static_range(SPLITS)"
STORES_PARTIAL, LOADS_PARTIALS = "gl.store(sum_addresses(", "gl.load(addresses"
EITHER_PARTIAL = f"{STORES_PARTIAL}|{LOADS_PARTIALS}"
EITHER_COUNTER = "gl.store(args.counters_ptr|gl.atomic_add(args.counters_ptr"
BOUNDS = "self.split * self.args.k_steps, (self.split + 1) * self.args.k_steps)"
SHIFTED = (
    "self.split * (self.args.k_steps {0} 1), self.split * (self.args.k_steps {0} 1) + self.args.k_steps)"
)
PROGRAM = "Tiles(args, gl.program_id(0) // SPLITS, gl.program_id(0) % SPLITS)\n"
K_STEPS = "gl.cdiv(a_desc.shape[1], SPLITS * PROGRAM_TILE_K)"
IS_LAST = "is_last(args, tiles.tile, tiles.split, accumulator)"
IF_LAST = f"    if {IS_LAST}:\n"
SUM = "        accumulator = sum_of_splits(args, tiles.tile)\n"
READY_WAIT = "mbarrier.wait(args.load_ready.index(ring.stage), ring.phase)"
FINAL_WAIT = "        tma.store_wait(0)\n"
TMA_STORE = "tma.async_store("
LOAD = "tma.async_load("
DIVIDED = {
    # The counter: what it orders, for whom, and how it is left.
    **faults_of_counter("split_counter", splits, COUNT, RESET),
    "split_counter_no_atomic": splits(
        K.GLOBAL_RACE,
        "counters_ptr",
        "gl.store(args.counters_ptr|gl.load(args.counters_ptr",
        (COUNT, f"gl.load(args.counters_ptr + share)\n{RESET.replace(', 0)', ', arrived + 1)').rstrip()}"),
    ),
    "split_counter_of_the_first_tile": splits(
        K.GLOBAL_RACE, "counters_ptr", EITHER_COUNTER, (COUNT, COUNT.replace(" + share", " + share * 0"))
    ),
    "split_counter_reset_to_one": splits(
        K.WORKSPACE_NOT_RESTORED, "counters_ptr", RESET.strip()[:-2], (RESET, RESET.replace("0)", "1)"))
    ),
    "split_counter_of_the_next_tile_reset": splits(
        K.GLOBAL_RACE, "counters_ptr", EITHER_COUNTER, (RESET, RESET.replace("+ share", "+ (share ^ 1)"))
    ),
    "split_counter_reset_by_everyone": splits(
        K.GLOBAL_RACE, "counters_ptr", EITHER_COUNTER, (RESET, ""), (ARRIVE, ARRIVE + RESET)
    ),
    "split_counter_reset_by_an_atomic_of_everyone": splits(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (RESET, ""),
        (ARRIVE, f'{ARRIVE}    gl.atomic_store(args.counters_ptr + share, 0, sem="relaxed")\n'),
    ),
    "split_counter_reset_before_it_counts": splits(
        K.GLOBAL_RACE, "counters_ptr", EITHER_COUNTER, (RESET, ""), (ARRIVE, RESET + ARRIVE)
    ),
    # Who is the last.
    "split_nobody_is_last": splits(
        K.WORKSPACE_NOT_RESTORED, "counters_ptr", COUNTS, (LAST, LAST.replace("SPLITS - 1", "SPLITS"))
    ),
    "split_last_but_one_adds_up": splits(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PARTIAL, (LAST, LAST.replace("SPLITS - 1", "SPLITS - 2"))
    ),
    "split_first_adds_up": splits(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PARTIAL, (LAST, LAST.replace("SPLITS - 1", "0"))
    ),
    "split_all_but_the_first_add_up": splits(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PARTIAL, (LAST, LAST.replace("== SPLITS - 1", "> 0"))
    ),
    "split_everyone_adds_up": splits(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PARTIAL,
        (IF_LAST, f"    {IS_LAST}\n    if tiles.split >= 0:\n"),
    ),
    "split_part_of_the_end_adds_up": splits(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PARTIAL,
        (IF_LAST, f"    {IS_LAST}\n    if tiles.split == SPLITS - 1:\n"),
    ),
    "split_sums_added_up_before_the_counter": splits(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PARTIAL,
        (SUM, "        accumulator = total\n"),
        (IF_LAST, f"    total = sum_of_splits(args, tiles.tile)\n{IF_LAST}"),
    ),
    # The partial sums.
    "split_partial_stored_after_the_counter": splits(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PARTIAL, (LEAVE, ""), (ARRIVE, ARRIVE + LEAVE)
    ),
    "split_partials_in_one_place": splits(
        K.GLOBAL_RACE, "partials_ptr", STORES_PARTIAL, (LEAVE, LEAVE.replace("+ split", "+ split * 0"))
    ),
    "split_partials_of_tiles_overlap": splits(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PARTIAL,
        (LEAVE, LEAVE.replace("share * SPLITS", "share")),
        (FIRST_PARTIAL, FIRST_PARTIAL.replace("share * SPLITS", "share")),
    ),
    "split_partials_of_another_tile": splits(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PARTIAL,
        (FIRST_PARTIAL, FIRST_PARTIAL.replace("share *", "(share ^ 1) *")),
    ),
    "split_first_partial_left_out": splits(
        WRONG_NUMBERS, "d_desc", "", (ALL_PARTIALS, ALL_PARTIALS.replace("SPLITS", "1, SPLITS"))
    ),
    "split_last_partial_left_out": splits(
        WRONG_NUMBERS, "d_desc", "", (ALL_PARTIALS, ALL_PARTIALS.replace("SPLITS", "SPLITS - 1"))
    ),
    "split_own_sums_added_too": splits(
        WRONG_NUMBERS, "d_desc", "", (SUM, SUM.replace("accumulator =", "accumulator +="))
    ),
    # The steps of each part.
    "split_begins_a_step_late": splits(
        K.DEADLOCK, "load_ready", READY_WAIT, (BOUNDS, BOUNDS.replace("k_steps,", "k_steps + 1,"))
    ),
    "split_begins_a_step_early": splits(
        K.WORK_IN_FLIGHT,
        "a_smem|b_smem",
        LOAD,
        (BOUNDS, BOUNDS.replace("args.k_steps,", "args.k_steps - (self.split > 0).to(gl.int32),")),
    ),
    "split_ends_a_step_late": splits(
        K.WORK_IN_FLIGHT, "a_smem|b_smem", LOAD, (BOUNDS, BOUNDS.replace("k_steps)", "k_steps + 1)"))
    ),
    "split_ends_a_step_early": splits(
        K.DEADLOCK, "load_ready", READY_WAIT, (BOUNDS, BOUNDS.replace("k_steps)", "k_steps - 1)"))
    ),
    "split_parts_overlap_by_a_step": splits(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (BOUNDS, SHIFTED.format("-")),
    ),
    "split_parts_leave_a_step_out": splits(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (BOUNDS, SHIFTED.format("+")),
    ),
    "split_rest_of_the_steps_left_out": splits(
        WRONG_NUMBERS, "d_desc", "", (K_STEPS, "a_desc.shape[1] // (SPLITS * PROGRAM_TILE_K)")
    ),
    "split_all_parts_are_the_first": splits(
        WRONG_NUMBERS, "d_desc", "", (BOUNDS, "self.split * 0, self.args.k_steps)")
    ),
    "split_last_leaves_its_store_running": splits(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (FINAL_WAIT, f"        {NOTHING}\n")
    ),
}

# So many parts that their sums are added up in groups.
many = of("h100_fp16_many_splits")
GROUPS, PART = "range(0, SPLITS, SPLITS_AT_ONCE)", "(first + i)"
SCALAR = "tensor_scale = gl.load(tensor_scale_ptr)\n"
MANY = {
    "many_group_is_all": many(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PARTIAL, (LAST, LAST.replace("SPLITS", "SPLITS_AT_ONCE"))
    ),
    "many_first_group_only": many(
        WRONG_NUMBERS, "d_desc", "", (GROUPS, GROUPS.replace("0, SPLITS", "0, SPLITS_AT_ONCE"))
    ),
    "many_groups_overlap": many(WRONG_NUMBERS, "d_desc", "", (GROUPS, "range(SPLITS - 1)")),
    "many_first_of_a_group_only": many(WRONG_NUMBERS, "d_desc", "", (PART, "first")),
    "many_first_group_again_and_again": many(WRONG_NUMBERS, "d_desc", "", (PART, "i")),
    "many_counter_only_acquires": many(
        K.WEAK_ATOMIC, "partials_ptr", COUNTS, (COUNT, COUNT.replace("acq_rel", "acquire"))
    ),
    "many_scalar_before_the_wait": many(
        K.EARLY_ACCESS,
        "tensor_scale_ptr",
        SCALAR.strip(),
        (f"        {SCALAR}", ""),
        ("    gdc_wait()\n", f"    {SCALAR}    gdc_wait()\n"),
    ),
    "many_counters_not_reset": many(K.WORKSPACE_NOT_RESTORED, "counters_ptr", COUNTS, (RESET, "")),
}

# The same where the program starts before the kernel ahead has ended.
GDC_WAIT = "    gdc_wait()\n"
LAUNCH = "    gdc_launch_dependents()\n"
EARLY_PROLOGUE = "        load_b(args, Loads(tile, loads.k_step + stage, loads.end), stage)\n"
LATE_PROLOGUE = "        loads = load_a(args, loads, stage)\n"
EARLY_LOOP, LATE_LOOP = (
    f"    for stage in range(STAGES):\n{line}" for line in (EARLY_PROLOGUE, LATE_PROLOGUE)
)
VECTORS = "        load_vectors(args, buffers, tile.column)\n"
COLUMN_BIAS_LOAD = "tma.async_load(args.column_bias_desc"
LOAD_A, LOAD_B = "tma.async_load(args.a_desc", "tma.async_load(args.b_desc"
MMA = "return warpgroup_mma("
EXPECT = "        mbarrier.expect(ready, args.a_desc.nbytes_per_cta + args.b_desc.nbytes_per_cta)\n"
EXPECTS = "mbarrier.expect(ready,"
STEP_WAIT = "        accumulator = warpgroup_mma_wait(0, deps=[accumulator])\n"
REFILL = "        loads = load_next(args, loads, ring.stage)\n"
EARLY_SPLITS = {
    "early_split_without_a_wait": both(K.EARLY_ACCESS, "a_desc", LOAD_A, (GDC_WAIT, "")),
    "early_split_waits_behind_the_loads": both(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (GDC_WAIT + LATE_LOOP, LATE_LOOP + GDC_WAIT)
    ),
    "early_split_only_the_last_waits": both(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (GDC_WAIT, ""),
        (f"{IF_LAST}{VECTORS}", f"{IF_LAST}    {GDC_WAIT}{VECTORS}"),
        also=((K.EARLY_ACCESS, "partials_ptr", STORES_PARTIAL), (K.EARLY_ACCESS, "counters_ptr", COUNTS)),
    ),
    "early_split_only_the_first_part_waits": both(
        K.EARLY_ACCESS, "a_desc", LOAD_A, (GDC_WAIT, f"    if tiles.split == 0:\n    {GDC_WAIT}")
    ),
    "early_split_partial_cleared_before_the_wait": both(
        K.EARLY_ACCESS,
        "partials_ptr",
        "gl.store(args.partials_ptr, ",
        (GDC_WAIT, f"    if tiles.split == 0:\n        gl.store(args.partials_ptr, 0.0)\n{GDC_WAIT}"),
    ),
    "early_split_counter_cleared_before_the_wait": both(
        K.EARLY_ACCESS,
        "counters_ptr",
        "gl.atomic_and(args.counters_ptr",
        (GDC_WAIT, f"    gl.atomic_and(args.counters_ptr + tiles.tile, -1)\n{GDC_WAIT}"),
    ),
    "early_split_counter_looked_at_before_the_wait": both(
        K.EARLY_ACCESS,
        "counters_ptr",
        "gl.atomic_load(args.counters_ptr",
        (GDC_WAIT, f"    gl.atomic_load(args.counters_ptr + tiles.tile)\n{GDC_WAIT}"),
    ),
    "early_split_vectors_of_everyone": both(
        K.WORK_IN_FLIGHT, "column_bias_smem", COLUMN_BIAS_LOAD, (IF_LAST + VECTORS, VECTORS[4:] + IF_LAST)
    ),
    **faults_of_counter("early_split_counter", both, COUNT, RESET, "relaxed not_reset"),
    "early_split_begins_where_the_first_does": both(
        WRONG_NUMBERS, "d_desc", "", (EARLY_PROLOGUE, EARLY_PROLOGUE.replace("loads.k_step + stage", "stage"))
    ),
    "early_split_loads_a_step_past_its_end": both(
        K.WORK_IN_FLIGHT,
        "a_smem|b_smem",
        LOAD,
        (BOUNDS, BOUNDS.replace("k_steps)", "k_steps + 1)")),
    ),
}

# One program for each tile, which starts early.
early, early_a = of("h100_bf16_early"), of("h100_fp16_early_a")
WHOLE_B = "        load_b(args, Loads(tile, loads.k_step + stage, loads.end), stage)\n"
BOTH_LOADS = (
    "    load_vectors(args, buffers, tile.column)\n    load_c(args, buffers, tile.row, tile.column)\n"
)
START_VECTORS, START_C = BOTH_LOADS.splitlines(keepends=True)
C_LOAD = "tma.async_load(args.c_desc"
PREDICATE = "    if loads.k_step < loads.end:\n"
PREDICATE_OF_A, PREDICATE_OF_B = (
    f'the step after it."""\n{PREDICATE}',
    f'into an empty stage."""\n{PREDICATE}',
)
STAGE_OF_A = "args.a_smem.index(stage))"
EARLY_LAST_WAIT = "    tma.store_wait(0)\n"
STORE = "    store(args, buffers, tile.row, tile.column, accumulator.permute((1, 0)))\n"
A_PROLOGUE = "        load_a(args, Loads(tile, loads.k_step + stage, loads.end), stage)\n"
ROW_SCALE = "    load_vectors(args, buffers, tile.row)\n"
ROW_SCALE_LOAD = "tma.async_load(args.row_scale_desc"
REFILL_IN_FLIGHT = "        loads = load_next(args, loads, stage_in_flight)\n"
EARLY = {
    # What comes before the end of the kernel ahead.
    "early_without_a_wait": early(
        K.EARLY_ACCESS,
        "column_bias_desc",
        COLUMN_BIAS_LOAD,
        (GDC_WAIT, ""),
    ),
    "early_wait_at_the_end": early(
        K.EARLY_ACCESS,
        "column_bias_desc",
        COLUMN_BIAS_LOAD,
        (GDC_WAIT, ""),
        (STORE, STORE + GDC_WAIT),
        also=((K.EARLY_ACCESS, "d_desc", TMA_STORE),),
    ),
    "early_vectors_before_the_wait": early(
        K.EARLY_ACCESS,
        "column_bias_desc",
        COLUMN_BIAS_LOAD,
        (GDC_WAIT + START_VECTORS, START_VECTORS + GDC_WAIT),
    ),
    "early_c_before_the_wait": early(
        K.EARLY_ACCESS, "c_desc", C_LOAD, (GDC_WAIT + BOTH_LOADS, START_C + GDC_WAIT + START_VECTORS)
    ),
    "early_both_operands_before_the_wait": early(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (WHOLE_B, f"{WHOLE_B}        loads = load_a(args, loads, stage)\n"),
        (LATE_LOOP + LAUNCH, LAUNCH),
    ),
    "early_late_operand_prefetched": early(
        K.EARLY_ACCESS,
        "a_desc",
        LOAD_A,
        (WHOLE_B, WHOLE_B.replace("load_b", "load_next")),
        (LATE_LOOP, "    loads = Loads(tile, gl.to_tensor(0) + STAGES, args.k_steps)\n"),
    ),
    "early_first_tile_does_not_wait": early(
        K.EARLY_ACCESS,
        "column_bias_desc",
        COLUMN_BIAS_LOAD,
        (GDC_WAIT, f"    if gl.program_id(0) > 0:\n    {GDC_WAIT}"),
    ),
    "early_launches_and_does_not_wait": early(
        K.EARLY_ACCESS,
        "column_bias_desc",
        COLUMN_BIAS_LOAD,
        (GDC_WAIT, LAUNCH),
        (LATE_LOOP + LAUNCH, LATE_LOOP),
    ),
    "early_a_without_a_wait": early_a(K.EARLY_ACCESS, "row_scale_desc", ROW_SCALE_LOAD, (GDC_WAIT, "")),
    "early_a_scales_before_the_wait": early_a(
        K.EARLY_ACCESS, "row_scale_desc", ROW_SCALE_LOAD, (GDC_WAIT + ROW_SCALE, ROW_SCALE + GDC_WAIT)
    ),
    "early_a_is_the_other_operand": early_a(
        K.EARLY_ACCESS, "b_desc", LOAD_B, (A_PROLOGUE, A_PROLOGUE.replace("load_a", "load_next"))
    ),
    # The ring, which two loops fill at first.
    "early_loads_b_past_the_end": early(
        K.WORK_IN_FLIGHT,
        "b_smem",
        LOAD_B,
        (PREDICATE_OF_B, PREDICATE_OF_B.replace("< loads.end", ">= 0")),
    ),
    "early_loads_a_past_the_end": early(
        K.WORK_IN_FLIGHT,
        "a_smem",
        LOAD_A,
        (PREDICATE_OF_A, PREDICATE_OF_A.replace("< loads.end", ">= 0")),
    ),
    "early_expects_nothing": early(K.DEADLOCK, "load_ready", READY_WAIT, (EXPECT, "")),
    "early_expects_its_own_bytes": early(
        K.BYTE_COUNT,
        "load_ready",
        EXPECTS,
        (EXPECT, EXPECT.replace("args.a_desc.nbytes_per_cta + ", "")),
    ),
    "early_expects_the_late_bytes": early(
        K.BYTE_COUNT,
        "load_ready",
        EXPECTS,
        (EXPECT, EXPECT.replace(" + args.b_desc.nbytes_per_cta", "")),
    ),
    "early_expects_twice": early(
        K.ARRIVAL_OVERFLOW,
        "load_ready",
        EXPECTS,
        (f"        {LOAD_A}", f"{EXPECT}        {LOAD_A}"),
    ),
    "early_parity_flipped": early(
        K.READ_AFTER_WRITE,
        "a_smem|b_smem",
        MMA,
        (READY_WAIT, READY_WAIT.replace("ring.phase", "ring.phase ^ 1")),
    ),
    "early_stage_not_awaited": early(K.READ_AFTER_WRITE, "a_smem|b_smem", MMA, (READY_WAIT, NOTHING)),
    "early_one_stage_too_few": early(
        K.DEADLOCK,
        "load_ready",
        READY_WAIT,
        (f"    for stage in range(STAGES):\n{WHOLE_B}", f"    for stage in range(STAGES - 1):\n{WHOLE_B}"),
    ),
    "early_one_late_stage_too_few": early(
        K.BYTE_COUNT, "load_ready", EXPECTS, (LATE_LOOP, LATE_LOOP.replace("STAGES", "STAGES - 1"))
    ),
    "early_step_of_the_first_stage": early(
        WRONG_NUMBERS, "d_desc", "", (WHOLE_B, WHOLE_B.replace(" + stage", ""))
    ),
    "early_late_operand_in_the_next_stage": early(
        K.READ_AFTER_WRITE, "a_smem", MMA, (STAGE_OF_A, "args.a_smem.index((stage + 1) % STAGES))")
    ),
    "early_early_operand_in_the_first_stage": early(
        K.WRITE_AFTER_WRITE, "b_smem", LOAD_B, ("args.b_smem.index(stage))", "args.b_smem.index(stage * 0))")
    ),
    "early_refill_before_the_mma_retired": early(
        K.WRITE_AFTER_READ, "a_smem|b_smem", LOAD, (STEP_WAIT + REFILL, REFILL + STEP_WAIT)
    ),
    "early_mma_not_awaited": early(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        LOAD,
        (STEP_WAIT, STEP_WAIT.replace("(0,", "(1,")),
        also=((K.ACCUMULATOR_IN_FLIGHT, "accumulator", ".permute("),),
    ),
    "early_refill_of_the_next_stage": early(
        K.WRITE_AFTER_WRITE,
        "a_smem|b_smem",
        LOAD,
        (REFILL, REFILL.replace("ring.stage", "(ring.stage + 1) % STAGES")),
    ),
    "early_store_left_running": early(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (EARLY_LAST_WAIT, f"    {NOTHING}\n")
    ),
    "early_a_refill_of_the_stage_in_use": early_a(
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        LOAD,
        (REFILL_IN_FLIGHT, REFILL_IN_FLIGHT.replace("stage_in_flight", "ring.stage")),
    ),
    "early_a_expects_nothing_of_b": early_a(
        K.BYTE_COUNT,
        "load_ready",
        EXPECTS,
        (EXPECT, EXPECT.replace(" + args.b_desc.nbytes_per_cta", "")),
    ),
    "early_a_store_left_running": early_a(
        K.WORK_IN_FLIGHT, "d_smem", TMA_STORE, (EARLY_LAST_WAIT, f"    {NOTHING}\n")
    ),
}

# Programs with roles take the parts one by one: two consumers of a cluster, each of which counts for itself.
shares = of("h100_bf16_cluster_splits")
SHARE_OF_TILE = "tiles.tile(item) * CONSUMERS + consumer"
SHARE_LAST = f"        if is_last(args, {SHARE_OF_TILE}, tiles.split(item), accumulator):\n"
SHARE_SUM = f"sum_of_splits(args, {SHARE_OF_TILE})"
FIRST_STEP = "        first = self.split(item) * self.args.k_steps\n"
STEPS = "range(steps.first, steps.end)"
WALK = "    for item in range(tiles.first(), tiles.end(), tiles.stride()):\n"
LOADED, MULTIPLIED = "        tile, steps = tiles.at(item)", "        k_steps = tiles.steps(item)"
PRODUCER_WALK, CONSUMER_WALK = WALK + LOADED, WALK + MULTIPLIED
STORES_OF_SHARES = "        if is_last("
ROLES_FINAL_WAIT = "                tma.store_wait(0)\n"
EMPTY_WAIT = "mbarrier.wait(args.load_empty.index(ring.stage), ring.phase)"
EITHER_WAIT = "mbarrier.wait(args."


def both_shares(left_out: str) -> tuple[tuple[str, str], ...]:
    """Count and add up what a part of the number of a share is missing from."""
    return tuple((text, text.replace(left_out, "")) for text in (SHARE_LAST, SHARE_SUM))


SHARES = {
    **faults_of_counter("shares_counter", shares, COUNT, RESET, "relaxed only_releases of_a_cta not_reset"),
    "shares_counter_of_both_consumers": shares(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PARTIAL, *both_shares(" + consumer")
    ),
    "shares_counters_of_tiles_overlap": shares(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PARTIAL, *both_shares(" * CONSUMERS")
    ),
    "shares_last_but_one_adds_up": shares(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PARTIAL, (LAST, LAST.replace("SPLITS - 1", "SPLITS - 2"))
    ),
    "shares_partial_stored_after_the_counter": shares(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PARTIAL,
        (LEAVE, ""),
        (ARRIVE, ARRIVE + LEAVE),
    ),
    "shares_everyone_adds_up": shares(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PARTIAL,
        (SHARE_LAST, f"        {SHARE_LAST.strip()[3:-1]}\n        if item >= 0:\n"),
    ),
    "shares_last_part_adds_up": shares(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PARTIAL,
        (SHARE_LAST, f"        {SHARE_LAST.strip()[3:-1]}\n        if item % SPLITS == SPLITS - 1:\n"),
    ),
    "shares_first_part_loads_the_second": shares(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (FIRST_STEP, FIRST_STEP.replace("self.split(item)", "(self.split(item) + 1)")),
    ),
    "shares_all_parts_are_the_first": shares(
        WRONG_NUMBERS, "d_desc", "", (FIRST_STEP, "        first = 0 * item\n")
    ),
    "shares_part_loads_a_step_less": shares(
        K.DEADLOCK, "load_ready", EITHER_WAIT, (STEPS, STEPS.replace("end)", "end - 1)"))
    ),
    "shares_producer_walks_over_tiles": shares(
        K.DEADLOCK,
        "load_ready",
        EITHER_WAIT,
        (PRODUCER_WALK, PRODUCER_WALK.replace("end()", "end() // SPLITS")),
    ),
    "shares_producer_takes_tiles_for_parts": shares(
        WRONG_NUMBERS, "d_desc", "", (LOADED, LOADED.replace("item", "item % SPLITS * SPLITS"))
    ),
    "shares_consumers_walk_over_tiles": shares(
        K.WORK_IN_FLIGHT,
        "a_smem_0|a_smem_1|b_smem",
        LOAD,
        (CONSUMER_WALK, CONSUMER_WALK.replace("end()", "end() // SPLITS")),
    ),
}

# The same with sums that are added up as they come, and a bias that only the last part needs.
atomic = of("h100_bf16_atomic_splits")
ADD = '    gl.atomic_add(sum_addresses(args, share, sums.type.layout), sums, sem="relaxed", scope="gpu")\n'
CLEAR = "    gl.store(addresses, cleared)\n"
PLACE = "sum_addresses(args, share, sums.type.layout)"
READ = "    sums = gl.load(addresses)\n"
ADDS, CLEARS, READS = "gl.atomic_add(sum_addresses(", "gl.store(addresses, cleared)", "gl.load(addresses)"
EITHER_SUM = f"{ADDS}|{CLEARS}|{READS}"
ATOMIC_LAST = "        if is_last(args, tiles.tile(item), accumulator):\n"
BIAS = "            load_vectors(args, args.buffers, tile.column)\n"
ORIGIN = "            tile = tiles.at(item)\n"
FLIP = "            phase ^= 1\n"
ATOMIC = {
    **faults_of_counter(
        "atomic_counter", atomic, COUNT, RESET, "relaxed only_releases only_acquires not_reset"
    ),
    "atomic_sums_not_cleared": atomic(K.WORKSPACE_NOT_RESTORED, "partials_ptr", ADDS, (CLEAR, "")),
    "atomic_sums_cleared_to_themselves": atomic(
        K.WORKSPACE_NOT_RESTORED,
        "partials_ptr",
        CLEARS.replace("cleared", "sums"),
        (CLEAR, CLEAR.replace("cleared", "sums")),
    ),
    "atomic_sums_cleared_before_they_are_read": atomic(
        WRONG_NUMBERS, "d_desc", "", (CLEAR, ""), (READ, CLEAR + READ)
    ),
    "atomic_sums_of_the_next_tile_cleared": atomic(
        K.GLOBAL_RACE,
        "partials_ptr",
        "gl.atomic_add(sum_addresses(|gl.store(sum_addresses(|gl.load(addresses)",
        (CLEAR, "    gl.store(sum_addresses(args, share ^ 1, cleared.type.layout), cleared)\n"),
    ),
    "atomic_sums_added_after_the_counter": atomic(
        K.WEAK_ATOMIC, "partials_ptr", ADDS, (ADD, ""), (ARRIVE, ARRIVE + ADD)
    ),
    "atomic_sums_added_by_plain_stores": atomic(
        K.GLOBAL_RACE,
        "partials_ptr",
        "gl.load(place)|gl.store(place",
        (
            ADD,
            f"    place = {PLACE}\n    gl.store(place, sums + gl.load(place))\n",
        ),
    ),
    "atomic_sums_added_for_a_cta": atomic(
        K.WEAK_ATOMIC, "partials_ptr", ADDS, (ADD, ADD.replace('"gpu"', '"cta"'))
    ),
    "atomic_sums_of_all_tiles_in_one_place": atomic(
        K.WEAK_ATOMIC, "partials_ptr", ADDS, (ADD, ADD.replace("share", "share * 0"))
    ),
    "atomic_sums_replaced": atomic(
        WRONG_NUMBERS, "d_desc", "", (ADD, ADD.replace("atomic_add", "atomic_xchg"))
    ),
    "atomic_own_sums_added_too": atomic(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("            accumulator = sum_of_splits(", "            accumulator += sum_of_splits("),
    ),
    "atomic_last_but_one_reads": atomic(
        K.GLOBAL_RACE, "partials_ptr", EITHER_SUM, (LAST, LAST.replace("SPLITS - 1", "SPLITS - 2"))
    ),
    "atomic_bias_of_every_part": atomic(
        K.WRITE_AFTER_WRITE,
        "column_bias_smem",
        COLUMN_BIAS_LOAD,
        (ORIGIN + BIAS, ""),
        (ATOMIC_LAST, f"{ORIGIN[4:]}{BIAS[4:]}{ATOMIC_LAST}"),
    ),
    "atomic_phase_of_every_part": atomic(K.READ_AFTER_WRITE, "column_bias_smem", ".load(", (FLIP, FLIP[4:])),
    "atomic_phase_not_flipped": atomic(
        K.READ_AFTER_WRITE, "column_bias_smem", ".load(", (FLIP, f"            {NOTHING}\n")
    ),
}

MUTANTS = DIVIDED | MANY | EARLY_SPLITS | EARLY | SHARES | ATOMIC
PAST_THE_END = {
    "split_and_tile_exchanged": splits(
        "out-of-bounds",
        "partials_ptr",
        "",
        (
            PROGRAM,
            "Tiles(args, gl.program_id(0) % SPLITS, gl.program_id(0) // SPLITS)\n",
        ),
    ),
}
"""With which a kernel leaves the workspace, which has no third tile: the run ends there."""
