"""Which Hopper kernels are tried for groups of rows: roles in programs of one CTA, swap-AB for few rows."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.search import Branch, Choices, Values
from gemmgen.plan.wgmma.tried.branches import implied_by, kinds_of
from gemmgen.plan.wgmma.tried.derived import steps_of
from gemmgen.plan.wgmma.tried.values import DEFAULTS, KINDS, PING_PONG_WIDTH, STEP_BYTES, SWAP_AB_STEP_BYTES
from gemmgen.problem import Request

ONE_CTA: Values = {"cluster_m": 1, "cluster_n": 1}
"""The cluster of programs that find the group of a tile."""
ROWS_CHOICES: Choices = {
    "cta_tile_m": (128, 64),
    "cta_tile_n": (256, 128, 64),
    "consumers": (2, 1),
    "outstanding_mmas": (0, 1),
}
"""Values that are tried if rows of A are the instruction's rows."""
SWAP_AB_CHOICES: Choices = {
    "cta_tile_m": (8, 16, 32, 64, 128),
    "cta_tile_n": (64, 128, 256),
    "outstanding_mmas": (1,),
}
"""Values that are tried with swap-AB, for groups of few rows."""
SWAP_AB_MEAN_ROWS = 128
"""Mean rows of the groups that have rows, up to which swap-AB is tried.

On an H200 it was the fastest at none of six layers with 256 rows a group in the mean, and at all with 4
(``benchmarks/grouped/h200_sweep.json``).
"""


def branches_of_groups(request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
    """Yield a branch for each kind of warp specialization, with swap-AB and without."""
    swaps = wanted.get("swap_ab") or ((stated["swap_ab"],) if "swap_ab" in stated else _swaps(request))
    for swap_ab in swaps:
        steps = SWAP_AB_STEP_BYTES if swap_ab else STEP_BYTES
        choices = {
            **(SWAP_AB_CHOICES if swap_ab else ROWS_CHOICES),
            "cta_tile_k": steps_of(request.matmul, steps),
        }
        for kind in wanted.get("specialization") or kinds_of({**DEFAULTS, **stated}):
            order = {"order": "grouped", "minor": "m", "width": PING_PONG_WIDTH if kind == KINDS[1] else 16}
            lone = {"consumers": 1} if swap_ab and kind == KINDS[0] else {}
            fixed = {"occupancy": 1, **order, **DEFAULTS, **ONE_CTA, **lone, **implied_by(stated, kind)}
            of_kind = {name: values for name, values in choices.items() if name not in fixed}
            yield Branch(fixed, of_kind, {"swap_ab": swap_ab, "specialization": kind})


def _swaps(request: Request) -> tuple[bool, ...]:
    """Return the values of swap-AB that are tried: both for few rows a group, unless a gate excludes one."""
    few = False
    for m, _, _ in request.planned_shapes:
        rows = [each for each in request.matmul.rows_of_groups(m) if each]
        few |= sum(rows) <= SWAP_AB_MEAN_ROWS * len(rows)
    return (False, True) if few and not request.matmul.gated else (False,)
