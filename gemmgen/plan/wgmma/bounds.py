"""How far a decision of a plan can go while the others stay as they are, and the measurements behind it."""

from __future__ import annotations

from bisect import bisect_right

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import power_of_two_below, round_up
from gemmgen.plan.roles import balanced_consumer_registers
from gemmgen.plan.rule import altered
from gemmgen.plan.wgmma.resources import WgmmaKernel

WORKING_REGISTERS = 28
"""Registers that a consumer thread needs beside its accumulator: addresses, phases, converted elements.

[gluon] With accumulators of 4, 8, 16, 32, 64 and 128 registers, kernels compile from 32, 40, 48, 64, 96 and
160 registers on; with 8 less ptxas spills (C7512) or drops the request (C7507). About 150 kernels were
lowered on both sides and 700 at the border: tile, dtypes, sub-tiles, order, ring and cluster do not matter.
"""
WORKING_REGISTERS_OF_LONG_STEPS = 72
"""The same where a K step is of more than ``LONG_STEP_MMAS``: the compiler then keeps their addresses.

[gluon] A tiles of 128 x 512 and 256 x 256, 32 instructions to each of two consumers, need 40 to 72, those
of more rows 28; so do 32 of 8, 16 and 32 columns, which the rows do not spare. Steps of 128 instructions of
16 columns spill at 232 registers beside 128 sums: each 32 are taken to need as many again.
"""
LONG_STEP_MMAS = 16
LONGEST_STEP_MMAS = 32
REGISTERS_OF_LONGER_STEPS = 32
"""What longer steps need besides, of instructions with all columns of the tile and as many along K.

[gluon] Four blocks of rows by 16 of K, 64 MMAs beside 64 sums, spill 112 bytes at 136 registers, 120 in a
cluster, and none at 168. With C and SiLU they need 232, and spill 60 bytes with 24 less.
"""
REGISTERS_OF_VECTORS_AND_LONGER_STEPS = 8
"""What an epilogue of ``EPILOGUE_STEPS`` needs besides these."""
WORKING_REGISTERS_OF_NARROW_MMAS = 64
"""The same where A comes from registers and the instruction is narrower than the tile.

[gluon] 64 x 128 by instructions of 32 columns: 144 registers, 64 of them its sums and 16 its A; 136 spill.
Long steps of them need both: 128 sums, promoted, by 32 instructions of 8 columns spill at 255.
"""
WORKING_REGISTERS_OF_SUMS = 48
"""The same where a consumer with a producer adds up the sums of all parts of K, in order.

[gluon] 80, 104 and 176 registers beside 32, 64 and 128 sums, and 112 beside 64 in steps of 16 MMAs; with 8
less, or 16 of the 176, they spill.
"""
WORKING_REGISTERS_OF_MOST_SUMS = 108
"""The same beside ``MOST_SUMS`` in steps of ``LONG_STEP_MMAS``.

[gluon] 128 x 256 for two consumers, in steps of 256 of K, spills at 232, the most that they can have, with 3
and 8 parts; with 2 parts, or in steps of 128, it does not.
"""
MOST_SUMS = 128
WORKING_REGISTERS_OF_MOST_PIECES = 132
"""The same where programs divide the last wave.

[gluon] 128 x 128 of e4m3 for a lone consumer, in steps of 16 MMAs, spills at 256, the most that it can have.
"""
WORKING_REGISTERS_OF_PIECES = 64
"""The same where programs divide the last wave.

[gluon] In steps of up to 4 MMAs, 8 to 128 sums compile with 48 registers beside them, but for 16 sums of fp8
with three vectors, SiLU and three consumers: these spill with 56 and compile with 64.
"""
WORKING_REGISTERS_OF_LONG_PIECES = 96
"""The same in steps of more than ``SHORT_STEP_MMAS``.

[gluon] With C and vectors in the epilogue, on Hilbert's curve, 8 and 64 sums in steps of 32 and 16 MMAs spill
with 80 registers beside them and compile with 96; others do with 64 to 80. 128 sums by 32 instructions of 8
columns spill at 256: what such steps need is added to that of pieces.
"""
SHORT_STEP_MMAS = 4
WORKING_REGISTERS_OF_PARTS = 48
"""The same where several parts of a tile multiply an A from registers.

[gluon] Two parts of 144 to 320 columns need 16 to 40 beside their sums and two steps of A of 32 registers, 48
where these are of 64; three parts of 176 need 48 beside one step of 16. With 8 less they spill or serialize.
"""
LONE_PROMOTION_REGISTERS = 8
"""What promotion needs besides where A comes from registers and the same warps also load.

[gluon] 4 bytes spill at 128 registers in a persistent kernel, 64 of them sums and partial sums and 16 its A;
specialized ones do not.
"""
EPILOGUE_STEPS = 3
"""Steps from which on an epilogue holds what it computes beside what it has not come to.

[gluon] Two scales and a bias, with and without SiLU, spill at 232 registers beside 128 sums, in a tile stored
whole; alpha, C, a scalar, four vectors and GELU need 216, 184 and 160 there with 64, 32 and 16 elements of a
sub-tile, and spill with 8 less. One or two vectors or factors need no more than the main loop: 160.
"""
STEP_REGISTERS = 24
"""What such an epilogue needs besides."""
STEP_REGISTERS_OF_SPLITS = 40
"""The same besides the registers for parts of K, to which they are added.

[gluon] 8 sums of eight parts, with C, three vectors and SiLU, spill 100 bytes at 64 registers, and of seven
parts, with all operands and GELU, 28 bytes at 88 and 12 at 96.
"""
C_REGISTERS = 16
"""What an epilogue needs that adds C, besides every sum and half as many as a sub-tile has.

[gluon] Beside 128 sums, C of 16 bits needs 192 to 208 registers in a tile stored whole, 168 or 176 by halves
and 160 by quarters; beside 64, 104 or 112, whole; beside 32, 64. With 8 less they spill. What D is, int8,
beta, ReLU and one more factor move it within that; C in fp32 needs 160 to 184.
"""
C_REGISTERS_OF_TWO_WARPGROUPS = 8
"""The same of a ping-pong consumer of two warpgroups with up to 64 sums, no vectors and a D of 16 bits.

[gluon] Beside 64 sums, C and SiLU or GELU compile with 104 registers, the most that such consumers can have,
SiLU with 96 too, in bf16, tf32 and e4m3, in clusters and without; with a bias besides 2 bytes spill. An
activation then needs half a sub-tile and ``ACTIVATION_REGISTERS`` instead of three quarters.
"""
ACTIVATION_REGISTERS = 8
"""What SiLU or GELU need besides every sum and three quarters of a sub-tile; all of it where D is fp32.

[gluon] Where D is bf16, SiLU of a sum and C needs 232 registers beside 128 sums, whole, of a row's bias 224,
of a scale 208, alone 184, by halves 176; GELU 192 and, beside 64 and C, 112. Where D is fp32, SiLU spills at
240, whole, and GELU needs 232, but spills there if negated int8 sums have A in registers.
"""
SECOND_ACTIVATION_REGISTERS = 16
"""What an epilogue of several activations needs besides one and a half times its sums.

[gluon] Beside 128 sums, SiLU of ReLU needs 200 or 208 registers, by quarters 192, GELU of ReLU 200 or 208;
beside 64, SiLU of ReLU needs 104 or 112. ReLU of SiLU does with 160.
"""
ERF_REGISTERS = 16
"""What an epilogue needs that computes erf, besides every sum twice.

[gluon] 144 registers beside 64 sums, whole; 136 spill. Beside 128 sums 232 spill, in any sub-tile; of the
bare sum 240, whole and by quarters, but not by eight elements at a time, which need 160.
"""
REGISTERS_OF_ERF_AMONG_STEPS = 8
"""What an epilogue of ``EPILOGUE_STEPS`` needs besides, one of which is erf: for each of its activations.

[gluon] 160 registers beside 64 sums, with C and a bias, and of seven steps, of which SiLU and GELU are two,
beside 16 more than 72; with 8 less the former spill 4 bytes, and the latter 12 at 72.
"""
REGISTERS_OF_C_AND_ACTIVATION = 24
"""What C and an activation need besides in steps of ``LONG_STEP_MMAS``: erf, and any beside ``MOST_SUMS``.

[gluon] Beside 128 sums, whole, 232 registers spill 24 bytes with SiLU, and 68 in a cluster, while steps of 8
do with them; beside 64, erf needs 168 and SiLU no more than elsewhere. C alone and vectors need none of it:
``benchmarks/registers/needed.json`` has the grid, and ``benchmarks/registers/measure.py`` measures it anew.
"""
REGISTERS_OF_C_ALONE = 24
"""What C alone needs besides its epilogue, beside ``MOST_SUMS`` in longer steps.

[gluon] There 208 registers spill 28 bytes, and 36 in a cluster, and 224 none.
"""
ERF_ELEMENTS = 8
"""Elements of a sub-tile to which the compiler applies erf at a time, if it is the only step."""
WORKING_REGISTERS_OF_ERF = 40
"""What it needs that computes erf of more than the bare sum, however few the sums are.

[gluon] 48 registers beside 8 sums, with C; 40 spill, and do without C.
"""
FEW_LOADS = 9
"""TMA loads of M- or N-contiguous tiles in a K step for whose coordinates every producer has registers.

[gluon] Producers of 24 registers compile with 9 such loads; with 16 they spill, and compile from 32 (bf16),
40 or 48 (tf32, on clusters) on; with 32 they spill at 40, 56 and 72.
"""
MOST_LOADS = 16
REGISTERS_OF_MOST_LOADS = 48
LOADS_ALONG = 3
"""K-contiguous loads that take as much as one across.

[gluon] Producers of 24 registers compile with 8 loads across and 2 along, or with 24 along; with 8 and 4, or
32 along, they spill. 36 along compile from 32 on and in a cluster from 40, 48 in a cluster and 80 from 48.
"""
MANY_LOADS_ALONG = 40
REGISTERS_OF_MANY_LOADS = 40
PIECE_REGISTERS = 16
"""What a producer needs besides that finds the pieces of the last wave.

[gluon] In steps of 256 and 512 of K, on Hilbert's curve, 24 registers spill and 32 do not.
"""
REGISTERS_OF_PING_PONG_LOADS = 56
"""[gluon] There 16 loads across and 2, 4 or 8 along, or 1 in a cluster, spill at 48; else 4 along do not."""
REGISTERS_OF_LONE_CURVE = 32
"""What a producer for one consumer needs that follows Hilbert's curve.

[gluon] 64 x 128 of e4m3 spill 4 bytes at 24 and none at 32; in order of rows or snakes they compile with 24.
"""
REGISTERS_OF_LONG_PING_PONG = 32
"""What a ping-pong producer needs beside steps of more than ``LONG_STEP_MMAS``.

[gluon] 32 or 64 instructions of two rows and two columns of a tile, of 8 or 16 columns each, and 32 of one
column of them on Hilbert's curve in a cluster: 4 to 28 bytes spill at 24 and none at 32, in every type, with
the operands exchanged or not. Lone consumers need no more.
"""
REGISTERS_OF_EARLY_LOADS = 8
"""What a producer needs besides that loads one operand early, so in two places of its code.

[gluon] Of 38 kinds whose producers compile with 24 registers, seven spill 4 to 20 bytes then, six of them on
Hilbert's curve, and none at 32; in a cluster 192 x 48 spill 12 bytes there at 32, so that the curve takes
twice as many. Of ten with 16 to 48 loads six need 8 more than without, and one 24, which is less than the
rule asks for.
"""
MMA_REGISTERS = 26
"""Registers that a kernel of several roles starts with, besides the sums of one instruction.

[gluon] With n = 64 ptxas asks for 58 and refuses 56 (C7602), whatever the consumers ask for later; 80 compile
with 64 columns and not with 128, 56 with 32.
"""
UNPACKED_REGISTERS = 8
"""What it takes to convert sums of 16 bits, which are packed by two, besides one register for each.

[gluon] 64 and 128 sums need 72 and 136 where D is bf16; both spill with 8 less. Where D is fp16 and nothing
is computed, they stay packed.
"""


