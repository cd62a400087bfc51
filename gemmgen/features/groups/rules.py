"""The rule of kernels that multiply groups: experts of a mixture, their weight gradients, and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.features.groups.blackwell_rules import no_groups
from gemmgen.hardware import DTYPES, FP8
from gemmgen.hardware.elements import WGMMA_ACCUMULATORS
from gemmgen.plan.fix import Fix, at_most, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.resources import WgmmaKernel

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
        yield from _of_types(plan)
        yield from _of_sizes(plan)
        yield from _of_tensors(plan)


def _of_types(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the finding of types that wgmma reads K-contiguous, which TMA cannot load from any K."""
    a, b = plan.problem.a, plan.problem.b
    if not plan.access.loads_k_from_any_row or a.dtype.bits == 16:
        return
    fix = Fix(())
    for dtype in WIDE:
        both = use(dtype) & use(dtype, field="operands.b.dtype")
        for name, operand in (("a", a), ("b", b)):
            if operand.major == "k":
                both &= use("mn", field=f"operands.{name}.major")
        fix |= both
    if a.dtype.name in FP8:
        fix |= SCALED
    limit = (
        "but a group begins at any K, where TMA begins only at multiples of 16 bytes, and wgmma reads "
        f"elements of {a.dtype.bits} bits along K alone"
    )
    yield Finding("operands.a.dtype", f"{a.dtype.name} with groups of K", limit, fix | UNGROUPED)


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
    if problem.a.dtype.in_memory and problem.gathers_a:
        stored = problem.a.dtype.in_memory
        limit = f"but TMA rounds {stored} to {problem.a.dtype.name}, and threads copy A as it is"
        yield Finding("groups.a_rows", f"a_rows with {problem.a.dtype.name}", limit, leave_out())
    if problem.vectors and groups.divides_k:
        limit = "row and column operands need groups of rows, each with a B of its own"
        yield from _of_vectors(plan, groups.of, limit, UNGROUPED)
    if problem.vectors and problem.backward and groups.of == "m_offsets":
        limit = "but the gradient of a vector of each group is a sum over its rows, which no kernel computes"
        fix = leave_out("backward") | UNGROUPED
        yield from _of_vectors(plan, "a backward of groups", limit, fix)


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


RULES: Final = {"wgmma": (groups,), "tcgen05": (no_groups,)}
"""The rules by the instruction of a family, in the order of reports."""
