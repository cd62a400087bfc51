"""Which Hopper kernels are tried for groups: kernels with roles, swap-AB for few rows.

Batches are also tried in clusters and in programs of one tile each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gemmgen.plan.group_forecast import tries_swap_ab
from gemmgen.plan.search import Branch, Choices, Values
from gemmgen.plan.wgmma.tried.branches import implied_by, kinds_of, with_blocks
from gemmgen.plan.wgmma.tried.derived import steps_of
from gemmgen.plan.wgmma.tried.values import (
    DEFAULTS,
    KINDS,
    OF_ROLES,
    PING_PONG_WIDTH,
    STEP_BYTES,
    SWAP_AB_STEP_BYTES,
    TILED_CHOICES,
)
from gemmgen.problem import Request

EARLY = frozenset(("early_operand",))
"""Decisions of an early launch, which programs of one tile each have too: they load ahead."""
ONE_CTA: Values = {"cluster_m": 1, "cluster_n": 1}
"""The cluster of programs that find the group of a tile."""
ROWS_CHOICES: Choices = {
    "cta_tile_m": (128, 64),
    "cta_tile_n": (256, 128, 64),
    "consumers": (2, 1),
    "outstanding_mmas": (0, 1),
}
"""Values that are tried if rows of A are the instruction's rows."""
K_GROUPS_CHOICES: Choices = {**ROWS_CHOICES, "cta_tile_m": (256, 128, 64)}
"""Values that are tried if groups divide K: each group has all rows of D, which fill tall tiles too."""
SWAP_AB_CHOICES: Choices = {
    "cta_tile_m": (8, 16, 32, 64, 128),
    "cta_tile_n": (64, 128, 256),
    "outstanding_mmas": (1,),
}
"""Values that are tried with swap-AB, for groups of few rows."""
SCALED_ROWS_CHOICES: Choices = {
    "cta_tile_m": (256, 128, 64),
    "cta_tile_n": (128, 64),
    "consumers": (2, 1),
    "outstanding_mmas": (0,),
}
"""Values that are tried for sums with scales of blocks: each step is promoted, for two slabs of rows."""
READ_ROWS = 16
"""Mean rows of the groups that have rows, up to which reading the weights decides the time. There swap-AB was
the fastest (``benchmarks/blockscale/h200_experts.jsonl``), and no MMA in flight is tried for scaled sums.
"""
SCALED_GATE_CHOICES: Choices = {"cta_tile_n": (256,)}
"""Columns that are tried for such a gate whose D has computed scales: one block of each accumulator."""
SCALED_SWAP_AB_CHOICES: Choices = {
    "cta_tile_m": (8, 16, 32, 64, 128),
    "cta_tile_n": (64, 128),
    "outstanding_mmas": (0,),
}
"""Values that are tried for scaled sums with swap-AB: all columns of a tile have one scale of B."""
CLUSTERS: Choices = {"cluster_m": (1, 2), "cluster_n": (1, 2)}
"""Clusters that are tried for batches, whose tiles the host knows."""
TILED_ROWS_CHOICES: Choices = {
    **TILED_CHOICES,
    "cta_tile_m": (128, 64),
    "cta_tile_n": (256, 128, 64),
    "outstanding_mmas": (1, 0),
}
"""Values that are tried for batches in programs of one tile each: a K of one step needs no MMA in flight."""
TILED_SWAP_AB_CHOICES: Choices = {
    **SWAP_AB_CHOICES,
    "warps_n": (4,),
    "occupancy": (1, 2, 3),
    "outstanding_mmas": (1, 0),
}
"""Values that are tried in such programs with swap-AB."""
TILED_STEP_BYTES = (128, 256, 512)
"""Bytes of rows of a K step of such programs.

Steps of 64 bytes were the fastest at none of eight shapes, and took up to 1.16 times the time of steps of
128 bytes of the same tile (``benchmarks/grouped/h200_batched_steps.jsonl``).
"""


