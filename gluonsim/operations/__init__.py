"""What each operation does: a table of functions, and the attributes that each of them understands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import isgeneratorfunction
from types import ModuleType
from typing import Any, cast

from gluonsim.accesses import Proxy
from gluonsim.findings import carried_out, refusal
from gluonsim.ir.parse import TERMINATORS, Block, Operation, blocks
from gluonsim.program import Agent, Code, Entry, Handler, Step, Steps

HINTS = ("tt.divisibility", "tt.contiguity", "tt.constancy")
"""What a kernel's author says of addresses, and this takes on trust."""
OFFSET, SIZE = "allocation.offset", "allocation.size"
COMMON_ATTRIBUTES = frozenset({"operandSegmentSizes", OFFSET, SIZE, *HINTS})
"""Attributes that every operation may have."""
_WITHOUT_SCRATCH = frozenset({"ttg.local_alloc", "tt.call"})
"""Operations whose shared memory is a buffer, or the memory of a callee."""


def has_scratch(op: Operation) -> bool:
    """Return whether the compiler gives an operation shared memory while it runs."""
    return op.name not in _WITHOUT_SCRATCH and op.attributes.get(SIZE, 0) > 0


Resolve = Callable[[Operation], Handler]
_ENTRIES: dict[str, Entry] = {}


def operation(
    name: str,
    *attributes: str,
    ignored: tuple[str, ...] = (),
    computes: bool = False,
) -> Callable[[Handler], Handler]:
    """Enter a function as what an operation does."""

    def enter(run: Handler) -> Handler:
        resolved(name, *attributes, ignored=ignored, computes=computes)(lambda _: run)
        return run

    return enter


def resolved(
    name: str,
    *attributes: str,
    ignored: tuple[str, ...] = (),
    computes: bool = False,
) -> Callable[[Resolve], Resolve]:
    """Enter a function that returns what one operation does: it is called once for each operation.

    One that returns a generator function may wait; others of the same name need not.
    """

    def enter(resolve: Resolve) -> Resolve:
        _ENTRIES[name] = Entry(resolve, frozenset(attributes), frozenset(ignored), computes)
        return resolve

    return enter


def computation(name: str, *attributes: str, ignored: tuple[str, ...] = ()) -> Callable[[Handler], Handler]:
    """Enter a function as what an operation computes; it does nothing else."""
    return operation(name, *attributes, ignored=ignored, computes=True)


def code(block: Block, families: Sequence[ModuleType]) -> dict[Block, Code]:
    """Return what every block of a function executes, given its first one.

    The families are the modules that enter operations: to have imported them is all that it takes.

    Raises:
        GemmgenError: An operation or one of its attributes is not known.
    """
    assert families
    return {each: block_code(each) for each in blocks(block)}


def block_code(block: Block) -> Code:
    """Return what one block executes.

    Raises:
        GemmgenError: An operation or one of its attributes is not known.
    """
    steps: list[Step] = []
    for op in block.operations:
        if op.name in TERMINATORS:
            return Code(tuple(steps), Step(op, _nothing, blocking=False, computes=False, result=None))
        entry = _entry(op)
        only = op.results[0] if len(op.results) == 1 else None
        run = _resolved(entry, op)
        steps.append(Step(op, run, isgeneratorfunction(run), entry.computes, only))
    return Code(tuple(steps), None)


def _resolved(entry: Entry, op: Operation) -> Handler:
    run = carried_out(partial(entry.resolve, op), op.name, op.location)
    return with_scratch(run, op) if has_scratch(op) else run


def with_scratch(run: Handler, op: Operation) -> Handler:
    """Return what an operation does, and before it the use of the scratch memory of `op`."""
    what = f"scratch memory of {op.name.partition('.')[2]}"

    def use(agent: Agent) -> None:
        access = agent.access(what, op.location, Proxy.SCRATCH)
        agent.memory.use_scratch(op, access, agent.knowledge.clock)

    def blocking(agent: Agent, op: Operation) -> Steps:
        use(agent)
        return (yield from cast(Steps, run(agent, op)))

    def at_once(agent: Agent, op: Operation) -> Any:
        use(agent)
        return run(agent, op)

    return blocking if isgeneratorfunction(run) else at_once


def _nothing(agent: Agent, op: Operation) -> None:
    """Say what a terminator does by itself."""


def _entry(op: Operation) -> Entry:
    entry = _ENTRIES.get(op.name)
    if entry is None:
        message = f"operation {op.name} is not known to the simulator"
        raise refusal(message, op.location, code="unknown-operation")
    unknown = op.attributes.keys() - entry.attributes - entry.ignored - COMMON_ATTRIBUTES
    if unknown:
        message = f"attribute {min(unknown)} of operation {op.name} is not known to the simulator"
        raise refusal(message, op.location, code="unknown-attribute")
    return entry
