"""Limits of each decision of a plan while the others stay as they are.

There are two figures of registers. A kernel *needs* the registers that it holds at once by construction, and
a rule refuses fewer. Those that it is *expected* to take are a rough model, by which kernels that would spill
are proposed last; the compiler has the last word (``gemmgen/plan/verdicts.py``).
"""

from __future__ import annotations

from typing import Final

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import power_of_two_below, round_up
from gemmgen.plan.capacity import fits, stages_that_fit
from gemmgen.plan.planning import RegisterUse
from gemmgen.plan.roles import balanced_consumer_registers
from gemmgen.plan.rule import altered, once
from gemmgen.plan.wgmma.resources import WgmmaKernel

# --- threads


def threads_of(plan: WgmmaKernel, consumers: int) -> int:
    """Return the threads of a CTA with a given number of consumers and a padded warpgroup to load.

    The plan's own figure is the same, but takes a partition for each consumer.
    """
    architecture = plan.architecture
    producer_warps = architecture.warps_per_warpgroup if plan.specialized else 0
    return (consumers * plan.consumer_warps + producer_warps) * architecture.threads_per_warp


def most_consumers(plan: WgmmaKernel) -> int:
    """Return the most consumers that a CTA has threads for."""
    others = threads_of(plan, 0)
    return (plan.architecture.threads_per_cta - others) // (threads_of(plan, 1) - others)


# --- the registers that are needed

WORKING_REGISTERS: Final = 28
"""Registers that a consumer thread needs beside its accumulator: addresses, phases, converted elements.

[gluon] With accumulators of 4, 8, 16, 32, 64 and 128 registers, kernels compile from 32, 40, 48, 64, 96 and
160 registers on; with 8 less ptxas spills (C7512) or drops the request (C7507). About 150 kernels were
lowered on both sides and 700 at the border: tile, dtypes, sub-tiles, order, ring and cluster do not matter.
"""
MMA_REGISTERS: Final = 26
"""Registers that a kernel of several roles starts with, besides the sums of one instruction.

[gluon] With n = 64 ptxas requires 58 and refuses 56 (C7602), whatever the consumers request later; 80 compile
with 64 columns and not with 128, 56 with 32.
"""


def most_consumer_registers(plan: WgmmaKernel) -> int:
    """Return the most registers per thread that all consumers can have beside the plan's producer."""
    architecture = plan.architecture
    if plan.consumers > most_consumers(plan):
        return architecture.setmaxnreg_min
    if not plan.specialized:
        return max(1, min(architecture.registers_per_thread, plan.register_pool.launch_registers))
    return balanced_consumer_registers(
        architecture, plan.consumers, plan.consumer_warps, plan.producer_registers, plan.occupancy
    )


def widest_launched_mma(plan: WgmmaKernel) -> int:
    """Return the columns of the widest instruction whose sums fit into the registers that a launch gives."""
    room = plan.register_pool.launch_registers - MMA_REGISTERS
    # Of each column, a thread of a warpgroup holds half an element.
    columns = 2 * room * 32 // plan.problem.accumulator.bits
    return max(WGMMA.n_min, power_of_two_below(max(1, columns)))


def least_registers(plan: WgmmaKernel) -> int:
    """Return the registers per thread that every consumer holds: its sums and working registers."""
    return plan.accumulator_registers + WORKING_REGISTERS


def registers_beside_sums(plan: WgmmaKernel) -> int:
    """Return the registers per thread that a consumer holds in its main loop, beside its sums.

    These are its part of A if A passes through registers, values of features, and its working registers.
    """
    return WORKING_REGISTERS + plan.operand_registers + plan.registers_of_sides(RegisterUse.STEP)


def needed_registers(plan: WgmmaKernel) -> int:
    """Return the registers per thread that a consumer holds at once, in multiples that can be requested."""
    held = plan.accumulator_registers + registers_beside_sums(plan)
    return round_up(held, plan.architecture.setmaxnreg_granularity)


# --- the registers that are expected to be taken

LONG_STEP_MMAS: Final = 16
"""Instructions of a K step up to which the compiler keeps no addresses of theirs."""
LONG_STEP_REGISTERS: Final = 44
"""Registers that it keeps for each 32 instructions of a longer step: 136 registers beside 64 sums, in place
of 96.
"""
UNPACKED_REGISTERS: Final = 8
"""Registers to convert sums of 16 bits, besides one for each."""
SEVERAL_STEPS: Final = 3
"""Steps from which on an epilogue holds computed values beside the remaining sums."""


