"""Why the simulator, the sanitizers and the bare GPU do not all say the same of a case: found by reading.

Of ConSan and GSan it tells what Triton 3.9 adds to a kernel under them.
"""

from __future__ import annotations

from consan.case import HANGS, REFUSED, SKIPPED

RETIRED_READS = (
    "ConSan follows what a `warpgroup_mma` reads only until the wait for it. There the code that it adds "
    "counts the reads as seen by all partitions of the CTA, whether or not a release comes after the wait. "
    "So a load that nothing orders after the MMA is reported only if it is issued before that wait, and "
    "ConSan's own work delays it. (Loads that another CTA issues are reported: `pair_a_group_not_awaited`.)"
)
RIGHT_IN_TIME = (
    "as `arrive_before_the_mma_retired`. The numbers are right in each launch: no load came so early."
)
REPAIRED = (
    "ConSan does not follow registers, where the sums are; for the stage that is released too early see "
    "`arrive_before_the_mma_retired`. ptxas repairs the kernel: it serializes the MMAs and injects waits "
    "(its notes C7514 and C7517), and the numbers are right."
)
NOT_AT_EXIT = (
    "nothing on the GPU looks for work in flight when a kernel ends. Stores may still read, or loads still "
    "write, shared memory that the SM gives to another program; here they end in time, and the numbers are "
    "right."
)
ORDERED_BY_CHANCE = (
    "GSan names the race. Without it no launch is wrong: what nothing orders came in the right order."
)
ISSUED_IS_DONE = (
    "to GSan a TMA store is done where it is issued, so that a wait for it which is missing or too weak "
    "makes no difference. The numbers are right: the tile was there when the flag was seen."
)
DIFFERENCES = {
    "arrive_before_the_mma_retired": (
        f"{RETIRED_READS} Without ConSan the numbers are wrong; with more time between release and wait "
        "(`arrive_before_the_mma_retired_late`) ConSan reports it too."
    ),
    "registers_mma_after_the_release": RIGHT_IN_TIME,
    "turn_released_before_the_mma_retired": RIGHT_IN_TIME,
    "staggered_released_before_the_own_part_retired": REPAIRED,
    "staggered_common_columns_stay": (
        "ConSan does not follow global memory. Two tiles store the same numbers into the same columns, and "
        "what they leave out lies beyond the 240 columns of D."
    ),
    "lone_producer_awaits_the_ready_barrier": (
        "the producer awaits its own loads, not the consumer. What the consumer has read counts as seen by "
        "it, as in `arrive_before_the_mma_retired`; slowed down by ConSan, it never overtakes the "
        "consumer, and the numbers are right. Without ConSan the kernel hangs: a producer that is a lap "
        "ahead completes a phase that the consumer has not seen."
    ),
    "mma_wait_leaves_one_in_flight": (
        f"{REPAIRED} With more time (`mma_wait_leaves_one_in_flight_late`) ConSan reports the stage."
    ),
    "promoted_before_the_sum_is_awaited": REPAIRED,
    "no_final_store_wait*": NOT_AT_EXIT,
    "*_without_final_store_wait": NOT_AT_EXIT,
    "*_loads_without_their_predicate": NOT_AT_EXIT,
    "twin_last_store_left_running": NOT_AT_EXIT,
    "add leaves a store running": NOT_AT_EXIT,
    "07-persistence::test_persistent_matmul_pipelined*": (
        "the fault that is in the file itself, its loads beyond the last tile "
        "([foreign kernels](foreign_kernels.md)): "
        "nothing on the GPU looks for work in flight when a kernel ends, nor for coordinates that come of "
        "a division by zero."
    ),
    "split K: the counter *": ORDERED_BY_CHANCE,
    "split K: the last but one adds up": (
        f"{ORDERED_BY_CHANCE} The four parts of a tile take the same time: the last one is there before the "
        "third begins to add."
    ),
    "stream-K: the poll is relaxed": ORDERED_BY_CHANCE,
    "grid barrier: arrivals are relaxed": ORDERED_BY_CHANCE,
    "grid barrier: it is opened relaxed": ORDERED_BY_CHANCE,
    "grid barrier: a volatile load sees it open": (
        f"{ORDERED_BY_CHANCE} It names the word that is polled: to it a volatile load is a plain one."
    ),
    "grid barrier: one arrival too few opens it": (
        "GSan names the race, and under ConSan one launch leaves a wrong semaphore. Without either the last "
        "program arrives before the count is reset, each time, and nothing is lost."
    ),
    "grid barrier: arrivals are reset after it is open": (
        "the fault needs a program that arrives at the next barrier before one store is done, and no "
        "launch had one. GSan looks for races, and atomics do not race."
    ),
    "grid barrier: more programs than the GPU holds": (
        "with a sanitizer it runs as small as in the simulator, which is told that the GPU holds one program "
        "less. Without one there are 2,113 programs, and it hangs."
    ),
    "stream-K: more programs than the GPU holds": (
        "no fault on this GPU: the simulator is told that the GPU holds one program, and an H200 holds all "
        "264."
    ),
    "lock: it is given back relaxed": ORDERED_BY_CHANCE,
    "partitions: *": ORDERED_BY_CHANCE,
    "message: threads store it, and it is read by TMA": (
        "GSan knows no proxies. The numbers are right: TMA found what the threads had stored."
    ),
    "message: * of the TMA store are awaited": ISSUED_IS_DONE,
    "message: the TMA store is not awaited": ISSUED_IS_DONE,
}
"""By names of cases, or patterns of names: who says nothing of a fault, and why."""
INSERTED_FENCE = (
    "Triton 3.9 inserts the fence that is missing between what one partition does. The kernel that it "
    "compiles has no fault, and nothing shows one."
)
BY_DESIGN = {
    "no_fence_in_the_partition": INSERTED_FENCE,
    "*_fence_missing": INSERTED_FENCE,
    "*_fences_missing": INSERTED_FENCE,
    "add without its fence": INSERTED_FENCE,
    "unpayable_registers": (
        "Triton 3.9 drops a request that is too large and emits no `setmaxnreg`, as it never does under "
        "ConSan: every thread has the registers that ptxas chooses, and the numbers are right."
    ),
    "message: it is read by TMA": (
        "Gluon has no proxy fence for global memory. Both sides go through TMA, and the numbers are right."
    ),
}
"""As `DIFFERENCES`: lints, which the simulator tells and nothing else does, and why."""
MESSAGES = {
    "internal ConSan error: active memdesc resolved to no buffer state": (
        "the index is beyond the end of a ring: its address is none that ConSan knows of the buffer."
    ),
    "AcceleratorError: CUDA error: an illegal instruction was encountered": (
        "the GPU's own answer to a TMA load whose last coordinate is no multiple of 16 bytes (a rule that "
        "the tutorial 04-tma states, and that Triton checks in a mode of its own, `iisan`). **The "
        "simulator missed it** when this was measured, and told of wrong numbers only; now it has "
        "`unaligned-transfer`."
    ),
    HANGS: (
        "a launch is silent for a minute under ConSan, half a minute under GSan, 20 s without. ConSan "
        "looks for deadlocks where partitions wait for mbarriers, GSan for none."
    ),
    REFUSED: (
        "Triton's own verifier refuses the kernel, on the GPU as in the simulator "
        "([foreign kernels](foreign_kernels.md))."
    ),
    SKIPPED: "the file's own test does.",
}
"""Outcomes that are no plain verdict, and what they mean."""
