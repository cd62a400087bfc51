"""Functions that are not inlined: each call gets a copy of their operations, with memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

from gluonsim.findings import Location, refusal
from gluonsim.ir.parse import Block, Operation

CALL = "tt.call"
_OFFSET = "allocation.offset"


def with_calls(function: Operation, functions: Mapping[str, Operation]) -> Operation:
    """Return a function in which each call has the body of what it calls as a region.

    The allocations of a body lie relative to the offset that the compiler gives its call. `functions` are the
    functions of the module, by name.

    Raises:
        GemmgenError: A body allocates tensor memory, or has several blocks.
    """
    numbers = count(1)

    def called(op: Operation) -> Operation:
        callee = functions[str(op.attributes["callee"]).lstrip("@").strip('"')]
        (body,) = callee.regions
        if body.siblings:
            raise refusal("a function of several blocks that is not inlined is not known", op.location)
        copy = _Copy(f"@{next(numbers)}", op.attributes.get(_OFFSET, 0), op.location)
        return replace(op, regions=(_changed(copy.block(body), called),))

    if not any(map(_calls, function.regions)):
        return function
    return replace(function, regions=tuple(_changed(region, called) for region in function.regions))


def _calls(block: Block) -> bool:
    parts = block.siblings.values() or (block,)
    return any(op.name == CALL or any(map(_calls, op.regions)) for part in parts for op in part.operations)


def _changed(block: Block, called: Callable[[Operation], Operation]) -> Block:
    """Return a block and its siblings with every call replaced."""
    parts = block.siblings or {"": block}
    new = {
        label: Block(
            part.arguments,
            part.argument_types,
            part.argument_locations,
            [_changed_operation(op, called) for op in part.operations],
        )
        for label, part in parts.items()
    }
    for part in new.values() if block.siblings else ():
        part.siblings = new
    first = next(label for label, part in parts.items() if part is block)
    return new[first]


def _changed_operation(op: Operation, called: Callable[[Operation], Operation]) -> Operation:
    if op.name == CALL:
        return called(op)
    if not any(map(_calls, op.regions)):
        return op
    return replace(op, regions=tuple(_changed(region, called) for region in op.regions))


class _Copy:
    """Copies operations with names, offsets and locations of their own."""

    def __init__(self, suffix: str, offset: int, location: Location) -> None:
        self._suffix = suffix
        self._offset = offset
        self._location = location

    def block(self, block: Block) -> Block:
        """Return a copy of a block."""
        if block.siblings:
            raise refusal("branches in a function that is not inlined are not known", self._location)
        return Block(
            self._named(block.arguments),
            block.argument_types,
            block.argument_locations,
            list(map(self._operation, block.operations)),
        )

    def _named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name + self._suffix for name in names)

    def _operation(self, op: Operation) -> Operation:
        if op.name == "ttng.tmem_alloc":
            raise refusal("tensor memory of a function that is not inlined is not known", op.location)
        attributes = dict(op.attributes)
        if _OFFSET in attributes:
            attributes[_OFFSET] += self._offset
        return replace(
            op,
            results=self._named(op.results),
            operands=self._named(op.operands),
            attributes=attributes,
            regions=tuple(map(self.block, op.regions)),
            location=Location(op.location.frames + self._location.frames),
        )
