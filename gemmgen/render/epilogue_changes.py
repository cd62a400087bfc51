"""The changes of features to an epilogue: all of them hold together, or the kernel is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.operand_loads import OperandLoads
from gemmgen.render.side import Rendering
from gemmgen.render.tile_store import StoredRows, Storing

CONVERSION = {"storing.converts", "storing.divides", "storing.rows.end", "storing.rows.facts"}
"""The members that a second kernel ignores: it converts and stores pieces of D by lines of its own."""


def changed_parts(parts: EpilogueParts, sides: Iterable[Rendering]) -> EpilogueParts:
    """Return parts of an epilogue with the changes of all sides.

    Raises ValueError if two sides change one member: the change of the first one would be lost. It also does
    so if a side changes a conversion that a second kernel does itself. A rule, or a row of the table of
    pairs, has to refuse such a kernel.
    """
    owners = dict[str, str]()
    for side in sides:
        before, parts = dict(_members(parts)), side.changed_epilogue(parts)
        for member in (name for name, value in _members(parts) if before[name] != value):
            if member in owners:
                raise ValueError(f"{owners[member]} and {side.name} both change {member} of an epilogue")
            owners[member] = side.name
    if parts.storing.by == "second_kernel":
        for member in sorted(CONVERSION & owners.keys()):
            raise ValueError(f"{owners[member]} changes {member}, but a second kernel stores D")
    return parts


def _members(value: EpilogueParts | OperandLoads | Storing | StoredRows) -> Iterator[tuple[str, object]]:
    """Yield the members of the parts by their names; all sides may put readers before the others."""
    for each in fields(value):
        member: object = getattr(value, each.name)
        if isinstance(member, OperandLoads | Storing | StoredRows):
            yield from ((f"{each.name}.{name}", part) for name, part in _members(member))
        elif each.name != "readers":
            yield each.name, member
