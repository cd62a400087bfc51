"""The tensors by which calls divide M or K into groups, and the rows of each group.

A row is a row of A, or a row of K if groups divide K.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, cycle, islice, repeat

import torch
from torch import Tensor

from gemmgen.problem import Matmul, Shape
from gemmgen.problem.groups import Groups


def tensor_of_rows(groups: Groups, shape: Shape, device: torch.device) -> Tensor:
    """Return the int32 tensor [G] by which a call [M, N, K] divides rows: ends of groups, or their rows.

    The groups have the rows for which kernels are planned: each row of ``m_offsets`` belongs to a group, and
    each K of ``k_offsets``.
    """
    m, _, k = shape
    rows = groups.depths_of_each(k) if groups.divides_k else groups.rows_of_each(m)
    counts = torch.tensor(rows, dtype=torch.int32, device=device)
    return counts if groups.apart else counts.cumsum(0).to(torch.int32)


def drawn_rows(groups: Groups, shape: Shape, generator: torch.Generator) -> Tensor:
    """Return such a tensor with random numbers: a row may be of no group, and a group may have no row.

    One group of ``m_masked`` has two thirds of the rows or more; else all groups together have as many. So a
    launch whose tiles have one row of tiles and two thirds of the next has a second row of tiles.
    """
    most = groups.extent_of(shape)
    drawn = torch.randint(most + 1, (groups.count,), generator=generator, device=generator.device)
    if groups.count > 1:
        drawn[:: max(2, groups.count // 4)] = 0
    largest = drawn.argmax()
    drawn[largest] = drawn[largest].clamp(min=most - most // 3)
    return (drawn if groups.apart else drawn.sort().values).to(torch.int32)


def hostile_rows(groups: Groups, shape: Shape, device: torch.device) -> Tensor:
    """Return such a tensor with numbers out of bounds: beyond M or K, negative, and ends that fall.

    Either of two groups that claim a row of ``m_offsets`` may compute it, so there are none: after the first
    end that falls, none rises.
    """
    extent = groups.extent_of(shape)
    below, quarter, half, beyond = -extent - 7, extent // 4, extent // 2, 2 * extent + 7
    if groups.apart:
        numbers = cycle([beyond, below, extent, half, -1, extent + 1])
    elif groups.divides_k:
        numbers = cycle([below, half, beyond, quarter, -1, extent])
    else:
        numbers = chain([below, quarter, beyond, -1], repeat(below))
    return torch.tensor(list(islice(numbers, groups.count)), dtype=torch.int32, device=device)


def bounds(problem: Matmul, extent: int, divided: Tensor | None, count: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of each group and the row behind its last one, in A [M, K], A [G * M, K] or K.

    `extent` is A's M, or K if groups divide that; `divided` is the call's tensor of rows, and `count` counts
    groups. No row is outside of the extent, and a group whose end lies before its first row has none,
    whatever the tensor holds.
    """
    groups = problem.groups
    assert groups is not None
    given = [extent] * count if divided is None else [int(each) for each in divided.clamp(0, extent)]
    if groups.divides_k and (block := problem.scaled_k):
        # A block of K has one scale, and no group but the last one ends within a block.
        given = [min(-(-each // block) * block, extent) for each in given]
    first = 0
    for number, each in enumerate(given):
        if groups.apart:
            first, end = number * extent, number * extent + each
        else:
            end = each
        yield first, max(first, end)
        first = end
