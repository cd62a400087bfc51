"""The constraints of a Blackwell plan: one pure function each, all of them in ``RULES``.

As with the rules of Hopper plans, each judges one thing, says it with the numbers and the nearest legal
value, and stays silent where another rule speaks. No Blackwell GPU was at hand: limits marked [gluon] were
found by lowering kernels on both sides of them, and those that Triton does not check are the manual's.
"""

from __future__ import annotations

from gemmgen.plan.blackwell.rules.epilogue import (
    epilogue_buffers,
    epilogue_factors,
    epilogue_ops,
    epilogue_registers,
    epilogue_subtile,
)
from gemmgen.plan.blackwell.rules.memory import operand_swizzle, smem_capacity, tmem_capacity
from gemmgen.plan.blackwell.rules.problem import (
    accumulator_dtype,
    operand_dtypes,
    operand_major,
    operand_packing,
    output_dtype,
    scale_format,
    shape_alignment,
)
from gemmgen.plan.blackwell.rules.registers import register_granularity, worker_registers
from gemmgen.plan.blackwell.rules.roles import cluster_shape, occupancy
from gemmgen.plan.blackwell.rules.tile import tile_columns, tile_power_of_two, tile_rows, tile_step
from gemmgen.plan.rules.rule import Rule, rule_id
from gemmgen.plan.rules.schedule import group_width, minor_dimension

__all__ = ["PROBLEM_RULES", "RULES", "STORE_RULES", "Rule"]

PROBLEM_RULES: tuple[Rule, ...] = (
    operand_dtypes,
    scale_format,
    operand_packing,
    accumulator_dtype,
    output_dtype,
    operand_major,
    shape_alignment,
    epilogue_ops,
    epilogue_factors,
)
"""Rules of what the spec states and nobody chooses: one plan that breaks them speaks for all."""

RULES: tuple[Rule, ...] = (
    *PROBLEM_RULES,
    cluster_shape,
    occupancy,
    group_width,
    minor_dimension,
    tile_power_of_two,
    tile_rows,
    tile_columns,
    tile_step,
    register_granularity,
    worker_registers,
    operand_swizzle,
    tmem_capacity,
    smem_capacity,
    epilogue_subtile,
    epilogue_registers,
    epilogue_buffers,
)

STORE_RULES = frozenset(map(rule_id, (smem_capacity, epilogue_subtile, epilogue_registers, epilogue_buffers)))
"""Rules on which it depends how D is stored: a plan that breaks only others speaks for its configuration."""
