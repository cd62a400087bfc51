"""Traits of Hopper kernels that a spec states, each with its field, its words and how to do without it."""

from __future__ import annotations

from typing import Final, TypeAlias

from gemmgen.plan.fix import OWN, Fix, at_least, leave_out, use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.extent_rules import adds_up, sum_of_parts
from gemmgen.plan.wgmma.part_rules import plain_widths
from gemmgen.plan.wgmma.resources import WgmmaKernel

Hopper: TypeAlias = Trait[WgmmaKernel]

UNSCALED: Final = leave_out("operands.a.scale") & leave_out("operands.b.scale")
"""The fix that leaves the scales of A and B out."""
FLOATS: Final = use("bf16", "fp16", "fp32")
"""The fix that stores D as floats that need no scales."""


def whole_k(plan: WgmmaKernel, field: str = OWN) -> Fix:
    """Return the fix that leaves K undivided; a reduction that only several parts of K have goes too."""
    one = use(1, field=field)
    return one if plan.reduction == "ordered" else one & leave_out("schedule.reduction")


def accumulators(plan: WgmmaKernel) -> str:
    """Return the accumulators of a gate as words."""
    return f"{' and '.join(plan.problem.epilogue.accumulators)} as accumulators"


def _sharing_a_tile(plan: WgmmaKernel) -> Fix:
    """Return the fix of the kind of warp specialization that lets consumers share a tile."""
    cooperative = use("cooperative")
    # Several would divide the tile's rows, which are the instruction's columns with swap-AB.
    return cooperative & use(1, field="warp_specialization.consumers") if plan.swap_ab else cooperative


# --- groups

GROUPS = Hopper(
    "groups",
    "groups",
    lambda plan: plan.problem.groups is not None,
    "groups",
    leave_out(),
)
COUNTED_GROUPS = Hopper(
    "groups that a tensor divides",
    "groups",
    lambda plan: plan.problem.groups is not None and plan.problem.groups.counts is not None,
    "groups",
    leave_out(),
)
GROUPS_OF_K = Hopper(
    "groups of K",
    "groups",
    lambda plan: plan.problem.groups is not None and plan.problem.groups.divides_k,
    "groups of K",
    leave_out(),
)
GROUPS_OF_ROWS = Hopper(
    "groups of rows",
    "groups",
    lambda plan: plan.problem.groups is not None and not plan.problem.groups.divides_k,
    "groups",
    leave_out(),
)
ADJACENT_GROUPS = Hopper(
    "groups of rows that follow each other",
    "groups",
    lambda plan: (
        GROUPS_OF_ROWS.has(plan) and plan.problem.groups is not None and not plan.problem.groups.apart
    ),
    "groups",
    leave_out(),
)
ANY_K_GROUPS = Hopper(
    "groups that divide K anywhere",
    "groups",
    lambda plan: plan.access.loads_k_from_any_row and plan.problem.a.dtype.bits == 16,
    "groups of K",
    leave_out(),
)
SCALED_GROUPS_OF_ROWS = Hopper(
    "block scales of groups of rows",
    "operands.a.scale",
    lambda plan: plan.problem.scales_groups_of_rows,
    "block scales of groups",
    UNSCALED,
)
M_OFFSETS = Hopper(
    "m_offsets",
    "groups.kind",
    lambda plan: plan.problem.groups is not None and plan.problem.groups.of == "m_offsets",
    "m_offsets",
    use("m_masked", "batched") | leave_out("groups"),
)
OTHER_GROUPS = Hopper(
    "other groups than m_offsets",
    "groups",
    lambda plan: plan.problem.groups is not None and plan.problem.groups.of != "m_offsets",
    lambda plan: plan.problem.groups.of if plan.problem.groups else "",
    leave_out(),
)
BATCHED = Hopper(
    "batches",
    "groups.kind",
    lambda plan: plan.problem.groups is not None and plan.problem.groups.of == "batched",
    "batched",
    use("m_offsets", "m_masked") | leave_out("groups"),
)
BROADCAST = Hopper(
    "an operand that all groups share",
    "groups.broadcast",
    lambda plan: plan.problem.groups is not None and plan.problem.groups.broadcast is not None,
    lambda plan: f"one {(plan.problem.groups.broadcast or '').upper() if plan.problem.groups else ''}",
    leave_out(),
)
A_ROWS = Hopper(
    "an index of rows of A",
    "groups.a_rows",
    lambda plan: plan.problem.gathers_a,
    "a_rows",
    leave_out(),
)
D_ROWS = Hopper(
    "an index of rows of D",
    "groups.d_rows",
    lambda plan: plan.problem.scatters_d,
    "d_rows",
    leave_out(),
)
BACKWARD = Hopper(
    "a backward",
    "backward",
    lambda plan: plan.problem.backward,
    "a backward",
    use(False),
)

