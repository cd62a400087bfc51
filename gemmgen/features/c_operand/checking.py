"""The check of a D that is written over C."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.numerics.case import Case, numbers
from gemmgen.numerics.reference import Check
from gemmgen.numerics.side import CheckGroup, Checking
from gemmgen.plan.access import TensorAccess
from gemmgen.problem import Matmul


class InPlace(Checking):
    """Checks of a matmul whose D may be the memory of C."""

    def check_groups(self) -> tuple[CheckGroup, ...]:
        """Return the group that passes C as ``out``."""
        return (CheckGroup("in place", in_place),)


def side_of(problem: Matmul) -> Checking | None:
    """Return the side of a matmul whose D may be C; None for others."""
    return InPlace() if TensorAccess(problem).d_may_be_c and problem.c == problem.d else None


def in_place(case: Case) -> Iterator[Check]:
    """Check the numbers of a D that is written over C, as sums of gradients are."""
    inputs = case.inputs()
    kept = replace(inputs, extras={**inputs.extras, "c": inputs.extras["c"].clone()})
    if case.takes_out:
        yield from numbers(case, "in place", inputs.call(case.matmul, inputs.extras["c"]), kept)
