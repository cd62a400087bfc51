"""Work of a function as a count, which is the same on a fast and a slow machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


def calls_of(function: Callable[[], object]) -> int:
    """Return how many Python functions are called, or resumed as generators, in a call of a function.

    The function itself is one of them. It is called once before that, so that imports and caches are no part
    of the count. No garbage is collected meanwhile, because finalizers are functions too.
    """
    function()
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    gc.collect()
    gc.disable()
    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count
