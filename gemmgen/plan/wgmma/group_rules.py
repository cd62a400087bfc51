"""The rule of kernels that multiply groups: experts of a mixture, their weight gradients, and batches."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import DTYPES, FP8
from gemmgen.hardware.elements import WGMMA_ACCUMULATORS
from gemmgen.plan.fix import Fix, at_most, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.work_rules import whole_k

MOST_GROUPS = 512
"""[gluon] A warp holds four values of each group: of 512 groups they take 64 registers of a thread, which a
producer can have beside consumers of 128 x 256 sums; of 1,024 they would take 128, and spill.
"""
UNGROUPED = leave_out("groups")
"""The fix that leaves the groups out."""
WIDE = tuple(name for name in WGMMA_ACCUMULATORS if DTYPES[name].bits == 16)
"""Types that wgmma reads along any dimension."""
SCALED = use("fp32_1x128", field="operands.a.scale.format") & use(
    "fp32_1x128", field="operands.b.scale.format"
)
"""The fix that gives 8-bit floats scales for blocks of 128 of K, between which groups divide K."""


@rule("groups")
def groups(plan: WgmmaKernel) -> Iterator[Finding]:
    """A tile is of one group: roles find it by its number, and no store crosses the group's ends."""
    if plan.problem.groups is not None:
        yield from _of_loads(plan)
        yield from _of_sizes(plan)
        yield from _of_tensors(plan)
        yield from _of_gradients(plan)
        yield from _of_indices(plan)
        yield from _of_programs(plan)


