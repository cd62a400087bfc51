"""Processor time as the machine takes it for which the tests' bars of time stand."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

REFERENCE_SECONDS = 0.0060
"""Of `_work` on that machine: two cores of a Xeon at some 2.5 GHz, CPython 3.11, nothing else running."""


def reference_seconds(call: Callable[[], object], *, tries: int = 3) -> float:
    """Return the least processor time of some calls, divided by how much slower this machine is.

    Other programs make a shared machine slower, and a test must not fail for that. What tests before this one
    have left in memory is hidden from the collector, from now on: a command of a user's own has none of it.
    """
    gc.collect()
    gc.freeze()
    return min(_seconds(call) / slowness() for _ in range(tries))


def slowness() -> float:
    """Return how many times the reference machine's time this one takes now; at least 1."""
    return max(1.0, min(_seconds(_work) for _ in range(5)) / REFERENCE_SECONDS)


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


@dataclass(frozen=True)
class _Point:
    row: int
    column: int
    both: tuple[int, int]


def _work() -> None:
    """What planners do: make frozen values, hash them, and add up numbers."""
    found: dict[_Point, int] = {}
    for row in range(60):
        for column in range(50):
            point = replace(_Point(row, column, (row, column)), row=row + column)
            found[point] = found.get(point, 0) + sum(x * x for x in (row, column, point.row))