# --- matrices and the epilogue

M_CONTIGUOUS_A = Hopper(
    "an M-contiguous A",
    "operands.a.major",
    lambda plan: plan.problem.a.major == "mn",
    "an M-contiguous A",
    use("k"),
)
K_CONTIGUOUS_A = Hopper(
    "a K-contiguous A",
    "operands.a.major",
    lambda plan: plan.problem.a.major == "k",
    "a K-contiguous A",
    use("mn"),
)
K_CONTIGUOUS_B = Hopper(
    "a K-contiguous B",
    "operands.b.major",
    lambda plan: plan.problem.b.major == "k",
    "a K-contiguous B",
    use("mn"),
)
N_CONTIGUOUS_BLOCKS = Hopper(
    "an N-contiguous B of two blocks of columns",
    "operands.b.major",
    lambda plan: plan.problem.in_blocks and plan.problem.b.major == "mn",
    "an N-contiguous B of two blocks of columns",
    use("k") | use("interleaved", field="epilogue.columns"),
)
MISALIGNED = Hopper(
    "copies of misaligned tensors",
    "operands.misaligned",
    lambda plan: plan.problem.copies_misaligned,
    "copies of misaligned tensors",
    use("refuse"),
)
ADDED_C = Hopper(
    "a C",
    "operands.c",
    lambda plan: plan.problem.c is not None and plan.problem.d_blocks == 1,
    "a C",
    leave_out() & leave_out("epilogue.beta"),
)
EIGHT_BITS = Hopper(
    "a D of 8 bits",
    "operands.d.dtype",
    lambda plan: plan.problem.d.bits == 8,
    lambda plan: f"a D of {plan.problem.d.name}",
    FLOATS,
)
INTEGERS = Hopper(
    "products of integers",
    "operands.a.dtype",
    lambda plan: plan.problem.accumulator.integer,
    lambda plan: f"products of {plan.problem.a.dtype.name}",
    (use("bf16") & use("bf16", field="operands.b.dtype"))
    | (use("fp16") & use("fp16", field="operands.b.dtype")),
)
GATE = Hopper(
    "a gate",
    "epilogue.d",
    lambda plan: plan.problem.gated,
    accumulators,
    without_expression(),
)
GATE_OF_BLOCKS = Hopper(
    "a gate of two blocks of columns of B",
    "epilogue.d",
    lambda plan: plan.problem.in_blocks,
    accumulators,
    without_expression(),
)
GATE_BACKWARD = Hopper(
    "the backward of a gate",
    "epilogue.c",
    lambda plan: plan.problem.d_blocks > 1,
    lambda plan: f"{' and '.join(plan.problem.epilogue.c_blocks)} in C",
    without_expression("epilogue.d"),
)
SAVED_SUMS = Hopper(
    "saved sums",
    "epilogue.save",
    lambda plan: plan.problem.saves,
    lambda plan: f"{' and '.join(plan.problem.epilogue.saved)} saved",
    leave_out(),
)
LOADED = Hopper(
    "an epilogue that loads",
    "epilogue.d",
    lambda plan: bool(plan.problem.epilogue.loads),
    lambda plan: f"{' and '.join(plan.problem.epilogue.loads)} in the epilogue",
    without_expression(),
)
BLOCK_SCALES = Hopper(
    "block scales",
    "operands.a.scale",
    lambda plan: plan.problem.scales_sums,
    "block scales",
    UNSCALED,
)
COLUMN_SCALES = Hopper(
    "block scales with one for each column of B",
    "operands.b.scale",
    lambda plan: plan.problem.scales_sums and not plan.problem.has_tile_scales,
    "block scales of single columns",
    UNSCALED,
)
SCALES_OF_D = Hopper(
    "scales of D",
    "operands.d.scale",
    lambda plan: plan.problem.d_scale is not None,
    "scales of D",
    leave_out(),
)

