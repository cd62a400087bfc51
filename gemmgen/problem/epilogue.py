"""What becomes of the sums of products: an expression over accumulators and over what is loaded beside them.

`fold` is the one walk over an expression. Whoever needs something of an epilogue, its result in torch, its
statements, its words, says what each kind of node is to it and leaves the walk to `fold`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import ClassVar, Literal, Protocol, TypeAlias, TypeVar

from gemmgen.hardware import DType
from gemmgen.problem.operations import OPERATIONS, Operation, OpParameter

ACCUMULATOR = "acc"
"""What the sums are called where there is one accumulator."""
MATRIX = "c"
"""The operand that has an element for each one of D."""
TIMES: Literal["times"] = "times"
PLUS: Literal["plus"] = "plus"


@dataclass(frozen=True, slots=True)
class Acc:
    """The sums of an accumulator, one for each element of D."""

    kind: ClassVar[str] = "accumulator"
    name: str = ACCUMULATOR


@dataclass(frozen=True, slots=True)
class Load:
    """What lies in memory beside A and B: C, or an operand that the table of operations names."""

    kind: ClassVar[str] = "load"
    tensor: str

    @property
    def operand(self) -> Literal["none", "scalar", "row", "column", "matrix"]:
        """Whether it has one number, one for each row or column of D, or one for each element."""
        return "matrix" if self.tensor == MATRIX else OPERATIONS[self.tensor].operand


@dataclass(frozen=True, slots=True)
class Number:
    """A number that the spec states."""

    kind: ClassVar[str] = "number"
    value: float


@dataclass(frozen=True, slots=True)
class Call:
    """An operation on values: a product or a sum of two, or an activation of one."""

    kind: ClassVar[str] = "call"
    op: str
    """``times``, ``plus``, or the name of an activation in the table of operations."""
    args: tuple[Value, ...]
    parameters: tuple[OpParameter, ...] = ()
    """Of an activation, every one with a value."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A value rounded to an element type, beyond whose range it saturates where that is one of 8 bits."""

    kind: ClassVar[str] = "cast"
    dtype: DType
    value: Value


Value: TypeAlias = Acc | Load | Number | Call | Cast

T = TypeVar("T")


class Algebra(Protocol[T]):
    """What each kind of node is, in terms of what its arguments are."""

    def accumulator(self, name: str) -> T:
        """Return what the sums of an accumulator are."""
        ...

    def load(self, load: Load) -> T:
        """Return what is loaded."""
        ...

    def number(self, value: float) -> T:
        """Return what a number is."""
        ...

    def call(self, call: Call, arguments: tuple[T, ...]) -> T:
        """Return what an operation makes of its arguments."""
        ...

    def cast(self, cast: Cast, argument: T) -> T:
        """Return what rounding makes of its argument."""
        ...


def fold(value: Value, algebra: Algebra[T], known: dict[Value, T] | None = None) -> T:
    """Return what a value is in an algebra: arguments first, from left to right, equal values once.

    ``known`` has what values are already, and receives the others: several outputs can share it.
    """
    known = {} if known is None else known
    if value not in known:
        match value:
            case Acc():
                found = algebra.accumulator(value.name)
            case Load():
                found = algebra.load(value)
            case Number():
                found = algebra.number(value.value)
            case Call():
                found = algebra.call(value, tuple([fold(each, algebra, known) for each in value.args]))
            case Cast():
                found = algebra.cast(value, fold(value.value, algebra, known))
        known[value] = found
    return known[value]


class _Computed(Algebra[bool]):
    """Whether a value depends on an accumulator."""

    def accumulator(self, name: str) -> bool:  # noqa: ARG002
        return True

    def load(self, load: Load) -> bool:  # noqa: ARG002
        return False

    def number(self, value: float) -> bool:  # noqa: ARG002
        return False

    def call(self, call: Call, arguments: tuple[bool, ...]) -> bool:  # noqa: ARG002
        return any(arguments)

    def cast(self, cast: Cast, argument: bool) -> bool:  # noqa: ARG002
        return argument


def is_computed(value: Value) -> bool:
    """Whether a value depends on an accumulator; others are loaded, or made of what is."""
    return fold(value, _Computed())


