"""How far a decision of a plan can go while the others stay as they are, and the measurements behind it."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import power_of_two_below, round_up
from gemmgen.plan.decisions import LINES
from gemmgen.plan.roles import balanced_consumer_registers
from gemmgen.plan.rule import altered, once
from gemmgen.plan.wgmma.resources import SPLIT_REGISTERS, WgmmaKernel

WORKING_REGISTERS = 28
"""Registers that a consumer thread needs beside its accumulator: addresses, phases, converted elements.

[gluon] With accumulators of 4, 8, 16, 32, 64 and 128 registers, kernels compile from 32, 40, 48, 64, 96 and
160 registers on; with 8 less ptxas spills (C7512) or drops the request (C7507). About 150 kernels were
lowered on both sides and 700 at the border: tile, dtypes, sub-tiles, order, ring and cluster do not matter.
"""
REGISTERS_OF_LONG_STEPS = 24
"""What steps of ``LONG_STEP_MMAS`` need besides, for more than two consumers.

[gluon] 32 sums of four consumers in a cluster of four spill 32 bytes at 64 registers, and none at 80; 16 of
three, with three steps of an epilogue, 12 at 64 and none at 72.
"""
REGISTERS_OF_EARLY_LOADS_AND_LONGER_STEPS = 40
"""What longer steps need besides where one operand is loaded early, beside ``MOST_SUMS``; the longest always.

[gluon] 64 x 256 of int8 by 32 instructions of 32 columns spill 4 to 24 bytes at 200 to 232 registers, and 16
sums by 64 instructions 128 bytes at 128.
"""
REGISTERS_OF_LONGER_STEPS = 44
"""What steps of more than ``LONG_STEP_MMAS`` need besides: the compiler then keeps their addresses.

[gluon] A tiles of 128 x 512 and 256 x 256, 32 instructions to each of two consumers, need 40 to 72, those
of more rows 28; so do 32 of 8, 16 and 32 columns, which the rows do not spare. Steps of 128 instructions of
16 columns spill at 232 registers beside 128 sums: each 32 are taken to need as many again.
"""
MARGIN = 8
"""Registers for each cause beyond the first, where several meet: each alone was measured, not all of them.

[gluon] Of 160 random kernels with the fewest registers that the needs of single causes and some pairs allow,
nine spill 4 to 48 bytes, and none with 8 or 16 more.
"""
REGISTERS_BESIDE_MOST_LOADS = 48
"""What a consumer needs besides where parts or early loads meet more than ``MOST_LOADS`` of a K step.

[gluon] 32 sums of seven parts, with 40 loads a step, spill 12 to 36 bytes at 128 to 160 registers, whatever
the producer has, and none at 216.
"""
LONG_STEP_MMAS = 16
LONGEST_STEP_MMAS = 32
REGISTERS_OF_LONGEST_STEPS = 32
"""What steps of more than ``LONGEST_STEP_MMAS`` need besides, of all columns of the tile and 16 along K.

[gluon] Four blocks of rows by 16 of K, 64 MMAs beside 64 sums, spill 112 bytes at 136 registers, 120 in a
cluster, and none at 168. With C and SiLU they need 232, and spill 60 bytes with 24 less. Two blocks by 32 of
K beside 16 sums spill 152 bytes at 120 and none at 152: each 16 of K are taken to need as many.
"""
REGISTERS_OF_NARROW_LONGEST_STEPS = 72
"""The same of instructions of some columns, for each ``LONGEST_STEP_MMAS`` more."""
REGISTERS_OF_STEPS_AND_LONGER_STEPS = 16
"""What an epilogue of ``EPILOGUE_STEPS`` needs besides long steps.

[gluon] 64 sums by 32 instructions of 16 columns, with a factor, a scalar, ReLU and erf, spill 12 bytes at 144
registers and none at 152.
"""
REGISTERS_OF_NARROW_MMAS = 36
"""What it needs besides where A comes from registers and the instruction is narrower than the tile.

[gluon] 64 x 128 by instructions of 32 columns: 144 registers, 64 of them its sums and 16 its A; 136 spill.
"""
REGISTERS_OF_NARROW_LONG_STEPS = 64
"""The same in steps of more than ``LONG_STEP_MMAS``, and of as many in kernels with roles.

[gluon] 128 sums, promoted, by 32 instructions of 8 columns spill at 255; 64 by 16 of them 64 bytes at 136
registers, and none at 152. An M-contiguous A needs ``MARGIN`` more: 64 of int8 by 32 spill 16 bytes at 208.
"""
REGISTERS_OF_TURNED_A = 56
"""What it needs besides where an A in registers is M-contiguous in shared memory, and sums have 16 bits.

