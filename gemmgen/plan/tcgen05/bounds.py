"""Limits of the decisions of a Blackwell kernel: least tiles, registers of roles, most stages and sums."""

from __future__ import annotations

from gemmgen.hardware import SCALE_COLUMNS, TCGEN05
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel

STEP_REGISTERS = ((15, 24), (20, 32), (24, 56), (28, 72), (32, 144))
"""Registers per worker thread by the most MMAs and copies of scales of a K step that compile with them.

[gluon] 16 MMAs of most kinds, and 8 of mxfp4 with 12 copies, compile with 24 registers, and 16 of e5m2 by
pairs spill 4 bytes there; 8 of nvfp4 with 16 copies spill with 32, 16 of mxfp8 with 8 with 48 and with 12
with 56, 32 dense ones with 128, and in a cluster of four with 136. Schedules and clusters differ by 8 at
most. Longer steps need more than they gain.
"""

FEW_LOADS = 12
"""TMA loads in a K step for which a load warp needs no more registers: those across rows of K, or, on a
Hilbert curve, all.

[gluon] 24 loads across, of bf16 swizzled over 32 bytes, spill with 40 registers and compile with 56. Along K,
32 loads compile with 24; on a curve 18 loads, 16 of them along K, spill with 48 and compile with 56.
"""
REGISTERS_OF_MANY_LOADS = 56
REGISTERS_OF_CURVE = 32
"""Registers of a load warp on a Hilbert curve.

[gluon] With 24 most kernels compile. The warp keeps sums of the extents for the other roles, and their work
decides: pairs with scales and boxes of A narrower than a row spill, and with erf lone CTAs with scales and
pairs by launch control. In other orders these compile.
"""


def least_rows(plan: Tcgen05Kernel) -> int:
    """Return the fewest rows of a CTA's tile: 64, or 128 for pairs and for block scales."""
    return max(TCGEN05.m[plan.paired], plan.scale_rows)


def least_columns(plan: Tcgen05Kernel) -> int:
    """Return the fewest columns of an instruction, or of those whose scales lie together.

    [gluon] Triton compiles narrower instructions in silence; those for scales it refuses.
    """
    fewest = TCGEN05.n_min if plan.cta_tile_m > TCGEN05.m[0] else TCGEN05.n_min_64_rows
    return max(TCGEN05.n_min_pair if plan.paired else fewest, plan.scale_rows)


def least_step(plan: Tcgen05Kernel) -> int:
    """Return the fewest elements of a K step: an instruction's, or a block of scales.

    Beside padded elements it is as long as a box of padded elements.
    """
    operands = (plan.problem.a, plan.problem.b)
    vectors = [SCALE_COLUMNS * operand.scale.format.vector for operand in operands if operand.scale]
    return max([plan.mma_k, *vectors])


def step_operations(plan: Tcgen05Kernel) -> int:
    """Return the MMAs and copies of scales of a K step, all of whose addresses the MMA warp keeps."""
    return plan.mmas_per_step + plan.scale_copies


def loads_across(plan: Tcgen05Kernel) -> int:
    """Return the TMA loads of a K step across rows of K: each has a coordinate of its own along them."""
    operands = (("a", plan.problem.a), ("b", plan.problem.b))
    return sum(plan.loads(name) for name, operand in operands if operand.major == "mn")


def operand_loads(plan: Tcgen05Kernel) -> int:
    """Return the TMA loads of A and B for a K step."""
    return plan.loads("a") + plan.loads("b")


def mma_registers(plan: Tcgen05Kernel) -> int:
    """Return the registers per thread of the MMA warp, the most that were measured for longer steps."""
    operations = step_operations(plan)
    return next((needed for most, needed in STEP_REGISTERS if operations <= most), STEP_REGISTERS[-1][1])


def load_registers(plan: Tcgen05Kernel) -> int:
    """Return the registers per thread of the load warp."""
    curved = plan.order == "hilbert"
    if loads_across(plan) > FEW_LOADS or (curved and operand_loads(plan) > FEW_LOADS):
        return REGISTERS_OF_MANY_LOADS
    if curved:
        return REGISTERS_OF_CURVE
    return plan.architecture.setmaxnreg_min


def needed_worker_registers(plan: Tcgen05Kernel) -> int:
    """Return the registers per thread that all workers compile with."""
    return max(mma_registers(plan), load_registers(plan))


def most_sums(plan: Tcgen05Kernel) -> int:
    """Return the most sums of a sub-tile that a thread of the epilogue can have at a time.

    [gluon] With 256, a row's of so many columns, kernels compile that convert them to 16 or 8 bits, behind a
    factor or ReLU too; fp32 spills, as do other activations, and a factor before ReLU. C and any row or
    column operand spill, too. With 128 all compile, but with other activations than ReLU some whose tiles are
    found in groups, on a curve or in a snake: those of fp32, those with erf, those with C, and two operations
    and more; with 64 they do.
    """
    problem, steps, c = plan.problem, plan.problem.steps, plan.problem.c is not None
    reads = c or bool(problem.vectors)
    smooth = {op.register_class for op in problem.operations if op.smooth}
    if smooth and (c or problem.d.bits == 32 or "erf" in smooth or len(steps) > 1):
        return 64
    sloped = any(op.function and op.parameters for op in problem.operations)
    most = smooth or sloped or reads or problem.d.bits == 32 or len(steps) > 1
    return 128 if most else 256


def sums(plan: Tcgen05Kernel) -> int:
    """Return the sums of a sub-tile that a thread of the epilogue has."""
    threads = plan.default_warps * plan.architecture.threads_per_warp
    return plan.cta_tile_m * plan.subtile_n // threads


def scale_columns(plan: Tcgen05Kernel) -> int:
    """Return the columns of tensor memory that are not the accumulators'."""
    return plan.tensor_memory.columns - plan.accumulators * plan.cta_tile_n


def most_accumulators(plan: Tcgen05Kernel) -> int:
    """Return the most accumulators that fit beside the scales, 0 if not even one does."""
    return max(0, TCGEN05.tmem_columns - scale_columns(plan)) // plan.cta_tile_n
