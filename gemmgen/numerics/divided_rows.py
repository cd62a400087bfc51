"""Groups in the inputs and the result of a call: whose rows are whose, and what nobody computes.

A row is a row of A, or a row of K if groups divide K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, islice, repeat

import torch
from torch import Tensor

from gemmgen.numerics.encoding import pieces
from gemmgen.problem import Matmul, Shape
from gemmgen.problem.groups import Groups


@dataclass(frozen=True)
class ComputedRows:
    """The rows of D that belong to a group, group by group, where they lie in D; without groups all rows.

    They are counted without the rows between them. No more of D is copied than a slice has.
    """

    d: Tensor
    """D of all groups as one matrix [rows, N]."""
    ranges: tuple[tuple[int, int], ...]
    """First row of each group, and the row after its last one."""
    index: Tensor | None = None
    """Row of `d` for each row of the product, if an index scatters them."""

    def __len__(self) -> int:
        return sum(end - first for first, end in self.ranges)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return a slice of the rows, as a view if they lie one after the other."""
        start, stop, _ = rows.indices(len(self))
        found: list[Tensor] = []
        for first, end in self.ranges:
            own = slice(first + max(0, start), min(end, first + stop))
            if own.start < own.stop:
                found.append(self.d[own] if self.index is None else self.d[self.index[own]])
            start, stop = start - (end - first), stop - (end - first)
        if len(found) == 1:
            return found[0]
        return torch.cat(found) if found else self.d[:0]

    def parts(self) -> Iterator[Tensor]:
        """Yield all of the rows in parts, each as a view unless an index scatters them."""
        for first, end in self.ranges:
            if self.index is None:
                yield self.d[first:end]
                continue
            for (index,) in pieces(self.index[first:end]):
                yield self.d[index]


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


OUTSIDE = (-1, -(1 << 31), 1 << 30)
"""Indices outside of every matrix."""


def drawn_index(name: str, m: int, generator: torch.Generator, *, hostile: bool = False) -> Tensor:
    """Return a random int32 index [M] of M rows: ``d_rows`` has each once, ``a_rows`` some several times.

    A third of the numbers of a hostile index is outside of all rows.
    """
    device = generator.device
    if name == "d_rows":
        index = torch.randperm(m, generator=generator, device=device)
    else:
        index = torch.randint(m, (m,), generator=generator, device=device)
    if hostile:
        rows = (*OUTSIDE, m)
        for at, row in enumerate(rows):
            index[at :: 3 * len(rows)] = row
    return index.to(torch.int32)


def inside(index: Tensor, rows: int) -> Tensor:
    """Return which numbers of an index are rows of a matrix with `rows` rows."""
    return (index >= 0) & (index < rows)


def gathered(matrix: Tensor, index: Tensor) -> Tensor:
    """Return the rows of a matrix [R, K] that an index names; a row outside of the matrix is zeros."""
    rows = len(matrix)
    as_bytes = matrix.contiguous().view(torch.uint8)  # torch cannot fill all of its 8-bit floats
    padded = torch.cat([as_bytes, torch.zeros_like(as_bytes[:1])])
    return padded[index.long().where(inside(index, rows), rows)].view(matrix.dtype)


def bounds(problem: Matmul, extent: int, divided: Tensor | None, count: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of each group and the row behind its last one, in A [M, K], A [G * M, K] or K.

    `extent` is A's M, or K if groups divide that; `divided` is the call's tensor of rows, and `count` counts
    groups. No row is outside of the extent, and a group whose end lies before its first row has none,
    whatever the tensor holds.
    """
    groups = problem.groups
    assert groups is not None
    given = [extent] * count if divided is None else [int(each) for each in divided.clamp(0, extent)]
    if groups.divides_k and problem.scales_sums and problem.a.scale:
        # A block of K has one scale, and no group but the last one ends within a block.
        block = problem.a.scale.vector
        given = [min(-(-each // block) * block, extent) for each in given]
    first = 0
    for number, each in enumerate(given):
        if groups.apart:
            first, end = number * extent, number * extent + each
        else:
            end = each
        yield first, max(first, end)
        first = end


def computed_rows(
    problem: Matmul, d: Tensor, divided: Tensor | None, index: Tensor | None = None
) -> ComputedRows:
    """Return the rows of D that belong to a group; all rows without groups, and if groups divide K.

    `divided` is the call's tensor of rows; `index` has the row of D of each row of the product, or is None if
    both are the same row. A row whose index is outside of D is in no D, and is left out.
    """
    flat = d.flatten(0, -2)
    if problem.groups is None or problem.groups.divides_k:
        return ComputedRows(flat, ((0, len(flat)),))
    if index is not None:
        kept = rows_of_all_groups(problem, index, divided)
        kept = kept[inside(kept, len(flat))].long()
        return ComputedRows(flat, ((0, len(kept)),), kept)
    count = d.shape[0] if problem.groups.apart else len(divided if divided is not None else ())
    return ComputedRows(flat, tuple(bounds(problem, d.shape[-2], divided, count)))


def rows_of_all_groups(problem: Matmul, index: Tensor, divided: Tensor | None) -> Tensor:
    """Return the elements of an index [M] whose rows belong to a group of ``m_offsets``, group by group."""
    count = len(divided if divided is not None else ())
    return torch.cat([index[first:end] for first, end in bounds(problem, len(index), divided, count)])
