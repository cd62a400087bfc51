"""Why kernels with some features cannot be in a library: each folder of a feature says it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, cast

from gemmgen.features.registry import sides
from gemmgen.problem import Matmul

_OF_FEATURES: Final = tuple(cast("Callable[[Matmul], str | None]", side.why_not) for side in sides("library"))


def reasons_against(problem: Matmul) -> Iterator[str]:
    """Yield why no library has kernels of a matmul, in words that follow those about a file."""
    return (why for why_not in _OF_FEATURES if (why := why_not(problem)))
