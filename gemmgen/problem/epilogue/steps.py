"""An epilogue as a value: its expression, and the steps from the accumulator to D."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TypeAlias

from gemmgen.hardware import DType
from gemmgen.problem.epilogue.nodes import (
    ACCUMULATOR,
    MATRIX,
    Acc,
    Algebra,
    Call,
    Cast,
    Computed,
    Load,
    Number,
    Value,
    fold,
    is_computed,
    loads_of,
)
from gemmgen.problem.operations import OPERATIONS, Operation


@dataclass(frozen=True, slots=True)
class Output:
    """A matrix that an epilogue makes."""

    name: str
    value: Value


StepName: TypeAlias = str
"""``alpha``, ``c``, an operation of the table, or ``times`` and ``plus`` for products and sums it lacks."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operation on what depends on the accumulator; an expression does one after the other."""

    name: StepName
    call: Call

    @property
    def operation(self) -> Operation | None:
        """The row of the table that is this step; None for alpha, for C added to the product, and others."""
        return OPERATIONS.get(self.name)

    @property
    def operand(self) -> Value | None:
        """The other operand of a product or a sum; None for an activation, or if both depend on sums."""
        others = [each for each in self.call.args if not is_computed(each)]
        return others[0] if others else None


@dataclass(frozen=True, slots=True)
class _Renaming(Algebra[Value]):
    """An expression with other names of accumulators and of matrices in C."""

    names: Mapping[str, str]

    def accumulator(self, name: str) -> Value:
        return Acc(self.names.get(name, name))

    def load(self, load: Load) -> Value:
        accumulator, block = (self.names.get(name, name) for name in (load.accumulator, load.block))
        return replace(load, accumulator=accumulator, block=block)

    def number(self, value: float) -> Value:
        return Number(value)

    def call(self, call: Call, arguments: tuple[Value, ...]) -> Value:
        return replace(call, args=arguments)

    def cast(self, cast: Cast, argument: Value) -> Value:
        return replace(cast, value=argument)


@dataclass(frozen=True)
class Epilogue:
    """Matrices as expressions over accumulators."""

    accumulators: tuple[str, ...] = (ACCUMULATOR,)
    outputs: tuple[Output, ...] = (Output("d", Acc()),)
    interleaved: bool = False
    """True if columns for several accumulators take turns in B: even columns are of the first one. Columns of
    several matrices in C and D do likewise.
    """
    saved: tuple[str, ...] = ()
    """Names of the accumulators whose sums are stored beside D, rounded to D's type: all or none.

    D is computed from the rounded sums.
    """
    c_blocks: tuple[str, ...] = ()
    """Names of the two matrices [M, N] in a C [M, 2N]; D has two matrices then, one for each output. Empty if
    C is [M, N].
    """

    @property
    def value(self) -> Value:
        """The value of D, if it is the only output.

        Raises ValueError for an epilogue of several outputs.
        """
        if len(self.outputs) != 1:
            raise ValueError("D has a value for each of several outputs")
        return self.outputs[0].value

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The values of D's matrices: one, or one for each of several that D has side by side."""
        return tuple(output.value for output in self.outputs)

    def renamed(self, names: Mapping[str, str]) -> Epilogue:
        """Return the epilogue with other names of its accumulators and of the matrices in C.

        A name that the mapping lacks stays.
        """
        renaming, known = _Renaming(names), dict[Value, Value]()
        return replace(
            self,
            accumulators=tuple(names.get(name, name) for name in self.accumulators),
            outputs=tuple(replace(each, value=fold(each.value, renaming, known)) for each in self.outputs),
            saved=tuple(names.get(name, name) for name in self.saved),
            c_blocks=tuple(names.get(name, name) for name in self.c_blocks),
        )

    @cached_property
    def sums(self) -> tuple[Value, ...]:
        """The values that steps begin with: the sums of accumulators, or rounded sums that are saved."""
        accumulators = tuple(Acc(name) for name in self.accumulators)
        casts = {node.value: node for node in self.nodes if isinstance(node, Cast)}
        return tuple(casts.get(sums, sums) for sums in accumulators) if self.saved else accumulators

    @cached_property
    def nodes(self) -> tuple[Value, ...]:
        """All values, each once, in the order in which they are computed."""
        known: dict[Value, bool] = {}
        for output in self.outputs:
            fold(output.value, Computed(), known)
        return tuple(known)  # `fold` adds a value when it has found what that is

    @cached_property
    def loaded(self) -> tuple[Load, ...]:
        """The loads, each once, in the order of use: of an operand along B's columns one per accumulator."""
        return tuple(dict.fromkeys(chain.from_iterable(loads_of(output.value) for output in self.outputs)))

    @cached_property
    def loads(self) -> tuple[str, ...]:
        """The loaded tensors, in the order of use."""
        return tuple(dict.fromkeys(load.tensor for load in self.loaded))

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that are stated, each once."""
        return tuple(node.value for node in self.nodes if isinstance(node, Number))

    @cached_property
    def activations(self) -> tuple[Call, ...]:
        """Activations of anything, in the order in which they are computed."""
        return tuple(node for node in self.nodes if isinstance(node, Call) and node.op in OPERATIONS)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The operations on what depends on the accumulators, in the order in which they are done."""
        calls = (node for node in self.nodes if isinstance(node, Call) and is_computed(node))
        return tuple(Step(_name(call), call) for call in calls)

    @cached_property
    def alpha(self) -> float:
        """The factor of A @ B in the first step, 1 if that is another one."""
        match self._step("alpha"):
            case Step(call=Call(args=(Number(factor), _))):
                return factor
            case _:
                return 1.0

    @cached_property
    def beta(self) -> float:
        """The factor of the C that is added to alpha * A @ B; 0 if C is not added there."""
        match self._step("c"):
            case Step(call=Call(args=(_, Load()))):
                return 1.0
            case Step(call=Call(args=(_, Call(args=(Number(factor), _))))):
                return factor
            case _:
                return 0.0

    def _step(self, name: StepName) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)

    @property
    def is_chain(self) -> bool:
        """True if one value is kept at a time, to which each step applies a term or an activation."""
        return len(self.accumulators) == len(self.outputs) == 1 and self.beside_the_chain is None

    @cached_property
    def beside_the_chain(self) -> Value | None:
        """The first value that has to be kept beside one for each accumulator; None if there is none.

        A step changes one of these values, or joins two of them to one. With several outputs, any value can
        be kept.
        """
        if self.c_blocks:
            return next((node for node in self.nodes if isinstance(node, Cast)), None)
        kept: list[Value] = [*self.sums]
        for node in self.nodes:
            match node:
                case Cast() if node not in self.sums:
                    return node
                case Call() if not is_term(node):
                    others = [each for each in node.args if not is_term(each)]
                    if not any(each in kept for each in others):
                        return node
                    for each in others:
                        if each not in kept:
                            return each
                        kept.remove(each)
                    kept.append(node)
                case _:
                    pass
        return next((each for each in kept if each != self.value), None)

    @cached_property
    def uses(self) -> Mapping[str, int]:
        """In how many steps each tensor is read."""
        steps = (node for node in self.nodes if isinstance(node, Call) and not is_term(node))
        terms = (each for step in steps for each in step.args if is_term(each))
        return Counter(load.tensor for term in terms for load in loads_of(term) if not load.block)


