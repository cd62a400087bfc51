"""Rules of the epilogue: sub-tiles, their buffers, and what is computed."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.bounds import is_power_of_two, power_of_two_below
from gemmgen.plan.kernel import KernelPlan
from gemmgen.plan.plan import Plan
from gemmgen.plan.rules.rule import breaks, nearest, rule_id
from gemmgen.target import WGMMA

FP32_MIN = 2.0**-126
"""The smallest normal number of fp32."""
FP32_MAX = (2 - 2.0**-23) * 2.0**127


def epilogue_subtile(plan: Plan) -> Iterator[Violation]:
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


def narrowest_subtile(plan: Plan) -> int:
    """Return the fewest columns of which TMA can move a row of C and of D."""
    dtypes = (plan.problem.d, *((plan.problem.c,) if plan.problem.c else ()))
    return max(plan.architecture.tma_alignment_bytes // dtype.bytes for dtype in dtypes)


def epilogue_buffers(plan: Plan) -> Iterator[Violation]:
    """Each epilogue buffer has a sub-tile of every tile, so that the ring starts anew with the tile."""
    if not breaks(plan, epilogue_subtile):
        yield from uneven_buffers(plan)


def uneven_buffers(plan: KernelPlan) -> Iterator[Violation]:
    """Yield what is wrong with the number of buffers, for sub-tiles that are legal."""
    if not (is_power_of_two(plan.cta_tile_n) and is_power_of_two(plan.subtile_n)):
        return
    if plan.epilogue_buffers > plan.subtiles or plan.subtiles % plan.epilogue_buffers:
        subtiles = "a tile stored whole" if plan.subtiles == 1 else f"the {plan.subtiles} sub-tiles of a tile"
        below = power_of_two_below(plan.epilogue_buffers)
        yield Violation(
            rule_id(epilogue_buffers),
            "buffering.epilogue",
            f"{plan.epilogue_buffers} buffers for {subtiles}",
            "a tile uses each buffer equally often, or the next one would overwrite what a store still reads",
            nearest(below, 2 * below, high=plan.subtiles),
        )


def epilogue_ops(plan: Plan) -> Iterator[Violation]:
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


def repeated_ops(plan: KernelPlan) -> Iterator[Violation]:
    """Yield the operations that occur again."""
    problem = plan.problem
    for i, op in enumerate(problem.ops):
        if op in problem.ops[:i]:
            yield Violation(
                rule_id(epilogue_ops),
                f"epilogue.ops.{i}",
                f"{op} a second time",
                "an operation's operand is passed under its name, once",
                "leave it out",
            )


def epilogue_factors(plan: Plan) -> Iterator[Violation]:
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


def unusable_factors(plan: KernelPlan) -> Iterator[Violation]:
    """Yield the factors of matrices with which the epilogue cannot compute."""
    problem = plan.problem
    of_beta = ("beta", problem.beta, "C")
    for name, factor, of in (("alpha", problem.alpha, "A @ B"), *((of_beta,) if problem.c else ())):
        if factor == 0:
            yield Violation(
                rule_id(epilogue_factors),
                f"epilogue.{name}",
                f"a factor of 0 for {of}",
                "a kernel would read it in vain",
                "leave it out, or use another factor" + (", or no operands.c" if name == "beta" else ""),
            )
        elif not FP32_MIN <= abs(factor) <= FP32_MAX:
            yield Violation(
                rule_id(epilogue_factors),
                f"epilogue.{name}",
                f"a factor of {factor:g} for {of}",
                f"the epilogue computes in fp32, with numbers from {FP32_MIN:.1e} to {FP32_MAX:.1e}",
                "leave it out, or use one of those",
            )