@once
def expected_registers(plan: WgmmaKernel) -> int:
    """Return the registers per thread that a consumer is expected to take: a model to rank by, no promise.

    The main loop holds the needed registers and the addresses that the compiler keeps, the epilogue every sum
    and its working registers. If there are addresses to keep, they stay while the epilogue runs, and both add
    up, in so far as the loop leaves them no registers.

    [gluon] The shares of a sub-tile were read off 86 kernels of ``benchmarks/registers/needed.json``, with 8
    to 128 sums: beside 64 sums, C takes 112 registers, SiLU 120, erf 168, three vectors 152, and in steps of
    32 instructions 168, 192, 216 and 152.
    """
    loop = plan.accumulator_registers + registers_beside_sums(plan)
    kept, epilogue = _kept_registers(plan), _epilogue_registers(plan)
    if not kept:
        return max(loop, plan.accumulator_elements + epilogue)
    return loop + max(0, kept + epilogue - plan.registers_of_sides(RegisterUse.FREED))


def _kept_registers(plan: WgmmaKernel) -> int:
    """Return the registers for values that the compiler keeps in the main loop and in the epilogue."""
    kept = plan.registers_of_sides(RegisterUse.KEPT)
    if plan.mmas_per_step > LONG_STEP_MMAS:
        kept += LONG_STEP_REGISTERS * -(-plan.mmas_per_step // (2 * LONG_STEP_MMAS))
    return kept


def _epilogue_registers(plan: WgmmaKernel) -> int:
    """Return the registers that an epilogue is expected to work with, beside every sum."""
    problem, sums = plan.problem, plan.accumulator_elements
    part = sums // plan.subtiles
    hungry = [plan.registers_of_sides(RegisterUse.EPILOGUE)]
    if problem.accumulator.bits == 16 and (problem.steps or problem.d.name != "fp16"):
        hungry.append(UNPACKED_REGISTERS)
    if any(op.smooth for op in problem.operations):
        hungry.append(part if problem.d.bits == 32 else part * 3 // 4 + 8)
    if any(each.register_class == "erf" for each in problem.operations):  # it takes more than other functions
        hungry.append(sums + 40)
    if len(problem.steps) >= SEVERAL_STEPS:
        hungry.append(part + 24)
    # A left operand from registers is still held where sums of 16 bits are converted beside a C: 24 to 80
    # bytes spill.
    held = plan.operand_registers if problem.accumulator.bits == 16 else 0
    return max(hungry) + held


LOADS_ALONG: Final = 3
"""K-contiguous loads that take as much as one across rows of K."""
FEW_LOADS: Final = 12
"""Loads of a K step, counted in those along, for which a producer has registers in any case."""
ROLE_REGISTERS: Final = 8
"""Registers of a producer for each of its further tasks."""


def expected_producer_registers(plan: WgmmaKernel) -> int:
    """Return the registers per thread that a producer is expected to take: a model to rank by, no promise.

    [gluon] Producers of 24 registers compile with 9 loads across or 24 along, 16 across take 32 to 48, 36
    along 32 to 40, 48 along 40 to 48. A task of a feature, a third consumer and long steps took 8 more each
    where they were met alone.
    """
    across = sum(
        plan.loads(name)
        for name, operand in (("a", plan.problem.a), ("b", plan.problem.b))
        if operand.major == "mn"
    )
    weight = LOADS_ALONG * across + plan.loads("a") + plan.loads("b") - across
    expected = plan.architecture.setmaxnreg_min + max(0, weight - FEW_LOADS) // 2
    expected += plan.registers_of_sides(RegisterUse.PRODUCER)
    if plan.consumers > 2 or plan.mmas_per_step > LONG_STEP_MMAS:
        expected += ROLE_REGISTERS
    # Of a tile that no kernel has, the sums are to blame: no request is larger than one can be.
    return min(round_up(expected, plan.architecture.setmaxnreg_granularity), plan.architecture.setmaxnreg_max)


# --- shared memory


def fewest_stages(plan: WgmmaKernel) -> int:
    """Return the fewest stages with which a step can be loaded while others are multiplied."""
    if plan.schedule_kind == "single_tile":
        return 1
    # The same warps load and multiply, with the next step ahead: in every persistent schedule, and of parts.
    alternates = not plan.specialized and (plan.persistent or plan.composed)
    return max(plan.outstanding_mmas + 1, 2 if alternates or plan.fragments > 1 else 1)


def most_stages(plan: WgmmaKernel) -> int:
    """Return the most stages that fit, 0 if not even one does."""
    if plan.consumers > most_consumers(plan):
        return 0
    if plan.schedule_kind == "single_tile":
        return int(fits(altered(plan, stages=1)))
    return stages_that_fit(plan)
