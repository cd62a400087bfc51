"""The axes of a kernel's tensors as words, for modules and messages, and their extents by M, N and K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from gemmgen.plan.roles import Argument
from gemmgen.problem.matmul import Matmul


class Axis(StrEnum):
    """A dimension of a tensor: tensors with the same axis have the same extent.

    The values are the words of ARGUMENTS of a module. ``AXES`` of gemmgen_launch.py says what each counts.
    """

    M = "M"
    N = "N"
    K = "K"
    ONE = "1"
    GROUPS = "groups"
    HALF_K = "K / 2"
    TWO_N = "2N"
    A_ROWS = "A rows"
    D_ROWS = "D rows"
    K_BLOCKS = "K blocks"
    N_BLOCKS = "N blocks"
    D_BLOCKS = "D blocks"


Axes = tuple[Axis, ...]
"""The axes of a tensor, the slowest one first."""


def shown(axes: Sequence[str]) -> str:
    """Return axes as docstrings and messages show them: ``[groups, M, K]``."""
    return f"[{', '.join(axes)}]"


def axes_of(problem: Matmul, argument: Argument) -> Axes:
    """Return the axes of a tensor as a caller passes it; memory for sums has none."""
    match argument.kind:
        case "scalar":
            return (Axis.ONE,)
        case "groups":
            return (Axis.GROUPS,)
        case "row_index":
            return (Axis.M,)
        case "d_scales":
            return (*_first(problem, "d"), Axis.M, Axis.D_BLOCKS)
        case "block_scales" | "tile_scales":
            matrix = "a" if argument.tensor == "a_scale" else "b"
            rows = Axis.M if matrix == "a" else Axis.TWO_N if problem.gated else Axis.N
            rows = Axis.N_BLOCKS if argument.kind == "tile_scales" else rows
            return (*_first(problem, matrix), rows, Axis.K_BLOCKS)
        case "vector" | "group_vector":
            return _axes_of_vector(problem, argument)
        case "matrix" | "address":
            return _axes_of_matrix(problem, argument.tensor)
        case "workspace":
            return ()


def _axes_of_vector(problem: Matmul, argument: Argument) -> Axes:
    groups = problem.groups
    first = (Axis.GROUPS,) * bool(groups and (groups.apart or argument.along == "n"))
    if argument.along == "m":
        return (*first, Axis.M)
    return (*first, Axis.TWO_N if argument.name in problem.parted_vectors else Axis.N)


def _axes_of_matrix(problem: Matmul, tensor: str) -> Axes:
    match tensor:
        case "a":
            rows = Axis.A_ROWS if problem.gathers_a else Axis.M
            return (*_first(problem, "a"), rows, _k_axis(problem, "a"))
        case "b":
            columns = Axis.TWO_N if problem.gated else Axis.N
            return (*_first(problem, "b"), _k_axis(problem, "b"), columns)
        case "saved":
            return (*_first(problem, "d"), Axis.M, Axis.TWO_N)
        case _:
            rows = Axis.D_ROWS if tensor == "d" and problem.scatters_d else Axis.M
            columns = Axis.TWO_N if problem.d_blocks > 1 and tensor in ("c", "d") else Axis.N
            return (*_first(problem, "d"), rows, columns)


def _first(problem: Matmul, matrix: Literal["a", "b", "d"]) -> Axes:
    """Return the axis of a matrix before its rows and columns; none without groups."""
    groups = problem.groups
    if groups is None or not groups.spans(matrix):
        return ()
    return (Axis.GROUPS if groups.stacks(matrix) else Axis.ONE,)


def _k_axis(problem: Matmul, matrix: Literal["a", "b"]) -> Axis:
    return Axis.HALF_K if problem.operand(matrix).dtype.elements_per_byte > 1 else Axis.K


def is_transposed(problem: Matmul, argument: Argument) -> bool:
    """Return True if a caller passes a tensor as the transposed view of the rows in memory."""
    match argument.kind:
        case "matrix":
            of_a = argument.tensor == "a" and problem.a.major == "mn"
            return of_a or (argument.tensor == "b" and problem.b.major == "k")
        case "block_scales":
            return not problem.packs_scales
        case kind:
            return kind == "d_scales"


def axes_in_memory(problem: Matmul, argument: Argument) -> Axes:
    """Return the axes of a tensor in the order of memory: the last one is contiguous."""
    axes = axes_of(problem, argument)
    if not is_transposed(problem, argument):
        return axes
    *others, rows, columns = axes
    return (*others, columns, rows)


# --- extents


@dataclass(frozen=True)
class AxisExtent:
    """The extent of an axis: `times` M, N or K of a problem, in blocks of `per`, rounded up."""

    of: Literal["m", "n", "k"]
    times: int = 1
    per: int = 1
    of_groups: bool = False
    """True if each group has as many, one group after the other."""

    @property
    def words(self) -> str:
        """The extent in words: ``G x M``, ``2 x N``, ``ceil(2N / 128)``."""
        of = self.of.upper()
        if self.per > 1:
            counted = f"ceil({self.times if self.times > 1 else ''}{of} / {self.per})"
        else:
            counted = f"{self.times} x {of}" if self.times > 1 else of
        return f"G x {counted}" if self.of_groups else counted


def extent_of(problem: Matmul, axis: Axis) -> AxisExtent:
    """Return the extent of an axis; raises KeyError for one that M, N and K do not say, such as groups."""
    of_k = next((each.scale_k for each in (problem.a, problem.b) if each.scale), 1)
    of_b = problem.b.scale.format.rows if problem.b.scale else 1
    of_d = problem.d_scale.vector if problem.d_scale else 1
    return {
        Axis.M: AxisExtent("m"),
        Axis.N: AxisExtent("n"),
        Axis.K: AxisExtent("k"),
        Axis.HALF_K: AxisExtent("k", per=2),
        Axis.TWO_N: AxisExtent("n", 2),
        Axis.K_BLOCKS: AxisExtent("k", per=of_k),
        Axis.N_BLOCKS: AxisExtent("n", problem.b_blocks, of_b),
        Axis.D_BLOCKS: AxisExtent("n", per=of_d),
    }[axis]


def extents_in_memory(problem: Matmul, argument: Argument) -> tuple[AxisExtent, ...]:
    """Return the rows and columns of an argument in memory, or the elements of a vector.

    Matrices and vectors of groups follow one another, and all their rows, or elements, count.
    """
    axes = axes_in_memory(problem, argument)
    of_groups = axes[0] == Axis.GROUPS
    first, *rest = (extent_of(problem, axis) for axis in axes[of_groups:])
    return (replace(first, of_groups=of_groups), *rest)