class _Loads(Algebra[tuple[Load, ...]]):
    """What a value loads, each once, in the order of its use."""

    def accumulator(self, name: str) -> tuple[Load, ...]:  # noqa: ARG002
        return ()

    def load(self, load: Load) -> tuple[Load, ...]:
        return (load,)

    def number(self, value: float) -> tuple[Load, ...]:  # noqa: ARG002
        return ()

    def call(self, call: Call, arguments: tuple[tuple[Load, ...], ...]) -> tuple[Load, ...]:  # noqa: ARG002
        return tuple(dict.fromkeys(chain.from_iterable(arguments)))

    def cast(self, cast: Cast, argument: tuple[Load, ...]) -> tuple[Load, ...]:  # noqa: ARG002
        return argument


def loads_of(value: Value) -> tuple[Load, ...]:
    """Return what a value loads, each once, in the order of its use."""
    return fold(value, _Loads())


@dataclass(frozen=True)
class _Zero(Algebra[bool]):
    """Whether a value is 0 where the sums are 0, whatever finite numbers are loaded."""

    finite_scalars: bool

    def accumulator(self, name: str) -> bool:  # noqa: ARG002
        return True

    def load(self, load: Load) -> bool:  # noqa: ARG002
        return False

    def number(self, value: float) -> bool:
        return value == 0

    def call(self, call: Call, arguments: tuple[bool, ...]) -> bool:
        if call.op in OPERATIONS:
            return arguments[0] and OPERATIONS[call.op].keeps_zero
        return any(arguments) and self._finite(call) if call.op == TIMES else all(arguments)

    def _finite(self, product: Call) -> bool:
        """Whether no factor can be infinite, of which a product with 0 is NaN."""
        return all(self.finite_scalars and load.operand == "scalar" for load in loads_of(product))

    def cast(self, cast: Cast, argument: bool) -> bool:  # noqa: ARG002
        return argument


def keeps_zeros(epilogue: Epilogue, *, finite_scalars: bool) -> bool:
    """Whether D is 0 where the sums are, whatever is loaded; a scale is finite with ``finite_scalars``."""
    return fold(epilogue.value, _Zero(finite_scalars))


# --- values in their one form


def times(left: Value, right: Value) -> Value:
    """Return a product in its one form: a number first, else what depends on an accumulator first.

    Numbers are multiplied with one another, and 1 is left out.
    """
    if isinstance(right, Number):
        left, right = right, left
    match left, right:
        case Number(1.0), _:
            return right
        case Number(one), Number(other):
            return Number(one * other)
        case Number(one), Call("times", (Number(other), factor)):
            return times(Number(one * other), factor)
        case Number(), _:
            return Call(TIMES, (left, right))
        case _:
            return Call(TIMES, _computed_first(left, right))


def plus(left: Value, right: Value) -> Value:
    """Return a sum in its one form: what depends on an accumulator first, a number last, and no 0."""
    if isinstance(left, Number):
        left, right = right, left
    match left, right:
        case Number(one), Number(other):
            return Number(one + other)
        case _, Number(0.0):
            return left
        case _:
            return Call(PLUS, _computed_first(left, right))


def _computed_first(left: Value, right: Value) -> tuple[Value, Value]:
    return (right, left) if is_computed(right) and not is_computed(left) else (left, right)


def minus(left: Value, right: Value) -> Value:
    """Return a difference in its one form, a sum with the negative of the second value."""
    return plus(left, times(Number(-1.0), right))


# --- an epilogue


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
        """What a product or a sum takes besides; None of an activation, or where both depend on sums."""
        others = [each for each in self.call.args if not is_computed(each)]
        return others[0] if others else None


