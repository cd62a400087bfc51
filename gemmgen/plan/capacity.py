"""Shared memory as a limit of decisions: what fits, and the finding of a plan that does not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gemmgen.plan.fix import Fix, at_most, hint
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import AnyPlan, Finding, altered


def fits(plan: Kernel) -> bool:
    """Return True if a CTA's share of shared memory holds all that the plan puts there."""
    limit = plan.smem_limit_bytes
    return plan.stages * plan.stage_bytes <= limit and plan.smem_bytes <= limit  # the ring is soon added up


def stages_that_fit(plan: Kernel) -> int:
    """Return the most stages that fit, 0 if not even one does."""
    limit = plan.smem_limit_bytes
    depths = range(1, limit // max(1, plan.stage_bytes) + 1)
    return bisect_right(depths, limit, key=partial(plan.shared_memory.bytes_with, "stages"))


def largest_that_fits(
    attempts: Sequence[tuple[AnyPlan, str, str]], *, legal: Callable[[AnyPlan], bool]
) -> tuple[str, Fix]:
    """Halve one decision after the other; return the first field that does it and the fix for it.

    An attempt is a plan, the decision to halve, and its field in a spec. A sub-tile shrinks with its tile.
    If no attempt leads to a plan that fits, the field is the last attempt's, and the fix names no value.
    """
    field = ""
    for base, name, field in attempts:
        value: int = getattr(base, name)
        while value > 1:
            value //= 2
            smaller = altered(base, **{name: value})
            if name == "cta_tile_n":
                smaller = altered(smaller, subtile_n=min(smaller.column_parts[-1], base.subtile_n))
            if not legal(smaller):
                break
            if fits(smaller):
                return field, at_most(value)
    return field, hint("a smaller tile")


def over_capacity(
    plan: AnyPlan,
    *,
    least: int,
    most: int,
    unbounded: bool,
    smaller_tile: Callable[[AnyPlan], tuple[str, Fix]],
) -> Iterator[Finding]:
    """Yield the finding of a plan that does not fit.

    Args:
        plan: The plan.
        least: The fewest stages that its kernel works with.
        most: The most stages that fit; if they are fewer than the least, the tile is to blame.
        unbounded: True if no tile can be named, because other rules that bound it are broken.
        smaller_tile: Return the field that has to shrink for a plan with the fewest stages, and its fix.
    """
    if most >= least:
        field, fix = "buffering.stages", at_most(most)
        found = f"{plan.stages:,} stages of {plan.stage_bytes:,} bytes and the epilogue need"
    elif unbounded:
        return
    else:
        fewest = "a single stage" if least == 1 else f"{least} stages"
        found = f"even {fewest} of {plan.stage_bytes:,} bytes and the epilogue need"
        plan = altered(plan, stages=least)
        field, fix = smaller_tile(plan)
    limit = plan.smem_limit_bytes
    shared = limit < plan.architecture.smem_bytes_per_cta
    share = f" of each of {plan.occupancy} CTAs" if shared else ""
    yield Finding(field, f"{found} {plan.smem_bytes:,} bytes", f"the limit{share} is {limit:,}", fix)
