"""Rules of the epilogue: sub-tiles, their buffers, and what is computed."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.blackwell.bounds import most_sums, sums
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.blackwell.rules.roles import cluster_shape
from gemmgen.plan.blackwell.rules.tile import narrowest_subtile, tile_columns, tile_rows
from gemmgen.plan.extents import is_power_of_two
from gemmgen.plan.problem import ACTIVATIONS
from gemmgen.plan.rules.epilogue import repeated_ops, uneven_buffers, unusable_factors
from gemmgen.plan.rules.rule import breaks, either, rule_id

OPS = ("tensor_scale", *ACTIVATIONS)
"""What the epilogue can compute: none of it has an operand of rows, columns or a matrix."""


def epilogue_subtile(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A sub-tile is part of a tile's columns that TMA can move."""
    if not is_power_of_two(plan.cta_tile_n) or not is_power_of_two(plan.subtile_n):
        return
    if breaks(plan, cluster_shape):
        return  # a cluster of fewer CTAs may store the tile in parts
    field, narrowest = "epilogue.subtile_n", narrowest_subtile(plan)
    if plan.subtile_n > plan.cta_tile_n:
        limit, fix = f"the tile has {plan.cta_tile_n}", f"use at most {plan.cta_tile_n}"
    elif plan.subtile_n < plan.cta_tile_n and plan.cluster_n > 1:
        limit = "a slice of an accumulator would part the columns of one CTA of the cluster from another's"
        fix = f"use {plan.cta_tile_n}"
    elif plan.subtile_n < narrowest:
        field = field if plan.cta_tile_n >= narrowest else "tile.n"
        alignment = plan.architecture.tma_alignment_bytes
        limit = f"TMA moves at least {alignment} bytes of a row of {plan.problem.d.name}"
        fix = f"use at least {narrowest}"
    else:
        return
    yield Violation(rule_id(epilogue_subtile), field, f"sub-tiles of {plan.subtile_n:,} columns", limit, fix)


def epilogue_registers(plan: Tcgen05Plan) -> Iterator[Violation]:
    """The sums of a sub-tile, and what is computed of them, fit into registers."""
    if not is_power_of_two(plan.subtile_n) or breaks(
        plan, cluster_shape, tile_rows, tile_columns, epilogue_subtile
    ):
        return
    held, most = sums(plan), most_sums(plan)
    if held <= most:
        return
    steps = f" after {', '.join(plan.problem.steps)}" if plan.problem.steps else ""
    yield Violation(
        rule_id(epilogue_registers),
        "epilogue.subtile_n" if plan.cluster_n == 1 else "tile.n",
        f"sub-tiles of {plan.subtile_n} columns",
        f"an epilogue thread spills {held} sums that become {plan.problem.d.name}{steps}",
        f"use at most {plan.subtile_n * most // held}",
    )


def epilogue_buffers(plan: Tcgen05Plan) -> Iterator[Violation]:
    """Each epilogue buffer has a sub-tile of every tile, so that the ring starts anew with the tile."""
    if not breaks(plan, epilogue_subtile):
        yield from uneven_buffers(plan)


def epilogue_ops(plan: Tcgen05Plan) -> Iterator[Violation]:
    """Each operation is one that Blackwell kernels have, and occurs once; nothing is added to the product."""
    limit = f"this version's Blackwell kernels compute {either(OPS)} and store the product"
    if plan.problem.c is not None:
        found = f"a C of {plan.problem.c.name}"
        yield Violation(rule_id(epilogue_ops), "operands.c", found, limit, "leave it out")
    for i, op in enumerate(plan.problem.ops):
        if op not in OPS:
            yield Violation(rule_id(epilogue_ops), f"epilogue.ops.{i}", op, limit, "leave it out")
    yield from (found for found in repeated_ops(plan) if found.found.split()[0] in OPS)


def epilogue_factors(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A factor is that of the product, and a number with which fp32 computes: Gluon takes others as fp64."""
    beta = plan.problem.beta
    if beta != 1:
        yield Violation(
            rule_id(epilogue_factors),
            "epilogue.beta",
            f"a factor of {beta:g}",
            "it is that of operands.c, which this version's Blackwell kernels do not add",
            "leave it out",
        )
    yield from (found for found in unusable_factors(plan) if found.field != "epilogue.beta")
