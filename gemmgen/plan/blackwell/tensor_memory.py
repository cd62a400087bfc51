"""Tensor memory of a CTA: 128 lanes of so many columns of 32 bits, and what holds which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmgen.plan.problem import Operand
from gemmgen.plan.storage import TensorBuffer, TensorMemory
from gemmgen.target import TCGEN05

if TYPE_CHECKING:
    from gemmgen.plan.blackwell.plan import Tcgen05Plan


def tensor_memory(plan: Tcgen05Plan) -> TensorMemory:
    """Return what a plan puts into tensor memory, in the order in which the kernel allocates it."""
    name = "accumulators" if plan.accumulators > 1 else "accumulator"
    # A column holds a number of 32 bits in each of 128 lanes; 64 rows leave half of the lanes idle.
    sums = TensorBuffer(
        name, plan.accumulators * plan.cta_tile_n, f"{plan.accumulators} x {plan.cta_tile_n} columns of fp32"
    )
    scales = (
        _scales(plan, "a_scale_tmem", plan.problem.a, plan.cta_tile_m),
        _scales(plan, "b_scale_tmem", plan.problem.b, plan.cta_tile_n),
    )
    return TensorMemory((sums, *(buffer for buffer in scales if buffer.columns)))


def _scales(plan: Tcgen05Plan, name: str, operand: Operand, rows: int) -> TensorBuffer:
    """Return the scales of one K step: 4 bytes a column and lane, copied to each of the four warps' lanes."""
    columns = plan.scale_columns(operand)
    return TensorBuffer(
        name, rows * columns // TCGEN05.scale_bytes_per_column, f"{rows} x {columns} scales of 8 bits"
    )
