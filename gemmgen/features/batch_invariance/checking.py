"""The check that rows of a batch-invariant kernel depend on nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from gemmgen.numerics.case import Case
from gemmgen.numerics.encoding import count_differing
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import Check
from gemmgen.numerics.side import CheckGroup, Checking, Held
from gemmgen.problem import Matmul
from gemmgen.problem.operations import OPERATIONS

MORE_ROWS: Final = 200
"""Rows that are added to a shape to compute a row again, in tiles at other places."""


class BatchInvariance(Checking):
    """Checks of a spec that promises batch invariance."""

    def check_groups(self) -> tuple[CheckGroup, ...]:
        """Return the group that computes rows again, among others."""
        # Inputs of other rows, the rows that they are copied from, and results of two loops and of both.
        return (CheckGroup("batch invariance", batch_invariant, Held(inputs=3, outputs=4)),)


def side_of(problem: Matmul) -> Checking | None:
    """Return the side of a batch-invariant matmul; None for others."""
    return BatchInvariance() if problem.batch_invariant else None


def batch_invariant(case: Case) -> Iterator[Check]:
    """Check that a row has the same bits alone, among other rows, in any place, and in a larger M."""
    inputs = case.inputs()
    first = case.run(inputs).clone()
    m, n, k = case.shape
    for rows in dict.fromkeys((1, 3, m - m // 3, m + MORE_ROWS)):
        drawn = torch.randint(m, (rows,), generator=case.generator, device=case.device)
        other = replace(case, shape=(rows, n, k))
        found = other.run(_with_rows_of(inputs, drawn, other))
        count = count_differing(found, first[drawn])
        yield case.check(f"batch invariance: elements that differ in {rows} rows", count, 0)


def _with_rows_of(inputs: Inputs, rows: Tensor, case: Case) -> Inputs:
    """Return arguments of a case with the rows of other inputs, each in the memory layout of the spec."""
    found = case.inputs()
    vectors = case.problem.vectors
    of_rows = {"a", "c", "a_scale", *(name for name in vectors if OPERATIONS[name].along == "m")}
    pairs = [("a", found.a, inputs.a), ("b", found.b, inputs.b)]
    pairs += [(name, found.extras[name], tensor) for name, tensor in inputs.extras.items()]
    for name, tensor, wanted in pairs:
        tensor.copy_(wanted[rows] if name in of_rows else wanted)
    return found
