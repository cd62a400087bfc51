"""What each operation does: a table of functions, and the attributes that each of them understands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from gemmgen.simulate.findings import refusal
from gemmgen.simulate.parse import TERMINATORS, Block, Operation, walk
from gemmgen.simulate.program import Entry, Handler

COMMON_ATTRIBUTES = frozenset({"operandSegmentSizes", "allocation.offset", "allocation.size"})
"""Known for all operations. Scratch memory, where an operation has it, is touched and left at once."""


_ENTRIES: dict[str, Entry] = {}


def operation(
    name: str,
    *attributes: str,
    ignored: tuple[str, ...] = (),
    blocking: bool = False,
    computes: bool = False,
) -> Callable[[Handler], Handler]:
    """Enter a function as what an operation does."""

    def enter(run: Handler) -> Handler:
        _ENTRIES[name] = Entry(run, frozenset(attributes), frozenset(ignored), blocking, computes)
        return run

    return enter


def computation(name: str, *attributes: str, ignored: tuple[str, ...] = ()) -> Callable[[Handler], Handler]:
    """Enter a function as what an operation computes; it does nothing else."""
    return operation(name, *attributes, ignored=ignored, computes=True)


def entries(block: Block, families: Sequence[ModuleType]) -> dict[Operation, Entry]:
    """Return what each operation of a function does, regions included.

    The families are the modules that enter operations: to have imported them is all that it takes.

    Raises:
        GemmgenError: An operation or one of its attributes is not known.
    """
    assert families
    return dict(_entries(block))


def _entries(block: Block) -> Iterator[tuple[Operation, Entry]]:
    for op in walk(block):
        if op.name in TERMINATORS:
            continue
        entry = _ENTRIES.get(op.name)
        if entry is None:
            message = f"operation {op.name} is not known to the simulator"
            raise refusal(message, op.location, code="unknown-operation")
        unknown = op.attributes.keys() - entry.attributes - entry.ignored - COMMON_ATTRIBUTES
        if unknown:
            message = f"attribute {min(unknown)} of operation {op.name} is not known to the simulator"
            raise refusal(message, op.location, code="unknown-attribute")
        yield op, entry
