"""What random specs of all targets share: fields, values to draw for them, and steps towards the border."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.search import Family

HUGE = 2**31 - 1
Values = dict[str, Any]
"""A spec's values by the dotted paths of their fields."""
Reconcile = Callable[[Values, random.Random], None]
"""Changes values that do not go together."""


@dataclass(frozen=True)
class Field:
    """A field of the spec with values that are legal in some spec, and values that are legal in none."""

    path: str
    tame: tuple[object, ...]
    wild: tuple[object, ...] = ()
    required: bool = False


def random_text(seed: int, fields: Sequence[Field], reconciliations: Sequence[Reconcile]) -> str:
    """Return the text of a spec: any field is pinned or left out, and in half of the specs some are wild."""
    rng = random.Random(seed)
    left_out, wild = rng.choice((0.1, 0.3, 0.5, 0.9)), rng.choice((0.0, 0.0, 0.05, 0.2))
    values: Values = {}
    for field in fields:
        is_wild = bool(field.wild) and rng.random() < wild
        if not (choices := field.wild if is_wild else field.tame):
            continue
        value = rng.choice(choices)
        if field.required or rng.random() > left_out:
            values[field.path] = value
    # Anything goes together only by chance: most specs are brought closer to what does.
    for reconcile in reconciliations:
        if rng.random() > wild:
            reconcile(values, rng)
    sections = _nested({"title": f"random spec {seed}", **values})
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sections.items())


def _nested(values: Values) -> dict[str, Any]:
    """Turn dotted paths into sections."""
    sections: dict[str, Any] = {}
    for path, value in values.items():
        *steps, name = path.split(".")
        section = sections
        for step in steps:
            section = section.setdefault(step, {})
        section[name] = value
    return sections


def drop(values: Values, *paths: str) -> None:
    """Leave fields out."""
    for path in paths:
        values.pop(path, None)


def reconcile_order(values: Values, _: random.Random) -> None:
    """Keep of an order of tiles what it has a choice of."""
    order = values.get("schedule.order")
    if order in ("row", "hilbert"):
        drop(values, "schedule.minor", *(["schedule.width"] if order == "row" else []))
    if order == "hilbert":
        values["schedule.width"] = 8


def furthest(plan: Kernel, steps: Sequence[tuple[str, int]], family: Family[Kernel]) -> Kernel:
    """Return the legal plan that is as many steps further in each decision as the rules allow."""
    for name, step in steps:
        while not family.judge(further := replace(plan, **{name: getattr(plan, name) + step})):
            plan = further
    return plan
