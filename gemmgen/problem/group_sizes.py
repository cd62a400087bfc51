"""The sizes of the groups of one problem, in numbers that a person can take in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.problem.extents import Shape
from gemmgen.problem.groups import GroupKind, Groups


@dataclass(frozen=True)
class GroupSizes:
    """How a problem is divided: the rows of each group, or the K of each group."""

    kind: GroupKind
    groups: int
    least: int
    mean: float
    most: int
    empty: int
    """Groups without a row, or without K."""

    @classmethod
    def of(cls, groups: Groups, sizes: Sequence[int]) -> GroupSizes:
        """Return the numbers for groups of these sizes, one or more."""
        mean = round(sum(sizes) / len(sizes), 2)
        return cls(groups.of, len(sizes), min(sizes), mean, max(sizes), sum(not size for size in sizes))

    @classmethod
    def planned(cls, groups: Groups, shape: Shape) -> GroupSizes:
        """Return the numbers for a problem [M, N, K] as kernels are planned and timed for it."""
        m, _, k = shape
        return cls.of(groups, groups.depths_of_each(k) if groups.divides_k else groups.rows_of_each(m))

    @property
    def unit(self) -> str:
        """Unit of the sizes: ``rows``, or ``of K``."""
        return "of K" if self.kind == "k_offsets" else "rows"

    @property
    def spread(self) -> str:
        """The place of the mean between the least and the most, and the empty groups, in words."""
        if self.least == self.most:
            return "in each group"
        return f"in the mean, from {self.least:,} to {self.most:,}, {self.empty:,} empty"

    def __str__(self) -> str:
        """Return all numbers: ``128 groups (m_offsets): 0.84 rows in the mean, from 0 to 5, 60 empty``."""
        head = f"{self.groups:,} groups ({self.kind})"
        return f"{head}: {self.mean:,g} {self.unit} {self.spread}"
