"""Changes of a spec as plain data: the fields that decide, the values near one, and how advice is applied."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from gemmgen.errors import Advice, Value
from gemmgen.hardware.gpus import power_of_two_below
from gemmgen.plan.decisions import FIELDS
from gemmgen.plan.kernel import Kernel
from gemmgen.spec import SpecFile
from gemmgen.spec.model import spec_of
from gemmgen.spec.values import SIZE_LIMIT

MOST_VALUES = 12
"""Values that are tried for a field that ends a fault alone, the nearest to the stated one first."""
PLACE_DIGITS = 9
"""Digits to which the index of a list's item is padded, so that paths sort as text."""
COUNTS = ("stages", "width", "splits", "consumers", "occupancy", "epilogue", "accumulators")
"""Last names of fields whose neighbouring values differ by one. Others differ by a factor of two, registers
by eight.
"""


def union_of(advice: Iterable[Advice]) -> Advice:
    """Return what several pieces of advice change together; of one field the last value."""
    return tuple({path: value for each in advice for path, value in each}.items())


def nearby_values(path: str, value: object, ruled: Sequence[Value]) -> list[Value]:
    """Return values that a field might have in the place of another one, the nearest first."""
    if isinstance(value, bool) or not isinstance(value, int):
        return list(ruled)
    near = [each for each in ruled if isinstance(each, int)]
    if ".registers." in path:
        near += [value // 8 * 8 + 8 * i for i in range(-MOST_VALUES // 2, MOST_VALUES // 2)]
    elif path.endswith(COUNTS):
        near += [value + i for i in range(-MOST_VALUES // 2, MOST_VALUES // 4)]
    power = power_of_two_below(max(1, value))
    near += [power >> i for i in range(MOST_VALUES // 2)] + [power << 1, power << 2]
    usable = {each for each in near if 0 < each <= SIZE_LIMIT and each != value}
    return [*sorted(usable, key=lambda each: (abs(math.log(each / max(1, value))), each))[:MOST_VALUES]]


def decided_value(plan: Kernel, path: str) -> Value:
    """Return a plan's decision as a spec has it, in a list where the spec wants values searched."""
    searched_path = path.removeprefix("search.")
    name = FIELDS.get(searched_path)
    value: Value = getattr(plan, name, None) if name else None
    return (value,) if path != searched_path and value is not None else value


def value_at(data: Mapping[str, Any], path: str) -> object:
    """Return the value at a path of a spec's plain data; None if it states none."""
    value: Any = data
    for step in path.split("."):
        value = cast("dict[str, Any]", value).get(step) if isinstance(value, dict) else None
    return value


def decision_paths(data: Mapping[str, Any]) -> list[str]:
    """Return the stated and searched fields of plain data that the planner could decide itself."""
    paths = [path for path in FIELDS if value_at(data, path) is not None]
    kept = ["dependent_launch" if path == "dependent_launch.early" else path for path in paths]
    return [*kept, *(f"search.{path}" for path in data.get("search", {}))]


def applied(data: Mapping[str, Any], advice: Advice) -> dict[str, Any]:
    """Return a spec's plain data with a change; an item that is left out shortens its list."""
    changed = copy.deepcopy(dict(data))
    # The later items of a list go first, so that the places of others stay what they are: 10 before 9.
    places = sorted(advice, key=lambda pair: [step.zfill(PLACE_DIGITS) for step in _steps(pair[0])])
    for path, value in reversed(places):
        *sections, last = _steps(path)
        section: Any = changed
        for step in sections:
            if isinstance(section, list):
                section = cast("list[Any]", section)[int(step)]
            else:
                section = cast("dict[str, Any]", section).setdefault(step, {})
        key: Any = int(last) if isinstance(section, list) else last
        if value is not None:
            section[key] = list(value) if isinstance(value, tuple) else value
        elif isinstance(section, list) or key in section:
            del section[key]
    return changed


def changed_spec(data: Mapping[str, Any], advice: Advice) -> SpecFile | None:
    """Apply a change to the data of a spec; return the new spec, None if it is invalid."""
    spec = spec_of(applied(data, advice))
    return SpecFile.of(spec) if spec else None


def _steps(path: str) -> tuple[str, ...]:
    """Return the keys that lead to a field; under ``search`` the last key is a whole path."""
    if path.startswith("search."):
        return "search", path.removeprefix("search.")
    return tuple(path.split("."))