def _of_loads(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of A and B as they lie in memory: a load must be able to stop at a group's ends."""
    problem, groups = plan.problem, plan.problem.groups
    assert groups is not None
    if groups.divides_k:
        if problem.gated:
            limit = "groups of K need one accumulator"
            found = f"{' and '.join(problem.epilogue.accumulators)} as accumulators with {groups.of}"
            yield Finding("epilogue.d", found, limit, without_expression() | UNGROUPED)
        limit = "but TMA loads along K from multiples of 16 bytes on, and a group begins at any K"
        if plan.access.loads_k_from_any_row and problem.a.dtype.bits != 16:
            yield _of_types(plan, limit)
            return
        for operand in ("a", "b") if plan.access.loads_k_from_any_row else ():
            if problem.operand(operand).major == "k":
                found = f"{operand.upper()} is K-contiguous with groups of K"
                yield Finding(f"operands.{operand}.major", found, limit, use("mn") | UNGROUPED)
        return
    if problem.a.major == "mn" and not groups.apart:
        limit = "but TMA loads along M from multiples of 16 bytes on, and a group begins at any row"
        yield Finding("operands.a.major", "A is M-contiguous with groups", limit, use("k") | UNGROUPED)
    if problem.b.major == "mn" and problem.in_blocks:
        limit = "a gate of two blocks of columns in groups needs a K-contiguous B"
        fix = use("k") | use("interleaved", field="epilogue.columns") | UNGROUPED
        yield Finding("operands.b.major", "an N-contiguous B of blocks with groups", limit, fix)


def _of_types(plan: WgmmaKernel, loads: str) -> Finding:
    """Return the finding of types that wgmma reads K-contiguous, which TMA cannot load from any K."""
    a, b = plan.problem.a, plan.problem.b
    fix = Fix(())
    for dtype in WIDE:
        both = use(dtype) & use(dtype, field="operands.b.dtype")
        for name, operand in (("a", a), ("b", b)):
            if operand.major == "k":
                both &= use("mn", field=f"operands.{name}.major")
        fix |= both
    if a.dtype.name in FP8:
        fix |= SCALED
    limit = f"{loads}, and wgmma reads elements of {a.dtype.bits} bits along K alone"
    return Finding("operands.a.dtype", f"{a.dtype.name} with groups of K", limit, fix | UNGROUPED)


def _of_sizes(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of the expected sizes of the groups, which only rank kernels."""
    groups = plan.problem.groups
    assert groups is not None
    skew, shares = groups.skew, groups.shares
    if skew is not None and shares:
        limit = "but a skew draws the sizes, and shares state them"
        yield Finding("groups.skew", f"a skew of {skew:g}", limit, leave_out() | leave_out("groups.shares"))
    elif groups.of == "batched" and (shares or skew is not None):
        field, found = ("groups.shares", "shares") if skew is None else ("groups.skew", f"a skew of {skew:g}")
        yield Finding(field, f"{found} with batched", "but all batches have M rows", leave_out())
    elif shares and len(shares) != groups.count:
        limit = f"but there are {groups.count:,} groups"
        fix = leave_out() | use(len(shares), field="groups.count")
        yield Finding("groups.shares", f"{len(shares):,} shares", limit, fix)
    elif shares and not any(shares):
        yield Finding("groups.shares", "shares of 0 alone", "but one group or more has a size", leave_out())


def _of_tensors(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of the number of groups, of the matrices, and of the epilogue."""
    problem, groups = plan.problem, plan.problem.groups
    assert groups is not None
    if plan.group_slots and groups.count > MOST_GROUPS:
        limit = f"but each warp holds the rows of all groups in registers, of at most {MOST_GROUPS}"
        yield Finding("groups.count", f"{groups.count:,} groups", limit, at_most(MOST_GROUPS))
    if groups.broadcast and groups.counts:
        limit = "but groups that a tensor divides have rows of A, or columns of A and rows of B, of their own"
        fix = leave_out("groups.broadcast") | use("batched", field="groups.kind")
        yield Finding("groups.broadcast", f"one {groups.broadcast.upper()} with {groups.of}", limit, fix)
    if problem.copies_misaligned:
        limit = "copies of misaligned tensors are supported only without groups"
        yield Finding("operands.misaligned", "copy with groups", limit, use("refuse") | UNGROUPED)
    if problem.c is not None and problem.d_blocks == 1 and groups.of == "m_offsets":
        limit = (
            "but TMA would also read rows of C of the next group, into which another program may store its D"
        )
        fix = (leave_out() & leave_out("epilogue.beta")) | use("m_masked", "batched", field="groups.kind")
        yield Finding("operands.c", "a C with m_offsets", limit, fix | UNGROUPED)
    if problem.vectors and groups.divides_k:
        limit = "row and column operands need groups of rows, each with a B of its own"
        yield from _of_vectors(plan, groups.of, limit, UNGROUPED)


def _of_vectors(plan: WgmmaKernel, other: str, limit: str, fix: Fix) -> Iterator[Finding]:
    """Yield the findings of row and column operands beside something else, which `fix` leaves out."""
    vectors, listed = plan.problem.vectors, plan.request.listed
    if listed is None:
        found = f"{' and '.join(vectors)} with {other}"
        yield Finding("epilogue.d", found, limit, without_expression() | fix)
        return
    for name in vectors:
        field = f"epilogue.ops.{listed.ops.index(name)}"
        yield Finding(field, f"{name} with {other}", limit, leave_out() | fix)


def _of_gradients(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of a backward: its kernels multiply groups of rows, and the same groups of K."""
    problem, groups = plan.problem, plan.problem.groups
    assert groups is not None
    if not problem.backward:
        return
    if groups.of != "m_offsets":
        limit = "a backward of groups needs m_offsets"
        yield Finding("backward", f"a backward with {groups.of}", limit, use(False) | UNGROUPED)
    elif problem.vectors:
        limit = "but the gradient of a vector of each group is a sum over its rows, which no kernel computes"
        fix = leave_out("backward") | UNGROUPED
        yield from _of_vectors(plan, "a backward of groups", limit, fix)


def _of_indices(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of indices of rows: they have a place for each row of one A, which offs divides."""
    problem, groups = plan.problem, plan.problem.groups
    assert groups is not None
    for index in groups.row_indices:
        unindexed = leave_out(f"groups.{index}")
        if groups.of != "m_offsets":
            limit = f"{index} needs m_offsets"
            fix = leave_out() | use("m_offsets", field="groups.kind")
            yield Finding(f"groups.{index}", f"{index} with {groups.of}", limit, fix)
        if problem.backward:
            limit = (
                "but the gradients of A and B would read the gradient of D by the index, which no kernel does"
            )
            yield Finding("backward", f"a backward with {index}", limit, use(False) | unindexed)
        for field, ctas in (("cluster.m", plan.cluster_m), ("cluster.n", plan.cluster_n)):
            if ctas > 1:
                limit = "rows by an index need clusters of one CTA"
                yield Finding(field, f"{ctas:,} CTAs with {index}", limit, use(1) | unindexed)
    if problem.gathers_a:
        yield from _of_gathered_rows(plan)
    if problem.scatters_d and plan.epilogue_buffers > 1:
        limit = (
            "but threads read a buffer back before they fill the next one, which then needs none of its own"
        )
        found = f"{plan.epilogue_buffers:,} buffers of sub-tiles with d_rows"
        fix = use(1) | leave_out("groups.d_rows")
        yield Finding("buffering.epilogue", found, limit, fix)


def _of_gathered_rows(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of rows of A by an index, which threads copy to shared memory as they are."""
    problem, ungathered = plan.problem, leave_out("groups.a_rows")
    if problem.scatters_d:
        limit = "but the number of rows of the product is that of A or of D, and both have rows of their own"
        yield Finding("groups.d_rows", "d_rows with a_rows", limit, leave_out() | ungathered)
    if problem.a.dtype.in_memory:
        stored = problem.a.dtype.in_memory
        limit = f"but TMA rounds {stored} to {problem.a.dtype.name}, and threads copy A as it is"
        yield Finding("groups.a_rows", f"a_rows with {problem.a.dtype.name}", limit, leave_out())
    if plan.a_source == "registers":
        limit = "rows of A by an index need A in shared memory"
        yield Finding("operands.a.source", "A from registers with a_rows", limit, use("shared") | ungathered)


def _of_programs(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of programs: of their schedule, and of their tiles."""
    groups = plan.problem.groups
    assert groups is not None
    if not plan.specialized and plan.schedule_kind == "single_tile":
        limit = "but a program of a single tile has one A and one B"
        yield Finding("schedule.kind", "single_tile with groups", limit, use("persistent") | UNGROUPED)
    elif plan.schedule_kind == "tiled" and groups.counts:
        limit = "but programs walk over the tiles of groups, whose ends the host does not know"
        yield Finding("schedule.kind", "tiled with groups", limit, use("persistent") | UNGROUPED)
    elif not plan.specialized and groups.counts:
        limit = (
            "but a producer and consumers walk over the tiles of groups, whose ends the host does not know"
        )
        fix = use("cooperative", "ping_pong") | UNGROUPED
        yield Finding("warp_specialization.kind", f"{plan.specialization} with groups", limit, fix)
    if plan.splits > 1:
        limit = "split-K is supported only without groups"
        fix = whole_k(plan) | UNGROUPED
        yield Finding("schedule.splits", f"{plan.splits:,} parts of K with groups", limit, fix)
    if plan.read_early and groups.counts:
        limit = (
            "but the kernel ahead may still write where groups end, and no load begins before that is read"
        )
        fix = use("nothing") | UNGROUPED
        yield Finding("dependent_launch.early", f"{plan.early_launch} with groups", limit, fix)
    if plan.staggered:
        limit = "but a group may end between the two tiles of a rectangle"
        yield Finding("tile.staggered", "a staggered tile with groups", limit, use(False) | UNGROUPED)
    if (plan.order, plan.minor) != ("grouped", "m"):
        limit = "but within a group, tiles go down some rows of tiles and then to the right"
        fix = (use("grouped") & leave_out("schedule.minor")) | UNGROUPED
        yield Finding("schedule.order", f"{plan.order} order along {plan.minor} with groups", limit, fix)
