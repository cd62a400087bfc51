"""Epilogues that keep zeros: D is zero wherever A @ B and C are."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.problem.epilogue.nodes import TIMES, Algebra, Call, Cast, Load, fold, loads_of
from gemmgen.problem.epilogue.steps import Epilogue
from gemmgen.problem.operations import OPERATIONS


@dataclass(frozen=True)
class _Zero(Algebra[bool]):
    """True if a value is 0 where the sums are 0, whatever finite numbers are loaded."""

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
        """Return True if no factor can be infinite: its product with 0 would be NaN."""
        return all(self.finite_scalars and load.operand == "scalar" for load in loads_of(product))

    def cast(self, cast: Cast, argument: bool) -> bool:  # noqa: ARG002
        return argument


def keeps_zeros(epilogue: Epilogue, *, finite_scalars: bool) -> bool:
    """Return True if D is 0 wherever the sums are; with ``finite_scalars`` scales are known to be finite."""
    return all(fold(value, _Zero(finite_scalars)) for value in epilogue.values)