def is_term(value: Value) -> bool:
    """Return True if a value is a number, a tensor, or a multiple of one: a step takes it as it stands."""
    match value:
        case Number() | Load() | Call("times", (Number(), Load())):
            return True
        case _:
            return False


def _name(call: Call) -> StepName:
    """Return the name of a step, by its operation and its place."""
    if call.op in OPERATIONS:
        return call.op
    match call.op, call.args:
        case "times", (Number(), Acc()):
            return "alpha"
        case "plus", (value, addend) if _is_product(value) and _is_c(addend):
            return "c"
        case "plus", (_, Load("c")):
            return "residual"
        case _, (_, Load(tensor)) if tensor != MATRIX and OPERATIONS[tensor].effect == call.op:
            return tensor
        case _:
            return call.op


def _is_product(value: Value) -> bool:
    """Return True if a value is alpha * A @ B."""
    match value:
        case Acc() | Call("times", (Number(), Acc())):
            return True
        case _:
            return False


def _is_c(value: Value) -> bool:
    """Return True if a value is beta * C."""
    match value:
        case Load("c") | Call("times", (Number(), Load("c"))):
            return True
        case _:
            return False


PLAIN = Epilogue()
"""D is the sums themselves."""


def d_is(
    value: Value, accumulators: tuple[str, ...] = (ACCUMULATOR,), *, interleaved: bool = False
) -> Epilogue:
    """Return the epilogue of these accumulators whose only result is D.

    Columns of B for several accumulators may be interleaved.
    """
    outputs = (Output("d", value),)
    return replace(PLAIN, accumulators=accumulators, outputs=outputs, interleaved=interleaved)


def saving(epilogue: Epilogue, saved: tuple[str, ...], dtype: DType) -> Epilogue:
    """Return an epilogue that stores the sums of these accumulators, rounded to a type, and reads them so."""
    outputs = tuple(replace(each, value=_rounded(each.value, saved, dtype)) for each in epilogue.outputs)
    return replace(epilogue, outputs=outputs, saved=saved)


def _rounded(value: Value, saved: tuple[str, ...], dtype: DType) -> Value:
    """Return a value that reads rounded sums of the saved accumulators."""
    match value:
        case Acc(name) if name in saved:
            return Cast(dtype, value)
        case Call():
            return replace(value, args=tuple(_rounded(each, saved, dtype) for each in value.args))
        case _:
            return value


def blocks_are(
    values: tuple[Value, ...], c_blocks: tuple[str, ...], *, interleaved: bool = False
) -> Epilogue:
    """Return the epilogue of a D of several matrices, computed from the matrices in C with these names."""
    outputs = tuple(Output(f"d_{name}", value) for name, value in zip(c_blocks, values, strict=True))
    return replace(PLAIN, outputs=outputs, interleaved=interleaved, c_blocks=c_blocks)


EACH = {"scalar": "all of D", "row": "each row", "column": "each column", "matrix": "each element"}


def meaning_of(epilogue: Epilogue, tensor: str) -> str:
    """Return the meaning of a tensor in an epilogue: ``a factor for each row``."""
    named = any(step.name == tensor for step in epilogue.steps)
    said = OPERATIONS[tensor].meaning if named else ""
    said = said or f"{'a factor' if named else 'a number'} for {EACH[Load(tensor).operand]}"
    of_b = any(load.accumulator for load in epilogue.loaded if load.tensor == tensor)
    return f"{said} of B" if of_b else said
