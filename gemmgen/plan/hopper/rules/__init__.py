"""The constraints of a Hopper plan: one pure function each, all of them in ``RULES``.

A rule yields a violation for every spec field that breaks it, with the numbers and the nearest legal value.
Its id is its name with dashes. A rule judges one thing and stays silent where another rule speaks: a value
that is no power of two is reported once, not by every rule that divides by it.

Limits marked [gluon] were found by lowering kernels on both sides of them; ``tests/test_random_specs.py``
keeps looking for a spec that is accepted and does not compile.
"""

from __future__ import annotations

from gemmgen.plan.hopper.rules.epilogue import (
    epilogue_buffers,
    epilogue_factors,
    epilogue_ops,
    epilogue_subtile,
)
from gemmgen.plan.hopper.rules.memory import operand_swizzle, outstanding_mmas, ring_depth, smem_capacity
from gemmgen.plan.hopper.rules.problem import (
    accumulator_dtype,
    operand_dtypes,
    operand_major,
    output_dtype,
    shape_alignment,
    single_tile_shapes,
)
from gemmgen.plan.hopper.rules.registers import (
    accumulator_registers,
    consumer_registers,
    producer_registers,
    register_granularity,
    register_pool,
    role_registers,
)
from gemmgen.plan.hopper.rules.roles import (
    cluster_shape,
    consumer_count,
    occupancy,
    schedule_kind,
    warp_layout,
)
from gemmgen.plan.hopper.rules.tile import (
    consumer_rows,
    mma_k,
    mma_n,
    promotion,
    tile_power_of_two,
    tile_rows,
)
from gemmgen.plan.rules.rule import Rule, rule_id
from gemmgen.plan.rules.schedule import group_width, minor_dimension

__all__ = ["PROBLEM_RULES", "RULES", "STORE_RULES", "Rule", "rule_id"]

RULES: tuple[Rule, ...] = (
    operand_dtypes,
    accumulator_dtype,
    output_dtype,
    operand_major,
    shape_alignment,
    single_tile_shapes,
    schedule_kind,
    cluster_shape,
    consumer_count,
    warp_layout,
    occupancy,
    group_width,
    minor_dimension,
    tile_power_of_two,
    consumer_rows,
    tile_rows,
    mma_n,
    mma_k,
    promotion,
    role_registers,
    register_granularity,
    register_pool,
    producer_registers,
    accumulator_registers,
    consumer_registers,
    operand_swizzle,
    ring_depth,
    outstanding_mmas,
    smem_capacity,
    epilogue_subtile,
    epilogue_buffers,
    epilogue_ops,
    epilogue_factors,
)

PROBLEM_RULES: tuple[Rule, ...] = (
    operand_dtypes,
    accumulator_dtype,
    output_dtype,
    shape_alignment,
    epilogue_ops,
    epilogue_factors,
)
"""Rules of what the spec states and nobody chooses: one plan that breaks them speaks for all."""

STORE_RULES = frozenset(map(rule_id, (ring_depth, smem_capacity, epilogue_subtile, epilogue_buffers)))
"""Rules on which it depends how D is stored: a plan that breaks only others speaks for its configuration."""
