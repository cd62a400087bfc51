"""A YAML document as a tree of values that know their places, and how a value reads in a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from gemmgen.spec.report import Place
from gemmgen.spec.words import quoted, shortened

Location: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of the file to a value, as Pydantic spells them."""


@dataclass(frozen=True)
class Node:
    """One YAML value and its place."""

    place: Place
    key_place: Place
    """Where its field starts: at its key, or at the value itself for a list's item."""
    value: str | float | list[Node] | dict[str, Node] | None
    text: str = ""
    """A scalar as it is written, without its quotes."""
    refused: bool = False
    """Already reported: what the model says about this value would be an echo."""

    def plain(self) -> Any:
        """Return the value as the lists, dicts and scalars that Pydantic validates."""
        match self.value:
            case dict() as members:
                return {key: member.plain() for key, member in members.items()}
            case list() as items:
                return [item.plain() for item in items]
            case scalar:
                return scalar

    def descend(self, location: Location) -> list[Node]:
        """Return the nodes from this one towards a location, as far as the file goes."""
        path: list[Node] = [self]
        for step in location:
            match path[-1].value, step:
                case dict() as members, str() if step in members:
                    path.append(members[step])
                case list() as items, int() if step < len(items):
                    path.append(items[step])
                case _:
                    break
        return path


def fields(node: Node, location: Location) -> Iterator[tuple[str, Node]]:
    """Yield every value below a node under the dotted name of its field."""
    children: Iterable[tuple[str | int, Node]]
    match node.value:
        case dict() as members:
            children = members.items()
        case list() as items:
            children = enumerate(items)
        case _:
            return
    for step, child in children:
        here = (*location, step)
        yield dotted(here), child
        yield from fields(child, here)


def dotted(location: Location) -> str:
    """Return the name of the field at a location: ``check.shapes.0.2``."""
    return ".".join(map(str, location))


def describe(node: Node) -> str:
    """Return a value in YAML's words, shortened."""
    match node.value:
        case None:
            return "null"
        case bool():
            return f"the boolean {node.text}"
        case int():
            return f"the whole number {shortened(node.text)}"
        case float():
            return f"the number {shortened(node.text)}"
        case str():
            return f"the text {quoted(node.text)}"
        case list() as items:
            return f"a list of {len(items)}" if items else "an empty list"
        case dict() as members:
            return f"a mapping of {len(members)}" if members else "an empty mapping"
