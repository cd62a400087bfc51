"""Rows and columns of tensors as they lie in memory, as numbers times extents of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument
from gemmgen.render.arguments import passed_as
from gemmgen.render.wrapper import Wrapper


@dataclass(frozen=True)
class MemoryExtent:
    """Rows or columns in memory: `times` an extent of the problem, in blocks of `per`, rounded up."""

    axis: Literal["m", "n", "k"]
    times: int = 1
    per: int = 1
    of_groups: bool = False
    """True if each group has as many, one group after the other."""

    @property
    def words(self) -> str:
        """The extent in words: ``G x M``, ``2 x N``, ``ceil(2N / 128)``."""
        axis = self.axis.upper()
        if self.per > 1:
            counted = f"ceil({self.times if self.times > 1 else ''}{axis} / {self.per})"
        else:
            counted = f"{self.times} x {axis}" if self.times > 1 else axis
        return f"G x {counted}" if self.of_groups else counted


def axes_in_memory(plan: Kernel, argument: Argument) -> str:
    """Return the axes of an argument as it lies in memory, a letter each as in the wrapper's table."""
    wrapper = Wrapper(plan)
    axes = wrapper.axes_of(argument)
    turned = passed_as(argument.name) in wrapper.transposed
    return f"{axes[:-2]}{axes[-1]}{axes[-2]}" if turned else axes


def extents_of(plan: Kernel, argument: Argument) -> tuple[MemoryExtent, ...]:
    """Return the rows and columns of an argument in memory, or the elements of a vector.

    Matrices and vectors of groups follow one another, and all their rows, or elements, count.
    """
    problem, axes = plan.problem, axes_in_memory(plan, argument)
    of_groups, first, *rest = axes.startswith("G"), *axes.removeprefix("G")
    of_k = problem.a.scale.vector if problem.a.scale else 1
    of_b = problem.b.scale.format.rows if problem.b.scale else 1
    of_d = problem.d_scale.vector if problem.d_scale else 1
    extents = {
        "M": MemoryExtent("m"),
        "N": MemoryExtent("n"),
        "W": MemoryExtent("n", problem.b_blocks),
        "K": MemoryExtent("k"),
        "B": MemoryExtent("k", per=of_k),
        "C": MemoryExtent("n", problem.b_blocks, of_b),
        "S": MemoryExtent("n", per=of_d),
    }
    of_first = extents[first]
    return (
        MemoryExtent(of_first.axis, of_first.times, of_first.per, of_groups),
        *(extents[axis] for axis in rest),
    )
