"""Rules of a program's work: schedule, split-K, reduction, dependent launch."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import OWN, Fix, at_least, at_most, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.warp_rules import MAX_OCCUPANCY


@rule("schedule-kind")
def schedule_kind(plan: WgmmaKernel) -> Iterator[Finding]:
    """Roles require a persistent schedule: with one tile their code is the persistent kernel's."""
    if plan.specialized and not plan.persistent:
        kind = plan.schedule_kind.replace("_", " ")
        yield Finding(
            "warp_specialization.kind",
            f"{plan.specialization} consumers in a {kind} schedule",
            "a producer of its own loads the next tile while one is stored, and such a program has none",
            use("none") | use("persistent", field="schedule.kind"),
        )


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
    elif plan.ping_pong:
        limit = "split-K needs consumers that share a tile"
        fix = _sharing_a_tile(plan) | whole_k(plan, field)
        yield Finding("warp_specialization.kind", f"ping_pong and {found}", limit, fix)
    elif plan.synchronous:
        limit = "split-K needs kernels that load ahead"
        yield Finding("buffering.stages", f"1 stage and {found}", limit, at_least(2))
    if plan.problem.accumulator.integer and plan.reduction == "ordered" and plan.occupancy == MAX_OCCUPANCY:
        # [gluon] Of 11, 12, 13, 17 and 19 parts with 16 sums a thread some spill 4 to 36 bytes, whatever is
        # read together; of floating-point numbers, and with two CTAs, none does.
        limit = f"the registers of {MAX_OCCUPANCY} CTAs hold no sums of integers on their way from memory"
        fix = at_most(MAX_OCCUPANCY - 1) | use("atomic", field="schedule.reduction")
        yield Finding("occupancy", f"{plan.occupancy} CTAs on each SM and {found}", limit, fix)
    if plan.splits > MAX_SPLITS:
        limit = f"the sums of at most {MAX_SPLITS} parts are added up to a tile"
        yield Finding(field, found, limit, at_most(MAX_SPLITS))


def whole_k(plan: WgmmaKernel, field: str = OWN) -> Fix:
    """Return the fix that leaves K undivided; a reduction that only several parts of K have goes too."""
    one = use(1, field=field)
    return one if plan.reduction == "ordered" else one & leave_out("schedule.reduction")


def undivided(plan: WgmmaKernel, words: str, *, single: str, read: str, other: Fix) -> Iterator[Finding]:
    """Yield the findings of programs for a kernel whose tiles have several matrices.

    Args:
        plan: The kernel.
        words: Words that follow a fault and name the matrices.
        single: What programs that divide K have instead: ``one accumulator``.
        read: The matrix whose columns the function of a single tile checks: ``a B``.
        other: The fix that leaves the matrices out.
    """
    if plan.splits > 1:
        found = f"{plan.splits:,} parts of K {words}"
        yield Finding("schedule.splits", found, f"split-K needs {single}", whole_k(plan) | other)
    if plan.schedule_kind == "single_tile":
        limit = f"the function of a single tile checks {read} of N columns"
        yield Finding("schedule.kind", f"a single tile {words}", limit, use("tiled") | other)


def _sharing_a_tile(plan: WgmmaKernel) -> Fix:
    """Return the fix of the kind of warp specialization that lets consumers share a tile."""
    cooperative = use("cooperative")
    # Several would divide the tile's rows, which are the instruction's columns with swap-AB.
    return cooperative & use(1, field="warp_specialization.consumers") if plan.swap_ab else cooperative


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
    if plan.dependent:
        yield Finding(
            "schedule.reduction",
            f"a parallel reduction with {plan.early_launch}",
            "the second kernel of the call before may still read its sums then"
            if plan.read_early
            else "a parallel reduction needs a start after all earlier kernels",
            use("ordered") | leave_out("dependent_launch"),
        )
    if plan.problem.copies_misaligned:
        yield Finding(
            "schedule.reduction",
            "a parallel reduction with copies of misaligned tensors",
            "copies of misaligned tensors need a kernel that stores D itself",
            use("ordered") | use("refuse", field="operands.misaligned"),
        )
    if plan.subtile_n != plan.cta_columns:
        yield Finding(
            "epilogue.subtile_n",
            f"sub-tiles of {plan.subtile_n} columns and a parallel reduction",
            "the kernel that adds up the sums stores D, and has no sub-tiles",
            use(plan.cta_columns) | use("ordered", field="schedule.reduction"),
        )


@rule("dependent-launch")
def dependent_launch(plan: WgmmaKernel) -> Iterator[Finding]:
    """A kernel that starts early begins with loads, by a producer or by a program that loads ahead."""
    if not plan.dependent or plan.specialized:
        return
    found = plan.early_launch
    limit = "an early start needs warp specialization, or programs of one tile that load ahead"
    if plan.schedule_kind != "tiled":
        kind = plan.schedule_kind.replace("_", " ")
        fix = use("tiled")
        if plan.persistent:
            fix |= use("cooperative", field="warp_specialization.kind")
        fix |= leave_out("dependent_launch")
        yield Finding("schedule.kind", f"{found} in a {kind} schedule", limit, fix)
    elif plan.synchronous:
        yield Finding("buffering.stages", f"1 stage and {found}", limit, at_least(2))