# --- producers


def loads_across(plan: WgmmaKernel) -> dict[str, int]:
    """Return the TMA loads of a K step by operand, of those that are contiguous along M or N."""
    operands = {"a": plan.problem.a, "b": plan.problem.b}
    return {name: plan.loads(name) for name, operand in operands.items() if operand.major == "mn"}


def needed_producer_registers(plan: WgmmaKernel) -> int:
    """Return the registers per thread that a producer needs: for coordinates, pieces and early loads."""
    pieces = PIECE_REGISTERS if plan.divides_last_wave else 0
    return _registers_of_loads(plan) + pieces + registers_of_early_loads(plan)


def registers_of_early_loads(plan: WgmmaKernel) -> int:
    """Return what a producer needs besides where one operand is loaded early, 0 where none is."""
    if not plan.dependent:
        return 0
    curve = plan.order == "hilbert" and plan.cluster_size > 1
    return 2 * REGISTERS_OF_EARLY_LOADS if curve else REGISTERS_OF_EARLY_LOADS


def _registers_of_loads(plan: WgmmaKernel) -> int:
    """Return what it needs for the coordinates alone, where all its loads wait for the kernel ahead."""
    across = sum(loads_across(plan).values())
    along = plan.loads("a") + plan.loads("b") - across
    weight = LOADS_ALONG * across + along
    if across > FEW_LOADS:
        return REGISTERS_OF_PING_PONG_LOADS if plan.ping_pong else REGISTERS_OF_MOST_LOADS
    if weight > MANY_LOADS_ALONG:
        return REGISTERS_OF_MOST_LOADS
    if weight > FEW_LOADS * LOADS_ALONG:
        return REGISTERS_OF_MANY_LOADS
    if plan.ping_pong and plan.mmas_per_step > LONG_STEP_MMAS:
        return REGISTERS_OF_LONG_PING_PONG
    lone_curve = plan.order == "hilbert" and plan.consumers == 1
    return REGISTERS_OF_LONE_CURVE if lone_curve else plan.architecture.setmaxnreg_min


