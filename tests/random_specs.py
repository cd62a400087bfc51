"""Random specs of the Hopper family, crowded around the borders of what is legal; a seed makes one spec."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import cast

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
    left_out, wild = rng.choice((0.1, 0.5, 0.9)), rng.choice((0.0, 0.0, 0.05, 0.2))
    spec: dict[str, object] = {"title": f"random spec {seed}"}
    for field in FIELDS:
        values = field.wild if field.wild and rng.random() < wild else field.tame
        value = rng.choice(values)
        if field.required or rng.random() > left_out:
            _set(spec, field.path, value)
    if rng.random() > wild:
        operands = _section(spec, "operands")
        _section(operands, "b")["dtype"] = _section(operands, "a")["dtype"]
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in spec.items())


def _set(spec: dict[str, object], path: str, value: object) -> None:
    *sections, name = path.split(".")
    for section in sections:
        spec = _section(spec, section)
    spec[name] = value


def _section(spec: dict[str, object], name: str) -> dict[str, object]:
    return cast("dict[str, object]", spec.setdefault(name, {}))


def at_the_border(plan: Plan) -> Plan:
    """Return the legal plan with the fewest registers, and then the most stages, that the rules allow it."""
    for name, step in (("producer_registers", -8), ("consumer_registers", -8), ("stages", 1)):
        while not judge(further := replace(plan, **{name: getattr(plan, name) + step})):
            plan = further
    return plan