def branches_of_groups(request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
    """Yield a branch for each kind of warp specialization, with swap-AB and without.

    The host knows the tiles of batches: these are tried in clusters, and in programs of one tile each, too.
    """
    groups, stated = request.matmul.groups, with_blocks(request, stated)
    batches = groups is not None and groups.counts is None
    is_tiled = stated.get("schedule_kind") == "tiled"
    swaps = wanted.get("swap_ab") or ((stated["swap_ab"],) if "swap_ab" in stated else _swaps(request))
    for swap_ab in swaps:
        kinds = wanted.get("specialization") or kinds_of({**DEFAULTS, **stated})
        for kind in () if is_tiled else kinds:
            yield _persistent(request, stated, swap_ab, kind, in_clusters=batches and not swap_ab)
        if is_tiled or (batches and not (OF_ROLES - EARLY) & {*stated, *wanted}):
            yield _tiled(request, stated, swap_ab)


def _persistent(
    request: Request, stated: Values, swap_ab: object, kind: object, *, in_clusters: bool
) -> Branch:
    """Return the branch of programs that walk over tiles, with a kind of warp specialization."""
    order = {"order": "grouped", "minor": "m", "width": PING_PONG_WIDTH if kind == KINDS[1] else 16}
    lone = {"consumers": 1} if swap_ab and kind == KINDS[0] else {}
    cluster: Values = {} if in_clusters else ONE_CTA
    fixed = {"occupancy": 1, **order, **DEFAULTS, **cluster, **lone, **implied_by(stated, kind)}
    fixed["promote_k"] = stated.get("promote_k", fixed["promote_k"])
    groups = request.matmul.groups
    of_rows = K_GROUPS_CHOICES if groups and groups.divides_k else ROWS_CHOICES
    choices = SWAP_AB_CHOICES if swap_ab else {**of_rows, **CLUSTERS}
    if request.matmul.scales_sums:
        choices = SCALED_SWAP_AB_CHOICES if swap_ab else _scaled_rows(request)
    return _branch(request, fixed, choices, kind, swap_ab, SWAP_AB_STEP_BYTES if swap_ab else STEP_BYTES)


def _scaled_rows(request: Request) -> Choices:
    """Return the values that are tried for tiles of rows whose sums are scaled."""
    choices = {**SCALED_ROWS_CHOICES, **CLUSTERS}
    if request.matmul.in_blocks and request.matmul.d_scale:
        choices |= SCALED_GATE_CHOICES
    if _promotes_beside_mmas(request):
        choices |= {"outstanding_mmas": (0, 1)}
    return choices


def _tiled(request: Request, stated: Values, swap_ab: object) -> Branch:
    """Return the branch of programs of one tile each."""
    tiled = {"schedule_kind": "tiled"}
    order = {"order": "grouped", "minor": "m", "width": 16}
    fixed = {**order, **DEFAULTS, **tiled, **implied_by({**stated, **tiled}, "none")}
    fixed["promote_k"] = stated.get("promote_k", fixed["promote_k"])
    choices = TILED_SWAP_AB_CHOICES if swap_ab else TILED_ROWS_CHOICES
    return _branch(request, fixed, choices, "none", swap_ab, TILED_STEP_BYTES)


def _branch(
    request: Request,
    fixed: Values,
    choices: Choices,
    kind: object,
    swap_ab: object,
    step_bytes: Iterable[int],
) -> Branch:
    """Return a branch with the choices that are not fixed, and the K steps that are tried."""
    block = request.matmul.a.scale.vector if request.matmul.scales_sums and request.matmul.a.scale else None
    steps = (block,) if block else steps_of(request.matmul, step_bytes)
    if block:  # sums with scales are promoted beside MMAs too
        fixed = {name: value for name, value in fixed.items() if name != "outstanding_mmas"}
    tried = {name: values for name, values in choices.items() if name not in fixed}
    return Branch(fixed, {**tried, "cta_tile_k": steps}, {"swap_ab": swap_ab, "specialization": kind})


def _promotes_beside_mmas(request: Request) -> bool:
    """Return True if scaled sums are promoted beside MMAs too: with one scale of B a tile, for many rows."""
    filled = (request.matmul.filled_groups(m) for m, _, _ in request.planned_shapes)
    many = any(rows > READ_ROWS * groups for groups, rows in filled)
    return many and request.matmul.has_tile_scales and not request.matmul.in_blocks


def _swaps(request: Request) -> tuple[bool, ...]:
    """Return the values of swap-AB that are tried: both for few rows a group, unless a gate excludes one."""
    groups = request.matmul.groups
    few = groups is not None and any(tries_swap_ab(groups, m) for m, _, _ in request.planned_shapes)
    return (False, True) if few and not request.matmul.gated else (False,)
