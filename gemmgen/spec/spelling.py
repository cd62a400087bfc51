"""Fields of a spec with an earlier name, which specs, pins of tuned kernels and digests may still have.

A field that left may still be in the specs of records, with the value that every kernel has today.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast


@dataclass(frozen=True)
class Renamed:
    """A field, its earlier name, and how the values of one are written as values of the other."""

    path: str
    earlier: str
    values: Mapping[str, bool]
    """The value of the field for each value that the earlier one can have."""

    @property
    def key(self) -> str:
        """The name of the field in its section."""
        return self.path.rpartition(".")[2]

    @property
    def earlier_key(self) -> str:
        """The earlier name of the field in its section."""
        return self.earlier.rpartition(".")[2]

    def today(self, value: object) -> object:
        """Return a value of the earlier field as one of today's; a wrong one stays as it is."""
        return self.values.get(value, value) if isinstance(value, str) else value

    def before(self, value: object) -> object:
        """Return a value of today's field as one of the earlier field; a wrong one stays as it is."""
        return next((word for word, meant in self.values.items() if meant is value), value)


SWAP_AB: Final = Renamed("mma.swap_ab", "mma.rows", {"m": False, "n": True})
RENAMED: Final = (SWAP_AB,)
GONE: Final[Mapping[str, str]] = MappingProxyType({"schedule.last_wave": "whole"})
"""Fields that left, and the value of each that the kernels of today have."""


def without_gone(pins: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recorded kernel by path, without fields that left and say nothing of it."""
    return {path: value for path, value in pins.items() if path not in GONE or value != GONE[path]}


def today(pins: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the current paths of fields, for values by current or earlier paths."""
    found = dict(pins)
    for field in RENAMED:
        if field.earlier in found:
            found[field.path] = field.today(found.pop(field.earlier))
    return found


def before(pins: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the earlier paths of fields, for values by current ones; digests use these."""
    found = dict(pins)
    for field in RENAMED:
        if field.path in found:
            found[field.earlier] = field.before(found.pop(field.path))
    return found


def data_before(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data of a spec with the earlier names, which digests of specs have kept."""
    found = dict(data)
    for field in RENAMED:
        section, key = field.path.split(".")
        members = cast("dict[str, Any]", found.get(section, {}))
        if key in members:
            others = {name: value for name, value in members.items() if name != key}
            found[section] = {**others, field.earlier_key: field.before(members[key])}
        wanted = cast("dict[str, list[Any]]", found.get("search", {}))
        if field.path in wanted:
            others = {name: values for name, values in wanted.items() if name != field.path}
            found["search"] = {**others, field.earlier: [*map(field.before, wanted[field.path])]}
    return found
