"""The sides of a Hopper kernel's matrix instruction: which operand of D each of them multiplies.

``swap_ab`` is decided here alone: what lies along the rows and along the columns of the instruction follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, TypeVar

from gemmgen.spec.words import MmaRows, Source

T = TypeVar("T")

LINES: dict[MmaRows, str] = {"m": "rows", "n": "columns"}
"""The lines of D that are counted along a dimension."""


@dataclass(frozen=True)
class Side:
    """One operand of the instruction."""

    tensor: Literal["a", "b"]
    """The matrix that it is a tile of."""
    axis: MmaRows
    """The dimension of D along it."""
    source: Source
    """Where the instruction reads it; wgmma reads only its left side from registers."""

    @property
    def lines(self) -> str:
        """The lines of D along it: ``rows`` or ``columns``."""
        return LINES[self.axis]


@dataclass(frozen=True)
class Mma:
    """The operands of the instruction: left along its rows, right along its columns."""

    left: Side
    right: Side

    @cached_property
    def reads_left(self) -> bool:
        """True if threads bring the left operand to registers, from which the instruction takes it."""
        return self.left.source == "registers"

    @cached_property
    def swap_ab(self) -> bool:
        """True if it multiplies B by A, so that its sums are D transposed."""
        return self.left.tensor == "b"

    def source_of(self, tensor: str) -> Source:
        """Return where the instruction reads ``a`` or ``b``."""
        return self.left.source if self.left.tensor == tensor else self.right.source

    def across(self, of_m: T, of_n: T) -> tuple[T, T]:
        """Return the values along the instruction's rows and columns for the values along D's M and N."""
        return (of_n, of_m) if self.swap_ab else (of_m, of_n)

    def of_d(self, of_rows: T, of_columns: T) -> tuple[T, T]:
        """Return the values along D's M and N for the values along the instruction's rows and columns."""
        return (of_columns, of_rows) if self.swap_ab else (of_rows, of_columns)


@cache
def mma_of(a_source: Source, b_source: Source = "shared", *, swap_ab: bool) -> Mma:
    """Return the sides of an instruction that reads A and B from these: B is the left one with swap-AB."""
    a, b = Side("a", "m", a_source), Side("b", "n", b_source)
    return Mma(b, a) if swap_ab else Mma(a, b)
