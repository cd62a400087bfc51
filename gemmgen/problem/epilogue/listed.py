"""An epilogue as the list of operations that a spec has, and the expression that it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gemmgen.problem.epilogue.nodes import MATRIX, TIMES, Acc, Call, Load, Number, Value, plus, times
from gemmgen.problem.epilogue.steps import Epilogue, Step, d_is
from gemmgen.problem.operations import OPERATIONS, Operation, OpParameter


@dataclass(frozen=True)
class Listed:
    """An epilogue in the form of a list: D = ops(alpha * A @ B + beta * C)."""

    alpha: float = 1.0
    beta: float = 1.0
    """Factor of C; it has no meaning if the operation ``residual`` adds C."""
    ops: tuple[str, ...] = ()
    """Operations on alpha * A @ B + beta * C, in order."""
    parameters: tuple[OpParameter, ...] = ()
    """Parameters of the operations, each with a value."""

    @property
    def lists_c(self) -> bool:
        """True if C is added by one of the operations, and not to the product."""
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


def listed_steps(epilogue: Epilogue, *, lists_c: bool) -> tuple[Step, ...]:
    """Return the steps on alpha * A @ B + beta * C; with ``lists_c`` the sum with C is one of them.

    The steps are those of a chain.
    """
    renamed = (
        Step("residual", step.call) if step.name == "c" and lists_c else step for step in epilogue.steps
    )
    return tuple(step for step in renamed if step.name not in ("alpha", "c"))