[gluon] 8 sums of 16 bits beside an A of 32 registers spill 8 bytes at 104 registers, and none at 136.
"""
REGISTERS_OF_SUMS = 72
"""What a consumer with a producer needs besides that adds up the sums of all parts of K, in order.

[gluon] Of 70 random kernels, 16 to 64 sums spill 12 to 108 bytes with 48 to 80 registers beside them, more
with C; of 500 more, 16 and 64 sums of seven and four parts, in clusters, 20 bytes with 96, and none with 112.
"""
REGISTERS_OF_SUMS_ALONE = 56
"""The same of kernels without roles.

[gluon] 16 to 64 sums of 3 to 8 parts, two or three CTAs to an SM, with a factor, C or early loads, spill 4 to
72 bytes with up to 40 registers beside what they need otherwise; those alone on an SM have them.
"""
REGISTERS_OF_SUMS_AND_LONGER_STEPS = 16
"""The same besides in steps of more than ``LONG_STEP_MMAS``.

[gluon] 64 sums of int8 by 32 instructions, of four parts, with B loaded early, spill 72 bytes at 224.
"""
UNROLLED_SUMS = 224
"""Sums of all splits up to which the compiler unrolls a loop that reads them one by one, all at once then.

[gluon] 64 sums of three splits spill 8 to 44 bytes at 160 to 192 registers, and of five and seven splits none
at 168 and 184; 32 of seven 8 bytes at 232; 128 of two compile with 232. Three consumers, which have 152 at
most, spill 36 bytes where they read 32 sums of four by twos.
"""
REGISTERS_OF_MOST_SUMS = 80
"""The same beside ``MOST_SUMS`` in steps of ``LONG_STEP_MMAS``; without roles, in any.

[gluon] 128 x 256 for two consumers, in steps of 256 of K, spills at 232, the most that they can have, with 3
and 8 parts; 64 x 256 with an A of 16 registers and twelve parts spills 8 bytes at 255, and so does one with
five parts and early loads.
"""
REGISTERS_OF_PIECES = 36
"""The same where programs divide the last wave.

[gluon] In steps of up to 4 MMAs, 8 to 128 sums compile with 48 registers beside them, but for 16 sums of fp8
with three vectors, SiLU and three consumers: these spill with 56 and compile with 64.
"""
REGISTERS_OF_LONG_PIECES = 68
"""The same in steps of more than ``SHORT_STEP_MMAS``.

[gluon] With C and vectors in the epilogue, on Hilbert's curve, 8 and 64 sums in steps of 32 and 16 MMAs spill
with 80 registers beside them and compile with 96; others do with 64 to 80. 128 sums by 32 instructions of 8
columns spill at 256: what such steps need is added to that of pieces.
"""
REGISTERS_OF_MOST_PIECES = 104
"""The same beside ``MOST_SUMS`` in steps of ``LONG_STEP_MMAS``.

[gluon] 128 x 128 of e4m3 for a lone consumer, in steps of 16 MMAs, spills at 256, the most that it can have.
"""
REGISTERS_OF_PIECES_AND_OTHERS = 24
"""What pieces need besides for three consumers, and where A comes from registers.

[gluon] 64 sums of three consumers spill 8 to 20 bytes at 152, the most that they can have, and 128 beside an
A of 8 registers 4 bytes at 224.
"""
REGISTERS_OF_PIECES_AND_SUBTILES = 16
SUBTILES_OF_PIECES = (16, 32)
LOADS_OF_PIECES_AND_SUBTILES = 4
"""What pieces of a tile with ``MOST_SUMS`` need besides where it is stored by sub-tiles of so many columns,
beside an MMA in flight or so many loads of B in a K step.

[gluon] With an MMA in flight 128 sums by sub-tiles of 32 columns, of 16 where D has 32 bits, spill 12 to 16
bytes at 232 registers, in bf16, e4m3 and int8 and in every order; of 8 and of 64 columns none. Without one
they spill none, but 8 to 12 bytes where int8's B has rows of 32 bytes, which are four loads a step.
"""
REGISTERS_OF_PIECES_AND_VECTORS = 16
"""What pieces of the last wave need besides where a cluster's epilogue reads vectors.

[gluon] 128 sums with a bias of columns, in a cluster of two, spill 8 bytes at 232 registers.
"""
REGISTERS_OF_PIECES_AND_LOADS_ACROSS = 48
"""What pieces need beside ``MOST_SUMS``, off the lines of tiles, where a step has so many loads of B along N.

[gluon] 128 x 256 of an N-contiguous B for two consumers spill 4 to 20 bytes, but for quarters of a tile,
whatever registers roles have; none do along rows or columns, with a K-contiguous B, or as 256 x 128.
"""
LOADS_ACROSS_OF_PIECES = 4
REGISTERS_OF_PIECES_AND_ERF = 24
"""What a consumer needs besides where the producer needs ``PIECE_REGISTERS_BESIDE_ERF``.

