"""The families of kernels that can be planned, by the matrix instruction of their architecture."""

from __future__ import annotations

from gemmgen.plan.blackwell import cost as tcgen05_cost
from gemmgen.plan.blackwell.candidates import configurations as tcgen05_configurations
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.blackwell.rules import PROBLEM_RULES as TCGEN05_PROBLEM_RULES
from gemmgen.plan.blackwell.rules import RULES as TCGEN05_RULES
from gemmgen.plan.blackwell.rules import STORE_RULES as TCGEN05_STORE_RULES
from gemmgen.plan.family import Family
from gemmgen.plan.hopper import cost as wgmma_cost
from gemmgen.plan.hopper.candidates import configurations as wgmma_configurations
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.hopper.rules import PROBLEM_RULES, RULES, STORE_RULES
from gemmgen.plan.plan import KernelPlan
from gemmgen.spec import Spec
from gemmgen.target import GPUS


def family_of(spec: Spec) -> Family:
    """Return the family of a spec's target."""
    return FAMILIES[GPUS[spec.target].architecture.mma]


def _wgmma_label(plan: WgmmaPlan) -> str:
    """Return the decisions of a plan's configuration in one line."""
    parts = [_wgmma_name(plan), f"{plan.cta_tile_m} x {plan.cta_tile_n} x {plan.cta_tile_k}"]
    if plan.cluster_size > 1:
        parts.append(f"cluster {plan.cluster_m} x {plan.cluster_n}")
    if plan.specialization == "cooperative":
        parts.append(f"{plan.consumers} consumer{'s' * (plan.consumers > 1)}")
    if plan.occupancy > 1:
        parts.append(f"occupancy {plan.occupancy}")
    return ", ".join([*parts, f"{plan.outstanding_mmas} outstanding"])


def _wgmma_name(plan: WgmmaPlan) -> str:
    """Return what kind of kernel a plan is."""
    if plan.specialized:
        return plan.specialization.replace("_", "-")
    if plan.synchronous:
        return "blocked"
    return "pipelined" if plan.schedule_kind == "tiled" else plan.schedule_kind.replace("_", " ")


def _wgmma_dict(plan: WgmmaPlan) -> dict[str, object]:
    """Return the decisions of a Hopper plan as plain data."""
    return {
        "kernel": _wgmma_name(plan),
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


def _tcgen05_name(plan: Tcgen05Plan) -> str:
    """Return how a Blackwell plan gets its tiles."""
    return plan.schedule_kind.replace("_", " ")


def _tcgen05_label(plan: Tcgen05Plan) -> str:
    """Return the decisions of a plan's configuration in one line."""
    parts = [_tcgen05_name(plan), _tile(plan)]
    if plan.cluster_size > 1:
        parts.append(f"cluster {plan.cluster_m} x {plan.cluster_n}")
    return ", ".join([*parts, f"{plan.accumulators} accumulator{'s' * (plan.accumulators > 1)}"])


def _tcgen05_dict(plan: Tcgen05Plan) -> dict[str, object]:
    """Return the decisions of a Blackwell plan as plain data."""
    return {
        "kernel": _tcgen05_name(plan),
        "tile": [plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k],
        "cluster": [plan.cluster_m, plan.cluster_n],
        "stages": plan.stages,
        "accumulators": plan.accumulators,
        "epilogue": [plan.epilogue_buffers, plan.subtile_n],
        "order": [plan.order, plan.minor, plan.width],
        "smem_bytes": plan.smem_bytes,
        "tmem_columns": plan.tmem_columns,
    }


def _tile(plan: KernelPlan) -> str:
    return f"{plan.cta_tile_m} x {plan.cta_tile_n} x {plan.cta_tile_k}"


def _narrow_tile(plan: KernelPlan) -> str:
    return f"{plan.cta_tile_m}x{plan.cta_tile_n}x{plan.cta_tile_k}"


def _cluster(plan: KernelPlan) -> str:
    return f"{plan.cluster_m}x{plan.cluster_n}"


FAMILIES = {
    "wgmma": Family(
        plan=WgmmaPlan,
        configurations=wgmma_configurations,
        rules=RULES,
        problem_rules=PROBLEM_RULES,
        store_rules=STORE_RULES,
        cost=wgmma_cost.cost,
        cost_order=wgmma_cost.COST_ORDER,
        estimate=wgmma_cost.estimate,
        overdraft=wgmma_cost.overdraft,
        columns=(
            ("kernel", _wgmma_name),
            ("tile", _narrow_tile),
            ("CTAs", _cluster),
            ("warps", lambda plan: str(plan.total_warps)),
            ("ring", lambda plan: f"{plan.stages} q{plan.outstanding_mmas}"),
            ("smem", lambda plan: str(plan.smem_bytes)),
            ("acc/regs", lambda plan: f"{plan.accumulator_registers}/{plan.consumer_registers}"),
            ("occ", lambda plan: str(plan.occupancy)),
        ),
        legend="CTAs of a cluster; ring of stages, with q0 or q1 MMAs in flight; accumulator of registers",
        label=_wgmma_label,
        as_dict=_wgmma_dict,
    ),
    "tcgen05": Family(
        plan=Tcgen05Plan,
        configurations=tcgen05_configurations,
        rules=TCGEN05_RULES,
        problem_rules=TCGEN05_PROBLEM_RULES,
        store_rules=TCGEN05_STORE_RULES,
        cost=tcgen05_cost.cost,
        cost_order=tcgen05_cost.COST_ORDER,
        estimate=tcgen05_cost.estimate,
        overdraft=tcgen05_cost.overdraft,
        columns=(
            ("kernel", _tcgen05_name),
            ("tile", _narrow_tile),
            ("CTAs", _cluster),
            ("order", lambda plan: f"{plan.order} {plan.minor}{plan.width}"),
            ("ring", lambda plan: str(plan.stages)),
            ("acc", lambda plan: str(plan.accumulators)),
            ("store", lambda plan: f"{plan.epilogue_buffers}x{plan.subtile_n}"),
            ("smem", lambda plan: str(plan.smem_bytes)),
            ("tmem", lambda plan: str(plan.tmem_columns)),
        ),
        legend="CTAs of a cluster; ring of stages; accumulators and columns of tensor memory; buffers of D",
        label=_tcgen05_label,
        as_dict=_tcgen05_dict,
    ),
}
"""Each family by its instruction."""
