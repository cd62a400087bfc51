"""Faults in kernels of 16-bit floats whose sums are promoted: of the sums of a step, and of its stage."""

from __future__ import annotations

from gluonsim import Kind
from mutants.committed import STEP_WAIT, WRONG_NUMBERS
from mutants.mutant import of

K = Kind
bf16, fp16 = of("h100_bf16_promoted"), of("h100_fp16_promoted_nn")
ADDITION = "        accumulator += step\n"
RELEASE = "        mbarrier.arrive(args.load_empty.index(ring.stage))\n"
FROM_ZERO = "use_acc=False, "
MUTANTS = {
    "bf16_steps_that_do_not_start_at_zero": bf16(WRONG_NUMBERS, "d_desc", "", (FROM_ZERO, "")),
    "bf16_step_in_place_of_its_addition": bf16(
        WRONG_NUMBERS, "d_desc", "", (ADDITION, ADDITION.replace("+=", "="))
    ),
    "bf16_step_added_before_it_retired": bf16(
        K.ACCUMULATOR_IN_FLIGHT, "step", "accumulator += step", (STEP_WAIT, STEP_WAIT.replace("(0,", "(1,"))
    ),
    "fp16_stage_released_before_the_step_retired": fp16(
        K.WRITE_AFTER_READ,
        "a_smem_0|a_smem_1|b_smem",
        "tma.async_load(",
        (STEP_WAIT + RELEASE, RELEASE + STEP_WAIT),
    ),
    "fp16_step_added_before_it_retired": fp16(
        K.ACCUMULATOR_IN_FLIGHT, "step", "accumulator += step", (STEP_WAIT, STEP_WAIT.replace("(0,", "(1,"))
    ),
}
