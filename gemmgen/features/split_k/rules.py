"""The rules of split-K: how many parts of K there are, who adds up their sums, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.features.split_k.traits import whole_k
from gemmgen.plan.fix import at_least, at_most, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.wgmma.resources import WgmmaKernel

MAX_OCCUPANCY_OF_INTEGERS = 2
MAX_SPLITS = 64
"""Most splits of a tile: programs add their sums one after the other, or one program adds up all sums."""


@rule("splits")
def splits(plan: WgmmaKernel) -> Iterator[Finding]:
    """Split-K requires a program that loads ahead, and consumers that count the splits of a tile together."""
    if plan.splits == 1:
        return
    field, found = "schedule.splits", f"{plan.splits:,} parts of K"
    one = whole_k(plan)
    if plan.schedule_kind == "single_tile":
        limit = "all of K is one step there"
        fix = one | use("tiled", "persistent", field="schedule.kind")
        yield Finding(field, f"{found} in a single tile schedule", limit, fix)
        return
    if plan.persistent and not plan.specialized:
        limit = "only persistent programs with a producer take parts of K"
        fix = one | use("tiled", field="schedule.kind")
        yield Finding(field, f"{found} without warp specialization", limit, fix)
    most = MAX_OCCUPANCY_OF_INTEGERS
    if plan.problem.accumulator.integer and plan.reduction == "ordered" and plan.occupancy > most:
        # [gluon] Of 11, 12, 13, 17 and 19 parts with 16 sums a thread some spill 4 to 36 bytes, whatever is
        # read together; of floating-point numbers, and with two CTAs, none does.
        limit = f"the registers of {plan.occupancy} CTAs hold no sums of integers on their way from memory"
        fix = at_most(most) | use("atomic", field="schedule.reduction")
        yield Finding("occupancy", f"{plan.occupancy} CTAs on each SM and {found}", limit, fix)
    if plan.splits > MAX_SPLITS:
        limit = f"the sums of at most {MAX_SPLITS} parts are added up to a tile"
        yield Finding(field, found, limit, at_most(MAX_SPLITS))


ARTICLES = {"atomic": "an", "parallel": "a"}


@rule("reduction")
def reduction(plan: WgmmaKernel) -> Iterator[Finding]:
    """Atomic and parallel reductions require several splits."""
    if plan.reduction == "ordered" or plan.splits > 1:
        return
    found = f"{ARTICLES[plan.reduction]} {plan.reduction} reduction"
    problem = plan.problem
    refused = (problem.deterministic or problem.batch_invariant) and not problem.accumulator.integer
    refused &= plan.reduction == "atomic"
    several = at_least(2, "schedule.splits")
    if plan.persistent:
        several &= use("cooperative", field="warp_specialization.kind")
    yield Finding(
        "schedule.reduction",
        f"{found} of 1 part of K",
        "one program has all of a tile's sums, and adds nothing up",
        leave_out() if refused or plan.schedule_kind == "single_tile" else leave_out() | several,
    )


@rule("same-bits", after=[reduction])
def same_bits(plan: WgmmaKernel) -> Iterator[Finding]:
    """If D must have the same bits in every run, sums are added up in a fixed order."""
    problem = plan.problem
    if plan.deterministic or not (problem.deterministic or problem.batch_invariant):
        return
    asked = "deterministic" if problem.deterministic else "batch-invariant"
    yield Finding(
        "schedule.reduction",
        f"an atomic reduction for a {asked} kernel",
        "floating-point sums that are added up as they come differ from run to run",
        use("ordered"),
    )


@rule("parallel-reduction", after=[reduction])
def parallel_reduction(plan: WgmmaKernel) -> Iterator[Finding]:
    """The kernel that adds up sums follows one that waits for all earlier kernels, and stores D in pieces."""
    if not plan.reduces_apart:
        return
    if plan.subtile_n != plan.cta_columns:
        yield Finding(
            "epilogue.subtile_n",
            f"sub-tiles of {plan.subtile_n} columns and a parallel reduction",
            "the kernel that adds up the sums stores D, and has no sub-tiles",
            use(plan.cta_columns) | use("ordered", field="schedule.reduction"),
        )


RULES: Final = {"wgmma": (splits, reduction, parallel_reduction, same_bits)}
"""The rules by the instruction of a family, in the order of reports."""
