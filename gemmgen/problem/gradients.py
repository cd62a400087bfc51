"""The gradients of a matmul, each a matmul of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

from gemmgen.problem.groups import Groups
from gemmgen.problem.matmul import Matmul

OPERANDS: Final = ("a", "b")
"""Operands whose gradients a kernel computes."""
AXES: Final[Mapping[str, str]] = MappingProxyType({"a": "mk", "b": "kn", "d": "mn"})
"""The axes of each matrix, as they are written."""


@dataclass(frozen=True)
class Gradient:
    """The gradient of A or B of a problem, as a product of dD and the other operand.

    For D = A @ B the gradient of A is dD @ B.T, and the gradient of B is A.T @ dD. Each is computed as its
    operand lies in memory, so that the gradient of a parameter is dense as the parameter is, and transposes
    are views: no matrix is copied.

    With groups of rows, the gradient of A is a product of the same groups of rows. The gradient of B adds up
    the rows, which are groups of K there: each has the gradient of its own B.
    """

    operand: str
    """``a`` or ``b``."""
    problem: Matmul

    @cached_property
    def lies(self) -> Mapping[str, str]:
        """The axes of each matrix as it lies in memory: the contiguous one last."""
        a, b = self.problem.a.major, self.problem.b.major
        return {"a": "mk" if a == "k" else "km", "b": "nk" if b == "k" else "kn", "d": "mn"}

    @cached_property
    def axes(self) -> tuple[str, str, str]:
        """The axes of the problem's that are M, N and K of the product."""
        rows, columns = self.lies[self.operand]
        return rows, columns, "n" if self.operand == "a" else "m"

    @cached_property
    def factors(self) -> tuple[str, str]:
        """The matrices that are multiplied: ``d`` stands for the gradient of D."""
        other = OPERANDS[self.operand == "a"]
        return ("d", other) if self.axes[0] in AXES["d"] else (other, "d")

    @cached_property
    def transposed(self) -> tuple[bool, bool, bool]:
        """For the two factors and the gradient: True if it is a transposed view of the matrix in memory."""
        m, n, k = self.axes
        (left, right), wanted = self.factors, AXES[self.operand]
        return AXES[left] != m + k, AXES[right] != k + n, wanted != m + n

    @property
    def groups(self) -> Groups | None:
        """The groups of the product; None if there is one A and one B."""
        groups = self.problem.groups
        if groups is None or self.operand == "a":
            return groups
        return replace(groups, of="k_offsets")

    @property
    def leaves_rows(self) -> bool:
        """True if the product leaves rows of no group as they are, in which the gradient is zero."""
        return self.groups is not None and not self.groups.divides_k

    def turn(self, matrix: str, *, transposed: bool) -> str:
        """Return the text that follows the name of a matrix in Python, ``.T``, if it is transposed."""
        is_stacked = matrix == "b" and self.problem.groups is not None
        return (".mT" if is_stacked else ".T") * transposed

    @property
    def majors(self) -> tuple[str, str]:
        """Which dimension of each factor is contiguous in memory, as specs have it."""
        left, right = ("k" if self.lies[factor][1] == self.axes[2] else "mn" for factor in self.factors)
        return left, right

    @property
    def formula(self) -> str:
        """The formula for titles: ``dD @ B.T``."""
        names = {"a": "A", "b": "B", "d": "dD"}
        left, right = (
            names[factor] + self.turn(factor, transposed=turned)
            for factor, turned in zip(self.factors, self.transposed[:2], strict=True)
        )
        return f"{left} @ {right}"


def gradients_of(problem: Matmul) -> tuple[Gradient, ...]:
    """Return the gradients of A and B of a problem; none without a backward."""
    return tuple(Gradient(operand, problem) for operand in OPERANDS) if problem.backward else ()
