"""The expression of D: from its text to a value, or to an error with its place.

Python's own parser reads the text, and `_Reader` takes only the nodes that are listed there.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace

from gemmgen.problem.epilogue import (
    ACCUMULATOR,
    MATRIX,
    Acc,
    Call,
    Computed,
    Load,
    Number,
    Value,
    fold,
    is_computed,
    minus,
    plus,
    sums_in,
    times,
)
from gemmgen.problem.operations import (
    ACTIVATIONS,
    DERIVATIVES,
    OPERATIONS,
    Operation,
    OpParameter,
    derivative_name,
)
from gemmgen.spec.diagnostics import listing, meant, quoted
from gemmgen.spec.hints import gate_hint

MAX_CHARACTERS = 500
MAX_DEPTH = 32
"""Levels of nested operations; a sum of n terms has n levels."""
_FOREIGN = re.compile(r"[^A-Za-z0-9_ \n.,=+\-*()]")
_OPERATORS: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: plus,
    ast.Sub: minus,
    ast.Mult: times,
}


class ExpressionError(Exception):
    """Text that is no expression of D."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        """Characters of the text before the one that is wrong."""


def parsed(
    text: str, accumulators: tuple[str, ...] = (ACCUMULATOR,), c_blocks: tuple[str, ...] = ()
) -> Value:
    """Return the value that a text says: ``silu(acc * row_scale) + column_bias``.

    `accumulators` are the names of the sums, `c_blocks` the names of the matrices in C, if it has several.

    Raises:
        ExpressionError: The text is none, has something that does not belong there, or does not use each of
            the sums.
    """
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"more than {MAX_CHARACTERS} characters, the limit", MAX_CHARACTERS)
    if foreign := _FOREIGN.search(text):
        raise ExpressionError(_of_foreign(foreign[0], accumulators), foreign.start())
    indent = len(text) - len(text.lstrip())
    line = text.strip().replace("\n", " ")
    if not line:
        raise ExpressionError(f"nothing is said, expected {_may_stand(accumulators)}", 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numbers that run into words, which no name does
            body = ast.parse(line, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        found = getattr(error, "offset", None) or len(line) + 1  # Python has 0 for the end
        message = f"the expression breaks off or goes wrong here, expected {_may_stand(accumulators)}"
        raise ExpressionError(message, indent + min(found - 1, len(line))) from None
    value = _Reader(indent, accumulators, c_blocks).value(body, 0)
    if accumulators == (ACCUMULATOR,):
        if not is_computed(value):
            raise ExpressionError("D does not use the accumulator; use 'acc'", indent)
        return value
    known: dict[Value, bool] = {}
    fold(value, Computed(), known)
    if unused := next((name for name in accumulators if Acc(name) not in known), None):
        raise ExpressionError(f"D does not use the accumulator '{unused}'; use '{unused}'", indent)
    return _owned(value, "")


def _owned(value: Value, accumulator: str) -> Value:
    """Return a value whose column operands name the accumulator that they are added to or multiplied with.

    An operand of a step on one accumulator's sums is its own; `accumulator` is the one of the step around a
    value, and empty if it depends on both.
    """
    match value:
        case Load() if value.operand == "column":
            return replace(value, accumulator=accumulator)
        case Call():
            found = sums_in(value)
            own = found[0] if len(found) == 1 else "" if found else accumulator
            return replace(value, args=tuple(_owned(each, own) for each in value.args))
        case _:
            return value


def _may_stand(accumulators: tuple[str, ...]) -> str:
    """Return in words what an expression of these sums consists of."""
    return f"the sums {' and '.join(accumulators)}, tensors, numbers, +, -, *, brackets and operations"


def _of_foreign(character: str, accumulators: tuple[str, ...]) -> str:
    """Return the error for a character that no expression has."""
    found = f"found {quoted(character)}, expected {_may_stand(accumulators)}"
    return f"{found}; multiply by the reciprocal of a number" if character == "/" else found


class _Reader:
    """Makes values of Python's nodes; ``indent`` is where those begin in the text."""

    def __init__(self, indent: int, accumulators: tuple[str, ...], c_blocks: tuple[str, ...]) -> None:
        self._indent = indent
        self._accumulators = accumulators
        self._c_blocks = c_blocks

    def value(self, node: ast.expr, depth: int) -> Value:
        """Return the value of a node at a depth.

        Raises ExpressionError for a node that an expression of D does not have.
        """
        if depth > MAX_DEPTH:
            raise self._error(node, f"operations are nested more than {MAX_DEPTH} levels deep")
        match node:
            case ast.Name(name):
                return self._named(node, name)
            case ast.Constant(int() | float() as number) if not isinstance(number, bool):
                return self._number(node, number)
            case ast.UnaryOp(ast.UAdd(), operand):
                return self.value(operand, depth + 1)
            case ast.UnaryOp(ast.USub(), operand):
                return times(Number(-1.0), self.value(operand, depth + 1))
            case ast.BinOp(left, operator, right) if make := _OPERATORS.get(type(operator)):
                return make(self.value(left, depth + 1), self.value(right, depth + 1))
            case ast.Call(ast.Name() as function, [argument], keywords):
                operation = self._operation(function)
                return self._applied(node, operation, self.value(argument, depth + 1), keywords)
            case ast.Call(ast.Name() as function, arguments):
                name = self._operation(function).name
                raise self._error(node, f"{name} takes one value, found {len(arguments)}")
            case _:
                found = quoted(ast.unparse(node))
                raise self._error(node, f"found {found}, expected {_may_stand(self._accumulators)}")

    def _error(self, node: ast.expr | ast.keyword, message: str) -> ExpressionError:
        return ExpressionError(message, self._indent + node.col_offset)

    def _named(self, node: ast.Name, name: str) -> Value:
        if name in self._accumulators:
            return Acc(name)
        if name in self._c_blocks:
            return Load(MATRIX, block=name)
        others = (row.name for row in OPERATIONS.values() if row.operand not in ("none", "matrix"))
        tensors = (*(self._c_blocks or (MATRIX,)), *others)
        if name in tensors:
            return Load(name)
        if name in (*ACTIVATIONS, *DERIVATIVES):
            raise self._error(node, f"{name} is an operation; write {name}({self._accumulators[0]})")
        known = (*self._accumulators, *tensors)
        if name == "residual":
            hint = "; did you mean c?"
        elif name in ("gate", "up") and len(self._accumulators) == 1:
            hint = "; two sums need names, as epilogue.accumulators: [gate, up]"
        else:
            hint = meant(name, known)
        raise self._error(node, f"unknown name {quoted(name)}, the names are {listing(known, 'and')}{hint}")

    def _number(self, node: ast.Constant, number: float) -> Number:
        try:
            value = float(number)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise self._error(node, "expected a finite number")
        return Number(value)

    def _operation(self, node: ast.Name) -> Operation:
        name = node.id
        if name in (*ACTIVATIONS, *DERIVATIVES):
            return OPERATIONS[name]
        if name in (*self._c_blocks, *self._accumulators, MATRIX, *OPERATIONS):
            raise self._error(node, f"{name} is no operation; multiply by it with *, or add it with +")
        known = listing(tuple(ACTIVATIONS), "and")
        hint = gate_hint(name, self._accumulators) or meant(name, (*ACTIVATIONS, *DERIVATIVES))
        if name in ("grad", "derivative"):
            hint = f"; the derivative of silu is {derivative_name('silu')}"
        raise self._error(node, f"unknown operation {quoted(name)}, the operations are {known}{hint}")

    def _applied(
        self, node: ast.Call, operation: Operation, argument: Value, keywords: list[ast.keyword]
    ) -> Call:
        if isinstance(argument, Number):
            raise self._error(node, f"{operation.name} of a number is a number; write that")
        stated = {each.arg or "**": each for each in keywords}
        rows = {row.name: row for row in operation.parameters}
        for name, keyword in stated.items():
            if name not in rows:
                has = f"its parameters are {listing(tuple(rows), 'and')}" if rows else "it has no parameters"
                raise self._error(keyword, f"unknown parameter {quoted(name)} of {operation.name}, {has}")
        values = {name: self._parameter(keyword) for name, keyword in stated.items()}
        for name, value in values.items():
            if not rows[name].low <= value <= rows[name].high:
                limits = f"from {rows[name].low:g} to {rows[name].high:g}"
                raise self._error(stated[name], f"expected a {name} {limits}, found {value:g}")
        parameters = (
            OpParameter(operation.name, name, values.get(name, row.default)) for name, row in rows.items()
        )
        return Call(operation.name, (argument,), tuple(parameters))

    def _parameter(self, keyword: ast.keyword) -> float:
        value = self.value(keyword.value, 0)
        if not isinstance(value, Number):
            raise self._error(keyword, "a parameter is a number")
        return value.value
