"""A call of torch that multiplies A and B of a matmul, for a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from torch import Tensor

from gemmgen.numerics.encoding import DType
from gemmgen.numerics.inputs import Inputs
from gemmgen.problem import Matmul
from gemmgen.problem.epilogue import Load

VECTORS: Final = ("row_scale", "column_scale")
"""Scales of rows and columns that ``_scaled_mm`` multiplies by."""
Call = Callable[[Inputs, Tensor], Callable[[], Tensor]]
"""Binds inputs and d [M, N]; the function that it returns enqueues the product and returns the result: d, or
another tensor if the call cannot write d.
"""


class Vectors(Protocol):
    """Row and column operands that torch cannot broadcast to D as they are passed."""

    def text(self, load: Load) -> str:
        """Return the text of an operand, as it is added to D."""
        ...

    def bind(self, load: Load, inputs: Inputs) -> Callable[[], Tensor]:
        """Return a function that returns an operand which broadcasts to D."""
        ...


@dataclass(frozen=True)
class Head:
    """A call of torch that multiplies A and B, with the terms that it includes."""

    text: str
    product: DType
    """Type of the result; the result is d if that is D's type."""
    bind: Call
    taken: int
    """Number of the spec's terms that the call includes."""
    by: str = "cuBLAS's default choice"
    """The software that multiplies, and how its algorithm is chosen."""
    operands: str | None = None
    """The operands in words; None for the words and the settings of a plain product."""
    vectors: Vectors | None = None
    """The row and column operands of the epilogue; None if they broadcast to D as they are passed."""


def terms_of(problem: Matmul) -> tuple[str, ...]:
    """Return the names of the epilogue's steps, in order; empty if the epilogue is not a chain.

    A call of torch can include only the first steps of a chain.
    """
    return problem.steps if problem.epilogue.is_chain else ()


def call_text(name: str, arguments: tuple[str, ...], keywords: Mapping[str, Any], into_d: bool) -> str:
    """Return the call as it is written in Python."""
    shown = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in keywords.items()
    ]
    return f"torch.{name}({', '.join((*arguments, *shown, *(('out=d',) if into_d else ())))})"
