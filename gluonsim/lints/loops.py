"""Loops over K that lose time: barriers of all warps before TMA loads, and MMAs that ptxas serializes."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import TRITON
from gluonsim.findings import Finding, Kind, Location, Severity
from gluonsim.ir.parse import Block, Operation, walk

_LOAD = "ttng.async_tma_copy_global_to_local"
_DOT, _DOT_WAIT = "ttng.warp_group_dot", "ttng.warp_group_dot_wait"
_MMAS = (_DOT, "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled")
_LOOPS = ("scf.for", "scf.while")


def slow_loops(function: Operation, warps: int) -> tuple[Finding, ...]:
    """Return what makes the loops of a kernel slow; `warps` is the number of warps outside of partitions."""
    body = function.regions[0]
    return (*_barriers_before_loads(body, warps), *_moved_accumulators(body))


def _finding(kind: Kind, name: str, locations: list[Location], text: str) -> Finding:
    places = tuple(location.frames[0] for location in locations if location.frames)
    return Finding(kind, Severity.LINT, name, tuple(dict.fromkeys(places)), "", 0, text)


def _barriers_before_loads(body: Block, warps: int) -> Iterator[Finding]:
    """Find TMA loads in a loop of MMAs that all warps of the CTA execute.

    Triton puts a barrier of all warps of a partition before each TMA load, which one thread issues. A
    partition of one warp pays nothing for it.
    """
    if warps == 1:
        return
    made = {result: op for op in walk(body) for result in op.results}
    for loop in _loops_of_all_warps(body):
        inner = [op for region in loop.regions for op in walk(region)]
        loads = [op for op in inner if op.name == _LOAD]
        if not loads or not any(op.name in _MMAS for op in inner) or _has_loop_of_both(inner):
            continue
        barriers = "a barrier" if len(loads) == 1 else f"{len(loads)} barriers"
        text = (
            f"a step of this loop has {barriers} of all {warps} warps, since Triton {TRITON.name} puts "
            f"one before each TMA load: a partition of one warp that issues the loads (gl.warp_specialize) "
            f"needs none"
        )
        buffer = _buffer(loads[0], made)
        yield _finding(Kind.BARRIER_PER_LOAD, buffer.called, [op.location for op in loads], text)


def _buffer(load: Operation, made: dict[str, Operation]) -> Location:
    """Return the line that allocates the buffer of a load; the load's own line if its view is handed over."""
    value = load.segments[4][0]
    while (op := made.get(value)) is not None:
        if not op.name.startswith("ttg.memdesc_"):
            return op.location
        value = op.operands[0]
    return load.location


def _has_loop_of_both(operations: list[Operation]) -> bool:
    """Return whether a loop among operations has loads and MMAs itself: it is the loop over K then."""
    for loop in operations:
        if loop.name in _LOOPS:
            names = {op.name for region in loop.regions for op in walk(region)}
            if _LOAD in names and names & set(_MMAS):
                return True
    return False


def _loops_of_all_warps(body: Block) -> Iterator[Operation]:
    """Yield the loops outside of warp-specialized partitions."""
    for block in body.siblings.values() or (body,):
        for op in block.operations:
            if op.name in _LOOPS:
                yield op
            if op.name != "ttg.warp_specialize":
                for region in op.regions:
                    yield from _loops_of_all_warps(region)


def _moved_accumulators(body: Block) -> Iterator[Finding]:
    """Find MMAs that are in flight when their loop goes round, and whose sums the loop then moves.

    The loop carries the sums in the registers of another accumulator. The move reads registers that the MMA
    still writes, so ptxas serializes all MMAs of the function (its note C7514).
    """
    for loop in walk(body):
        if loop.name != "scf.for":
            continue
        block = loop.regions[0]
        if not block.operations or block.operations[-1].name != "scf.yield":
            continue
        made = {result: op for op in walk(block) for result in op.results}
        in_flight = _in_flight(block)
        for argument, value in zip(block.arguments[1:], block.operations[-1].operands, strict=True):
            dots, root = _chain(value, made)
            moves = root != argument and (root not in made or made[root].name == "arith.constant")
            if moves and any(dot in in_flight for dot in dots):
                text = (
                    "the MMA is in flight when the loop goes round, and the loop hands its sums to another "
                    "accumulator: ptxas serializes the MMAs (its note C7514). Await it in the same step, or "
                    "let each accumulator keep its MMAs in flight, by two steps in a round of the loop"
                )
                yield _finding(
                    Kind.SERIALIZED_MMA, dots[0].location.called, [dots[0].location, loop.location], text
                )


def _in_flight(block: Block) -> list[Operation]:
    """Return the asynchronous MMAs of a loop's body that nothing in the body awaits."""
    pending: list[Operation] = []
    for op in walk(block):
        if op.name == _DOT:
            pending = [*pending, op] if op.attributes["isAsync"] else []
        elif op.name == _DOT_WAIT:
            left: int = op.attributes["pendings"]
            pending = pending[len(pending) - left :] if left < len(pending) else pending
    return pending


def _chain(value: str, made: dict[str, Operation]) -> tuple[list[Operation], str]:
    """Return the MMAs that made a value, the last one first, and the value that the first one added to."""
    dots: list[Operation] = []
    while (op := made.get(value)) is not None:
        if op.name == _DOT:
            dots.append(op)
            value = op.operands[2]
        elif op.name == _DOT_WAIT:
            value = op.operands[op.results.index(value)]
        else:
            break
    return dots, value
