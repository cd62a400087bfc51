"""Traits of matmuls and kernels that belong to no feature: matrices, tiles, warps and programs."""

from __future__ import annotations

from typing import Final

from gemmgen.plan.fix import Fix, at_least, leave_out, use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.resources import WgmmaKernel

FLOATS: Final = use("bf16", "fp16", "fp32")
"""The fix that stores D as floats that need no scales."""


def _sharing_a_tile(plan: WgmmaKernel) -> Fix:
    """Return the fix of the kind of warp specialization that lets consumers share a tile."""
    cooperative = use("cooperative")
    # Several would divide the tile's rows, which are the instruction's columns with swap-AB.
    return cooperative & use(1, field="warp_specialization.consumers") if plan.swap_ab else cooperative


BACKWARD = Trait[WgmmaKernel](
    "a backward",
    "backward",
    lambda plan: plan.problem.backward,
    "a backward",
    use(False),
)
M_CONTIGUOUS_A = Trait[WgmmaKernel](
    "an M-contiguous A",
    "operands.a.major",
    lambda plan: plan.problem.a.major == "mn",
    "an M-contiguous A",
    use("k"),
)
K_CONTIGUOUS_A = Trait[WgmmaKernel](
    "a K-contiguous A",
    "operands.a.major",
    lambda plan: plan.problem.a.major == "k",
    "a K-contiguous A",
    use("mn"),
)
K_CONTIGUOUS_B = Trait[WgmmaKernel](
    "a K-contiguous B",
    "operands.b.major",
    lambda plan: plan.problem.b.major == "k",
    "a K-contiguous B",
    use("mn"),
)
ADDED_C = Trait[WgmmaKernel](
    "a C",
    "operands.c",
    lambda plan: plan.problem.c is not None and plan.problem.d_blocks == 1,
    "a C",
    leave_out() & leave_out("epilogue.beta"),
)
EIGHT_BITS = Trait[WgmmaKernel](
    "a D of 8 bits",
    "operands.d.dtype",
    lambda plan: plan.problem.d.bits == 8,
    lambda plan: f"a D of {plan.problem.d.name}",
    FLOATS,
)
INTEGERS = Trait[WgmmaKernel](
    "products of integers",
    "operands.a.dtype",
    lambda plan: plan.problem.accumulator.integer,
    lambda plan: f"products of {plan.problem.a.multiplied.name}",
    (use("bf16") & use("bf16", field="operands.b.dtype"))
    | (use("fp16") & use("fp16", field="operands.b.dtype")),
)
LOADED = Trait[WgmmaKernel](
    "an epilogue that loads",
    "epilogue.d",
    lambda plan: bool(plan.problem.epilogue.loads),
    lambda plan: f"{' and '.join(plan.problem.epilogue.loads)} in the epilogue",
    without_expression(),
)
CLUSTER_M = Trait[WgmmaKernel](
    "clusters along M",
    "cluster.m",
    lambda plan: plan.cluster_m > 1,
    lambda plan: f"{plan.cluster_m:,} CTAs along M",
    use(1),
)
CLUSTER_N = Trait[WgmmaKernel](
    "clusters along N",
    "cluster.n",
    lambda plan: plan.cluster_n > 1,
    lambda plan: f"{plan.cluster_n:,} CTAs along N",
    use(1),
)
WARPS_N = Trait[WgmmaKernel](
    "warps along N",
    "warps.n",
    lambda plan: plan.warps_n > 1 and not plan.swap_ab,
    lambda plan: f"{plan.warps_n:,} warps along N",
    use(1),
)
REGISTERS_A = Trait[WgmmaKernel](
    "A from registers",
    "operands.a.source",
    lambda plan: plan.a_source == "registers",
    "A from registers",
    use("shared"),
)
PING_PONG = Trait[WgmmaKernel](
    "ping-pong consumers",
    "warp_specialization.kind",
    lambda plan: plan.ping_pong,
    "ping-pong consumers",
    _sharing_a_tile,
)
NO_ROLES = Trait[WgmmaKernel](
    "a persistent schedule without warp specialization",
    "warp_specialization.kind",
    lambda plan: plan.persistent and not plan.specialized,
    "a persistent schedule without warp specialization",
    use("cooperative", "ping_pong"),
)
SINGLE_TILE = Trait[WgmmaKernel](
    "a single tile",
    "schedule.kind",
    lambda plan: plan.schedule_kind == "single_tile",
    "a single tile",
    use("tiled"),
)
TILED = Trait[WgmmaKernel](
    "a tiled schedule",
    "schedule.kind",
    lambda plan: plan.schedule_kind == "tiled",
    "a tiled schedule",
    use("persistent"),
)
ONE_STAGE = Trait[WgmmaKernel](
    "a ring of one stage",
    "buffering.stages",
    lambda plan: plan.synchronous and plan.schedule_kind != "single_tile",
    "1 stage",
    at_least(2),
)
SEVERAL_BUFFERS = Trait[WgmmaKernel](
    "several buffers of sub-tiles",
    "buffering.epilogue",
    lambda plan: plan.epilogue_buffers > 1,
    lambda plan: f"{plan.epilogue_buffers:,} buffers of sub-tiles",
    use(1),
)
OTHER_ORDER = Trait[WgmmaKernel](
    "an order of tiles other than groups of rows",
    "schedule.order",
    lambda plan: (plan.order, plan.minor) != ("grouped", "m"),
    lambda plan: f"{plan.order} order along {plan.minor}",
    use("grouped") & leave_out("schedule.minor"),
)