[gluon] These 64 sums spill 92 bytes at 168 registers, 60 at 176 and none at 192, with a producer of 56.
"""
MOST_SUMS = 128
SHORT_STEP_MMAS = 4
REGISTERS_OF_PARTS = 20
"""What it needs besides where several parts of a tile multiply an A from registers.

[gluon] Two parts of 144 to 320 columns need 16 to 40 beside their sums and two steps of A of 32 registers, 48
where these are of 64; three parts of 176 need 48 beside one step of 16. With 8 less they spill or serialize.
"""
PROMOTION_REGISTERS = 8
"""What promotion needs besides where A comes from registers, and the same warps also load or add up parts.

[gluon] 4 bytes spill at 128 registers in a persistent kernel without roles, 64 of them sums and partial sums
and 16 its A, and at 232 where seven parts of K are added.
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
"""What an epilogue of two steps and more needs besides where parts of K are added up.

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
REGISTERS_OF_MOST_PARTS_AND_ACTIVATION = 80
"""What SiLU or GELU need besides every sum of a composed tile that has more than ``MOST_SUMS``.

[gluon] 160 sums of two parts, by 16 or 32 columns, with SiLU or GELU for ping-pong consumers, spill 8 to 40
bytes at 232, the most that two can have, and 192 of them 116; 144 compile with 184, and 160 of a lone
consumer with 256.
"""
SECOND_ACTIVATION_REGISTERS = 16
"""What an epilogue of several activations needs besides one and a half times its sums.

[gluon] Beside 128 sums, SiLU of ReLU needs 200 or 208 registers, by quarters 192, GELU of ReLU 200 or 208;
beside 64, SiLU of ReLU needs 104 or 112. ReLU of SiLU does with 160.
"""
ERF_REGISTERS = 16
"""What an epilogue needs that computes erf, besides every sum twice.

[gluon] 144 registers beside 64 sums, whole; 136 spill. Beside 128 sums 232 spill, in any sub-tile; of the
bare sum 240, whole and by quarters, but not by eight elements at a time, which need 160. Beside 32 sums and a
factor, 16 bytes spill at 80 registers and none at 88: of several steps ``MARGIN`` is added. Three consumers
with 64 and a bias spill 8 at 152 and none at 160: it is added twice there.
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
REGISTERS_OF_C_ALONE = 40
"""What an epilogue of C alone needs besides its sums and C, beside ``MOST_SUMS`` in longer steps.

[gluon] With C and D of 16 bits, 128 sums by 32 instructions need 224 registers whole, 200 by halves and at
most 184 by quarters; by halves 216 with a D of 32 bits, and with such a C 8 bytes spill at 232.
"""
REGISTERS_OF_C_ALONE_AND_LONGEST_STEPS = 24
"""What C alone needs besides the loop, beside more than ``MOST_SUMS`` or steps of ``LONGEST_STEP_MMAS``.

[gluon] Steps of 64 spill 80 bytes at 232, the most that two consumers can have, by halves, and 160 sums of
two parts 60 bytes, by tenths.
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
SOME_LOADS_ALONG = 12
REGISTERS_OF_SOME_LOADS = 32
"""What a producer needs for more than these K-contiguous loads, or for more than two consumers.

[gluon] 16 and 4 in a cluster of four spill 4 bytes at 24 registers, and 5 for four consumers, in steps of 32
MMAs, 44 bytes; at 32 none.
"""
LOADS_ALONG = 3
"""K-contiguous loads that take as much as one across.

[gluon] Producers of 24 registers compile with 8 loads across and 2 along, or with 24 along; with 8 and 4, or
32 along, they spill. 36 along compile from 32 on and in a cluster from 40, 48 in a cluster and 80 from 48.
"""
MANY_LOADS_ALONG = 40
REGISTERS_OF_MANY_LOADS = 40
SPLIT_PRODUCER_REGISTERS = 8
"""What a producer needs besides that finds parts of K.

[gluon] With B loaded early, for three consumers in a cluster of two, 32 registers spill 4 bytes and 40 none.
"""
PIECE_REGISTERS = 16
"""What a producer needs besides that finds the pieces of the last wave.

[gluon] In steps of 256 and 512 of K, on Hilbert's curve, 24 registers spill and 32 do not.
"""
PIECE_REGISTERS_BESIDE_ERF = 16
"""What it needs besides in a cluster, off the lines of tiles, where consumers apply erf to whole tiles.

