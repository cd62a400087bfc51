"""The family of Hopper kernels as one value, and the words that tell its kernels apart."""

from __future__ import annotations

from gemmgen.plan.search import Family, narrow_cluster, narrow_tile, tile_and_cluster
from gemmgen.plan.wgmma.cost import COST_ORDER, costs, estimate, excess
from gemmgen.plan.wgmma.expectations import EXPECTATIONS
from gemmgen.plan.wgmma.resource_rules import RESOURCE_RULES
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.tile_rules import TILE_RULES
from gemmgen.plan.wgmma.tried.hopper_space import WgmmaSpace
from gemmgen.plan.wgmma.type_rules import OPERATION_RULES, TYPE_RULES


def kind_of(plan: WgmmaKernel) -> str:
    """Return what kind of kernel a plan is."""
    if plan.swap_ab and plan.schedule_kind == "tiled":
        return "swap-AB"
    if plan.specialized:
        return plan.specialization.replace("_", "-")
    if plan.synchronous:
        return "blocked"
    return "pipelined" if plan.schedule_kind == "tiled" else plan.schedule_kind.replace("_", " ")


def _label(plan: WgmmaKernel) -> str:
    """Return the decisions of a plan's configuration in one line."""
    parts = [kind_of(plan), *tile_and_cluster(plan)]
    if plan.specialization == "cooperative":
        parts.append(f"{plan.consumers} consumer{'s' * (plan.consumers > 1)}")
    if plan.occupancy > 1:
        parts.append(f"occupancy {plan.occupancy}")
    if plan.splits > 1:
        parts.append(f"K split by {plan.splits}{', reduced in parallel' * plan.reduces_apart}")
    return ", ".join([*parts, f"{plan.outstanding_mmas} outstanding"])


def _as_dict(plan: WgmmaKernel) -> dict[str, object]:
    """Return the decisions of a Hopper plan as plain data."""
    return {
        "kernel": kind_of(plan),
        "tile": [plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k],
        "staggered": plan.staggered,
        "cluster": [plan.cluster_m, plan.cluster_n],
        "swap_ab": plan.swap_ab,
        "splits": plan.splits,
        "reduction": plan.reduction,
        "consumers": plan.consumers,
        "warps": plan.total_warps,
        "stages": plan.stages,
        "outstanding_mmas": plan.outstanding_mmas,
        "epilogue": [plan.epilogue_buffers, plan.subtile_n],
        "smem_bytes": plan.smem_bytes,
        "accumulator_registers": plan.accumulator_registers,
        "consumer_registers": plan.consumer_registers,
        "occupancy": plan.occupancy,
    }


def _division_of_k(plan: WgmmaKernel) -> str:
    """Return how K is divided among programs, for the cell of a table: ``4 parallel``."""
    return f"{plan.splits} {plan.reduction}" if plan.splits > 1 else "1"


WGMMA_FAMILY = Family(
    kernel=WgmmaKernel,
    space=WgmmaSpace(sides=()),
    rules=(*TYPE_RULES, *TILE_RULES, *RESOURCE_RULES, *OPERATION_RULES),
    expectations=EXPECTATIONS,
    costs=costs,
    cost_order=COST_ORDER,
    estimate=estimate,
    excess=excess,
    columns=(
        ("kernel", kind_of),
        ("tile", narrow_tile),
        ("cluster", narrow_cluster),
        ("warps", lambda plan: str(plan.total_warps)),
        ("stages", lambda plan: str(plan.stages)),
        ("MMAs", lambda plan: str(plan.outstanding_mmas)),
        ("split-K", _division_of_k),
        ("smem", lambda plan: str(plan.smem_bytes)),
        ("sums", lambda plan: str(plan.accumulator_registers)),
        ("regs", lambda plan: str(plan.consumer_registers)),
        ("CTAs", lambda plan: str(plan.occupancy)),
    ),
    legend="MMAs in flight; split-K: factor and reduction; smem: bytes of a CTA; sums and regs: registers "
    "of a consumer thread; CTAs on an SM",
    label=_label,
    as_dict=_as_dict,
)
