"""The docstring of a module's `matmul`: the formula, the tensors that it takes, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmgen.plan.axes import axes_in_memory, axes_of, shown
from gemmgen.problem import Gradient, gradients_of
from gemmgen.problem.epilogue import meaning_of
from gemmgen.render.launching import LaunchView
from gemmgen.render.overview import Formula
from gemmgen.render.side import Sides


@dataclass(frozen=True)
class MatmulDocs(LaunchView):
    """The docstring of one plan's `matmul` as its template sees it."""

    sides: Sides = field(kw_only=True)
    """The sides of the plan's features."""

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """The gradients that the backward multiplies; empty without a backward."""
        return gradients_of(self.plan.problem)

    @property
    def formula(self) -> Formula:
        """The formula of D."""
        return Formula(self.plan.request)

    def documented(self, *, workspace: bool) -> tuple[str, ...]:
        """Return the parameters in the order of the docstring, with or without the workspace."""
        inputs = sorted(self.inputs, key="tensor_scale".__eq__)  # the factor of all of D comes last
        return (*inputs, *(("workspace",) if workspace else ()), "out", *self.written)

    def typed(self, name: str) -> str:
        """Return the axes of an argument of the kernel as a caller passes it, and its type."""
        argument = self.plan.argument(name)
        return f"{shown(axes_of(self.plan.problem, argument))}, {argument.dtype.torch}"

    def in_memory(self, name: str) -> str:
        """Return the axes of an argument of the kernel as it lies in memory."""
        return shown(axes_in_memory(self.plan.problem, self.plan.argument(name)))

    def turn(self, name: str) -> str:
        """Return the member of torch's tensors that is the transposed view of an argument."""
        return "mT" if len(axes_of(self.plan.problem, self.plan.argument(name))) > 2 else "T"

    def meaning(self, name: str) -> str:
        """Return the meaning of an operand of the epilogue."""
        return meaning_of(self.plan.problem.epilogue, name)
