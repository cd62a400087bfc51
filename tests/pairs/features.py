"""The features of a plan, and which two of them can meet in one: the planner's own rules decide."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from hopper import judge

from gemmgen.features.planning import SIDES
from gemmgen.hardware.elements import FP8
from gemmgen.plan.decisions import LINES
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.tried.hopper_space import WgmmaSpace
from gemmgen.spec import Spec, SpecFile

Feature = tuple[str, str]
"""A dimension and a value of it."""
Pair = tuple[Feature, Feature]
"""Two features of different dimensions, the lesser first."""

WIDTHS_OF_GROUPS = {"grouped": 4, "snake": 4}
WIDTHS = {"row": 1, "hilbert": 4, **WIDTHS_OF_GROUPS}
"""Of the orders; those of groups have a minor dimension too."""
OPS = (
    "tensor_scale",
    "row_scale",
    "column_scale",
    "row_bias",
    "column_bias",
    "residual",
    "relu",
    "gelu_tanh",
    "gelu_erf",
    "silu",
)
JOINTS = ("times", "plus")
"""Operations that join the two sums of a gated D."""
DIMENSIONS: dict[str, tuple[str, ...]] = {
    "kind": (
        "single_tile",
        "blocked",
        "pipelined",
        "persistent",
        "cooperative",
        "one_consumer",
        "ping_pong",
    ),
    "operands": ("bf16", "fp16", "tf32", "e4m3", "e5m2", "mixed_fp8", "int8"),
    "d": ("bf16", "fp16", "fp32", "e4m3", "e5m2", "int32"),
    "accumulator": ("fp32", "fp16", "int32"),
    "a_major": ("k", "mn"),
    "b_major": ("k", "mn"),
    "a_source": ("shared", "registers"),
    "a_swizzle": ("128", "64", "32"),
    "b_swizzle": ("128", "64", "32"),
    "cluster": ("1x1", "2x1", "1x2", "2x2"),
    "order": ("row", "grouped", "snake", "hilbert"),
    "minor": ("m", "n"),
    "c": ("none", "product", "residual"),
    "alpha": ("1", "-1", "other"),
    **{op: ("yes",) for op in OPS if op != "residual"},
    "gate": ("yes",),
    "epilogue": ("whole", "subtiles"),
    "outstanding": ("0", "1"),
    "warps": ("4x1", "8x1", "4x2"),
    "promoted": ("no", "yes"),
    "occupancy": ("1", "2", "3"),
    "mma_n": ("widest", "narrower"),
    "columns": ("plain", "composed"),
}
"""What a feature can be; an operation of the epilogue, or a gate, only counts where it is there."""
ALL = tuple((dimension, value) for dimension, values in DIMENSIONS.items() for value in values)


def pair(first: Feature, second: Feature) -> Pair:
    """Return two features in their order."""
    return (first, second) if first < second else (second, first)


def pairs(features: Iterable[Feature]) -> set[Pair]:
    """Return every two of the features that are of different dimensions."""
    two = itertools.combinations(sorted(features), 2)
    return {(first, second) for first, second in two if first[0] != second[0]}


def _kind(plan: WgmmaKernel) -> str:
    if plan.specialized:
        shared = "cooperative" if plan.consumers > 1 else "one_consumer"
        return "ping_pong" if plan.ping_pong else shared
    if plan.schedule_kind == "tiled":
        return "blocked" if plan.stages == 1 else "pipelined"
    return plan.schedule_kind


def _operands(plan: WgmmaKernel) -> str:
    a, b = plan.problem.a.dtype.name, plan.problem.b.dtype.name
    return a if a == b else "mixed_fp8"


def walk(kind: str, order: str) -> frozenset[str]:
    """Return the dimensions that a kernel has of how it walks over tiles: over one tile it does not."""
    if kind == "single_tile":
        return frozenset()
    return frozenset(("order", "minor") if order in WIDTHS_OF_GROUPS else ("order",))


def features(plan: WgmmaKernel) -> frozenset[Feature]:
    """Return what a plan exercises."""
    problem = plan.problem
    found = {
        "kind": _kind(plan),
        "operands": _operands(plan),
        "d": problem.d.name,
        "accumulator": problem.accumulator.name,
        "a_major": problem.a.major,
        "b_major": problem.b.major,
        "a_source": plan.a_source,
        "a_swizzle": str(plan.a_swizzle_bytes),
        "b_swizzle": str(plan.b_swizzle_bytes),
        "cluster": f"{plan.cluster_m}x{plan.cluster_n}",
        "c": "none" if problem.c is None else "residual" if plan.request.lists_c else "product",
        "alpha": f"{problem.epilogue.alpha:g}" if abs(problem.epilogue.alpha) == 1 else "other",
        **{op: "yes" for op in problem.ops if op in OPS and op not in ("residual", *JOINTS)},
        **({"gate": "yes"} if problem.gated else {}),
        "epilogue": "subtiles" if plan.subtiles > 1 else "whole",
        "outstanding": str(plan.outstanding_mmas),
        "warps": f"{plan.warps_m}x{plan.warps_n}",
        "promoted": "yes" if plan.promote_k else "no",
        "occupancy": str(plan.occupancy),
        "mma_n": "narrower"
        if plan.mma_n < min(plan.mma_parts[0] // plan.warps_across[1], plan.widest_mma_n)
        else "widest",
        "columns": "composed" if plan.composed else "plain",
    }
    if plan.swap_ab:  # its warps lie along N: no spec of the array has such
        del found["warps"]
    # Both orders of lines are one choice here: their modules differ in a line that no other part meets.
    walked = {"order": "row" if plan.order in LINES else plan.order, "minor": plan.minor}
    found |= {name: walked[name] for name in walk(found["kind"], plan.order)}
    return frozenset(found.items())


# --- from features to a plan

KINDS: dict[str, tuple[str, str, int, int]] = {
    "single_tile": ("none", "single_tile", 1, 1),
    "blocked": ("none", "tiled", 1, 1),
    "pipelined": ("none", "tiled", 1, 2),
    "persistent": ("none", "persistent", 1, 2),
    "cooperative": ("cooperative", "persistent", 2, 2),
    "one_consumer": ("cooperative", "persistent", 1, 2),
    "ping_pong": ("ping_pong", "persistent", 2, 2),
}
"""Kind of specialization, kind of schedule, consumers, stages."""
CHOSEN: dict[str, str] = {
    "a_major": "k",
    "b_major": "k",
    "cluster": "1x1",
    "order": "snake",
    "minor": "m",
    "c": "none",
    "alpha": "1",
    "epilogue": "whole",
    "outstanding": "0",
    "promoted": "no",
    "occupancy": "1",
    "mma_n": "widest",
    "columns": "plain",
}
"""What the rest of a spec is where it matters to no rule."""
SEARCHED: dict[str, tuple[str, ...]] = {
    "kind": ("cooperative", "persistent", "one_consumer", "ping_pong", "pipelined", "blocked", "single_tile"),
    "operands": ("bf16", "fp16", "e4m3", "int8", "e5m2", "mixed_fp8", "tf32"),
    "d": ("bf16", "int32", "e4m3"),
}
"""What is tried for the rest of a spec where it does matter."""
TILES = ((128, 64), (256, 32))


def gate_of(ops: Iterable[str], alpha: float | None, beta: float | None) -> str:
    """Return the expression of a gated D with this factor of the first sum, C and operations on it."""
    gate = "gate" if alpha is None else f"{alpha:g} * gate"
    for op in (*(("product",) if beta is not None else ()), *ops):
        match op:
            case "product":
                gate = f"{gate} + {beta} * c"
            case "residual":
                gate = f"{gate} + c"
            case "tensor_scale" | "row_scale" | "column_scale":
                gate = f"({gate}) * {op}"
            case "row_bias" | "column_bias":
                gate = f"{gate} + {op}"
            case _:
                gate = f"{op}({gate})"
    return f"({gate}) * up"


def spec_of(chosen: Mapping[str, str], tile: tuple[int, int]) -> dict[str, Any]:
    """Return the sections of a spec with the chosen features; what is not chosen is left to the planner."""
    special, schedule, consumers, stages = KINDS[chosen["kind"]]
    a, b = ("e4m3", "e5m2") if chosen["operands"] == "mixed_fp8" else (chosen["operands"],) * 2
    fp8 = a in FP8
    m, n = tile
    k = 64 if chosen["operands"] != "tf32" else 32
    if fp8 or a == "int8":
        k = 128
    composed = chosen["columns"] == "composed"
    widest, n = n, n + n // 2 * composed
    warps_m, warps_n = map(int, chosen["warps"].split("x")) if "warps" in chosen else (None, None)
    cluster_m, cluster_n = map(int, chosen["cluster"].split("x"))
    order = chosen["order"]
    minor = chosen["minor"] if order in WIDTHS_OF_GROUPS else None
    columns = n // 2 if "gate" in chosen else n
    ops = [op for op in OPS if op in chosen]
    if chosen["c"] == "residual":
        ops.insert(len(ops) // 2, "residual")
    alpha = {"1": None, "-1": -1.0, "other": 0.5}[chosen["alpha"]]
    beta = 0.5 if chosen["c"] == "product" else None
    terms: dict[str, Any] = {"alpha": alpha, "beta": beta, "ops": ops}
    if "gate" in chosen:
        terms = {"accumulators": ["gate", "up"], "d": gate_of(ops, alpha, beta)}
    spec: dict[str, Any] = {
        "operands": {
            "a": {"dtype": a, "major": chosen["a_major"]},
            "b": {"dtype": b, "major": chosen["b_major"]},
            **({"c": {"dtype": "bf16"}} if chosen["c"] != "none" else {}),
            "d": {"dtype": chosen["d"]},
        },
        "accumulator": chosen.get("accumulator"),
        "tile": {"m": m, "n": n, "k": k},
        "mma": {
            "n": widest // 2 // (warps_n or 1) if chosen["mma_n"] == "narrower" else None,
            "promote_k": k if chosen["promoted"] == "yes" else None,
        },
        "warps": {"m": warps_m, "n": warps_n},
        "cluster": {"m": cluster_m, "n": cluster_n},
        "buffering": {
            "stages": stages + (chosen["outstanding"] == "1" and stages > 1),
            "outstanding_mmas": int(chosen["outstanding"]),
        },
        "warp_specialization": {"kind": special, "consumers": consumers},
        "schedule": {"kind": schedule, "order": order, "minor": minor, "width": WIDTHS[order]},
        "occupancy": int(chosen["occupancy"]),
        "epilogue": {
            **terms,
            "subtile_n": columns if chosen["epilogue"] == "whole" else min(columns, widest) // 2,
        },
    }
    for name in ("a", "b"):
        if f"{name}_swizzle" in chosen:
            spec["operands"][name]["swizzle"] = int(chosen[f"{name}_swizzle"])
    if "a_source" in chosen:
        spec["operands"]["a"]["source"] = chosen["a_source"]
    return spec


def legal_plan(chosen: Mapping[str, str], tile: tuple[int, int]) -> WgmmaKernel | None:
    """Return the legal plan that a spec with these features and this tile has, if it has one."""
    sections = {"title": "features", "target": "h100", **spec_of(chosen, tile)}
    spec = Spec.model_validate(sections)
    plan = next(WgmmaSpace(SIDES["wgmma"]).kernels(SpecFile.of(spec)))
    idle = {"order", "minor"} - walk(chosen["kind"], chosen["order"])
    wanted = {feature for feature in chosen.items() if feature[0] not in idle}
    return plan if not judge(plan) and wanted <= features(plan) else None


def completions(stated: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield choices for all that the stated features leave open."""
    searched = {name: values for name, values in SEARCHED.items() if name not in stated}
    parts = {"epilogue": "subtiles"} if stated.get("columns") == "composed" else {}
    for values in itertools.product(*searched.values()):
        yield CHOSEN | parts | dict(zip(searched, values, strict=True)) | dict(stated)


@cache
def can_meet(first: Feature, second: Feature) -> bool:
    """Whether some legal plan has both features."""
    if first[0] == second[0]:
        return False
    stated = dict((first, second))
    wanted = stated.keys() & {"order", "minor"}
    return any(
        legal_plan(chosen, tile)
        for chosen in completions(stated)
        if wanted <= walk(chosen["kind"], chosen["order"])
        for tile in TILES
    )
