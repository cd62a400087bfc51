"""The formula of an epilogue: the steps from sums to the values of D, and the operands that they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gemmgen.plan.kernel import Kernel
from gemmgen.problem.epilogue import (
    ATOM_RANK,
    TIMES,
    Acc,
    Call,
    Epilogue,
    Load,
    Number,
    Spelled,
    Spelling,
)
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.operand_loads import OperandLoads
from gemmgen.render.operand_reads import Read, Reader, tiles_of
from gemmgen.render.places import Constant, Place
from gemmgen.render.runs import Run
from gemmgen.render.statements import Statement, results, statements


def constants_of(epilogue: Epilogue) -> dict[Call, Constant]:
    """Return the constant of each product and sum with a number other than -1 and 1."""
    found: dict[Call, Constant] = {}
    for node in epilogue.nodes:
        match node:
            case Call("times", (Number(value), Acc())):
                kind, meaning = "ALPHA", "factor of A @ B"
            case Call("times", (Number(value), Load("c"))):
                kind, meaning = "BETA", "factor of C"
            case Call("times", (Number(value), _)):
                kind, meaning = "FACTOR", "factor in the epilogue"
            case Call("plus", (_, Number(value))):
                kind, meaning = "SUMMAND", "summand in the epilogue"
            case _:
                continue
        if node.op == TIMES and abs(value) == 1:
            continue
        count = sum(constant.meaning == meaning for constant in found.values())
        name = f"{kind}_{count + 1}" if count else kind
        found[node] = Constant(Place.NUMBERS, name, value, meaning)
    return found


@dataclass(frozen=True)
class Device(Spelling):
    """The spelling of values in a kernel, in which a loaded operand has a variable of its name."""

    constants: Mapping[Call, Constant]
    loads: Mapping[Load, str]

    def load(self, load: Load) -> Spelled:
        """Return a loaded operand, as it broadcasts to a tile."""
        return self.loads[load], ATOM_RANK

    def stated(self, call: Call) -> Spelled:
        """Return the constant of a number."""
        return self.constants[call].name, ATOM_RANK

    def activation(self, call: Call, argument: Spelled) -> Spelled:
        """Return the call of its function, which has its parameters as constants."""
        return f"{call.op}({argument[0]})", ATOM_RANK


@dataclass(frozen=True)
class FormulaStep:
    """A step of the formula."""

    reads: tuple[Read, ...]
    """The reads of operands that no step before it has read."""
    statement: Statement


@dataclass(frozen=True)
class Steps:
    """The steps for the sums of a tile, or of a part of it, before their conversion."""

    plan: Kernel
    loads: OperandLoads
    readers: tuple[Reader, ...]
    """The ways in which operands are read; the first that takes an operand reads it."""
    of_whole_tile: bool
    """True if a tile of D is computed before it is divided into sub-tiles."""

    @property
    def numbers(self) -> Iterator[Constant]:
        """The constants of the numbers and of the parameters of the formula."""
        yield from constants_of(self.plan.problem.epilogue).values()
        for found in self.plan.problem.parameters:
            name, meaning = OPERATIONS[found.op].constant(found.name), found.parameter.meaning
            yield Constant(Place.NUMBERS, name, found.value, meaning)

    @property
    def activations(self) -> tuple[str, ...]:
        """The activation functions, each once."""
        return tuple(dict.fromkeys(call.op for call in self.plan.problem.epilogue.activations))

    @property
    def divides(self) -> bool:
        """True if an activation needs a quotient, which is libdevice's fast one."""
        return any(op.register_class == "quotient" for op in self.plan.problem.operations)

    # --- the function

    @property
    def tiles(self) -> tuple[str, ...]:
        """The variables of the accumulators."""
        return tiles_of(self.plan)

    @property
    def widens(self) -> bool:
        """True if sums are converted to fp32 before the first step."""
        return self.plan.problem.accumulator.name != "fp32" or self.plan.problem.saves

    def __iter__(self) -> Iterator[FormulaStep]:
        computed = self._statements
        needed = [tuple(map(self._read, _in_memory(statement))) for statement in computed]
        ahead = [read for reads in needed for read in reads if read.is_ahead]
        known = set[str]()
        for statement, reads in zip(computed, needed, strict=True):
            before = list[Read]()
            for read in (*ahead, *reads):
                if not known.issuperset(read.variables):
                    before.append(read)
                    known.update(read.variables)
            yield FormulaStep(tuple(before), statement)

    @property
    def results(self) -> tuple[str, ...]:
        """The variables of the values of D after the last step: one for each matrix."""
        return results(self.plan.problem.epilogue, self._statements, "tile")

    @property
    def _statements(self) -> tuple[Statement, ...]:
        epilogue = self.plan.problem.epilogue
        loads = {load: self._reader_of(load).spelled(load) for load in epilogue.loaded}
        return statements(epilogue, Device(constants_of(epilogue), loads), "tile")

    def _reader_of(self, load: Load) -> Reader:
        """Return the reader of an operand."""
        return next(reader for reader in self.readers if reader.takes(load))

    def _read(self, load: Load) -> Read:
        """Return the lines that read an operand."""
        return self._reader_of(load).read(load)

    @property
    def indexed(self) -> tuple[str, ...]:
        """The dimensions along which the function computes indices of elements that it reads by address."""
        return tuple(axis for reader in self.readers for axis in reader.indexed)

    # --- its parameters

    @property
    def facts(self) -> tuple[str, ...]:
        """The parameters that a tile has beside its place."""
        return tuple(fact for reader in self.readers for fact in reader.facts)

    @property
    def numbered(self) -> bool:
        """True if the function is called on sub-tiles, and reads elements by a sub-tile's number."""
        columns = "n" in self.loads.vector_axes
        in_ring = self.loads.has_c and (self.loads.refills or self.plan.epilogue_buffers > 1)
        return self.plan.subtiles > 1 and not self.of_whole_tile and (columns or in_ring)

    def _parameters(self, tiles: tuple[str, ...], number: str, column: str) -> tuple[str, ...]:
        """Return the parameters, or arguments, of tiles and of a sub-tile's number and first column."""
        return (
            *tiles,
            *((number,) if self.numbered else ()),
            *(column if name == "column" else name for reader in self.readers for name in reader.places),
            *(("buffers",) if self.loads.exist else ()),
            *self.scalar,
            *(("phase",) if self.loads.c_alternates else ()),
        )

    @property
    def scalar(self) -> tuple[str, ...]:
        """The variable of a factor in memory, if the formula has one."""
        return ("tensor_scale",) if self.plan.problem.scalar else ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the function."""
        return self._parameters(self.tiles, "subtile: gl.constexpr", "column")

    def arguments(self, *tiles: str) -> tuple[str, ...]:
        """Return the arguments for whole accumulators, or for a sub-tile whose place is all it has."""
        return self._parameters(tiles, "", "column")

    def arguments_of(self, run: Run) -> tuple[str, ...]:
        """Return the arguments for the sub-tiles of a run."""
        return self._parameters((run.sums,), run.number, run.column)


def _in_memory(statement: Statement) -> Iterator[Load]:
    """Return the operands of a statement that lines must read: a factor is an argument of the function."""
    return (load for load in statement.loads if load.operand != "scalar")