# --- tiles, warps and clusters

COMPOSED = Hopper(
    "a composed tile",
    "tile.n",
    lambda plan: plan.composed and adds_up(plan),
    lambda plan: f"a tile of {sum_of_parts(plan)} columns",
    lambda plan: use(*plain_widths(plan)),
)
STAGGERED = Hopper(
    "staggered tiles",
    "tile.staggered",
    lambda plan: plan.staggered,
    lambda plan: f"a staggered tile of {plan.cta_tile_n} columns",
    leave_out(),
)
SWAP_AB = Hopper(
    "swap-AB",
    "mma.swap_ab",
    lambda plan: plan.swap_ab,
    "swap-AB",
    use(False),
)
CLUSTER_M = Hopper(
    "clusters along M",
    "cluster.m",
    lambda plan: plan.cluster_m > 1,
    lambda plan: f"{plan.cluster_m:,} CTAs along M",
    use(1),
)
CLUSTER_N = Hopper(
    "clusters along N",
    "cluster.n",
    lambda plan: plan.cluster_n > 1,
    lambda plan: f"{plan.cluster_n:,} CTAs along N",
    use(1),
)
WARPS_N = Hopper(
    "warps along N",
    "warps.n",
    lambda plan: plan.warps_n > 1 and not plan.swap_ab,
    lambda plan: f"{plan.warps_n:,} warps along N",
    use(1),
)
REGISTERS_A = Hopper(
    "A from registers",
    "operands.a.source",
    lambda plan: plan.a_source == "registers",
    "A from registers",
    use("shared"),
)
PROMOTION = Hopper(
    "promotion",
    "mma.promote_k",
    lambda plan: bool(plan.promote_k),
    lambda plan: f"sums promoted after {plan.promote_k} of K",
    leave_out(),
)

# --- programs

SPLITS = Hopper(
    "split-K",
    "schedule.splits",
    lambda plan: plan.splits > 1,
    lambda plan: f"{plan.splits:,} parts of K",
    whole_k,
)
PARALLEL_REDUCTION = Hopper(
    "a parallel reduction",
    "schedule.reduction",
    lambda plan: plan.reduces_apart,
    "a parallel reduction",
    use("ordered"),
)
PING_PONG = Hopper(
    "ping-pong consumers",
    "warp_specialization.kind",
    lambda plan: plan.ping_pong,
    "ping-pong consumers",
    _sharing_a_tile,
)
NO_ROLES = Hopper(
    "a persistent schedule without warp specialization",
    "warp_specialization.kind",
    lambda plan: plan.persistent and not plan.specialized,
    "a persistent schedule without warp specialization",
    use("cooperative", "ping_pong"),
)
SINGLE_TILE = Hopper(
    "a single tile",
    "schedule.kind",
    lambda plan: plan.schedule_kind == "single_tile",
    "a single tile",
    use("tiled"),
)
TILED = Hopper(
    "a tiled schedule",
    "schedule.kind",
    lambda plan: plan.schedule_kind == "tiled",
    "a tiled schedule",
    use("persistent"),
)
ONE_STAGE = Hopper(
    "a ring of one stage",
    "buffering.stages",
    lambda plan: plan.synchronous and plan.schedule_kind != "single_tile",
    "1 stage",
    at_least(2),
)
SEVERAL_BUFFERS = Hopper(
    "several buffers of sub-tiles",
    "buffering.epilogue",
    lambda plan: plan.epilogue_buffers > 1,
    lambda plan: f"{plan.epilogue_buffers:,} buffers of sub-tiles",
    use(1),
)
OTHER_ORDER = Hopper(
    "an order of tiles other than groups of rows",
    "schedule.order",
    lambda plan: (plan.order, plan.minor) != ("grouped", "m"),
    lambda plan: f"{plan.order} order along {plan.minor}",
    use("grouped") & leave_out("schedule.minor"),
)
DEPENDENT = Hopper(
    "dependent launch",
    "dependent_launch",
    lambda plan: plan.dependent and not plan.read_early,
    lambda plan: plan.early_launch,
    leave_out(),
)
EARLY_LOADS = Hopper(
    "early loads",
    "dependent_launch.early",
    lambda plan: plan.read_early is not None,
    lambda plan: plan.early_launch,
    use("nothing"),
)