[gluon] 64 sums of each of two consumers, in clusters of two and four along N, on snakes and Hilbert's curve,
in steps of 8 MMAs of int8 and bf16, spill 36 to 44 bytes at 40 and 48 registers, whatever consumers have, and
none at 56; nor at 40 without erf, along rows or in one CTA.
"""
REGISTERS_OF_PING_PONG_LOADS = 56
"""[gluon] There 16 loads across and 2, 4 or 8 along, or 1 in a cluster, spill at 48; else 4 along do not."""
REGISTERS_OF_LONE_LOADS = 8
"""What a producer for one consumer needs besides ``REGISTERS_OF_MANY_LOADS``.

[gluon] 16 loads of A and 16 of B, K-contiguous, spill 16 and 36 bytes at 40 registers and none at 48.
"""
REGISTERS_OF_LONE_CURVE = 8
"""What a producer for one consumer needs besides that follows Hilbert's curve.

[gluon] 64 x 128 of e4m3 spill 4 bytes at 24 and none at 32; in order of rows or snakes they compile with 24.
"""
REGISTERS_OF_LONG_STEP_LOADS = 32
"""What a producer for two consumers needs beside steps of more than ``LONG_STEP_MMAS``; for one, longer ones.

[gluon] 32 or 64 instructions of two rows and two columns of a tile, of 8 or 16 columns each, and 32 of one
column of them on Hilbert's curve in a cluster: 4 to 28 bytes spill at 24 and none at 32, in every type, with
the operands exchanged or not, and 4 and 12 of cooperative consumers. Beside a lone consumer 8 spill in steps
of 64, and none in shorter ones.
"""
REGISTERS_OF_LONGEST_STEP_LOADS = 56
"""The same beside steps of more than ``LONGEST_STEP_MMAS``, for more than ``SOME_LOADS_ALONG`` loads.

[gluon] 64 instructions of 16 columns and 20 or 24 loads, 16 of them of A by 32 bytes, with C and erf, spill
56 and 80 bytes at 32 registers, 36 and 44 at 48, and none at 56.
"""
REGISTERS_OF_EARLY_LOADS = 8
"""What a producer needs besides that loads one operand early, so in two places of its code.

[gluon] Of 38 kinds whose producers compile with 24 registers, seven spill 4 to 20 bytes then, six of them on
Hilbert's curve, and none at 32; in a cluster 192 x 48 spill 12 bytes there at 32, so that the curve takes
twice as many. Of ten with 16 to 48 loads six need 8 more than without, and one 24, which is less than the
rule asks for.
"""
REGISTERS_OF_STAGGERED_LOADS = 8
"""What it needs besides for a staggered tile, whose rows and columns it finds by the tile's number.

[gluon] With steps of 256 of K and parts of 16 columns it spills 48 bytes at 32 registers, and none at 40.
"""
REGISTERS_OF_UNPACKED_LONG_STEPS = 40
"""What C needs besides the same and a long step of narrow MMAs.

[gluon] 64 sums by 32 instructions of 32 columns spill 304 bytes at 112 registers and some at 176, and none
at 208; 128 by 16 of 16 columns, with a bias, 292 bytes at 232.
"""
MMA_REGISTERS = 26
"""Registers that a kernel of several roles starts with, besides the sums of one instruction.

[gluon] With n = 64 ptxas asks for 58 and refuses 56 (C7602), whatever the consumers ask for later; 80 compile
with 64 columns and not with 128, 56 with 32.
"""
UNPACKED_REGISTERS = 8
"""What it takes to convert sums of 16 bits, which are packed by two, besides one register for each.

[gluon] 64 and 128 sums need 72 and 136 where D is bf16; both spill with 8 less, and 128 in steps of 16 MMAs
spill 16 bytes at 136. Where D is fp16 and nothing is computed, they stay packed.
"""


# --- producers


def loads_across(plan: WgmmaKernel) -> dict[str, int]:
    """Return the TMA loads of a K step by operand, of those that are contiguous along M or N."""
    operands = {"a": plan.problem.a, "b": plan.problem.b}
    return {name: plan.loads(name) for name, operand in operands.items() if operand.major == "mn"}


def needed_producer_registers(plan: WgmmaKernel) -> int:
    """Return the registers per thread that a producer needs: for coordinates, parts of K and early loads."""
    parts = SPLIT_PRODUCER_REGISTERS if plan.splits > 1 else 0
    if plan.divides_last_wave:
        parts = PIECE_REGISTERS + (PIECE_REGISTERS_BESIDE_ERF if _winds_with_whole_erf(plan) else 0)
    staggered = REGISTERS_OF_STAGGERED_LOADS if plan.staggered else 0
    return _registers_of_loads(plan) + parts + _registers_of_early_loads(plan) + staggered


def _winds_with_whole_erf(plan: WgmmaKernel) -> bool:
    """Whether clusters find pieces on a curve or a snake, and apply erf to all sums of a tile at a time."""
    winds = plan.divides_last_wave and plan.cluster_size > 1 and plan.order not in LINES
    return winds and plan.problem.applies_erf and plan.subtiles == 1


def _registers_of_early_loads(plan: WgmmaKernel) -> int:
    """Return what a producer needs besides where one operand is loaded early, 0 where none is."""
    if not plan.read_early:
        return 0
    curve = plan.order == "hilbert" and plan.cluster_size > 1
    return 2 * REGISTERS_OF_EARLY_LOADS if curve else REGISTERS_OF_EARLY_LOADS


def long_step_decides(plan: WgmmaKernel) -> bool:
    """Whether a step's instructions, not the number of its loads, decide what a producer needs."""
    longest = LONG_STEP_MMAS if plan.consumers == 2 else LONGEST_STEP_MMAS
    across, weight = _loads_across_and_weight(plan)
    return plan.mmas_per_step > longest and across <= FEW_LOADS and weight <= FEW_LOADS * LOADS_ALONG


