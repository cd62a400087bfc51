"""The steps of an epilogue, and the loads of its operands beside the sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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
from gemmgen.render.places import Constant, Place
from gemmgen.render.runs import Run
from gemmgen.render.spelling import fit
from gemmgen.render.statements import Statement, results, statements


def name_of(load: Load) -> str:
    """Return the variable of a loaded operand: of one accumulator's elements, with the accumulator's name."""
    return f"{load.accumulator}_{load.tensor}" if load.accumulator else load.tensor


@dataclass(frozen=True)
class Part:
    """Some lines of the epilogue's function."""

    kind: str
    """The kind of the lines. The template of the function has a branch for each kind."""
    statement: str = ""
    """The statement of the step, if it is a single one."""
    load: Load | None = None
    """The operand that it loads, if any."""
    widened: str = ""
    """The conversion of the operand to fp32, if it needs one."""
    limit: str = ""
    """The index before which a vector that is read by address ends, if not with its dimension of D."""

    @property
    def name(self) -> str:
        """The tensor that it loads."""
        return self.load.tensor if self.load else ""

    @property
    def own(self) -> str:
        """The variable of an accumulator's elements of a column operand."""
        return name_of(self.load) if self.load else ""

    @property
    def along(self) -> str:
        """The indices of a vector's elements."""
        return "rows" if OPERATIONS[self.name].along == "m" else "columns"

    @property
    def inside(self) -> str:
        """The condition that an index of a vector's elements is inside the vector."""
        return f"{self.along} < {self.limit or f'args.{OPERATIONS[self.name].along}'}"


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
class StepsView(OperandLoads):
    """The steps for the sums of a tile, or of a part of it, before their conversion."""

    # --- constants and parts

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

    @property
    def loads(self) -> bool:
        """True if a tile's epilogue needs more than the accumulator."""
        return bool(self.plan.problem.c or self.plan.access.tma_vectors)

    # --- the steps

    @property
    def parts(self) -> Iterator[Part]:
        """The parts between accumulator and conversion, in order; the last part returns the tile."""
        if self.plan.problem.accumulator.name != "fp32" or self.plan.problem.saves:
            yield from (Part("statement", f"{name} = {name}.to(gl.float32)") for name in self.tiles)
        if self.plan.problem.d_blocks > 1:
            yield from self._parts_of_blocks
            return
        *others, last = self._statements
        for statement in others:
            yield from self._loads_of(statement)
            yield Part("statement", str(statement))
        yield from self._loads_of(last)
        if last.operator == "=":
            yield Part("statement", f"return {last.value}")
        else:
            yield Part("statement", str(last))
            yield Part("statement", "return tile")

    @property
    def _parts_of_blocks(self) -> Iterator[Part]:
        """The parts of an epilogue that computes several matrices, from the matrices in C."""
        problem, made = self.plan.problem, self._statements
        yield Part("c_in_turn" if problem.interleaved else "c_of_blocks", widened=self._widened(Load("c")))
        for statement in made:
            yield from self._loads_of(statement)
            yield Part("statement", str(statement))
        tiles = ", ".join(results(problem.epilogue, made, "tile"))
        yield Part("statement", f"return {f'in_turn({tiles})' if problem.interleaved else tiles}")

    @property
    def blocks_of_c(self) -> tuple[str, ...]:
        """The variables of the matrices in C."""
        return self.plan.problem.epilogue.c_blocks

    @property
    def tiles(self) -> tuple[str, ...]:
        """Names of the variables of the accumulators, in the function that computes D from them."""
        accumulators = self.plan.problem.epilogue.accumulators
        return accumulators if len(accumulators) > 1 else ("tile",)

    @property
    def summary(self) -> str:
        """The docstring of that function."""
        if self.plan.problem.gated:
            sums = " and ".join(self.tiles)
            return f"The tile of D that the epilogue computes from the sums {sums}, before it is converted."
        if self.plan.problem.d_blocks > 1:
            what = f"{' and '.join(f'of {name}' for name in self.blocks_of_c)}, before they are converted"
            return f"The gradients {what}{': columns in turn' * self.plan.problem.interleaved}."
        piece = "a sub-tile" if self.plan.subtiles > 1 else "a tile"
        return f"The epilogue's operations on {piece} of A @ B, before it is converted and stored."

    def _loads_of(self, statement: Statement) -> Iterator[Part]:
        """Yield the parts that load the operands of a statement.

        The first use of a column operand in turn loads the elements of all accumulators.
        """
        firsts = {load.tensor: load for load in reversed(self.plan.problem.epilogue.loaded)}
        for load in statement.loads:
            loaded = self._in_turn(load) and firsts[load.tensor] != load
            if load.operand != "scalar" and not load.block and not loaded:
                yield self._load(load)

    def _in_turn(self, load: Load) -> bool:
        """Return True if an operand is read as elements of all accumulators in turn."""
        return self.plan.problem.interleaved and bool(load.accumulator)

    @property
    def _statements(self) -> tuple[Statement, ...]:
        epilogue = self.plan.problem.epilogue
        loads = {load: self._loaded(load) for load in epilogue.loaded}
        return statements(epilogue, Device(constants_of(epilogue), loads), "tile")

    def _widened(self, load: Load) -> str:
        """Return the conversion of a loaded operand to fp32."""
        problem = self.plan.problem
        dtype = problem.c if load.operand == "matrix" else problem.vector_dtype(load.tensor)
        return "" if dtype is None or dtype.name == "fp32" else ".to(gl.float32)"

    def _load(self, load: Load) -> Part:
        """Return the lines that load an operand, or find it in shared memory."""
        kind = "c" if load.operand == "matrix" else load.operand
        if load.accumulator:
            kind = "column_in_turn" if self._in_turn(load) else "column_of_block"
        return Part(kind, load=load, widened=self._widened(load))

    def _loaded(self, load: Load) -> str:
        """Return a loaded operand as it broadcasts to a tile."""
        if load.block:
            return load.block
        match load.operand:
            case "row":
                return f"{load.tensor}[:, None]"
            case "column" if self._in_turn(load):
                return f"{name_of(load)}{self._widened(load)}[None, :]"
            case "column":
                values = f"{name_of(load)}.load(gl.SliceLayout(0, {load.accumulator or 'tile'}.type.layout))"
                return f"{values}{self._widened(load)}[None, :]"
            case _:
                return load.tensor

    def block_of(self, load: Load) -> str:
        """Return the index of the elements of a load's accumulator in a column operand of blocks."""
        return self._block(self.tiles.index(load.accumulator))

    def in_turn(self, load: Load) -> tuple[str, ...]:
        """Return the variables of the elements of each accumulator in a column operand in turn."""
        return tuple(name_of(replace(load, accumulator=name)) for name in self.tiles)

    @property
    def columns(self) -> str:
        """The index of a sub-tile's columns in a row of values."""
        return ".slice(subtile * SUBTILE_N, SUBTILE_N)" if self.plan.subtiles > 1 else ""

    # --- parameters

    @property
    def _numbered(self) -> bool:
        """True if the operations on a sub-tile depend on its number."""
        problem = self.plan.problem
        vectors = self.plan.access.tma_vectors
        columns = any(OPERATIONS[name].along == "n" for name in vectors) and not problem.gated
        return self.plan.subtiles > 1 and (columns or bool(problem.c and (self.refills or self.buffer)))

    @property
    def _places(self) -> tuple[str, ...]:
        """The parameters that place the elements of operands which are read by address."""
        return ()

    @property
    def _scalar(self) -> tuple[str, ...]:
        return ("tensor_scale",) if self.plan.problem.scalar else ()

    @property
    def parameters(self) -> str:
        """The parameters of the function that does the steps."""
        return ", ".join(
            (
                *self.tiles,
                *(("subtile: gl.constexpr",) if self._numbered else ()),
                *self._places,
                *(("buffers",) if self.loads else ()),
                *self._scalar,
                *(("phase",) if self._c_phased else ()),
            )
        )

    def call(self, tile: str) -> str:
        """Return the call on a whole accumulator, or on a sub-tile whose place is all that tells it apart."""
        return f"epilogue({', '.join(self._arguments(tile, '', 'column'))})"

    def call_on(self, run: Run) -> str:
        """Return the statement that computes the sub-tiles of a run."""
        arguments = self._arguments(run.sums, run.number, run.column)
        return fit("tile = epilogue(", arguments, ")", indent=8 if run.numbers else 4, margin=4)

    def _arguments(self, tile: str, subtile: str, column: str) -> tuple[str, ...]:
        """Return the arguments of the steps on a sub-tile with this number and first column."""
        number = (subtile,) if self._numbered else ()
        places = (column if name == "column" else name for name in self._places)
        buffers = ("buffers",) if self.loads else ()
        phase = ("phase",) if self._c_phased else ()
        return tile, *number, *places, *buffers, *self._scalar, *phase

    @property
    def own(self) -> str:
        """The field of a consumer's own buffers that a store needs."""
        return "buffers" if self.loads else "d_smem"

    @property
    def passed_on(self) -> tuple[str, ...]:
        """The arguments that a store passes on to the epilogue."""
        return (*self._scalar, *(("phase",) if self.phased else ()))
