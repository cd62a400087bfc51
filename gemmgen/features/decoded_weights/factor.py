"""The factor of a weight, which an epilogue multiplies the sums by before anything else."""

from __future__ import annotations

from gemmgen.errors import Advice
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.problem.epilogue import (
    TIMES,
    Acc,
    Algebra,
    Call,
    Cast,
    Load,
    Number,
    Spelled,
    Spelling,
    Value,
    fold,
    plus,
    times,
)
from gemmgen.problem.epilogue.text import PRODUCT_RANK
from gemmgen.problem.operations import OPERATIONS


def multiplies_first(plan: WgmmaKernel, factor: str) -> bool:
    """Return True if D depends on the sums and their factor by the products of both alone."""
    return all(fold(value, _Powers(factor)) == 0 for value in plan.problem.epilogue.values)


class _Powers(Algebra[int | None]):
    """The power of the sums in a product, less that of the factor.

    It is None of a value that depends on one of both without the other: of a sum, or of a function.
    """

    def __init__(self, factor: str) -> None:
        self._factor = factor

    def accumulator(self, name: str) -> int:  # noqa: ARG002
        return 1

    def load(self, load: Load) -> int:
        return -1 if load.tensor == self._factor else 0

    def number(self, value: float) -> int:  # noqa: ARG002
        return 0

    def call(self, call: Call, arguments: tuple[int | None, ...]) -> int | None:
        powers = [each for each in arguments if each is not None]
        if len(powers) < len(arguments):
            return None
        if call.op == TIMES or (call.op in OPERATIONS and OPERATIONS[call.op].homogeneous):
            return sum(powers)
        return None if any(powers) else 0

    def cast(self, cast: Cast, argument: int | None) -> int | None:  # noqa: ARG002
        return None if argument else argument


class _WithoutFactor(Algebra[Value]):
    """A value without the factor, in products and in sums."""

    def __init__(self, factor: str) -> None:
        self._factor = factor

    def accumulator(self, name: str) -> Value:
        return Acc(name)

    def load(self, load: Load) -> Value:
        return Number(1.0) if self._is_factor(load) else load

    def _is_factor(self, value: Value) -> bool:
        return isinstance(value, Load) and value.tensor == self._factor

    def number(self, value: float) -> Value:
        return Number(value)

    def call(self, call: Call, arguments: tuple[Value, ...]) -> Value:
        match call.op, arguments:
            case "times", (left, right):
                return times(left, right)
            case "plus", _:
                terms = (
                    Number(0.0) if self._is_factor(own) else value
                    for own, value in zip(call.args, arguments, strict=True)
                )
                return plus(*terms)
            case _:
                return Call(call.op, arguments, call.parameters)

    def cast(self, cast: Cast, argument: Value) -> Value:
        return Cast(cast.dtype, argument)


class _WithFactor(Spelling):
    """How a value is written if each accumulator is multiplied by the factor of a weight."""

    def __init__(self, factor: str) -> None:
        self._factor = factor

    def accumulator(self, name: str) -> Spelled:
        """Return the product of the accumulator and the factor."""
        return f"{name} * {self._factor}", PRODUCT_RANK


def with_factor_first(plan: WgmmaKernel, factor: str) -> Advice:
    """Return the fields of an epilogue that multiplies the accumulators by the factor of a weight first.

    A list gets the factor as its first operation. It becomes an expression if C is added before the list, or
    if an operation has parameters.
    """
    listed, c = plan.request.listed, plan.problem.c
    d = fold(fold(plan.problem.epilogue.value, _WithoutFactor(factor)), _WithFactor(factor))[0]
    if listed is None:
        return (("epilogue.d", d),)
    if not listed.parameters and (c is None or listed.lists_c):
        return (("epilogue.ops", (factor, *(op for op in listed.ops if op != factor))),)
    gone = ("epilogue.ops", "epilogue.alpha", "epilogue.beta")
    return (*((field, None) for field in gone), ("epilogue.d", d))
