"""The family of Blackwell kernels: how they are chosen, judged, ranked and told apart."""

from __future__ import annotations

from gemmgen.plan.blackwell.candidates import configurations
from gemmgen.plan.blackwell.cost import COST_ORDER, cost, estimate, overdraft
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.blackwell.rules import PROBLEM_RULES, RULES, STORE_RULES
from gemmgen.plan.family import Family, narrow_cluster, narrow_tile, tile_and_cluster


def _name(plan: Tcgen05Plan) -> str:
    """Return how a Blackwell plan gets its tiles."""
    return plan.schedule_kind.replace("_", " ")


def _label(plan: Tcgen05Plan) -> str:
    """Return the decisions of a plan's configuration in one line."""
    accumulators = f"{plan.accumulators} accumulator{'s' * (plan.accumulators > 1)}"
    return ", ".join([_name(plan), *tile_and_cluster(plan), accumulators])


def _as_dict(plan: Tcgen05Plan) -> dict[str, object]:
    """Return the decisions of a Blackwell plan as plain data."""
    return {
        "kernel": _name(plan),
        "tile": [plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k],
        "cluster": [plan.cluster_m, plan.cluster_n],
        "stages": plan.stages,
        "accumulators": plan.accumulators,
        "epilogue": [plan.epilogue_buffers, plan.subtile_n],
        "order": [plan.order, plan.minor, plan.width],
        "smem_bytes": plan.smem_bytes,
        "tmem_columns": plan.tmem_columns,
    }


BLACKWELL_FAMILY = Family(
    plan=Tcgen05Plan,
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
        ("order", lambda plan: f"{plan.order} {plan.minor}{plan.width}"),
        ("ring", lambda plan: str(plan.stages)),
        ("acc", lambda plan: str(plan.accumulators)),
        ("store", lambda plan: f"{plan.epilogue_buffers}x{plan.subtile_n}"),
        ("smem", lambda plan: str(plan.smem_bytes)),
        ("tmem", lambda plan: str(plan.tmem_columns)),
    ),
    legend="CTAs of a cluster; ring of stages; accumulators and columns of tensor memory; buffers of D",
    label=_label,
    as_dict=_as_dict,
)
