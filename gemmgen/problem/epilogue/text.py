"""Epilogues in words: the expression as text, and each step for docstrings."""

from __future__ import annotations

from typing import TypeAlias

from gemmgen.problem.epilogue.nodes import TIMES, Algebra, Call, Cast, Load, Number, Value, fold
from gemmgen.problem.epilogue.steps import Epilogue, Step
from gemmgen.problem.operations import OPERATIONS

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
        """Return the name of a tensor, or of the matrix in it that is read."""
        return load.block or load.tensor, ATOM_RANK

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


def written_d(epilogue: Epilogue) -> str:
    """Return D as a spec has it: its value, or the values of its matrices in brackets."""
    values = [written(value) for value in epilogue.values]
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def described(step: Step) -> str:
    """Return a step as an item of the list of operations on the product."""
    if step.operation:
        return step.operation.text
    return f"{step.name} {written(step.operand)}" if step.operand else written(step.call)
