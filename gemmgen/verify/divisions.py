"""Checks of kernels that multiply groups of rows, with other divisions of the rows than all other checks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gemmgen.numerics.case import Case, numbers
from gemmgen.numerics.inputs import touched
from gemmgen.numerics.reference import Check
from gemmgen.problem.groups import Groups


def divisions(groups: Groups, m: int) -> Iterator[tuple[str, list[int]]]:
    """Yield divisions of M rows with their names: the numbers that a call is passed in its int32 tensor."""
    count, half = groups.count, groups.count // 2
    if groups.apart:
        yield "no rows", [0] * count
        yield "all rows", [m] * count
        yield "one group of one row", [0] * half + [min(1, m)] + [0] * (count - half - 1)
        yield "more rows than there are", [m + 1000] * count
        return
    yield "no rows", [0] * count
    yield "all rows in the first group", [m] * count
    yield "all rows in the last group", [0] * (count - 1) + [m]
    yield "rows behind the last group", [m // 2 * (each + 1) // count for each in range(count)]
    yield "an end behind the last row", [*[m // 2] * (count - 1), m + 1000]


def other_divisions(case: Case) -> Iterator[Check]:
    """Check that rows of groups are right for each of `divisions`, and that no other element is written."""
    groups = case.problem.groups
    assert groups is not None
    assert groups.counts is not None
    for name, each in divisions(groups, case.shape[0]):
        inputs = case.inputs()
        divided: Tensor = inputs.extras[groups.counts]
        divided.copy_(torch.tensor(each, dtype=divided.dtype))
        out = case.output(guarded=True)
        found = inputs.call(case.matmul, out.view if case.takes_out else None)
        rows = inputs.computed_rows(case.problem, found)
        if case.takes_out:
            outside = out.written - touched(rows)
            yield case.check(f"{name}: elements of no group written", outside, 0)
        if len(rows):
            yield from numbers(case, name, found, inputs)
