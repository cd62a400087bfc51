"""Epilogues as expressions: five kinds of nodes, the one walk over them, and sums and products of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Literal, Protocol, TypeAlias, TypeVar

from gemmgen.hardware import DType
from gemmgen.problem.operations import OPERATIONS, OpParameter

ACCUMULATOR = "acc"
"""Name of the accumulator, if there is one."""
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
    """A tensor in memory beside A and B: C, or an operand that the table of operations names."""

    kind: ClassVar[str] = "load"
    tensor: str
    accumulator: str = ""
    """The accumulator whose columns of B have the elements of an operand along columns that are read; empty
    if each column of D has one element.
    """
    block: str = ""
    """The matrix that is read of a C [M, 2N] of two; empty if C is [M, N]."""

    @property
    def operand(self) -> Literal["none", "scalar", "row", "column", "matrix"]:
        """Its extent: one number, one for each row or column of D, or one for each element."""
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
    """Parameters of an activation, each with a value."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A value rounded to an element type, beyond whose range it saturates where that is one of 8 bits."""

    kind: ClassVar[str] = "cast"
    dtype: DType
    value: Value


Value: TypeAlias = Acc | Load | Number | Call | Cast

T = TypeVar("T")


class Algebra(Protocol[T]):
    """The value of each kind of node, given the values of its arguments."""

    def accumulator(self, name: str) -> T:
        """Return the value of an accumulator."""
        ...

    def load(self, load: Load) -> T:
        """Return the value of a load."""
        ...

    def number(self, value: float) -> T:
        """Return the value of a number."""
        ...

    def call(self, call: Call, arguments: tuple[T, ...]) -> T:
        """Return what an operation makes of its arguments."""
        ...

    def cast(self, cast: Cast, argument: T) -> T:
        """Return what rounding makes of its argument."""
        ...


def fold(value: Value, algebra: Algebra[T], known: dict[Value, T] | None = None) -> T:
    """Return the value of an expression in an algebra: arguments first, left to right, equal nodes once.

    ``known`` holds the values of nodes, and receives new ones: several outputs can share it.
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


class Computed(Algebra[bool]):
    """True if a value depends on an accumulator."""

    def accumulator(self, name: str) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    def load(self, load: Load) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def number(self, value: float) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def call(self, call: Call, arguments: tuple[bool, ...]) -> bool:  # noqa: ARG002
        """Return True if an argument depends on an accumulator."""
        return any(arguments)

    def cast(self, cast: Cast, argument: bool) -> bool:  # noqa: ARG002
        """Return True if the argument depends on an accumulator."""
        return argument


def is_computed(value: Value) -> bool:
    """Return True if a value depends on an accumulator; others are loaded or computed from loaded values."""
    return fold(value, Computed())


class _Sums(Algebra[tuple[str, ...]]):
    """The accumulators of a value, each once, in the order of use."""

    def accumulator(self, name: str) -> tuple[str, ...]:
        return (name,)

    def load(self, load: Load) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def number(self, value: float) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def call(self, call: Call, arguments: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:  # noqa: ARG002
        return tuple(dict.fromkeys(chain.from_iterable(arguments)))

    def cast(self, cast: Cast, argument: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002
        return argument


def sums_in(value: Value) -> tuple[str, ...]:
    """Return the names of the accumulators that a value depends on, each once, in the order of use."""
    return fold(value, _Sums())


class _Loads(Algebra[tuple[Load, ...]]):
    """The loads of a value, each once, in the order of use."""

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
    """Return the loads of a value, each once, in the order of use."""
    return fold(value, _Loads())


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
