"""Checks of kernels that multiply groups, with other divisions of M or K than all other checks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gemmgen.features.groups.divided_rows import bounds
from gemmgen.numerics.case import Case, numbers, saved_elsewhere
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import touched
from gemmgen.numerics.reference import Check
from gemmgen.problem.groups import Groups

E4M3_NAN = 0x7F
"""The bits of a NaN of e4m3."""


def divisions(groups: Groups, m: int) -> Iterator[tuple[str, list[int]]]:
    """Yield divisions of M rows, or of K, with their names: the numbers of a call's int32 tensor."""
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
    """Check that rows of groups are right for each of `divisions`, and that no other element is written.

    If groups divide K, the K of no group holds NaN.
    """
    groups = case.problem.groups
    assert groups is not None
    assert groups.counts is not None
    for name, each in divisions(groups, groups.extent_of(case.shape)):
        yield from _divided(case, groups, name, each)  # whose tensors are freed before the next division


def _divided(case: Case, groups: Groups, name: str, each: list[int]) -> Iterator[Check]:
    """Check one division of M rows, or of K: the numbers of a call's tensor ``groups.counts``."""
    assert groups.counts is not None
    inputs = case.inputs(guarded=case.problem.saves)
    divided: Tensor = inputs.extras[groups.counts]
    divided.copy_(torch.tensor(each, dtype=divided.dtype))
    if groups.divides_k:
        _spoil_k_of_no_group(case, inputs, divided)
    out = case.output(guarded=True)
    found = inputs.call(case.matmul, out.view if case.takes_out else None)
    rows = inputs.computed_rows(found)
    if case.takes_out:
        outside = out.written - sum(map(touched, rows.parts()))
        yield case.check(f"{name}: elements of no group written", outside, 0)
    yield from saved_elsewhere(case, name, inputs)
    if len(rows):
        yield from numbers(case, name, found, inputs)


def _spoil_k_of_no_group(case: Case, inputs: Inputs, divided: Tensor) -> None:
    """Write NaN to the columns of A and the rows of B that no group has: a kernel must not multiply them."""
    k = case.shape[2]
    spoiled = torch.ones(k, dtype=torch.bool, device=divided.device)
    for first, end in bounds(case.problem, k, divided, len(divided)):
        spoiled[first:end] = False
    for matrix in (inputs.a, inputs.b.T):
        if matrix.dtype == torch.float8_e4m3fn:  # torch fills no selection of its elements
            matrix.view(torch.uint8)[:, spoiled] = E4M3_NAN
        else:
            matrix[:, spoiled] = math.nan