@dataclass(frozen=True)
class Epilogue:
    """Matrices as expressions over accumulators."""

    accumulators: tuple[str, ...] = (ACCUMULATOR,)
    outputs: tuple[Output, ...] = (Output("d", Acc()),)

    @property
    def value(self) -> Value:
        """The value of D, where it is all that is computed, of one accumulator.

        Raises ValueError for an epilogue of several accumulators or outputs.
        """
        if len(self.accumulators) != 1 or len(self.outputs) != 1:
            raise ValueError("no kernel has several accumulators, or several outputs")
        return self.outputs[0].value

    @cached_property
    def nodes(self) -> tuple[Value, ...]:
        """All values, each once, in the order in which they are computed."""
        known: dict[Value, bool] = {}
        for output in self.outputs:
            fold(output.value, _Computed(), known)
        return tuple(known)  # `fold` adds a value when it has found what that is

    @cached_property
    def loads(self) -> tuple[str, ...]:
        """What is loaded, in the order of its use."""
        loads = chain.from_iterable(loads_of(output.value) for output in self.outputs)
        return tuple(dict.fromkeys(load.tensor for load in loads))

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
        """Whether one value is kept at a time, to which each step applies a term or an activation."""
        return self.beside_the_chain is None

    @cached_property
    def beside_the_chain(self) -> Value | None:
        """The first value that has to be kept beside the one that steps change; None if there is none."""
        if len(self.accumulators) != 1 or len(self.outputs) != 1:
            return Acc(self.accumulators[-1])
        kept: Value = Acc(self.accumulators[0])
        for node in self.nodes:
            match node:
                case Cast():
                    return node
                case Call() if not is_term(node):
                    others = [each for each in node.args if not is_term(each)]
                    if kept not in others:
                        return node
                    others.remove(kept)
                    if others:
                        return others[0]
                    kept = node
                case _:
                    pass
        return None

    @cached_property
    def uses(self) -> Mapping[str, int]:
        """In how many steps each tensor is read."""
        steps = (node for node in self.nodes if isinstance(node, Call) and not is_term(node))
        terms = (each for step in steps for each in step.args if is_term(each))
        return Counter(load.tensor for term in terms for load in loads_of(term))


def is_term(value: Value) -> bool:
    """Whether a value is a number, a tensor, or a multiple of one: what a step takes as it stands."""
    match value:
        case Number() | Load() | Call("times", (Number(), Load())):
            return True
        case _:
            return False


def _name(call: Call) -> StepName:
    """Return what a step is called, by what it does and where."""
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
    """Whether a value is alpha * A @ B."""
    match value:
        case Acc() | Call("times", (Number(), Acc())):
            return True
        case _:
            return False


def _is_c(value: Value) -> bool:
    """Whether a value is beta * C."""
    match value:
        case Load("c") | Call("times", (Number(), Load("c"))):
            return True
        case _:
            return False


PLAIN = Epilogue()
"""D is the sums themselves."""


def d_is(value: Value) -> Epilogue:
    """Return the epilogue whose only result is D."""
    return replace(PLAIN, outputs=(Output("d", value),))


EACH = {"scalar": "all of D", "row": "each row", "column": "each column", "matrix": "each element"}


def meaning_of(epilogue: Epilogue, tensor: str) -> str:
    """Return what a tensor is in an epilogue, in words: ``a factor for each row``."""
    named = any(step.name == tensor for step in epilogue.steps)
    said = OPERATIONS[tensor].meaning if named else ""
    return said or f"{'a factor' if named else 'a number'} for {EACH[Load(tensor).operand]}"


# --- a list of operations


@dataclass(frozen=True)
class Listed:
    """An epilogue in the form of a list: D = ops(alpha * A @ B + beta * C)."""

    alpha: float = 1.0
    beta: float = 1.0
    """Of C; it has no meaning where the operation ``residual`` adds C."""
    ops: tuple[str, ...] = ()
    """What is done to alpha * A @ B + beta * C, in order."""
    parameters: tuple[OpParameter, ...] = ()
    """Of the operations, every one with a value."""

    @property
    def lists_c(self) -> bool:
        """Whether C is added by one of the operations, and not to the product."""
        return any(OPERATIONS[op].operand == "matrix" for op in self.ops)

    def lowered(self, *, c: bool) -> Epilogue:
        """Return the list as an expression; ``c`` says whether the matmul has a C."""
        value = times(Number(self.alpha), Acc())
        if c and not self.lists_c:
            value = plus(value, times(Number(self.beta), Load(MATRIX)))
        for op in self.ops:
            value = self._applied(OPERATIONS[op], value)
        return d_is(value)

    def _applied(self, operation: Operation, value: Value) -> Value:
        name = operation.name
        if operation.function:
            return Call(name, (value,), parameters_of(name, self.parameters))
        operand = Load(MATRIX if operation.operand == "matrix" else name)
        return times(value, operand) if operation.effect == TIMES else plus(value, operand)


