"""Rules of the epilogue: sub-tiles, their buffers, and what is computed."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.extents import is_power_of_two
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.rules.epilogue import repeated_ops, uneven_buffers, unusable_factors
from gemmgen.plan.rules.rule import breaks, rule_id
from gemmgen.target import WGMMA


def epilogue_subtile(plan: WgmmaPlan) -> Iterator[Violation]:
    """A sub-tile is part of a tile's columns that no thread has to exchange, and that TMA can move."""
    if not is_power_of_two(plan.cta_tile_n) or not is_power_of_two(plan.subtile_n):
        return
    field = "epilogue.subtile_n"
    narrowest = narrowest_subtile(plan)
    if plan.subtile_n > plan.cta_tile_n:
        yield Violation(
            rule_id(epilogue_subtile),
            field,
            f"sub-tiles of {plan.subtile_n} columns",
            f"the tile has {plan.cta_tile_n}",
            f"use at most {plan.cta_tile_n}",
        )
    elif plan.subtile_n < plan.cta_tile_n and (plan.cluster_n > 1 or plan.warps_n > 1):
        owner = "CTA of the cluster" if plan.cluster_n > 1 else "warp along N"
        yield Violation(
            rule_id(epilogue_subtile),
            field,
            f"sub-tiles of {plan.subtile_n} columns",
            f"halving the tile would part the columns of one {owner} from another's, so it is stored whole",
            f"use {plan.cta_tile_n}",
        )
    elif plan.subtile_n < WGMMA.n_min <= plan.cta_tile_n:
        yield Violation(
            rule_id(epilogue_subtile),
            field,
            f"sub-tiles of {plan.subtile_n} columns",
            f"four threads hold {WGMMA.n_min} columns of an accumulator's row, and no split may part them",
            f"use at least {max(narrowest, WGMMA.n_min)}",
        )
    elif plan.subtile_n < narrowest and plan.cta_tile_n >= WGMMA.n_min:
        alignment = plan.architecture.tma_alignment_bytes
        yield Violation(
            rule_id(epilogue_subtile),
            field if plan.cta_tile_n >= narrowest else "tile.n",
            f"rows of {plan.subtile_n} elements of {plan.problem.d.name}",
            f"TMA moves at least {alignment} bytes of a row",
            f"use at least {narrowest}",
        )


def narrowest_subtile(plan: WgmmaPlan) -> int:
    """Return the fewest columns of which TMA can move a row of C and of D."""
    dtypes = (plan.problem.d, *((plan.problem.c,) if plan.problem.c else ()))
    return max(plan.architecture.tma_alignment_bytes // dtype.bytes for dtype in dtypes)


def epilogue_buffers(plan: WgmmaPlan) -> Iterator[Violation]:
    """Each epilogue buffer has a sub-tile of every tile, so that the ring starts anew with the tile."""
    if not breaks(plan, epilogue_subtile):
        yield from uneven_buffers(plan)


def epilogue_ops(plan: WgmmaPlan) -> Iterator[Violation]:
    """Each operation occurs once, for its operand has one name, and one that adds C has a C to add."""
    yield from repeated_ops(plan)
    problem = plan.problem
    if problem.residual and problem.c is None:
        yield Violation(
            rule_id(epilogue_ops),
            f"epilogue.ops.{problem.ops.index('residual')}",
            "residual without a C",
            "it adds the matrix operands.c",
            "leave it out, or use it with an operands.c",
        )


def epilogue_factors(plan: WgmmaPlan) -> Iterator[Violation]:
    """A factor is that of a matrix, and a number with which fp32 computes: Gluon takes others as fp64."""
    problem = plan.problem
    if problem.beta != 1 and (problem.c is None or problem.residual):
        why = "without a C" if problem.c is None else "for a C that residual adds"
        limit = "it is the factor of operands.c" if problem.c is None else "residual adds C as it is"
        yield Violation(
            rule_id(epilogue_factors),
            "epilogue.beta",
            f"a factor of {problem.beta:g} {why}",
            limit,
            "leave it out, or use it with a C that is added to the product",
        )
    yield from unusable_factors(plan)
