"""Groups of rows in the inputs and the result of a call: whose rows are whose, and what nobody computes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gemmgen.problem import Matmul
from gemmgen.problem.groups import Groups


def tensor_of_rows(groups: Groups, m: int, device: torch.device) -> Tensor:
    """Return the int32 tensor [G] by which a call divides rows: ends of groups, or their rows.

    The groups have the rows for which kernels are planned: all M of ``m_offsets`` are of a group.
    """
    counts = torch.tensor(groups.rows_of_each(m), dtype=torch.int32, device=device)
    return counts if groups.apart else counts.cumsum(0).to(torch.int32)


def drawn_rows(groups: Groups, m: int, generator: torch.Generator) -> Tensor:
    """Return such a tensor with random numbers: a row may be of no group, and a group may have no row."""
    drawn = torch.randint(m + 1, (groups.count,), generator=generator, device=generator.device)
    drawn[:: max(2, groups.count // 4)] = 0
    return (drawn if groups.apart else drawn.sort().values).to(torch.int32)


def bounds(problem: Matmul, m: int, divided: Tensor | None, count: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of each group and the row behind its last one, in A [M, K] or A [G * M, K].

    `m` is A's M, `divided` the call's tensor of rows, `count` the number of groups. No row is outside of A,
    and a group whose end lies before its first row has none, whatever the tensor holds.
    """
    groups = problem.groups
    assert groups is not None
    given = [m] * count if divided is None else [int(each) for each in divided.clamp(0, m)]
    first = 0
    for number, each in enumerate(given):
        if groups.apart:
            first, end = number * m, number * m + each
        else:
            end = each
        yield first, max(first, end)
        first = end


def of_groups(problem: Matmul, d: Tensor, divided: Tensor | None) -> Tensor:
    """Return the rows of D that are of a group, group by group, as one matrix; all of D without groups."""
    if problem.groups is None:
        return d
    m, count = (
        d.shape[-2],
        d.shape[0] if problem.groups.apart else len(divided if divided is not None else ()),
    )
    flat = d.flatten(0, -2)
    parts = [flat[first:end] for first, end in bounds(problem, m, divided, count)]
    return torch.cat(parts) if parts else flat[:0]