NOTHING_LISTED = Listed()


def parameters_of(op: str, parameters: Iterable[OpParameter]) -> tuple[OpParameter, ...]:
    """Return the parameters of one operation."""
    return tuple(each for each in parameters if each.op == op)


# --- an expression in words


OPEN_RANK, SUM_RANK, PRODUCT_RANK, ATOM_RANK = range(4)
"""How tightly the last operator of a text binds: nothing, a sum, a product, or what needs no brackets."""

Spelled: TypeAlias = tuple[str, int]
"""A text and how tightly its last operator binds."""


class Spelling(Algebra[Spelled]):
    """How a value is written: here as a spec has it; other languages spell what differs."""

    def accumulator(self, name: str) -> Spelled:
        """Return the name of an accumulator."""
        return name, ATOM_RANK

    def load(self, load: Load) -> Spelled:
        """Return the name of a tensor."""
        return load.tensor, ATOM_RANK

    def number(self, value: float) -> Spelled:
        """Return a number as Python reads it, a whole one without its fraction."""
        return repr(value).removesuffix(".0"), ATOM_RANK if value >= 0 else PRODUCT_RANK

    def stated(self, call: Call) -> Spelled:
        """Return the number of a product or a sum, which may have a name of its own there."""
        return next(self.number(each.value) for each in call.args if isinstance(each, Number))

    def activation(self, call: Call, argument: Spelled) -> Spelled:
        """Return the call of an activation with its parameters."""
        stated = (f"{each.name}={self.number(each.value)[0]}" for each in call.parameters)
        return f"{call.op}({', '.join((argument[0], *stated))})", ATOM_RANK

    def call(self, call: Call, arguments: tuple[Spelled, ...]) -> Spelled:
        """Return an operation with as few brackets as keep its order."""
        if call.op in OPERATIONS:
            return self.activation(call, arguments[0])
        if call.op == TIMES and call.args[0] == Number(-1.0):
            return f"-{bracketed(arguments[1], ATOM_RANK)}", PRODUCT_RANK
        left, right = (
            self.stated(call) if isinstance(value, Number) else spelled
            for value, spelled in zip(call.args, arguments, strict=True)
        )
        if call.op == TIMES:
            factor = bracketed(right, ATOM_RANK)
            return f"{bracketed(left, PRODUCT_RANK)} * {factor}", PRODUCT_RANK
        first, (second, rank) = bracketed(left, SUM_RANK), right
        if rank == PRODUCT_RANK and second.startswith("-"):
            return f"{first} - {second[1:]}", SUM_RANK
        return f"{first} + {bracketed(right, PRODUCT_RANK)}", SUM_RANK

    def cast(self, cast: Cast, argument: Spelled) -> Spelled:
        """Return a conversion, by the name of the type."""
        return f"{cast.dtype.name}({argument[0]})", ATOM_RANK


def bracketed(spelled: Spelled, rank: int) -> str:
    """Return a text, in brackets unless its last operator binds as tightly as `rank` says."""
    text, own = spelled
    return text if own >= rank else f"({text})"


def written(value: Value) -> str:
    """Return a value as a spec has it: ``silu(acc * row_scale) + column_bias``."""
    return fold(value, Spelling())[0]


def listed_steps(epilogue: Epilogue, *, lists_c: bool) -> tuple[Step, ...]:
    """Return what is done to alpha * A @ B + beta * C; with ``lists_c`` also that C is added to the product.

    The steps are those of a chain.
    """
    renamed = (
        Step("residual", step.call) if step.name == "c" and lists_c else step for step in epilogue.steps
    )
    return tuple(step for step in renamed if step.name not in ("alpha", "c"))


def described(step: Step) -> str:
    """Return a step as an item of a list of what is done to the product."""
    if step.operation:
        return step.operation.text
    return f"{step.name} {written(step.operand)}" if step.operand else written(step.call)