# --- consumers


def threads_of(plan: WgmmaKernel, consumers: int) -> int:
    """Return the threads of a CTA with so many of the plan's consumers and a padded warpgroup to load.

    The plan's own figure is the same, but takes a partition for each consumer.
    """
    architecture = plan.architecture
    producer_warps = architecture.warps_per_warpgroup if plan.specialized else 0
    return (consumers * plan.consumer_warps + producer_warps) * architecture.threads_per_warp


def most_consumers(plan: WgmmaKernel) -> int:
    """Return the most consumers that a CTA has threads for."""
    others = threads_of(plan, 0)
    return (plan.architecture.threads_per_cta - others) // (threads_of(plan, 1) - others)


# --- registers


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


def working_registers(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread needs beside its accumulator and its part of A."""
    loop, epilogue = _loop_registers(plan), _epilogue_registers(plan)
    needed = max(loop, epilogue, _registers_with_c(plan, loop, epilogue))
    return needed - plan.accumulator_registers - plan.operand_registers


def _loop_registers(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread needs while it multiplies."""
    narrow = _is_narrow(plan)
    working = 0
    if plan.mmas_per_step > LONG_STEP_MMAS:
        working = WORKING_REGISTERS_OF_LONG_STEPS + _longer_step_registers(plan)
    if narrow and plan.a_source == "registers":
        working += WORKING_REGISTERS_OF_NARROW_MMAS
    if plan.composed and plan.a_source == "registers":
        working = max(working, WORKING_REGISTERS_OF_PARTS)
    if plan.shares_tiles and plan.specialized and plan.reduction == "ordered":
        most = (plan.splits > 2 or plan.divides_last_wave) and plan.accumulator_registers >= MOST_SUMS
        long = most and plan.mmas_per_step >= LONG_STEP_MMAS
        working = max(working, WORKING_REGISTERS_OF_MOST_SUMS if long else WORKING_REGISTERS_OF_SUMS)
        if plan.divides_last_wave:
            if long:
                working = max(working, WORKING_REGISTERS_OF_MOST_PIECES)
            if narrow and plan.mmas_per_step > LONG_STEP_MMAS:
                working += WORKING_REGISTERS_OF_PIECES
            short = plan.mmas_per_step <= SHORT_STEP_MMAS
            working = max(working, WORKING_REGISTERS_OF_PIECES if short else WORKING_REGISTERS_OF_LONG_PIECES)
    if plan.a_source == "registers" and plan.promote_k and not plan.specialized:
        working = max(working, WORKING_REGISTERS) + LONE_PROMOTION_REGISTERS
    return plan.accumulator_registers + plan.operand_registers + (working or WORKING_REGISTERS)


def _is_narrow(plan: WgmmaKernel) -> bool:
    """Whether an instruction has fewer columns than a warp has of the tile."""
    return plan.mma_n < plan.mma_parts[0] // plan.warps_across[1]


def _longer_step_registers(plan: WgmmaKernel) -> int:
    """Return what steps of more than ``LONGEST_STEP_MMAS`` need besides."""
    more = -(-plan.mmas_per_step // LONGEST_STEP_MMAS) - 1
    if _is_narrow(plan):
        return more * WORKING_REGISTERS_OF_LONG_STEPS
    along_k = plan.cta_tile_k // plan.mma_shape[2]
    return REGISTERS_OF_LONGER_STEPS if more and along_k >= LONG_STEP_MMAS else 0


def _registers_with_c(plan: WgmmaKernel, loop: int, epilogue: int) -> int:
    """Return what a consumer thread needs where C meets a long step or parts of K, 0 where it meets neither.

    The compiler keeps the addresses of either while C is in registers: what `loop` and C need adds up.

    [gluon] In steps of 32 MMAs, 64 sums need 136 registers, with C up to 168, with SiLU besides 192 and with
    erf 216, and 8 sums with both 88; 128 sums need 200, and with C and SiLU spill 144 bytes at 232, whole,
    and none by halves. In steps of 64, 64 sums need 232 with C and SiLU, and spill 56 bytes there with erf;
    three vectors, which else need no more than elsewhere, need 176. Three parts of K, whose 64 sums need 112
    registers, spill 112 bytes there with a C of 16 bits.
    """
    c, sums = plan.problem.c, plan.accumulator_elements
    longer = _longer_step_registers(plan) if plan.mmas_per_step > LONG_STEP_MMAS else 0
    divided = plan.splits > 1 and plan.specialized and plan.reduction == "ordered"
    steps = STEP_REGISTERS_OF_SPLITS if divided and len(plan.problem.steps) >= EPILOGUE_STEPS else 0
    if c is None and divided:
        return loop + steps
    if c is None:
        vectors = longer and len(plan.problem.steps) >= EPILOGUE_STEPS
        return loop + REGISTERS_OF_VECTORS_AND_LONGER_STEPS if vectors else 0
    part = max(sums // plan.subtiles, ERF_ELEMENTS)
    with_c = loop + part * c.bits // 32
    classes = {op.register_class for op in plan.problem.operations if op.function} - {"linear"}
    if divided:
        return with_c + steps
    if plan.splits > 1 and plan.dependent and plan.reduction == "ordered":
        # [gluon] 32 sums of 13 parts, with C, a bias and B loaded early, spill 16 bytes at 80, without roles.
        return epilogue + REGISTERS_OF_C_AND_ACTIVATION
    if plan.mmas_per_step > LONG_STEP_MMAS and not _is_narrow(plan):  # narrow ones need all of it anyway
        if sums >= MOST_SUMS:
            return with_c if classes else epilogue + REGISTERS_OF_C_ALONE
        eighths = 6 if "erf" in classes else 3 if classes else 0
        return with_c + max(longer, part * eighths // 8)
    long = plan.mmas_per_step == LONG_STEP_MMAS and plan.specialized
    if long and ("erf" in classes or (classes and sums >= MOST_SUMS)):
        return epilogue + REGISTERS_OF_C_AND_ACTIVATION
    return 0


def _epilogue_registers(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread needs while it turns its sums into D."""
    steps, sums = plan.problem.steps, plan.accumulator_elements
    needed = [plan.accumulator_registers + WORKING_REGISTERS, _activation_registers(plan)]
    if plan.problem.accumulator.bits == 16 and (steps or plan.problem.d.name != "fp16"):
        # [gluon] 32, 64 and 128 sums need 56, 88 and 168 with C and an activation; 8 less spill.
        needed.append(
            max(sums + STEP_REGISTERS, sums * 5 // 4 + UNPACKED_REGISTERS)
            if steps
            else sums + UNPACKED_REGISTERS
        )
    if plan.problem.c is not None:
        beside = C_REGISTERS_OF_TWO_WARPGROUPS if _fits_two_warpgroups(plan) else C_REGISTERS
        needed.append(sums + sums // plan.subtiles // 2 + beside)
    curved = [op.register_class for op in plan.problem.operations if op.function]
    curved = [found for found in curved if found != "linear"]
    if len(steps) >= EPILOGUE_STEPS:
        more = min(len(curved), 3) * REGISTERS_OF_ERF_AMONG_STEPS if "erf" in curved else 0
        needed.append(sums + sums // plan.subtiles + STEP_REGISTERS + more)
    return max(needed)


def _fits_two_warpgroups(plan: WgmmaKernel) -> bool:
    """Whether a consumer of two warpgroups stores few enough sums, without vectors, as 16 bits or less."""
    two = plan.consumer_warps == 2 * plan.architecture.warps_per_warpgroup and plan.ping_pong
    few = plan.accumulator_elements <= MOST_SUMS // 2 and plan.problem.d.bits <= 16
    return two and few and not plan.problem.vectors


def _activation_registers(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread needs for the epilogue's activations, 0 without any."""
    steps, sums = plan.problem.steps, plan.accumulator_elements
    part = sums // plan.subtiles
    activations = [op.register_class for op in plan.problem.operations if op.function]
    needed = [0]
    if set(activations) - {"linear"}:
        share = part // 2 if _fits_two_warpgroups(plan) else part * 3 // 4
        needed.append(sums + (part if plan.problem.d.bits == 32 else share + ACTIVATION_REGISTERS))
    if len(activations) > 1:
        needed.append(sums + sums // 2 + SECOND_ACTIVATION_REGISTERS)
    if "erf" in activations and (len(steps) > 1 or part > ERF_ELEMENTS):
        needed.append(2 * sums + ERF_REGISTERS)
    if "erf" in activations and len(steps) > 1:
        needed.append(sums + WORKING_REGISTERS_OF_ERF)
    return max(needed)


def needed_registers(plan: WgmmaKernel) -> int:
    """Return the registers per thread that a consumer needs, in multiples that can be asked for."""
    needed = plan.accumulator_registers + plan.operand_registers + working_registers(plan)
    return round_up(needed, plan.architecture.setmaxnreg_granularity)


# --- shared memory


def fits(plan: WgmmaKernel) -> bool:
    """Whether a CTA's share of shared memory holds all that the plan puts there."""
    return plan.smem_bytes <= smem_limit(plan)


def smem_limit(plan: WgmmaKernel) -> int:
    """Return the bytes of shared memory that each of the CTAs on an SM can have."""
    architecture = plan.architecture
    share = architecture.smem_bytes_per_sm // plan.occupancy - architecture.smem_reserved_bytes_per_cta
    return max(1, min(share, architecture.smem_bytes_per_cta))


def fewest_stages(plan: WgmmaKernel) -> int:
    """Return the fewest stages with which a step can be loaded while others are multiplied."""
    if plan.schedule_kind == "single_tile":
        return 1
    alternates = plan.persistent and not plan.specialized  # the same warps load and multiply
    return max(plan.outstanding_mmas + 1, 2 if alternates or plan.fragments > 1 else 1)


def most_stages(plan: WgmmaKernel) -> int:
    """Return the most stages that fit, 0 if not even one does."""
    if plan.consumers > most_consumers(plan):
        return 0
    if plan.schedule_kind == "single_tile":
        return int(fits(altered(plan, stages=1)))
    limit = smem_limit(plan)
    depths = range(1, limit // plan.stage_bytes + 1)
    return bisect_right(depths, limit, key=lambda stages: altered(plan, stages=stages).smem_bytes)