def _registers_of_loads(plan: WgmmaKernel) -> int:
    """Return what it needs for the coordinates alone, where all its loads wait for the kernel ahead."""
    across, weight = _loads_across_and_weight(plan)
    curve = REGISTERS_OF_LONE_CURVE if plan.order == "hilbert" and plan.consumers == 1 else 0
    if long_step_decides(plan):
        longest = plan.mmas_per_step > LONGEST_STEP_MMAS and weight > SOME_LOADS_ALONG
        return (REGISTERS_OF_LONGEST_STEP_LOADS if longest else REGISTERS_OF_LONG_STEP_LOADS) + curve
    if across > FEW_LOADS:
        return REGISTERS_OF_PING_PONG_LOADS if plan.ping_pong else REGISTERS_OF_MOST_LOADS
    if weight > MANY_LOADS_ALONG:
        return REGISTERS_OF_MOST_LOADS
    if weight > FEW_LOADS * LOADS_ALONG:
        return REGISTERS_OF_MANY_LOADS + (REGISTERS_OF_LONE_LOADS if plan.consumers == 1 else 0)
    if weight > SOME_LOADS_ALONG or plan.consumers > 2:
        return REGISTERS_OF_SOME_LOADS + curve
    return plan.architecture.setmaxnreg_min + curve


def _loads_across_and_weight(plan: WgmmaKernel) -> tuple[int, int]:
    """Return a step's loads across rows of K, and what all of its loads weigh, in loads along them."""
    across = sum(loads_across(plan).values())
    return across, LOADS_ALONG * across + plan.loads("a") + plan.loads("b") - across


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


