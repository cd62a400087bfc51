"""The family of Hopper kernels: how they are chosen, judged, ranked and told apart."""

from __future__ import annotations

from gemmgen.plan.family import Family, narrow_cluster, narrow_tile, tile_and_cluster
from gemmgen.plan.hopper.candidates import configurations
from gemmgen.plan.hopper.cost import COST_ORDER, cost, estimate, overdraft
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.hopper.rules import PROBLEM_RULES, RULES, STORE_RULES


def _name(plan: WgmmaPlan) -> str:
    """Return what kind of kernel a plan is."""
    if plan.specialized:
        return plan.specialization.replace("_", "-")
    if plan.synchronous:
        return "blocked"
    return "pipelined" if plan.schedule_kind == "tiled" else plan.schedule_kind.replace("_", " ")


def _label(plan: WgmmaPlan) -> str:
    """Return the decisions of a plan's configuration in one line."""
    parts = [_name(plan), *tile_and_cluster(plan)]
    if plan.specialization == "cooperative":
        parts.append(f"{plan.consumers} consumer{'s' * (plan.consumers > 1)}")
    if plan.occupancy > 1:
        parts.append(f"occupancy {plan.occupancy}")
    return ", ".join([*parts, f"{plan.outstanding_mmas} outstanding"])


def _as_dict(plan: WgmmaPlan) -> dict[str, object]:
    """Return the decisions of a Hopper plan as plain data."""
    return {
        "kernel": _name(plan),
        "tile": [plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k],
        "cluster": [plan.cluster_m, plan.cluster_n],
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


HOPPER_FAMILY = Family(
    plan=WgmmaPlan,
    configurations=configurations,
    rules=RULES,
    problem_rules=PROBLEM_RULES,
    store_rules=STORE_RULES,
    cost=cost,
    cost_order=COST_ORDER,
    estimate=estimate,
    overdraft=overdraft,
    columns=(
        ("kernel", _name),
        ("tile", narrow_tile),
        ("CTAs", narrow_cluster),
        ("warps", lambda plan: str(plan.total_warps)),
        ("ring", lambda plan: f"{plan.stages} q{plan.outstanding_mmas}"),
        ("smem", lambda plan: str(plan.smem_bytes)),
        ("acc/regs", lambda plan: f"{plan.accumulator_registers}/{plan.consumer_registers}"),
        ("occ", lambda plan: str(plan.occupancy)),
    ),
    legend="CTAs of a cluster; ring of stages, with q0 or q1 MMAs in flight; accumulator of registers",
    label=_label,
    as_dict=_as_dict,
)
