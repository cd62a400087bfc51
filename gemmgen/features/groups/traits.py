"""Traits of groups, each with its field, its words and how a spec does without it."""

from __future__ import annotations

from collections.abc import Callable

from gemmgen.plan.fix import leave_out, use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.problem import Groups


def _of(plan: WgmmaKernel) -> Groups:
    """Return the groups of a kernel that has some."""
    assert plan.problem.groups is not None
    return plan.problem.groups


def _with(test: Callable[[Groups], bool]) -> Callable[[WgmmaKernel], bool]:
    """Return the test whether a kernel has groups that pass a test."""

    def has(plan: WgmmaKernel) -> bool:
        return plan.problem.groups is not None and test(plan.problem.groups)

    return has


GROUPS = Trait[WgmmaKernel](
    "groups",
    "groups",
    lambda plan: plan.problem.groups is not None,
    "groups",
    leave_out(),
)
COUNTED_GROUPS = Trait[WgmmaKernel](
    "groups that a tensor divides",
    "groups",
    _with(lambda groups: groups.counts is not None),
    "groups",
    leave_out(),
)
GROUPS_OF_K = Trait[WgmmaKernel](
    "groups of K",
    "groups",
    _with(lambda groups: groups.divides_k),
    "groups of K",
    leave_out(),
)
GROUPS_OF_ROWS = Trait[WgmmaKernel](
    "groups of rows",
    "groups",
    _with(lambda groups: not groups.divides_k),
    "groups",
    leave_out(),
)
ADJACENT_GROUPS = Trait[WgmmaKernel](
    "groups of rows that follow each other",
    "groups",
    _with(lambda groups: not groups.divides_k and not groups.apart),
    "groups",
    leave_out(),
)
ANY_K_GROUPS = Trait[WgmmaKernel](
    "groups that divide K anywhere",
    "groups",
    lambda plan: plan.access.loads_k_from_any_row and plan.problem.a.dtype.bits == 16,
    "groups of K",
    leave_out(),
)
M_OFFSETS = Trait[WgmmaKernel](
    "m_offsets",
    "groups.kind",
    _with(lambda groups: groups.of == "m_offsets"),
    "m_offsets",
    use("m_masked", "batched") | leave_out("groups"),
)
OTHER_GROUPS = Trait[WgmmaKernel](
    "other groups than m_offsets",
    "groups",
    _with(lambda groups: groups.of != "m_offsets"),
    lambda plan: _of(plan).of,
    leave_out(),
)
BATCHED = Trait[WgmmaKernel](
    "batches",
    "groups.kind",
    _with(lambda groups: groups.of == "batched"),
    "batched",
    use("m_offsets", "m_masked") | leave_out("groups"),
)
BROADCAST = Trait[WgmmaKernel](
    "an operand that all groups share",
    "groups.broadcast",
    _with(lambda groups: groups.broadcast is not None),
    lambda plan: f"one {str(_of(plan).broadcast).upper()}",
    leave_out(),
)