@once
def working_registers(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread needs beside its accumulator and its part of A."""
    loop, epilogue = _loop_registers(plan), _epilogue_registers(plan)
    needed = max(loop, epilogue, _registers_of_loop_and_epilogue(plan, loop, epilogue))
    return needed + _margin(plan) - plan.accumulator_registers - plan.operand_registers


def _margin(plan: WgmmaKernel) -> int:
    """Return what is added where several causes meet whose needs were measured one by one."""
    late = bool(plan.shares_tiles or plan.read_early)
    causes = (
        plan.shares_tiles,
        plan.shares_tiles and plan.cluster_size > 1,
        plan.read_early,
        late and plan.consumers > 2,
        plan.mmas_per_step > LONG_STEP_MMAS or plan.a_source == "registers",
        plan.consumers > 3 and plan.a_source == "registers",
        late and (plan.problem.c is not None or len(plan.problem.steps) > 1),
        late and plan.occupancy > 1,
        late and plan.outstanding_mmas > 0,
        late and plan.composed and plan.consumers > 2,  # whose [gluon] 104 sums spill 160 bytes at 152
        plan.splits % plan.splits_in(SPLIT_REGISTERS) > 0,
    )
    many = late and plan.loads("a") + plan.loads("b") > MOST_LOADS
    more = (REGISTERS_BESIDE_MOST_LOADS if many else 0) + _registers_of_four_warpgroups(plan)
    # [gluon] 80 sums spill 24 bytes at 112 registers and none at 144, 96 sums 12 at 168 and none at 184.
    erf_of_fragments = plan.problem.applies_erf and plan.subtile_n == WGMMA.n_min
    more += 4 * MARGIN if plan.staggered and erf_of_fragments else 0
    return MARGIN * max(0, sum(map(bool, causes)) - 1) + more


def _registers_of_four_warpgroups(plan: WgmmaKernel) -> int:
    """Return what an A in registers needs besides where four warpgroups divide the registers of an SM.

    [gluon] Four consumers with 32 sums and an A of 16 registers spill 4 bytes at 104 and none at 120. Two of
    two warpgroups with 8 sums and an A of 32, loaded early, spill 36 bytes at 128 and none at 136. With a C
    of 16 bits, 32 sums and an A of 16 spill 16 bytes at 96 and none at 104, 64 sums and an A of 8 as many at
    112; 16 sums spill none at 96.
    """
    warpgroups = plan.consumers * plan.consumer_warps // plan.architecture.warps_per_warpgroup
    if warpgroups < 4 or plan.a_source != "registers":
        return 0
    wide = plan.operand_registers >= 16 and (plan.consumers > 3 or plan.read_early)
    c, many = plan.problem.c, plan.accumulator_elements >= 32
    adds = many and c is not None and c.bits < 32
    return 3 * MARGIN if wide or adds else 0


def _loop_registers(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread needs while it multiplies: what it does there adds up."""
    working = WORKING_REGISTERS + _registers_of_a(plan) + _registers_of_parts(plan)
    if not plan.divides_last_wave:
        working += _registers_of_long_steps(plan)
    return plan.accumulator_registers + plan.operand_registers + working


def _registers_of_long_steps(plan: WgmmaKernel) -> int:
    """Return what the addresses of a long step's operands need."""
    if plan.mmas_per_step > LONG_STEP_MMAS:
        hard = plan.accumulator_registers >= MOST_SUMS or plan.mmas_per_step > LONGEST_STEP_MMAS
        early = plan.read_early and plan.specialized and hard
        more = REGISTERS_OF_EARLY_LOADS_AND_LONGER_STEPS if early else 0
        return REGISTERS_OF_LONGER_STEPS + _longest_step_registers(plan) + more
    as_long = plan.mmas_per_step == LONG_STEP_MMAS and plan.consumers > 2
    return REGISTERS_OF_LONG_STEPS if as_long else 0


def _registers_of_a(plan: WgmmaKernel) -> int:
    """Return what an A in registers needs besides its own, 0 for one in shared memory."""
    if plan.a_source != "registers":
        return 0
    needed = REGISTERS_OF_PARTS if plan.composed else 0
    if _is_narrow(plan):
        long = plan.mmas_per_step >= LONG_STEP_MMAS + (not plan.specialized)
        needed += REGISTERS_OF_NARROW_LONG_STEPS if long else REGISTERS_OF_NARROW_MMAS
        needed += MARGIN if long and plan.problem.a.major == "mn" else 0
    if plan.specialized and plan.problem.a.major == "mn" and plan.problem.accumulator.bits == 16:
        needed += REGISTERS_OF_TURNED_A
    if plan.promote_k and (plan.shares_tiles or not plan.specialized):
        needed += PROMOTION_REGISTERS
    if plan.problem.c is not None and plan.problem.d.bits == 32:
        # [gluon] 64 sums beside an A of 8 registers, with a C of 16 bits, spill 4 bytes at 104, none at 112.
        needed += MARGIN
    return needed


def _registers_of_parts(plan: WgmmaKernel) -> int:
    """Return what it needs to add up the sums of parts of K, or of pieces of the last wave, in order."""
    if not plan.shares_tiles or plan.reduction != "ordered":
        return 0
    if not plan.specialized:
        if plan.accumulator_registers < MOST_SUMS:
            return REGISTERS_OF_SUMS_ALONE
        # [gluon] 128 sums of eight parts, with a factor, spill 8 bytes at 255, the most that there are; so do
        # those of three parts where two CTAs share an SM. Alone on one they do not.
        return REGISTERS_OF_MOST_SUMS + (2 * MARGIN if plan.problem.steps or plan.occupancy > 1 else 0)
    most = plan.mmas_per_step >= LONG_STEP_MMAS and plan.accumulator_registers >= MOST_SUMS
    if not plan.divides_last_wave:
        others = (plan.splits - 1) * plan.accumulator_elements
        one_by_one = plan.splits_in(SPLIT_REGISTERS) == 1 or plan.consumers > 2
        unrolled = one_by_one and others + plan.accumulator_elements <= UNROLLED_SUMS
        sums = REGISTERS_OF_MOST_SUMS if most and plan.splits > 2 else REGISTERS_OF_SUMS
        long = REGISTERS_OF_SUMS_AND_LONGER_STEPS if plan.mmas_per_step > LONG_STEP_MMAS else 0
        return long + max(sums, others if unrolled else 0)
    narrow = _is_narrow(plan) and plan.mmas_per_step > LONG_STEP_MMAS
    vectors = plan.problem.vectors and plan.cluster_size > 1
    # [gluon] 32 sums by 128 instructions of 8 columns spill 612 bytes at 224 registers.
    more = REGISTERS_OF_NARROW_LONG_STEPS + _longest_step_registers(plan) if narrow else 0
    more += REGISTERS_OF_PIECES_AND_VECTORS if vectors else 0
    more += REGISTERS_OF_PIECES_AND_ERF if _winds_with_whole_erf(plan) else 0
    across = plan.order not in LINES and loads_across(plan).get("b", 0) >= LOADS_ACROSS_OF_PIECES
    if across and plan.accumulator_registers >= MOST_SUMS:
        more += REGISTERS_OF_PIECES_AND_LOADS_ACROSS
    hard = plan.consumers > 2 and plan.accumulator_registers >= MOST_SUMS // 2
    more += REGISTERS_OF_PIECES_AND_OTHERS if hard or plan.a_source == "registers" else 0
    busy = plan.outstanding_mmas > 0 or plan.loads("b") >= LOADS_OF_PIECES_AND_SUBTILES
    if busy and plan.subtile_n in SUBTILES_OF_PIECES and plan.accumulator_registers >= MOST_SUMS:
        more += REGISTERS_OF_PIECES_AND_SUBTILES
    if most:
        return more + REGISTERS_OF_MOST_PIECES
    return more + (REGISTERS_OF_PIECES if plan.mmas_per_step <= SHORT_STEP_MMAS else REGISTERS_OF_LONG_PIECES)


def _is_narrow(plan: WgmmaKernel) -> bool:
    """Whether an instruction has fewer columns than a warp has of the tile."""
    return plan.mma_n < plan.mma_parts[0] // plan.warps_across[1]


def _longest_step_registers(plan: WgmmaKernel) -> int:
    """Return what steps of more than ``LONGEST_STEP_MMAS`` need besides."""
    more = -(-plan.mmas_per_step // LONGEST_STEP_MMAS) - 1
    if _is_narrow(plan):
        return more * REGISTERS_OF_NARROW_LONGEST_STEPS
    along_k = plan.cta_tile_k // plan.mma_shape[2]
    return REGISTERS_OF_LONGEST_STEPS * (along_k // LONG_STEP_MMAS) if more else 0


def _registers_of_loop_and_epilogue(plan: WgmmaKernel, loop: int, epilogue: int) -> int:
    """Return what a consumer thread needs where an epilogue meets a long step or parts of K, 0 elsewhere.

    The compiler keeps the addresses of either while C is in registers: what `loop` and C need adds up.

    [gluon] In steps of 32 MMAs, 64 sums need 136 registers, with C up to 168, with SiLU besides 192 and with
    erf 216, and 8 sums with both 88; 128 sums need 200, and with C and SiLU spill 144 bytes at 232, whole,
    and none by halves. In steps of 64, 64 sums need 232 with C and SiLU, and spill 56 bytes there with erf;
    three vectors, which else need no more than elsewhere, need 176. Three parts of K, whose 64 sums need 112
    registers, spill 112 bytes there with a C of 16 bits.
    """
    c, sums, steps = plan.problem.c, plan.accumulator_elements, len(plan.problem.steps)
    long = plan.mmas_per_step > LONG_STEP_MMAS
    divided = plan.splits > 1 and plan.specialized and plan.reduction == "ordered"
    if divided:
        loop += STEP_REGISTERS_OF_SPLITS * (steps > 1) + MARGIN * (steps >= EPILOGUE_STEPS)
    elif long and steps >= EPILOGUE_STEPS:
        loop += REGISTERS_OF_STEPS_AND_LONGER_STEPS
    part = max(sums // plan.subtiles, ERF_ELEMENTS)
    classes = {op.register_class for op in plan.problem.operations if op.function} - {"linear"}
    if long and steps == EPILOGUE_STEPS - 1 and "erf" in classes:
        # [gluon] 32 sums by 32 instructions of 8 columns, with a factor and erf, spill 48 bytes at 104.
        loop += MARGIN
    if c is None:
        if not divided or plan.problem.d.bits != 32:
            return loop
        # [gluon] 128 sums of two parts, with SiLU and a D of 32 bits, spill 24 bytes at 256, by quarters too;
        # of twelve parts, without it, for each of two consumers, 4 at 232, the most that these can have.
        most = sums >= MOST_SUMS and plan.splits > 2 and plan.consumers > 1
        return loop + (part if classes else MARGIN if most else 0)
    with_c = loop + part * c.bits // 32
    if divided:
        # [gluon] 64 sums of twelve parts, with C and a D of 32 bits, spill 12 bytes at 216 and none at 232.
        return with_c + (part // 2 if plan.problem.d.bits == 32 else 0)
    if plan.splits > 1 and plan.read_early and plan.reduction == "ordered":
        # [gluon] 32 sums of 13 parts, with C, a bias and B loaded early, spill 16 bytes at 80, without roles.
        return epilogue + REGISTERS_OF_C_AND_ACTIVATION
    if long and _is_narrow(plan):  # what these need is enough, but for sums that C unpacks
        unpacked = WORKING_REGISTERS + _registers_of_long_steps(plan) + REGISTERS_OF_UNPACKED_LONG_STEPS
        return (
            max(loop, sums + part * c.bits // 32 + unpacked) if plan.problem.accumulator.bits == 16 else loop
        )
    if long:
        if sums >= MOST_SUMS:
            return with_c if classes else _registers_of_c_alone(plan, loop)
        eighths = 6 if "erf" in classes else 3 if classes else 0
        return with_c + max(_longest_step_registers(plan), part * eighths // 8)
    as_long = plan.mmas_per_step == LONG_STEP_MMAS and plan.specialized
    if as_long and _is_narrow(plan) and plan.problem.accumulator.bits == 16:
        return epilogue + REGISTERS_OF_UNPACKED_LONG_STEPS
    if as_long and ("erf" in classes or (classes and sums >= MOST_SUMS)):
        return epilogue + REGISTERS_OF_C_AND_ACTIVATION
    return 0


def _registers_of_c_alone(plan: WgmmaKernel, loop: int) -> int:
    """Return what a consumer thread of many sums needs that adds C, and nothing curved, after long steps."""
    c, sums = plan.problem.c, plan.accumulator_elements
    assert c is not None
    part = sums // plan.subtiles
    wide = part // 4 if 32 in (c.bits, plan.problem.d.bits) else 0
    alone = sums + part * c.bits // 32 + wide + REGISTERS_OF_C_ALONE
    hardest = sums > MOST_SUMS or plan.mmas_per_step > LONGEST_STEP_MMAS
    return max(alone, loop + REGISTERS_OF_C_ALONE_AND_LONGEST_STEPS) if hardest else alone


def _epilogue_registers(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread needs while it turns its sums into D."""
    steps, sums = plan.problem.steps, plan.accumulator_elements
    needed = [plan.accumulator_registers + WORKING_REGISTERS, _activation_registers(plan)]
    if plan.problem.accumulator.bits == 16 and (steps or plan.problem.d.name != "fp16"):
        # [gluon] 32, 64 and 128 sums need 56, 88 and 168 with C and an activation; 8 less spill.
        several = len(steps) > 1 and plan.specialized
        more = MARGIN if several or plan.mmas_per_step >= LONG_STEP_MMAS else 0
        unpacked = sums + UNPACKED_REGISTERS
        needed.append(more + (max(sums + STEP_REGISTERS, unpacked + sums // 4) if steps else unpacked))
    if plan.problem.c is not None:
        beside = C_REGISTERS_OF_TWO_WARPGROUPS if _fits_two_warpgroups(plan) else C_REGISTERS
        needed.append(sums + sums // plan.subtiles // 2 + beside)
    curved = [op.register_class for op in plan.problem.operations if op.function]
    curved = [found for found in curved if found != "linear"]
    if len(steps) >= EPILOGUE_STEPS:
        more = min(len(curved), 3) * REGISTERS_OF_ERF_AMONG_STEPS if "erf" in curved else 0
        # [gluon] 64 sums and an A of 32 registers, with C and nine steps, spill 20 bytes at 152, by quarters.
        more += plan.operand_registers + MARGIN if more and plan.a_source == "registers" else 0
        needed.append(sums + sums // plan.subtiles + STEP_REGISTERS + more)
    return max(needed)


def _fits_two_warpgroups(plan: WgmmaKernel) -> bool:
    """Whether a consumer of two warpgroups stores few enough sums, without vectors, as 16 bits."""
    two = plan.consumer_warps == 2 * plan.architecture.warps_per_warpgroup and plan.ping_pong
    few = plan.accumulator_elements <= MOST_SUMS // 2 and plan.problem.d.bits == 16
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
        if plan.composed and sums > MOST_SUMS:
            needed.append(sums + REGISTERS_OF_MOST_PARTS_AND_ACTIVATION)
    if len(activations) > 1:
        needed.append(sums + sums // 2 + SECOND_ACTIVATION_REGISTERS)
    if "erf" in activations and (len(steps) > 1 or part > ERF_ELEMENTS):
        needed.append(2 * sums + ERF_REGISTERS)
        if len(steps) > 1 and plan.specialized:
            needed[-1] += MARGIN if plan.consumers < 3 else 2 * MARGIN
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
    limit = smem_limit(plan)
    return plan.stages * plan.stage_bytes <= limit and plan.smem_bytes <= limit  # the ring is soon added up


def smem_limit(plan: WgmmaKernel) -> int:
    """Return the bytes of shared memory that each of the CTAs on an SM can have."""
    architecture = plan.architecture
    share = architecture.smem_bytes_per_sm // plan.occupancy - architecture.smem_reserved_bytes_per_cta
    return max(1, min(share, architecture.smem_bytes_per_cta))


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
    limit = smem_limit(plan)
    depths = range(1, limit // plan.stage_bytes + 1)
    return bisect_right(depths, limit, key=partial(plan.shared_memory.bytes_with, "stages"))
