"""A call of torch: in words, and bound to the tensors of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gemmgen.problem.dtype import DType
from gemmgen.problem.inputs import Inputs

Call = Callable[[Inputs, Tensor], Callable[[], Tensor]]
"""Returns, for some inputs and a d [M, N], what enqueues the result and returns it: d, or another tensor
where it cannot write d."""


@dataclass(frozen=True)
class Head:
    """A call of torch."""

    text: str
    product: DType
    """Type of what it returns; d itself where that is D's type."""
    bind: Call
    taken: int
    """How many of the spec's terms it takes in."""


def call_text(name: str, arguments: tuple[str, ...], keywords: Mapping[str, Any], into_d: bool) -> str:
    """Return the call as it is written in Python."""
    shown = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in keywords.items()
    ]
    return f"torch.{name}({', '.join((*arguments, *shown, *(('out=d',) if into_d else ())))})"
