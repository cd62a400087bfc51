"""Random specs of the Hopper family, crowded around the borders of what is legal; a seed makes one spec."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

from gemmgen.plan import Plan
from gemmgen.plan.rules import judge

HUGE = 2**31 - 1


@dataclass(frozen=True)
class Field:
    """A field of the spec with values that are legal in some spec, and values that are legal in none."""

    path: str
    tame: tuple[object, ...]
    wild: tuple[object, ...] = ()
    required: bool = False


FIELDS = (
    Field("target", ("h100", "h200"), ("b200",), required=True),
    Field("operands.a.dtype", ("bf16", "fp16"), required=True),
    Field("operands.a.major", ("k",), ("mn",)),
    Field("operands.b.dtype", ("bf16", "fp16"), required=True),
    Field("operands.b.major", ("k",), ("mn",)),
    Field("operands.d.dtype", ("bf16", "fp16", "fp32"), required=True),
    Field("tile.m", (128, 128, 256, 512, 1024, 2048), (1, 48, 64, 96, 192, 4096, HUGE)),
    Field("tile.n", (8, 16, 32, 64, 128, 256, 256), (1, 4, 24, 96, 257, 512, HUGE)),
    Field("tile.k", (16, 32, 64, 64, 128, 256, 512), (1, 8, 48, 1024, HUGE)),
    Field("cluster.m", (1, 2), (3, 4, 200, HUGE)),
    Field("cluster.n", (1,), (2, 3)),
    Field("buffering.stages", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), (60, HUGE)),
    Field("buffering.outstanding_mmas", (0, 1)),
    Field("buffering.epilogue", (1, 1, 2, 4, 8), (3, 6, 64, HUGE)),
    Field("warp_specialization.consumers", (1, 2, 2, 4), (3, 5, 6, 7, 8, 16, HUGE)),
    Field("warp_specialization.registers.producer", (24, 24, 32, 40, 64, 128, 256), (1, 23, 36, 264, HUGE)),
    Field(
        "warp_specialization.registers.consumer",
        (32, 48, 64, 96, 104, 112, 160, 168, 208, 232, 240),
        (1, 24, 100, 248, 256, HUGE),
    ),
    Field("schedule.order", ("grouped", "snake")),
    Field("schedule.width", (1, 3, 8, 16, 100, 4096), (4097, HUGE)),
    Field("epilogue.subtile_n", (8, 16, 32, 64, 128, 256), (1, 4, 24, 512, HUGE)),
    Field("check.shapes", ([[256, 512, 384]], [[1, 1, 8], [13, 21, 40]]), ([[256, 512, 4]], [[8, 8, 12]])),
    Field("bench.shapes", ([[8192, 8192, 8192]], [[64, 4096, 4096]], [[1, 1, 8]]), ([[64, 64, 1]],)),
)


def spec_text(seed: int) -> str:
    """Return the text of a spec: any field is pinned or left out, and in half of the specs some are wild."""
    rng = random.Random(seed)
    left_out, wild = rng.choice((0.1, 0.3, 0.5, 0.9)), rng.choice((0.0, 0.0, 0.05, 0.2))
    values: dict[str, Any] = {}
    for field in FIELDS:
        is_wild = bool(field.wild) and rng.random() < wild
        value = rng.choice(field.wild if is_wild else field.tame)
        if field.required or rng.random() > left_out:
            values[field.path] = value
    if rng.random() > wild:
        values["operands.b.dtype"] = values["operands.a.dtype"]
    if not wild or rng.random() < 0.5:
        _reconcile(values)
    sections = _nested({"title": f"random spec {seed}", **values})
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sections.items())


def _reconcile(values: dict[str, Any]) -> None:
    """Shrink what does not go together, or next to no spec that pins much would be legal."""
    consumers, m = values.get("warp_specialization.consumers", 2), values.get("tile.m", 128)
    if consumers == 1:
        values.pop("warp_specialization.registers.consumer", None)
    widest = max(8, 16_384 * consumers // m)  # an accumulator of 128 registers
    n = min(values.get("tile.n", 256), widest)
    subtile_n = min(values.get("epilogue.subtile_n", 32), n)
    fitting = {
        "tile.m": min(max(m, 64 * consumers), HUGE),
        "tile.n": n,
        "epilogue.subtile_n": subtile_n,
        "buffering.epilogue": min(values.get("buffering.epilogue", 1), n // subtile_n),
    }
    values |= {path: value for path, value in fitting.items() if path in values}


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted paths into sections."""
    sections: dict[str, Any] = {}
    for path, value in values.items():
        *steps, name = path.split(".")
        section = sections
        for step in steps:
            section = section.setdefault(step, {})
        section[name] = value
    return sections


def at_the_border(plan: Plan) -> Plan:
    """Return the legal plan with the fewest registers, and then the most stages, that the rules allow it."""
    for name, step in (("producer_registers", -8), ("consumer_registers", -8), ("stages", 1)):
        while not judge(further := replace(plan, **{name: getattr(plan, name) + step})):
            plan = further
    return plan
