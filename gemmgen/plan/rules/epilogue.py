"""What the epilogue rules of both families judge alike."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.extents import is_power_of_two, power_of_two_below
from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.rules.rule import nearest

FP32_MIN = 2.0**-126
"""The smallest normal number of fp32."""
FP32_MAX = (2 - 2.0**-23) * 2.0**127


def uneven_buffers(plan: KernelPlan) -> Iterator[Violation]:
    """Yield what is wrong with the number of buffers, for sub-tiles that are legal."""
    if not (is_power_of_two(plan.cta_tile_n) and is_power_of_two(plan.subtile_n)):
        return
    if plan.epilogue_buffers > plan.subtiles or plan.subtiles % plan.epilogue_buffers:
        subtiles = "a tile stored whole" if plan.subtiles == 1 else f"the {plan.subtiles} sub-tiles of a tile"
        below = power_of_two_below(plan.epilogue_buffers)
        yield Violation(
            "epilogue-buffers",
            "buffering.epilogue",
            f"{plan.epilogue_buffers} buffers for {subtiles}",
            "a tile uses each buffer equally often, or the next one would overwrite what a store still reads",
            nearest(below, 2 * below, high=plan.subtiles),
        )


def repeated_ops(plan: KernelPlan) -> Iterator[Violation]:
    """Yield the operations that occur again."""
    problem = plan.problem
    for i, op in enumerate(problem.ops):
        if op in problem.ops[:i]:
            yield Violation(
                "epilogue-ops",
                f"epilogue.ops.{i}",
                f"{op} a second time",
                "an operation's operand is passed under its name, once",
                "leave it out",
            )


def unusable_factors(plan: KernelPlan) -> Iterator[Violation]:
    """Yield the factors of matrices with which the epilogue cannot compute."""
    problem = plan.problem
    of_beta = ("beta", problem.beta, "C")
    for name, factor, of in (("alpha", problem.alpha, "A @ B"), *((of_beta,) if problem.c else ())):
        if factor == 0:
            yield Violation(
                "epilogue-factors",
                f"epilogue.{name}",
                f"a factor of 0 for {of}",
                "a kernel would read it in vain",
                "leave it out, or use another factor" + (", or no operands.c" if name == "beta" else ""),
            )
        elif not FP32_MIN <= abs(factor) <= FP32_MAX:
            yield Violation(
                "epilogue-factors",
                f"epilogue.{name}",
                f"a factor of {factor:g} for {of}",
                f"the epilogue computes in fp32, with numbers from {FP32_MIN:.1e} to {FP32_MAX:.1e}",
                "leave it out, or use one of those",
            )
